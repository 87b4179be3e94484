//! What only simulated guests are told: the parameters of their work, and how they use memory.

use ostler_model::{Bytes, Nanos};
use serde::{Deserialize, Serialize};

/// How long something takes, each time.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub enum Time {
    /// Always the same.
    Fixed(Nanos),
    /// Exponentially distributed.
    Exponential {
        /// The mean.
        mean: Nanos,
    },
    /// Log-normally distributed.
    LogNormal {
        /// The median.
        median: Nanos,
        /// Deviation of the logarithm.
        sigma: f64,
    },
    /// One of two.
    Either {
        /// Mostly.
        usual: Nanos,
        /// Else.
        rare: Nanos,
        /// The share of the rare one, 0 to 1.
        share: f64,
    },
}

/// What a thread does that waits for others.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Wait {
    /// It sleeps at once.
    Block,
    /// It spins until it may go on.
    Spin,
    /// It spins for so long, then sleeps.
    SpinFor(Nanos),
}

/// How a guest does its work.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub enum Program {
    /// Requests are answered.
    Serve(Serve),
    /// Threads wait for each other.
    Barrier(Barrier),
    /// Packets are sent on.
    Forward(Forward),
    /// Files are served.
    Files(Files),
    /// Threads take turns at locks.
    Lock(Lock),
}

/// A server of requests: memcached, redis, nginx, echo, mixed.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Serve {
    /// What a request takes of a vCPU.
    pub time: Time,
    /// How many are served at once; as the workload has it where not given.
    pub threads: Option<u32>,
}

/// A program of parallel rounds.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Barrier {
    /// Its threads.
    pub threads: u32,
    /// What each computes in a round.
    pub compute: Time,
    /// What those do that are done with theirs.
    pub wait: Wait,
}

/// A network function.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Forward {
    /// The guest that it sends packets to; none sends them back to whom they came from.
    pub to: Option<String>,
    /// What it does with a packet, besides sending it on.
    pub work: Option<Time>,
}

/// A file server.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Files {
    /// How many files there are that somebody asks for.
    pub count: u32,
    /// The size of each.
    pub size: Bytes,
    /// The share of them that its memory holds at the beginning, 0 to 1.
    pub cacheable: f64,
    /// How many are served at once.
    pub threads: u32,
    /// What serving one takes of a vCPU.
    pub time: Time,
    /// How long one takes to come from the disk.
    pub disk: Nanos,
}

/// Threads and locks.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Lock {
    /// Its threads.
    pub threads: u32,
    /// Its locks; threads are divided among them.
    pub locks: u32,
    /// What a thread does between.
    pub think: Time,
    /// What it does with the lock.
    pub hold: Time,
    /// Cache lines that it has from whoever had the lock before.
    pub lines: u32,
    /// What those do that wait.
    pub wait: Wait,
    /// Whether the guest is told which threads share a lock; otherwise it has to find out.
    pub declared: bool,
}

/// How a guest's kernel chooses vCPUs for tasks that wake up (CPS's names).
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Wakeups {
    /// Any idle one.
    #[default]
    Hvm,
    /// An idle one that isn't preempted.
    Pvm,
    /// Or one that is preempted where load is low.
    Pload,
    /// Likewise, in the cache group of the tasks that it works with.
    Cgsched,
}

/// Misses of the last-level cache for each thousand instructions of a guest of which nothing is said.
pub const MPKI: f64 = 1.0;

/// How a guest uses its memory over the time of a cell.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Heat {
    /// Misses of the last-level cache for each thousand instructions.
    pub mpki: f64,
    /// After so long it begins anew; the last phase stays where not given.
    pub repeat: Option<Nanos>,
    /// The first begins at zero.
    pub phases: Vec<HeatPhase>,
}

/// How a guest uses its memory for a while; what is neither hot, warm nor cold is free.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct HeatPhase {
    /// From when on.
    pub at: Nanos,
    /// Used all the time.
    pub hot_mib: u64,
    /// Used now and then.
    pub warm_mib: u64,
    /// Holds something, and is hardly used.
    pub cold_mib: u64,
}

impl HeatPhase {
    /// All that holds something.
    pub fn used_mib(&self) -> u64 {
        self.hot_mib + self.warm_mib + self.cold_mib
    }
}
