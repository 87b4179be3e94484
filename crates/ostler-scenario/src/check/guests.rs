//! Guests: what there is of each.

use std::collections::BTreeSet;

use ostler_model::{Class, CpuSet};

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
                cpus: self.cpus(guest, host, count)?,
                memory_waits: self.memory_waits(guest)?,
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

    /// The cores that each of them stays on.
    fn cpus(
        &self,
        guest: &RawGuest,
        host: &Host,
        count: u32,
    ) -> Result<Vec<CpuSet>, ScenarioError> {
        let Some(cpus) = &guest.cpus else {
            return Ok(Vec::new());
        };
        self.only_simulated(cpus, "the cores that a guest stays on")?;
        if *guest.class.get_ref() != Class::LatencyCritical {
            return self.refuse(
                cpus,
                "cores for a guest that isn't latency-critical, which a steward has where there is room",
                "take `cpus` out, or change the class",
            );
        }
        let sets = cpus.get_ref();
        if sets.len() != count as usize {
            return self.refuse(
                cpus,
                format!("{} sets of cores for {count} guests", sets.len()),
                "write one for each, like [\"0-1\", \"2-3\"]",
            );
        }
        let tested = host.under_test;
        let elsewhere = |set: &&CpuSet| set.is_empty() || !set.is_subset(&tested);
        if let Some(set) = sets.iter().find(elsewhere) {
            return self.refuse(
                cpus,
                format!("`{set}` isn't within the cores under test, {tested}"),
                "write some of these for each guest",
            );
        }
        Ok(sets.clone())
    }

    /// The share of its time that it waits for memory.
    fn memory_waits(&self, guest: &RawGuest) -> Result<f64, ScenarioError> {
        let Some(share) = &guest.memory_waits else {
            return Ok(0.0);
        };
        self.only_simulated(share, "how long vCPUs wait for memory")?;
        self.share(share, "memory_waits", true)
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
