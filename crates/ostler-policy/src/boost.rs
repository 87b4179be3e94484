//! Which guests' vCPUs are scheduled by who does IO, and which cores share a queue of them.
//!
//! The choice of who runs now is the kernel's, thousands of times a second (`bpf/boost`); what is decided here is what it chooses from.
//!
//! - **Guests**: all in the steward's care but those that a rule excepts. What has the kernel's own scheduler goes before what has ours, so a
//!   guest that is left out goes before all that aren't, on each core that it shares with them. That is for who leaves it out to know.
//! - **Domains**: the cores of a last-level cache share a queue, so that a vCPU that goes from one to another finds its data. A cache with more cores than a
//!   queue is to serve is cut into equal parts, siblings of a core together.
//! - **vhost workers**: where they run on the vCPUs' cores they are let in too, and wait with the vCPUs that they work for. On cores of their own there is nobody to
//!   wait for, and the kernel's scheduler costs them less.

use ostler_model::{Alternative, BoostPlan, Cpu, CpuSet, Facts, Groups, GuestPlan, Layer, Reason};

use crate::Seen;
use crate::walk::Walk;

/// The capability without which there is no such scheduler.
const CAPABILITY: &str = "vcpu-scheduler";

/// The domains of the host that was decided for last.
#[derive(Clone, Debug, Default)]
pub struct Domains {
    cpus: Vec<Cpu>,
    domains: Vec<CpuSet>,
}

impl Domains {
    /// Those of a host, told anew only if it isn't the same.
    fn of(&mut self, facts: &Facts) -> &[CpuSet] {
        let cpus = &facts.topology.cpus;
        if self.cpus != *cpus {
            self.cpus.clone_from(cpus);
            self.domains = domains(facts);
        }
        &self.domains
    }
}

/// Whose vCPUs are to be scheduled, where that is wanted and can be had. What is in `known` before is of no consequence.
pub fn decide(
    seen: &Seen<'_>,
    groups: &Groups,
    planned: &[GuestPlan],
    known: &mut Domains,
    reasons: &mut Vec<Reason>,
) -> Option<BoostPlan> {
    let settings = seen.intent.boost?;
    let capabilities = &seen.facts.capabilities;
    let lacking = capabilities
        .iter()
        .find(|capability| capability.name == CAPABILITY)
        .and_then(|capability| capability.missing.as_ref());
    if let Some(why) = lacking {
        reasons.push(Reason::TurnedDown {
            layer: Layer::Boost,
            alternative: Alternative {
                what: "vCPUs scheduled by who does IO".into(),
                why: why.clone().into(),
            },
        });
        return None;
    }
    let mut planned = Walk::new(planned, |plan| &plan.guest);
    let members = seen.roster.members();
    let mut guests = Vec::with_capacity(members.len());
    for member in members {
        // On a host without cores to hand out nobody is given anything.
        if member.rule.is_none_or(|rule| rule.boost) && planned.find(&member.view.id).is_some() {
            guests.push(member.view.id.clone());
        }
    }
    Some(BoostPlan {
        settings,
        domains: known.of(seen.facts).to_vec(),
        workers: settings.workers && groups.shared,
        guests,
    })
}

/// The online cores by what they share, in order of their first.
fn domains(facts: &Facts) -> Vec<CpuSet> {
    let mut cpus: Vec<_> = facts.topology.cpus.iter().collect();
    cpus.sort_by_key(|cpu| (cpu.cache_group, cpu.core, cpu.id));
    let mut domains = Vec::new();
    for cache in cpus.chunk_by(|a, b| a.cache_group == b.cache_group) {
        let most = BoostPlan::DOMAIN_CORES_MAX as usize;
        let each = cache.len().div_ceil(cache.len().div_ceil(most));
        let mut domain = CpuSet::EMPTY;
        for core in cache.chunk_by(|a, b| a.core == b.core) {
            let siblings: CpuSet = core.iter().map(|cpu| cpu.id).collect();
            let sum = domain.len() + siblings.len();
            if !domain.is_empty() && (domain.len() as usize >= each || sum as usize > most) {
                domains.push(std::mem::take(&mut domain));
            }
            domain.unite(&siblings);
        }
        domains.push(domain);
    }
    domains
}

#[cfg(test)]
mod tests {
    use ostler_model::{Cpu, CpuId, NodeId, Topology};

    use super::*;

    /// A host of one socket by its cores' caches, each core with so many threads, numbered as Linux does.
    fn host(caches: &[u32], threads: u32) -> Facts {
        let cores: u32 = caches.iter().sum();
        let firsts = caches.iter().scan(0, |first, cores| {
            let cache = *first;
            *first += cores;
            Some((cache..*first).map(move |core| (core, cache)))
        });
        let placed: Vec<(u32, u32)> = firsts.flatten().collect();
        let cpus = (0..threads).flat_map(|thread| {
            placed.iter().map(move |&(core, cache)| Cpu {
                id: CpuId(thread * cores + core),
                node: NodeId(0),
                core: CpuId(core),
                cache_group: CpuId(cache),
            })
        });
        let mut cpus: Vec<Cpu> = cpus.collect();
        cpus.sort_by_key(|cpu| cpu.id);
        Facts {
            topology: Topology { cpus },
            ..Facts::default()
        }
    }

    fn told(facts: &Facts) -> Vec<String> {
        domains(facts).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_cores_of_a_cache_share_a_queue() {
        assert_eq!(told(&host(&[4, 2], 1)), ["0-3", "4-5"]);
        assert_eq!(told(&host(&[2, 2], 2)), ["0-1,4-5", "2-3,6-7"]);
    }

    #[test]
    fn a_large_cache_is_cut_into_equal_parts_and_siblings_stay_together() {
        assert_eq!(told(&host(&[24], 1)), ["0-11", "12-23"]);
        assert_eq!(told(&host(&[12], 2)), ["0-5,12-17", "6-11,18-23"]);
        assert_eq!(told(&host(&[3], 8)).len(), 2, "16 and 8");
    }
}
