//! redis's protocol (RESP2): gets and sets of ETC-like traffic, over the keys and values that memcached is asked for.
//!
//! A reply of redis doesn't name its key, so what tells a get's reply from another's is its length alone; every key has one.

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

/// Replies begin with short lines. An error's may be longer; such a reply is held to be broken.
const LINE_BYTES_MAX: usize = 512;

/// ETC-like traffic on redis's protocol.
#[derive(Debug, Clone)]
pub struct Redis {
    traffic: KeyTraffic,
}

impl Redis {
    /// Traffic over `keys`.
    pub fn new(keys: Arc<Keyspace>, mix: KeyMix) -> Result<Self, LoadError> {
        KeyTraffic::new(keys, mix).map(|traffic| Self { traffic })
    }

    fn line_read(&self, request: Request, line: &[u8]) -> FirstLine {
        let whole = |outcome| FirstLine::Whole(Reply::Complete(outcome));
        match (request, line) {
            (Request::Set(_), b"+OK") => whole(Outcome::Done),
            (Request::Get(_), b"$-1") => whole(Outcome::Miss),
            (_, [b'-', ..]) => whole(Outcome::Error),
            (Request::Get(key), [b'$', length @ ..]) => {
                let Some(length) = decimal::<usize>(length).filter(|&n| n <= VALUE_BYTES_MAX)
                else {
                    return FirstLine::Whole(Reply::Broken);
                };
                // A value of another length is someone else's under our key. Its framing is sound, so the lane lives on;
                // the request has failed all the same.
                let ours = length == self.keys().value_len(key) as usize;
                let outcome = if ours { Outcome::Hit } else { Outcome::Error };
                FirstLine::Value { length, outcome }
            }
            _ => FirstLine::Whole(Reply::Broken),
        }
    }
}

/// What a reply's first line says.
enum FirstLine {
    /// All there is.
    Whole(Reply),
    /// A value follows; what will have come of the request once it's over.
    Value { length: usize, outcome: Outcome },
}

impl KeyValue for Redis {
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
}

/// How far a reply has been read.
#[derive(Debug, Default)]
pub struct Parser {
    state: State,
    line: Line<LINE_BYTES_MAX>,
}

