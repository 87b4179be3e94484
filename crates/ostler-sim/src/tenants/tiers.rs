//! Tenants' memory on a host of which some is far: where it lies, what that does to their speed, what a host can tell of it, and what moves.
//!
//! A guest has all its memory when it comes, as clouds give it: near as long as there is room, then far, in order of guests. Every [`PASS`] its misses are counted anew, from the
//! work that its vCPUs have done, its heat goes on to the next phase, and memory that is to move moves; what comes of that is how long its vCPUs' work takes until the next time
//! ([`Memory::slowdown`]).
//!
//! What isn't told apart: near nodes are one to guests, which float over all cores; vhost workers and the host's kernel run at full speed; files in the host take room and are as fast far as near.

use std::collections::BTreeMap;

use ostler_model::{
    Bytes, GuestId, GuestMemory, Nanos, NodeBytes, NodeId, NodeView, Snapshot, TierPlan,
};
use ostler_policy::tier::baselines::{Pages, Watermarks, pages};
use ostler_scenario::PageTiering;

use crate::guest::Guest;
use crate::memory::{Allocation, CLASSES, Guest as Memories, Memory, Move, NoRoom, Node};
use crate::random::Stream;
use crate::round::whole;
use crate::work::FULL_SPEED;

/// What a kernel looks at and moves by itself.
const PAGE: f64 = 4096.0;

/// Between two looks at misses, heat and what moves: as often as a steward decides.
pub(super) const PASS: Nanos = Nanos::from_millis(100);

/// Memory as plain values.
#[derive(Clone, Debug)]
pub struct TiersSpec {
    /// The host's nodes, one of them far.
    pub nodes: Vec<Node>,
    /// What guests do to theirs, by number.
    pub guests: Vec<MemoryUse>,
    /// When their first phases begin; until then they are in them, too.
    pub start: Nanos,
}

/// What a guest does to its memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemoryUse {
    /// All of it.
    pub bytes: u64,
    /// Misses of the last-level cache a second of work of a vCPU at full speed.
    pub misses_per_s: f64,
    /// How much of it is hot and warm, from when on; in order, the first from zero on. None where all is used alike.
    pub phases: Vec<Phase>,
    /// After so long the first begins anew.
    pub repeat: Option<Nanos>,
}

/// What of a guest's memory is hot for a while; what is neither hot nor warm is cold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Phase {
    /// From when on.
    pub at: Nanos,
    /// Accessed all the time.
    pub hot: u64,
    /// Accessed now and then.
    pub warm: u64,
}

impl MemoryUse {
    /// Its phase, so long after the first began.
    fn phase(&self, since: Nanos) -> Option<Phase> {
        let since = match self.repeat {
            Some(Nanos(repeat)) if repeat > 0 => Nanos(since.0 % repeat),
            _ => since,
        };
        let next = self.phases.partition_point(|phase| phase.at <= since);
        self.phases.get(next.saturating_sub(1)).copied()
    }
}

/// What is told of a host's memory from its beginning on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MemoryTold {
    /// Bytes that moved.
    pub moved: u64,
    /// The share of near memory that nobody had, times seconds.
    pub unused_s: f64,
}

/// What a guest was seen to do.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    work: u64,
    misses_per_s: f64,
    interrupts: u64,
}

#[derive(Debug)]
pub(super) struct Tiers {
    memory: Memory,
    uses: Vec<MemoryUse>,
    start: Nanos,
    at: Nanos,
    seen: Vec<Seen>,
    /// How long each guest's work takes now.
    slow: Vec<u32>,
    unused_s: f64,
    /// What the host's kernel does by itself.
    pages: Option<PageTiering>,
}

impl Tiers {
    /// Guests have their memory; by number, as [`TiersSpec::guests`].
    pub(super) fn new(spec: TiersSpec, guests: &[Guest], seed: u64) -> Result<Tiers, NoRoom> {
        let mut memory = Memory::new(spec.nodes, 0.0);
        let mut draw = Stream::new(seed, "memory", 0);
        for (guest, own) in guests.iter().zip(&spec.guests) {
            let bytes = match own.phase(Nanos::ZERO) {
                Some(phase) => split(own.bytes, phase),
                // All alike is one class, whichever.
                None => [own.bytes, 0, 0],
            };
            memory.give(&guest.id, bytes, Allocation::LocalFirst, &mut draw)?;
            memory.presses(&guest.id, 0.0, own.misses_per_s);
        }
        let mut tiers = Tiers {
            memory,
            uses: spec.guests,
            start: spec.start,
            at: Nanos::ZERO,
            seen: vec![Seen::default(); guests.len()],
            slow: vec![FULL_SPEED; guests.len()],
            unused_s: 0.0,
            pages: None,
        };
        tiers.slows(guests);
        Ok(tiers)
    }

