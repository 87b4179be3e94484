//! What a system is made of, in the order of its block.
//!
//! What each core has for itself comes first, then L3s, filters and queues, then the shards' locks, and last the directory, of which most is
//! never touched. [`crate::header`]'s version stands for this order.

use crate::bandwidth::Bandwidth;
use crate::block::Carver;
use crate::cache::L1;
use crate::costs::Costs;
use crate::counters::{Counters, Received};
use crate::directory::Directory;
use crate::header::Header;
use crate::map::Map;
use crate::part::{LINE_BYTES, lines, sets};
use crate::sets::Sets;
use crate::system::{Core, Group, Memory, System};
use crate::topology::{Plan, Topology, TopologyError};

/// Shards at most; see [`crate::system`] for the least.
const SHARDS_MAX: u64 = 64;

/// Lines of 2^30 bytes.
const LINES_OF_GIB: u64 = (1 << 30) / LINE_BYTES;

/// Sets and ways of a cache.
type Size = (u64, usize);

fn of_kib(kib: u64, ways: usize) -> Size {
    (sets(lines(kib), ways), ways)
}

fn cache((sets, ways): Size, carver: &mut Carver) -> Sets {
    Sets::new(usize::try_from(sets).unwrap_or(usize::MAX), ways, carver)
}

fn l1((sets, ways): Size, carver: &mut Carver) -> L1 {
    L1::new(usize::try_from(sets).unwrap_or(usize::MAX), ways, carver)
}

/// Sizes of all caches of a plan.
struct Sizes {
    /// By core: L1 of instructions, of data, L2.
    cores: Vec<[Size; 3]>,
    /// By group.
    l3: Vec<Option<Size>>,
    /// By node.
    filters: Vec<Option<Size>>,
}

impl Sizes {
    fn of(plan: &Plan) -> Sizes {
        let cores = plan.cores.iter().map(|core| {
            [core.part.l1i, core.part.l1d, core.part.l2].map(|cache| of_kib(cache.kib, cache.ways))
        });
        let l3 = plan.groups.iter().map(|of| {
            let l3 = of.and_then(|part| part.l3);
            l3.map(|l3| of_kib(l3.kib, l3.ways))
        });
        let filters = plan.nodes.iter().map(|node| {
            let filter = node.device.and_then(|device| device.filter);
            filter.map(|filter| (sets(filter.lines, filter.ways), filter.ways))
        });
        Sizes {
            cores: cores.collect(),
            l3: l3.collect(),
            filters: filters.collect(),
        }
    }

    /// The fewest sets of any cache but the L1s, and the most.
    fn behind(&self) -> (u64, u64) {
        let l2 = self.cores.iter().map(|[_, _, l2]| *l2);
        let shared = self.l3.iter().chain(&self.filters).flatten();
        let all = || {
            l2.clone()
                .chain(shared.clone().copied())
                .map(|(sets, _)| sets)
        };
        (all().min().unwrap_or(1), all().max().unwrap_or(1))
    }

    /// Lines from this one on are none that all L1s could hold.
    fn end(&self) -> u64 {
        let l1 = self.cores.iter().flat_map(|[code, data, _]| [code, data]);
        l1.map(|(sets, _)| L1::end(*sets)).min().unwrap_or(u64::MAX)
    }

    /// The fewest sets of any cache.
    fn least(&self) -> u64 {
        let l1 = self.cores.iter().flat_map(|[code, data, _]| [code, data]);
        let l1 = l1.map(|(sets, _)| *sets).min();
        l1.unwrap_or(1).min(self.behind().0)
    }
}

impl System {
    /// A system of what a carver hands out.
    pub(crate) fn build(
        topology: &Topology,
        plan: &Plan,
        carver: &mut Carver,
    ) -> Result<System, TopologyError> {
        let sizes = Sizes::of(plan);
        let (least, most) = sizes.behind();
        let map = Map::new(&plan.ranges, least, most)?;
        if let Some(&(_, behind, _)) = plan.ranges.last()
            && behind > sizes.end()
        {
            return Err(TopologyError::TooFar {
                gib: behind.div_ceil(LINES_OF_GIB),
                most: sizes.end() / LINES_OF_GIB,
            });
        }
        let header = Header::new(carver);
        let cores = plan.cores.iter().zip(&sizes.cores);
        let cores = cores.map(|(core, &[code, data, l2])| Core {
            code: l1(code, carver),
            data: l1(data, carver),
            l2: cache(l2, carver),
            costs: Costs::new(core, plan, topology.overlap),
            group: core.group,
            node: core.node,
            streams: carver.area(Core::STREAM_WORDS),
            counters: Counters::new(plan.nodes.len(), carver),
            received: Received::new(carver),
            lock: carver.area(1),
        });
        let cores: Box<[Core]> = cores.collect();
        let groups = sizes.l3.iter().enumerate().map(|(group, l3)| {
            let own = plan.cores.iter().enumerate();
            let own = own.filter(|(_, core)| core.group == group);
            let first = own.clone().next().map(|(_, core)| core);
            let policy = plan.groups[group].and_then(|part| part.l3);
            let policy = policy.map(|l3| l3.policy);
            Group {
                cores: own.fold(0, |all, (at, _)| all | 1 << at),
                node: first.map_or(0, |core| core.node),
                l3: policy.zip(l3.map(|l3| cache(l3, carver))),
            }
        });
        let groups: Box<[Group]> = groups.collect();
        let nodes = plan.nodes.iter().zip(&sizes.filters);
        let memory = nodes.map(|(node, filter)| Memory {
            bandwidth: Bandwidth::new(node.mb_per_s, topology.skew_ns * 1000, carver),
            back_invalidate_ps: node
                .device
                .map_or(0, |device| u64::from(device.back_invalidate_ns) * 1000),
            filter: filter.map(|filter| cache(filter, carver)),
        });
        let memory = memory.collect();
        let shards = sizes.least().min(SHARDS_MAX);
        Ok(System {
            shards: carver.area(usize::try_from(shards).unwrap_or(1)),
            directory: Directory::new(map.indices(), cores.len(), groups.len(), carver),
            header,
            cores,
            groups,
            memory,
            map,
        })
    }
}
