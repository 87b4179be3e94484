//! What happens when an L1 doesn't have what its core wants: MESI with a directory, under one shard's lock.
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
use std::sync::{MutexGuard, PoisonError};

use crate::cache::State;
use crate::counters::{Kind, Level};
use crate::directory::Entry;
use crate::part::Policy;
use crate::system::{Charge, Core, Shard, System};

/// How far two cores are apart, as an index of costs.
const GROUP: usize = 0;
const SOCKET: usize = 1;
const REMOTE: usize = 2;

/// A core's access on its way through the system.
pub(crate) struct Transaction<'a> {
    system: &'a System,
    shard: MutexGuard<'a, Shard>,
    line: u64,
    core: usize,
    own: &'a Core,
    node: usize,
    now_ps: u64,
}

/// The numbers of a word's bits.
fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = word.trailing_zeros();
        word &= word.wrapping_sub(1);
        (bit < 64).then_some(bit as usize)
    })
}

/// What a core's L2 gets, and from where.
struct Fetched {
    charge: Charge,
    state: State,
}

/// Where a line comes from.
struct Source {
    level: Level,
    picoseconds: u64,
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
            newer: false,
            takes: false,
        }
    }
}

impl<'a> Transaction<'a> {
    /// A core wants a line of a node. Waits for those who are busy with lines of the same shard.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "the mask is the number of shards, a usize"
    )]
    pub(crate) fn new(
        system: &'a System,
        core: usize,
        line: u64,
        node: usize,
        now_ps: u64,
    ) -> Transaction<'a> {
        let shard = &system.shards[line as usize & (system.shards.len() - 1)];
        Transaction {
            system,
            // Who panicked with the lock left wrong tags at worst, and those cost time, not safety.
            shard: shard.lock().unwrap_or_else(PoisonError::into_inner),
            line,
            core,
            own: &system.cores[core],
            node,
            now_ps,
        }
    }

    /// Carries it out.
    pub(crate) fn run(mut self, kind: Kind) -> Charge {
        let line = self.line;
        let costs = &self.own.costs;
        let in_l1 = kind.writes() && self.own.data.holds(line);
        let (level, hit_ps) = if in_l1 {
            (Level::L1, costs.l1)
        } else {
            (Level::L2, costs.l2)
        };
        let core = self.core;
        let state = self.shard.l2[core].touch(line);
        let (charge, state) = match state {
            Some(State::Shared) if kind.writes() => {
                let extra = self.upgrade(line);
                self.shard.l2[core].change(line, State::Exclusive);
                let picoseconds = hit_ps + extra;
                (Charge { picoseconds, level }, State::Exclusive)
            }
            Some(state) => {
                let picoseconds = hit_ps;
                (Charge { picoseconds, level }, state)
            }
            None => {
                let fetched = self.fetch(line, kind.writes());
                if let Some((victim, state)) = self.shard.l2[core].insert(line, fetched.state) {
                    self.leaves_l2(victim, state);
                }
                (fetched.charge, fetched.state)
            }
        };
        self.fill_l1(kind, line, state);
        charge
    }

    /// The line is in the core's L2 in a state, for itself if it is to be written.
    fn fill_l1(&mut self, kind: Kind, line: u64, state: State) {
        let (own, core) = (self.own, self.core);
        let victim = match kind {
            Kind::Fetch => {
                if own.data.share(line) == Some(State::Modified) {
                    self.shard.l2[core].change(line, State::Modified);
                }
                own.code.put(line, State::Shared)
            }
            Kind::Load => {
                let shared = state == State::Shared || own.code.holds(line);
                let state = if shared {
                    State::Shared
                } else {
                    State::Exclusive
                };
                own.data.put(line, state)
            }
            Kind::Store | Kind::Atomic => {
                own.code.take(line);
                own.data.put(line, State::Modified)
            }
        };
        if let Some((victim, State::Modified)) = victim {
            self.shard.l2[core].change(victim, State::Modified);
        }
    }

    fn reach(&self, group: usize) -> usize {
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
        self.own.counters.snoops_sent.add(1);
        let received = &self.system.cores[core].received.snoops;
        received.fetch_add(1, Relaxed);
        self.reach(self.group_of(core))
    }

    /// A core's caches give a line up. Returns whether it was modified there.
    fn purge(&mut self, core: usize, line: u64) -> bool {
        let caches = &self.system.cores[core];
        caches.code.take(line);
        let l1 = caches.data.take(line);
        let l2 = self.shard.l2[core].take(line);
        [l1, l2].contains(&Some(State::Modified))
    }

    /// A core's caches keep a line only to read it. Returns whether it was modified there.
    fn demote(&mut self, core: usize, line: u64) -> bool {
        let l1 = self.system.cores[core].data.share(line);
        let l2 = self.shard.l2[core].state(line);
        self.shard.l2[core].change(line, State::Shared);
        [l1, l2].contains(&Some(State::Modified))
    }

    fn l3_state(&self, group: usize, line: u64) -> Option<State> {
        self.shard.l3[group].as_ref()?.state(line)
    }

    fn l3_take(&mut self, group: usize, line: u64) -> Option<State> {
        self.shard.l3[group].as_mut()?.take(line)
    }

    fn l3_change(&mut self, group: usize, line: u64, state: State) {
        if let Some(l3) = self.shard.l3[group].as_mut() {
            l3.change(line, state);
        }
    }

    /// The others give up what they have, and the core that already has the line shared gets it for itself.
    fn upgrade(&mut self, line: u64) -> u64 {
        let mut entry = self.shard.directory.get(line);
        entry.cores &= !(1 << self.core);
        let reach = self.take_all(line, &mut entry);
        entry.cores = 1 << self.core;
        entry.exclusive = true;
        self.shard.directory.put(line, entry);
        self.own.costs.invalidate[reach.unwrap_or(GROUP)]
    }

    /// All holders in `entry` but the own group's inclusive L3 give the line up. Returns how far the furthest other one was.
    fn take_all(&mut self, line: u64, entry: &mut Entry) -> Option<usize> {
        let mut furthest = None;
        for other in bits(entry.cores) {
            let reach = self.snoop(other);
            furthest = furthest.max(Some(reach));
            self.purge(other, line);
        }
        entry.cores = 0;
        for group in bits(entry.groups) {
            if group == self.own.group {
                if self.system.groups[group].l3 == Some(Policy::Inclusive) {
                    continue;
                }
            } else {
                self.own.counters.snoops_sent.add(1);
                furthest = furthest.max(Some(self.reach(group)));
            }
            self.l3_take(group, line);
            entry.groups &= !(1 << group);
        }
        furthest
    }

    /// The core's L2 doesn't have the line: gets it, notes it in the directory and in the L3 if that is inclusive. The L2
    /// itself is the caller's.
    fn fetch(&mut self, line: u64, write: bool) -> Fetched {
        let mut entry = self.shard.directory.get(line);
        let group = self.own.group;
        let source = self.source(line, &mut entry, write);
        let mut picoseconds = source.picoseconds;
        let state = if write {
            let furthest = self.take_all(line, &mut entry);
            if let Some(reach) = furthest
                && !source.takes
            {
                picoseconds += self.own.costs.invalidate[reach];
            }
            State::Exclusive
        } else if entry.cores == 0 && entry.groups & !(1 << group) == 0 {
            if self.system.groups[group].l3 == Some(Policy::Victim) && entry.groups != 0 {
                self.l3_take(group, line);
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
        let included = self.system.groups[group].l3 == Some(Policy::Inclusive);
        let absent = entry.groups & (1 << group) == 0;
        if included && absent {
            entry.groups |= 1 << group;
        }
        self.shard.directory.put(line, entry);
        if included && absent {
            self.enters_l3(group, line, State::Shared);
        }
        let level = source.level;
        Fetched {
            charge: Charge { picoseconds, level },
            state,
        }
    }

    /// Where a line that the core's L2 doesn't have comes from, by the order above, and what that costs.
    /// Whoever had it for itself has it shared afterwards, or not at all if it is to be written.
    fn source(&mut self, line: u64, entry: &mut Entry, write: bool) -> Source {
        let group = self.own.group;
        let costs = &self.own.costs;
        if entry.exclusive {
            let owner = entry.cores.trailing_zeros() as usize;
            let reach = self.snoop(owner);
            if write {
                self.purge(owner, line);
                entry.cores = 0;
            } else {
                let modified = self.demote(owner, line);
                self.settle(line, entry, self.group_of(owner), modified);
            }
            entry.exclusive = false;
            return Source {
                takes: true,
                ..Source::new(Level::Peer, costs.data[reach])
            };
        }
        if entry.groups & (1 << group) != 0 {
            let l3 = self.shard.l3[group].as_mut();
            let state = l3.and_then(|l3| l3.touch(line));
            let victim = self.system.groups[group].l3 == Some(Policy::Victim);
            return Source {
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
        if entry.groups.is_power_of_two() && self.l3_state(other, line) == Some(State::Modified) {
            self.own.counters.snoops_sent.add(1);
            if !write {
                self.l3_change(other, line, State::Shared);
                self.writes_back(line);
            }
            return Source {
                takes: true,
                ..Source::new(Level::Peer, costs.data[self.reach(other)])
            };
        }
        self.read_memory(line)
    }

    /// A line that one core had for itself is shared now: what was newer than memory goes to the group's L3 if the reader is
    /// of the group, else to memory.
    fn settle(&mut self, line: u64, entry: &mut Entry, owner: usize, modified: bool) {
        let in_l3 = self.l3_state(owner, line);
        if owner != self.own.group {
            if modified || in_l3 == Some(State::Modified) {
                self.writes_back(line);
            }
            self.l3_change(owner, line, State::Shared);
        } else if modified {
            match (self.system.groups[owner].l3, in_l3) {
                (None, _) => self.writes_back(line),
                (_, Some(_)) => self.l3_change(owner, line, State::Modified),
                (Some(_), None) => {
                    entry.groups |= 1 << owner;
                    // Noted before anything leaves for it.
                    self.shard.directory.put(line, *entry);
                    self.enters_l3(owner, line, State::Modified);
                }
            }
        }
    }

    fn read_memory(&mut self, line: u64) -> Source {
        let (system, node) = (self.system, self.node);
        let memory = &system.memory[node];
        let (latency, in_stream, level) = self.own.costs.memory[node];
        let latency = if self.own.streams(line) {
            in_stream
        } else {
            latency
        };
        let wait = memory.bandwidth.take(self.now_ps);
        self.own.counters.queued_ps.add(wait);
        self.own.counters.lines[node].add(1);
        let back = if self.follow(line) {
            memory.back_invalidate_ps
        } else {
            0
        };
        Source::new(level, latency + wait + back)
    }

    /// The device notes that the line is cached. Returns whether a line that anybody held had to leave its filter for it.
    fn follow(&mut self, line: u64) -> bool {
        let node = self.node;
        let Some(filter) = self.shard.filters[node].as_mut() else {
            return false;
        };
        if filter.touch(line).is_some() {
            return false;
        }
        let Some((victim, _)) = filter.insert(line, State::Shared) else {
            return false;
        };
        let entry = self.shard.directory.get(victim);
        if entry == Entry::default() {
            return false;
        }
        let mut modified = false;
        for core in bits(entry.cores) {
            let lost = &self.system.cores[core].received.back_invalidated;
            lost.fetch_add(1, Relaxed);
            modified |= self.purge(core, victim);
        }
        for group in bits(entry.groups) {
            modified |= self.l3_take(group, victim) == Some(State::Modified);
        }
        self.shard.directory.put(victim, Entry::default());
        if modified {
            self.writes_back(victim);
        }
        self.own.counters.back_invalidations.add(1);
        true
    }

    /// A line that was modified goes back to memory. Nobody waits for it.
    fn writes_back(&self, line: u64) {
        // A victim may be of another node than the line that it leaves for.
        if let Some(node) = self.system.node_of(line) {
            self.system.memory[node].bandwidth.take(self.now_ps);
            self.own.counters.lines[node].add(1);
        }
    }

    /// The core's L2 has no room for a line any more, and so its L1s haven't either.
    fn leaves_l2(&mut self, line: u64, state: State) {
        self.own.code.take(line);
        let l1 = self.own.data.take(line);
        let modified = [l1, Some(state)].contains(&Some(State::Modified));
        let group = self.own.group;
        let mut entry = self.shard.directory.get(line);
        entry.cores &= !(1 << self.core);
        entry.exclusive = false;
        let there = entry.groups & (1 << group) != 0;
        let l3 = self.system.groups[group].l3;
        if l3.is_some() && !there {
            entry.groups |= 1 << group;
        }
        self.shard.directory.put(line, entry);
        match l3 {
            None if modified => self.writes_back(line),
            None => {}
            Some(_) if there && modified => self.l3_change(group, line, State::Modified),
            Some(_) if there => {}
            Some(_) => {
                let state = if modified {
                    State::Modified
                } else {
                    State::Shared
                };
                self.enters_l3(group, line, state);
            }
        }
    }

    /// A line that the directory has in a group's L3 comes there, and another may have to leave.
    fn enters_l3(&mut self, group: usize, line: u64, state: State) {
        let l3 = self.shard.l3[group].as_mut();
        let Some((victim, state)) = l3.and_then(|l3| l3.insert(line, state)) else {
            return;
        };
        let mut modified = state == State::Modified;
        let mut entry = self.shard.directory.get(victim);
        if self.system.groups[group].l3 == Some(Policy::Inclusive) {
            for core in bits(entry.cores & self.system.groups[group].cores) {
                let lost = &self.system.cores[core].received.back_invalidated;
                lost.fetch_add(1, Relaxed);
                modified |= self.purge(core, victim);
                entry.cores &= !(1 << core);
                entry.exclusive = false;
            }
        }
        entry.groups &= !(1 << group);
        self.shard.directory.put(victim, entry);
        if modified {
            self.writes_back(victim);
        }
    }
}
