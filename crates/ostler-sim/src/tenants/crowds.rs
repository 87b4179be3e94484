//! Who crowds a node's memory, and what that makes of it.
//!
//! What a message costs more for coming from another node ([`crate::path::Costs::handoff`], `nic_far`) is what one guest's messages cost that are alone there. Where
//! more guests are at a node, their buffers drive each other out of its last-level cache, and each waits longer for what comes from afar: 3.8 times as long
//! with five of them, as was measured ([`crate::costs::path::CROWD`]). At a node are those whose messages came to it from afar a moment ago, and those that work on much memory
//! (`memory_waits`) while they have a core of it.

use ostler_model::{Nanos, NodeId};

use crate::costs::{INSTRUCTION_NS, path as table};
use crate::guest::Guest;
use crate::path::Ground;
use crate::round::nanos;
use crate::work::FULL_SPEED;

/// The guests at each node.
#[derive(Clone, Debug, Default)]
pub(super) struct Crowds {
    nodes: Vec<Node>,
    /// When the present moment ends.
    ends: Nanos,
}

#[derive(Clone, Debug)]
struct Node {
    /// Whose messages came in the present moment, a bit each.
    guests: Vec<u64>,
    /// What penalties are times by the last one, in parts of [`FULL_SPEED`].
    pressure: u32,
}

impl Crowds {
    /// Of a host with so many guests.
    pub(super) fn new(ground: &Ground, guests: usize) -> Crowds {
        let node = Node {
            guests: vec![0; guests.div_ceil(64)],
            pressure: FULL_SPEED,
        };
        Crowds {
            nodes: vec![node; ground.nodes()],
            ends: Nanos::ZERO,
        }
    }

    /// What penalties on a node are times, in parts of [`FULL_SPEED`].
    pub(super) fn pressure(&self, node: NodeId) -> u32 {
        let node = self.nodes.get(node.0 as usize);
        node.map_or(FULL_SPEED, |node| node.pressure)
    }

    /// A guest's message comes to a node from afar.
    pub(super) fn take(
        &mut self,
        node: NodeId,
        guest: u32,
        now: Nanos,
        guests: &[Guest],
        ground: &Ground,
    ) {
        if now >= self.ends {
            self.turn(now, guests, ground);
        }
        if let Some(node) = self.nodes.get_mut(node.0 as usize) {
            node.guests[guest as usize / 64] |= 1 << (guest % 64);
        }
    }

    /// The moment is over: who was there is who counts in the next.
    fn turn(&mut self, now: Nanos, guests: &[Guest], ground: &Ground) {
        let moment = table::CROWD_TIME.nanos(INSTRUCTION_NS);
        if now >= self.ends.saturating_add(moment) {
            // Nobody came meanwhile.
            self.nodes.iter_mut().for_each(|node| node.guests.fill(0));
        }
        for (number, guest) in guests.iter().enumerate() {
            if guest.memory_waits <= 0.0 || guest.resting || guest.dead {
                continue;
            }
            for cpu in guest.vcpus.iter().filter_map(|vcpu| vcpu.on) {
                if let Some(node) = self.nodes.get_mut(ground.node(cpu).0 as usize) {
                    node.guests[number / 64] |= 1 << (number % 64);
                }
            }
        }
        for node in &mut self.nodes {
            let there = node.guests.iter().map(|bits| bits.count_ones()).sum();
            node.pressure = pressure(there);
            node.guests.fill(0);
        }
        self.ends = now.saturating_add(moment);
    }
}

/// What penalties are times with so many guests at a node.
fn pressure(guests: u32) -> u32 {
    let most = table::CROWD_GUESTS.value;
    let beside = f64::from(guests.max(1)).min(most) - 1.0;
    let times = 1.0 + (table::CROWD.value - 1.0) * beside / (most - 1.0);
    nanos(times * f64::from(FULL_SPEED)).0 as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn penalties_rise_from_one_guest_to_five() {
        let times = |guests| f64::from(pressure(guests)) / f64::from(FULL_SPEED);
        let all: Vec<f64> = (0..8).map(times).collect();
        let wanted = [1.0, 1.0, 1.7, 2.4, 3.1, 3.8, 3.8, 3.8];
        for (found, wanted) in all.iter().zip(wanted) {
            assert!((found - wanted).abs() < 0.001, "{all:?}");
        }
    }
}
