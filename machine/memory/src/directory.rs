//! Who holds a line: the one place that is asked before anybody's cache is disturbed.
//!
//! Exact, unlike hardware's: it has an entry for each line that any L2 or L3 holds, and knows every holder. So nobody is
//! snooped in vain, and nothing is taken back because the directory is full; what a device with a snoop filter of bounded
//! size does (CXL 3's Back-Invalidate) is that device's own, in `transaction`.
//!
//! An open hash table with linear probing, and deletion by moving entries back, so that it never degrades and never
//! allocates: there are at most as many lines as caches have room for, and the table is a third larger than that.

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

impl Entry {
    fn is_empty(self) -> bool {
        self.cores == 0 && self.groups == 0
    }
}

/// Lines of a shard that stand together.
const RUN: u64 = 16;
/// Words of a place: the line and one, above whether it is exclusive; the cores; the groups. A first word of 0 is an empty
/// place, so that a fresh table is all zeros and costs memory only where it is used.
const WORDS: usize = 3;

/// A shard's part of the directory.
#[derive(Debug)]
pub(crate) struct Directory {
    words: Box<[u64]>,
    /// Places less one; their number is a power of two.
    mask: usize,
    /// Bits of a line that are alike in the whole shard.
    shift: u32,
}

impl Directory {
    /// Room for so many lines, which differ above their lowest `shift` bits.
    pub(crate) fn new(lines: usize, shift: u32) -> Directory {
        let size = (lines + lines / 3 + 4).next_power_of_two();
        Directory {
            words: vec![0; size * WORDS].into_boxed_slice(),
            mask: size - 1,
            shift,
        }
    }

    /// Where a line would stand if nobody stood in its way. Neighbours stand together, as they are asked for together, and the
    /// real machine's caches and TLB are grateful; runs of them are scattered.
    #[allow(clippy::cast_possible_truncation, reason = "the mask is a usize")]
    fn home(&self, line: u64) -> usize {
        let line = line >> self.shift;
        let run = (line / RUN).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        (run * RUN + line % RUN) as usize & self.mask
    }

    fn next(&self, at: usize) -> usize {
        (at + 1) & self.mask
    }

    fn place(&self, at: usize) -> &[u64] {
        &self.words[at * WORDS..][..WORDS]
    }

    fn place_mut(&mut self, at: usize) -> &mut [u64] {
        &mut self.words[at * WORDS..][..WORDS]
    }

    /// The line that stands in a place.
    fn line(&self, at: usize) -> Option<u64> {
        (self.place(at)[0] >> 1).checked_sub(1)
    }

    /// Where a line stands, or the empty place where it would.
    fn find(&self, line: u64) -> usize {
        let mut at = self.home(line);
        while self.line(at).is_some_and(|other| other != line) {
            at = self.next(at);
        }
        at
    }

    fn entry(&self, at: usize) -> Entry {
        let place = self.place(at);
        Entry {
            cores: place[1],
            groups: place[2],
            exclusive: place[0] & 1 != 0,
        }
    }

    /// What is known of a line. An empty place says that nothing is.
    pub(crate) fn get(&self, line: u64) -> Entry {
        self.entry(self.find(line))
    }

    /// Notes what is known of a line now.
    pub(crate) fn put(&mut self, line: u64, entry: Entry) {
        let at = self.find(line);
        if !entry.is_empty() {
            let first = (line + 1) << 1 | u64::from(entry.exclusive);
            self.place_mut(at)
                .copy_from_slice(&[first, entry.cores, entry.groups]);
        } else if self.line(at).is_some() {
            self.remove(at);
        }
    }

    /// Empties a place and closes the gap: each entry behind it that may stand there does.
    fn remove(&mut self, mut gap: usize) {
        let mut at = gap;
        loop {
            at = self.next(at);
            let Some(line) = self.line(at) else {
                break;
            };
            // It may move into the gap unless its home lies between the gap and where it stands.
            let home = self.home(line);
            if at.wrapping_sub(home) & self.mask >= at.wrapping_sub(gap) & self.mask {
                self.words
                    .copy_within(at * WORDS..(at + 1) * WORDS, gap * WORDS);
                gap = at;
            }
        }
        self.place_mut(gap).fill(0);
    }

    /// All that is known.
    pub(crate) fn contents(&self) -> impl Iterator<Item = (u64, Entry)> {
        (0..=self.mask).filter_map(|at| Some((self.line(at)?, self.entry(at))))
    }
}

#[cfg(test)]
#[path = "directory_tests.rs"]
mod tests;
