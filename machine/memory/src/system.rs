//! The whole: a system of cores, caches and memory, and what an access costs in it.
//!
//! ## An access
//!
//! [`System::access`] is called by a core's own thread. What its L1 has is decided there without a lock ([`crate::cache`]).
//! Everything else is a *transaction* ([`crate::transaction`]) under one lock.
//!
//! ## Shards
//!
//! Every cache picks a line's set by the line's low bits. So if all lines are dealt out over S shards by their lowest log2 S
//! bits, and S is at most the number of sets of the smallest cache, then all lines of one set of one cache, whichever, are in
//! one shard. A line that is brought in and all the lines that must leave for it, from L1, L2, L3 and a device's filter, and
//! the directory's entries of all of them, are therefore behind the same lock: a transaction takes exactly one, and there is
//! no order of locks to keep. With 64 sets in an L1 there are 64 shards.
//!
//! ## What it charges
//!
//! The latency of the level that served it, from the core's part; for a line that another cache has for itself, a snoop's
//! (CXL's Snoop Data) instead; on top of either, a Snoop Invalidate if others must give up shared copies for a store, a
//! Back-Invalidate if a device's filter had to make room, and the wait for a busy device ([`crate::bandwidth`]).
//! Times are picoseconds, so that cores of different clocks add up. As in Stramash, the core waits for each access in full...
//!
//! ...but for streams. A core that walks through memory has many lines on their way at once, by prefetching or out of order. If
//! it were charged the full latency for each, sixty cores couldn't use up one memory channel, and bandwidth limits would mean
//! nothing. So a core has a few stream heads; a line from memory that is next to a head costs the latency over the part's
//! `outstanding_misses`, and its bandwidth in full. Pointers that are chased cost what they always do.
//! [`Topology::overlap`](crate::Topology) turns it off.
//!
//! ## What it doesn't know
//!
//! Threads of one core: each has caches of its own. Links between sockets have latency but no bandwidth. Stores wait like
//! loads. There is no translation: page walks are accesses that the caller makes, or doesn't.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::bandwidth::Bandwidth;
use crate::cache::{L1, Sets};
use crate::counters::{Counters, Counts, Kind, Level, Received};
use crate::directory::Directory;
use crate::part::{Catalogue, LINE_BYTES, Part, Policy, Reach, lines, sets};
use crate::topology::{Plan, PlannedNode, Topology, TopologyError};
use crate::transaction::Transaction;

/// Shards at most; see above for the least.
const SHARDS_MAX: u64 = 64;
/// Streams that a core walks at once.
const STREAMS: usize = 8;

/// What an access costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// How long the core waits, ps.
    pub picoseconds: u64,
    /// What served it.
    pub level: Level,
}

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

/// A core.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Core {
    pub(crate) code: L1,
    pub(crate) data: L1,
    pub(crate) costs: Costs,
    pub(crate) group: usize,
    pub(crate) node: usize,
    /// The last line of each stream from memory, and which of them is replaced next.
    streams: [AtomicU64; STREAMS],
    turn: AtomicUsize,
    pub(crate) counters: Counters,
    pub(crate) received: Received,
}

impl Core {
    /// A line comes from memory: whether it is next in a stream. By the core's own thread.
    pub(crate) fn streams(&self, line: u64) -> bool {
        for head in &self.streams {
            let last = head.load(Relaxed);
            if last.abs_diff(line) == 1 {
                head.store(line, Relaxed);
                return true;
            }
        }
        let turn = self.turn.load(Relaxed);
        self.streams[turn % STREAMS].store(line, Relaxed);
        self.turn.store(turn.wrapping_add(1), Relaxed);
        false
    }
}

/// Cores that share an L3, or that would.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) cores: u64,
    pub(crate) l3: Option<Policy>,
    pub(crate) node: usize,
}

/// Memory.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) bandwidth: Bandwidth,
    pub(crate) back_invalidate_ps: u64,
}

/// What is behind one lock: of every cache but the L1s, the sets of the lines that are dealt to this shard.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) l2: Vec<Sets>,
    pub(crate) l3: Vec<Option<Sets>>,
    pub(crate) filters: Vec<Option<Sets>>,
    pub(crate) directory: Directory,
}

