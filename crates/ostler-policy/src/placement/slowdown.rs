//! The slowdown index: how much slower a stage is on core v when its predecessor is on core u (paper, section III.C).
//!
//! ```text
//! o(u, v) =  base                               what it takes anywhere
//!          + cache / hit(V)                      the last-level cache that it meets           (LC)
//!          + memory * loss(U)                    the memory controller it reads through       (MC)
//!          + interconnect * loss(V) * far(U, V)  the link between the two                     (IC)
//!          + remote * ipc(U) / ipc(V)            what remote latency makes of an instruction  (RL)
//!          + crossing, if u and v share a socket and no cache
//!          + load * w / (1 - w), w = how busy v is with this stage on it, 0.8 at the most
//!          + 400 * (w - 0.8), if that is more
//! ```
//!
//! U and V are the sockets of u and v. LC to RL are the paper's, which takes `far` as 1 between any two sockets. `base` is the same for all cores: it is what calibration finds that no place tells of,
//! which else were in whatever factor differs least. The last two are what it has no need
//! of: its sockets have one cache each, and it measures again after each queue, where this decides for all queues at once and so must foresee what the
//! one before does to a core. `w / (1 - w)` is what waits at a server that is busy for a share w of the time (M/M/1).
//!
//! w is what was measured where threads are now. Elsewhere a packet may take a fifth more, and packets come in bursts; and from where a core has no time left packets wait without end and
//! are lost, however little they mind waiting. So what is beyond 0.8 counts by no weight, and more than anything else does. Of cores that are all asked for more than they have the one that
//! is asked for least is the best.
//!
//! Everything but the load is the same for all cores of a cache, so it is worked out once for each pair of sockets.

use super::problem::{Problem, Socket, Weights};

/// A core that is wanted for more than this is wanted for too much.
pub const BUSY_MAX: f64 = 0.8;
/// What all of a core too much counts as: it rises as what waits does at a core that is busy for 0.95 of the time, so that a twentieth too much counts 20, where a cache that serves nothing counts 12.
const LACK: f64 = 400.0;

/// What each kind of stage costs between each pair of sockets.
#[derive(Debug, Default)]
pub(super) struct Slowdowns {
    sockets: usize,
    /// By kind, then by the socket to which, then by that from which.
    table: Vec<f64>,
}

impl Slowdowns {
    pub(super) fn fill(&mut self, problem: &Problem<'_>) {
        self.sockets = problem.sockets.len();
        self.table.clear();
        for kind in problem.kinds {
            for (v, to) in problem.sockets.iter().enumerate() {
                for (u, from) in problem.sockets.iter().enumerate() {
                    let far = problem.distances[u * self.sockets + v];
                    self.table.push(
                        kind.base
                            + kind.cache / to.l3_hit
                            + kind.memory * from.cycle_loss
                            + kind.interconnect * to.cycle_loss * far
                            + kind.remote * from.ipc / to.ipc,
                    );
                }
            }
        }
    }

    /// From a socket to each, for a kind of stage.
    pub(super) fn between(&self, kind: u32, from: u32, to: u32) -> f64 {
        self.to(kind, to)[from as usize]
    }

    /// From each socket to one, for a kind of stage.
    pub(super) fn to(&self, kind: u32, to: u32) -> &[f64] {
        let row = kind as usize * self.sockets + to as usize;
        &self.table[row * self.sockets..][..self.sockets]
    }
}

/// What a core that is busy for a share of the time adds.
pub(super) fn load(weights: &Weights, busy: f64) -> f64 {
    weights.load * waiting(busy) + LACK * lack(busy)
}

/// What a core lacks of what is wanted of it.
pub(super) fn lack(busy: f64) -> f64 {
    (busy - BUSY_MAX).max(0.0)
}

/// What waits at a core that is busy for a share of the time.
fn waiting(busy: f64) -> f64 {
    let busy = busy.min(BUSY_MAX);
    busy / (1.0 - busy)
}

/// What a stage was slowed down by, where it was: what weights multiply, in the order of [`Weights::all`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Factors(pub [f64; Factors::COUNT]);

impl Factors {
    /// How many there are.
    pub const COUNT: usize = 7;

    /// Those of a stage on one socket whose predecessor is on another, so many links away ([`Problem::distances`]), or has another cache of the same one; its core is
    /// busy for so much of the time, with the stage itself.
    #[must_use]
    pub fn new(from: &Socket, to: &Socket, distance: f64, crosses: bool, busy: f64) -> Factors {
        Factors([
            1.0 / to.l3_hit,
            from.cycle_loss,
            to.cycle_loss * distance,
            from.ipc / to.ipc,
            f64::from(u8::from(crosses)),
            waiting(busy),
            1.0,
        ])
    }
}
