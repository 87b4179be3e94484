//! A core's own first caches: which lines they hold, in which MESI state.
//!
//! This is what a core's every access looks into, so it must cost next to nothing: no lock, no read-modify-write on a hit. A line
//! is the physical address over [`LINE_BYTES`](crate::part::LINE_BYTES); a *word* is what of a line doesn't follow from its set, plus one, and its state; and 0 nothing.
//! What stands behind, L2 and L3, is in [`crate::sets`].
//!
//! ## Where things lie
//!
//! What an emulator does besides fills the real core's nearest cache, and a third of what a hit cost was waiting for the model's own
//! lines there. So a set of up to eight ways, with its order of use, is one line of the real machine, and nothing else is touched. All its words are compared at once,
//! which takes less than a guess at the right one that must come from memory, too. Larger sets have two lines.
//!
//! ## Who writes an L1's words
//!
//! Its core's thread and, to take a line away or to make it shared, any other core's thread. Others hold the lock of the line's
//! shard and this core's own lock; the core itself holds one or the other (see `system`). So nobody else writes a set meanwhile,
//! with one exception: its own core, on a store to a line that it has for itself, makes it
//! modified without a lock. That is a compare-exchange from exactly the word it saw; others use swaps, which return what they
//! replace (its own thread needn't: it can't race with itself). So if the store was first, the other sees that the line was modified; if it was second, it fails and the core
//! goes the long way. Every line's words are one atomic's modification order, which is why nothing stronger than relaxed is
//! needed: no other memory is published by them.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::block::{Carver, Line, Ring};
use crate::order::{Matrix, to_front_of_few};
use crate::scan::eight;

/// A line's MESI state; absent lines have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Others may have it too; memory, or an L3, has the same.
    Shared = 1,
    /// Nobody else has it; memory has the same.
    Exclusive = 2,
    /// Nobody else has it, and memory is out of date.
    Modified = 3,
}

impl State {
    /// Of a word's lowest two bits, which aren't both 0.
    #[inline]
    pub(crate) fn of(word: u64) -> State {
        match word & 3 {
            1 => State::Shared,
            2 => State::Exclusive,
            _ => State::Modified,
        }
    }
}

/// The first of some ways.
#[inline]
pub(crate) fn first(ways: u32) -> Option<usize> {
    (ways != 0).then_some(ways.trailing_zeros() as usize)
}

/// Bits of a word that are its state.
const STATE: u32 = 3;
/// Bits of a word that aren't.
const LINE_BITS: u32 = 30;
/// Ways of a set that one line of the real machine has room for.
const FEW: usize = 8;

/// A line's set, where each has one line of the real machine's.
#[allow(
    clippy::cast_possible_truncation,
    reason = "only its lowest bits count"
)]
#[inline]
fn set_of_few(line: u64) -> usize {
    line as usize
}

/// A core's own first cache, of instructions or of data.
#[derive(Debug)]
pub(crate) struct L1 {
    /// One for each set, or two. Nobody writes the order, in the first's first wide word, but the core.
    sets: Ring<Line>,
    matrix: Matrix,
    ways: usize,
    /// Bits of a line that choose its set.
    bits: u32,
    /// A set has more ways than fit in one line.
    many: bool,
}

impl L1 {
    /// One of `sets` (a power of two) of 1 to 16 ways.
    pub(crate) fn new(sets: usize, ways: usize, carver: &mut Carver) -> L1 {
        let many = ways > FEW;
        L1 {
            sets: carver.ring(sets << usize::from(many)),
            matrix: Matrix::new(ways.min(FEW)),
            ways,
            bits: sets.trailing_zeros(),
            many,
        }
    }

    /// Lines from this one on are none that it could hold.
    pub(crate) fn end(sets: u64) -> u64 {
        ((1 << LINE_BITS) - 1) * sets
    }

    /// A line's set: the first line of the real machine's that it has.
    #[inline]
    fn set(&self, line: u64) -> usize {
        set_of_few(line) << usize::from(self.many)
    }

