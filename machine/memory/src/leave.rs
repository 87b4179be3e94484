//! What must leave when a line comes: the L2's victim, the L3's, the filter's, and in turn what inclusion takes from others.
//!
//! All of it is in the shard of the line that comes. Nobody waits for it but for a device whose filter is full.

use std::sync::atomic::Ordering::Relaxed;

use crate::cache::State;
use crate::counters::Count;
use crate::directory::Entry;
use crate::map::Place;
use crate::part::Policy;
use crate::sets::Victim;
use crate::transaction::{Transaction, bits};

impl Transaction<'_> {
    /// A core's caches give a line up. Returns whether it was modified there.
    pub(crate) fn purge(&self, core: usize, place: Place) -> bool {
        let caches = &self.system.cores[core];
        let _guard = self.system.lock_core(caches);
        let Some(slot) = caches.l2.find(place.index) else {
            return false;
        };
        if caches.l2.may_be_code(slot) {
            caches.code.take(place.line);
        }
        let l1 = caches.data.take(place.line);
        let l2 = caches.l2.take(slot);
        l1 == Some(State::Modified) || l2 == State::Modified
    }

    /// The device notes that the line is cached. Returns whether a line that anybody held had to leave its filter for it.
    pub(crate) fn follow(&self) -> bool {
        let Place { index, node, .. } = self.place;
        let directory = &self.system.directory;
        let Some(filter) = &self.system.memory[node].filter else {
            return false;
        };
        if let Some(slot) = filter.find(index) {
            filter.use_slot(slot);
            return false;
        }
        let (_, Some(victim)) = filter.insert(index, State::Shared) else {
            return false;
        };
        let entry = self.system.entry(victim.index);
        if entry == Entry::default() {
            return false;
        }
        let Some(victim) = self.system.map.of_index(victim.index) else {
            return false;
        };
        let mut modified = false;
        for core in bits(entry.cores) {
            let lost = self.system.cores[core].received.back_invalidated();
            lost.fetch_add(1, Relaxed);
            modified |= self.purge(core, victim);
        }
        for group in bits(entry.groups) {
            modified |= self.l3_take(group, victim.index) == Some(State::Modified);
        }
        directory.put(victim.index, Entry::default());
        if modified {
            self.writes_back(victim);
        }
        self.own.counters.add(Count::BackInvalidations, 1);
        true
    }

    /// A line that was modified goes back to memory. Nobody waits for it.
    pub(crate) fn writes_back(&self, place: Place) {
        // A victim may be of another node than the line that it leaves for.
        let memory = &self.system.memory[place.node];
        memory.bandwidth.take(self.now_ps);
        self.own.counters.line(place.node);
    }

    /// The core's L2 has no room for a line any more, and so its L1s haven't either.
    pub(crate) fn leaves_l2(&self, victim: Victim) {
        let index = victim.index;
        let Some(place) = self.system.map.of_index(index) else {
            return;
        };
        if victim.code {
            self.own.code.take(place.line);
        }
        let l1 = self.own.data.take(place.line);
        let modified = l1 == Some(State::Modified) || victim.state == State::Modified;
        let group = self.own.group;
        let directory = &self.system.directory;
        let mut entry = self.system.entry(index);
        entry.cores &= !(1 << self.core);
        entry.exclusive = false;
        let there = entry.groups & (1 << group) != 0;
        let l3 = self.system.groups[group].policy();
        if l3.is_some() && !there {
            entry.groups |= 1 << group;
        }
        directory.put(index, entry);
        match l3 {
            None if modified => self.writes_back(place),
            None => {}
            Some(_) if there && modified => self.l3_change(group, index, State::Modified),
            Some(_) if there => {}
            Some(_) => {
                let state = if modified {
                    State::Modified
                } else {
                    State::Shared
                };
                self.enters_l3(group, index, state);
            }
        }
    }

    /// A line that the directory has in a group's L3 comes there, and another may have to leave.
    pub(crate) fn enters_l3(&self, group: usize, index: u64, state: State) {
        let Some((policy, l3)) = &self.system.groups[group].l3 else {
            return;
        };
        let (_, Some(Victim { index, state, .. })) = l3.insert(index, state) else {
            return;
        };
        let Some(victim) = self.system.map.of_index(index) else {
            return;
        };
        let mut modified = state == State::Modified;
        if *policy == Policy::Inclusive {
            let directory = &self.system.directory;
            let mut entry = directory.get(victim.index);
            for core in bits(entry.cores & self.system.groups[group].cores) {
                let lost = self.system.cores[core].received.back_invalidated();
                lost.fetch_add(1, Relaxed);
                modified |= self.purge(core, victim);
                entry.cores &= !(1 << core);
                entry.exclusive = false;
            }
            entry.groups &= !(1 << group);
            directory.put(victim.index, entry);
        }
        if modified {
            self.writes_back(victim);
        }
    }
}
