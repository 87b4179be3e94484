//! memcached's text protocol, with ETC-like traffic.
//!
//! Every key has one length and one value length for the whole run, drawn from ETC's distributions by the seed. That is what lets a
//! reply be checked: a get must come back with its own key and with exactly the value length that a set of that key writes. The share
//! of sets defaults to one in thirty-one ("GET/SET 30:1" in the paper's section 3), and popularity is Zipf, as its figure 5 shows for
//! all pools; exponent 0 makes it uniform.

use std::sync::Arc;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Zipf};

use super::{Line, Protocol, Reply};
use crate::error::LoadError;
use crate::ledger::Outcome;
use crate::schedule::unit;
use crate::sizes::{KEY_BYTES_MAX, draw_key_bytes, draw_value_bytes};

/// Keys are numbered by `u32`; this many take some 80 MB of the client's memory.
const KEYS_MAX: usize = 10_000_000;
/// memcached's default item limit.
const VALUE_BYTES_MAX: usize = 1 << 20;
/// "VALUE " + key + flags + length, with room to spare.
const LINE_BYTES_MAX: usize = 320;

/// The keys of a run and what belongs to them.
#[derive(Debug)]
pub struct Keyspace {
    key_bytes: Vec<u8>,
    value_bytes: Vec<u32>,
    filler: Vec<u8>,
}

impl Keyspace {
    /// Draws `keys` keys; no value is longer than `value_bytes_max`.
    pub fn new(keys: usize, value_bytes_max: usize, seed: u64) -> Result<Self, LoadError> {
        if !(1..=KEYS_MAX).contains(&keys) {
            return Err(LoadError::Setting {
                name: "keys",
                value: keys.to_string(),
                why: "must be 1 to 10000000",
            });
        }
        if !(1..=VALUE_BYTES_MAX).contains(&value_bytes_max) {
            return Err(LoadError::Setting {
                name: "max-value",
                value: value_bytes_max.to_string(),
                why: "must be 1 to 1048576 bytes, memcached's own limit",
            });
        }
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(u64::MAX);
        let digits = (keys - 1).max(1).ilog10() as usize + 1;
        let mut space = Self {
            key_bytes: Vec::with_capacity(keys),
            value_bytes: Vec::with_capacity(keys),
            filler: Vec::new(),
        };
        for _ in 0..keys {
            // Both casts hold: the draws are clamped to 250 and to 2^20.
            #[allow(clippy::cast_possible_truncation)]
            {
                space.key_bytes.push(draw_key_bytes(&mut rng, digits) as u8);
                space
                    .value_bytes
                    .push(draw_value_bytes(&mut rng, value_bytes_max) as u32);
            }
        }
        let longest = space.value_bytes.iter().max().map_or(0, |&m| m as usize);
        space.filler = (0..longest)
            .map(|_| b'!' + rng.next_u32().to_le_bytes()[0] % 94)
            .collect();
        Ok(space)
    }

    /// How many keys.
    pub fn len(&self) -> usize {
        self.key_bytes.len()
    }

    /// Never: a keyspace has at least one key.
    pub fn is_empty(&self) -> bool {
        self.key_bytes.is_empty()
    }

    /// Writes a key: its number, with zeros before it up to its length, so that all keys differ.
    fn write_key<'a>(&self, key: u32, buffer: &'a mut [u8; KEY_BYTES_MAX]) -> &'a [u8] {
        let text = &mut buffer[..usize::from(self.key_bytes[key as usize])];
        let mut rest = key;
        for digit in text.iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        text
    }

    /// Appends the bytes of a set.
    pub fn encode_set(&self, key: u32, out: &mut Vec<u8>) {
        let mut buffer = [0; KEY_BYTES_MAX];
        let value = self.value_bytes[key as usize];
        out.extend_from_slice(b"set ");
        out.extend_from_slice(self.write_key(key, &mut buffer));
        out.extend_from_slice(b" 0 0 ");
        push_decimal(value, out);
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(&self.filler[..value as usize]);
        out.extend_from_slice(b"\r\n");
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

/// How often each key, and how often sets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MemcachedMix {
    /// Share of sets, 0 to 1.
    pub set_share: f64,
    /// Zipf exponent of the keys' popularity; 0 is uniform.
    pub key_skew: f64,
}

/// ETC-like traffic on memcached's text protocol.
#[derive(Debug, Clone)]
pub struct Memcached {
    keys: Arc<Keyspace>,
    set_share: f64,
    rank: Zipf<f64>,
}

impl Memcached {
    /// Traffic over `keys`.
    pub fn new(keys: Arc<Keyspace>, mix: MemcachedMix) -> Result<Self, LoadError> {
        if !(0.0..=1.0).contains(&mix.set_share) {
            return Err(LoadError::Setting {
                name: "set-share",
                value: mix.set_share.to_string(),
                why: "must be a share, 0 to 1",
            });
        }
        let rank = Some(mix.key_skew)
            .filter(|skew| (0.0..=10.0).contains(skew))
            .and_then(|skew| Zipf::new(keys.len() as f64, skew).ok())
            .ok_or_else(|| LoadError::Setting {
                name: "key-skew",
                value: mix.key_skew.to_string(),
                why: "must be a Zipf exponent, 0 (uniform) to 10",
            })?;
        Ok(Self {
            keys,
            set_share: mix.set_share,
            rank,
        })
    }
}

