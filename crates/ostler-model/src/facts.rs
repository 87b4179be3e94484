//! What a host is: the things that change rarely.

use serde::{Deserialize, Serialize};

use crate::{CpuId, CpuSet, MemoryFacts, NodeId};

/// What a host is and what its kernel can do. Sensed at the start and again when hardware comes or goes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// `uname -r`.
    pub kernel: String,
    /// The host's cores.
    pub topology: Topology,
    /// Its memory.
    #[serde(default, skip_serializing_if = "MemoryFacts::is_empty")]
    pub memory: MemoryFacts,
    /// Its physical NICs, by name.
    pub nics: Vec<NicFacts>,
    /// What the steward found it can and cannot do here, each with the reason when it cannot.
    pub capabilities: Vec<Capability>,
}

/// The host's cores and how they share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    /// Online CPUs in ascending order of id.
    pub cpus: Vec<Cpu>,
}

/// One logical CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpu {
    /// Its number.
    pub id: CpuId,
    /// The NUMA node it belongs to.
    pub node: NodeId,
    /// The lowest numbered CPU of its physical core: SMT siblings share it.
    pub core: CpuId,
    /// The lowest numbered CPU that shares its last-level cache.
    pub cache_group: CpuId,
}

impl Topology {
    /// All online CPUs.
    pub fn online(&self) -> CpuSet {
        self.cpus.iter().map(|cpu| cpu.id).collect()
    }

    /// The CPUs that share a physical core with `cpu`, itself among them.
    pub fn siblings(&self, cpu: CpuId) -> CpuSet {
        let Some(core) = self.cpus.iter().find(|c| c.id == cpu).map(|c| c.core) else {
            return CpuSet::EMPTY;
        };
        self.cpus
            .iter()
            .filter(|c| c.core == core)
            .map(|c| c.id)
            .collect()
    }
}

/// A physical NIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicFacts {
    /// Its interface name.
    pub name: String,
    /// How many receive queues it spreads packets over at the most.
    pub queues_max: u32,
    /// Whether its RSS indirection table can be set, so that the number of queues in use can change without a link reset.
    pub rss_settable: bool,
    /// The NUMA node it is attached to, where the kernel knows.
    pub node: Option<NodeId>,
}

/// Something the steward may be able to do on this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capability {
    /// A short stable name: `cpuset`, `cpu-weight`, `freezer`, `irq-affinity`, `rss`, `bpf-busy`, `tap-latency`, ...
    pub name: String,
    /// Why it is not there; `None` when it is.
    pub missing: Option<String>,
}
