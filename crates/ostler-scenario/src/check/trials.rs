//! What is tried in the world, and what must come of it: policies, faults, expectations.

use std::collections::BTreeSet;

use super::super::{Expectation, Fault, FaultKind, Guest, Host, Policy};
use super::raw::RawScenario;
use super::{Checker, ScenarioError, merge};

impl Checker<'_> {
    pub(super) fn policies(
        &self,
        raw: &RawScenario,
        host: &Host,
    ) -> Result<Vec<Policy>, ScenarioError> {
        let mut names = BTreeSet::new();
        let mut policies = Vec::new();
        for policy in &raw.policy {
            self.name(&policy.name, 40)?;
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
            policies.push(Policy {
                name: policy.name.get_ref().clone(),
                about: policy.about.clone(),
                steward,
                pnic_queues,
            });
        }
        Ok(policies)
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
        for fault in &raw.fault {
            let name = fault.kind.get_ref();
            let Some(&(_, kind)) = FaultKind::ALL.iter().find(|(known, _)| known == name) else {
                let known: Vec<_> = FaultKind::ALL.iter().map(|(name, _)| *name).collect();
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
}
