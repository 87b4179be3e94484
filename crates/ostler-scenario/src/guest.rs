//! Guests: what there is of each, and what it does.

use std::fmt;

use ostler_model::{Class, CpuSet, Nanos};
use serde::{Deserialize, Serialize};

use crate::program::{Heat, Program, Wakeups};

/// What a guest does.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// memcached, with a thread per vCPU.
    Memcached,
    /// redis, all in memory.
    Redis,
    /// nginx, with 2,000 files of 1 KB.
    Nginx,
    /// A process per connection that sends back what it is sent.
    Echo,
    /// Nothing, but its kernel answers pings.
    Ping,
    /// nginx, and a loop on every vCPU that compresses and counts its rounds.
    Mixed,
    /// Reads its disk from beginning to end, again and again, with direct IO of 4 KiB; counts these blocks.
    DiskRead,
    /// The same, writing.
    DiskWrite,
    /// A loop on every vCPU that counts its rounds.
    Spin,
    /// Nothing.
    Idle,
    /// Threads that compute and wait for each other, round by round. Simulated only, as are the next three.
    Barrier,
    /// Sends packets on: a network function.
    Forward,
    /// Serves files, some of them from memory.
    Files,
    /// Threads that take turns at locks.
    Lock,
}

/// How requests are asked of a workload that answers some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// The load generator's name for the protocol.
    pub protocol: &'static str,
    /// The TCP port, where it's a protocol that has ports.
    pub port: Option<u16>,
}

impl Workload {
    /// Every workload, by the name that scenarios use.
    pub const ALL: [(&str, Workload); 14] = [
        ("memcached", Workload::Memcached),
        ("redis", Workload::Redis),
        ("nginx", Workload::Nginx),
        ("echo", Workload::Echo),
        ("ping", Workload::Ping),
        ("mixed", Workload::Mixed),
        ("disk-read", Workload::DiskRead),
        ("disk-write", Workload::DiskWrite),
        ("spin", Workload::Spin),
        ("idle", Workload::Idle),
        ("barrier", Workload::Barrier),
        ("forward", Workload::Forward),
        ("files", Workload::Files),
        ("lock", Workload::Lock),
    ];

    /// Whether nothing but a simulator has it.
    pub fn only_simulated(self) -> bool {
        matches!(
            self,
            Workload::Barrier | Workload::Forward | Workload::Files | Workload::Lock
        )
    }

    /// Whether requests can be asked of it.
    pub fn answers(self) -> bool {
        self.service().is_some() || matches!(self, Workload::Forward | Workload::Files)
    }

    /// How the lab asks it requests, if it answers any there.
    pub fn service(self) -> Option<Service> {
        let (protocol, port) = match self {
            Workload::Memcached => ("memcached", Some(11211)),
            Workload::Redis => ("redis", Some(6379)),
            Workload::Nginx | Workload::Mixed => ("http", Some(80)),
            Workload::Echo => ("echo", Some(7)),
            Workload::Ping => ("ping", None),
            Workload::DiskRead
            | Workload::DiskWrite
            | Workload::Spin
            | Workload::Idle
            | Workload::Barrier
            | Workload::Forward
            | Workload::Files
            | Workload::Lock => return None,
        };
        Some(Service { protocol, port })
    }

    /// Whether it does work that nobody asks for, and counts it.
    pub fn works(self) -> bool {
        matches!(
            self,
            Workload::Mixed
                | Workload::DiskRead
                | Workload::DiskWrite
                | Workload::Spin
                | Workload::Barrier
                | Workload::Lock
        )
    }

    /// Size of the disk that it works on.
    pub fn disk_mib(self) -> Option<u64> {
        // Read or written through in a second or two, and no burden for the host's memory, which holds it.
        matches!(self, Workload::DiskRead | Workload::DiskWrite).then_some(32)
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = Workload::ALL.iter().find(|(_, workload)| workload == self);
        f.write_str(named.map_or("workload", |(name, _)| name))
    }
}

/// A guest.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Guest {
    /// Its name: in QEMU, its cgroup, its tap.
    pub name: String,
    /// How its operator ranks it.
    pub class: Class,
    /// How many there are, all alike.
    #[serde(default = "one")]
    pub count: u32,
    /// vCPUs.
    pub vcpus: u32,
    /// Memory.
    pub memory_mib: u64,
    /// Queue pairs of its NIC.
    pub queues: u32,
    /// What it does.
    pub workload: Workload,
    /// How it does it, where that is said; otherwise, as the world has it.
    #[serde(default)]
    pub program: Option<Program>,
    /// The P95 response time it must not exceed.
    pub slo_p95_us: Option<u64>,
    /// Whether the work that it does by itself rests but while a load names the guest: some load does.
    #[serde(default)]
    pub in_turn: bool,
    /// How its kernel chooses vCPUs for tasks that wake up.
    #[serde(default)]
    pub wakeups: Wakeups,
    /// How long a vCPU with nothing to do spins before it sleeps.
    #[serde(default)]
    pub halt_poll: Nanos,
    /// How much of its memory is used, and how much; `None` where all of it is used alike.
    #[serde(default)]
    pub heat: Option<Heat>,
    /// The cores that the vCPUs of each of them stay on; none where they may be anywhere.
    #[serde(default)]
    pub cpus: Vec<CpuSet>,
    /// The share of its vCPUs' time that waits for memory, which it crowds for others.
    #[serde(default)]
    pub memory_waits: f64,
}

fn one() -> u32 {
    1
}

impl Guest {
    /// A guest without an objective, of one queue, that says nothing of how it does its work.
    pub fn new(name: &str, class: Class, vcpus: u32, memory_mib: u64, workload: Workload) -> Guest {
        Guest {
            name: name.to_owned(),
            class,
            count: 1,
            vcpus,
            memory_mib,
            queues: 1,
            workload,
            program: None,
            slo_p95_us: None,
            in_turn: false,
            wakeups: Wakeups::default(),
            halt_poll: Nanos::ZERO,
            heat: None,
            cpus: Vec::new(),
            memory_waits: 0.0,
        }
    }

    /// The guest that it sends packets on to.
    pub fn sends_to(&self) -> Option<&str> {
        match &self.program {
            Some(Program::Forward(forward)) => forward.to.as_deref(),
            _ => None,
        }
    }

    /// The names of all that there are: its own, or with a number each.
    pub fn names(&self) -> impl Iterator<Item = String> + '_ {
        let alone = (self.count == 1).then(|| self.name.clone());
        let several = if self.count == 1 { 0 } else { self.count };
        alone
            .into_iter()
            .chain((1..=several).map(|number| format!("{}-{number}", self.name)))
    }
}
