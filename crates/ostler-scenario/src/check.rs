//! From text to a checked [`Scenario`]. The raw types mirror the file; what serde can't judge is judged here, with the
//! line of the key that is wrong.

mod raw;
mod trials;

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;

use ostler_model::{Class, CpuSet, MAX_CPUS};
use toml::Spanned;

use super::{Caches, Cpus, Guest, Host, Load, Node, Scenario, World};
use raw::{RawHost, RawLoad, RawNode, RawScenario};

/// A guest of QEMU's `microvm` needs about this much to boot.
const GUEST_MEMORY_AT_LEAST_MIB: u64 = 160;
/// The host's own kernel, user space and page cache.
const HOST_MEMORY_AT_LEAST_MIB: u64 = 768;
/// The kernel's limit for interface names is 15; ours are `tap-NAME`.
const NAME_AT_MOST: usize = 11;
/// Queues of an igb device.
const PNIC_QUEUES_AT_MOST: u32 = 8;

/// Why a scenario is refused.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The file can't be read.
    #[error("could not read the scenario {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// It isn't TOML, or a key is unknown, missing or of the wrong type.
    #[error("{}: {message}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// What the parser said, with line and column.
        message: String,
    },
    /// A value makes no sense.
    #[error("{}:{line}: {what}; {remedy}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        what: String,
        /// What to write instead.
        remedy: String,
    },
}

struct Checker<'a> {
    text: &'a str,
    path: PathBuf,
    world: &'a dyn World,
}

pub fn parse(text: &str, path: PathBuf, world: &dyn World) -> Result<Scenario, ScenarioError> {
    let raw: RawScenario = match toml::from_str(text) {
        Ok(raw) => raw,
        Err(e) => {
            return Err(ScenarioError::Syntax {
                path,
                message: e.to_string().trim_end().to_owned(),
            });
        }
    };
    Checker { text, path, world }.scenario(raw)
}

