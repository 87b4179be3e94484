//! A host's tiered memory: where each guest's lies, how hot it is, what moves, and what that does to the guests' speed.
//!
//! A guest's memory is in classes of heat, and of each class so many bytes lie on each node: pages of one class on one node are alike, so there is no need for more, and a plan's moves are of such parts
//! ([`Move`]). Moves take time: all that are under way share the bandwidth of the mover, which is taken off what their nodes have for guests.
//!
//! ```text
//! a load from node n takes       latency(n) / (1 - used(n)), used at most 0.95      an open queue before its bandwidth
//! a guest's time at full speed   1 + misses/s (mean load - least latency)           its misses wait; those of local memory are in its full speed
//! ```

pub mod server;

use ostler_model::{GuestId, Nanos};

use crate::random::Stream;
use crate::round::whole;
use crate::work::FULL_SPEED;

/// A node's memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Node {
    /// All of it.
    pub bytes: u64,
    /// Cores are near.
    pub local: bool,
    /// What a load takes that nothing is in the way of, ns.
    pub latency_ns: f64,
    /// What it can be read and written at, bytes a second.
    pub bytes_per_s: f64,
}

/// How hot memory is, from the hottest.
pub const CLASSES: usize = 3;
/// Of a guest's misses, how many go to each class: what is hot is what is accessed.
const ACCESSES: [f64; CLASSES] = [0.85, 0.13, 0.02];
/// What a miss transfers.
const LINE: f64 = 64.0;
/// A node is never fuller than this: beyond it misses wait for each other, and so do those who would make more.
const USED_MAX: f64 = 0.95;

/// Where memory comes to lie that a guest is given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Allocation {
    /// On local nodes as long as there is room (Libra, figure 5.7).
    LocalFirst,
    /// So much of it local, the rest far, whatever there is room for (figure 5.6, vanilla).
    Split(f64),
    /// Anywhere, as the room is: by a guest that knows no nodes (figure 5.7, NUMA-unaware).
    Unaware,
}

/// No room for what was to be given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{wanted} bytes for guest {guest} are more than the {free} that are free; place it elsewhere, or give the host more memory"
)]
pub struct NoRoom {
    /// Whom.
    pub guest: GuestId,
    /// What it was to have.
    pub wanted: u64,
    /// What there is.
    pub free: u64,
}

/// A guest's memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Guest {
    /// Which.
    pub id: GuestId,
    /// Misses of the last-level cache a second, of all its cores.
    pub misses_per_s: f64,
    /// Of those, how many there are for a core that runs all the time: what its speed goes by.
    pub misses_per_core_s: f64,
    /// Bytes by node and class.
    parts: Vec<[u64; CLASSES]>,
}

impl Guest {
    /// Bytes of a class on a node.
    pub fn part(&self, node: usize, class: usize) -> u64 {
        self.parts[node][class]
    }

    /// Bytes on a node.
    pub fn on(&self, node: usize) -> u64 {
        self.parts[node].iter().sum()
    }

    /// All of it.
    pub fn bytes(&self) -> u64 {
        (0..self.parts.len()).map(|node| self.on(node)).sum()
    }

    /// Bytes of a class.
    pub fn of(&self, class: usize) -> u64 {
        self.parts.iter().map(|part| part[class]).sum()
    }

    /// Its misses a second that a node serves from memory of a class.
    pub fn loads(&self, node: usize, class: usize) -> f64 {
        let weights = self.weights();
        if weights > 0.0 {
            self.misses_per_s * self.share(node, class) / weights
        } else {
            0.0
        }
    }

    /// What of accesses goes to classes that it has memory of.
    fn weights(&self) -> f64 {
        let there = |class: &usize| self.of(*class) > 0;
        let classes = (0..CLASSES).filter(there);
        classes.map(|class| ACCESSES[class]).sum()
    }

