//! What goes over the wire, as pure code: requests are drawn and encoded, replies parsed from pieces of any size.

mod http;
mod memcached;

pub use http::Http;
pub use memcached::{Keyspace, Memcached, MemcachedMix};

use rand::Rng;

use crate::ledger::Outcome;

/// What the bytes so far amount to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// All bytes were taken, and more must come.
    Incomplete,
    /// One whole reply; the rest of the bytes belongs to the next.
    Complete(Outcome),
    /// One whole reply, after which the server closes the connection.
    Last(Outcome),
    /// No reply of this protocol looks like this; where the next one starts can't be known.
    Broken,
}

/// A request-response protocol with replies in the order of the requests.
pub trait Protocol {
    /// What must be known of a request to check its reply.
    type Request: Copy + std::fmt::Debug;
    /// How far the current reply has been read.
    type Parser: Default + std::fmt::Debug;

    /// Draws the next request.
    fn draw(&self, rng: &mut impl Rng) -> Self::Request;

    /// Appends a request's bytes.
    fn encode(&self, request: Self::Request, out: &mut Vec<u8>);

    /// Reads on in the reply to `request`; returns how many bytes were taken. A parser that completed is ready for the next.
    fn parse(
        &self,
        parser: &mut Self::Parser,
        request: Self::Request,
        bytes: &[u8],
    ) -> (usize, Reply);
}

/// A line being gathered from pieces, up to `N` bytes; what is longer is cut, and said to be so.
#[derive(Debug, Clone)]
struct Line<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Default for Line<N> {
    fn default() -> Self {
        Self {
            bytes: [0; N],
            len: 0,
        }
    }
}

impl<const N: usize> Line<N> {
    /// Takes bytes up to and including a newline; true when the line is whole.
    fn gather(&mut self, bytes: &[u8]) -> (usize, bool) {
        let end = bytes.iter().position(|&b| b == b'\n');
        let piece = &bytes[..end.unwrap_or(bytes.len())];
        let room = N.saturating_sub(self.len).min(piece.len());
        self.bytes[self.len.min(N)..][..room].copy_from_slice(&piece[..room]);
        self.len += piece.len();
        (end.map_or(bytes.len(), |e| e + 1), end.is_some())
    }

    /// The line without its end, unless it was too long.
    fn text(&self) -> Option<&[u8]> {
        let line = self.bytes.get(..self.len)?;
        Some(line.strip_suffix(b"\r").unwrap_or(line))
    }

    fn clear(&mut self) {
        self.len = 0;
    }
}