    /// How long a guest's work takes, parts of [`FULL_SPEED`].
    pub(super) fn slow(&self, guest: u32) -> u32 {
        self.slow.get(guest as usize).copied().unwrap_or(FULL_SPEED)
    }

    /// What moves goes at so many bytes a second.
    pub(super) fn set_rate(&mut self, rate: Bytes) {
        self.memory.set_rate(rate.0 as f64);
    }

    /// The host's kernel moves pages by their heat.
    pub(super) fn set_pages(&mut self, by: PageTiering) {
        self.set_rate(by.rate);
        self.pages = Some(by);
    }

    /// Files in the host have so much.
    pub(super) fn hold(&mut self, bytes: u64) {
        self.memory.hold(bytes);
    }

    /// A guest's memory is free again.
    pub(super) fn take_away(&mut self, id: &GuestId) {
        self.memory.take_away(id);
    }

    /// Time has passed.
    pub(super) fn pass(&mut self, guests: &[Guest], now: Nanos) {
        let past = now.saturating_sub(self.at);
        self.at = now;
        if past == Nanos::ZERO {
            return;
        }
        let seconds = past.as_secs_f64();
        self.unused_s += seconds * self.unused();
        self.memory.pass(past);
        for ((guest, own), seen) in guests.iter().zip(&self.uses).zip(&mut self.seen) {
            // Who spins or polls does so in its first cache.
            let work = guest.vcpus.iter();
            let work: u64 = work
                .map(|vcpu| vcpu.accounts.tasks.0 + vcpu.accounts.interrupts.0)
                .sum();
            let busy = Nanos(work - std::mem::replace(&mut seen.work, work)).as_secs_f64();
            seen.misses_per_s = busy / seconds * own.misses_per_s;
            self.memory
                .presses(&guest.id, seen.misses_per_s, own.misses_per_s);
            if let Some(phase) = own.phase(now.saturating_sub(self.start)) {
                let [hot, warm, _] = split(own.bytes, phase);
                self.memory.heats(&guest.id, hot, warm);
            }
        }
        if let Some(by) = self.pages {
            self.move_pages(&by);
        }
        self.slows(guests);
    }

    /// What the host's kernel moves until the next time. Near nodes are one to it, and so are far ones.
    fn move_pages(&mut self, by: &PageTiering) {
        let nodes = self.memory.nodes();
        let (near, far): (Vec<usize>, Vec<usize>) =
            (0..nodes.len()).partition(|at| nodes[*at].local);
        let mut room: Vec<u64> = (0..nodes.len()).map(|at| self.memory.free(at)).collect();
        let all: u64 = near.iter().map(|at| nodes[*at].bytes).sum();
        let part = |share: f64| whole(share * all as f64);
        let rate = whole(by.rate.0 as f64 * PASS.as_secs_f64());
        let marks = Watermarks {
            free: near.iter().map(|at| room[*at]).sum(),
            far_free: far.iter().map(|at| room[*at]).sum(),
            demote: part(by.demote),
            promote: part(by.promote),
            // What is on its way yet is of this time, too.
            budget: rate.saturating_sub(self.memory.under_way()),
        };
        let guests = self.memory.guests();
        let sum =
            |guest: &Memories, of: &[usize], heat| of.iter().map(|at| guest.part(*at, heat)).sum();
        let each = guests.iter().map(|guest| {
            let mut pages = Pages {
                local: std::array::from_fn(|heat| sum(guest, &near, heat)),
                far: std::array::from_fn(|heat| sum(guest, &far, heat)),
            };
            // A page comes near when it is accessed there, and so what nobody loads from doesn't; a load finds one page at the most.
            let found: f64 = far.iter().map(|at| guest.loads(*at, 0)).sum();
            let found = whole(found * PASS.as_secs_f64() * PAGE);
            pages.far[0] = pages.far[0].min(found);
            pages
        });
        let mut shifts = Vec::new();
        pages(&each.collect::<Vec<_>>(), &marks, &mut shifts);
        let mut moves = Vec::new();
        for shift in shifts {
            let guest = &guests[shift.guest];
            let (sources, targets) = if shift.near {
                (&far, &near)
            } else {
                (&near, &far)
            };
            let mut left = shift.bytes;
            for &from in sources {
                let mut here = guest.part(from, shift.heat);
                for &to in targets {
                    let bytes = left.min(here).min(room[to]);
                    if bytes == 0 {
                        continue;
                    }
                    (left, here) = (left - bytes, here - bytes);
                    room[to] -= bytes;
                    room[from] += bytes;
                    moves.push(Move {
                        guest: guest.id.clone(),
                        class: shift.heat,
                        from,
                        to,
                        bytes,
                    });
                }
            }
        }
        self.memory.order(moves);
    }

