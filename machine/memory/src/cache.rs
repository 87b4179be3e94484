//! Which lines a cache holds, in which MESI state, and which one leaves next: least recently used first, as in the textbooks.
//!
//! A line is the physical address over [`LINE_BYTES`](crate::part::LINE_BYTES); a *word* is a line and its state, and 0
//! nothing. There are two kinds of cache:
//!
//! - [`L1`] is what a core's every access looks into, so it must cost next to nothing: no lock, no read-modify-write on a
//!   hit. Its tags are atomics that the core reads, and the order of use of each set's ways is one word of sixteen nibbles
//!   that nobody else writes.
//! - [`Sets`] is everything else, behind a shard's lock. A set is kept in its order of use, the latest first, so that a look
//!   from the front finds most lines at once and the last one is the victim.
//!
//! ## Who writes an L1's tags
//!
//! Its core's thread and, to take a line away or to make it shared, any other core's thread. All but one of these writes
//! happen under the lock of the line's shard, and since all lines of a set are in one shard (see `system`), nobody else
//! writes that set meanwhile, with one exception: its own core, on a store to a line that it has for itself, makes it
//! modified without a lock. That is a compare-exchange from exactly the word it saw; others use swaps, which return what they
//! replace (its own thread needn't: it can't race with itself). So if the store was first, the other sees that the line was modified; if it was second, it fails and the core
//! goes the long way. Every line's words are one atomic's modification order, which is why nothing stronger than relaxed is
//! needed: no other memory is published by them.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

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
    fn of(word: u64) -> State {
        match word & 3 {
            1 => State::Shared,
            2 => State::Exclusive,
            _ => State::Modified,
        }
    }
}

fn word(line: u64, state: State) -> u64 {
    line << 2 | state as u64
}

fn is(word: u64, line: u64) -> bool {
    // Anything but the same line leaves more than the state's two bits; no state is no line.
    (word ^ (line << 2)).wrapping_sub(1) < 3
}

/// A line and its state, if a word has one.
fn content(word: u64) -> Option<(u64, State)> {
    (word != 0).then(|| (word >> 2, State::of(word)))
}

/// The first that is right, of 32 at most. All are looked at: leaving early is a branch that nobody can foretell, and costs
/// more.
#[inline]
fn position<T>(all: &[T], right: impl Fn(&T) -> bool) -> Option<usize> {
    let (fours, rest) = all.as_chunks::<4>();
    let (mut mask, mut at) = (0_u32, 0);
    for four in fours {
        let [a, b, c, d] = four.each_ref().map(|one| u32::from(right(one)));
        mask |= (a | b << 1 | c << 2 | d << 3) << at;
        at += 4;
    }
    for one in rest {
        mask |= u32::from(right(one)) << at;
        at += 1;
    }
    (mask != 0).then_some(mask.trailing_zeros() as usize)
}

/// The nibbles 0 to 15: the order of use of ways that were never used.
const ORDER: u64 = 0xfedc_ba98_7654_3210;
const ONES: u64 = 0x1111_1111_1111_1111;

/// Guesses for each set of an [`L1`].
const GUESSES: u64 = 16;

/// A core's own first cache, of instructions or of data.
#[derive(Debug)]
pub(crate) struct L1 {
    tags: Box<[AtomicU64]>,
    /// For each set its ways, the latest used in the lowest nibble. Nibbles beyond the ways never move.
    order: Box<[AtomicU64]>,
    /// By a line's lowest bits, more of them than choose its set: the way where such a line was last found. A look into a
    /// set compares one tag instead of all, and has no branch that can't be foretold. A wrong guess costs time alone.
    guesses: Box<[AtomicU8]>,
    ways: usize,
    mask: u64,
}

impl L1 {
    /// An empty one of `sets` (a power of two) of 1 to 16 ways.
    pub(crate) fn new(sets: u64, ways: usize) -> L1 {
        let count = usize::try_from(sets).unwrap_or(usize::MAX);
        L1 {
            tags: (0..count * ways).map(|_| AtomicU64::new(0)).collect(),
            order: (0..count).map(|_| AtomicU64::new(ORDER)).collect(),
            guesses: (0..sets * GUESSES).map(|_| AtomicU8::new(0)).collect(),
            ways,
            mask: sets - 1,
        }
    }

