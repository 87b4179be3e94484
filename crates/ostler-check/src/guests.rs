//! What guests are given.

use ostler_model::{
    AgentHealth, AgentState, Class, CpuId, CpuSet, CpuUsage, CpuWeight, GuestId, GuestPlan,
    GuestView, PartitionPolicy, Plan, RunState,
};

use crate::{Holder, Scene, Violation};

pub(crate) fn check(scene: &Scene<'_>, plan: &Plan, found: &mut Vec<Violation>) {
    for pair in plan.guests.windows(2) {
        if pair[0].guest >= pair[1].guest {
            found.push(Violation::GuestOrder {
                guest: pair[1].guest.clone(),
            });
        }
    }
    for planned in &plan.guests {
        let id = &planned.guest;
        if let Ok(at) = scene.guests.binary_search_by(|(view, _)| view.id.cmp(id)) {
            let (view, class) = scene.guests[at];
            if planned.class == class {
                guest(scene, plan, planned, view, found);
            } else {
                found.push(Violation::GuestClass {
                    guest: id.clone(),
                    expected: class,
                    found: planned.class,
                });
            }
        } else if scene.snapshot.guests.iter().any(|view| view.id == *id) {
            found.push(Violation::UnmanagedGuest { guest: id.clone() });
        } else {
            found.push(Violation::UnknownGuest { guest: id.clone() });
        }
    }
    // Where there is no core to give, there is nothing to plan.
    if scene.available.is_empty() {
        return;
    }
    let mut planned = plan.guests.iter().map(|guest| &guest.guest).peekable();
    for (view, _) in &scene.guests {
        while planned.next_if(|&id| *id < view.id).is_some() {}
        if planned.peek() != Some(&&view.id) {
            found.push(Violation::MissingGuest {
                guest: view.id.clone(),
            });
        }
    }
}

/// How a guest's threads of a kind are called.
type Name = fn(GuestId) -> Holder;

fn guest(
    scene: &Scene<'_>,
    plan: &Plan,
    planned: &GuestPlan,
    view: &GuestView,
    found: &mut Vec<Violation>,
) {
    let id = &planned.guest;
    let groups = &plan.groups;
    // A name for messages is made only when there is one.
    let sets: [(Name, &CpuSet); 3] = [
        (Holder::Vcpus, &planned.vcpu_cpus),
        (Holder::Vhost, &planned.vhost_cpus),
        (Holder::Emulator, &planned.emulator_cpus),
    ];
    for (what, set) in sets {
        if !set.is_subset(&scene.managed) {
            found.push(Violation::NotManaged {
                what: what(id.clone()),
                cpus: set.difference(&scene.managed),
            });
        }
        if !set.is_disjoint(&scene.reserved) {
            found.push(Violation::Reserved {
                what: what(id.clone()),
                cpus: set.intersection(&scene.reserved),
            });
        }
        if set.is_empty() && planned.run == RunState::Running {
            found.push(Violation::Nowhere {
                what: what(id.clone()),
            });
        }
    }
    if planned.run == RunState::Suspended {
        suspended(scene, plan, planned, found);
    }
    // Whose cores each kind of threads may use.
    let own = if planned.class == Class::BestEffort {
        let home = if !groups.best_effort.is_empty() {
            // Whoever is idle there delays nobody, except on the sibling of an SMT core.
            if scene.intent.partition.policy == PartitionPolicy::Resource
                && scene.intent.partition.leftovers
                && planned.weight == CpuWeight::Idle
                && !scene.siblings
            {
                let counted = |usage: &CpuUsage| usage.yielding.is_some();
                let mut home = groups.best_effort.union(&groups.vcpu);
                if scene.snapshot.cpus.iter().all(counted) {
                    home.unite(&groups.nq);
                }
                home
            } else {
                groups.best_effort
            }
        } else if !groups.idle.is_empty() {
            groups.idle
        } else {
            groups.vcpu.union(&groups.nq)
        };
        [home, home, home]
    } else {
        let queues = if groups.nq.is_empty() {
            groups.vcpu
        } else {
            groups.nq
        };
        [groups.vcpu, queues, groups.vcpu]
    };
    for ((what, set), own) in sets.into_iter().zip(own) {
        let others = set.intersection(&scene.available).difference(&own);
        if !others.is_empty() {
            found.push(Violation::Trespass {
                what: what(id.clone()),
                cpus: others,
            });
        }
    }
    let pinned: [(Name, &[CpuId], usize); 2] = [
        (Holder::Vcpus, &planned.vcpu_pins, view.vcpus.len()),
        (Holder::Vhost, &planned.vhost_pins, view.vhost.len()),
    ];
    for ((what, pins, threads), (_, set)) in pinned.into_iter().zip(sets) {
        if !pins.is_empty() && pins.len() != threads {
            found.push(Violation::PinCount {
                what: what(id.clone()),
                pins: pins.len(),
                threads,
            });
        }
        if let Some(&cpu) = pins.iter().find(|&&cpu| !set.contains(cpu)) {
            found.push(Violation::PinOutside {
                what: what(id.clone()),
                cpu,
            });
        }
    }
    asked(planned, view, found);
}

fn suspended(scene: &Scene<'_>, plan: &Plan, planned: &GuestPlan, found: &mut Vec<Violation>) {
    let guest = planned.guest.clone();
    if planned.class != Class::BestEffort {
        found.push(Violation::Suspended {
            guest,
            class: planned.class,
        });
        return;
    }
    let free = plan.groups.best_effort.union(&plan.groups.idle);
    if !matches!(
        scene.intent.partition.policy,
        PartitionPolicy::Resource | PartitionPolicy::Demeter { .. }
    ) {
        found.push(Violation::SuspendedByPolicy { guest });
    } else if !free.is_empty() {
        found.push(Violation::SuspendedNeedlessly { guest, cpus: free });
    }
}

fn asked(planned: &GuestPlan, view: &GuestView, found: &mut Vec<Violation>) {
    if planned.vcpus_active.is_none() && planned.queues.is_none() {
        return;
    }
    let guest = &planned.guest;
    let Some(agent) = relied_on(view) else {
        found.push(Violation::NobodyToAsk {
            guest: guest.clone(),
        });
        return;
    };
    if let Some(asked) = planned.vcpus_active {
        let most = u32::try_from(view.vcpus.len()).unwrap_or(u32::MAX);
        if asked < 1 || asked > most {
            found.push(Violation::VcpusAsked {
                guest: guest.clone(),
                asked,
                most,
            });
        }
    }
    if let Some(asked) = planned.queues
        && (asked < 1 || asked > agent.queues_max)
    {
        found.push(Violation::QueuesAsked {
            guest: guest.clone(),
            asked,
            most: agent.queues_max,
        });
    }
}

fn relied_on(view: &GuestView) -> Option<&AgentState> {
    view.agent
        .as_ref()
        .filter(|agent| agent.health == AgentHealth::Healthy)
        .and_then(|agent| agent.state.as_ref())
}