impl Checker<'_> {
    fn refuse<T>(
        &self,
        at: &Spanned<impl Sized>,
        what: impl fmt::Display,
        remedy: impl fmt::Display,
    ) -> Result<T, ScenarioError> {
        let start = at.span().start.min(self.text.len());
        Err(ScenarioError::Value {
            path: self.path.clone(),
            line: 1 + self.text[..start].matches('\n').count(),
            what: what.to_string(),
            remedy: remedy.to_string(),
        })
    }

    fn scenario(&self, raw: RawScenario) -> Result<Scenario, ScenarioError> {
        self.name(&raw.name, 40)?;
        let rounds = self.between(&raw.rounds, "rounds", 1, 100)?;
        let settle_s = *raw.settle_s.get_ref();
        if !(0.0..=60.0).contains(&settle_s) {
            return self.refuse(
                &raw.settle_s,
                format!("settle_s = {settle_s}"),
                "write 0 to 60 seconds",
            );
        }
        let host = self.host(&raw.host)?;
        let mut guests = self.guests(&raw, &host)?;
        let loads = raw
            .load
            .iter()
            .map(|load| self.load(load, &guests))
            .collect::<Result<Vec<_>, _>>()?;
        for guest in &mut guests {
            guest.in_turn =
                guest.workload.works() && loads.iter().any(|load| load.guest == guest.name);
        }
        let policies = self.policies(&raw, &host)?;
        let expectations = self.expectations(&raw, &policies)?;
        let faults = self.faults(&raw, &guests)?;
        Ok(Scenario {
            name: raw.name.into_inner(),
            summary: raw.summary,
            rounds,
            settle_s,
            host,
            guests,
            loads,
            policies,
            expectations,
            faults,
        })
    }

    fn host(&self, raw: &RawHost) -> Result<Host, ScenarioError> {
        let cpus = Cpus {
            sockets: raw.sockets,
            cores: *raw.cores.get_ref(),
            threads: raw.threads,
        };
        let count = u64::from(cpus.sockets) * u64::from(cpus.cores) * u64::from(cpus.threads);
        if count < 2 || count > u64::from(MAX_CPUS.min(255)) {
            return self.refuse(
                &raw.cores,
                format!(
                    "{} sockets of {} cores of {} threads make {count} CPUs",
                    cpus.sockets, cpus.cores, cpus.threads
                ),
                "an emulated host has 2 to 255",
            );
        }
        let caches = raw.part.as_ref().map(|part| Caches {
            part: part.get_ref().clone(),
            group_cores: raw.cache_group_cores,
        });
        let instruction_ns = match &raw.instruction_ns {
            Some(cost) if !(0.05..=100.0).contains(cost.get_ref()) => {
                return self.refuse(
                    cost,
                    format!("instruction_ns = {}", cost.get_ref()),
                    "write 0.05 to 100 nanoseconds, like 1.0",
                );
            }
            Some(cost) => *cost.get_ref(),
            None => caches
                .as_ref()
                .and_then(|caches| self.world.cycle_ns(&caches.part))
                .unwrap_or(1.0),
        };
        let all = CpuSet::range(0, cpus.count());
        for (name, set) in [("under_test", &raw.under_test), ("client", &raw.client)] {
            if set.get_ref().is_empty() {
                return self.refuse(
                    set,
                    format!("`{name}` names no core"),
                    "give it at least one, like \"0-3\"",
                );
            }
            if !set.get_ref().is_subset(&all) {
                let beyond = set.get_ref().difference(&all);
                return self.refuse(
                    set,
                    format!("`{name}` names cores {beyond} that the host lacks"),
                    format!("its cores are {all}"),
                );
            }
        }
        let (under_test, client) = (*raw.under_test.get_ref(), *raw.client.get_ref());
        if !under_test.is_disjoint(&client) {
            let both = under_test.intersection(&client);
            return self.refuse(
                &raw.client,
                format!("cores {both} are under test and the client's"),
                "give each core to one of them: load generators on cores under test would be measured too",
            );
        }
        let pnic_queues = self.between(&raw.pnic_queues, "pnic_queues", 1, PNIC_QUEUES_AT_MOST)?;
        let host = Host {
            cpus,
            nodes: self.nodes(raw, all)?,
            under_test,
            client,
            pnic_queues,
            instruction_ns,
            caches,
        };
        if let (Some(caches), Some(part)) = (&host.caches, &raw.part)
            && let Err(error) = self.world.check_caches(&host, caches)
        {
            return self.refuse(
                part,
                format!("part = \"{}\": {error}", caches.part),
                "or leave `part` out, and every access costs nothing",
            );
        }
        Ok(host)
    }

    fn nodes(&self, raw: &RawHost, all: CpuSet) -> Result<Vec<Node>, ScenarioError> {
        let total = |nodes: &[Node]| nodes.iter().map(|n| n.memory_mib).sum::<u64>();
        let (nodes, at) = match (&raw.memory, raw.node.first()) {
            (Some(memory), None) => {
                let memory_mib = self.mebibytes(memory)?;
                (
                    vec![Node {
                        memory_mib,
                        cpus: all,
                        latency_ns: 80,
                        bandwidth_mib_per_s: 200_000,
                    }],
                    memory,
                )
            }
            (None, Some(first)) => (
                raw.node
                    .iter()
                    .map(|node| self.node(node))
                    .collect::<Result<Vec<_>, _>>()?,
                &first.memory,
            ),
            (Some(memory), Some(_)) => {
                return self.refuse(
                    memory,
                    "the host has `memory` and `[[host.node]]`",
                    "give memory to the nodes only",
                );
            }
            (None, None) => {
                return self.refuse(
                    &raw.cores,
                    "the host has no memory",
                    "add `memory = \"3G\"` or `[[host.node]]`",
                );
            }
        };
        let mut placed = CpuSet::EMPTY;
        for (node, raw) in nodes.iter().zip(&raw.node) {
            let Some(cpus) = &raw.cpus else { continue };
            if !node.cpus.is_disjoint(&placed) {
                return self.refuse(
                    cpus,
                    format!("cores {} are on two nodes", node.cpus.intersection(&placed)),
                    "put each on one",
                );
            }
            placed = placed.union(&node.cpus);
        }
        if !raw.node.is_empty() && placed != all {
            let at = &raw.node[0].memory;
            return self.refuse(
                at,
                format!("the nodes hold cores {placed} of {all}"),
                "put every core on one node",
            );
        }
        if nodes[0].cpus.is_empty() {
            return self.refuse(
                at,
                "the first node has no cores",
                "list nodes with cores first, far nodes after them",
            );
        }
        if total(&nodes) < HOST_MEMORY_AT_LEAST_MIB {
            return self.refuse(
                at,
                format!("{} MiB of memory", total(&nodes)),
                format!("a host needs at least {HOST_MEMORY_AT_LEAST_MIB}M"),
            );
        }
        Ok(nodes)
    }

    fn node(&self, raw: &RawNode) -> Result<Node, ScenarioError> {
        let far = raw.cpus.is_none();
        Ok(Node {
            memory_mib: self.mebibytes(&raw.memory)?,
            cpus: raw
                .cpus
                .as_ref()
                .map_or(CpuSet::EMPTY, |cpus| *cpus.get_ref()),
            latency_ns: raw.latency_ns.unwrap_or(if far { 400 } else { 80 }),
            bandwidth_mib_per_s: raw.bandwidth_mib_per_s.unwrap_or(if far {
                40_000
            } else {
                200_000
            }),
        })
    }

    fn guests(&self, raw: &RawScenario, host: &Host) -> Result<Vec<Guest>, ScenarioError> {
        let mut names = BTreeSet::new();
        let mut guests = Vec::new();
        for guest in &raw.guest {
            self.name(&guest.name, NAME_AT_MOST)?;
            if !names.insert(guest.name.get_ref()) {
                return self.refuse(
                    &guest.name,
                    format!("two guests are named `{}`", guest.name.get_ref()),
                    "give each its own name",
                );
            }
            let vcpus = self.between(&guest.vcpus, "vcpus", 1, host.cpus.count())?;
            let queues = self.between(&guest.queues, "queues", 1, vcpus)?;
            let memory_mib = self.mebibytes(&guest.memory)?;
            if memory_mib < GUEST_MEMORY_AT_LEAST_MIB {
                return self.refuse(
                    &guest.memory,
                    format!("{memory_mib} MiB is too little to boot"),
                    format!("give it at least {GUEST_MEMORY_AT_LEAST_MIB}M"),
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
            guests.push(Guest {
                name: guest.name.get_ref().clone(),
                class: *guest.class.get_ref(),
                vcpus,
                memory_mib,
                queues,
                workload: guest.workload,
                slo_p95_us,
                in_turn: false, // loads decide
            });
        }
        let needs = |guest: &Guest| guest.memory_mib + guest.workload.disk_mib().unwrap_or(0);
        let wanted = guests.iter().map(needs).sum::<u64>() + HOST_MEMORY_AT_LEAST_MIB;
        let there: u64 = host.nodes.iter().map(|n| n.memory_mib).sum();
        if let (true, Some(last)) = (wanted > there, raw.guest.last()) {
            return self.refuse(
                &last.memory,
                format!("guests and host need {wanted} MiB of the host's {there}"),
                "give the host more or the guests less",
            );
        }
        Ok(guests)
    }

    fn load(&self, raw: &RawLoad, guests: &[Guest]) -> Result<Load, ScenarioError> {
        let name = raw.guest.get_ref();
        let Some(guest) = guests.iter().find(|g| &g.name == name) else {
            let known: Vec<_> = guests.iter().map(|g| g.name.as_str()).collect();
            return self.refuse(
                &raw.guest,
                format!("no guest is named `{name}`"),
                format!("there are: {}", known.join(", ")),
            );
        };
        let answers = guest.workload.service().is_some();
        if !answers && !guest.workload.works() {
            return self.refuse(
                &raw.guest,
                format!(
                    "`{name}` runs `{}`, which answers no requests and counts no work",
                    guest.workload
                ),
                "load a guest whose workload does either, such as memcached or disk-read",
            );
        }
        if raw.steps.get_ref().is_empty() {
            return self.refuse(
                &raw.steps,
                "a load without steps",
                "add at least one, like { rate = 500, seconds = 5 }",
            );
        }
        for step in raw.steps.get_ref() {
            if !answers && step.rate.abs() > 0.0 {
                return self.refuse(
                    &raw.steps,
                    format!(
                        "`{name}` runs `{}`, which answers no requests, and {} a second are asked of it",
                        guest.workload, step.rate
                    ),
                    "write rate = 0: what its work comes to in that time is counted",
                );
            }
            if !((step.rate > 0.0 || !answers)
                && step.rate <= 1e7
                && step.seconds > 0.0
                && step.seconds <= 3600.0)
            {
                return self.refuse(
                    &raw.steps,
                    format!("a step of rate {} for {} seconds", step.rate, step.seconds),
                    "rates are 0 to 10 million a second (0 not included), steps up to an hour",
                );
            }
        }
        Ok(Load {
            guest: name.clone(),
            connections: raw.connections.clamp(1, 4096),
            args: raw.args.clone(),
            steps: raw.steps.get_ref().clone(),
        })
    }

    fn between(
        &self,
        value: &Spanned<u32>,
        key: &str,
        least: u32,
        most: u32,
    ) -> Result<u32, ScenarioError> {
        let number = *value.get_ref();
        if (least..=most).contains(&number) {
            return Ok(number);
        }
        self.refuse(
            value,
            format!("{key} = {number}"),
            format!("write {least} to {most}"),
        )
    }

    fn name(&self, name: &Spanned<String>, at_most: usize) -> Result<(), ScenarioError> {
        let text = name.get_ref();
        let plain = text
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
        if !text.is_empty() && text.len() <= at_most && plain && !text.starts_with('-') {
            return Ok(());
        }
        self.refuse(
            name,
            format!("`{text}` is no name"),
            format!("write at most {at_most} lower-case letters, digits and dashes"),
        )
    }

    fn mebibytes(&self, size: &Spanned<String>) -> Result<u64, ScenarioError> {
        let text = size.get_ref();
        let (number, unit) = text.split_at(text.trim_end_matches(['M', 'G']).len());
        let factor = match unit {
            "M" => 1,
            "G" => 1024,
            _ => 0,
        };
        match number.parse::<u64>() {
            Ok(number) if factor > 0 && (1..1 << 20).contains(&number) => Ok(number * factor),
            _ => self.refuse(
                size,
                format!("`{text}` is no size"),
                "write a whole number of M or G, like \"256M\"",
            ),
        }
    }

    fn micros(&self, time: &Spanned<String>) -> Result<u64, ScenarioError> {
        let text = time.get_ref();
        let (number, unit) = text.split_at(text.trim_end_matches(char::is_alphabetic).len());
        let factor = match unit {
            "us" => 1,
            "ms" => 1_000,
            "s" => 1_000_000,
            _ => 0,
        };
        match number.parse::<u64>() {
            Ok(number) if factor > 0 && (1..1 << 32).contains(&number) => Ok(number * factor),
            _ => self.refuse(
                time,
                format!("`{text}` is no time"),
                "write a whole number of us, ms or s, like \"20ms\"",
            ),
        }
    }
}

/// Puts `own` over `base`; tables are merged, everything else is replaced.
pub fn merge(base: &mut toml::Table, own: &toml::Table) {
    for (key, value) in own {
        match (base.get_mut(key), value) {
            (Some(toml::Value::Table(base)), toml::Value::Table(own)) => merge(base, own),
            _ => {
                base.insert(key.clone(), value.clone());
            }
        }
    }
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
