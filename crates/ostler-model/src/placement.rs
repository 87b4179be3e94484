//! The way of packets through a host: what is seen of it, how it is placed, and where.

use serde::{Deserialize, Serialize};

use crate::{CpuId, GuestId, Nanos, NodeId};

/// A socket's counters over the last second or so (vFlowComb, section III.C), for the node that its cores belong to. Where a socket has
/// several nodes, each tells the same.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SocketView {
    /// Which.
    pub node: NodeId,
    /// Hits of the last-level cache by accesses to it, 0 to 1.
    pub l3_hit: f64,
    /// Cycles lost to its misses by all cycles, 0 to 1.
    pub cycle_loss: f64,
    /// Instructions per cycle.
    pub ipc: f64,
    /// How old this is.
    #[serde(default)]
    pub age: Nanos,
}

/// Packets that come by a queue of a NIC for a guest, or a chain of guests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlowView {
    /// The NIC's interface name.
    pub nic: String,
    /// Its queue.
    pub queue: u32,
    /// The guests on its way, in order.
    pub hops: Vec<Hop>,
    /// Packets a second.
    pub packets_per_s: f64,
    /// How old this is.
    #[serde(default)]
    pub age: Nanos,
}

/// A guest on a packet's way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hop {
    /// Which guest.
    pub guest: GuestId,
    /// The queue pair of its vNICs by which packets come, as in [`VhostView::queue`](crate::VhostView::queue); `None` where nobody knows.
    pub queue: Option<u32>,
    /// The vCPU that has them, by index; `None` where nobody knows.
    pub vcpu: Option<u32>,
    /// Packets a second that came as far as this; `None` where nobody counts, and then as many as came by the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets_per_s: Option<f64>,
}

/// How cores are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlacementPolicy {
    /// The chain of least slowdown.
    Chains,
    /// Baseline: all of a chain on its destination's socket.
    NumaAware,
    /// Baseline: each thread where it is slowed down least by itself.
    ContentionAware,
}

/// How the placement layer works.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlacementSettings {
    /// How cores are chosen.
    pub policy: PlacementPolicy,
    /// How often they are.
    pub interval: Nanos,
    /// A thread leaves its core where it is slowed down less by more than this share.
    pub margin: f64,
    /// Whether vCPUs on packets' ways are placed too; else they are where they are.
    pub vcpus: bool,
    /// Queues' softirqs and vhost workers have so many cores to choose from at the most, the least busy ones; `None`: all of their group.
    pub cores_max: Option<u32>,
    /// What slows a queue's softirq down.
    pub softirq: StageSettings,
    /// What slows a vhost worker down.
    pub vhost: StageSettings,
    /// What slows a vCPU down.
    pub vcpu: StageSettings,
}

/// What slows a stage down, by how much (vFlowComb, figure 8); `ostler calibrate` finds it in what a host has recorded.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageSettings {
    /// What a packet takes, where it can't be measured.
    pub packet: Nanos,
    /// Misses of the last-level cache: by 1 / hit rate of the stage's socket.
    pub cache: f64,
    /// The memory controller: by the cycle loss of the predecessor's socket.
    pub memory: f64,
    /// The interconnect: by the cycle loss of the stage's socket, if it isn't the predecessor's.
    pub interconnect: f64,
    /// Remote access: by the instructions per cycle of the predecessor's socket over those of the stage's.
    pub remote: f64,
    /// Crossing from one last-level cache to another within a socket.
    pub crossing: f64,
    /// What else the core does: by u / (1 - u).
    pub load: f64,
    /// What the stage takes wherever it is.
    #[serde(default)]
    pub base: f64,
}

impl StageSettings {
    /// What slows it down, by the names of the configuration's keys.
    #[must_use]
    pub fn weights(&self) -> [(&'static str, f64); 7] {
        [
            ("cache", self.cache),
            ("memory", self.memory),
            ("interconnect", self.interconnect),
            ("remote", self.remote),
            ("crossing", self.crossing),
            ("load", self.load),
            ("base", self.base),
        ]
    }
}

impl Default for StageSettings {
    /// The plain sum that the paper begins from; and a million packets a second to a core.
    fn default() -> StageSettings {
        StageSettings {
            packet: Nanos::from_micros(1),
            cache: 1.0,
            memory: 1.0,
            interconnect: 1.0,
            remote: 1.0,
            crossing: 1.0,
            load: 1.0,
            base: 0.0,
        }
    }
}

impl Default for PlacementSettings {
    fn default() -> PlacementSettings {
        PlacementSettings {
            policy: PlacementPolicy::Chains,
            interval: Nanos::from_secs(1),
            margin: 0.05,
            vcpus: false,
            cores_max: None,
            softirq: StageSettings::default(),
            vhost: StageSettings::default(),
            vcpu: StageSettings::default(),
        }
    }
}

/// Where the threads on packets' ways run. It owns what it names: interrupts of these queues go to their softirq's core, and these threads are pinned to
/// theirs, as the plans of NICs and guests say too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementPlan {
    /// Since when it is so.
    pub since: Nanos,
    /// Queues of NICs, in order of name and queue.
    pub softirqs: Vec<QueueCore>,
    /// vhost workers, in order of guest and place in [`GuestView::vhost`](crate::GuestView::vhost).
    pub workers: Vec<ThreadCore>,
    /// vCPUs, in order of guest and place in [`GuestView::vcpus`](crate::GuestView::vcpus).
    pub vcpus: Vec<ThreadCore>,
}

/// The core of a queue's interrupt and softirq.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct QueueCore {
    /// The NIC's interface name.
    pub nic: String,
    /// Its queue.
    pub queue: u32,
    /// The core.
    pub cpu: CpuId,
}

/// The core of a guest's thread.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ThreadCore {
    /// Whose.
    pub guest: GuestId,
    /// Which, by its place.
    pub at: u32,
    /// The core.
    pub cpu: CpuId,
}
