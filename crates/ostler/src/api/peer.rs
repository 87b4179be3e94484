//! Who may use the API: root, the steward's own user, and whom the configuration names.
//!
//! The kernel tells who is at the other end of a unix socket, as of the moment it connected: its user and group (`SO_PEERCRED`) and its other
//! groups (`SO_PEERGROUPS`). The socket's file mode keeps everyone else from connecting at all: 0660 and the configured group's. Where users are
//! named by number too, no file mode can say so, and the file is open to all to connect while each peer is still judged.

#![allow(unsafe_code)] // SO_PEERGROUPS and nothing else: no crate in the workspace wraps it.

use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener as StdListener, UnixStream as StdStream};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use ostler_model::config::ApiConfig;
use rustix::fs::{Gid, Mode, Uid};
use tokio::net::{UnixListener, UnixStream, unix::SocketAddr};

/// Groups of a peer that are looked at; Linux allows more, and a peer with more is judged by the first.
const GROUPS_MAX: usize = 256;

/// Who is at the other end.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    /// Its user, where the kernel can tell.
    pub uid: Option<u32>,
    /// Its groups.
    pub gids: Vec<u32>,
}

/// Who may use the API.
#[derive(Clone, Debug)]
pub struct Allowed {
    own_uid: u32,
    uids: Vec<u32>,
    gid: Option<u32>,
}

impl Allowed {
    /// As the configuration says.
    pub fn from_config(config: &ApiConfig) -> anyhow::Result<Allowed> {
        let gid = config
            .group
            .as_deref()
            .map(|group| group_id(group, Path::new("/etc/group")))
            .transpose()?;
        Ok(Allowed {
            own_uid: rustix::process::geteuid().as_raw(),
            uids: config.uids.clone(),
            gid,
        })
    }

    /// Whether this peer may.
    pub fn admits(&self, peer: &Peer) -> bool {
        peer.uid
            .is_some_and(|uid| uid == 0 || uid == self.own_uid || self.uids.contains(&uid))
            || self.gid.is_some_and(|gid| peer.gids.contains(&gid))
    }
}

/// A group by number or by its name in `/etc/group`.
fn group_id(group: &str, file: &Path) -> anyhow::Result<u32> {
    if let Ok(gid) = group.parse() {
        return Ok(gid);
    }
    let text = std::fs::read_to_string(file).with_context(|| {
        format!(
            "could not read {} to find the group `{group}`",
            file.display()
        )
    })?;
    text.lines()
        .find_map(|line| {
            let mut fields = line.split(':');
            (fields.next()? == group).then(|| fields.nth(1)?.parse().ok())?
        })
        .with_context(|| {
            format!("there is no group `{group}` on this host: make it (`groupadd --system {group}`) or change [api] group")
        })
}

/// The socket's file, to be removed at the end.
#[derive(Debug)]
pub struct Socket {
    path: PathBuf,
    inode: (u64, u64),
}

impl Socket {
    /// Removes the file, unless another steward's stands there by now.
    pub fn remove(&self) {
        if std::fs::symlink_metadata(&self.path)
            .is_ok_and(|found| (found.dev(), found.ino()) == self.inode)
        {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Binds the socket. One that nobody answers on is replaced; one that somebody answers on, or a file that is no socket, is refused.
pub fn bind(path: &Path, allowed: &Allowed) -> anyhow::Result<(StdListener, Socket)> {
    let shown = path.display();
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(|| {
            format!(
                "could not make the folder {}; run as root, or set [api] socket",
                folder.display()
            )
        })?;
    }
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            bail!(
                "{shown} is there and is no socket: remove it, or set [api] socket to another path"
            );
        }
        Ok(_) => match StdStream::connect(path) {
            Ok(_) => bail!(
                "another process serves {shown}: stop it, or set [api] socket to another path"
            ),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(error) => {
                return Err(error).with_context(|| {
                    format!("could not tell whether {shown} is in use: remove it if it is not")
                });
            }
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("could not look at {shown}")),
    }
    // Bound under another name and moved into place when its mode is set, so that it can never be connected to with the wrong one.
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    let fresh = PathBuf::from(fresh);
    match std::fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("could not remove {}", fresh.display()));
        }
        _ => {}
    }
    let before = rustix::process::umask(Mode::from_raw_mode(0o777));
    let bound = StdListener::bind(&fresh);
    rustix::process::umask(before);
    let listener = bound.with_context(|| {
        format!(
            "could not bind the API's socket {}; run as root, or set [api] socket",
            fresh.display()
        )
    })?;
    let place = || -> anyhow::Result<Socket> {
        if let Some(gid) = allowed.gid {
            rustix::fs::chown(&fresh, None::<Uid>, Some(Gid::from_raw(gid)))
                .with_context(|| format!("could not give {} to group {gid}", fresh.display()))?;
        }
        let mode = if allowed.uids.is_empty() {
            0o660
        } else {
            0o666
        };
        std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(mode))
            .with_context(|| format!("could not set the mode of {}", fresh.display()))?;
        std::fs::rename(&fresh, path).with_context(|| format!("could not put {shown} in place"))?;
        let found = std::fs::symlink_metadata(path)
            .with_context(|| format!("could not look at {shown}"))?;
        Ok(Socket {
            path: path.to_owned(),
            inode: (found.dev(), found.ino()),
        })
    };
    match place() {
        Ok(socket) => Ok((listener, socket)),
        Err(error) => {
            let _ = std::fs::remove_file(&fresh);
            Err(error)
        }
    }
}

