//! The pool's thread: moves bytes between sockets and peers.
//!
//! Each round it takes note of what is wanted, lets every peer look at the clock, and waits for sockets or the next
//! deadline. A guest gets one bounded read per round, so a flood in one line delays the others by a system call.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use tracing::{debug, error};

use super::peer::Peer;
use super::socket::{self, Attempt};
use super::state::GuestState;
use super::{Desired, Endpoint, GuestLimits, Health, Timing};

/// One read of one guest.
const READ_BYTES: usize = 16 * 1024;

/// The longest wait, so that no forgotten deadline lasts.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// What the caller wants of a guest.
#[derive(Debug, Clone)]
pub struct Wanted {
    pub endpoint: Endpoint,
    pub limits: GuestLimits,
    pub desired: Desired,
    /// The generation in which a restore was last asked for; 0: never.
    pub restore: u64,
}

impl Wanted {
    pub fn new(endpoint: Endpoint, limits: GuestLimits) -> Self {
        Self {
            endpoint,
            limits,
            desired: Desired::default(),
            restore: 0,
        }
    }
}

/// What the thread knows of a guest.
#[derive(Debug, Clone)]
pub struct Known {
    pub seen: Option<(Arc<GuestState>, Instant)>,
    pub health: Health,
    pub refusal: Option<String>,
    /// Restores asked for up to this generation are acknowledged.
    pub restored: u64,
}

/// The notes that caller and thread exchange.
#[derive(Debug, Default)]
pub struct Shared {
    pub wanted: BTreeMap<String, Wanted>,
    /// Counts changes to `wanted`.
    pub generation: u64,
    pub known: BTreeMap<String, Known>,
    pub stop: bool,
}

/// Ends the thread's wait.
#[derive(Debug)]
pub struct Wake(OwnedFd);

impl Wake {
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(
            0,
            EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
        )?))
    }

    pub fn wake(&self) {
        // It fails only when the counter is full, and then it is readable already.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    fn clear(&self) {
        // Nothing to read is fine too.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

/// One guest's line.
struct Line {
    endpoint: Endpoint,
    limits: GuestLimits,
    peer: Peer,
    socket: Option<OwnedFd>,
    /// The last restore asked of the peer.
    restore: u64,
    /// Whether what is known may have changed since it was last published.
    dirty: bool,
}

/// Starts the thread.
pub fn spawn(
    shared: Arc<Mutex<Shared>>,
    wake: Arc<Wake>,
    timing: Timing,
) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name("ostler-agents".into())
        .spawn(move || {
            let mut worker = Worker {
                shared,
                wake,
                timing,
                lines: BTreeMap::new(),
                generation: None,
            };
            while worker.round() {}
        })
}

struct Worker {
    shared: Arc<Mutex<Shared>>,
    wake: Arc<Wake>,
    timing: Timing,
    lines: BTreeMap<String, Line>,
    generation: Option<u64>,
}

impl Worker {
    /// One round; false when it is time to end.
    fn round(&mut self) -> bool {
        let now = Instant::now();
        if !self.take_note(now) {
            return false;
        }
        for line in self.lines.values_mut() {
            line.tend(now);
        }
        self.publish();
        if let Err(errno) = self.wait(now) {
            // Out of memory, or a bug: nothing a guest can bring about. Better slow than spinning.
            error!(%errno, "can't wait for the guests' agents");
            std::thread::sleep(WAIT_MAX);
        }
        true
    }

    /// Takes over what the caller wants; false when that is to end.
    fn take_note(&mut self, now: Instant) -> bool {
        let shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if shared.stop {
            return false;
        }
        if self.generation == Some(shared.generation) {
            return true;
        }
        self.generation = Some(shared.generation);
        self.lines.retain(|id, line| {
            shared
                .wanted
                .get(id)
                .is_some_and(|w| w.endpoint == line.endpoint && w.limits == line.limits)
        });
        for (id, wanted) in &shared.wanted {
            let line = self.lines.entry(id.clone()).or_insert_with(|| Line {
                endpoint: wanted.endpoint.clone(),
                limits: wanted.limits,
                peer: Peer::new(wanted.limits, self.timing, now),
                socket: None,
                restore: shared.known.get(id).map_or(0, |known| known.restored),
                dirty: true,
            });
            if wanted.restore > line.restore {
                line.restore = wanted.restore;
                line.peer.restore();
            }
            line.peer.desire(wanted.desired.clone());
        }
        true
    }

