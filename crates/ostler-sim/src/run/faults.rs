//! What goes wrong at a time.

use std::collections::BTreeMap;

use ostler_model::Nanos;
use ostler_scenario::{Scenario, TimedKind};

use crate::tenants::{Agent, Tenants};
use crate::work::Effects;

/// A fault that begins, or ends.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub at: Nanos,
    begins: bool,
    kind: TimedKind,
}

/// All that goes wrong in a cell whose load begins at a time, in order. Hosts fail in fleets alone.
pub(super) fn changes(scenario: &Scenario, start: Nanos) -> Vec<Change> {
    let mut changes = Vec::new();
    for fault in &scenario.timed_faults {
        let at = start.saturating_add(fault.at);
        changes.push(Change {
            at,
            begins: true,
            kind: fault.kind.clone(),
        });
        if let Some(lasts) = fault.lasts {
            changes.push(Change {
                at: at.saturating_add(lasts),
                begins: false,
                kind: fault.kind.clone(),
            });
        }
    }
    changes.sort_by_key(|change| change.at);
    changes
}

impl Change {
    /// Makes it so. `numbers` are the guests of a scenario's name.
    pub fn happen(
        &self,
        tenants: &mut Tenants,
        numbers: &BTreeMap<String, Vec<u32>>,
        now: Nanos,
        out: &mut Effects,
    ) {
        let of = |name: &String| numbers.get(name).into_iter().flatten().copied();
        match &self.kind {
            TimedKind::LostInterrupts { guest: None, share } => {
                tenants.faults.nic_interrupt = if self.begins { *share } else { 0.0 };
            }
            TimedKind::LostInterrupts {
                guest: Some(guest),
                share,
            } => {
                for number in of(guest) {
                    if self.begins {
                        tenants.faults.guest_interrupts.insert(number, *share);
                    } else {
                        tenants.faults.guest_interrupts.remove(&number);
                    }
                }
            }
            TimedKind::GuestDies { guest } => {
                of(guest).for_each(|number| tenants.kill(number, now, out));
            }
            TimedKind::AgentLies { guest } | TimedKind::AgentSilent { guest } => {
                let agent = match (&self.kind, self.begins) {
                    (_, false) => Agent::Honest,
                    (TimedKind::AgentLies { .. }, _) => Agent::Lying,
                    _ => Agent::Silent,
                };
                for number in of(guest) {
                    tenants.faults.agents.insert(number, agent);
                }
            }
            TimedKind::HostFails { .. } => {}
        }
    }
}
