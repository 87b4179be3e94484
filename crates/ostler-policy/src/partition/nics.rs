//! What each physical NIC is given: its number of queues, and where their interrupts and softirqs run.
//!
//! With `n` network queue CPUs a NIC spreads packets over its first `n` queues, and the interrupt of queue `i` goes to the `i`-th CPU: one
//! core handles a packet from the NIC's interrupt to the guest's vhost worker. A NIC may have fewer queues than that; RPS then
//! spreads each queue's softirq work over the CPUs `i, i + queues, i + 2 queues, ...`, so that a NIC with a single queue uses all
//! of them. Where a driver has vectors of their own for what is sent, a queue's goes where its other does: left on a vCPU's core it would interrupt that as
//! often as answers leave, while XPS has the queue's own CPU send by it. Where every queue has a CPU of its own, RPS is off: handing packets over would only cost. Queues out of use are
//! parked on network queue CPUs too, as an interrupt of theirs may still be on its way.
//!
//! XPS lets each CPU send by the queue whose interrupt is its own. Every other CPU is given one of the queues in use in turn: the kernel
//! would otherwise hash its sends over all queues, those out of use among them.

use ostler_model::{
    CpuId, CpuSet, IrqId, IrqPlan, MAX_CPUS, NicFacts, NicPlan, NicView, QueueCount, Reason, Ring,
};

use super::Queues;
use crate::Seen;

/// The NICs in the steward's care that are there, in order of name.
pub fn present<'a>(seen: &Seen<'a>) -> Vec<(&'a NicView, Option<&'a NicFacts>)> {
    let mut nics: Vec<_> = seen
        .snapshot
        .nics
        .iter()
        .filter(|nic| seen.intent.nics.contains(&nic.name))
        .map(|nic| {
            let facts = seen.facts.nics.iter().find(|facts| facts.name == nic.name);
            (nic, facts)
        })
        .collect();
    nics.sort_by(|a, b| a.0.name.cmp(&b.0.name));
    nics.dedup_by(|a, b| a.0.name == b.0.name);
    nics
}

/// Says which NICs the intent names and nobody finds.
pub fn name_absent(seen: &Seen<'_>, reasons: &mut Vec<Reason>) {
    for name in &seen.intent.nics {
        if !seen.snapshot.nics.iter().any(|nic| &nic.name == name) {
            reasons.push(Reason::NicAbsent { nic: name.clone() });
        }
    }
}

/// Plans the NICs. `order` are the network queue CPUs in order of preference; without any, NICs stay as they are.
pub fn plan(
    seen: &Seen<'_>,
    nics: &[(&NicView, Option<&NicFacts>)],
    queues: Queues,
    order: &[CpuId],
    reasons: &mut Vec<Reason>,
) -> Vec<NicPlan> {
    if order.is_empty() {
        return Vec::new();
    }
    let online = seen.facts.topology.online();
    let mut plans: Vec<NicPlan> = nics
        .iter()
        .map(|&(view, facts)| {
            let most = queues_of_device(view, facts);
            let settable = facts.is_some_and(|facts| facts.rss_settable);
            let in_use = match (settable, queues) {
                (false, _) => {
                    let stays = view.queues.max(1);
                    if stays > 1 || most > 1 {
                        reasons.push(Reason::QueuesFixed {
                            nic: view.name.clone(),
                            queues: stays,
                        });
                    }
                    stays
                }
                (true, Queues::PerCore) => count(order.len()).clamp(1, most),
                (true, Queues::Fixed(QueueCount::One)) => 1,
                (true, Queues::Fixed(QueueCount::Max)) => most,
            };
            let entries = most.max(in_use).min(MAX_CPUS) as usize;
            let irqs = view.irqs.iter().map(|irq| IrqPlan {
                irq: irq.irq,
                queue: irq.queue,
                ring: irq.ring,
                cpus: CpuSet::single(order[irq.queue as usize % order.len()]),
            });
            let mut irqs: Vec<IrqPlan> = irqs.collect();
            irqs.sort_by_key(|irq| (irq.ring, irq.queue));
            NicPlan {
                name: view.name.clone(),
                queues: in_use,
                irqs,
                xps: xps(&online, order, in_use as usize, entries),
                rps: rps(queues, order, in_use as usize, entries),
            }
        })
        .collect();
    let mut shared = Vec::new();
    shared_lines(&plans, &mut shared);
    for line in shared {
        let irqs = plans.iter_mut().flat_map(|plan| &mut plan.irqs);
        let mut first = None;
        for irq in irqs.filter(|irq| irq.irq == line) {
            irq.cpus = *first.get_or_insert(irq.cpus);
        }
    }
    plans
}

