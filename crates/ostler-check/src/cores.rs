//! The ledger of cores.

use ostler_model::{Class, CpuId, CpuSet, Group, Plan};

use crate::{Holder, Scene, Violation};

pub(crate) fn check(scene: &Scene<'_>, plan: &Plan, found: &mut Vec<Violation>) {
    let groups = &plan.groups;
    let all = [
        (Group::Vcpu, groups.vcpu),
        (Group::Nq, groups.nq),
        (Group::BestEffort, groups.best_effort),
        (Group::Idle, groups.idle),
    ];
    if groups.reserved != scene.reserved {
        found.push(Violation::ReservedDiffer {
            expected: scene.reserved,
            found: groups.reserved,
        });
    }
    let mut owned = CpuSet::EMPTY;
    for (group, set) in all {
        owned = owned.union(&set);
        let strange = set.difference(&scene.managed);
        if !strange.is_empty() {
            found.push(Violation::NotManaged {
                what: Holder::Group(group),
                cpus: strange,
            });
        }
        let reserved = set.intersection(&scene.reserved);
        if !reserved.is_empty() {
            found.push(Violation::Reserved {
                what: Holder::Group(group),
                cpus: reserved,
            });
        }
    }
    for (at, (first, a)) in all.iter().enumerate() {
        for (second, b) in &all[at + 1..] {
            let queues = *first == Group::Nq || *second == Group::Nq;
            let idle = *first == Group::Idle || *second == Group::Idle;
            let both = a.intersection(b);
            let by_design = groups.shared && queues && !idle;
            if !by_design && !both.is_empty() {
                found.push(Violation::TwoOwners {
                    cpus: both,
                    first: *first,
                    second: *second,
                });
            }
        }
    }
    let nobodys = scene.available.difference(&owned);
    if !nobodys.is_empty() {
        found.push(Violation::NoOwner { cpus: nobodys });
    }
    needs(scene, plan, found);
    siblings(scene, plan, found);
}

fn needs(scene: &Scene<'_>, plan: &Plan, found: &mut Vec<Violation>) {
    let groups = &plan.groups;
    if scene.available.is_empty() {
        return;
    }
    if groups.vcpu.is_empty() && scene.any(Class::LatencyCritical) {
        found.push(Violation::EmptyGroup {
            group: Group::Vcpu,
            needed_by: "a latency-critical guest",
        });
    }
    if groups.nq.is_empty() {
        let workers = scene
            .guests
            .iter()
            .any(|(guest, class)| *class == Class::LatencyCritical && !guest.vhost.is_empty());
        let nics = scene
            .snapshot
            .nics
            .iter()
            .any(|nic| scene.intent.nics.contains(&nic.name));
        if workers || nics {
            found.push(Violation::EmptyGroup {
                group: Group::Nq,
                needed_by: if nics { "a NIC" } else { "a vhost worker" },
            });
        }
    }
    if !groups.best_effort.is_empty() && !scene.any(Class::BestEffort) {
        found.push(Violation::NobodysCores {
            cpus: groups.best_effort,
        });
    }
}

fn siblings(scene: &Scene<'_>, plan: &Plan, found: &mut Vec<Violation>) {
    let groups = &plan.groups;
    // (physical core, CPU), so that siblings are neighbours.
    let mut cpus: Vec<(CpuId, CpuId)> = scene
        .facts
        .topology
        .cpus
        .iter()
        .filter(|cpu| scene.available.contains(cpu.id))
        .map(|cpu| (cpu.core, cpu.id))
        .collect();
    cpus.sort_unstable();
    let membership = |cpu: CpuId| {
        [groups.vcpu, groups.nq, groups.best_effort, groups.idle].map(|set| set.contains(cpu))
    };
    let cores: Vec<_> = cpus.chunk_by(|a, b| a.0 == b.0).collect();
    if cores.len() < 2 {
        return;
    }
    for siblings in cores {
        let (core, first) = siblings[0];
        let here = membership(first);
        if siblings[1..]
            .iter()
            .any(|&(_, cpu)| membership(cpu) != here)
        {
            found.push(Violation::SiblingsSplit { core });
        }
    }
}
