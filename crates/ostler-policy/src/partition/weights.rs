//! What best-effort guests weigh on cores that they share with latency-critical ones.
//!
//! **The idea.** P gives all cores away, and so does E when demand asks for them: best-effort guests then run on the vCPU group. With
//! equal weights, a latency-critical vCPU that wakes up there waits for the slice of whoever runs, milliseconds. So a best-effort
//! guest is given less there: the least there is (`cpu.idle`), or the weight that the operator chose (`docs/decisions/0006`). Elsewhere it has the
//! weight that it was found with, and latency-critical guests are never touched.
//!
//! Whether a guest shares is read off the finished plans, and not off the groups: whatever placed two guests on one core, it holds. It
//! is a function of the plans alone, so it is as stable as they are.

use ostler_model::{
    Alternative, Class, CpuSet, CpuWeight, GuestPlan, Layer, Leftovers, PartitionPolicy, Reason,
    Room, RunState, SharedCores,
};

use super::room;
use crate::Seen;

/// The capability without which no weight can be set.
const CAPABILITY: &str = "cpu-weight";

/// Gives best-effort guests their weights.
pub fn give(seen: &Seen<'_>, guests: &mut [GuestPlan], reasons: &mut Vec<Reason>) {
    let intent = &seen.intent.partition;
    if !intent.policy.weighs() || seen.roster.latency_critical_count() == 0 {
        return;
    }
    let mut critical = CpuSet::EMPTY;
    for plan in guests.iter() {
        if plan.class == Class::LatencyCritical {
            for set in sets(plan) {
                critical.unite(set);
            }
        }
    }
    let weight = match (intent.best_effort, lacking(seen)) {
        (SharedCores::Equal, _) => Err("the configuration has them compete as equals"),
        (_, true) => Err("this host's cgroups have no CPU weights"),
        (SharedCores::Idle, _) => Ok(CpuWeight::Idle),
        (SharedCores::Weight(weight), _) => Ok(CpuWeight::Weight(weight)),
    };
    let mut shared = CpuSet::EMPTY;
    for plan in guests {
        if plan.class != Class::BestEffort {
            continue;
        }
        let mut given = weight.map(|_| CpuWeight::AsFound);
        if plan.run == RunState::Running {
            let [vcpus, workers, rest] = sets(plan);
            let mut all = vcpus.union(workers);
            all.unite(rest);
            if !all.is_disjoint(&critical) {
                shared.unite(&all.intersection(&critical));
                given = weight;
            }
        }
        plan.weight = given.unwrap_or_default();
    }
    if shared.is_empty() {
        return;
    }
    reasons.push(match weight {
        Ok(weight) => Reason::Yield {
            cores: shared.len(),
            weight,
        },
        Err(why) => Reason::TurnedDown {
            layer: Layer::Partition,
            alternative: Alternative {
                what: "best-effort guests that yield on shared cores".into(),
                why: why.into(),
            },
        },
    });
}

/// Whether best-effort guests that have cores of their own may also have what latency-critical guests leave of theirs: as the policy is R, as
/// it is wanted, and as they delay nobody there. A reason says why not.
///
/// R sizes its groups for their peaks, so that much of them is idle most of the time: in the lab's ramp two thirds. Isolation asks for
/// cores that nobody else *delays*, and who is idle for the scheduler is preempted at once. Not so on the sibling of an SMT core, where
/// both run at half the speed: there, cores stay apart.
///
/// What best-effort guests ran on a group's cores isn't the group's demand. On those of the vCPUs it can be told without anybody counting
/// it ([`super::demand`]); on the queues', where softirqs have no thread that could be summed over, somebody must.
pub fn leftovers(seen: &Seen<'_>, reasons: &mut Vec<Reason>) -> Leftovers {
    let intent = &seen.intent.partition;
    let both = seen.roster.latency_critical_count() > 0 && seen.roster.best_effort_count() > 0;
    if intent.policy != PartitionPolicy::Resource || !intent.leftovers || !both {
        return Leftovers::Nothing;
    }
    let why = if intent.best_effort != SharedCores::Idle {
        "the configuration doesn't have them idle there"
    } else if lacking(seen) {
        "this host's cgroups have no CPU weights"
    } else if siblings(seen) {
        "a core's SMT siblings slow each other down"
    } else if counts_yielding(seen) {
        return Leftovers::OfAll;
    } else {
        reasons.push(not_left("queues", "this host doesn't count what yields"));
        return Leftovers::OfVcpus;
    };
    reasons.push(not_left("latency-critical guests", why));
    Leftovers::Nothing
}

/// What of the leftovers is had, by how near objectives are ([`super::room`]).
pub fn lend(may: Leftovers, room: Option<Room>, reasons: &mut Vec<Reason>) -> Leftovers {
    let lent = room::lent(room).min(may);
    if lent < may {
        let whose = match lent {
            Leftovers::Nothing => "latency-critical guests",
            Leftovers::OfVcpus | Leftovers::OfAll => "queues",
        };
        let why = match room {
            Some(_) => {
                "P95 is too near an objective, or was under as much load, or isn't known under so much"
            }
            None => "nobody with an objective was seen to answer yet",
        };
        reasons.push(not_left(whose, why));
    }
    lent
}

fn not_left(whose: &'static str, why: &'static str) -> Reason {
    Reason::TurnedDown {
        layer: Layer::Partition,
        alternative: Alternative {
            what: format!("what {whose} leave of their cores, for best-effort guests").into(),
            why: why.into(),
        },
    }
}

/// Whether it is known of every CPU what tasks ran there that yield.
fn counts_yielding(seen: &Seen<'_>) -> bool {
    let cpus = &seen.snapshot.cpus;
    !cpus.is_empty() && cpus.iter().all(|usage| usage.yielding.is_some())
}

/// Where each kind of a guest's threads may run.
fn sets(plan: &GuestPlan) -> [&CpuSet; 3] {
    [&plan.vcpu_cpus, &plan.vhost_cpus, &plan.emulator_cpus]
}

/// Whether any two of the host's CPUs are one core's.
fn siblings(seen: &Seen<'_>) -> bool {
    let cpus = &seen.facts.topology.cpus;
    cpus.iter().any(|cpu| cpu.core != cpu.id)
}

fn lacking(seen: &Seen<'_>) -> bool {
    seen.facts
        .capabilities
        .iter()
        .any(|capability| capability.name == CAPABILITY && capability.missing.is_some())
}