    #[allow(
        clippy::cast_possible_truncation,
        reason = "a set's number is below the number of sets, which is a usize"
    )]
    #[inline]
    fn set(&self, line: u64) -> usize {
        (line & self.mask) as usize
    }

    #[inline]
    fn tags(&self, set: usize) -> &[AtomicU64] {
        &self.tags[set * self.ways..][..self.ways]
    }

    #[allow(
        clippy::cast_possible_truncation,
        reason = "only its lowest bits count"
    )]
    #[inline]
    fn guess(&self, line: u64) -> &AtomicU8 {
        // Never fails: both are powers of two, and the compiler needn't divide.
        &self.guesses[line as usize & (self.guesses.len() - 1)]
    }

    /// By the core itself, without a lock: whether the access needs nobody else. A store does unless the line is its own.
    #[inline]
    pub(crate) fn hit(&self, line: u64, write: bool) -> bool {
        let set = self.set(line);
        let guess = usize::from(self.guess(line).load(Relaxed));
        let tag = &self.tags[set * self.ways + guess];
        let found = tag.load(Relaxed);
        if !is(found, line) {
            return self.look(line, write);
        }
        let good = !write || self.own(tag, found);
        if good {
            let order = self.order[set].load(Relaxed);
            // Programs stay with a line for a while, and then there is nothing to do.
            if (order & 15) as usize != guess {
                self.order[set].store(to_front(order, guess), Relaxed);
            }
        }
        good
    }

    /// The same where the guess was wrong.
    #[inline(never)]
    fn look(&self, line: u64, write: bool) -> bool {
        let set = self.set(line);
        let tags = self.tags(set);
        let Some(way) = position(tags, |tag| is(tag.load(Relaxed), line)) else {
            return false;
        };
        let good = !write || self.own(&tags[way], tags[way].load(Relaxed));
        if good {
            self.uses(line, set, way);
        }
        good
    }

    /// A line is found, or put, in a way of its set.
    #[allow(clippy::cast_possible_truncation, reason = "there are 16 ways at most")]
    fn uses(&self, line: u64, set: usize, way: usize) {
        self.guess(line).store(way as u8, Relaxed);
        let order = self.order[set].load(Relaxed);
        self.order[set].store(to_front(order, way), Relaxed);
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
        let tags = self.tags(self.set(line));
        let at = position(tags, |tag| is(tag.load(Relaxed), line))?;
        Some(&tags[at])
    }

    /// Under the shard's lock: whether a line is there.
    pub(crate) fn holds(&self, line: u64) -> bool {
        self.find(line).is_some()
    }

    /// By the core itself, under the shard's lock: puts a line in, or changes the state of one that is there. Returns what
    /// had to leave.
    pub(crate) fn put(&self, line: u64, state: State) -> Option<(u64, State)> {
        let set = self.set(line);
        let tags = self.tags(set);
        let there = position(tags, |tag| is(tag.load(Relaxed), line));
        let free = || position(tags, |tag| tag.load(Relaxed) == 0);
        let way = there.or_else(free).unwrap_or_else(|| {
            let order = self.order[set].load(Relaxed);
            (order >> (4 * (self.ways - 1)) & 15) as usize
        });
        // Nobody else writes here now: others would need the lock, and the one who doesn't is this very thread.
        let before = tags[way].load(Relaxed);
        tags[way].store(word(line, state), Relaxed);
        self.uses(line, set, way);
        if there.is_some() {
            None
        } else {
            content(before)
        }
    }

    /// Under the shard's lock, by anybody: takes a line away. Returns its last state.
    pub(crate) fn take(&self, line: u64) -> Option<State> {
        let tag = self.find(line)?;
        Some(State::of(tag.swap(0, Relaxed)))
    }

    /// Under the shard's lock, by anybody: leaves a line only to be read. Returns its last state.
    pub(crate) fn share(&self, line: u64) -> Option<State> {
        let tag = self.find(line)?;
        Some(State::of(tag.swap(word(line, State::Shared), Relaxed)))
    }

    /// All that it holds.
    pub(crate) fn contents(&self) -> Vec<(u64, State)> {
        let words = self.tags.iter().map(|tag| tag.load(Relaxed));
        words.filter_map(content).collect()
    }
}

