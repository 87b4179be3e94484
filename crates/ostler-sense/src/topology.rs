//! The host's cores and how they share, from `/sys/devices/system/cpu`.

use std::path::Path;

use ostler_model::{Cpu, CpuId, CpuSet, MAX_CPUS, NodeId, Topology};

use crate::error::SenseError;
use crate::files;

/// Caches of one CPU that are looked at.
const CACHES_MAX: usize = 16;

/// Reads the online CPUs. What the kernel doesn't tell of a CPU is the least it can share: a core and a cache of its
/// own, on node 0.
pub(crate) fn read(sys: &Path) -> Result<Topology, SenseError> {
    let folder = sys.join("devices/system/cpu");
    let online = online(sys)?;
    let cpus = online
        .iter()
        .map(|id| {
            let own = folder.join(format!("cpu{id}"));
            let lowest = |path: &str| {
                files::parsed::<CpuSet>(&own.join(path)).and_then(|set| lowest_of(&set, &online))
            };
            Cpu {
                id,
                node: node(&own),
                core: lowest("topology/core_cpus_list")
                    .or_else(|| lowest("topology/thread_siblings_list"))
                    .unwrap_or(id),
                cache_group: last_level_cache(&own)
                    .and_then(|set| lowest_of(&set, &online))
                    .unwrap_or(id),
            }
        })
        .collect();
    Ok(Topology { cpus })
}

/// The CPUs that are online now.
pub(crate) fn online(sys: &Path) -> Result<CpuSet, SenseError> {
    let path = sys.join("devices/system/cpu/online");
    let set: CpuSet = files::value(&path)
        .map_err(|source| SenseError::read(&path, source))?
        .parse()
        .map_err(|source| SenseError::Cpus {
            path: path.clone(),
            source,
        })?;
    if set.is_empty() {
        return Err(SenseError::NoCpus { path });
    }
    Ok(set)
}

/// One more than the highest CPU number that the host can ever have.
pub(crate) fn possible(sys: &Path) -> u32 {
    files::parsed::<CpuSet>(&sys.join("devices/system/cpu/possible"))
        .and_then(|set| set.iter().last())
        .map_or(MAX_CPUS, |last| last.0 + 1)
}

fn lowest_of(set: &CpuSet, online: &CpuSet) -> Option<CpuId> {
    set.intersection(online).first()
}

/// The `nodeN` link of the CPU.
fn node(cpu: &Path) -> NodeId {
    files::names(cpu, 64)
        .iter()
        .filter_map(|name| name.strip_prefix("node")?.parse().ok())
        .map(NodeId)
        .next()
        .unwrap_or_default()
}

/// The CPUs that share the cache of the highest level.
fn last_level_cache(cpu: &Path) -> Option<CpuSet> {
    let folder = cpu.join("cache");
    files::names(&folder, CACHES_MAX)
        .iter()
        .filter(|name| name.starts_with("index"))
        .filter_map(|name| {
            let cache = folder.join(name);
            let level: u32 = files::parsed(&cache.join("level"))?;
            let shared: CpuSet = files::parsed(&cache.join("shared_cpu_list"))?;
            Some((level, shared))
        })
        .max_by_key(|(level, shared)| (*level, shared.len()))
        .map(|(_, shared)| shared)
}
