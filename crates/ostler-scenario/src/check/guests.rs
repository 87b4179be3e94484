//! Guests: what there is of each.

use std::collections::BTreeSet;

use ostler_model::Class;

use super::raw::{RawGuest, RawScenario};
use super::{Checker, ScenarioError};
use crate::{Guest, Host};

/// Guests of a host.
const GUESTS_MAX: u32 = 10_000;

impl Checker<'_> {
    pub(super) fn guests(
        &self,
        raw: &RawScenario,
        host: &Host,
        fleet: bool,
    ) -> Result<Vec<Guest>, ScenarioError> {
        match (raw.guest.first(), fleet) {
            (None, false) => {
                return self.refuse(&raw.name, "a world without guests", "add a [[guest]]");
            }
            (Some(guest), true) => {
                return self.refuse(
                    &guest.name,
                    "a guest beside a fleet, whose VMs are the guests",
                    "remove the [[guest]] or the [fleet]",
                );
            }
            _ => {}
        }
        let limits = self.world.limits();
        let mut names = BTreeSet::new();
        let mut guests: Vec<Guest> = Vec::new();
        for guest in &raw.guest {
            self.name(&guest.name, limits.name_max)?;
            let count = self.count(guest, names.len())?;
            let vcpus = self.between(&guest.vcpus, "vcpus", 1, host.cpus.count())?;
            let queues = self.between(&guest.queues, "queues", 1, vcpus.min(limits.queues_max))?;
            let memory_mib = self.mebibytes(&guest.memory)?;
            if memory_mib < limits.guest_memory_min_mib {
                return self.refuse(
                    &guest.memory,
                    format!("{memory_mib} MiB is too little to boot"),
                    format!("give it at least {}M", limits.guest_memory_min_mib),
                );
            }
            let slo_p95_us = guest
                .slo_p95
                .as_ref()
                .map(|slo| self.micros(slo))
                .transpose()?;
            match (guest.class.get_ref(), &guest.slo_p95) {
                (Class::LatencyCritical, None) => {
                    return self.refuse(
                        &guest.class,
                        "a latency-critical guest without an objective",
                        "add `slo_p95 = \"20ms\"`",
                    );
                }
                (Class::BestEffort | Class::Unmanaged, Some(slo)) => {
                    return self.refuse(
                        slo,
                        "an objective for a guest that isn't latency-critical",
                        "remove it or change the class",
                    );
                }
                _ => {}
            }
            let taken = Guest {
                name: guest.name.get_ref().clone(),
                class: *guest.class.get_ref(),
                count,
                vcpus,
                memory_mib,
                queues,
                workload: *guest.workload.get_ref(),
                program: self.program(guest, vcpus)?,
                wakeups: self.wakeups(guest)?,
                halt_poll: self.halt_poll(guest)?,
                heat: self.heat(guest, memory_mib)?,
                slo_p95_us,
                in_turn: false, // loads decide
            };
            if let Some(twice) = taken.names().find(|name| !names.insert(name.clone())) {
                return self.refuse(
                    &guest.name,
                    format!("two guests are named `{twice}`"),
                    "give each its own name",
                );
            }
            guests.push(taken);
        }
        self.chains(raw, &guests)?;
        let needs = |guest: &Guest| {
            let own = guest.memory_mib + guest.workload.disk_mib().unwrap_or(0);
            own.saturating_mul(u64::from(guest.count))
        };
        let wanted = guests
            .iter()
            .map(needs)
            .fold(limits.host_memory_min_mib, u64::saturating_add);
        let there = host.nodes.iter().map(|n| n.memory_mib);
        let there = there.fold(0, u64::saturating_add);
        if let (true, Some(last)) = (wanted > there, raw.guest.last()) {
            return self.refuse(
                &last.memory,
                format!("guests and host need {wanted} MiB of the host's {there}"),
                "give the host more or the guests less",
            );
        }
        Ok(guests)
    }

    fn count(&self, guest: &RawGuest, others: usize) -> Result<u32, ScenarioError> {
        let count = *guest.count.get_ref();
        if count == 1 {
            return Ok(1);
        }
        self.only_simulated(&guest.count, "a guest many times over")?;
        let others = u32::try_from(others).unwrap_or(GUESTS_MAX);
        let room = GUESTS_MAX.saturating_sub(others);
        self.between(&guest.count, "count", 1, room)
    }
}
