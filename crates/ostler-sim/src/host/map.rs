//! Which cores share what.

use ostler_model::{Cpu, CpuId, CpuSet, Topology};

/// Levels at which threads are balanced: within a cache group, a node, the host.
pub(super) const LEVELS: usize = 3;

/// What those of a level have in common.
type Key = fn(&Cpu) -> (u32, u32);

/// For each core, by its number: those that it shares something with, itself among them.
#[derive(Clone, Debug)]
pub(super) struct Map {
    pub online: CpuSet,
    /// One more than the greatest number.
    pub len: usize,
    /// Other threads of its physical core.
    pub siblings: Vec<Vec<u32>>,
    /// Its cache group's, its node's, all.
    pub spans: Vec<[u32; LEVELS]>,
    /// The sets that `spans` tells, by level: each core of a level is in one.
    pub sets: [Vec<CpuSet>; LEVELS],
}

impl Map {
    pub fn new(topology: &Topology) -> Map {
        let online = topology.online();
        let len = topology.cpus.last().map_or(0, |cpu| cpu.id.0 as usize + 1);
        let mut map = Map {
            online,
            len,
            siblings: vec![Vec::new(); len],
            spans: vec![[0; LEVELS]; len],
            sets: [Vec::new(), Vec::new(), vec![online]],
        };
        let keys: [Key; 2] = [
            // A cache group that spans nodes is one for each.
            |cpu| (cpu.node.0, cpu.cache_group.0),
            |cpu| (cpu.node.0, 0),
        ];
        for (level, key) in keys.iter().enumerate() {
            let mut seen: Vec<(u32, u32)> = Vec::new();
            for cpu in &topology.cpus {
                let at = seen
                    .iter()
                    .position(|known| *known == key(cpu))
                    .unwrap_or_else(|| {
                        seen.push(key(cpu));
                        map.sets[level].push(CpuSet::EMPTY);
                        seen.len() - 1
                    });
                map.sets[level][at].insert(cpu.id);
                map.spans[cpu.id.0 as usize][level] = at as u32;
            }
        }
        for cpu in &topology.cpus {
            let of = topology.siblings(cpu.id);
            map.siblings[cpu.id.0 as usize] = of
                .iter()
                .filter(|other| *other != cpu.id)
                .map(|other| other.0)
                .collect();
        }
        map
    }

    /// Those that share a level with a core.
    pub fn span(&self, cpu: u32, level: usize) -> &CpuSet {
        &self.sets[level][self.spans[cpu as usize][level] as usize]
    }

    /// Whether two share a last-level cache.
    pub fn shares_cache(&self, one: u32, other: u32) -> bool {
        self.spans[one as usize][0] == self.spans[other as usize][0]
    }
}

/// The first of a set that is `from` or after it, else the first of all.
pub(super) fn next_from(set: &CpuSet, from: u32) -> Option<u32> {
    let mut first = None;
    for CpuId(cpu) in set {
        if cpu >= from {
            return Some(cpu);
        }
        first = first.or(Some(cpu));
    }
    first
}
