//! A core's own first caches: which lines they hold, in which MESI state.
//!
//! This is what a core's every access looks into, so it must cost next to nothing: no lock, no read-modify-write on a hit. A line
//! is the physical address over [`LINE_BYTES`](crate::part::LINE_BYTES); a *word* is a line and its state, and 0 nothing. What
//! stands behind, L2 and L3, is in [`crate::sets`].
//!
//! ## Who writes an L1's tags
//!
//! Its core's thread and, to take a line away or to make it shared, any other core's thread. Others hold the lock of the line's
//! shard and this core's own lock; the core itself holds one or the other (see `system`). So nobody else writes a set meanwhile,
//! with one exception: its own core, on a store to a line that it has for itself, makes it
//! modified without a lock. That is a compare-exchange from exactly the word it saw; others use swaps, which return what they
//! replace (its own thread needn't: it can't race with itself). So if the store was first, the other sees that the line was modified; if it was second, it fails and the core
//! goes the long way. Every line's words are one atomic's modification order, which is why nothing stronger than relaxed is
//! needed: no other memory is published by them.

use std::sync::atomic::{AtomicU16, AtomicU64, Ordering::Relaxed};

use crate::block::{Carver, Ring};
use crate::order::Order;
use crate::scan::{STEP, wide};

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

#[inline]
fn word(line: u64, state: State) -> u64 {
    line << 2 | state as u64
}

/// Whether a word is a line in a state of at least that number.
#[inline]
fn is(word: u64, line: u64, least: u64) -> bool {
    // Anything but the same line leaves more than the state's two bits; no state is no line.
    (word ^ (line << 2)).wrapping_sub(least) < 4 - least
}

/// A line and its state, if a word has one.
fn content(word: u64) -> Option<(u64, State)> {
    (word != 0).then(|| (word >> 2, State::of(word)))
}

/// The first of some ways.
#[inline]
pub(crate) fn first(ways: u32) -> Option<usize> {
    (ways != 0).then_some(ways.trailing_zeros() as usize)
}

/// Guesses for each set of an [`L1`].
const GUESSES: usize = 16;

/// A core's own first cache, of instructions or of data.
#[derive(Debug)]
pub(crate) struct L1 {
    tags: Ring<AtomicU64>,
    /// Nobody writes it but the core.
    order: Order,
    /// By a line's lowest bits, more of them than choose its set: the tag where such a line was last found. A look into a
    /// set compares one tag instead of all, and has no branch that can't be foretold. A wrong guess costs time alone.
    guesses: Ring<AtomicU16>,
    ways: usize,
    mask: usize,
    /// Words of a set, as a power of two: its ways, and perhaps a few that are never used.
    shift: u32,
    /// Those words, less one.
    ways_mask: usize,
}

impl L1 {
    /// One of `sets` (a power of two) of 1 to 16 ways.
    pub(crate) fn new(sets: usize, ways: usize, carver: &mut Carver) -> L1 {
        let stride = ways.next_power_of_two().max(STEP);
        L1 {
            tags: carver.ring(sets * stride),
            order: Order::new(sets, ways, carver),
            guesses: carver.ring(sets * GUESSES),
            ways,
            mask: sets - 1,
            shift: stride.trailing_zeros(),
            ways_mask: stride - 1,
        }
    }

