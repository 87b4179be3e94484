//! How much each group used: `TotalUtil`.
//!
//! The paper sums the busy time of a group's cores, and so do we, on the cores that the *previous* plan gave the group: they are the
//! ones its threads ran on in the interval that the snapshot covers. It takes in all that runs there, softirqs and
//! interrupts too, which no sum over threads does.
//!
//! It is only right while the group's threads are on the group's cores and nobody else is. Where that isn't so, demand is summed
//! over threads instead, and a reason says so ([`ByThreads`]):
//!
//! - in observe mode, as nothing was confined;
//! - when the group had no cores of its own: at the start, after a policy that shares cores, or for the first guest of a class.
//!
//! Best-effort guests that run on a group's cores for want of idle ones (modes P and E) would make it grow by what is not its
//! demand; the time that their threads ran is taken off. Of those that have cores of their own and leftovers besides (mode R), what tasks ran on
//! a group's cores that yield to all others is taken off, down to what the group's own threads ran: where an operator has all guests yield, those
//! with an objective among them, it would leave nothing. Where nobody counts it, best-effort guests ran on their own cores for as long as those
//! were busy, and on the vCPU group for the rest.

use ostler_model::{
    ActMode, ByThreads, CpuSet, Group, Groups, GuestView, Leftovers, Nanos, Reason, ThreadUsage,
    Unmeasured,
};

use super::cores::{Cores, Usage};
use crate::{Member, Seen};

/// What each group used in the interval, in cores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Demand {
    /// vCPUs of latency-critical guests.
    pub vcpu: f64,
    /// Network queues.
    pub nq: f64,
    /// Whether both were measured on cores that the groups really had, so that they are evidence for exploration.
    pub confined: bool,
}

/// Whether there is anything to measure, and if not, why.
pub fn measurable(seen: &Seen<'_>, has_previous: bool) -> Result<(), Unmeasured> {
    let snapshot = seen.snapshot;
    if snapshot.interval == Nanos::ZERO {
        return Err(Unmeasured::NoInterval);
    }
    let age = seen.now.saturating_sub(snapshot.at);
    let limit = old_after(seen);
    // With nothing to fall back to, an old measurement is better than none.
    if age > limit && has_previous {
        return Err(Unmeasured::Old { age, limit });
    }
    Ok(())
}

/// How old a view may be and still count.
pub fn old_after(seen: &Seen<'_>) -> Nanos {
    seen.intent.old_after()
}

/// Measures both groups. The snapshot's interval is not zero.
pub fn measure(
    seen: &Seen<'_>,
    cores: &Cores,
    previous: Option<&Groups>,
    leftovers: Leftovers,
    reasons: &mut Vec<Reason>,
) -> Demand {
    let usage = Usage::new(&seen.snapshot.cpus, seen.snapshot.interval);
    let yielding = (leftovers == Leftovers::OfAll)
        .then(|| Usage::yielding(&seen.snapshot.cpus, seen.snapshot.interval));
    let observing = seen.intent.act.mode == ActMode::Observe;
    let mut by_cores = |group: Group| {
        let set = previous.filter(|groups| !groups.shared).map(|groups| {
            if group == Group::Vcpu {
                groups.vcpu
            } else {
                groups.nq
            }
        });
        let why = match set {
            _ if observing => ByThreads::Observing,
            Some(set) if cores.within(&set) > 0 => {
                let busy = cores.busy(&set, &usage);
                return Ok(previous.map_or(busy, |groups| {
                    let (home, _) = best_effort_home(groups);
                    // Summed only where it is taken off: it looks at every thread of every best-effort guest.
                    let run = || best_effort_run(seen) / cores.width();
                    match leftovers {
                        _ if home == group => (busy - run()).max(0.0),
                        Leftovers::OfAll => {
                            let least = match group {
                                Group::Vcpu => vcpu_run(seen),
                                _ => workers_run(seen),
                            };
                            let theirs = yielding.as_ref().map_or(0.0, |all| cores.busy(&set, all));
                            (busy - theirs).max((least / cores.width()).min(busy))
                        }
                        Leftovers::OfVcpus if group == Group::Vcpu => {
                            let theirs = run() - cores.busy(&groups.best_effort, &usage);
                            (busy - theirs.max(0.0)).max(0.0)
                        }
                        Leftovers::OfVcpus | Leftovers::Nothing => busy,
                    }
                }));
            }
            _ => ByThreads::NoCoresYet,
        };
        reasons.push(Reason::ByThreads { group, why });
        Err(why)
    };
    let vcpu = by_cores(Group::Vcpu);
    let nq = by_cores(Group::Nq);
    Demand {
        confined: vcpu.is_ok() && nq.is_ok(),
        vcpu: vcpu.unwrap_or_else(|_| vcpu_run(seen) / cores.width()),
        nq: nq.unwrap_or_else(|_| queue_run(seen) / cores.width()),
    }
}

