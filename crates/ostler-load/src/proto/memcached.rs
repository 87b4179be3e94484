//! memcached's text protocol, with ETC-like traffic. A get must come back with its own key and its own length.

use std::sync::Arc;

use rand::Rng;

use super::keyspace::{KeyTraffic, VALUE_BYTES_MAX};
use super::{
    KeyMix, KeyRequest as Request, KeyValue, Keyspace, Line, Protocol, Reply, decimal,
    push_decimal, skip_block,
};
use crate::error::LoadError;
use crate::ledger::Outcome;
use crate::sizes::KEY_BYTES_MAX;

/// "VALUE " + key + flags + length, with room to spare.
const LINE_BYTES_MAX: usize = 320;

/// ETC-like traffic on memcached's text protocol.
#[derive(Debug, Clone)]
pub struct Memcached {
    traffic: KeyTraffic,
}

impl Memcached {
    /// Traffic over `keys`.
    pub fn new(keys: Arc<Keyspace>, mix: KeyMix) -> Result<Self, LoadError> {
        KeyTraffic::new(keys, mix).map(|traffic| Self { traffic })
    }
}

impl KeyValue for Memcached {
    fn keys(&self) -> &Keyspace {
        &self.traffic.keys
    }
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    FirstLine,
    /// In a value: how many bytes are left, its line end included, and what the reply will have been.
    Value { left: usize, outcome: Outcome },
    /// Before the line that ends a get.
    End { outcome: Outcome },
}

/// How far a reply has been read.
#[derive(Debug, Default)]
pub struct Parser {
    state: State,
    line: Line<LINE_BYTES_MAX>,
}

impl Protocol for Memcached {
    type Request = Request;
    type Parser = Parser;

    fn draw(&self, rng: &mut impl Rng) -> Request {
        self.traffic.draw(rng)
    }

    fn encode(&self, request: Request, out: &mut Vec<u8>) {
        let mut buffer = [0; KEY_BYTES_MAX];
        match request {
            Request::Set(key) => {
                out.extend_from_slice(b"set ");
                out.extend_from_slice(self.keys().write_key(key, &mut buffer));
                out.extend_from_slice(b" 0 0 ");
                push_decimal(self.keys().value_len(key), out);
                out.extend_from_slice(b"\r\n");
                out.extend_from_slice(self.keys().value(key));
                out.extend_from_slice(b"\r\n");
            }
            Request::Get(key) => {
                out.extend_from_slice(b"get ");
                out.extend_from_slice(self.keys().write_key(key, &mut buffer));
                out.extend_from_slice(b"\r\n");
            }
        }
    }

    fn parse(&self, parser: &mut Parser, request: Request, bytes: &[u8]) -> (usize, Reply) {
        let mut used = 0;
        while used < bytes.len() {
            if let State::Value { left, outcome } = &mut parser.state {
                let (skipped, sound) = skip_block(left, &bytes[used..]);
                used += skipped;
                if !sound {
                    return (used, Reply::Broken);
                }
                if *left == 0 {
                    parser.state = State::End { outcome: *outcome };
                }
                continue;
            }
            let (taken, whole) = parser.line.gather(&bytes[used..]);
            used += taken;
            if !whole {
                continue;
            }
            let reply = self.line_read(parser, request);
            parser.line.clear();
            if let Some(reply) = reply {
                parser.state = State::FirstLine;
                return (used, reply);
            }
        }
        (used, Reply::Incomplete)
    }
}

