//! A placement in the plans of NICs and guests.

use std::cmp::Ordering;
use std::ops::Range;

use ostler_model::{
    Class, CpuId, CpuSet, Groups, GuestId, GuestPlan, IrqId, NicPlan, PlacementPlan, QueueCore,
    Ring, RunState, ThreadCore,
};

use crate::Seen;
use crate::partition::demand::old_after;
use crate::partition::{Partition, nics};

/// Whether a placement can be carried out with these groups and guests.
pub(super) fn fits(
    seen: &Seen<'_>,
    groups: &Groups,
    partition: &Partition,
    shared: &[IrqId],
    plan: &PlacementPlan,
) -> bool {
    let wanted = seen.intent.placement.as_ref();
    let queue = |placed: &QueueCore| {
        let nics = &partition.nics;
        let nic = nics.binary_search_by(|nic| nic.name.cmp(&placed.nic));
        nic.is_ok_and(|nic| {
            let nic = &nics[nic];
            let mut lines = irqs(nic, placed.queue).map(|at| nic.irqs[at].irq);
            let alone = lines.all(|line| shared.binary_search(&line).is_err());
            alone && !receive(nic, placed.queue).is_empty() && placed.queue < nic.queues
        }) && groups.nq.contains(placed.cpu)
    };
    plan.softirqs.iter().all(queue)
        && threads(partition, &plan.workers, |at, guest, placed| {
            guest.vhost_cpus.contains(placed.cpu)
                && places_worker(seen, groups, partition, at, placed.at as usize)
        })
        && (plan.vcpus.is_empty() || wanted.is_some_and(|settings| settings.vcpus))
        && threads(partition, &plan.vcpus, |at, guest, placed| {
            (placed.at as usize) < seen.roster.members()[at].view.vcpus.len()
                && guest.vcpu_cpus.contains(placed.cpu)
                && places_vcpus(seen, groups, partition, at)
        })
}

/// Whether a guest's vCPUs are this layer's to place, where it is to place any: they may be pinned at all, and there is a core for each.
pub(super) fn places_vcpus(
    seen: &Seen<'_>,
    groups: &Groups,
    partition: &Partition,
    guest: usize,
) -> bool {
    let (given, view) = (&partition.guests[guest], seen.roster.members()[guest].view);
    let enough = view.vcpus.len() <= groups.vcpu.len() as usize || !given.vcpu_pins.is_empty();
    given.class == Class::LatencyCritical
        && given.run == RunState::Running
        && view.age <= old_after(seen)
        && enough
}

/// Whether a guest's worker is this layer's to place: partition has tied it to a core, or all cores are one pool.
pub(super) fn places_worker(
    seen: &Seen<'_>,
    groups: &Groups,
    partition: &Partition,
    guest: usize,
    at: usize,
) -> bool {
    let (given, view) = (&partition.guests[guest], seen.roster.members()[guest].view);
    if groups.shared {
        return given.class == Class::LatencyCritical
            && given.run == RunState::Running
            && view.age <= old_after(seen)
            && at < view.vhost.len();
    }
    at < given.vhost_pins.len()
}

/// Whether all of these threads are of guests in the plan and something holds of them. Both stand in order of guest.
fn threads(
    partition: &Partition,
    placed: &[ThreadCore],
    holds: impl Fn(usize, &GuestPlan, &ThreadCore) -> bool,
) -> bool {
    let mut at = 0;
    placed.iter().all(|thread| {
        let found = seek(&partition.guests, &mut at, &thread.guest);
        found && holds(at, &partition.guests[at], thread)
    })
}

/// Goes on to a guest, if it is there.
fn seek(guests: &[GuestPlan], at: &mut usize, id: &GuestId) -> bool {
    while let Some(guest) = guests.get(*at) {
        match guest.guest.cmp(id) {
            Ordering::Less => *at += 1,
            Ordering::Equal => return true,
            Ordering::Greater => return false,
        }
    }
    false
}

/// The places of a queue's interrupts for what it receives; none where it has none.
pub(super) fn receive(nic: &NicPlan, queue: u32) -> Range<usize> {
    of_ring(nic, Ring::Receive, queue)
}

/// The places of all of a queue's interrupts.
pub(super) fn irqs(nic: &NicPlan, queue: u32) -> impl Iterator<Item = usize> + use<> {
    receive(nic, queue).chain(of_ring(nic, Ring::Transmit, queue))
}

/// They stand in order of ring and queue.
fn of_ring(nic: &NicPlan, ring: Ring, queue: u32) -> Range<usize> {
    let wanted = (ring, queue);
    let first = nic
        .irqs
        .partition_point(|irq| (irq.ring, irq.queue) < wanted);
    let rest = nic.irqs[first..].iter();
    let count = rest.take_while(|irq| (irq.ring, irq.queue) == wanted);
    first..first + count.count()
}

/// Has the plans of NICs and guests say what a placement says, which fits.
pub(super) fn enter(seen: &Seen<'_>, partition: &mut Partition, plan: &PlacementPlan) {
    let online = seen.facts.topology.online();
    for placed in plan.softirqs.chunk_by(|a, b| a.nic == b.nic) {
        let name = &placed[0].nic;
        let nic = partition.nics.binary_search_by(|nic| nic.name.cmp(name));
        let Some(nic) = nic.ok().map(|at| &mut partition.nics[at]) else {
            continue;
        };
        for queue in placed {
            for at in irqs(nic, queue.queue) {
                nic.irqs[at].cpus = CpuSet::single(queue.cpu);
            }
            if let Some(spread) = nic.rps.get_mut(queue.queue as usize) {
                *spread = CpuSet::EMPTY;
            }
        }
        nics::send_by(nic, &online);
    }
    let mut at = 0;
    for placed in plan.workers.chunk_by(|a, b| a.guest == b.guest) {
        if seek(&partition.guests, &mut at, &placed[0].guest) {
            let workers = seen.roster.members()[at].view.vhost.len();
            let guest = &mut partition.guests[at];
            pin(
                &mut guest.vhost_pins,
                &guest.vhost_cpus,
                (at, workers),
                placed,
            );
        }
    }
    let mut at = 0;
    for placed in plan.vcpus.chunk_by(|a, b| a.guest == b.guest) {
        if seek(&partition.guests, &mut at, &placed[0].guest) {
            let vcpus = seen.roster.members()[at].view.vcpus.len();
            let guest = &mut partition.guests[at];
            pin(&mut guest.vcpu_pins, &guest.vcpu_cpus, (at, vcpus), placed);
        }
    }
}

/// Pins those that are placed of a guest's threads of a kind, of which there are so many. They are pinned all or none: the others are, in turn, beginning
/// elsewhere for each guest.
fn pin(
    pins: &mut Vec<CpuId>,
    cpus: &CpuSet,
    (guest, threads): (usize, usize),
    placed: &[ThreadCore],
) {
    if pins.is_empty() {
        let cpus: Vec<CpuId> = cpus.iter().collect();
        let first = guest * threads % cpus.len().max(1);
        pins.extend(cpus.iter().cycle().skip(first).take(threads));
    }
    for thread in placed {
        if let Some(pin) = pins.get_mut(thread.at as usize) {
            *pin = thread.cpu;
        }
    }
}
