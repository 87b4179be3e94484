//! For whom each queue's chain is placed, and which queue is first (paper, section IV.B.3).
//!
//! A queue brings packets for many guests, and one chain of cores handles them. It is placed for the **dominant** one: that with a priority, else with the
//! most packets a second. Queues go in order of priority, then of traffic, since the first has the choice of all cores.
//!
//! Changed: the threads of the others are somewhere, too, and those that no dominant chain has would be left to float among all cores. So other flows' chains come after these, in
//! the same order by their own packets; and of these only such as have a thread that isn't placed by then.

use std::cmp::Reverse;

use super::ground::in_order;
use super::problem::{Flow, Index, Queue};

/// A chain whose turn it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    /// Of which queue.
    pub(super) queue: Index,
    /// For which of its flows.
    pub(super) flow: Index,
    /// It is the queue's own; another one is placed only for threads that aren't.
    pub(super) dominant: bool,
    priority: bool,
    /// The queue's packets, or of another one the flow's.
    packets: u64,
}

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
fn traffic(queue: &Queue<'_>) -> f64 {
    queue.flows.iter().map(|flow| flow.packets).sum()
}

/// All flows of queues that bring anything, in the order in which they are placed, into `order`.
pub(super) fn order(queues: &[Queue<'_>], order: &mut Vec<Turn>) {
    order.clear();
    for (number, queue) in (0..).zip(queues) {
        let Some(first) = dominant(queue) else {
            continue;
        };
        let all = traffic(queue);
        for (at, flow) in queue.flows.iter().enumerate() {
            let dominant = at == first;
            order.push(Turn {
                queue: number,
                flow: u32::try_from(at).unwrap_or(u32::MAX),
                dominant,
                priority: flow.priority,
                packets: in_order(if dominant { all } else { flow.packets }),
            });
        }
    }
    order.sort_unstable_by_key(|turn| {
        let first = Reverse((turn.dominant, turn.priority, turn.packets));
        (first, turn.queue, turn.flow)
    });
}
