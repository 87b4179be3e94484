//! A lane's socket: a TCP connection, or an ICMP socket of the kernel's own kind.
//!
//! The latter (Linux's "ping socket") needs no privilege beyond a group named in `net.ipv4.ping_group_range`, sends nothing but echo
//! requests, and is given the replies with its own identifier alone: however many lanes there are, a reply reaches one.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use mio::event::Source;
use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto};

use crate::error::LoadError;
use crate::proto::Wire;

/// The first connections must stand within this.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

/// A socket that never blocks.
#[derive(Debug)]
pub enum Link {
    /// A TCP connection.
    Tcp(TcpStream),
    /// A socket for ICMP echo. All it has in common with UDP is that datagrams are sent and received, which is what the type is used for.
    Icmp(mio::net::UdpSocket),
}

impl Link {
    /// Opens `count` of them, all or none.
    pub fn open_all(target: SocketAddr, wire: Wire, count: usize) -> Result<Vec<Self>, LoadError> {
        let open = |index| match wire {
            Wire::Stream => connect(target).map_err(|source| LoadError::Connect {
                target,
                index,
                source,
            }),
            Wire::Icmp { .. } => icmp(target).map_err(|source| LoadError::Icmp { target, source }),
        };
        (0..count).map(open).collect()
    }

    /// Begins to open one; it is open once it is writable and [stands](Self::stands).
    pub fn reopen(target: SocketAddr, wire: Wire) -> io::Result<Self> {
        match wire {
            Wire::Stream => {
                let stream = TcpStream::connect(target)?;
                stream.set_nodelay(true)?;
                Ok(Link::Tcp(stream))
            }
            Wire::Icmp { .. } => icmp(target),
        }
    }

    /// Whether a link that is writable is open, rather than refused.
    pub fn stands(&self) -> bool {
        match self {
            Link::Tcp(stream) => {
                matches!(stream.take_error(), Ok(None)) && stream.peer_addr().is_ok()
            }
            Link::Icmp(_) => true,
        }
    }

    /// Sends some bytes, or one datagram.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Link::Tcp(stream) => stream.write(bytes),
            Link::Icmp(socket) => socket.send(bytes),
        }
    }

    /// Receives some bytes, or one datagram.
    pub fn receive(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Link::Tcp(stream) => stream.read(buffer),
            Link::Icmp(socket) => socket.recv(buffer),
        }
    }

    fn source(&mut self) -> &mut dyn Source {
        match self {
            Link::Tcp(stream) => stream,
            Link::Icmp(socket) => socket,
        }
    }
}

impl Source for Link {
    fn register(
        &mut self,
        registry: &Registry,
        token: Token,
        interests: Interest,
    ) -> io::Result<()> {
        self.source().register(registry, token, interests)
    }

    fn reregister(
        &mut self,
        registry: &Registry,
        token: Token,
        interests: Interest,
    ) -> io::Result<()> {
        self.source().reregister(registry, token, interests)
    }

    fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        self.source().deregister(registry)
    }
}

fn connect(target: SocketAddr) -> io::Result<Link> {
    let stream = std::net::TcpStream::connect_timeout(&target, CONNECT_TIME_MAX)?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(Link::Tcp(TcpStream::from_std(stream)))
}

fn icmp(target: SocketAddr) -> io::Result<Link> {
    if !target.is_ipv4() {
        let why = "only IPv4 addresses are pinged";
        return Err(io::Error::new(io::ErrorKind::Unsupported, why));
    }
    let socket = rustix::net::socket_with(
        AddressFamily::INET,
        SocketType::DGRAM,
        SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
        Some(ipproto::ICMP),
    )?;
    rustix::net::connect(&socket, &target)?;
    let socket = UdpSocket::from(socket);
    Ok(Link::Icmp(mio::net::UdpSocket::from_std(socket)))
}
