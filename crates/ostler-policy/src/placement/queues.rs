//! For whom each queue's chain is placed, and which queue is first (paper, section IV.B.3).
//!
//! A queue brings packets for many guests, and one chain of cores handles them. It is placed for the **dominant** one: that with a priority, else with the
//! most packets a second. Queues go in order of priority, then of traffic, since the first has the choice of all cores.

use super::ground::in_order;
use super::problem::{Flow, Index, Queue};

/// A queue whose turn it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    /// Which.
    pub(super) queue: Index,
    /// For which of its flows.
    pub(super) flow: Index,
    /// All its packets.
    pub(super) packets: f64,
    /// The least goes first.
    rank: u128,
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

/// Queues that bring anything, in the order in which they are placed, into `order`.
pub(super) fn order(queues: &[Queue<'_>], order: &mut Vec<Turn>) {
    order.clear();
    for (number, queue) in (0..).zip(queues) {
        let Some(flow) = dominant(queue) else {
            continue;
        };
        let packets = traffic(queue);
        let rest = u128::from(!queue.flows[flow].priority);
        order.push(Turn {
            queue: number,
            flow: u32::try_from(flow).unwrap_or(u32::MAX),
            packets,
            rank: rest << 96 | u128::from(!in_order(packets)) << 32 | u128::from(number),
        });
    }
    order.sort_unstable_by_key(|turn| turn.rank);
}
