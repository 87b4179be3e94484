//! What the policies carry from one decision to the next.

use serde::{Deserialize, Serialize};

use crate::{Groups, Nanos};

/// All that `decide()` remembers. Part of the record: a decision can be made again from it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Generation of the last plan; 0 before the first.
    pub generation: u64,
    /// The partition layer's memory.
    pub partition: PartitionState,
}

/// The partition layer's memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PartitionState {
    /// Thresholds in force; `None` before the first decision, which takes the intent's.
    pub thresholds: Option<Thresholds>,
    /// The intent's thresholds that those in force were explored from; when the operator sets others, exploration begins anew.
    pub configured: Option<Thresholds>,
    /// The groups of the last plan: the next demand is measured on them, and a core leaves its group only when it must.
    pub previous: Option<Groups>,
    /// Demand of vCPUs within the intent's hold, the highest first.
    pub vcpu_peaks: Vec<Peak>,
    /// Demand of network queues within the intent's hold, the highest first.
    pub nq_peaks: Vec<Peak>,
    /// Average demand of vCPUs and network queues over about the intent's hold; `None` before the first measurement.
    pub average: Option<Average>,
    /// Samples since the last exploration, at most as many as one exploration takes.
    pub samples: Vec<Sample>,
    /// Explorations so far.
    pub explorations: u64,
}

/// The share of its cores' time that a group may use before it needs more cores (`Th` in vSPACE).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Thresholds {
    /// For vCPU cores, 0..1.
    pub vcpu: f64,
    /// For network queue cores, 0..1.
    pub nq: f64,
}

impl Default for Thresholds {
    fn default() -> Thresholds {
        Thresholds { vcpu: 0.7, nq: 0.7 }
    }
}

/// A group's demand in a period that no later one has exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Peak {
    /// When it was measured.
    pub at: Nanos,
    /// How much, in cores.
    pub busy: f64,
}

/// Demand averaged over periods, the recent ones most.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Average {
    /// Of vCPUs, in cores.
    pub vcpu: f64,
    /// Of network queues, in cores.
    pub nq: f64,
}

/// One period's evidence for threshold exploration.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// P95 over the objective, the worst of the latency-critical guests: above 1 is a violation.
    pub p95_over_slo: f64,
    /// Average utilisation of the vCPU cores, 0..1.
    pub vcpu: f64,
    /// Average utilisation of the network queue cores, 0..1.
    pub nq: f64,
}
