//! A scenario's cells, run and told: each policy under each load in each round, in worlds of their own.
//!
//! ```text
//!  Scenario -> Run (checked: every policy's configuration, every guest) -> for each cell, in any order and on any thread:
//!      world at rest -> steward begins -> settle_s -> load, faults -> drain -> events, as the lab's host tells them
//! ```
//!
//! Cells know nothing of each other, and each is drawn from its own seed, which is the same for all policies of a round: so they can run at
//! once, be run again alone, and be gone on with after a run that was cut off. What comes of the events is `ostler-outcome`'s to say.
//!
//! | part | what it is |
//! |---|---|
//! | `cell` | the time of a cell: what is to happen when |
//! | `watch` | what is counted and sampled |
//! | `faults` | what goes wrong at a time |
//! | `all` | many cells on all cores |

mod all;
mod cell;
mod faults;
mod watch;

use std::collections::BTreeMap;

use ostler_model::{Bytes, Facts, Intent, MemoryFacts, MemoryNode, Nanos, NicFacts, NodeId};
use ostler_outcome::events::{Cell, Event, Stamped};
use ostler_outcome::order;
use ostler_outcome::report::Clock;
use ostler_record::Period;
use ostler_scenario::Scenario;

pub use all::all;

use crate::host::{HostCosts, Kernel};
use crate::scenario::{self, NoPolicy, PolicyError};
use crate::tenants::{NIC, TenantsError};
use crate::world::WorldError;

/// What can't be run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A policy's steward refuses what it is told.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The guests can't be.
    #[error(transparent)]
    Tenants(#[from] TenantsError),
    /// A world can't go on.
    #[error("{cell}: {error}")]
    World {
        /// Where.
        cell: String,
        /// Why.
        error: WorldError,
    },
    /// Its host and VMs are a fleet's.
    #[error("scenario `{0}` has a fleet; run it as one")]
    Fleet(String),
    /// A policy that was asked for can't be run.
    #[error(transparent)]
    NoPolicy(#[from] NoPolicy),
}

/// How a run is watched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watch {
    /// The books of messages, threads and cores are kept a second time, and what differs is told as a problem of its cell. Costs half of the speed.
    pub books: bool,
    /// Each period of the steward is told, as a record has it ([`Meanwhile::Period`]).
    pub periods: bool,
    /// What Linux's tracer would write is told ([`Meanwhile::Trace`]).
    pub trace: bool,
}

/// A scenario that can be run: everything in it was looked at.
#[derive(Debug)]
pub struct Run {
    scenario: Scenario,
    facts: Facts,
    intents: BTreeMap<String, Option<Intent>>,
    seed: u64,
    watch: Watch,
}

impl Run {
    /// Checks all that a scenario's cells need.
    pub fn new(scenario: Scenario, seed: u64, watch: Watch) -> Result<Run, RunError> {
        if scenario.fleet.is_some() {
            return Err(RunError::Fleet(scenario.name));
        }
        let facts = facts(&scenario);
        let mut intents = BTreeMap::new();
        for policy in &scenario.policies {
            let intent = scenario::intent(&scenario, policy, &facts)?;
            intents.insert(policy.name.clone(), intent);
        }
        let run = Run {
            scenario,
            facts,
            intents,
            seed,
            watch,
        };
        for (load, _) in run.scenario.loads.iter().enumerate() {
            let cell = scenario::CellLoad {
                load,
                start: Nanos::ZERO,
                steward: true,
                seed,
            };
            let tenants = scenario::tenants(&run.scenario, cell);
            crate::tenants::Tenants::new(tenants.spec, &run.facts.topology)?;
        }
        Ok(run)
    }

    /// The same with these policies alone, and what others are compared with if that is the first of them.
    pub fn only(mut self, policies: &[String]) -> Result<Run, RunError> {
        scenario::only(&mut self.scenario, policies)?;
        Ok(self)
    }

    /// What its host is.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Whose scheduler its host has.
    fn kernel(&self) -> Kernel {
        let host = &self.scenario.host;
        HostCosts::new(host.cpus.count(), host.instruction_ns).kernel
    }

