//! The caches behind the L1s, and devices' filters: which lines they hold, in which state, and who leaves next.
//!
//! A *tag* is 32 bits: the upper part of a line's index (see [`crate::map`]), whether it may be code, and the line's state; 0 is nothing. So
//! a set of sixteen ways is one cache line of the real machine. A line stays in its way for as long as it is in the cache: where it was found, it
//! can be used, changed and taken without another search, and a search without a lock can't miss it because others move.
//!
//! Everything is written under the lock of the line's shard, but for one: a core that finds a line in its own L2 uses it under its own
//! lock alone (see `system`).

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::block::{Area, Carver};
use crate::cache::{State, first};
use crate::order::Order;
use crate::scan::{STEP, Scan, narrow};

/// Bits of a tag below the line's.
const BELOW: i32 = 3;
/// Of an L2: the core's L1 of instructions may have the line. Without it there is no need to look.
const CODE: u32 = 4;

/// Where a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    set: usize,
    way: usize,
}

/// Who had to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Victim {
    pub(crate) index: u64,
    pub(crate) state: State,
    /// See [`Sets::may_be_code`].
    pub(crate) code: bool,
}

/// A cache.
#[derive(Debug)]
pub(crate) struct Sets {
    tags: Area<AtomicU32>,
    order: Order,
    ways: usize,
    /// Tags of a set: its ways, and perhaps a few that are never used.
    stride: usize,
    /// Bits of an index that choose the set.
    bits: u32,
}

impl Sets {
    /// One of `sets` (a power of two) of 1 to 32 ways.
    pub(crate) fn new(sets: usize, ways: usize, carver: &mut Carver) -> Sets {
        let stride = ways.next_multiple_of(STEP);
        Sets {
            tags: carver.area(sets * stride),
            order: Order::new(sets, ways, carver),
            ways,
            stride,
            bits: sets.trailing_zeros(),
        }
    }

    #[allow(
        clippy::cast_possible_truncation,
        reason = "a set's number is below the number of sets, which is a usize"
    )]
    #[inline]
    fn set(&self, index: u64) -> usize {
        (index & ((1 << self.bits) - 1)) as usize
    }

    #[inline]
    fn slot(&self, slot: Slot) -> &AtomicU32 {
        &self.tags[slot.set * self.stride + slot.way]
    }

    #[allow(
        clippy::cast_possible_truncation,
        reason = "the map sees to it that it fits"
    )]
    #[inline]
    fn tag(&self, index: u64) -> u32 {
        (index >> self.bits << BELOW) as u32
    }

    /// What a tag stands for.
    #[inline]
    fn content(&self, set: usize, tag: u32) -> Option<Victim> {
        (tag != 0).then(|| Victim {
            index: u64::from(tag >> BELOW) << self.bits | set as u64,
            state: State::of(tag.into()),
            code: tag & CODE != 0,
        })
    }

    #[inline]
    fn scan(&self, set: usize, sought: u32) -> Scan {
        let tags = &self.tags[set * self.stride..][..self.stride];
        narrow::<BELOW>(tags, sought)
    }

    /// Where a line is.
    #[inline]
    pub(crate) fn find(&self, index: u64) -> Option<Slot> {
        let set = self.set(index);
        let way = first(self.scan(set, self.tag(index)).found)?;
        Some(Slot { set, way })
    }

    /// The state of a line that was found in a slot, if it is still there.
    #[inline]
    pub(crate) fn state(&self, slot: Slot, index: u64) -> Option<State> {
        let tag = self.slot(slot).load(Relaxed);
        let still = tag != 0 && (tag ^ self.tag(index)) >> BELOW == 0;
        still.then(|| State::of(tag.into()))
    }

    /// Of an L2, whether the core's L1 of instructions may have the line.
    #[inline]
    pub(crate) fn may_be_code(&self, slot: Slot) -> bool {
        self.slot(slot).load(Relaxed) & CODE != 0
    }

    /// Notes that.
    #[inline]
    pub(crate) fn note_code(&self, slot: Slot, code: bool) {
        let tag = self.slot(slot);
        let other = tag.load(Relaxed) & !CODE;
        tag.store(other | if code { CODE } else { 0 }, Relaxed);
    }

    /// Changes the state of a line that is there.
    #[inline]
    pub(crate) fn change(&self, slot: Slot, state: State) {
        let tag = self.slot(slot);
        tag.store(tag.load(Relaxed) & !3 | state as u32, Relaxed);
    }

    /// Uses a line that is there.
    #[inline]
    pub(crate) fn use_slot(&self, slot: Slot) {
        self.order.use_way(slot.set, slot.way);
    }

    /// Takes a line away. Returns its last state.
    #[inline]
    pub(crate) fn take(&self, slot: Slot) -> State {
        let tag = self.slot(slot);
        let last = State::of(tag.load(Relaxed).into());
        tag.store(0, Relaxed);
        last
    }

    /// Puts a line in that isn't there: where it is free, or in place of the line that was used the longest ago. Returns where, and what
    /// had to leave.
    #[inline]
    pub(crate) fn insert(&self, index: u64, state: State) -> (Slot, Option<Victim>) {
        let set = self.set(index);
        let free = first(self.scan(set, 0).free & (u32::MAX >> (32 - self.ways)));
        let way = free.unwrap_or_else(|| self.order.last(set, self.ways));
        let slot = Slot { set, way };
        let tag = self.slot(slot);
        let victim = self.content(set, tag.load(Relaxed));
        tag.store(self.tag(index) | state as u32, Relaxed);
        self.order.use_way(set, way);
        (slot, victim)
    }

    /// Who would leave now if a line were put in: a guess unless under the lock.
    #[inline]
    pub(crate) fn victim(&self, index: u64) -> Option<u64> {
        let set = self.set(index);
        let way = self.order.last(set, self.ways);
        let tag = self.slot(Slot { set, way }).load(Relaxed);
        Some(self.content(set, tag)?.index)
    }

    /// Has the real machine fetch a line's set.
    #[inline]
    pub(crate) fn prefetch(&self, index: u64) {
        let set = self.set(index);
        self.tags.prefetch(set * self.stride);
        self.order.prefetch(set);
    }

    /// All that it holds.
    pub(crate) fn contents(&self) -> impl Iterator<Item = (u64, State)> {
        let all = self.tags.chunks(self.stride).enumerate();
        all.flat_map(move |(set, tags)| {
            let held = tags
                .iter()
                .filter_map(move |tag| self.content(set, tag.load(Relaxed)));
            held.map(|held| (held.index, held.state))
        })
    }
}
