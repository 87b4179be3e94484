//! Gives an [`Agent`] its connections: one at a time, the newest wins.
//!
//! The newest, because a steward that restarts must not wait until its predecessor's connection is noticed to be dead.
//! Requests are taken one by one, the next only when the reply to the last has left, so the host's own pace bounds what is
//! held here: one frame in, one frame out.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use ostler_abi::guest::{
    bounded_text,
    frame::{self, FrameDecoder, FrameError, Kind},
    wire,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::{debug, info, warn};
use vsock::{VMADDR_CID_ANY, VsockListener};

use super::{Agent, Kernel};

/// The longest the loop sleeps, so that the agent's clocks are looked at.
const TICK: Duration = Duration::from_millis(500);

const READ_BYTES: usize = 4096;

/// Where hosts connect.
#[derive(Debug)]
pub enum Listener {
    /// The host's side of a vsock, and nobody else's.
    Vsock {
        /// The socket.
        listener: VsockListener,
        /// The only address connections are taken from.
        peer_cid: u32,
    },
    /// A socket in the file system, for its owner only.
    Unix(UnixListener),
    /// Nothing listens: one connection is given.
    None,
}

impl Listener {
    /// Listens on a vsock port for the machine whose address is `peer_cid`.
    pub fn vsock(port: u32, peer_cid: u32) -> io::Result<Self> {
        let listener = VsockListener::bind_with_cid_port(VMADDR_CID_ANY, port)?;
        listener.set_nonblocking(true)?;
        Ok(Self::Vsock { listener, peer_cid })
    }

    /// Listens on a path, which may hold a socket left over from an earlier run.
    pub fn unix(path: &Path) -> io::Result<Self> {
        if fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
            fs::remove_file(path)?;
        }
        let listener = UnixListener::bind(path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        Ok(Self::Unix(listener))
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Vsock { listener, .. } => Some(listener.as_fd()),
            Self::Unix(listener) => Some(listener.as_fd()),
            Self::None => None,
        }
    }

    /// A connection, if one waits and may be taken.
    fn accept(&self) -> io::Result<Option<Connection>> {
        let accepted = match self {
            Self::None => return Ok(None),
            Self::Unix(listener) => listener.accept().and_then(|(stream, _)| {
                stream.set_nonblocking(true)?;
                Ok(Some(Connection::of(stream)))
            }),
            Self::Vsock { listener, peer_cid } => listener.accept().and_then(|(stream, peer)| {
                if peer.cid() != *peer_cid {
                    warn!(cid = peer.cid(), "refused: not the host");
                    return Ok(None);
                }
                stream.set_nonblocking(true)?;
                Ok(Some(Connection::of(stream)))
            }),
        };
        match accepted {
            Err(error) if is_transient(&error) => Ok(None),
            other => other,
        }
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted
    )
}

/// One host's connection.
pub struct Connection {
    input: Box<dyn AsFd>,
    output: Box<dyn AsFd>,
    decoder: FrameDecoder,
    /// Read but not yet decoded, kept back while a reply waits to leave.
    unread: Vec<u8>,
    reply: Vec<u8>,
    /// Close when the reply has left.
    last: bool,
}

impl Connection {
    /// Over one descriptor for both directions.
    fn of(stream: impl AsFd + 'static) -> Self {
        let stream = std::rc::Rc::new(stream);
        Self::pair(Box::new(stream.clone()), Box::new(stream))
    }

    /// Over standard input and output.
    pub fn stdio() -> io::Result<Self> {
        rustix::io::ioctl_fionbio(io::stdin(), true)?;
        rustix::io::ioctl_fionbio(io::stdout(), true)?;
        Ok(Self::pair(Box::new(io::stdin()), Box::new(io::stdout())))
    }

    fn pair(input: Box<dyn AsFd>, output: Box<dyn AsFd>) -> Self {
        Self {
            input,
            output,
            decoder: FrameDecoder::new(),
            unread: Vec::new(),
            reply: Vec::new(),
            last: false,
        }
    }

    /// Takes what can be taken and sends what can be sent, without waiting. False: it is over.
    fn advance<K: Kernel>(&mut self, agent: &mut Agent<K>, now: Instant) -> io::Result<bool> {
        if !self.flush()? {
            return Ok(true);
        }
        if self.last {
            return Ok(false);
        }
        if self.unread.is_empty() {
            let mut buffer = [0; READ_BYTES];
            match rustix::io::read(&*self.input, &mut buffer) {
                Ok(0) => return Ok(false),
                Ok(count) => self.unread.extend_from_slice(&buffer[..count]),
                Err(error) if is_transient(&error.into()) => return Ok(true),
                Err(error) => return Err(error.into()),
            }
        }
        let unread = std::mem::take(&mut self.unread);
        let mut input = unread.as_slice();
        while !input.is_empty() && self.reply.is_empty() && !self.last {
            match self.decoder.push(&mut input) {
                Ok(None) => {}
                Ok(Some(frame)) => self.reply = answer(agent, now, &frame)?,
                Err(error) => {
                    warn!(%error, "the host's stream can't be read");
                    self.reply = refuse(&error)?;
                    self.last = true;
                }
            }
            self.flush()?;
        }
        self.unread = input.to_vec();
        Ok(!(self.last && self.reply.is_empty()))
    }

