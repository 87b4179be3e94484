//! What happens when a core's own caches don't have what it wants: MESI with a directory, under one shard's lock.
//!
//! ## The rules
//!
//! Per line, with `x`'s entry in the directory saying which cores (L2s) and which groups (L3s) hold it:
//!
//! - A core that has `x` exclusive or modified is its only holder among cores, and no other group's L3 holds it.
//! - An L2 holds all that its core's L1s hold. Its state is never less than theirs, but that an L1's modified counts as
//!   exclusive until it is written back. While an L1 of instructions holds `x`, the one of data has it shared at most: a
//!   store must come here, and take it out of there.
//! - An inclusive L3 holds all that its cores hold; a victim L3 what they evicted, until one of them takes it back for
//!   itself alone. An L3's line is modified (newer than memory) or shared. A modified one is in no other group.
//! - A device's filter holds all lines of its node that any cache holds. It may hold more.
//!
//! ## Where data comes from, in this order
//!
//! 1. A core that has the line for itself: Snoop Data. If it was modified, its group's L3 takes it in when the reader is of the
//!    same group, and memory otherwise (MESI has no owned state).
//! 2. The group's own L3.
//! 3. A core of the group that has it shared.
//! 4. Another group's L3 if it is newer than memory: Snoop Data.
//! 5. Memory, even if others have it shared.
//!
//! A reader gets the line exclusive if nobody else has it. A writer gets it for itself, and all others' copies are taken;
//! unless that was already part of the snoop that brought the data, it costs a Snoop Invalidate of the furthest of them.
//!
//! What must leave for it (the L2's victim, the L3's, the filter's) leaves at no charge but, for the filter's, a
//! Back-Invalidate; what was modified takes its place in the device's queue, and nobody waits for it.

use std::sync::atomic::Ordering::Relaxed;

use crate::cache::State;
use crate::counters::{Count, Kind, Level};
use crate::directory::Entry;
use crate::lock::Guard;
use crate::map::Place;
use crate::part::Policy;
use crate::sets::{Sets, Slot};
use crate::system::{Charge, Core, System};

/// How far two cores are apart, as an index of costs.
const GROUP: usize = 0;
const SOCKET: usize = 1;
const REMOTE: usize = 2;

/// A core's access on its way through the system.
pub(crate) struct Transaction<'a> {
    pub(crate) system: &'a System,
    pub(crate) place: Place,
    pub(crate) core: usize,
    pub(crate) own: &'a Core,
    pub(crate) now_ps: u64,
    _shard: Guard<'a>,
}

impl System {
    /// What is known of a line: what the directory says, less the L3s that say otherwise. Under the lock of the line's shard.
    pub(crate) fn entry(&self, index: u64) -> Entry {
        let mut entry = self.directory.get(index);
        for group in bits(entry.groups) {
            if let Some((Policy::Victim, l3)) = &self.groups[group].l3
                && l3.find(index).is_none()
            {
                entry.groups &= !(1 << group);
            }
        }
        entry
    }
}

/// The numbers of a word's bits.
pub(crate) fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = word.trailing_zeros();
        word &= word.wrapping_sub(1);
        (bit < 64).then_some(bit as usize)
    })
}

/// Where a line comes from.
struct Source {
    level: Level,
    picoseconds: u64,
    /// Where the group's L3 has it, if it came from there.
    l3: Option<Slot>,
    /// It is newer than memory, and the core's to write back if it takes it from its victim L3.
    newer: bool,
    /// The snoop that brought it can take it from all who have it, too.
    takes: bool,
}

impl Source {
    fn new(level: Level, picoseconds: u64) -> Source {
        Source {
            level,
            picoseconds,
            l3: None,
            newer: false,
            takes: false,
        }
    }
}