impl Memcached {
    /// Judges a whole line; `None` when more belongs to the reply.
    fn line_read(&self, parser: &mut Parser, request: Request) -> Option<Reply> {
        let Some(line) = parser.line.text() else {
            return Some(Reply::Broken);
        };
        if let State::End { outcome } = parser.state {
            return Some(if line == b"END" {
                Reply::Complete(outcome)
            } else {
                Reply::Broken
            });
        }
        match (request, line) {
            (Request::Set(_), b"STORED") => Some(Reply::Complete(Outcome::Done)),
            (Request::Get(_), b"END") => Some(Reply::Complete(Outcome::Miss)),
            (Request::Get(key), _) if line.starts_with(b"VALUE ") => {
                let mut words = line[6..].split(|&b| b == b' ');
                let (name, flags, length) = (words.next(), words.next(), words.next());
                let length = length
                    .and_then(decimal::<usize>)
                    .filter(|&n| n <= VALUE_BYTES_MAX);
                let (Some(name), Some(_), Some(length)) = (name, flags, length) else {
                    return Some(Reply::Broken);
                };
                if name != self.keys().write_key(key, &mut [0; KEY_BYTES_MAX]) {
                    // An answer to another question: one of the two sides lost count.
                    return Some(Reply::Broken);
                }
                // A value of another length is someone else's under our key. Its framing is sound, so the lane lives on;
                // the request has failed all the same.
                let ours = length == self.keys().value_len(key) as usize;
                let outcome = if ours { Outcome::Hit } else { Outcome::Error };
                parser.state = State::Value {
                    left: length + 2,
                    outcome,
                };
                None
            }
            _ if [
                &b"ERROR"[..],
                b"CLIENT_ERROR",
                b"SERVER_ERROR",
                b"NOT_STORED",
            ]
            .iter()
            .any(|e| line.starts_with(e)) =>
            {
                Some(Reply::Complete(Outcome::Error))
            }
            _ => Some(Reply::Broken),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::feed;
    use super::*;

    fn memcached(keys: usize) -> Memcached {
        let keys = Arc::new(Keyspace::new(keys, 4_096, 5).unwrap());
        Memcached::new(
            keys,
            KeyMix {
                set_share: 0.1,
                key_skew: 0.9,
            },
        )
        .unwrap()
    }

    /// What a server that knows the key answers.
    fn answer(memcached: &Memcached, key: u32, bytes: usize, body: u8) -> Vec<u8> {
        let mut buffer = [0; KEY_BYTES_MAX];
        let mut out = b"VALUE ".to_vec();
        out.extend_from_slice(memcached.keys().write_key(key, &mut buffer));
        out.extend_from_slice(format!(" 0 {bytes}\r\n").as_bytes());
        out.resize(out.len() + bytes, body);
        out.extend_from_slice(b"\r\nEND\r\n");
        out
    }

    proptest! {
        #[test]
        fn replies_are_the_same_however_they_are_cut(
            keys in prop::collection::vec((0..500_u32, 0..5_u8), 1..20),
            cuts in prop::collection::vec(1..40_usize, 1..30),
        ) {
            let memcached = memcached(500);
            let (mut requests, mut bytes, mut expected) = (Vec::new(), Vec::new(), Vec::new());
            for (key, kind) in keys {
                let length = memcached.keys().value_len(key) as usize;
                let (request, reply, outcome) = match kind {
                    0 => (Request::Get(key), b"END\r\n".to_vec(), Outcome::Miss),
                    1 => (Request::Set(key), b"STORED\r\n".to_vec(), Outcome::Done),
                    2 => (Request::Set(key), b"SERVER_ERROR out of memory\r\n".to_vec(), Outcome::Error),
                    // A body of newlines must not be taken for protocol.
                    3 => (Request::Get(key), answer(&memcached, key, length, b'\n'), Outcome::Hit),
                    _ => (Request::Get(key), answer(&memcached, key, length + 1, b'E'), Outcome::Error),
                };
                requests.push(request);
                bytes.extend(reply);
                expected.push(Reply::Complete(outcome));
            }
            prop_assert_eq!(feed(&memcached, &requests, &bytes, &cuts), expected);
        }

        #[test]
        fn random_bytes_never_panic_and_always_make_progress(
            bytes in prop::collection::vec(any::<u8>(), 0..600),
            prefix in prop::sample::select(vec!["", "VALUE ", "END\r\n", "VALUE 0 0 18446744073709551615\r\n"]),
            cuts in prop::collection::vec(1..9_usize, 1..9),
        ) {
            let all = [prefix.as_bytes(), &bytes].concat();
            feed(&memcached(10), &[Request::Get(3), Request::Set(4), Request::Get(5)], &all, &cuts);
        }
    }

    #[test]
    fn an_answer_to_another_key_breaks_the_lane() {
        let memcached = memcached(10);
        let bytes = answer(&memcached, 4, 10, b'x');
        assert_eq!(
            feed(&memcached, &[Request::Get(3)], &bytes, &[7]),
            [Reply::Broken]
        );
    }

    #[test]
    fn a_set_carries_exactly_its_length() {
        let memcached = memcached(300);
        for key in 0..300 {
            let mut out = Vec::new();
            memcached.encode(Request::Set(key), &mut out);
            let header_end = out.windows(2).position(|w| w == b"\r\n").unwrap();
            let header = std::str::from_utf8(&out[..header_end]).unwrap();
            let length: usize = header.rsplit(' ').next().unwrap().parse().unwrap();
            assert_eq!(out.len(), header_end + 2 + length + 2, "{header}");
            assert!(out.ends_with(b"\r\n"));
        }
    }
}