    /// True when nothing is left to send.
    fn flush(&mut self) -> io::Result<bool> {
        while !self.reply.is_empty() {
            match rustix::io::write(&*self.output, &self.reply) {
                Ok(count) => drop(self.reply.drain(..count)),
                Err(error) if is_transient(&error.into()) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }
}

/// The reply to one frame.
fn answer<K: Kernel>(
    agent: &mut Agent<K>,
    now: Instant,
    frame: &frame::Frame,
) -> io::Result<Vec<u8>> {
    let request = match frame.kind {
        Kind::Request => frame::decode_payload::<wire::Request>(&frame.payload),
        Kind::Reply => Err(FrameError::Kind { kind: 2 }),
    };
    let reply = match request {
        Ok(request) => agent.handle(now, &request),
        Err(error) => error_reply(wire::ErrorCode::Malformed, &error),
    };
    encode(frame.request_id, &reply)
}

/// The last words on a stream that can't be read on.
fn refuse(error: &FrameError) -> io::Result<Vec<u8>> {
    match error {
        FrameError::Version { request_id, .. } => {
            encode(*request_id, &error_reply(wire::ErrorCode::Version, error))
        }
        _ => encode(0, &error_reply(wire::ErrorCode::Malformed, error)),
    }
}

fn error_reply(code: wire::ErrorCode, error: &FrameError) -> wire::Reply {
    let body = wire::reply::Body::Error(wire::Error {
        code: code.into(),
        text: bounded_text(&error.to_string()),
        supported_versions: frame::VERSIONS.iter().map(|&v| v.into()).collect(),
    });
    wire::Reply { body: Some(body) }
}

fn encode(request_id: u32, reply: &wire::Reply) -> io::Result<Vec<u8>> {
    frame::encode_reply(request_id, reply).map_err(io::Error::other)
}

/// Serves until `stop` has something to read or, where nothing listens, the given connection ends. Everything is put back
/// on the way out.
pub fn run<K: Kernel>(
    agent: &mut Agent<K>,
    listener: &Listener,
    given: Option<Connection>,
    stop: &UnixStream,
) -> io::Result<()> {
    let outcome = serve(agent, listener, given, stop);
    if agent.has_changes() {
        agent.restore(Instant::now());
    }
    outcome
}

fn serve<K: Kernel>(
    agent: &mut Agent<K>,
    listener: &Listener,
    mut connection: Option<Connection>,
    stop: &UnixStream,
) -> io::Result<()> {
    loop {
        let ready = wait(listener, connection.as_ref(), stop)?;
        let now = Instant::now();
        agent.tick(now);
        if ready.stop {
            info!("asked to end");
            return Ok(());
        }
        if ready.listener
            && let Some(newer) = listener.accept()?
        {
            debug!(replaces = connection.is_some(), "a host connected");
            connection = Some(newer);
        } else if ready.connection
            && let Some(current) = &mut connection
        {
            let live = current.advance(agent, now).unwrap_or_else(|error| {
                debug!(%error, "the connection failed");
                false
            });
            if !live {
                connection = None;
            }
        }
        if connection.is_none() && matches!(listener, Listener::None) {
            return Ok(());
        }
    }
}

struct Ready {
    stop: bool,
    listener: bool,
    connection: bool,
}

fn wait(
    listener: &Listener,
    connection: Option<&Connection>,
    stop: &UnixStream,
) -> io::Result<Ready> {
    // What is read but kept back needs no descriptor to wake us, only the way out to be clear.
    let pending = connection.is_some_and(|c| c.reply.is_empty() && !c.unread.is_empty());
    let connection_fd = connection.map(|c| {
        if c.reply.is_empty() {
            PollFd::from_borrowed_fd(c.input.as_fd(), PollFlags::IN)
        } else {
            PollFd::from_borrowed_fd(c.output.as_fd(), PollFlags::OUT)
        }
    });
    let listener_fd = listener
        .fd()
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    let (has_connection, has_listener) = (connection_fd.is_some(), listener_fd.is_some());
    let mut fds = vec![PollFd::new(stop, PollFlags::IN)];
    fds.extend(listener_fd);
    fds.extend(connection_fd);
    let timeout = if pending { Duration::ZERO } else { TICK };
    let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let is_ready = |at: usize| !fds[at].revents().is_empty();
    Ok(Ready {
        stop: is_ready(0),
        listener: has_listener && is_ready(1),
        connection: pending || has_connection && is_ready(fds.len() - 1),
    })
}
