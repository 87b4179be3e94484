//! The host that guests live on.

use ostler_model::CpuSet;
use serde::{Deserialize, Serialize};

/// The host, emulated or simulated.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Host {
    /// Its CPUs.
    pub cpus: Cpus,
    /// Its memory; node numbers are positions.
    pub nodes: Vec<Node>,
    /// The cores whose use is compared.
    pub under_test: CpuSet,
    /// The cores for load generators, the steward and everything else; none where there is no need of any.
    pub client: CpuSet,
    /// Queues of the physical NIC.
    pub pnic_queues: u32,
    /// What an instruction costs, ns; in the lab, on machine time: 1 makes each core one of a thousand million instructions per second.
    pub instruction_ns: f64,
    /// What its caches are, if accesses to memory cost time by where their data lies.
    #[serde(default)]
    pub caches: Option<Caches>,
    /// How many CPUs share a last-level cache; as the part has it, or all of a socket, where not given.
    #[serde(default)]
    pub cache_group_cores: Option<u32>,
}

/// What the host's cores are, as far as memory is concerned.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Caches {
    /// The part: a name that the world knows.
    pub part: String,
}

/// How many CPUs, and how they hang together.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Cpus {
    /// Sockets.
    pub sockets: u32,
    /// Cores in each socket.
    pub cores: u32,
    /// Threads of each core.
    pub threads: u32,
}

impl Cpus {
    /// Logical CPUs in all.
    pub fn count(self) -> u32 {
        self.sockets * self.cores * self.threads
    }
}

/// A memory node.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Node {
    /// Its size.
    pub memory_mib: u64,
    /// Its CPUs; none makes it a far node.
    pub cpus: CpuSet,
    /// Latency from the first node that has CPUs.
    pub latency_ns: u32,
    /// Bandwidth from there.
    pub bandwidth_mib_per_s: u32,
}