impl<'a> Transaction<'a> {
    /// A core wants a line. Waits for those who are busy with lines of the same shard.
    #[inline]
    pub(crate) fn new(
        system: &'a System,
        core: usize,
        place: Place,
        now_ps: u64,
    ) -> Transaction<'a> {
        let own = &system.cores[core];
        prefetch(system, own, place);
        Transaction {
            system,
            place,
            core,
            own,
            now_ps,
            _shard: system.lock_shard(place.index),
        }
    }

    /// Has the access done. The core's L2 had the line in a slot, if it had it: others may have taken it since, but nobody has brought it.
    #[inline]
    pub(crate) fn run(&self, kind: Kind, slot: Option<Slot>) -> Charge {
        let Place { line, index, .. } = self.place;
        let l2 = &self.own.l2;
        let there = slot.and_then(|slot| Some((slot, l2.state(slot, index)?)));
        let (charge, slot, state) = if let Some((slot, state)) = there {
            l2.use_slot(slot);
            let mut charge = self.own.second_charge(kind, line);
            if kind.writes() && state == State::Shared {
                charge.picoseconds += self.upgrade();
                l2.change(slot, State::Exclusive);
                (charge, slot, State::Exclusive)
            } else {
                (charge, slot, state)
            }
        } else {
            let (charge, state) = self.fetch(kind.writes());
            let (slot, victim) = l2.insert(index, state);
            if let Some(victim) = victim {
                self.leaves_l2(victim);
            }
            (charge, slot, state)
        };
        self.system.fill_l1(self.own, kind, line, slot, state);
        charge
    }

    pub(crate) fn reach(&self, group: usize) -> usize {
        let other = &self.system.groups[group];
        if group == self.own.group {
            GROUP
        } else if other.node == self.own.node {
            SOCKET
        } else {
            REMOTE
        }
    }

    fn group_of(&self, core: usize) -> usize {
        self.system.cores[core].group
    }

    /// A snoop goes to another core. Returns its distance.
    fn snoop(&self, core: usize) -> usize {
        self.own.counters.add(Count::SnoopsSent, 1);
        let received = self.system.cores[core].received.snoops();
        received.fetch_add(1, Relaxed);
        self.reach(self.group_of(core))
    }

    /// A core's caches keep a line only to read it. Returns whether it was modified there.
    fn demote(&self, core: usize, place: Place) -> bool {
        let caches = &self.system.cores[core];
        let _guard = self.system.lock_core(caches);
        let l1 = caches.data.share(place.line);
        let mut l2 = None;
        if let Some(slot) = caches.l2.find(place.index) {
            l2 = caches.l2.state(slot, place.index);
            caches.l2.change(slot, State::Shared);
        }
        [l1, l2].contains(&Some(State::Modified))
    }

    /// A group's L3, and where it has a line.
    pub(crate) fn in_l3(&self, group: usize, index: u64) -> Option<(&'a Sets, Slot)> {
        let l3 = self.system.groups[group].cache()?;
        Some((l3, l3.find(index)?))
    }

    fn l3_state(&self, group: usize, index: u64) -> Option<State> {
        let (l3, slot) = self.in_l3(group, index)?;
        l3.state(slot, index)
    }

    pub(crate) fn l3_take(&self, group: usize, index: u64) -> Option<State> {
        let (l3, slot) = self.in_l3(group, index)?;
        Some(l3.take(slot))
    }

    pub(crate) fn l3_change(&self, group: usize, index: u64, state: State) {
        if let Some((l3, slot)) = self.in_l3(group, index) {
            l3.change(slot, state);
        }
    }

    /// The others give up what they have, and the core that already has the line shared gets it for itself.
    fn upgrade(&self) -> u64 {
        let directory = &self.system.directory;
        let mut entry = self.system.entry(self.place.index);
        entry.cores &= !(1 << self.core);
        let reach = self.take_all(&mut entry);
        entry.cores = 1 << self.core;
        entry.exclusive = true;
        directory.put(self.place.index, entry);
        self.own.costs.invalidate[reach.unwrap_or(GROUP)]
    }

    /// All holders in `entry` but the own group's inclusive L3 give the line up. Returns how far the furthest other one was.
    fn take_all(&self, entry: &mut Entry) -> Option<usize> {
        let mut furthest = None;
        for other in bits(entry.cores) {
            let reach = self.snoop(other);
            furthest = furthest.max(Some(reach));
            self.purge(other, self.place);
        }
        entry.cores = 0;
        for group in bits(entry.groups) {
            if group == self.own.group {
                if self.system.groups[group].policy() == Some(Policy::Inclusive) {
                    continue;
                }
            } else {
                self.own.counters.add(Count::SnoopsSent, 1);
                furthest = furthest.max(Some(self.reach(group)));
            }
            self.l3_take(group, self.place.index);
            entry.groups &= !(1 << group);
        }
        furthest
    }

    /// The core's L2 doesn't have the line: gets it, notes it in the directory and in the L3 if that is inclusive. The L2
    /// itself is the caller's.
    fn fetch(&self, write: bool) -> (Charge, State) {
        let Place { index, .. } = self.place;
        let directory = &self.system.directory;
        let mut entry = self.system.entry(index);
        let group = self.own.group;
        let l3 = &self.system.groups[group];
        let source = self.source(&mut entry, write);
        let mut picoseconds = source.picoseconds;
        let state = if write {
            let furthest = self.take_all(&mut entry);
            if let Some(reach) = furthest
                && !source.takes
            {
                picoseconds += self.own.costs.invalidate[reach];
            }
            State::Exclusive
        } else if entry.cores == 0 && entry.groups & !(1 << group) == 0 {
            if let (Some((Policy::Victim, l3)), Some(slot)) = (&l3.l3, source.l3) {
                l3.take(slot);
                entry.groups = 0;
            }
            if source.newer {
                State::Modified
            } else {
                State::Exclusive
            }
        } else {
            State::Shared
        };
        entry.cores |= 1 << self.core;
        entry.exclusive = state > State::Shared;
        let included = l3.policy() == Some(Policy::Inclusive);
        let absent = entry.groups & (1 << group) == 0;
        if included && absent {
            entry.groups |= 1 << group;
        }
        directory.put(index, entry);
        if included && absent {
            self.enters_l3(group, index, State::Shared);
        }
        let level = source.level;
        (Charge { picoseconds, level }, state)
    }

    /// Where a line that the core's L2 doesn't have comes from, by the order above, and what that costs.
    /// Whoever had it for itself has it shared afterwards, or not at all if it is to be written.
    fn source(&self, entry: &mut Entry, write: bool) -> Source {
        let index = self.place.index;
        let group = self.own.group;
        let costs = &self.own.costs;
        if entry.exclusive {
            let owner = entry.cores.trailing_zeros() as usize;
            let reach = self.snoop(owner);
            if write {
                self.purge(owner, self.place);
                entry.cores = 0;
            } else {
                let modified = self.demote(owner, self.place);
                self.settle(entry, self.group_of(owner), modified);
            }
            entry.exclusive = false;
            return Source {
                takes: true,
                ..Source::new(Level::Peer, costs.data[reach])
            };
        }
        if entry.groups & (1 << group) != 0 {
            let found = self.in_l3(group, index);
            let state = found.and_then(|(l3, slot)| {
                l3.use_slot(slot);
                l3.state(slot, index)
            });
            let victim = self.system.groups[group].policy() == Some(Policy::Victim);
            return Source {
                l3: found.map(|(_, slot)| slot),
                newer: victim && state == Some(State::Modified),
                ..Source::new(Level::L3, costs.l3)
            };
        }
        let near = entry.cores & self.system.groups[group].cores;
        if near != 0 {
            self.snoop(near.trailing_zeros() as usize);
            return Source::new(Level::Peer, costs.data[GROUP]);
        }
        // Only an L3 that is alone with the line can have it newer than memory.
        let other = entry.groups.trailing_zeros() as usize;
        if entry.groups.is_power_of_two() && self.l3_state(other, index) == Some(State::Modified) {
            self.own.counters.add(Count::SnoopsSent, 1);
            if !write {
                self.l3_change(other, index, State::Shared);
                self.writes_back(self.place);
            }
            return Source {
                takes: true,
                ..Source::new(Level::Peer, costs.data[self.reach(other)])
            };
        }
        self.read_memory()
    }

    /// A line that one core had for itself is shared now: what was newer than memory goes to the group's L3 if the reader is
    /// of the group, else to memory.
    fn settle(&self, entry: &mut Entry, owner: usize, modified: bool) {
        let index = self.place.index;
        let in_l3 = self.l3_state(owner, index);
        if owner != self.own.group {
            if modified || in_l3 == Some(State::Modified) {
                self.writes_back(self.place);
            }
            self.l3_change(owner, index, State::Shared);
        } else if modified {
            match (self.system.groups[owner].policy(), in_l3) {
                (None, _) => self.writes_back(self.place),
                (_, Some(_)) => self.l3_change(owner, index, State::Modified),
                (Some(_), None) => {
                    entry.groups |= 1 << owner;
                    self.enters_l3(owner, index, State::Modified);
                }
            }
        }
    }

    fn read_memory(&self) -> Source {
        let Place { line, node, .. } = self.place;
        let memory = &self.system.memory[node];
        let (latency, in_stream, level) = self.own.costs.memory[node];
        let latency = if self.own.streams(line) {
            in_stream
        } else {
            latency
        };
        let wait = memory.bandwidth.take(self.now_ps);
        self.own.counters.add(Count::QueuedPs, wait);
        self.own.counters.line(node);
        let back = if self.follow() {
            memory.back_invalidate_ps
        } else {
            0
        };
        Source::new(level, latency + wait + back)
    }
}

/// Has the real machine fetch what a transaction is going to need, all at once: its own lines, and those of who will probably leave
/// for it. One after the other, each would be waited for.
#[inline]
fn prefetch(system: &System, own: &Core, place: Place) {
    let directory = &system.directory;
    directory.prefetch(place.index);
    if let Some(filter) = &system.memory[place.node].filter {
        filter.prefetch(place.index);
    }
    let l3 = &system.groups[own.group].l3;
    if let Some((_, l3)) = l3 {
        l3.prefetch(place.index);
    }
    let Some(victim) = own.l2.victim(place.index) else {
        return;
    };
    directory.prefetch(victim);
    match l3 {
        Some((Policy::Victim, l3)) => l3.prefetch(victim),
        Some((Policy::Inclusive, l3)) => {
            if let Some(victim) = l3.victim(place.index) {
                directory.prefetch(victim);
            }
        }
        None => {}
    }
}
