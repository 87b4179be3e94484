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

/// One place of the table; a key is the line and one, so that 0 is an empty place.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    key: u64,
    entry: Entry,
}

/// A shard's part of the directory.
#[derive(Debug)]
pub(crate) struct Directory {
    places: Box<[Place]>,
    /// Bits of a line that are alike in the whole shard.
    shift: u32,
}

impl Directory {
    /// Room for so many lines, which differ above their lowest `shift` bits.
    pub(crate) fn new(lines: usize, shift: u32) -> Directory {
        let size = (lines + lines / 3 + 4).next_power_of_two();
        Directory {
            places: vec![Place::default(); size].into_boxed_slice(),
            shift,
        }
    }

    /// Where a line would stand if nobody stood in its way.
    #[allow(clippy::cast_possible_truncation, reason = "the mask is a usize")]
    fn home(&self, line: u64) -> usize {
        let mixed = (line >> self.shift).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 32) as usize & (self.places.len() - 1)
    }

    fn next(&self, at: usize) -> usize {
        (at + 1) & (self.places.len() - 1)
    }

    /// Where a line stands, or the empty place where it would.
    fn find(&self, line: u64) -> usize {
        let mut at = self.home(line);
        while self.places[at].key != 0 && self.places[at].key != line + 1 {
            at = self.next(at);
        }
        at
    }

    /// What is known of a line.
    pub(crate) fn get(&self, line: u64) -> Entry {
        let place = self.places[self.find(line)];
        if place.key == 0 {
            Entry::default()
        } else {
            place.entry
        }
    }

    /// Notes what is known of a line now.
    pub(crate) fn put(&mut self, line: u64, entry: Entry) {
        let at = self.find(line);
        if !entry.is_empty() {
            self.places[at] = Place {
                key: line + 1,
                entry,
            };
        } else if self.places[at].key != 0 {
            self.remove(at);
        }
    }

    /// Empties a place and closes the gap: each entry behind it that may stand there does.
    fn remove(&mut self, mut gap: usize) {
        let size = self.places.len();
        let mut at = gap;
        loop {
            at = self.next(at);
            let place = self.places[at];
            if place.key == 0 {
                break;
            }
            // It may move into the gap unless its home lies between the gap and where it stands.
            let home = self.home(place.key - 1);
            if at.wrapping_sub(home) & (size - 1) >= at.wrapping_sub(gap) & (size - 1) {
                self.places[gap] = place;
                gap = at;
            }
        }
        self.places[gap] = Place::default();
    }

    /// All that is known.
    pub(crate) fn contents(&self) -> impl Iterator<Item = (u64, Entry)> {
        let taken = self.places.iter().filter(|place| place.key != 0);
        taken.map(|place| (place.key - 1, place.entry))
    }
}

#[cfg(test)]
#[path = "directory_tests.rs"]
mod tests;