    #[allow(
        clippy::cast_possible_truncation,
        reason = "only its lowest bits count"
    )]
    #[inline]
    fn set(&self, line: u64) -> usize {
        line as usize & self.mask
    }

    #[inline]
    fn tag(&self, set: usize, way: usize) -> &AtomicU64 {
        self.tags.at((set << self.shift) + way)
    }

    /// Where a line is in its set, and which ways are free.
    #[inline]
    fn scan(&self, set: usize, line: u64) -> (Option<usize>, u32) {
        let tags = &self.tags.all()[set << self.shift..][..1 << self.shift];
        let scan = wide::<2>(tags, line << 2);
        (first(scan.found), scan.free & ((1 << self.ways) - 1))
    }

    #[allow(
        clippy::cast_possible_truncation,
        reason = "only its lowest bits count"
    )]
    #[inline]
    fn guess(&self, line: u64) -> &AtomicU16 {
        self.guesses.at(line as usize)
    }

    /// By the core itself, without a lock: whether the access needs nobody else. A store does unless the line is its own.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "only its lowest bits count"
    )]
    #[inline]
    pub(crate) fn hit(&self, line: u64, write: bool) -> bool {
        let guess = usize::from(self.guess(line).load(Relaxed));
        let found = self.tags.at(guess).load(Relaxed);
        // The states that will do, in one comparison: whether it is a store is another thing that nobody can foretell.
        if !is(found, line, if write { 3 } else { 1 }) {
            return self.look(line, write);
        }
        // The order has a word for each set and takes the line's lowest bits.
        self.order
            .use_way_of_few(line as usize, guess & self.ways_mask);
        true
    }

    /// The same where the guess was wrong, or the state isn't the one that a store finds most often.
    #[inline(never)]
    fn look(&self, line: u64, write: bool) -> bool {
        let set = self.set(line);
        match self.scan(set, line) {
            (Some(way), _) => self.hit_in(line, write, set, way),
            (None, _) => false,
        }
    }

    /// The same, where the line was in a way a moment ago.
    fn hit_in(&self, line: u64, write: bool, set: usize, way: usize) -> bool {
        let tag = self.tag(set, way);
        // Others may have taken it since.
        let found = tag.load(Relaxed);
        let good = is(found, line, 1) && (!write || self.own(tag, found));
        if good {
            self.uses(line, set, way);
        }
        good
    }

    /// A line is found, or put, in a way of its set.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "where there are more tags, a guess may be wrong"
    )]
    fn uses(&self, line: u64, set: usize, way: usize) {
        let tag = (set << self.shift) + way;
        self.guess(line).store(tag as u16, Relaxed);
        self.order.use_way_of_few(set, way);
    }

    /// Makes a line modified if this core has it for itself.
    #[allow(clippy::unused_self, reason = "it belongs to the cache's rules")]
    #[inline]
    fn own(&self, tag: &AtomicU64, found: u64) -> bool {
        match State::of(found) {
            State::Modified => true,
            State::Exclusive => tag
                .compare_exchange(found, found | 3, Relaxed, Relaxed)
                .is_ok(),
            State::Shared => false,
        }
    }

    fn find(&self, line: u64) -> Option<&AtomicU64> {
        let set = self.set(line);
        let (way, _) = self.scan(set, line);
        Some(self.tag(set, way?))
    }

    /// Under a lock: whether a line is there.
    pub(crate) fn holds(&self, line: u64) -> bool {
        self.find(line).is_some()
    }

    /// By the core itself, under a lock: puts a line in, or changes the state of one that is there. Returns what had to leave.
    pub(crate) fn put(&self, line: u64, state: State) -> Option<(u64, State)> {
        let set = self.set(line);
        let (there, free) = self.scan(set, line);
        let way = there
            .or_else(|| first(free))
            .unwrap_or_else(|| self.order.last(set, self.ways));
        let tag = self.tag(set, way);
        // Nobody else writes here now: others would need the lock, and the one who doesn't is this very thread.
        let before = tag.load(Relaxed);
        tag.store(word(line, state), Relaxed);
        self.uses(line, set, way);
        if there.is_some() {
            None
        } else {
            content(before)
        }
    }

    /// Under locks, by anybody: takes a line away. Returns its last state.
    pub(crate) fn take(&self, line: u64) -> Option<State> {
        let tag = self.find(line)?;
        Some(State::of(tag.swap(0, Relaxed)))
    }

    /// Under locks, by anybody: leaves a line only to be read. Returns its last state.
    pub(crate) fn share(&self, line: u64) -> Option<State> {
        let tag = self.find(line)?;
        Some(State::of(tag.swap(word(line, State::Shared), Relaxed)))
    }

    /// All that it holds.
    pub(crate) fn contents(&self) -> Vec<(u64, State)> {
        let words = self.tags.all().iter().map(|tag| tag.load(Relaxed));
        words.filter_map(content).collect()
    }
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