    /// What of accesses goes to a class on a node, as if there were memory of each class.
    fn share(&self, node: usize, class: usize) -> f64 {
        let all = self.of(class);
        if all == 0 {
            return 0.0;
        }
        ACCESSES[class] * self.parts[node][class] as f64 / all as f64
    }

    /// The share of its misses that each node serves.
    fn serves(&self, node: usize) -> f64 {
        let weights = self.weights();
        let sum: f64 = (0..CLASSES).map(|class| self.share(node, class)).sum();
        if weights > 0.0 { sum / weights } else { 0.0 }
    }
}

/// Memory that is to move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// Whose.
    pub guest: GuestId,
    /// Of which class.
    pub class: usize,
    /// From which node.
    pub from: usize,
    /// To which.
    pub to: usize,
    /// How much.
    pub bytes: u64,
}

/// A host's memory.
#[derive(Clone, Debug)]
pub struct Memory {
    nodes: Vec<Node>,
    guests: Vec<Guest>,
    moves: std::collections::VecDeque<Move>,
    /// What moving goes at, bytes a second.
    rate: f64,
    /// What of a byte has been moved.
    carried: f64,
    /// Bytes moved so far.
    pub moved: u64,
    /// Bytes that were to move and couldn't: their guest had gone, or there was no room.
    pub dropped: u64,
    /// By node, what somebody has that is no guest's: files.
    held: Vec<u64>,
}

impl Memory {
    /// A host's, without guests; memory moves at so many bytes a second.
    pub fn new(nodes: Vec<Node>, rate: f64) -> Memory {
        Memory {
            held: vec![0; nodes.len()],
            nodes,
            guests: Vec::new(),
            moves: std::collections::VecDeque::new(),
            rate: rate.max(0.0),
            carried: 0.0,
            moved: 0,
            dropped: 0,
        }
    }

    /// Its nodes.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Its guests, in order.
    pub fn guests(&self) -> &[Guest] {
        &self.guests
    }

    /// One of them.
    pub fn guest(&self, id: &GuestId) -> Option<&Guest> {
        let at = self.guests.binary_search_by(|guest| guest.id.cmp(id));
        at.ok().map(|at| &self.guests[at])
    }

    /// What nobody has of a node.
    pub fn free(&self, node: usize) -> u64 {
        let had: u64 = self.guests.iter().map(|guest| guest.on(node)).sum();
        self.nodes[node].bytes - had - self.held[node]
    }

    /// Files have so much in all, or as much as there is room for: near while there is room.
    pub fn hold(&mut self, bytes: u64) {
        self.held.fill(0);
        let mut left = bytes;
        let mut free: Vec<u64> = (0..self.nodes.len()).map(|node| self.free(node)).collect();
        while left > 0 && free.iter().any(|free| *free > 0) {
            let node = self.nearest(&free, true);
            let taken = left.min(std::mem::take(&mut free[node]));
            self.held[node] += taken;
            left -= taken;
        }
    }

    /// What moves goes at so many bytes a second from now on.
    pub fn set_rate(&mut self, rate: f64) {
        self.rate = rate.max(0.0);
    }

