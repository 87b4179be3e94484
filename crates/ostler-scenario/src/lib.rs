//! A scenario: a world to try policies in. The lab and the simulator read the same files: they say what there is and what
//! happens, not how it is carried out. Who carries it out is a [`World`], which is asked what only it can know.
//!
//! A file is refused with the line that is wrong and the remedy; unknown keys are refused too, since a key that does
//! nothing is a wish that silently isn't granted.
//!
//! Depends on `ostler-model` for core sets, classes and the steward's defaults.

mod check;
mod fault;
mod fleet;
mod guest;
mod host;
mod load;
mod policy;
mod program;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod world;
mod write;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use check::{ScenarioError, merge};
pub use fault::{Fault, FaultKind, TimedFault, TimedKind};
pub use fleet::{Fleet, FleetPlacement, Vms};
pub use guest::{Guest, Service, Workload};
pub use host::{Caches, Cpus, Host, Node};
pub use load::{Arrivals, KEYS, Load, Step};
pub use policy::{Expectation, HostScheduler, PageTiering, Policy, Weights};
pub use program::{
    Barrier, Files, Forward, Heat, HeatPhase, Lock, MPKI, Program, Serve, Time, Wait, Wakeups,
};
pub use world::{Limits, World};

/// A checked scenario.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Scenario {
    /// Its name, for folders and reports.
    pub name: String,
    /// What it shows, in a sentence.
    pub summary: String,
    /// How often each policy is tried; rounds are interleaved, so that a slow minute of the real machine hits all alike.
    pub rounds: u32,
    /// Seconds between the start of a policy and the first load.
    pub settle_s: f64,
    /// The host; with a fleet, each of its hosts.
    pub host: Host,
    /// Its guests, in the order of the file; none with a fleet.
    pub guests: Vec<Guest>,
    /// What is asked of the guests; one after the other within a round.
    pub loads: Vec<Load>,
    /// The policies to compare.
    pub policies: Vec<Policy>,
    /// Those of the file that this world can't try, and nothing is expected of: the simulator has no kernel that a `host_scheduler` could be loaded into.
    #[serde(default)]
    pub left_out: Vec<Policy>,
    /// What must come of it; a run that shows something else fails.
    pub expectations: Vec<Expectation>,
    /// What is done to the steward and its guests once the cells are over, one after the other.
    #[serde(default)]
    pub faults: Vec<Fault>,
    /// What goes wrong in every cell.
    #[serde(default)]
    pub timed_faults: Vec<TimedFault>,
    /// Several hosts, and VMs that come to them.
    #[serde(default)]
    pub fleet: Option<Fleet>,
}

impl Scenario {
    /// Reads a file and checks it for a world.
    pub fn load(path: &Path, world: &dyn World) -> Result<Scenario, ScenarioError> {
        let bytes = std::fs::read(path).map_err(|source| ScenarioError::Read {
            path: path.to_owned(),
            source,
        })?;
        // Bytes that are no UTF-8 are shown as such where they stand.
        Scenario::parse(&String::from_utf8_lossy(&bytes), path, world)
    }

    /// Checks a scenario's text for a world; `path` is for messages.
    pub fn parse(text: &str, path: &Path, world: &dyn World) -> Result<Scenario, ScenarioError> {
        check::parse(text, PathBuf::from(path), world)
    }

    /// The text of a file that says the same: what [`Scenario::parse`] makes of it is this scenario again.
    pub fn to_toml(&self) -> String {
        write::text(self)
    }

    /// Seconds that all cells take if everything goes well.
    pub fn expected_s(&self) -> f64 {
        let loads: f64 = self.loads.iter().map(Load::seconds).sum();
        let cells = f64::from(self.rounds) * self.policies.len() as f64;
        let faults = self.faults.iter();
        let faults: f64 = faults
            .map(|fault| fault.kind.expected_s() * f64::from(fault.times))
            .sum();
        cells * (loads + (self.settle_s + 3.0) * self.loads.len() as f64) + faults
    }
}
