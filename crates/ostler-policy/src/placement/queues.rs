//! For whom each queue's chain is placed, and which queue is first (paper, section IV.B.3).
//!
//! A queue brings packets for many guests, and one chain of cores handles them. It is placed for the **dominant** one: that with a priority, else with the
//! most packets a second. Queues go in order of priority, then of traffic, since the first has the choice of all cores.

use super::problem::{Flow, Queue};

/// The flow that a queue's chain is placed for: where it is in [`Queue::flows`]. The first of equals.
pub(super) fn dominant(queue: &Queue<'_>) -> Option<usize> {
    let mut best: Option<(usize, &Flow<'_>)> = None;
    for (at, flow) in queue.flows.iter().enumerate() {
        let better = best
            .is_none_or(|(_, best)| (flow.priority, flow.packets) > (best.priority, best.packets));
        if better {
            best = Some((at, flow));
        }
    }
    best.map(|(at, _)| at)
}

/// All packets of a queue.
pub(super) fn traffic(queue: &Queue<'_>) -> f64 {
    queue.flows.iter().map(|flow| flow.packets).sum()
}

/// Queues that bring anything, in the order in which they are placed, into `order`.
pub(super) fn order(queues: &[Queue<'_>], order: &mut Vec<(u32, u32)>) {
    order.clear();
    for (at, queue) in (0..).zip(queues) {
        if let Some(flow) = dominant(queue) {
            order.push((at, u32::try_from(flow).unwrap_or(u32::MAX)));
        }
    }
    let key = |&(queue, flow): &(u32, u32)| {
        let queue = &queues[queue as usize];
        (queue.flows[flow as usize].priority, traffic(queue))
    };
    order.sort_unstable_by(|a, b| {
        let ((first, more), (second, less)) = (key(a), key(b));
        second
            .cmp(&first)
            .then(less.total_cmp(&more))
            .then(a.0.cmp(&b.0))
    });
}