    /// What a line's word has above its state, if it is one that there can be.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "it is seen to that it fits"
    )]
    #[inline]
    fn above(&self, line: u64) -> Option<u32> {
        let above = (line >> self.bits) + 1;
        (above < 1 << LINE_BITS).then_some((above << 2) as u32)
    }

    /// The same of a line that has come this far.
    #[inline]
    fn word(&self, line: u64, state: State) -> u32 {
        self.above(line).unwrap_or(0) | state as u32
    }

    /// A line and its state, if a word of a set has one.
    fn content(&self, set: usize, word: u32) -> Option<(u64, State)> {
        let above = u64::from(word >> 2).checked_sub(1)?;
        let set = set >> usize::from(self.many) & ((1 << self.bits) - 1);
        Some((above << self.bits | set as u64, State::of(word.into())))
    }

    #[inline]
    fn tag(&self, set: usize, way: usize) -> &AtomicU32 {
        &self.sets.at(set + way / FEW).narrow[way % FEW]
    }

    /// Ways whose word, with these bits set, is as sought.
    #[inline]
    fn alike(&self, set: usize, with: u32, sought: u32) -> u32 {
        let few = eight(&self.sets.at(set).narrow, with, sought);
        if self.many {
            few | eight(&self.sets.at(set + 1).narrow, with, sought) << FEW
        } else {
            few
        }
    }

    /// Where a line is in its set.
    #[inline]
    fn scan(&self, set: usize, line: u64) -> Option<usize> {
        first(self.alike(set, STATE, self.above(line)? | STATE))
    }

    /// By the core itself, without a lock: whether the access needs nobody else. A store does unless the line is its own.
    #[inline]
    pub(crate) fn hit(&self, line: u64, write: bool) -> bool {
        self.hit_at_once(line, write) || self.look(line, write)
    }

    /// The same, but for a line's first store and for sets of two lines: there the answer may be no though L1 has it.
    #[inline]
    pub(crate) fn hit_at_once(&self, line: u64, write: bool) -> bool {
        if self.many {
            return false;
        }
        let Some(above) = self.above(line) else {
            return false;
        };
        let set = self.sets.at(set_of_few(line));
        // The states that will do, in one comparison: whether it is a store is another thing that nobody can foretell.
        let with = if write { 0 } else { STATE };
        let Some(way) = first(eight(&set.narrow, with, above | STATE)) else {
            return false;
        };
        let order = &set.wide[0];
        order.store(self.matrix.used(order.load(Relaxed), way), Relaxed);
        true
    }

    /// The same, where that hasn't found it.
    #[inline(never)]
    fn look(&self, line: u64, write: bool) -> bool {
        if !write && !self.many {
            return false;
        }
        let set = self.set(line);
        let way = self.scan(set, line);
        way.is_some_and(|way| self.hit_in(line, write, set, way))
    }

    /// The same, where the line was in a way a moment ago.
    fn hit_in(&self, line: u64, write: bool, set: usize, way: usize) -> bool {
        let tag = self.tag(set, way);
        // Others may have taken it since.
        let found = tag.load(Relaxed);
        let there = found | STATE == self.word(line, State::Modified);
        let good = there && (!write || self.own(tag, found));
        if good {
            self.use_way(set, way);
        }
        good
    }

    /// The line in that way is the latest used of its set.
    #[inline]
    fn use_way(&self, set: usize, way: usize) {
        let order = &self.sets.at(set).wide[0];
        let now = order.load(Relaxed);
        let then = if self.many {
            to_front_of_few(now, way)
        } else {
            self.matrix.used(now, way)
        };
        order.store(then, Relaxed);
    }

    /// The way of a set that was used the longest ago. All are taken, so each was used.
    fn oldest(&self, set: usize) -> usize {
        let order = self.sets.at(set).wide[0].load(Relaxed);
        if self.many {
            crate::order::last_of_few(order, self.ways)
        } else {
            Matrix::last(order)
        }
    }

    /// Makes a line modified if this core has it for itself.
    #[allow(clippy::unused_self, reason = "it belongs to the cache's rules")]
    #[inline]
    fn own(&self, tag: &AtomicU32, found: u32) -> bool {
        match State::of(found.into()) {
            State::Modified => true,
            State::Exclusive => tag
                .compare_exchange(found, found | STATE, Relaxed, Relaxed)
                .is_ok(),
            State::Shared => false,
        }
    }

    fn find(&self, line: u64) -> Option<&AtomicU32> {
        let set = self.set(line);
        Some(self.tag(set, self.scan(set, line)?))
    }

    /// Under a lock: whether a line is there.
    pub(crate) fn holds(&self, line: u64) -> bool {
        self.find(line).is_some()
    }

    /// By the core itself, under a lock: puts a line in, or changes the state of one that is there. Returns what had to leave.
    pub(crate) fn put(&self, line: u64, state: State) -> Option<(u64, State)> {
        let set = self.set(line);
        let there = self.scan(set, line);
        let free = || first(self.alike(set, 0, 0) & ((1 << self.ways) - 1));
        let way = there.or_else(free).unwrap_or_else(|| self.oldest(set));
        let tag = self.tag(set, way);
        // Nobody else writes here now: others would need the lock, and the one who doesn't is this very thread.
        let before = tag.load(Relaxed);
        tag.store(self.word(line, state), Relaxed);
        self.use_way(set, way);
        if there.is_some() {
            None
        } else {
            self.content(self.set(line), before)
        }
    }

    /// Under locks, by anybody: takes a line away. Returns its last state.
    pub(crate) fn take(&self, line: u64) -> Option<State> {
        let tag = self.find(line)?;
        Some(State::of(tag.swap(0, Relaxed).into()))
    }

    /// Under locks, by anybody: leaves a line only to be read. Returns its last state.
    pub(crate) fn share(&self, line: u64) -> Option<State> {
        let tag = self.find(line)?;
        let shared = self.word(line, State::Shared);
        Some(State::of(tag.swap(shared, Relaxed).into()))
    }

    /// All that it holds.
    pub(crate) fn contents(&self) -> Vec<(u64, State)> {
        let lines = self.sets.all().iter().enumerate();
        let words = lines.flat_map(|(set, line)| line.narrow.iter().map(move |word| (set, word)));
        words
            .filter_map(|(set, word)| self.content(set, word.load(Relaxed)))
            .collect()
    }
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