/// Appends a bulk string.
fn push_bulk(bytes: &[u8], out: &mut Vec<u8>) {
    out.push(b'$');
    push_decimal(u32::try_from(bytes.len()).unwrap_or(u32::MAX), out);
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

impl Protocol for Redis {
    type Request = Request;
    type Parser = Parser;

    fn draw(&self, rng: &mut impl Rng) -> Request {
        self.traffic.draw(rng)
    }

    fn encode(&self, request: Request, out: &mut Vec<u8>) {
        let mut buffer = [0; KEY_BYTES_MAX];
        match request {
            Request::Set(key) => {
                out.extend_from_slice(b"*3\r\n$3\r\nSET\r\n");
                push_bulk(self.keys().write_key(key, &mut buffer), out);
                push_bulk(self.keys().value(key), out);
            }
            Request::Get(key) => {
                out.extend_from_slice(b"*2\r\n$3\r\nGET\r\n");
                push_bulk(self.keys().write_key(key, &mut buffer), out);
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
                    let reply = Reply::Complete(*outcome);
                    parser.state = State::FirstLine;
                    return (used, reply);
                }
                continue;
            }
            let (taken, whole) = parser.line.gather(&bytes[used..]);
            used += taken;
            if !whole {
                continue;
            }
            let read = match parser.line.text() {
                Some(line) => self.line_read(request, line),
                None => FirstLine::Whole(Reply::Broken),
            };
            parser.line.clear();
            match read {
                FirstLine::Whole(reply) => return (used, reply),
                FirstLine::Value { length, outcome } => {
                    parser.state = State::Value {
                        left: length + 2,
                        outcome,
                    };
                }
            }
        }
        (used, Reply::Incomplete)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::feed;
    use super::*;

    fn redis(keys: usize) -> Redis {
        let keys = Arc::new(Keyspace::new(keys, 4_096, 5).unwrap());
        let mix = KeyMix {
            set_share: 0.1,
            key_skew: 0.9,
        };
        Redis::new(keys, mix).unwrap()
    }

    fn answer(bytes: usize, body: u8) -> Vec<u8> {
        let mut out = format!("${bytes}\r\n").into_bytes();
        out.resize(out.len() + bytes, body);
        out.extend_from_slice(b"\r\n");
        out
    }

    proptest! {
        #[test]
        fn replies_are_the_same_however_they_are_cut(
            keys in prop::collection::vec((0..500_u32, 0..6_u8), 1..20),
            cuts in prop::collection::vec(1..40_usize, 1..30),
        ) {
            let redis = redis(500);
            let (mut requests, mut bytes, mut expected) = (Vec::new(), Vec::new(), Vec::new());
            for (key, kind) in keys {
                let length = redis.keys().value_len(key) as usize;
                let (request, reply, outcome) = match kind {
                    0 => (Request::Get(key), b"$-1\r\n".to_vec(), Outcome::Miss),
                    1 => (Request::Set(key), b"+OK\r\n".to_vec(), Outcome::Done),
                    2 => (Request::Set(key), b"-OOM command not allowed\r\n".to_vec(), Outcome::Error),
                    3 => (Request::Get(key), b"-LOADING\r\n".to_vec(), Outcome::Error),
                    // A body of newlines must not be taken for protocol.
                    4 => (Request::Get(key), answer(length, b'\n'), Outcome::Hit),
                    _ => (Request::Get(key), answer(length + 1, b'$'), Outcome::Error),
                };
                requests.push(request);
                bytes.extend(reply);
                expected.push(Reply::Complete(outcome));
            }
            prop_assert_eq!(feed(&redis, &requests, &bytes, &cuts), expected);
        }

        #[test]
        fn random_bytes_never_panic_and_always_make_progress(
            bytes in prop::collection::vec(any::<u8>(), 0..600),
            prefix in prop::sample::select(vec!["", "$", "$3\r\n", "-", "$18446744073709551615\r\n"]),
            cuts in prop::collection::vec(1..9_usize, 1..9),
        ) {
            let all = [prefix.as_bytes(), &bytes].concat();
            feed(&redis(10), &[Request::Get(3), Request::Set(4), Request::Get(5)], &all, &cuts);
        }

        /// One byte of a good reply changed: whatever comes of it, it is no hit of a value that isn't framed as ours.
        #[test]
        fn a_damaged_frame_is_no_hit(key in 0..50_u32, at in 0..1_000_usize, flip in 1..=255_u8) {
            let redis = redis(50);
            let length = redis.keys().value_len(key) as usize;
            let mut bytes = answer(length, b'v');
            // The value itself isn't looked at; all around it is.
            let frame: Vec<usize> = (0..bytes.len() - length - 2)
                .chain(bytes.len() - 2..bytes.len())
                .collect();
            bytes[frame[at % frame.len()]] ^= flip;
            let replies = feed(&redis, &[Request::Get(key)], &bytes, &[7]);
            prop_assert!(!replies.contains(&Reply::Complete(Outcome::Hit)), "{replies:?}");
        }
    }

    #[test]
    fn what_is_no_answer_breaks_the_lane() {
        let redis = redis(10);
        let too_long = format!("-{}\r\n", "x".repeat(LINE_BYTES_MAX));
        for (request, bytes) in [
            (Request::Get(1), "+OK\r\n"),
            (Request::Set(1), "$-1\r\n"),
            (Request::Get(1), "$-2\r\n"),
            (Request::Get(1), "$+3\r\n"),
            (Request::Get(1), "$1048577\r\n"),
            (Request::Get(1), "*1\r\n$1\r\nx\r\n"),
            (Request::Get(1), "$1\r\nxyz"),
            (Request::Get(1), &too_long),
        ] {
            let replies = feed(&redis, &[request], bytes.as_bytes(), &[3]);
            assert_eq!(replies, [Reply::Broken], "{bytes}");
        }
    }

    #[test]
    fn requests_are_arrays_of_bulk_strings() {
        let redis = redis(300);
        let key = (0..300)
            .find(|&key| redis.keys().value_len(key) == 2)
            .unwrap();
        let mut buffer = [0; KEY_BYTES_MAX];
        let name = std::str::from_utf8(redis.keys().write_key(key, &mut buffer)).unwrap();
        let value = std::str::from_utf8(redis.keys().value(key)).unwrap();
        let encoded = |request| {
            let mut out = Vec::new();
            redis.encode(request, &mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(
            encoded(Request::Get(key)),
            format!("*2\r\n$3\r\nGET\r\n${}\r\n{name}\r\n", name.len())
        );
        assert_eq!(
            encoded(Request::Set(key)),
            format!(
                "*3\r\n$3\r\nSET\r\n${}\r\n{name}\r\n$2\r\n{value}\r\n",
                name.len()
            )
        );
    }
}