    fn publish(&mut self) {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let Shared { known, wanted, .. } = &mut *shared;
        known.retain(|id, _| wanted.contains_key(id));
        for (id, line) in &mut self.lines {
            if std::mem::take(&mut line.dirty) && wanted.contains_key(id) {
                known.insert(id.clone(), line.known());
            }
        }
    }

    fn wait(&mut self, now: Instant) -> Result<(), Errno> {
        let next = self.lines.values().map(|line| line.peer.next_deadline());
        let wait = next.min().map_or(WAIT_MAX, |next| {
            next.saturating_duration_since(now).min(WAIT_MAX)
        });
        let mut fds = vec![PollFd::new(&self.wake.0, PollFlags::IN)];
        let mut ids = Vec::with_capacity(self.lines.len());
        for (id, line) in &self.lines {
            if let Some(socket) = &line.socket {
                fds.push(PollFd::new(socket, line.interest()));
                ids.push(id.clone());
            }
        }
        let timeout = Timespec::try_from(wait).map_err(|_| Errno::INVAL)?;
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        if ready[0] {
            self.wake.clear();
        }
        let now = Instant::now();
        for (id, _) in ids.iter().zip(&ready[1..]).filter(|(_, ready)| **ready) {
            if let Some(line) = self.lines.get_mut(id) {
                line.serve(now);
            }
        }
        Ok(())
    }
}

impl Line {
    /// Lets the clock act, and sends what that brings about.
    fn tend(&mut self, now: Instant) {
        if self.peer.wants_connection(now) {
            self.dirty = true;
            match socket::start(&self.endpoint) {
                Ok(Attempt::Connected(socket)) => {
                    self.socket = Some(socket);
                    self.peer.connected(now);
                }
                Ok(Attempt::InProgress(socket)) => {
                    self.socket = Some(socket);
                    self.peer.connecting(now);
                }
                Err(errno) => {
                    debug!(endpoint = ?self.endpoint, %errno, "no connection");
                    self.peer.refused(now);
                }
            }
        }
        if now >= self.peer.next_deadline() {
            self.dirty = true;
        }
        self.peer.poll(now);
        self.send(now);
    }

    /// The socket has something: the outcome of connecting, bytes, room, or its end.
    fn serve(&mut self, now: Instant) {
        self.dirty = true;
        let Some(socket) = &self.socket else { return };
        if self.peer.is_connecting() {
            match socket::outcome(socket) {
                Ok(()) => self.peer.connected(now),
                Err(_) => self.peer.refused(now),
            }
        } else {
            let mut buffer = [0; READ_BYTES];
            match recv(socket, &mut buffer, RecvFlags::empty()) {
                Ok((_, 0)) => self.peer.refused(now),
                Ok((_, count)) => self.peer.received(now, &buffer[..count]),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => self.peer.refused(now),
            }
        }
        self.peer.poll(now);
        self.send(now);
    }

    fn send(&mut self, now: Instant) {
        while let Some(socket) = &self.socket
            && !self.peer.outgoing().is_empty()
        {
            match send(socket, self.peer.outgoing(), SendFlags::NOSIGNAL) {
                Ok(count) => self.peer.sent(count),
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(_) => self.peer.refused(now),
            }
        }
        if !self.peer.has_link() {
            self.socket = None;
        }
    }

    fn interest(&self) -> PollFlags {
        if self.peer.is_connecting() {
            PollFlags::OUT
        } else if self.peer.outgoing().is_empty() {
            PollFlags::IN
        } else {
            PollFlags::IN | PollFlags::OUT
        }
    }

    fn known(&self) -> Known {
        Known {
            seen: self.peer.seen().cloned(),
            health: self.peer.health().clone(),
            refusal: self.peer.refusal().map(str::to_owned),
            restored: if self.peer.restore_pending() {
                self.restore.saturating_sub(1)
            } else {
                self.restore
            },
        }
    }
}
