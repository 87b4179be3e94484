//! What chains are compared with (paper, section V.A).
//!
//! - **A**, NUMA-aware: every thread on the socket of the chain's destination, on the least busy core of its pool there.
//! - **B**, contention-aware: every thread on the core of its pool that slows it down least by itself: links to it aren't looked at.
//!
//! Threads are placed one after the other, and each knows what those of its chain before it have taken.

use super::chain::{Step, World};
use super::problem::Index;
use super::slowdown::load;

/// On the destination's socket: the last stage's, where that has but one core to be on, or else that with the least busy core for it.
pub(super) fn numa(world: &World<'_>, steps: &[Step], found: &mut Vec<Index>) {
    found.clear();
    let Some(last) = steps.last() else { return };
    let home = least(world, (steps, found), last, |_, _| 0.0);
    let home = world.problem.cores[home as usize].socket;
    for step in steps {
        // A pool may have none there; then any will do.
        let next = least(world, (steps, found), step, |core, _| {
            let away = world.problem.cores[core as usize].socket != home;
            if away { f64::MAX } else { 0.0 }
        });
        found.push(next);
    }
}

/// By contention alone: the cache, the memory and the load that a thread finds on a core.
pub(super) fn contention(world: &World<'_>, steps: &[Step], found: &mut Vec<Index>) {
    found.clear();
    for step in steps {
        let weights = &world.problem.kinds[step.stage.kind as usize];
        let next = least(world, (steps, found), step, |core, busy| {
            let socket = world.problem.cores[core as usize].socket;
            let index = world.slowdowns.between(step.stage.kind, socket, socket);
            index + load(weights, busy + step.demand)
        });
        found.push(next);
    }
}

/// The core with the least of some figure for a stage, by how busy it is with what those of the chain take that are placed by now; the least busy one of equals.
fn least(
    world: &World<'_>,
    (steps, found): (&[Step], &[Index]),
    step: &Step,
    figure: impl Fn(Index, f64) -> f64,
) -> Index {
    let pool = world.problem.threads[step.stage.thread as usize].pool;
    let cores = match &step.placed {
        Some(core) => std::slice::from_ref(core),
        None => world.ground.all(pool),
    };
    let rank = |core: Index| {
        let busy = world.ground.busy[core as usize] + World::own(steps, found, core);
        (figure(core, busy), busy)
    };
    let mut best = (cores[0], rank(cores[0]));
    for &core in &cores[1..] {
        let rank = rank(core);
        let (a, b) = (rank, best.1);
        if a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)).is_lt() {
            best = (core, rank);
        }
    }
    best.0
}
