//! What chains are compared with (paper, section V.A).
//!
//! - **A**, NUMA-aware: every thread on the socket of the chain's destination, on the least busy core of its pool there.
//! - **B**, contention-aware: every thread on the core of its pool that slows it down least by itself: links to it aren't looked at.

use super::chain::{Step, World};
use super::problem::Index;
use super::slowdown::load;

/// On the destination's socket: the last stage's, where that has but one core to be on, or else that with the least busy core for it.
pub(super) fn numa(world: &World<'_>, steps: &[Step], found: &mut Vec<Index>) {
    found.clear();
    let Some(last) = steps.last() else { return };
    let home = least(world, last, |_| 0.0);
    let home = world.problem.cores[home as usize].socket;
    for step in steps {
        // A pool may have none there; then any will do.
        found.push(least(world, step, |core| {
            let away = world.problem.cores[core as usize].socket != home;
            if away { f64::MAX } else { 0.0 }
        }));
    }
}

/// By contention alone: the cache, the memory and the load that a thread finds on a core.
pub(super) fn contention(world: &World<'_>, steps: &[Step], found: &mut Vec<Index>) {
    found.clear();
    for step in steps {
        let weights = &world.problem.kinds[step.stage.kind as usize];
        found.push(least(world, step, |core| {
            let socket = world.problem.cores[core as usize].socket;
            let busy = world.ground.busy[core as usize] + step.demand;
            world.slowdowns.between(step.stage.kind, socket, socket) + load(weights, busy)
        }));
    }
}

/// The core with the least of some figure for a stage; the least busy one of equals.
fn least(world: &World<'_>, step: &Step, figure: impl Fn(Index) -> f64) -> Index {
    let pool = world.problem.threads[step.stage.thread as usize].pool;
    let cores = match &step.placed {
        Some(core) => std::slice::from_ref(core),
        None => world.ground.all(pool),
    };
    let rank = |core: Index| (figure(core), world.ground.busy[core as usize]);
    let mut best = cores[0];
    for &core in &cores[1..] {
        let ((a, busy), (b, least)) = (rank(core), rank(best));
        if a.total_cmp(&b).then(busy.total_cmp(&least)).is_lt() {
            best = core;
        }
    }
    best
}
