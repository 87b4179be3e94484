//! Where the threads on packets' ways run: each has one place, and what says so twice says the same.

use std::collections::BTreeMap;

use ostler_model::{Class, CpuId, IrqId, Layer, PartitionPolicy, Plan, Ring, RunState, ThreadCore};

use crate::{Holder, Scene, Violation};

pub(crate) fn check(scene: &Scene<'_>, plan: &Plan, found: &mut Vec<Violation>) {
    lines(plan, found);
    let Some(placement) = &plan.placement else {
        return;
    };
    let layer = Layer::Placement;
    let compared = matches!(
        scene.intent.partition.policy,
        PartitionPolicy::CoreNap | PartitionPolicy::Demeter { .. }
    );
    let shares = matches!(
        scene.intent.partition.policy,
        PartitionPolicy::TimeSharing { .. }
    );
    let Some(settings) = &scene.intent.placement else {
        found.push(Violation::Unasked { layer });
        return;
    };
    if compared
        || (plan.groups.shared && !shares)
        || (!settings.vcpus && !placement.vcpus.is_empty())
    {
        found.push(Violation::Unasked { layer });
    }
    if placement.since > plan.at {
        found.push(Violation::Since { layer });
    }
    let queues = placement.softirqs.windows(2);
    let ordered = queues
        .map(|two| (&two[0].nic, two[0].queue) < (&two[1].nic, two[1].queue))
        .chain(
            [&placement.workers, &placement.vcpus]
                .into_iter()
                .flat_map(|list| {
                    list.windows(2)
                        .map(|two| (&two[0].guest, two[0].at) < (&two[1].guest, two[1].at))
                }),
        );
    if !ordered.into_iter().all(|ordered| ordered) {
        found.push(Violation::Twice { layer });
    }
    softirqs(plan, found);
    for (threads, name, pins) in [
        (
            &placement.workers,
            Holder::Vhost as fn(_) -> _,
            (|guest| &guest.vhost_pins) as fn(&ostler_model::GuestPlan) -> &Vec<CpuId>,
        ),
        (&placement.vcpus, Holder::Vcpus, |guest| &guest.vcpu_pins),
    ] {
        for thread in threads {
            let given = plan.guests.iter().find(|given| given.guest == thread.guest);
            let given = given.filter(|given| {
                given.class == Class::LatencyCritical && given.run == RunState::Running
            });
            place(thread, name, given.map(pins), found);
        }
    }
}

fn place(
    thread: &ThreadCore,
    name: fn(ostler_model::GuestId) -> Holder,
    pins: Option<&Vec<CpuId>>,
    found: &mut Vec<Violation>,
) {
    match pins.and_then(|pins| pins.get(thread.at as usize)) {
        None => found.push(Violation::PlacedNothing {
            what: name(thread.guest.clone()),
        }),
        Some(pin) if *pin != thread.cpu => found.push(Violation::TwoPlaces {
            what: name(thread.guest.clone()),
            first: thread.cpu.to_string(),
            second: pin.to_string(),
        }),
        Some(_) => {}
    }
}

/// A queue that is placed has its interrupts there, and no softirq work elsewhere.
fn softirqs(plan: &Plan, found: &mut Vec<Violation>) {
    let placed = plan
        .placement
        .iter()
        .flat_map(|placement| &placement.softirqs);
    for queue in placed {
        let what = || Holder::Queue(queue.nic.clone(), queue.queue);
        let nic = plan.nics.iter().find(|nic| nic.name == queue.nic);
        let nic = nic.filter(|nic| queue.queue < nic.queues);
        let irqs = nic.iter().flat_map(|nic| &nic.irqs);
        let irqs: Vec<_> = irqs.filter(|irq| irq.queue == queue.queue).collect();
        if !irqs.iter().any(|irq| irq.ring == Ring::Receive) {
            found.push(Violation::PlacedNothing { what: what() });
            continue;
        }
        let spread = nic.and_then(|nic| nic.rps.get(queue.queue as usize));
        let spread = spread.filter(|spread| !spread.is_empty());
        for set in irqs.iter().map(|irq| &irq.cpus).chain(spread) {
            if set.len() != 1 || !set.contains(queue.cpu) {
                found.push(Violation::TwoPlaces {
                    what: what(),
                    first: queue.cpu.to_string(),
                    second: set.to_string(),
                });
            }
        }
    }
}

/// An interrupt line goes to one place, however many queues share it.
fn lines(plan: &Plan, found: &mut Vec<Violation>) {
    let mut lines = BTreeMap::<IrqId, _>::new();
    for nic in &plan.nics {
        for irq in &nic.irqs {
            let first = lines.entry(irq.irq).or_insert(irq.cpus);
            if *first != irq.cpus {
                found.push(Violation::TwoPlaces {
                    what: Holder::Irq(irq.irq),
                    first: first.to_string(),
                    second: irq.cpus.to_string(),
                });
            }
        }
    }
}
