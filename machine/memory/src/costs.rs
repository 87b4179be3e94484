//! What a core pays for each level, from its part's table.

use crate::counters::Level;
use crate::part::{Part, Reach};
use crate::topology::{Plan, PlannedCore, PlannedNode};

/// What a core pays, in ps.
#[derive(Debug)]
pub(crate) struct Costs {
    pub(crate) l1: u64,
    pub(crate) l2: u64,
    pub(crate) l3: u64,
    /// By distance: 0 the group, 1 the socket, 2 beyond.
    pub(crate) data: [u64; 3],
    pub(crate) invalidate: [u64; 3],
    /// By node: latency, that of a stream's line, and what it is called.
    pub(crate) memory: Box<[(u64, u64, Level)]>,
}

impl Costs {
    /// Of a core; `overlap` as in the topology.
    pub(crate) fn new(core: &PlannedCore, plan: &Plan, overlap: bool) -> Costs {
        let &PlannedCore { part, node, group } = core;
        let ps = |cycles: u32| in_ps(part, cycles);
        // One without an L3 of its own, in a group that has one, reaches it as fast as those that brought it.
        let lent = plan.groups[group].and_then(|of| Some(in_ps(of, of.cycles.l3?)));
        let l3 = part.cycles.l3.map(ps).or(lent);
        let by_reach = |Reach {
                            group,
                            socket,
                            remote,
                        }: Reach| [group, socket, remote].map(ps);
        let hop = ps(part.cycles.remote) - ps(part.cycles.memory);
        let misses = if overlap {
            u64::from(part.outstanding_misses)
        } else {
            1
        };
        let memory = plan
            .nodes
            .iter()
            .enumerate()
            .map(|(at, to): (usize, &PlannedNode)| {
                let given = to.latency_ns.map(|ns| ns * 1000);
                let (latency, level) = if at == node {
                    (given.unwrap_or(ps(part.cycles.memory)), Level::Local)
                } else if to.has_cores {
                    let latency = given.map_or(ps(part.cycles.remote), |given| given + hop);
                    (latency, Level::Remote)
                } else {
                    let device = to
                        .device
                        .map_or(0, |device| u64::from(device.latency_ns) * 1000);
                    let far = to.attached_to.is_some_and(|to| to != node);
                    let way = if far { hop } else { 0 };
                    (given.unwrap_or(device) + way, Level::Pool)
                };
                (latency, latency / misses, level)
            });
        Costs {
            l1: ps(part.cycles.l1),
            l2: ps(part.cycles.l2),
            l3: l3.unwrap_or(ps(part.cycles.l2)),
            data: by_reach(part.snoop_data_cycles),
            invalidate: by_reach(part.snoop_invalidate_cycles),
            memory: memory.collect(),
        }
    }
}

fn in_ps(part: &Part, cycles: u32) -> u64 {
    u64::from(cycles) * 1_000_000 / u64::from(part.clock_mhz)
}
