//! Several hosts, and the VMs that come to them.

use ostler_model::Nanos;
use serde::{Deserialize, Serialize};

/// Hosts of one kind, and virtual machines that come, stay for a while and go: the guests of a scenario that has a fleet.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Fleet {
    /// How many hosts, all like the scenario's.
    pub hosts: u32,
    /// vCPUs that are placed on a host for each of its cores under test.
    pub oversubscription: f64,
    /// Which host a VM comes to.
    pub placement: FleetPlacement,
    /// The VMs.
    pub vms: Vms,
    /// The P95 response time that VMs with users must not exceed, us.
    pub slo_p95_us: u64,
}

/// Which host a VM comes to, of those that have room for it.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum FleetPlacement {
    /// The first.
    #[default]
    FirstFit,
    /// The one that has least room.
    BestFit,
    /// The one that has most.
    WorstFit,
}

/// Where VMs come from.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub enum Vms {
    /// From a trace in the format of the Azure public dataset.
    Trace {
        /// The table of VMs; a path from the scenario's folder on.
        table: String,
        /// The readings of their CPUs, in order; without them, each VM's average holds.
        readings: Vec<String>,
        /// Of so many VMs one is taken; 1 takes all.
        one_of: u32,
        /// From when on, since the trace's beginning.
        from: Nanos,
        /// For so long.
        lasts: Nanos,
    },
    /// Drawn from the marginals that are published of it.
    Generated {
        /// How many there are at a time, in the mean.
        count: u32,
        /// Over so long.
        lasts: Nanos,
    },
}

impl Vms {
    /// How long they are watched.
    pub fn lasts(&self) -> Nanos {
        match self {
            Vms::Trace { lasts, .. } | Vms::Generated { lasts, .. } => *lasts,
        }
    }
}
