//! A fleet: hosts of one kind, and VMs that come to them, stay for a while and go, as a cloud's trace has it.
//!
//! ```text
//!  trace or generator -> demand (who is there when, and how busy) -> place (which host has room) -> each host by itself, under each policy -> VMs' response times
//! ```
//!
//! Hosts know nothing of each other once VMs are placed, so they run on all cores, and the outcome is the same on one. VMs are placed by what they
//! ask for, as clouds do, and not by what they use: the same placement for all policies, which are compared host by host.
//!
//! **What a VM does** a trace doesn't tell but for how busy it is. One with users ([`Category::Interactive`]) answers requests of
//! [`REQUEST`](crate::costs::fleet::REQUEST) each, at random times and as many of them as make it as busy as its readings say, and has the fleet's objective. All
//! others work off pieces of [`PIECE`](crate::costs::fleet::PIECE) likewise, and have none. So what comes out is: whose users wait too long on a host that is
//! shared like this.
//!
//! | part | what it is |
//! |---|---|
//! | `demand` | VMs, when they are there and how busy |
//! | `place` | which host each comes to |
//! | `host` | a host's time |
//!
//! What came of it is `ostler_outcome::fleet`'s.

#![expect(
    clippy::cast_possible_truncation,
    reason = "hosts and VMs are numbered in 32 bits"
)]

mod demand;
mod host;
mod place;

use std::num::NonZeroUsize;
use std::ops::ControlFlow;

use ostler_outcome::fleet::HostOutcome;
use ostler_scenario::{Policy, Scenario};

pub use demand::{Demand, VmDemand};
pub use place::{Placed, Room, place};

use crate::parallel::in_turn;
use crate::scenario::{self, NoPolicy, PolicyError};
use crate::tenants::TenantsError;
use crate::world::WorldError;

/// What a fleet can't be run for.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// The scenario has none.
    #[error("scenario `{0}` has no [fleet]; run its cells")]
    None(String),
    /// A policy's steward refuses what it is told.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A policy that was asked for can't be run.
    #[error(transparent)]
    NoPolicy(#[from] NoPolicy),
    /// VMs can't be guests.
    #[error(transparent)]
    Tenants(#[from] TenantsError),
    /// A host's world can't go on.
    #[error("host {host} under {policy}: {error}")]
    World {
        /// Which.
        host: u32,
        /// Under which policy.
        policy: String,
        /// Why.
        error: WorldError,
    },
}

/// A fleet that can be run: VMs are placed, and every policy's configuration was looked at.
pub struct Fleet {
    scenario: Scenario,
    demand: Demand,
    placed: Placed,
    seed: u64,
    books: bool,
}

impl Fleet {
    /// Places VMs on hosts.
    pub fn new(scenario: Scenario, demand: Demand, seed: u64) -> Result<Fleet, FleetError> {
        let Some(fleet) = &scenario.fleet else {
            return Err(FleetError::None(scenario.name));
        };
        let facts = crate::run::facts(&scenario);
        for policy in &scenario.policies {
            scenario::intent(&scenario, policy, &facts)?;
        }
        let memory: u64 = scenario.host.nodes.iter().map(|n| n.memory_mib << 20).sum();
        let room = Room {
            vcpus: fleet.oversubscription * f64::from(scenario.host.under_test.len()),
            bytes: memory,
        };
        let placed = place(&demand, fleet.hosts, room, fleet.placement);
        Ok(Fleet {
            scenario,
            demand,
            placed,
            seed,
            books: false,
        })
    }

    /// The same with the books of messages, threads and cores kept a second time on each host, or not; what differs is told of that host. Costs half of the speed.
    #[must_use]
    pub fn audited(self, books: bool) -> Fleet {
        Fleet { books, ..self }
    }

    /// What is run.
    pub fn scenario(&self) -> &Scenario {
        &self.scenario
    }

    /// Where VMs are.
    pub fn placed(&self) -> &Placed {
        &self.placed
    }

    /// Runs all hosts under a policy on so many threads; `on` is told now and then how many hosts' seconds have passed since it was told last.
    pub fn run(
        &self,
        policy: &Policy,
        threads: NonZeroUsize,
        on: &(dyn Fn(f64) + Sync),
    ) -> Result<Vec<HostOutcome>, FleetError> {
        let hosts: Vec<u32> = (0..self.placed.hosts.len() as u32).collect();
        let mut outcomes = Vec::with_capacity(hosts.len());
        self.each(policy, &hosts, threads, on, &mut |outcome| {
            outcomes.push(outcome);
            ControlFlow::Continue(())
        })?;
        Ok(outcomes)
    }

    /// Runs these hosts, likewise, and hands over what came of each in turn, as soon as it is over; `each` may have had enough.
    pub fn each(
        &self,
        policy: &Policy,
        hosts: &[u32],
        threads: NonZeroUsize,
        on: &(dyn Fn(f64) + Sync),
        each: &mut dyn FnMut(HostOutcome) -> ControlFlow<()>,
    ) -> Result<(), FleetError> {
        let mut failed = Ok(());
        in_turn(
            hosts.len(),
            threads,
            &|at| host::run(self, hosts[at], policy, on),
            &mut |_, came| match came {
                Ok(came) => each(came),
                Err(error) => {
                    failed = Err(error);
                    ControlFlow::Break(())
                }
            },
        );
        failed
    }
}