/// Accepts connections and asks the kernel who they are.
pub struct PeerListener(UnixListener);

impl PeerListener {
    /// Takes a bound socket over into the runtime of this thread.
    pub fn new(listener: StdListener) -> io::Result<PeerListener> {
        listener.set_nonblocking(true)?;
        UnixListener::from_std(listener).map(PeerListener)
    }
}

impl Listener for PeerListener {
    type Io = UnixStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (UnixStream, SocketAddr) {
        // axum's own listener retries after errors such as "too many open files".
        Listener::accept(&mut self.0).await
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

impl Connected<IncomingStream<'_, PeerListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, PeerListener>) -> Peer {
        peer_of(stream.io())
    }
}

fn peer_of(stream: &UnixStream) -> Peer {
    let Ok(credentials) = stream.peer_cred() else {
        return Peer::default();
    };
    let mut gids = vec![credentials.gid()];
    gids.extend(supplementary(stream).unwrap_or_default());
    Peer {
        uid: Some(credentials.uid()),
        gids,
    }
}

fn supplementary(stream: &UnixStream) -> io::Result<Vec<u32>> {
    let mut groups = [0_u32; GROUPS_MAX];
    let mut length = libc::socklen_t::try_from(size_of_val(&groups)).unwrap_or(0);
    // SAFETY: the buffer is `length` bytes long and holds plain integers, which any bytes are; the descriptor is open as long as the stream is
    // borrowed; the kernel writes at most `length` bytes and says how many.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERGROUPS,
            groups.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let count = usize::try_from(length).unwrap_or(0) / size_of::<u32>();
    Ok(groups[..count.min(GROUPS_MAX)].to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(uid: u32, gids: &[u32]) -> Peer {
        Peer {
            uid: Some(uid),
            gids: gids.to_vec(),
        }
    }

    #[test]
    fn only_root_the_own_user_and_the_named_are_admitted() {
        let allowed = Allowed {
            own_uid: 7,
            uids: vec![1000],
            gid: Some(50),
        };
        for (peer, admitted) in [
            (peer(0, &[0]), true),
            (peer(7, &[7]), true),
            (peer(1000, &[1000]), true),
            (peer(1001, &[1001]), false),
            (peer(1001, &[1001, 50]), true),
            (Peer::default(), false),
        ] {
            assert_eq!(allowed.admits(&peer), admitted, "{peer:?}");
        }
    }

    #[test]
    fn a_group_is_found_by_name_or_number() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("group");
        std::fs::write(&file, "root:x:0:\nostler:x:977:a,b\nbroken\n").unwrap();
        assert_eq!(group_id("ostler", &file).unwrap(), 977);
        assert_eq!(group_id("12", &file).unwrap(), 12);
        assert!(
            group_id("nobody-here", &file)
                .unwrap_err()
                .to_string()
                .contains("groupadd")
        );
    }

    fn nobody_else() -> Allowed {
        Allowed {
            own_uid: 0,
            uids: Vec::new(),
            gid: None,
        }
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_living_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run/api.sock");
        let (first, socket) = bind(&path, &nobody_else()).unwrap();
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o660
        );
        let refused = bind(&path, &nobody_else()).unwrap_err();
        assert!(
            refused.to_string().contains("another process serves"),
            "{refused}"
        );
        drop(first);
        let (_second, replaced) = bind(&path, &nobody_else()).unwrap();
        // The first's end must not take the second's socket away.
        socket.remove();
        assert!(path.exists());
        replaced.remove();
        assert!(!path.exists());
    }

    #[test]
    fn a_file_that_is_no_socket_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("api.sock");
        std::fs::write(&path, "precious").unwrap();
        assert!(bind(&path, &nobody_else()).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn the_kernel_tells_who_is_at_the_other_end() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .unwrap();
        runtime.block_on(async {
            let (ours, _theirs) = UnixStream::pair().unwrap();
            let peer = peer_of(&ours);
            assert_eq!(peer.uid, Some(rustix::process::geteuid().as_raw()));
            assert!(peer.gids.contains(&rustix::process::getegid().as_raw()));
        });
    }
}
