//! What machines are to the model of what memory costs (`machine/memory`): which core is which part, and how far which memory is.
//!
//! | model | nodes | an access to | costs |
//! |---|---|---|---|
//! | (alone) | one | memory | its part's `memory` |
//! | separated | one for each machine, with its cores | own memory; the other's | `memory`; `remote` |
//! | shared | the same, and the pool, which is a device | own memory; the pool | `memory`; the device's latency, from either |
//! | fully-shared | one, with all cores, behind one last cache | any memory; that cache | `memory`; `l3` |
//!
//! Each core pays by its *own* part's table, also for what is the other machine's: so the same line costs one 640 cycles of 2.1 GHz
//! and the other 620 of 2.0. That is the thesis's choice (section 4.8.1: "the memory latencies from Xeon Gold and `ThunderX2` pairs as
//! shown in Table 4.2", of which each row has its remote column). It charges the pool as remote memory, too; here it is a device by CXL, as in its
//! figure 4.3, and `[memory] pool` says which one.
//!
//! Fully shared, there is one last cache for both, as the thesis has it: the larger of the two parts' L3s, by its size and what it holds, if either has one. It
//! costs a core what its own part's L3 costs, or the other's time where its part has none. The one node has the larger bandwidth of the two parts' memories.
//!
//! Cores are numbered through: those of the first machine, then those of the second, as many as QEMU may ever make ([`World::width`]).

use ostler_machine_memory::{Catalogue, Cores, Node, Range as NodeRange, Topology};

use crate::layout::{Owner, Range};
use crate::world::{Machine, Model, World};

/// The device that the pool is, unless told.
pub const POOL: &str = "cxl3-pool";

impl World {
    /// Cores that QEMU may make of a machine. It makes atomic instructions atomic only where there may be a second core; with another machine,
    /// there always is one.
    pub fn width(&self, machine: usize) -> u32 {
        let cores = self.machines[machine].cores;
        if self.is_fused() { cores.max(2) } else { cores }
    }

    /// The number that a machine's first core has in the topology of all.
    pub fn first_core(&self, machine: usize) -> u32 {
        (0..machine).map(|before| self.width(before)).sum()
    }

    /// All cores and all memory, as `machine/memory` describes machines; none if memory costs nothing.
    pub fn topology(&self) -> Option<Topology> {
        if !self.models_memory() {
            return None;
        }
        let one_node = !matches!(self.model, Some(Model::Separated | Model::Shared));
        let fully_shared = self.is_fused() && one_node;
        let node_of = |machine: usize| if one_node { 0 } else { machine };
        let all = self.machines.iter().enumerate();
        let cores = all.map(|(number, machine)| {
            let first = self.first_core(number);
            Cores {
                first: first as usize,
                last: (first + self.width(number)) as usize - 1,
                part: machine.part.clone().unwrap_or_default(),
                node: node_of(number),
                group_cores: (fully_shared && number == 0).then_some(self.width(0) as usize),
                group_of: (fully_shared && number > 0).then_some(0),
            }
        });
        let mut nodes = vec![Node::default(); if one_node { 1 } else { self.machines.len() }];
        for range in &self.ranges {
            let place = match range.owner {
                Owner::Machine(owner) => node_of(owner),
                Owner::Pool if one_node => 0,
                Owner::Pool => self.machines.len(),
            };
            if place == nodes.len() {
                nodes.push(Node {
                    device: Some(self.pool.clone().unwrap_or_else(|| POOL.to_owned())),
                    ..Node::default()
                });
            }
            nodes[place].ranges.push(as_node(range));
        }
        if fully_shared {
            nodes[0].mb_per_s = self.machines.iter().filter_map(bandwidth).max();
        }
        Some(Topology {
            skew_ns: u64::from(self.time.quantum_ns),
            cores: cores.collect(),
            nodes,
            ..Topology::default()
        })
    }
}

fn as_node(range: &Range) -> NodeRange {
    NodeRange {
        start: range.start,
        bytes: range.bytes,
    }
}

/// Of a machine's own memory, by its part.
fn bandwidth(machine: &Machine) -> Option<u64> {
    let catalogue = Catalogue::built_in();
    let part = catalogue.part(machine.part.as_deref()?)?;
    Some(part.memory_mb_per_s)
}

#[cfg(test)]
#[path = "topology_tests.rs"]
mod tests;