/// A get or a set of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// Ask for a key.
    Get(u32),
    /// Write a key.
    Set(u32),
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
        let is_set = unit(rng) <= self.set_share;
        // The rank lies in 1..=keys; popular ranks and lengths are independent, since lengths were drawn in key order.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let rank = self.rank.sample(rng) as u32;
        let key = rank
            .saturating_sub(1)
            .min(u32::try_from(self.keys.len() - 1).unwrap_or(u32::MAX));
        if is_set {
            Request::Set(key)
        } else {
            Request::Get(key)
        }
    }

    fn encode(&self, request: Request, out: &mut Vec<u8>) {
        match request {
            Request::Set(key) => self.keys.encode_set(key, out),
            Request::Get(key) => {
                out.extend_from_slice(b"get ");
                out.extend_from_slice(self.keys.write_key(key, &mut [0; KEY_BYTES_MAX]));
                out.extend_from_slice(b"\r\n");
            }
        }
    }

    fn parse(&self, parser: &mut Parser, request: Request, bytes: &[u8]) -> (usize, Reply) {
        let mut used = 0;
        while used < bytes.len() {
            if let State::Value { left, outcome } = &mut parser.state {
                if *left > 2 {
                    let skipped = (*left - 2).min(bytes.len() - used);
                    used += skipped;
                    *left -= skipped;
                    continue;
                }
                let expected = if *left == 2 { b'\r' } else { b'\n' };
                used += 1;
                *left -= 1;
                if bytes[used - 1] != expected {
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
                let length = length.and_then(decimal).filter(|&n| n <= VALUE_BYTES_MAX);
                let (Some(name), Some(_), Some(length)) = (name, flags, length) else {
                    return Some(Reply::Broken);
                };
                if name != self.keys.write_key(key, &mut [0; KEY_BYTES_MAX]) {
                    // An answer to another question: one of the two sides lost count.
                    return Some(Reply::Broken);
                }
                // A value of another length is someone else's under our key. Its framing is sound, so the lane lives on;
                // the request has failed all the same.
                let ours = length == self.keys.value_bytes[key as usize] as usize;
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

fn decimal(text: &[u8]) -> Option<usize> {
    std::str::from_utf8(text)
        .ok()
        .filter(|t| t.bytes().all(|b| b.is_ascii_digit()))?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn memcached(keys: usize) -> Memcached {
        let keys = Arc::new(Keyspace::new(keys, 4_096, 5).unwrap());
        Memcached::new(
            keys,
            MemcachedMix {
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
        out.extend_from_slice(memcached.keys.write_key(key, &mut buffer));
        out.extend_from_slice(format!(" 0 {bytes}\r\n").as_bytes());
        out.resize(out.len() + bytes, body);
        out.extend_from_slice(b"\r\nEND\r\n");
        out
    }

    /// Feeds replies in pieces of the given sizes; returns what came of each request.
    fn feed(
        memcached: &Memcached,
        requests: &[Request],
        bytes: &[u8],
        cuts: &[usize],
    ) -> Vec<Reply> {
        let mut parser = Parser::default();
        let mut replies = Vec::new();
        let mut cuts = cuts.iter().copied().cycle();
        let mut rest = bytes;
        while !rest.is_empty() && replies.len() < requests.len() {
            let piece_len = cuts.next().unwrap_or(1).clamp(1, rest.len());
            let (mut piece, after) = rest.split_at(piece_len);
            while !piece.is_empty() && replies.len() < requests.len() {
                let (used, reply) = memcached.parse(&mut parser, requests[replies.len()], piece);
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

    #[test]
    fn keys_are_unique_printable_and_as_long_as_drawn() {
        let memcached = memcached(20_000);
        let mut seen = std::collections::BTreeSet::new();
        for key in 0..20_000 {
            let mut buffer = [0; KEY_BYTES_MAX];
            let text = memcached.keys.write_key(key, &mut buffer);
            assert_eq!(
                text.len(),
                usize::from(memcached.keys.key_bytes[key as usize])
            );
            assert_eq!(
                std::str::from_utf8(text).unwrap().parse::<u32>().unwrap(),
                key
            );
            assert!(seen.insert(text.to_vec()));
        }
    }

    #[test]
    fn popularity_follows_zipf_and_sets_their_share() {
        let memcached = memcached(100);
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let (mut counts, mut sets) = ([0_u32; 100], 0);
        for _ in 0..200_000 {
            match memcached.draw(&mut rng) {
                Request::Get(key) => counts[key as usize] += 1,
                Request::Set(key) => {
                    counts[key as usize] += 1;
                    sets += 1;
                }
            }
        }
        let harmonic: f64 = (1..=100).map(|i| f64::from(i).powf(-0.9)).sum();
        for (rank, count) in (1..).zip(counts) {
            let expected = f64::from(rank).powf(-0.9) / harmonic * 200_000.0;
            let spread = 6.0 * expected.sqrt();
            assert!(
                (f64::from(count) - expected).abs() < spread,
                "rank {rank}: {count}, expected {expected}"
            );
        }
        assert!(
            (f64::from(sets) / 200_000.0 - 0.1).abs() < 0.005,
            "sets {sets}"
        );
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
                let length = memcached.keys.value_bytes[key as usize] as usize;
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
