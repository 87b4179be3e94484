//! The host: its CPUs, caches and memory.

use ostler_model::{CpuSet, MAX_CPUS};
use toml::Spanned;

use super::raw::{RawHost, RawNode};
use super::{Checker, ScenarioError};
use crate::{Caches, Cpus, Host, Node};

impl Checker<'_> {
    pub(super) fn host(&self, raw: &RawHost) -> Result<Host, ScenarioError> {
        let cpus = Cpus {
            sockets: raw.sockets,
            cores: *raw.cores.get_ref(),
            threads: raw.threads,
        };
        let limits = self.world.limits();
        let count = u64::from(cpus.sockets) * u64::from(cpus.cores);
        let count = count.saturating_mul(u64::from(cpus.threads));
        if count < 2 || count > u64::from(limits.cpus_max.min(MAX_CPUS)) {
            return self.refuse(
                &raw.cores,
                format!(
                    "{} sockets of {} cores of {} threads make {count} CPUs",
                    cpus.sockets, cpus.cores, cpus.threads
                ),
                format!(
                    "{} host has 2 to {}",
                    if limits.simulates {
                        "a simulated"
                    } else {
                        "an emulated"
                    },
                    limits.cpus_max.min(MAX_CPUS)
                ),
            );
        }
        let caches = raw.part.as_ref().map(|part| Caches {
            part: part.get_ref().clone(),
        });
        let cache_group_cores = self.cache_group_cores(raw, cpus)?;
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
        let (under_test, client) = self.cores(raw, all)?;
        let pnic_queues =
            self.between(&raw.pnic_queues, "pnic_queues", 1, limits.pnic_queues_max)?;
        let host = Host {
            cpus,
            nodes: self.nodes(raw, all)?,
            under_test,
            client,
            pnic_queues,
            instruction_ns,
            caches,
            cache_group_cores,
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

    fn cache_group_cores(&self, raw: &RawHost, cpus: Cpus) -> Result<Option<u32>, ScenarioError> {
        let Some(cores) = &raw.cache_group_cores else {
            return Ok(None);
        };
        if raw.part.is_none() {
            self.only_simulated(cores, "`cache_group_cores` without a `part`")?;
        }
        self.between(cores, "cache_group_cores", 1, cpus.count())
            .map(Some)
    }

    /// The cores under test, and the client's. A simulator needs no client on the host, and tests all others.
    fn cores(&self, raw: &RawHost, all: CpuSet) -> Result<(CpuSet, CpuSet), ScenarioError> {
        let simulates = self.world.limits().simulates;
        for (name, set) in [("under_test", &raw.under_test), ("client", &raw.client)] {
            let Some(set) = set else {
                if simulates {
                    continue;
                }
                return self.refuse(
                    &raw.cores,
                    format!("the host has no `{name}`"),
                    format!("add cores to it, like {name} = \"0-3\""),
                );
            };
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
        let set = |set: &Option<Spanned<CpuSet>>| set.as_ref().map(|set| *set.get_ref());
        let client = set(&raw.client).unwrap_or(CpuSet::EMPTY);
        let under_test = set(&raw.under_test).unwrap_or_else(|| all.difference(&client));
        if let (false, Some(at)) = (under_test.is_disjoint(&client), &raw.client) {
            let both = under_test.intersection(&client);
            return self.refuse(
                at,
                format!("cores {both} are under test and the client's"),
                "give each core to one of them: load generators on cores under test would be measured too",
            );
        }
        if let (true, Some(at)) = (under_test.is_empty(), &raw.client) {
            return self.refuse(
                at,
                "all cores are the client's",
                "leave at least one to be tested",
            );
        }
        Ok((under_test, client))
    }

    fn nodes(&self, raw: &RawHost, all: CpuSet) -> Result<Vec<Node>, ScenarioError> {
        let total = |nodes: &[Node]| {
            nodes
                .iter()
                .map(|n| n.memory_mib)
                .fold(0, u64::saturating_add)
        };
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
        let least = self.world.limits().host_memory_min_mib;
        if total(&nodes) < least {
            return self.refuse(
                at,
                format!("{} MiB of memory", total(&nodes)),
                format!("a host needs at least {least}M"),
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
}