/// A machine's caches and memory. See the module.
#[derive(Debug)]
pub struct System {
    pub(crate) cores: Box<[Core]>,
    pub(crate) groups: Box<[Group]>,
    pub(crate) memory: Box<[Memory]>,
    pub(crate) shards: Box<[Mutex<Shard>]>,
    ranges: Box<[(u64, u64, usize)]>,
}

impl System {
    /// A system whose caches are all empty.
    pub fn new(topology: &Topology, catalogue: &Catalogue) -> Result<System, TopologyError> {
        let plan = topology.check(catalogue)?;
        let skew_ps = topology.skew_ns * 1000;
        let cores = plan.cores.iter().map(|core| Core {
            code: L1::new(
                sets(lines(core.part.l1i.kib), core.part.l1i.ways),
                core.part.l1i.ways,
            ),
            data: L1::new(
                sets(lines(core.part.l1d.kib), core.part.l1d.ways),
                core.part.l1d.ways,
            ),
            costs: costs(core.part, core.node, &plan, topology.overlap),
            group: core.group,
            node: core.node,
            streams: std::array::from_fn(|_| AtomicU64::new(u64::MAX - 1)),
            turn: AtomicUsize::new(0),
            counters: Counters::new(plan.nodes.len()),
            received: Received::default(),
        });
        let mut groups: Vec<Group> = Vec::new();
        for (at, core) in plan.cores.iter().enumerate() {
            // Blocks needn't be in the order of their cores.
            while groups.len() < plan.groups {
                groups.push(Group {
                    cores: 0,
                    l3: None,
                    node: 0,
                });
            }
            let group = &mut groups[core.group];
            group.cores |= 1 << at;
            group.l3 = core.part.l3.map(|l3| l3.policy);
            group.node = core.node;
        }
        let memory = plan.nodes.iter().map(|node| Memory {
            bandwidth: Bandwidth::new(node.mb_per_s, skew_ps),
            back_invalidate_ps: node
                .device
                .map_or(0, |device| u64::from(device.back_invalidate_ns) * 1000),
        });
        Ok(System {
            cores: cores.collect(),
            groups: groups.into(),
            memory: memory.collect(),
            shards: shards(&plan),
            ranges: plan.ranges.into(),
        })
    }

    /// A core touches a line. Called by the core's own thread: not by two at once, or counts and the order of use get lost.
    /// `now_ps` is the core's time; it is asked only if memory may be, and may be a quantum off others' times.
    ///
    /// # Panics
    /// When there is no such core.
    #[inline]
    pub fn access(
        &self,
        core: usize,
        kind: Kind,
        address: u64,
        now_ps: impl FnOnce() -> u64,
    ) -> Charge {
        let own = &self.cores[core];
        let line = address / LINE_BYTES;
        let l1 = if kind == Kind::Fetch {
            &own.code
        } else {
            &own.data
        };
        if l1.hit(line, kind.writes()) {
            own.counters.served(kind, Level::L1);
            return Charge {
                picoseconds: own.costs.l1,
                level: Level::L1,
            };
        }
        self.miss(core, kind, line, now_ps())
    }

    /// A core touches some bytes: each line of them, one after the other. Returns what they cost together, and the level
    /// that served the dearest.
    pub fn access_bytes(
        &self,
        core: usize,
        kind: Kind,
        address: u64,
        bytes: u64,
        now_ps: impl Fn() -> u64,
    ) -> Charge {
        let first = address / LINE_BYTES;
        let last = address.saturating_add(bytes.saturating_sub(1)) / LINE_BYTES;
        let mut all = self.access(core, kind, address, &now_ps);
        let mut dearest = all.picoseconds;
        for line in first + 1..=last {
            let one = self.access(core, kind, line * LINE_BYTES, || now_ps() + all.picoseconds);
            if one.picoseconds > dearest {
                dearest = one.picoseconds;
                all.level = one.level;
            }
            all.picoseconds += one.picoseconds;
        }
        all
    }