    /// What is run.
    pub fn scenario(&self) -> &Scenario {
        &self.scenario
    }

    /// What it is drawn from.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Its cells, in order.
    pub fn cells(&self) -> Vec<Cell> {
        order::cells(&self.scenario)
    }

    /// What a run says before its cells. `revision` and `started` are for whoever reads it: the world knows no clock.
    pub fn begins(&self, revision: &str, started: &str) -> [Stamped; 3] {
        let event = |event| Stamped { t_ms: 0, event };
        [
            event(Event::Run {
                revision: revision.to_owned(),
                started: started.to_owned(),
                qemu: format!("none: simulated from seed {}", self.seed),
                clock: Clock::Simulated,
            }),
            event(Event::Simulates {
                scenario: self.scenario.to_toml(),
                seed: self.seed,
                audited: self.watch.books,
            }),
            event(Event::Up {
                kernel: format!("none: EEVDF as of {}", self.kernel()),
                cpus: self.scenario.host.cpus.count(),
            }),
        ]
    }

    /// Runs a cell. `on` is told what happens meanwhile.
    pub fn cell(&self, cell: &Cell, on: &mut dyn FnMut(Meanwhile)) -> Result<CellRun, RunError> {
        cell::run(self, cell, on)
    }
}

/// What a cell tells while it is run.
#[derive(Debug)]
pub enum Meanwhile {
    /// How far it is, 0 to 1; now and then.
    Done(f64),
    /// Its steward has made a decision; if that is wanted.
    Period(Box<Period>),
    /// So much was traced, in lines; if that is wanted.
    Trace(String),
}

/// What came of a cell.
#[derive(Clone, Debug, PartialEq)]
pub struct CellRun {
    /// What its host told, from its beginning to its end.
    pub told: Vec<Stamped>,
    /// How much happened in its world.
    pub events: u64,
}

/// What a scenario's host is, as a steward finds it.
pub(crate) fn facts(scenario: &Scenario) -> Facts {
    let host = &scenario.host;
    let nodes = (0..).zip(scenario::nodes(host));
    Facts {
        kernel: "6.12.0".into(),
        topology: scenario::topology(host),
        memory: MemoryFacts {
            nodes: nodes
                .map(|(node, memory)| MemoryNode {
                    node: NodeId(node),
                    bytes: Bytes(memory.bytes),
                    far: !memory.local,
                    latency: Some(crate::round::nanos(memory.latency_ns)),
                    bytes_per_s: Some(crate::round::whole(memory.bytes_per_s)),
                })
                .collect(),
            distances: Vec::new(),
        },
        nics: vec![NicFacts {
            name: NIC.to_owned(),
            queues_max: host.pnic_queues,
            rss_settable: true,
            node: Some(NodeId(0)),
        }],
        ..Facts::default()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn guests_whose_kernels_go_by_hints_have_them_and_no_others() {
        for (wakeups, wanted) in [
            ("hvm", false),
            ("pvm", false),
            ("pload", true),
            ("cgsched", true),
        ] {
            let text = format!(
                r#"
name = "hinted"
summary = "A guest that goes by what it is told."
[host]
cores = 4
memory = "2G"
pnic_queues = 1
[[guest]]
name = "g"
class = "best-effort"
vcpus = 2
memory = "128M"
workload = "spin"
wakeups = "{wakeups}"
[[load]]
guest = "g"
steps = [{{ rate = 0, seconds = 1 }}]
[steward.hints]
enabled = true
[[policy]]
name = "p"
[policy.steward.partition]
policy = "time-sharing"
"#
            );
            let scenario = scenario::parse(&text, Path::new("hinted.toml")).unwrap();
            let run = Run::new(scenario, 1, Watch::default()).unwrap();
            let intent = run.intents["p"].as_ref().unwrap();
            assert!(intent.hints.is_some());
            let hinted: Vec<_> = intent
                .guests
                .iter()
                .map(|guest| guest.terms.hints)
                .collect();
            assert_eq!(hinted, [wanted], "{wakeups}");
        }
    }
}
