//! What all caches hold, for whoever wants to check it while nobody accesses anything.

use std::sync::PoisonError;

use crate::cache::{Sets, State};
use crate::directory::Entry;
use crate::part::Policy;
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
        let cores = self.cores.iter().map(|core| CoreContents {
            l1i: core.code.contents(),
            l1d: core.data.contents(),
            l2: Vec::new(),
            group: core.group,
        });
        let groups = self.groups.iter().map(|group| GroupContents {
            l3: Vec::new(),
            policy: group.l3,
        });
        let mut all = Contents {
            cores: cores.collect(),
            groups: groups.collect(),
            directory: Vec::new(),
            filters: vec![None; self.memory.len()],
        };
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            for (core, l2) in all.cores.iter_mut().zip(&shard.l2) {
                core.l2.extend(l2.contents());
            }
            for (group, l3) in all.groups.iter_mut().zip(&shard.l3) {
                group.l3.extend(l3.iter().flat_map(Sets::contents));
            }
            all.directory.extend(shard.directory.contents());
            for (lines, filter) in all.filters.iter_mut().zip(&shard.filters) {
                if let Some(filter) = filter {
                    let found = filter.contents().map(|(line, _)| line);
                    lines.get_or_insert_default().extend(found);
                }
            }
        }
        all
    }

    /// The node of an address, if any has it.
    pub fn node_of_address(&self, address: u64) -> Option<usize> {
        self.node_of(address / crate::part::LINE_BYTES)
    }
}
