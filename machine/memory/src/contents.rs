//! What all caches hold, for whoever wants to check it while nobody accesses anything.

use crate::cache::State;
use crate::directory::Entry;
use crate::part::Policy;
use crate::sets::Sets;
use crate::system::System;

/// Lines and their states.
pub type Lines = Vec<(u64, State)>;

/// A core's caches.
#[derive(Clone, Debug)]
pub struct CoreContents {
    /// Instructions.
    pub l1i: Lines,
    /// Data.
    pub l1d: Lines,
    /// Both.
    pub l2: Lines,
    /// Its group.
    pub group: usize,
}

/// A group's L3.
#[derive(Clone, Debug)]
pub struct GroupContents {
    /// What it holds; nothing where there is none.
    pub l3: Lines,
    /// What it is to hold.
    pub policy: Option<Policy>,
}

/// Everything.
#[derive(Clone, Debug)]
pub struct Contents {
    /// By number.
    pub cores: Vec<CoreContents>,
    /// By number.
    pub groups: Vec<GroupContents>,
    /// What the directory knows.
    pub directory: Vec<(u64, Entry)>,
    /// Lines in each node's filter, where it has one.
    pub filters: Vec<Option<Vec<u64>>>,
}

impl System {
    /// All that the caches hold. True only while no core accesses anything. Not for a hot path.
    pub fn contents(&self) -> Contents {
        // What no node has shows as a line that no node has either.
        let line = |index| self.map.of_index(index).map_or(!index, |place| place.line);
        let lines = |cache: &Sets| {
            let found = cache.contents();
            found
                .map(|(index, state)| (line(index), state))
                .collect::<Lines>()
        };
        let cores = self.cores.iter().map(|core| CoreContents {
            l1i: core.code.contents(),
            l1d: core.data.contents(),
            l2: lines(&core.l2),
            group: core.group,
        });
        let groups = self.groups.iter().map(|group| GroupContents {
            l3: group.cache().map(lines).unwrap_or_default(),
            policy: group.policy(),
        });
        let entries = self.directory.contents();
        let entries = entries.map(|(index, _)| (line(index), self.entry(index)));
        let entries = entries.filter(|(_, entry)| *entry != Entry::default());
        let filters = self.memory.iter().map(|memory| {
            let held = lines(memory.filter.as_ref()?);
            Some(held.into_iter().map(|(line, _)| line).collect())
        });
        Contents {
            cores: cores.collect(),
            groups: groups.collect(),
            directory: entries.collect(),
            filters: filters.collect(),
        }
    }

    /// The node of an address, if any has it.
    pub fn node_of_address(&self, address: u64) -> Option<usize> {
        let place = self.map.place(address / crate::part::LINE_BYTES)?;
        Some(place.node)
    }
}
