//! The slowdown index: how much slower a stage is on core v when its predecessor is on core u (paper, section III.C).
//!
//! ```text
//! o(u, v) =  cache / hit(V)                      the last-level cache that it meets           (LC)
//!          + memory * loss(U)                    the memory controller it reads through       (MC)
//!          + interconnect * loss(V) * far(U, V)  the link between the two                     (IC)
//!          + remote * ipc(U) / ipc(V)            what remote latency makes of an instruction  (RL)
//!          + crossing, if u and v share a socket and no cache
//!          + load * w / (1 - w), w = how busy v is with this stage on it
//! ```
//!
//! U and V are the sockets of u and v. The first four are the paper's, which takes `far` as 1 between any two sockets. The last two are what it has no need
//! of: its sockets have one cache each, and it measures again after each queue, where this decides for all queues at once and so must foresee what the
//! one before does to a core. `w / (1 - w)` is what waits at a server that is busy for a share w of the time (M/M/1).
//!
//! Everything but the load is the same for all cores of a cache, so it is worked out once for each pair of sockets.

use super::problem::{Problem, Weights};

/// As busy as a core is taken to be at the most: a server that is always busy has an endless queue.
const BUSY_MAX: f64 = 0.999;

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
                        kind.cache / to.l3_hit
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
    let busy = busy.min(BUSY_MAX);
    weights.load * busy / (1.0 - busy)
}