    #[inline(never)]
    fn miss(&self, core: usize, kind: Kind, line: u64, now_ps: u64) -> Charge {
        let own = &self.cores[core];
        let Some(node) = self.node_of(line) else {
            own.counters.served(kind, Level::Nowhere);
            return Charge {
                picoseconds: 0,
                level: Level::Nowhere,
            };
        };
        let charge = Transaction::new(self, core, line, node, now_ps).run(kind);
        own.counters.served(kind, charge.level);
        let stall = charge.picoseconds.saturating_sub(own.costs.l1);
        own.counters.stall_ps.add(stall);
        charge
    }

    /// The node that has a line.
    pub(crate) fn node_of(&self, line: u64) -> Option<usize> {
        let behind = self.ranges.partition_point(|(start, _, _)| *start <= line);
        let (_, end, node) = *self.ranges.get(behind.checked_sub(1)?)?;
        (line < end).then_some(node)
    }

    /// How many cores there are.
    pub fn cores(&self) -> usize {
        self.cores.len()
    }

    /// What a core has done so far. By anybody, at any time.
    ///
    /// # Panics
    /// When there is no such core.
    pub fn counts(&self, core: usize) -> Counts {
        let core = &self.cores[core];
        Counts::read(&core.counters, &core.received, core.costs.l1)
    }

    /// The same into counts of before, without allocating.
    ///
    /// # Panics
    /// When there is no such core.
    pub fn recount(&self, core: usize, counts: &mut Counts) {
        let core = &self.cores[core];
        counts.reread(&core.counters, &core.received, core.costs.l1);
    }
}

fn costs(part: &Part, node: usize, plan: &Plan, overlap: bool) -> Costs {
    let ps = |cycles: u32| u64::from(cycles) * 1_000_000 / u64::from(part.clock_mhz);
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
        l3: ps(part.cycles.l3.unwrap_or(part.cycles.l2)),
        data: by_reach(part.snoop_data_cycles),
        invalidate: by_reach(part.snoop_invalidate_cycles),
        memory: memory.collect(),
    }
}

/// Deals every cache's sets out.
fn shards(plan: &Plan) -> Box<[Mutex<Shard>]> {
    let l3_of = |group: usize| {
        plan.cores
            .iter()
            .find(|core| core.group == group)
            .and_then(|core| core.part.l3)
    };
    let filters = || {
        plan.nodes
            .iter()
            .map(|node| node.device.and_then(|device| device.filter))
    };
    let private = plan
        .cores
        .iter()
        .flat_map(|core| [core.part.l1i, core.part.l1d, core.part.l2]);
    let private = private.map(|cache| sets(lines(cache.kib), cache.ways));
    let grouped = (0..plan.groups).filter_map(l3_of);
    let grouped = grouped.map(|l3| sets(lines(l3.kib), l3.ways));
    let followed = filters()
        .flatten()
        .map(|filter| sets(filter.lines, filter.ways));
    let least = private.chain(grouped).chain(followed).min().unwrap_or(1);
    let count = least.min(SHARDS_MAX);
    let shift = count.trailing_zeros();
    let shard = |_| {
        let l2 = plan.cores.iter().map(|core| core.part.l2);
        let l2: Vec<_> = l2
            .map(|l2| Sets::new(sets(lines(l2.kib), l2.ways), l2.ways, shift))
            .collect();
        let l3 = (0..plan.groups).map(l3_of);
        let l3: Vec<_> = l3
            .map(|l3| l3.map(|l3| Sets::new(sets(lines(l3.kib), l3.ways), l3.ways, shift)))
            .collect();
        let filters = filters().map(|filter| {
            filter.map(|filter| Sets::new(sets(filter.lines, filter.ways), filter.ways, shift))
        });
        let held: usize = l2
            .iter()
            .chain(l3.iter().flatten())
            .map(Sets::capacity)
            .sum();
        Mutex::new(Shard {
            // One more: a line is noted before those that leave for it are forgotten.
            directory: Directory::new(held + 1, shift),
            l2,
            l3,
            filters: filters.collect(),
        })
    };
    (0..count).map(shard).collect()
}