/// The demand of a pool that vCPUs and queues share.
pub fn measure_pool(
    seen: &Seen<'_>,
    cores: &Cores,
    previous: Option<&Groups>,
    reasons: &mut Vec<Reason>,
) -> (f64, bool) {
    let pool = previous.map(|groups| groups.vcpu.union(&groups.nq));
    let why = match (previous, pool) {
        _ if seen.intent.act.mode == ActMode::Observe => ByThreads::Observing,
        (Some(groups), Some(pool)) if cores.within(&pool) > 0 => {
            let usage = Usage::new(&seen.snapshot.cpus, seen.snapshot.interval);
            let (home, _) = best_effort_home(groups);
            let guests = if matches!(home, Group::Vcpu | Group::Nq) {
                best_effort_run(seen) / cores.width()
            } else {
                0.0
            };
            return ((cores.busy(&pool, &usage) - guests).max(0.0), true);
        }
        _ => ByThreads::NoCoresYet,
    };
    reasons.push(Reason::ByThreads {
        group: Group::Vcpu,
        why,
    });
    ((vcpu_run(seen) + queue_run(seen)) / cores.width(), false)
}

/// Where best-effort guests that run have their cores: their own, else idle ones, else those of a group.
pub fn best_effort_home(groups: &Groups) -> (Group, CpuSet) {
    [
        (Group::BestEffort, groups.best_effort),
        (Group::Idle, groups.idle),
        (Group::Vcpu, groups.vcpu),
    ]
    .into_iter()
    .find(|(_, set)| !set.is_empty())
    .unwrap_or((Group::Nq, groups.nq))
}

/// What vCPUs of latency-critical guests ran, in logical CPUs.
pub fn vcpu_run(seen: &Seen<'_>) -> f64 {
    per_interval(
        seen,
        seen.roster
            .latency_critical()
            .flat_map(vcpu_usages)
            .map(|usage| usage.run.0)
            .sum(),
    )
}

/// What vhost workers of latency-critical guests ran, in logical CPUs.
fn workers_run(seen: &Seen<'_>) -> f64 {
    per_interval(seen, workers_nanos(seen))
}

fn workers_nanos(seen: &Seen<'_>) -> u64 {
    seen.roster
        .latency_critical()
        .flat_map(|member| &member.view.vhost)
        .map(|worker| worker.usage.run.0)
        .sum()
}

/// The same, and all time in interrupts and softirqs.
fn queue_run(seen: &Seen<'_>) -> f64 {
    let interval = seen.snapshot.interval.0;
    let interrupts: u64 = seen
        .snapshot
        .cpus
        .iter()
        .map(|usage| usage.irq.0.saturating_add(usage.softirq.0).min(interval))
        .sum();
    per_interval(seen, workers_nanos(seen).saturating_add(interrupts))
}

fn best_effort_run(seen: &Seen<'_>) -> f64 {
    per_interval(
        seen,
        seen.roster
            .best_effort()
            .map(|member| guest_run(member.view))
            .sum(),
    )
}

fn guest_run(view: &GuestView) -> u64 {
    let vcpus: u64 = view.vcpus.iter().map(|vcpu| vcpu.usage.run.0).sum();
    let workers: u64 = view.vhost.iter().map(|worker| worker.usage.run.0).sum();
    vcpus.saturating_add(workers)
}

fn vcpu_usages<'a>(member: &Member<'a>) -> impl Iterator<Item = ThreadUsage> + use<'a> {
    member.view.vcpus.iter().map(|vcpu| vcpu.usage)
}

/// Time over the interval, at most as much as all CPUs have.
fn per_interval(seen: &Seen<'_>, nanos: u64) -> f64 {
    let cpus = seen.snapshot.cpus.len().max(1) as f64;
    if seen.snapshot.interval == Nanos::ZERO {
        return 0.0;
    }
    (nanos as f64 / seen.snapshot.interval.0 as f64).min(cpus)
}