/// Interrupt lines that several queues share, in order, which can go to one place only. Message-signalled ones are their queue's own.
pub fn shared_lines(plans: &[NicPlan], shared: &mut Vec<IrqId>) {
    shared.clear();
    let lines = || plans.iter().flat_map(|plan| &plan.irqs).map(|irq| irq.irq);
    // As drivers number them, none is.
    if lines().is_sorted_by(|a, b| a < b) {
        return;
    }
    shared.extend(lines());
    shared.sort_unstable();
    let mut last = None;
    shared.retain(|line| last.replace(*line) == Some(*line));
    shared.dedup();
}

/// How many queues a device has, at least one. What the facts say may be too much where queues lack an interrupt.
fn queues_of_device(view: &NicView, facts: Option<&NicFacts>) -> u32 {
    let receive = view.irqs.iter().filter(|irq| irq.ring == Ring::Receive);
    let by_irqs = receive.map(|irq| irq.queue.saturating_add(1)).max();
    let by_facts = facts.map(|facts| facts.queues_max);
    match (by_facts, by_irqs) {
        (Some(facts), Some(irqs)) => facts.min(irqs),
        (Some(most), None) | (None, Some(most)) => most,
        (None, None) => view.queues,
    }
    .clamp(1, MAX_CPUS)
}

fn xps(online: &CpuSet, order: &[CpuId], in_use: usize, most: usize) -> Vec<CpuSet> {
    let mut sets = vec![CpuSet::EMPTY; most];
    let mut own = CpuSet::EMPTY;
    for (&cpu, queue) in order.iter().zip((0..in_use.min(most)).cycle()) {
        sets[queue].insert(cpu);
        own.insert(cpu);
    }
    for (cpu, queue) in online.difference(&own).iter().zip((0..in_use).cycle()) {
        sets[queue].insert(cpu);
    }
    sets
}

/// Lets each CPU send by the queue whose interrupt is its own, and the others by all in turn.
pub fn send_by(plan: &mut NicPlan, online: &CpuSet) {
    let in_use = (plan.queues as usize).min(plan.xps.len());
    let mut own = CpuSet::EMPTY;
    plan.xps.fill(CpuSet::EMPTY);
    for irq in plan.irqs.iter().filter(|irq| irq.ring == Ring::Receive) {
        let (queue, cpu) = (irq.queue as usize, irq.cpus.first());
        if let Some(cpu) = cpu.filter(|cpu| queue < in_use && !own.contains(*cpu)) {
            own.insert(cpu);
            plan.xps[queue].insert(cpu);
        }
    }
    for (cpu, queue) in online.difference(&own).iter().zip((0..in_use).cycle()) {
        plan.xps[queue].insert(cpu);
    }
}

fn rps(queues: Queues, order: &[CpuId], in_use: usize, most: usize) -> Vec<CpuSet> {
    let mut sets = vec![CpuSet::EMPTY; most];
    // The baselines with a fixed number of queues are meant to process packets where they arrive.
    if queues == Queues::PerCore && in_use < order.len() {
        for (at, &cpu) in order.iter().enumerate() {
            sets[at % in_use].insert(cpu);
        }
        for set in &mut sets {
            // A queue that is left with its own CPU alone has nobody to hand packets to.
            if set.len() < 2 {
                *set = CpuSet::EMPTY;
            }
        }
    }
    sets
}

fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
