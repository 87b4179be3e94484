//! Sockets that never make their caller wait, on vsock and in the file system.

// rustix has no vsock address, and its trait for addresses of others is unsafe to implement.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use rustix::io::Errno;
use rustix::net::addr::{SocketAddrArg, SocketAddrLen, SocketAddrOpaque};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt,
};

/// Where a guest's agent listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// In the guest.
    Vsock {
        /// The guest's address, as given to its vhost-vsock device.
        cid: u32,
        /// The agent's port.
        port: u32,
    },
    /// On this host, for tests and benches.
    Unix(PathBuf),
}

/// A connection being made.
#[derive(Debug)]
pub enum Attempt {
    /// It is there.
    Connected(OwnedFd),
    /// It will be writable when the outcome is known; ask [`outcome`] then.
    InProgress(OwnedFd),
}

/// Starts to connect.
pub fn start(endpoint: &Endpoint) -> Result<Attempt, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (socket, result) = match endpoint {
        Endpoint::Vsock { cid, port } => {
            let family = AddressFamily::from_raw(AF_VSOCK);
            let socket = socket_with(family, SocketType::STREAM, flags, None)?;
            let address = VsockAddress {
                cid: *cid,
                port: *port,
            };
            let result = connect(&socket, &address);
            (socket, result)
        }
        Endpoint::Unix(path) => {
            let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            let result = connect(&socket, &SocketAddrUnix::new(path.as_path())?);
            (socket, result)
        }
    };
    match result {
        Ok(()) => Ok(Attempt::Connected(socket)),
        Err(Errno::INPROGRESS) => Ok(Attempt::InProgress(socket)),
        Err(error) => Err(error),
    }
}

/// How an attempt in progress ended.
pub fn outcome(socket: impl AsFd) -> Result<(), Errno> {
    sockopt::socket_error(socket)?
}

const AF_VSOCK: u16 = 40;
const _: () = assert!(libc::AF_VSOCK == AF_VSOCK as i32);

struct VsockAddress {
    cid: u32,
    port: u32,
}

// SAFETY: the pointer handed on is to a whole, initialised `sockaddr_vm`, with its size, and lives as long as the call.
unsafe impl SocketAddrArg for VsockAddress {
    unsafe fn with_sockaddr<R>(
        &self,
        f: impl FnOnce(*const SocketAddrOpaque, SocketAddrLen) -> R,
    ) -> R {
        let address = libc::sockaddr_vm {
            svm_family: AF_VSOCK,
            svm_reserved1: 0,
            svm_port: self.port,
            svm_cid: self.cid,
            svm_zero: [0; 4],
        };
        #[allow(clippy::cast_possible_truncation)] // Sixteen.
        let bytes = size_of::<libc::sockaddr_vm>() as SocketAddrLen;
        f((&raw const address).cast(), bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{FromRawFd as _, IntoRawFd as _};

    use super::*;

    /// Binding takes an address as connecting does, and unlike that needs no peer.
    #[test]
    fn the_kernel_reads_the_vsock_address_as_meant() {
        const PORT: u32 = 0x0001_2345;
        let family = AddressFamily::from_raw(AF_VSOCK);
        let socket = match socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None) {
            Ok(socket) => socket,
            Err(error) => {
                println!("SKIP the_kernel_reads_the_vsock_address_as_meant: {error}");
                return;
            }
        };
        let address = VsockAddress {
            cid: vsock::VMADDR_CID_ANY,
            port: PORT,
        };
        rustix::net::bind(&socket, &address).unwrap();
        // SAFETY: the descriptor is a vsock socket, and ownership passes on.
        let socket = unsafe { vsock::VsockListener::from_raw_fd(socket.into_raw_fd()) };
        let bound = socket.local_addr().unwrap();
        assert_eq!((bound.cid(), bound.port()), (vsock::VMADDR_CID_ANY, PORT));
    }

    #[test]
    fn connecting_never_waits_and_says_what_came_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let nobody = Endpoint::Unix(folder.path().join("nobody"));
        assert_eq!(start(&nobody).unwrap_err(), Errno::NOENT);
        let too_long = Endpoint::Unix("x".repeat(200).into());
        assert!(start(&too_long).is_err());
        // A vsock peer that isn't there: an answer at once or later, but no waiting for one.
        let absent = Endpoint::Vsock {
            cid: vsock::VMADDR_CID_LOCAL,
            port: 10_774,
        };
        if let Ok(Attempt::Connected(_)) = start(&absent) {
            panic!("connected to nobody");
        }
    }
}
