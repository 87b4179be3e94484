//! What is tried in the world, and what must come of it: policies, faults, expectations.

use std::collections::BTreeSet;

use ostler_model::Nanos;
use toml::Spanned;

use super::raw::{RawFault, RawPages, RawScenario};
use super::{Checker, NAME_MAX, ScenarioError, merge};
use crate::{
    Expectation, Fault, FaultKind, Fleet, Guest, Host, HostScheduler, PageTiering, Policy,
    TimedFault, TimedKind, Weights,
};

impl Checker<'_> {
    pub(super) fn policies(
        &self,
        raw: &RawScenario,
        host: &Host,
    ) -> Result<Vec<Policy>, ScenarioError> {
        let mut names = BTreeSet::new();
        let mut policies = Vec::new();
        for policy in &raw.policy {
            self.name(&policy.name, NAME_MAX)?;
            if !names.insert(policy.name.get_ref()) {
                return self.refuse(
                    &policy.name,
                    format!("two policies are named `{}`", policy.name.get_ref()),
                    "give each its own name",
                );
            }
            let pnic_queues = policy
                .pnic_queues
                .as_ref()
                .map(|queues| self.between(queues, "pnic_queues", 1, host.pnic_queues))
                .transpose()?;
            let steward = policy.steward.as_ref().map(|own| {
                let mut merged = raw.steward.clone().unwrap_or_default();
                merge(&mut merged, own);
                merged
            });
            let checked = Policy {
                name: policy.name.get_ref().clone(),
                about: policy.about.clone(),
                steward,
                pnic_queues,
                host_scheduler: None,
                pages: None,
                weights: match &policy.weights {
                    Some(weights) => self.weights(weights)?,
                    None => Weights::default(),
                },
            };
            let pages = policy.pages.as_ref();
            let pages = pages
                .map(|pages| self.pages(pages, &checked, host, raw.fleet.is_some()))
                .transpose()?;
            let host_scheduler = policy.host_scheduler.as_ref();
            let host_scheduler = host_scheduler
                .map(|scheduler| self.host_scheduler(scheduler, &checked))
                .transpose()?;
            policies.push(Policy {
                host_scheduler,
                pages,
                ..checked
            });
        }
        Ok(policies)
    }

    /// What cgroups weigh as they are found.
    fn weights(&self, told: &Spanned<Weights>) -> Result<Weights, ScenarioError> {
        if !self.world.limits().simulates && *told.get_ref() != Weights::default() {
            return self.refuse(
                told,
                "that guests' cgroups weigh anything but the usual is simulated only".to_owned(),
                "leave `weights` out, or run the scenario by `ostler sim`",
            );
        }
        Ok(*told.get_ref())
    }

    /// Pages that move by their heat.
    fn pages(
        &self,
        told: &Spanned<RawPages>,
        policy: &Policy,
        host: &Host,
        fleet: bool,
    ) -> Result<PageTiering, ScenarioError> {
        if !self.world.limits().simulates {
            return self.refuse(
                told,
                "`pages` is simulated only".to_owned(),
                "leave it out, or run the scenario by `ostler sim`",
            );
        }
        if fleet {
            return self.refuse(
                told,
                "where a fleet's VMs have their memory isn't simulated, so `pages` has nothing to move".to_owned(),
                "leave it out, or simulate a host with guests",
            );
        }
        if !host.nodes.iter().any(|node| node.cpus.is_empty()) {
            return self.refuse(
                told,
                "`pages` moves memory to a far node, and the host has none".to_owned(),
                "leave it out, or add a [[host.node]] without cpus",
            );
        }
        let tier = policy.steward.as_ref().and_then(|own| own.get("tier"));
        let enabled = tier.and_then(|tier| tier.get("enabled")?.as_bool());
        if tier.is_some() && enabled != Some(false) {
            return self.refuse(
                told,
                "`pages` would move what the steward's `[tier]` moves".to_owned(),
                "leave out the one or the other",
            );
        }
        let usual = PageTiering::default();
        let RawPages {
            demote,
            promote,
            rate,
        } = told.get_ref();
        let share = |value: &Option<Spanned<f64>>, key: &str, usual: f64| match value {
            Some(value) => self.share(value, key, false),
            None => Ok(usual),
        };
        let demote_at = share(demote, "demote", usual.demote)?;
        let promote_at = share(promote, "promote", usual.promote.min(demote_at))?;
        if let Some(value) = promote.as_ref().filter(|_| promote_at > demote_at) {
            return self.refuse(
                value,
                format!("nothing would come near: cold pages make room for {demote_at} of near memory, and it is to be more than {promote_at}"),
                "write a `promote` that isn't above `demote`",
            );
        }
        Ok(PageTiering {
            demote: demote_at,
            promote: promote_at,
            rate: match rate {
                Some(rate) => self.bytes(rate)?,
                None => usual.rate,
            },
        })
    }

    /// A program that is published, for a kernel that has no other scheduler then.
    fn host_scheduler(
        &self,
        told: &Spanned<String>,
        policy: &Policy,
    ) -> Result<HostScheduler, ScenarioError> {
        let name = told.get_ref();
        let Some(scheduler) = HostScheduler::parse(name) else {
            return self.refuse(
                told,
                format!("`{name}` is no crate and version"),
                "write it as cargo does, as in \"scx_bpfland@1.1.4\"",
            );
        };
        if policy.boosts() {
            return self.refuse(
                told,
                format!("`{name}` would be there beside the steward's own scheduler, and a kernel has one at a time"),
                "leave out `host_scheduler`, or the steward's `[boost]`",
            );
        }
        Ok(scheduler)
    }

    pub(super) fn expectations(
        &self,
        raw: &RawScenario,
        policies: &[Policy],
    ) -> Result<Vec<Expectation>, ScenarioError> {
        for expected in &raw.expect {
            let Expectation {
                figure,
                policy,
                of,
                of_figure,
                at_least,
                at_most,
                same_slo,
            } = expected.get_ref();
            let known = self.world.figures();
            for figure in [Some(figure), of_figure.as_ref()].into_iter().flatten() {
                if !known.contains(figure) {
                    return self.refuse(
                        expected,
                        format!("there is no figure `{figure}`"),
                        format!("write one of {}", known.join(", ")),
                    );
                }
            }
            for name in [Some(policy), of.as_ref()].into_iter().flatten() {
                if !policies.iter().any(|p| p.name == *name) {
                    return self.refuse(
                        expected,
                        format!("no policy is named `{name}`"),
                        "name one of the scenario's policies",
                    );
                }
            }
            let bounds = [at_least, at_most].into_iter().flatten();
            if let Some(bound) = bounds.copied().find(|bound| !bound.is_finite()) {
                return self.refuse(
                    expected,
                    format!("a bound of {bound}"),
                    "write a number, or leave the bound out",
                );
            }
            if *same_slo && of.is_none() {
                return self.refuse(
                    expected,
                    "same_slo without another policy".to_owned(),
                    "write of = \"POLICY\", or leave same_slo out",
                );
            }
            if at_least.is_none() && at_most.is_none() {
                return self.refuse(
                    expected,
                    format!("nothing is expected of {policy}'s {figure}"),
                    "write at_least = N, at_most = N, or both",
                );
            }
        }
        Ok(raw.expect.iter().map(|e| e.get_ref().clone()).collect())
    }

    pub(super) fn faults(
        &self,
        raw: &RawScenario,
        guests: &[Guest],
    ) -> Result<Vec<Fault>, ScenarioError> {
        let mut faults = Vec::new();
        for fault in raw.fault.iter().filter(|fault| fault.at.is_none()) {
            let name = fault.kind.get_ref();
            if TimedKind::NAMES.contains(&name.as_str()) && name != "guest-dies" {
                return self.refuse(
                    &fault.kind,
                    format!("`{name}` without a time"),
                    "add at = \"10s\", since the beginning of each cell's load",
                );
            }
            self.none_of_timed(fault)?;
            let Some(&(_, kind)) = FaultKind::ALL.iter().find(|(known, _)| known == name) else {
                let known = FaultKind::ALL.iter().map(|(name, _)| *name);
                let timed = TimedKind::NAMES
                    .into_iter()
                    .filter(|name| self.world.limits().simulates && *name != "guest-dies");
                let known: Vec<_> = known.chain(timed).collect();
                return self.refuse(
                    &fault.kind,
                    format!("there is no fault `{name}`"),
                    format!("write one of {}", known.join(", ")),
                );
            };
            let most = if kind == FaultKind::Kill { 1000 } else { 10 };
            let times = self.between(&fault.times, "times", 1, most)?;
            let rate = self.between(&fault.rate, "rate", 0, 100_000)?;
            if rate > 0
                && !guests
                    .iter()
                    .any(|guest| guest.workload.service().is_some())
            {
                return self.refuse(
                    &fault.rate,
                    "no guest answers requests".to_owned(),
                    "leave the rate out, or add a [[guest]] with workload = \"memcached\"",
                );
            }
            if let Some(class) = kind.needs()
                && !guests.iter().any(|guest| guest.class == class)
            {
                return self.refuse(
                    &fault.kind,
                    format!("`{name}` is done to a {class} guest, and there is none"),
                    format!("add a [[guest]] with class = \"{class}\""),
                );
            }
            if let Some(programs) = &fault.programs
                && (kind != FaultKind::KernelTests || programs.get_ref().is_empty())
            {
                return self.refuse(
                    programs,
                    "`programs` names test programs, one at least, for `kernel-tests`".to_owned(),
                    "write their names, such as [\"kernel\"], or leave it out for all of them",
                );
            }
            let programs = fault.programs.as_ref();
            let mut steward = raw.steward.clone().unwrap_or_default();
            merge(&mut steward, &fault.steward.clone().unwrap_or_default());
            faults.push(Fault {
                kind,
                times,
                rate,
                programs: programs.map(|names| names.get_ref().clone()),
                steward,
            });
        }
        Ok(faults)
    }
    /// Refuses what only faults at a time have.
    fn none_of_timed(&self, fault: &RawFault) -> Result<(), ScenarioError> {
        let remedy = "remove it, or say when, like at = \"10s\"";
        let texts = [("lasts", &fault.lasts), ("guest", &fault.guest)];
        for (key, value) in texts {
            if let Some(value) = value {
                return self.refuse(value, format!("`{key}` of a fault without a time"), remedy);
            }
        }
        if let Some(host) = &fault.host {
            return self.refuse(host, "`host` of a fault without a time", remedy);
        }
        match &fault.share {
            Some(share) => self.refuse(share, "`share` of a fault without a time", remedy),
            None => Ok(()),
        }
    }

    /// Faults that happen in every cell at a time.
    pub(super) fn timed_faults(
        &self,
        raw: &RawScenario,
        guests: &[Guest],
        fleet: Option<&Fleet>,
    ) -> Result<Vec<TimedFault>, ScenarioError> {
        let mut faults = Vec::new();
        for fault in &raw.fault {
            let Some(at) = &fault.at else { continue };
            self.only_simulated(at, "a fault at a time")?;
            let at = self.nanos(at)?;
            let kind = self.timed_kind(fault, guests, fleet)?;
            let lasts = match &fault.lasts {
                Some(raw) => {
                    let for_good = [TimedKind::NAMES[1], TimedKind::NAMES[4]];
                    let lasts = self.nanos(raw)?;
                    if for_good.contains(&kind.name()) || lasts == Nanos::ZERO {
                        return self.refuse(
                            raw,
                            format!("`{}` that lasts {}", kind.name(), raw.get_ref()),
                            "leave `lasts` out: it holds until the cell's end",
                        );
                    }
                    Some(lasts)
                }
                None => None,
            };
            faults.push(TimedFault { at, lasts, kind });
        }
        Ok(faults)
    }

    fn timed_kind(
        &self,
        fault: &RawFault,
        guests: &[Guest],
        fleet: Option<&Fleet>,
    ) -> Result<TimedKind, ScenarioError> {
        let name = fault.kind.get_ref();
        if !TimedKind::NAMES.contains(&name.as_str()) {
            return self.refuse(
                &fault.kind,
                format!("there is no fault `{name}` that happens at a time"),
                format!(
                    "leave `at` out, or write one of {}",
                    TimedKind::NAMES.join(", ")
                ),
            );
        }
        let of_others = fault.programs.is_some() || fault.steward.is_some();
        if of_others || *fault.times.get_ref() != 1 || *fault.rate.get_ref() != 0 {
            return self.refuse(
                &fault.kind,
                format!("`{name}` at a time has neither times, rate, programs nor steward"),
                "remove them: it happens once in each cell, under the cell's load and policy",
            );
        }
        let losses = name == "lost-interrupts";
        let (takes_guest, takes_host) = (name != "host-fails", name == "host-fails");
        if let (Some(guest), false) = (&fault.guest, takes_guest) {
            return self.refuse(guest, format!("`guest` of `{name}`"), "remove it");
        }
        if let (Some(host), false) = (&fault.host, takes_host) {
            return self.refuse(host, format!("`host` of `{name}`"), "remove it");
        }
        if let (Some(share), false) = (&fault.share, losses) {
            return self.refuse(share, format!("`share` of `{name}`"), "remove it");
        }
        let guest = match &fault.guest {
            Some(guest) => Some(self.one_of(guest, guests)?),
            None if takes_guest && !losses => {
                return self.refuse(
                    &fault.kind,
                    format!("`{name}`, and to nobody"),
                    "add guest = \"NAME\"",
                );
            }
            None => None,
        };
        Ok(match (name.as_str(), guest) {
            ("guest-dies", Some(guest)) => TimedKind::GuestDies { guest },
            ("agent-lies", Some(guest)) => TimedKind::AgentLies { guest },
            ("agent-silent", Some(guest)) => TimedKind::AgentSilent { guest },
            ("host-fails", _) => TimedKind::HostFails {
                host: self.host_of_fleet(fault, fleet)?,
            },
            (_, guest) => TimedKind::LostInterrupts {
                guest,
                share: match &fault.share {
                    Some(share) => self.share(share, "share", true)?,
                    None => 1.0,
                },
            },
        })
    }

    /// A guest's name, or that of one of several alike.
    fn one_of(&self, name: &Spanned<String>, guests: &[Guest]) -> Result<String, ScenarioError> {
        let text = name.get_ref();
        let mut names = guests.iter().flat_map(Guest::names);
        if names.any(|known| known == *text) || guests.iter().any(|guest| guest.name == *text) {
            return Ok(text.clone());
        }
        let known: Vec<_> = guests.iter().map(|guest| guest.name.as_str()).collect();
        self.refuse(
            name,
            format!("no guest is named `{text}`"),
            format!(
                "there are: {}; of several alike, name all, or one by its number, like web-3",
                known.join(", ")
            ),
        )
    }

    fn host_of_fleet(&self, fault: &RawFault, fleet: Option<&Fleet>) -> Result<u32, ScenarioError> {
        let Some(fleet) = fleet else {
            return self.refuse(
                &fault.kind,
                "a host that fails, and no fleet that could go on",
                "add a [fleet], or have a guest die",
            );
        };
        match &fault.host {
            Some(host) => self.between(host, "host", 0, fleet.hosts - 1),
            None => self.refuse(
                &fault.kind,
                "a host fails, but which?",
                format!("add host = 0 to {}", fleet.hosts - 1),
            ),
        }
    }
}
