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
use ostler_scenario::{Caches, Host, Limits, Load, Policy, Scenario, ScenarioError, World};

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

/// A policy that was asked for, and can't be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPolicy {
    /// Nobody is named so.
    #[error("scenario `{scenario}` has no policy `{policy}`; it has {there}")]
    Unknown {
        /// The scenario.
        scenario: String,
        /// What was asked for.
        policy: String,
        /// What there is.
        there: String,
    },
    /// It is the lab's alone.
    #[error(
        "policy `{policy}` of scenario `{scenario}` can't be simulated: its scheduler, {scheduler}, is a program that is loaded into a kernel, and a simulated host \
        has none; run it by `ostler lab run`, or others here: {there}"
    )]
    LeftOut {
        /// The scenario.
        scenario: String,
        /// What was asked for.
        policy: String,
        /// What it would need a kernel for.
        scheduler: String,
        /// What can be.
        there: String,
    },
}

/// Has a scenario try these policies alone, and expect something of them alone; without any, all.
pub fn only(scenario: &mut Scenario, policies: &[String]) -> Result<(), NoPolicy> {
    for name in policies {
        there_is(scenario, name)?;
    }
    if policies.is_empty() {
        return Ok(());
    }
    let named = |policy: &str| policies.iter().any(|name| name == policy);
    scenario.policies.retain(|policy| named(&policy.name));
    scenario.left_out.clear();
    scenario
        .expectations
        .retain(|expected| named(&expected.policy) && expected.of.as_deref().is_none_or(named));
    Ok(())
}

/// Whether a policy of that name can be simulated.
fn there_is(scenario: &Scenario, name: &str) -> Result<(), NoPolicy> {
    let named = |policy: &&Policy| policy.name == name;
    if scenario.policies.iter().any(|policy| named(&policy)) {
        return Ok(());
    }
    let mut there: Vec<_> = scenario.policies.iter().map(|p| p.name.as_str()).collect();
    if there.is_empty() {
        there.push("none");
    }
    let (scenario_name, policy) = (scenario.name.clone(), name.to_owned());
    let there = there.join(", ");
    let left_out = scenario.left_out.iter().find(named);
    Err(match left_out.and_then(Policy::scheduler) {
        Some(scheduler) => NoPolicy::LeftOut {
            scenario: scenario_name,
            policy,
            scheduler,
            there,
        },
        None => NoPolicy::Unknown {
            scenario: scenario_name,
            policy,
            there,
        },
    })
}

/// What a scenario has that isn't simulated, in sentences: what is the lab's alone, and what can't be yet.
pub fn left_out(scenario: &Scenario) -> Vec<String> {
    let mut said = Vec::new();
    for policy in &scenario.left_out {
        let scheduler = policy.scheduler().unwrap_or_default();
        said.push(format!(
            "policy `{}` is the lab's and is left out, as its scheduler, {scheduler}, is a program that is loaded into a kernel",
            policy.name
        ));
    }
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
    if scenario.loads.iter().any(Load::says_more) {
        said.push(
            "words for the load generator (`args`) but for `--depth` and `--keys` are the lab's and are left out"
                .to_owned(),
        );
    }
    said
}