    fn slows(&mut self, guests: &[Guest]) {
        for (guest, slow) in guests.iter().zip(&mut self.slow) {
            *slow = self.memory.slowdown(&guest.id);
        }
    }

    /// The share of near memory that nobody has.
    fn unused(&self) -> f64 {
        let near = self.memory.nodes().iter().enumerate();
        let near = near.filter(|(_, node)| node.local);
        let (free, all) = near.fold((0, 0), |(free, all), (at, node)| {
            (free + self.memory.free(at), all + node.bytes)
        });
        free as f64 / all.max(1) as f64
    }

    /// What has come of it so far.
    pub(super) fn told(&self) -> MemoryTold {
        MemoryTold {
            moved: self.memory.moved,
            unused_s: self.unused_s,
        }
    }

    /// What a host can tell: free memory by node, guests' by node, and how they use it.
    pub(super) fn fill(&mut self, guests: &[Guest], snapshot: &mut Snapshot) {
        let seconds = snapshot.interval.as_secs_f64();
        let nodes = || (0_u32..).zip(0..self.memory.nodes().len());
        snapshot.nodes = nodes()
            .map(|(node, at)| NodeView {
                node: NodeId(node),
                free: Bytes(self.memory.free(at)),
                age: Nanos::ZERO,
            })
            .collect();
        let mut views = BTreeMap::new();
        let each = guests.iter().zip(&self.uses).zip(&mut self.seen);
        for ((guest, own), seen) in each {
            let interrupts: u64 = guest.vcpus.iter().map(|vcpu| vcpu.interrupts).sum();
            let io = interrupts - std::mem::replace(&mut seen.interrupts, interrupts);
            let Some(memory) = self.memory.guest(&guest.id) else {
                continue;
            };
            let nodes = (0_u32..).zip(0..self.memory.nodes().len());
            let view = GuestMemory {
                guest: guest.id.clone(),
                nodes: nodes
                    .map(|(node, at)| NodeBytes {
                        node: NodeId(node),
                        bytes: Bytes(memory.on(at)),
                    })
                    .collect(),
                // Nobody sees heat in memory that is used alike.
                hot: (!own.phases.is_empty()).then(|| Bytes(memory.of(0))),
                llc_misses_per_s: Some(seen.misses_per_s),
                io_interrupts_per_s: Some(io as f64 / seconds),
                ranges: Vec::new(),
                age: Nanos::ZERO,
            };
            views.insert(&guest.id, view);
        }
        snapshot.memory = views.into_values().collect();
    }

    /// Memory moves as a plan has it.
    pub(super) fn carry(&mut self, plan: &TierPlan) {
        for moves in &plan.moves {
            let [from, to] = [moves.from, moves.to].map(|node| node.0 as usize);
            self.memory.shift(&moves.guest, from, to, moves.bytes.0);
        }
    }
}

/// Bytes by class.
fn split(bytes: u64, phase: Phase) -> [u64; CLASSES] {
    let hot = phase.hot.min(bytes);
    let warm = phase.warm.min(bytes - hot);
    [hot, warm, bytes - hot - warm]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_follow_each_other_and_begin_anew() {
        let phase = |at: u64, hot| Phase {
            at: Nanos::from_secs(at),
            hot,
            warm: 0,
        };
        let mut own = MemoryUse {
            phases: vec![phase(0, 1), phase(5, 2), phase(8, 3)],
            ..MemoryUse::default()
        };
        let seen = |own: &MemoryUse| {
            let times = [0, 4, 5, 7, 8, 9, 14, 18];
            times.map(|s| own.phase(Nanos::from_secs(s)).map(|phase| phase.hot))
        };
        assert_eq!(seen(&own), [1, 1, 2, 2, 3, 3, 3, 3].map(Some));
        own.repeat = Some(Nanos::from_secs(9));
        assert_eq!(seen(&own), [1, 1, 2, 2, 3, 1, 2, 1].map(Some));
        own.phases.clear();
        assert_eq!(seen(&own), [None; 8]);
    }

    #[test]
    fn what_is_hot_and_warm_is_never_more_than_there_is() {
        let phase = |hot, warm| Phase {
            at: Nanos::ZERO,
            hot,
            warm,
        };
        assert_eq!(split(10, phase(4, 5)), [4, 5, 1]);
        assert_eq!(split(10, phase(4, 9)), [4, 6, 0]);
        assert_eq!(split(10, phase(40, 9)), [10, 0, 0]);
    }
}