/// The order of use once `way` has been used: the nibble moves to the front, those before it one back.
#[inline]
fn to_front(order: u64, way: usize) -> u64 {
    let way = way as u64;
    // The lowest zero nibble of `other` is where the way stands; a borrow can only falsify nibbles above it.
    let other = order ^ (way * ONES);
    let zeros = other.wrapping_sub(ONES) & !other & (ONES << 3);
    let at = zeros.trailing_zeros() & !3;
    let before = (1_u64 << at) - 1;
    let upto = before << 4 | 15;
    order & !upto | (order & before) << 4 | way
}

/// Part of a cache behind a lock: those of its sets that are in one shard.
#[derive(Debug)]
pub(crate) struct Sets {
    words: Box<[u64]>,
    ways: usize,
    shift: u32,
    mask: u64,
}

impl Sets {
    /// The part of an empty cache of `sets` that is in each of `1 << shift` shards.
    pub(crate) fn new(sets: u64, ways: usize, shift: u32) -> Sets {
        let local = sets >> shift;
        let words = usize::try_from(local).unwrap_or(usize::MAX) * ways;
        Sets {
            words: vec![0; words].into_boxed_slice(),
            ways,
            shift,
            mask: local - 1,
        }
    }

    /// Lines that fit in.
    pub(crate) fn capacity(&self) -> usize {
        self.words.len()
    }

    #[allow(
        clippy::cast_possible_truncation,
        reason = "a set's number is below the number of sets, which is a usize"
    )]
    fn set(&self, line: u64) -> &[u64] {
        let set = (line >> self.shift & self.mask) as usize;
        &self.words[set * self.ways..][..self.ways]
    }

    #[allow(
        clippy::cast_possible_truncation,
        reason = "a set's number is below the number of sets, which is a usize"
    )]
    fn set_mut(&mut self, line: u64) -> &mut [u64] {
        let set = (line >> self.shift & self.mask) as usize;
        &mut self.words[set * self.ways..][..self.ways]
    }

    /// A line's state, without using it.
    pub(crate) fn state(&self, line: u64) -> Option<State> {
        let set = self.set(line);
        let at = position(set, |word| is(*word, line))?;
        Some(State::of(set[at]))
    }

    /// Uses a line. Returns its state.
    pub(crate) fn touch(&mut self, line: u64) -> Option<State> {
        let set = self.set_mut(line);
        let at = position(set, |word| is(*word, line))?;
        let found = set[at];
        set.copy_within(..at, 1);
        set[0] = found;
        Some(State::of(found))
    }

    /// Changes the state of a line that is there, without using it. Returns whether it is.
    pub(crate) fn change(&mut self, line: u64, state: State) -> bool {
        let found = self.set_mut(line).iter_mut().find(|word| is(**word, line));
        found.map(|found| *found = word(line, state)).is_some()
    }

    /// Puts a line in that isn't there. Returns what had to leave.
    pub(crate) fn insert(&mut self, line: u64, state: State) -> Option<(u64, State)> {
        let set = self.set_mut(line);
        let last = set.len() - 1;
        let victim = set[last];
        set.copy_within(..last, 1);
        set[0] = word(line, state);
        content(victim)
    }

    /// Takes a line away. Returns its last state.
    pub(crate) fn take(&mut self, line: u64) -> Option<State> {
        let set = self.set_mut(line);
        let at = position(set, |word| is(*word, line))?;
        let found = set[at];
        set.copy_within(at + 1.., at);
        let last = set.len() - 1;
        set[last] = 0;
        Some(State::of(found))
    }

    /// All that it holds.
    pub(crate) fn contents(&self) -> impl Iterator<Item = (u64, State)> {
        self.words.iter().filter_map(|word| content(*word))
    }
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
