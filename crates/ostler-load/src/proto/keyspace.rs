//! Keys and values of ETC-like traffic: what the protocols of key-value stores have in common.
//!
//! Every key has one length and one value length for the whole run, drawn from ETC's distributions by the seed. That is what lets a
//! reply be checked: a get must come back with exactly the value length that a set of that key writes. The share of sets defaults to
//! one in thirty-one ("GET/SET 30:1" in the paper's section 3), and popularity is Zipf, as its figure 5 shows for all pools;
//! exponent 0 makes it uniform.

use std::sync::Arc;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Zipf};

use super::Protocol;
use crate::error::LoadError;
use crate::schedule::unit;
use crate::sizes::{KEY_BYTES_MAX, draw_key_bytes, draw_value_bytes};

/// Keys are numbered by `u32`; this many take some 80 MB of the client's memory.
const KEYS_MAX: usize = 10_000_000;
/// memcached's default item limit, and enough for other stores.
pub(super) const VALUE_BYTES_MAX: usize = 1 << 20;

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
    pub(super) fn write_key<'a>(&self, key: u32, buffer: &'a mut [u8; KEY_BYTES_MAX]) -> &'a [u8] {
        let text = &mut buffer[..usize::from(self.key_bytes[key as usize])];
        let mut rest = key;
        for digit in text.iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        text
    }

    /// The length of a key's value.
    pub(super) fn value_len(&self, key: u32) -> u32 {
        self.value_bytes[key as usize]
    }

    /// What a set of a key writes.
    pub(super) fn value(&self, key: u32) -> &[u8] {
        &self.filler[..self.value_len(key) as usize]
    }
}

/// How often each key, and how often sets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KeyMix {
    /// Share of sets, 0 to 1.
    pub set_share: f64,
    /// Zipf exponent of the keys' popularity; 0 is uniform.
    pub key_skew: f64,
}

/// A get or a set of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyRequest {
    /// Ask for a key.
    Get(u32),
    /// Write a key.
    Set(u32),
}

/// Draws requests over a keyspace.
#[derive(Debug, Clone)]
pub(super) struct KeyTraffic {
    pub(super) keys: Arc<Keyspace>,
    set_share: f64,
    rank: Zipf<f64>,
}

impl KeyTraffic {
    pub(super) fn new(keys: Arc<Keyspace>, mix: KeyMix) -> Result<Self, LoadError> {
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

    pub(super) fn draw(&self, rng: &mut impl Rng) -> KeyRequest {
        let is_set = unit(rng) <= self.set_share;
        // The rank lies in 1..=keys; popular ranks and lengths are independent, since lengths were drawn in key order.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let rank = self.rank.sample(rng) as u32;
        let key = rank
            .saturating_sub(1)
            .min(u32::try_from(self.keys.len() - 1).unwrap_or(u32::MAX));
        if is_set {
            KeyRequest::Set(key)
        } else {
            KeyRequest::Get(key)
        }
    }
}

/// A protocol of stores that hold a value for each key.
pub trait KeyValue: Protocol<Request = KeyRequest> {
    /// The keys that it asks for.
    fn keys(&self) -> &Keyspace;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traffic(keys: usize) -> KeyTraffic {
        let keys = Arc::new(Keyspace::new(keys, 4_096, 5).unwrap());
        let mix = KeyMix {
            set_share: 0.1,
            key_skew: 0.9,
        };
        KeyTraffic::new(keys, mix).unwrap()
    }

    #[test]
    fn keys_are_unique_printable_and_as_long_as_drawn() {
        let traffic = traffic(20_000);
        let mut seen = std::collections::BTreeSet::new();
        for key in 0..20_000 {
            let mut buffer = [0; KEY_BYTES_MAX];
            let text = traffic.keys.write_key(key, &mut buffer);
            assert_eq!(
                text.len(),
                usize::from(traffic.keys.key_bytes[key as usize])
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
        let traffic = traffic(100);
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let (mut counts, mut sets) = ([0_u32; 100], 0);
        for _ in 0..200_000 {
            match traffic.draw(&mut rng) {
                KeyRequest::Get(key) => counts[key as usize] += 1,
                KeyRequest::Set(key) => {
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
}
