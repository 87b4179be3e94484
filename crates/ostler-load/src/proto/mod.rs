//! What goes over the wire, as pure code: requests are drawn and encoded, replies parsed from pieces of any size.

mod echo;
mod http;
mod keyspace;
mod memcached;
mod ping;
mod redis;

pub use echo::Echo;
pub use http::Http;
pub use keyspace::{KeyMix, KeyRequest, KeyValue, Keyspace};
pub use memcached::Memcached;
pub use ping::Ping;
pub use redis::Redis;

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

/// What carries requests and replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    /// A TCP connection: all bytes, in order, and replies in the order of the requests.
    Stream,
    /// ICMP echo: each request is a datagram of this many bytes; replies may be lost, doubled or out of order.
    Icmp {
        /// Its length.
        bytes: usize,
    },
}

/// A request-response protocol.
///
/// On a stream, `parse` is asked for the oldest request's reply. A datagram is held against each request in flight: one that it doesn't
/// answer is [`Reply::Incomplete`], and one that answers none is nothing.
pub trait Protocol {
    /// What must be known of a request to check its reply.
    type Request: Copy + std::fmt::Debug;
    /// How far the current reply has been read.
    type Parser: Default + std::fmt::Debug;

    /// What carries it.
    fn wire(&self) -> Wire {
        Wire::Stream
    }

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

fn push_decimal(mut n: u32, out: &mut Vec<u8>) {
    let mut digits = [0_u8; 10];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// A number in decimal digits alone.
fn decimal<N: std::str::FromStr>(text: &[u8]) -> Option<N> {
    std::str::from_utf8(text)
        .ok()
        .filter(|t| t.bytes().all(|b| b.is_ascii_digit()))?
        .parse()
        .ok()
}

/// Skips bytes of a block of which `left` are to come, the `\r\n` behind it included; false if something else is there.
fn skip_block(left: &mut usize, bytes: &[u8]) -> (usize, bool) {
    let mut used = left.saturating_sub(2).min(bytes.len());
    *left -= used;
    while (1..=2).contains(left) && used < bytes.len() {
        let expected = if *left == 2 { b'\r' } else { b'\n' };
        used += 1;
        *left -= 1;
        if bytes[used - 1] != expected {
            return (used, false);
        }
    }
    (used, true)
}

#[cfg(test)]
mod testing {
    use super::{Protocol, Reply};

    /// Feeds replies in pieces of the given sizes; returns what came of each request.
    pub(super) fn feed<P: Protocol>(
        protocol: &P,
        requests: &[P::Request],
        bytes: &[u8],
        cuts: &[usize],
    ) -> Vec<Reply> {
        let mut parser = P::Parser::default();
        let mut replies = Vec::new();
        let mut cuts = cuts.iter().copied().cycle();
        let mut rest = bytes;
        while !rest.is_empty() && replies.len() < requests.len() {
            let piece_len = cuts.next().unwrap_or(1).clamp(1, rest.len());
            let (mut piece, after) = rest.split_at(piece_len);
            while !piece.is_empty() && replies.len() < requests.len() {
                let (used, reply) = protocol.parse(&mut parser, requests[replies.len()], piece);
                assert!(used > 0, "no progress");
                piece = &piece[used..];
                match reply {
                    Reply::Incomplete => assert!(piece.is_empty()),
                    Reply::Broken => {
                        replies.push(reply);
                        return replies;
                    }
                    _ => replies.push(reply),
                }
            }
            rest = after;
        }
        replies
    }
}
