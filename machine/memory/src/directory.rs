//! Who holds a line: the one place that is asked before anybody's cache is disturbed.
//!
//! Exact, unlike hardware's: it knows every holder of each line that any L2 or L3 holds. So nobody is
//! snooped in vain, and nothing is taken back because the directory is full; what a device with a snoop filter of bounded
//! size does (CXL 3's Back-Invalidate) is that device's own, in `transaction`. In one thing it is asked together with others: a line that
//! leaves a victim L3 is not noted, as its entry is far away and would be fetched for that alone. So such an L3's bit says that it may have the
//! line, and whoever reads the entry looks there (`System::entry`), where it would have looked next anyway.
//!
//! ## An array, not a hash table
//!
//! There is an entry for each line of physical memory, by its index ([`crate::map`]), and it is as narrow as the machine lets it be: 2
//! bytes where cores and groups are 15 together, 4 where they are 31, 8 where they are 63, 24 beyond. Most of it is never touched and then
//! costs nothing. So an entry is found without a search, its neighbours share its cache line, and that line can be fetched before it is
//! needed. A hash table of what is cached is smaller, but its entries must carry their lines and all holders in three words, stand
//! anywhere, and be moved when one goes.
//!
//! An entry is read and written under the lock of its line's shard.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::block::{Area, Carver};

/// What is known of a line. Nobody holding it is the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The cores whose L2 (and perhaps L1s) hold it, as bits.
    pub cores: u64,
    /// The groups whose L3 holds it, as bits.
    pub groups: u64,
    /// Whether the one core among `cores` has it for itself.
    pub exclusive: bool,
}

/// Lines of which is known together whether there was ever an entry, so that the rest need never be looked at.
const PAGE: usize = 4096;

#[derive(Debug)]
enum Words {
    /// Whether it is exclusive, the cores, the groups.
    Narrowest(Area<AtomicU16>),
    /// The same.
    Narrow(Area<AtomicU32>),
    /// The same.
    Wide(Area<AtomicU64>),
    /// A word for each.
    Apart(Area<[AtomicU64; 3]>),
}

/// The directory.
#[derive(Debug)]
pub(crate) struct Directory {
    words: Words,
    /// By page: not 0 where there was an entry.
    touched: Area<AtomicU8>,
    cores: u32,
}

/// Lines are indices of areas: what doesn't fit has no memory either.
#[allow(
    clippy::cast_possible_truncation,
    reason = "indices are below the length of an area"
)]
#[inline]
fn at(index: u64) -> usize {
    index as usize
}

impl Directory {
    /// For so many lines, cores and groups.
    pub(crate) fn new(lines: u64, cores: usize, groups: usize, carver: &mut Carver) -> Directory {
        let lines = usize::try_from(lines).unwrap_or(usize::MAX);
        let touched = carver.area(lines.div_ceil(PAGE));
        Directory {
            words: match cores + groups + 1 {
                ..=16 => Words::Narrowest(carver.area(lines)),
                17..=32 => Words::Narrow(carver.area(lines)),
                33..=64 => Words::Wide(carver.area(lines)),
                _ => Words::Apart(carver.area(lines)),
            },
            touched,
            cores: u32::try_from(cores).unwrap_or(u32::MAX),
        }
    }

    #[inline]
    fn unpack(&self, word: u64) -> Entry {
        Entry {
            cores: word >> 1 & ((1 << self.cores) - 1),
            groups: word >> 1 >> self.cores,
            exclusive: word & 1 != 0,
        }
    }

    #[inline]
    fn pack(&self, entry: Entry) -> u64 {
        entry.groups << self.cores << 1 | entry.cores << 1 | u64::from(entry.exclusive)
    }

    /// What is known of a line.
    #[inline]
    pub(crate) fn get(&self, index: u64) -> Entry {
        match &self.words {
            Words::Narrowest(words) => self.unpack(words[at(index)].load(Relaxed).into()),
            Words::Narrow(words) => self.unpack(words[at(index)].load(Relaxed).into()),
            Words::Wide(words) => self.unpack(words[at(index)].load(Relaxed)),
            Words::Apart(words) => {
                let [exclusive, cores, groups] =
                    words[at(index)].each_ref().map(|word| word.load(Relaxed));
                Entry {
                    cores,
                    groups,
                    exclusive: exclusive != 0,
                }
            }
        }
    }

    /// Notes what is known of a line now.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "it fits where it is to be narrow"
    )]
    #[inline]
    pub(crate) fn put(&self, index: u64, entry: Entry) {
        let touched = &self.touched[at(index) / PAGE];
        if touched.load(Relaxed) == 0 {
            touched.store(1, Relaxed);
        }
        match &self.words {
            Words::Narrowest(words) => words[at(index)].store(self.pack(entry) as u16, Relaxed),
            Words::Narrow(words) => words[at(index)].store(self.pack(entry) as u32, Relaxed),
            Words::Wide(words) => words[at(index)].store(self.pack(entry), Relaxed),
            Words::Apart(words) => {
                let all = [entry.exclusive.into(), entry.cores, entry.groups];
                for (word, one) in words[at(index)].iter().zip(all) {
                    word.store(one, Relaxed);
                }
            }
        }
    }

    /// Has the real machine fetch a line's entry.
    #[inline]
    pub(crate) fn prefetch(&self, index: u64) {
        match &self.words {
            Words::Narrowest(words) => words.prefetch(at(index)),
            Words::Narrow(words) => words.prefetch(at(index)),
            Words::Wide(words) => words.prefetch(at(index)),
            Words::Apart(words) => words.prefetch(at(index)),
        }
    }

    /// How many lines it is for.
    fn lines(&self) -> usize {
        match &self.words {
            Words::Narrowest(words) => words.len(),
            Words::Narrow(words) => words.len(),
            Words::Wide(words) => words.len(),
            Words::Apart(words) => words.len(),
        }
    }

    /// All that is known.
    pub(crate) fn contents(&self) -> impl Iterator<Item = (u64, Entry)> {
        let pages = self.touched.iter().zip(0..);
        let pages = pages.filter(|(touched, _)| touched.load(Relaxed) != 0);
        pages
            .flat_map(|(_, page)| page * PAGE..((page + 1) * PAGE).min(self.lines()))
            .map(|at| (at as u64, self.get(at as u64)))
            .filter(|(_, entry)| *entry != Entry::default())
    }
}

#[cfg(test)]
#[path = "directory_tests.rs"]
mod tests;
