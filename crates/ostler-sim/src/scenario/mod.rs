//! Scenarios as worlds: from the files that the lab reads, too, to the plain values that worlds are made of.
//!
//! | part | what it makes |
//! |---|---|
//! | `hosts` | cores, caches, memory nodes, costs |
//! | `guests` | what guests' tasks do, and who asks them for what |
//! | `intent` | what a policy's steward is told |
//!
//! A scenario means here what it means in the lab: an instruction takes as long as it says, load comes from outside the cores under test, and without a
//! steward everything floats over these. What only the lab has, words for its load generator and faults of its steward, is left out
//! ([`left_out`]).

mod guests;
mod hosts;
mod intent;

use std::path::Path;

use ostler_machine_memory::Catalogue;
use ostler_scenario::{Caches, Host, Limits, Scenario, ScenarioError, World};

pub use guests::{CellLoad, TenantsOf, tenants};
pub use hosts::{nodes, topology};
pub use intent::{PolicyError, intent};

/// The simulator, as far as reading scenarios needs to know.
#[derive(Clone, Copy, Debug)]
pub struct Simulated;

impl World for Simulated {
    fn figures(&self) -> Vec<String> {
        ostler_outcome::gather::figure_names()
    }

    fn cycle_ns(&self, part: &str) -> Option<f64> {
        let catalogue = Catalogue::built_in();
        Some(1e3 / f64::from(catalogue.part(part)?.clock_mhz))
    }

    fn check_caches(&self, _host: &Host, caches: &Caches) -> Result<(), String> {
        let catalogue = Catalogue::built_in();
        if catalogue.part(&caches.part).is_some() {
            return Ok(());
        }
        let parts: Vec<_> = catalogue.parts().collect();
        Err(format!(
            "there is no such part; there are {}",
            parts.join(", ")
        ))
    }

    fn limits(&self) -> Limits {
        Limits {
            simulates: true,
            cpus_max: ostler_model::MAX_CPUS,
            pnic_queues_max: 256,
            queues_max: 64,
            name_max: 40,
            guest_memory_min_mib: 16,
            host_memory_min_mib: 64,
        }
    }
}

/// Reads a scenario's file for the simulator.
pub fn load(path: &Path) -> Result<Scenario, ScenarioError> {
    Scenario::load(path, &Simulated)
}

/// Reads what a scenario's file says; `path` is its name in errors, and its folder where other files are looked for.
pub fn parse(text: &str, path: &Path) -> Result<Scenario, ScenarioError> {
    Scenario::parse(text, path, &Simulated)
}

/// What a scenario has that isn't simulated, in sentences: what is the lab's alone, and what can't be yet.
pub fn left_out(scenario: &Scenario) -> Vec<String> {
    let mut said = Vec::new();
    if !scenario.faults.is_empty() {
        let mut kinds: Vec<_> = scenario.faults.iter().map(|f| f.kind.to_string()).collect();
        kinds.dedup();
        said.push(format!(
            "faults without a time are the lab's and are left out: {}",
            kinds.join(", ")
        ));
    }
    let hot: Vec<_> = scenario
        .guests
        .iter()
        .filter(|guest| guest.heat.is_some())
        .map(|guest| guest.name.as_str())
        .collect();
    let near = nodes(&scenario.host).iter().all(|node| node.local);
    if near && !hot.is_empty() {
        said.push(format!(
            "how guests use their memory (`heat`) makes no difference on a host without a far node, and is left out: {}",
            hot.join(", ")
        ));
    }
    if scenario.loads.iter().any(|load| !load.args.is_empty()) {
        said.push(
            "words for the load generator (`args`) are the lab's and are left out".to_owned(),
        );
    }
    said
}
