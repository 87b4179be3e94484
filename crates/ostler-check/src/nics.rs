//! What NICs are given.

use ostler_model::{CpuSet, IrqId, NicPlan, NicView, Plan, Ring};

use crate::{Scene, Violation};

pub(crate) fn check(scene: &Scene<'_>, plan: &Plan, found: &mut Vec<Violation>) {
    let ours = |name: &String| scene.intent.nics.contains(name);
    let mut last: Option<&String> = None;
    for planned in &plan.nics {
        let view = scene
            .snapshot
            .nics
            .iter()
            .find(|nic| nic.name == planned.name);
        let in_order = last.is_none_or(|last| *last < planned.name);
        last = Some(&planned.name);
        match view {
            Some(view) if ours(&planned.name) && in_order => {
                nic(scene, plan, planned, view, found);
            }
            _ => found.push(Violation::UnknownNic {
                nic: planned.name.clone(),
            }),
        }
    }
    if scene.available.is_empty() {
        return;
    }
    for view in scene.snapshot.nics.iter().filter(|nic| ours(&nic.name)) {
        if !plan.nics.iter().any(|planned| planned.name == view.name) {
            found.push(Violation::MissingNic {
                nic: view.name.clone(),
            });
        }
    }
}

fn nic(
    scene: &Scene<'_>,
    plan: &Plan,
    planned: &NicPlan,
    view: &NicView,
    found: &mut Vec<Violation>,
) {
    let facts = scene
        .facts
        .nics
        .iter()
        .find(|facts| facts.name == planned.name);
    let settable = facts.is_some_and(|facts| facts.rss_settable);
    // A device that the facts don't know yet, or that can't be set, has at least what it uses and what has an interrupt.
    let receive = view.irqs.iter().filter(|irq| irq.ring == Ring::Receive);
    let by_irqs = receive.map(|irq| irq.queue.saturating_add(1)).max();
    let most = match facts {
        Some(facts) if settable => facts.queues_max,
        facts => view
            .queues
            .max(by_irqs.unwrap_or(0))
            .max(facts.map_or(0, |facts| facts.queues_max)),
    }
    .max(1);
    if planned.queues < 1 || planned.queues > most {
        found.push(Violation::NicQueues {
            nic: planned.name.clone(),
            queues: planned.queues,
            most,
        });
    } else if !settable && planned.queues != view.queues.max(1) {
        found.push(Violation::NicQueuesFixed {
            nic: planned.name.clone(),
            from: view.queues,
            to: planned.queues,
        });
    }
    interrupts(plan, planned, view, found);
    steering(scene, plan, planned, most, found);
}

fn interrupts(plan: &Plan, planned: &NicPlan, view: &NicView, found: &mut Vec<Violation>) {
    let there = view.irqs.iter().map(|irq| (irq.irq, irq.ring, irq.queue));
    let mut there: Vec<(IrqId, Ring, u32)> = there.collect();
    let given = planned
        .irqs
        .iter()
        .map(|irq| (irq.irq, irq.ring, irq.queue));
    let mut given: Vec<(IrqId, Ring, u32)> = given.collect();
    there.sort_unstable();
    given.sort_unstable();
    if there != given {
        let differs = there
            .iter()
            .zip(&given)
            .find(|(a, b)| a != b)
            .map(|(a, b)| a.min(b))
            .or_else(|| there.get(given.len()))
            .or_else(|| given.get(there.len()));
        if let Some(&(irq, ..)) = differs {
            found.push(Violation::NicIrqs {
                nic: planned.name.clone(),
                irq,
            });
        }
    }
    for irq in &planned.irqs {
        if irq.cpus.is_empty() || !irq.cpus.is_subset(&plan.groups.nq) {
            found.push(Violation::IrqElsewhere {
                nic: planned.name.clone(),
                irq: irq.irq,
                cpus: irq.cpus,
            });
        }
    }
}

fn steering(
    scene: &Scene<'_>,
    plan: &Plan,
    planned: &NicPlan,
    most: u32,
    found: &mut Vec<Violation>,
) {
    let kinds: [(&'static str, &[CpuSet], &CpuSet); 2] = [
        ("XPS", &planned.xps, &scene.online),
        ("RPS", &planned.rps, &plan.groups.nq),
    ];
    for (what, sets, within) in kinds {
        if sets.len() > most as usize {
            found.push(Violation::SteeringEntries {
                nic: planned.name.clone(),
                what,
                entries: sets.len(),
                most,
            });
        }
        for (queue, set) in sets.iter().enumerate() {
            let strange = set.difference(within);
            if !strange.is_empty() {
                found.push(Violation::SteeringElsewhere {
                    nic: planned.name.clone(),
                    what,
                    queue,
                    cpus: strange,
                });
            }
        }
    }
    for (queue, set) in planned.xps.iter().enumerate() {
        if queue >= planned.queues as usize && !set.is_empty() {
            found.push(Violation::SendsByUnusedQueue {
                nic: planned.name.clone(),
                queue,
            });
        }
    }
}
