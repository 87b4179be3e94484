//! Who yields to whom: a latency-critical guest is never made to, and a best-effort one is where it could make one wait.

use ostler_model::{Class, CpuSet, CpuWeight, GuestPlan, PartitionPolicy, Plan, SharedCores};

use crate::{Scene, Violation};

/// Below this a guest yields: others have it unless someone gave them another.
const EQUAL: u32 = 100;

pub(crate) fn check(scene: &Scene<'_>, plan: &Plan, found: &mut Vec<Violation>) {
    let asked = asked(scene);
    let mut critical = CpuSet::EMPTY;
    for given in &plan.guests {
        if given.class == Class::LatencyCritical {
            for set in sets(given) {
                critical = critical.union(set);
            }
        }
    }
    for given in &plan.guests {
        let guest = || given.guest.clone();
        if given.class != Class::BestEffort {
            if given.weight != CpuWeight::Untouched {
                found.push(Violation::Weighed {
                    guest: guest(),
                    class: given.class,
                    weight: given.weight,
                });
            }
            continue;
        }
        if let CpuWeight::Weight(weight) = given.weight
            && (weight == 0 || weight >= EQUAL)
        {
            found.push(Violation::WeightBounds {
                guest: guest(),
                weight,
            });
        }
        // Where it may run and a latency-critical guest may too.
        let contested = sets(given).into_iter().fold(CpuSet::EMPTY, |all, set| {
            all.union(&set.intersection(&critical))
        });
        let set = matches!(given.weight, CpuWeight::Weight(_) | CpuWeight::Idle);
        if set && contested.is_empty() {
            found.push(Violation::WeighedNeedlessly { guest: guest() });
        }
        match asked {
            // Nothing is to be touched then, the controller neither.
            None if given.weight != CpuWeight::Untouched => {
                found.push(Violation::WeighedUnasked {
                    guest: guest(),
                    weight: given.weight,
                    expected: CpuWeight::Untouched,
                });
            }
            Some(expected) if set && given.weight != expected => {
                found.push(Violation::WeighedUnasked {
                    guest: guest(),
                    weight: given.weight,
                    expected,
                });
            }
            Some(_) if !set && !contested.is_empty() => found.push(Violation::NotWeighed {
                guest: guest(),
                cpus: contested,
            }),
            _ => {}
        }
    }
}

/// What a best-effort guest is to have on shared cores; `None` where its weight is not the steward's to change.
fn asked(scene: &Scene<'_>) -> Option<CpuWeight> {
    let partition = &scene.intent.partition;
    let compared = matches!(
        partition.policy,
        PartitionPolicy::TimeSharing { .. }
            | PartitionPolicy::Static { .. }
            | PartitionPolicy::CoreNap
            | PartitionPolicy::Demeter { .. }
    );
    let cannot = scene
        .facts
        .capabilities
        .iter()
        .any(|capability| capability.name == "cpu-weight" && capability.missing.is_some());
    match partition.best_effort {
        _ if compared || cannot => None,
        SharedCores::Equal => None,
        SharedCores::Idle => Some(CpuWeight::Idle),
        SharedCores::Weight(weight) => Some(CpuWeight::Weight(weight)),
    }
}

/// Where each kind of its threads may run.
fn sets(given: &GuestPlan) -> [&CpuSet; 3] {
    [&given.vcpu_cpus, &given.vhost_cpus, &given.emulator_cpus]
}