    /// A guest comes, or is given more, of each class.
    ///
    /// # Errors
    ///
    /// There isn't so much; then it is given nothing.
    pub fn give(
        &mut self,
        id: &GuestId,
        bytes: [u64; CLASSES],
        by: Allocation,
        draw: &mut Stream,
    ) -> Result<(), NoRoom> {
        let mut free: Vec<u64> = (0..self.nodes.len()).map(|node| self.free(node)).collect();
        let wanted = bytes
            .iter()
            .fold(0_u64, |sum, more| sum.saturating_add(*more));
        let all: u64 = free.iter().sum();
        if wanted > all {
            return Err(NoRoom {
                guest: id.clone(),
                wanted,
                free: all,
            });
        }
        let at = match self.guests.binary_search_by(|guest| guest.id.cmp(id)) {
            Ok(at) => at,
            Err(at) => {
                let guest = Guest {
                    id: id.clone(),
                    misses_per_s: 0.0,
                    misses_per_core_s: 0.0,
                    parts: vec![[0; CLASSES]; self.nodes.len()],
                };
                self.guests.insert(at, guest);
                at
            }
        };
        for (class, mut more) in bytes.into_iter().enumerate() {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a share of it"
            )]
            let mut local = match by {
                Allocation::Split(share) => (more as f64 * share.clamp(0.0, 1.0)) as u64,
                _ => more,
            };
            while more > 0 {
                let node = match by {
                    Allocation::Unaware => weighed(&free, draw),
                    _ => self.nearest(&free, local > 0),
                };
                // An unaware guest takes a piece here and one there; the others all that there is.
                let piece = match by {
                    Allocation::Unaware => 64 << 20,
                    _ if local > 0 && self.nodes[node].local => local,
                    _ => u64::MAX,
                };
                let taken = more.min(piece).min(free[node]);
                self.guests[at].parts[node][class] += taken;
                free[node] -= taken;
                more -= taken;
                local = local.saturating_sub(taken);
            }
        }
        Ok(())
    }

    /// The nearest node with room of a kind, or else of the other.
    fn nearest(&self, free: &[u64], local: bool) -> usize {
        let room = |node: &usize| free[*node] > 0;
        let nodes = || (0..free.len()).filter(room);
        let near = |a: &usize, b: &usize| {
            let latency = |node: usize| self.nodes[node].latency_ns;
            latency(*a).total_cmp(&latency(*b))
        };
        let kind = nodes().filter(|node| self.nodes[*node].local == local);
        kind.min_by(near)
            .or_else(|| nodes().min_by(near))
            .unwrap_or(0)
    }

    /// A guest goes, with all that it has.
    pub fn take_away(&mut self, id: &GuestId) {
        self.guests.retain(|guest| guest.id != *id);
    }

    /// What a guest does to its memory now: misses a second in all, and for each of its cores that runs all the time.
    pub fn presses(&mut self, id: &GuestId, misses_per_s: f64, per_core: f64) {
        if let Some(guest) = self.guests.iter_mut().find(|guest| guest.id == *id) {
            guest.misses_per_s = misses_per_s.max(0.0);
            guest.misses_per_core_s = per_core.max(0.0);
        }
    }

    /// So much of a guest's memory is hot now, and so much warm; the rest is cold. What becomes hotter is the next hottest, wherever it lies.
    pub fn heats(&mut self, id: &GuestId, hot: u64, warm: u64) {
        let Some(guest) = self.guests.iter_mut().find(|guest| guest.id == *id) else {
            return;
        };
        for (class, wanted) in [hot, warm].into_iter().enumerate() {
            let mut lacks = wanted.saturating_sub(guest.of(class));
            let mut has_too_much = guest.of(class).saturating_sub(wanted);
            for part in &mut guest.parts {
                for colder in class + 1..CLASSES {
                    let taken = lacks.min(part[colder]);
                    part[colder] -= taken;
                    part[class] += taken;
                    lacks -= taken;
                }
                let cooled = has_too_much.min(part[class]);
                part[class] -= cooled;
                part[class + 1] += cooled;
                has_too_much -= cooled;
            }
        }
    }

    /// Memory is to move, after what is to already; what can't when its turn comes is dropped.
    pub fn order(&mut self, moves: impl IntoIterator<Item = Move>) {
        self.moves.extend(moves);
    }

    /// So much of a guest's memory is to move: the coldest goes far, the hottest comes near, for that is the guest's own choice (thesis, section 5.4.3).
    pub fn shift(&mut self, id: &GuestId, from: usize, to: usize, bytes: u64) {
        let Some(guest) = self.guest(id).filter(|_| from.max(to) < self.nodes.len()) else {
            return;
        };
        let mut left = bytes;
        let mut moves = Vec::with_capacity(CLASSES);
        for nth in 0..CLASSES {
            let class = if self.nodes[to].local {
                nth
            } else {
                CLASSES - 1 - nth
            };
            // What is to move already isn't there to move again.
            let same = self
                .moves
                .iter()
                .filter(|order| (order.from, order.class) == (from, class) && order.guest == *id);
            let moving: u64 = same.map(|order| order.bytes).sum();
            let bytes = guest.part(from, class).saturating_sub(moving).min(left);
            left -= bytes;
            if bytes > 0 {
                moves.push(Move {
                    guest: id.clone(),
                    class,
                    from,
                    to,
                    bytes,
                });
            }
        }
        self.order(moves);
    }

    /// What is yet to move, bytes.
    pub fn under_way(&self) -> u64 {
        self.moves.iter().map(|order| order.bytes).sum()
    }

    /// Time passes, in which memory moves.
    pub fn pass(&mut self, time: Nanos) {
        self.carried += self.rate * time.as_secs_f64();
        while let Some(order) = self.moves.front_mut() {
            // Whole bytes: of a part of one nothing is moved.
            let budget = whole(self.carried.floor());
            let (Some(node), Ok(at)) = (
                self.nodes.get(order.to),
                self.guests
                    .binary_search_by(|guest| guest.id.cmp(&order.guest)),
            ) else {
                self.dropped += order.bytes;
                self.moves.pop_front();
                continue;
            };
            let had: u64 = self.guests.iter().map(|guest| guest.on(order.to)).sum();
            let had = had + self.held[order.to];
            let Some(part) = self.guests[at].parts.get_mut(order.from) else {
                self.dropped += order.bytes;
                self.moves.pop_front();
                continue;
            };
            let class = order.class.min(CLASSES - 1);
            let can = part[class].min(node.bytes - had);
            let taken = order.bytes.min(budget).min(can);
            if order.from != order.to {
                part[class] -= taken;
                self.guests[at].parts[order.to][class] += taken;
            }
            order.bytes -= taken;
            self.carried -= taken as f64;
            self.moved += taken;
            if taken == can && order.bytes > 0 && budget > taken {
                self.dropped += order.bytes;
                order.bytes = 0;
            }
            if order.bytes > 0 {
                return;
            }
            self.moves.pop_front();
        }
        // Time in which there is nothing to move isn't saved up.
        self.carried = 0.0;
    }

    /// The share of a node's bandwidth that is in use: by misses, and by what moves.
    pub fn used(&self, node: usize) -> f64 {
        let misses: f64 = self
            .guests
            .iter()
            .map(|guest| guest.misses_per_s * guest.serves(node))
            .sum();
        let moving = self
            .moves
            .front()
            .is_some_and(|order| order.from == node || order.to == node);
        let moves = if moving { self.rate } else { 0.0 };
        ((misses * LINE + moves) / self.nodes[node].bytes_per_s).min(USED_MAX)
    }

    /// How long a guest's work takes, in parts of [`FULL_SPEED`] of its time with all its memory near and nobody in the way.
    pub fn slowdown(&self, id: &GuestId) -> u32 {
        let Some(guest) = self.guest(id) else {
            return FULL_SPEED;
        };
        let least = self
            .nodes
            .iter()
            .fold(f64::INFINITY, |least, node| least.min(node.latency_ns));
        let load = |node: usize| self.nodes[node].latency_ns / (1.0 - self.used(node));
        let mean: f64 = (0..self.nodes.len())
            .map(|node| guest.serves(node) * load(node))
            .sum();
        let waits = guest.misses_per_core_s * (mean - least).max(0.0) / 1e9;
        let slow = f64::from(FULL_SPEED) * (1.0 + waits);
        u32::try_from(whole(slow)).unwrap_or(u32::MAX)
    }
}

/// A node by chance, as the room is.
fn weighed(free: &[u64], draw: &mut Stream) -> usize {
    let mut at = draw.below(free.iter().sum());
    for (node, room) in free.iter().enumerate() {
        if at < *room {
            return node;
        }
        at -= room;
    }
    0
}
