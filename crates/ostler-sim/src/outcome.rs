//! What a run comes to: plain numbers, by policy, round and load, of guests and of the host.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A policy's run under one load, of one round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// The scenario.
    pub scenario: String,
    /// The policy.
    pub policy: String,
    /// The round, from 0.
    pub round: u32,
    /// The seed that all was drawn from.
    pub seed: u64,
    /// Simulated time, s.
    pub seconds: f64,
    /// Events that happened.
    pub events: u64,
    /// By name.
    pub guests: BTreeMap<String, GuestOutcome>,
    /// The host.
    pub host: HostOutcome,
}

/// What a guest did and had.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GuestOutcome {
    /// Requests sent to it.
    pub sent: u64,
    /// Answered.
    pub answered: u64,
    /// Lost on the way, for a reason that the world has (a full queue, a fault).
    pub lost: u64,
    /// Response times, us; `None` without answers.
    pub latency_us: Option<Latency>,
    /// The share of seconds with answers whose P95 met the objective; `None` without an objective or answers.
    pub slo_met_share: Option<f64>,
    /// Run time of its vCPUs, s.
    pub ran_s: f64,
    /// Time that its vCPUs waited for a core, s.
    pub waited_s: f64,
    /// Units of work that it counts by itself (rounds, blocks, packets), a second.
    pub work_per_s: f64,
}

/// Response times, us.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
}

/// What the host did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostOutcome {
    /// Time of cores that were held for latency-critical guests and queues, s.
    pub core_seconds: f64,
    /// Time of cores that best-effort guests had, s.
    pub be_core_seconds: f64,
    /// Energy of all cores, J.
    pub energy_j: f64,
    /// Context switches.
    pub context_switches: u64,
    /// Threads moved between cores.
    pub migrations: u64,
    /// Bytes moved between memory nodes.
    pub migrated_bytes: u64,
    /// Plans that asked for something else than the one before.
    pub plan_changes: u64,
}
