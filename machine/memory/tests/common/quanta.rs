//! What cores do in the tests of hit rates, quantum by quantum, and how often the textbook says that they hit.

use ostler_machine_memory::{Kind, Level, Policy, System};

use super::Random;
use super::reference::Reference;
use super::shape::{NODE_BYTES, Pool, Shape};

pub const QUANTA: usize = 40;
/// Accesses in a quantum: about what a core does in 10 us.
const STEPS: usize = 2_000;
/// What a core's rate may differ by, in shares of all accesses.
const APART: f64 = 0.02;

/// The machine that they do it on.
pub fn shape(policy: Policy) -> Shape {
    Shape {
        sockets: 2,
        cores: 2,
        group_cores: 2,
        l1i: (16, 2),
        l1d: (16, 4),
        l2: (32, 8),
        l3: Some(((256, 8), policy)),
        pool: Pool::Filtered((512, 8)),
    }
}

/// What a core does in a quantum: code in a loop, data of its own in loops and at random, and some that all share.
pub fn quantum(core: usize, quantum: usize) -> Vec<(Kind, u64)> {
    let mut random = Random((core * 1000 + quantum + 1) as u64);
    let own = (core as u64 / 2) * NODE_BYTES + (core as u64 % 2) * 0x10_0000;
    (0..STEPS as u64)
        .map(|step| match random.below(100) {
            0..20 => (Kind::Fetch, own + 0x8_0000 + step % 160 / 8 * 64),
            20..50 => (Kind::Load, own + step % 1000 / 8 * 64),
            50..70 => (Kind::Store, own + random.below(40) * 64),
            70..94 => (Kind::Load, own + random.below(4000) * 64),
            94..97 => (Kind::Load, 2 * NODE_BYTES + random.below(500) * 64),
            97..99 => (Kind::Load, NODE_BYTES / 2 + random.below(64) * 64),
            _ => (Kind::Store, NODE_BYTES / 2 + random.below(64) * 64),
        })
        .collect()
}

/// How many accesses of each core the textbook says are served by which level if quanta are taken in turn.
pub fn textbook(shape: &Shape) -> Vec<[u64; Level::ALL.len()]> {
    let mut reference = Reference::new(shape);
    let mut served = vec![[0_u64; Level::ALL.len()]; shape.count()];
    for now in 0..QUANTA {
        for (core, served) in served.iter_mut().enumerate() {
            for (kind, address) in quantum(core, now) {
                served[reference.access(core, kind, address) as usize] += 1;
            }
        }
    }
    served
}

/// Each core's rates are the textbook's.
pub fn assert_rates(system: &System, theirs: &[[u64; Level::ALL.len()]], what: &str) {
    for (core, theirs) in theirs.iter().enumerate() {
        let counts = system.counts(core);
        for level in Level::ALL {
            let all = counts.accesses() as f64;
            let ours = counts.at(level) as f64 / all;
            let theirs = theirs[level as usize] as f64 / all;
            assert!(
                (ours - theirs).abs() <= APART,
                "{what}, core {core}, {level:?}: {ours:.4} of all accesses, by the textbook {theirs:.4}"
            );
        }
        assert!(
            counts.at(Level::L1) > counts.at(Level::L2),
            "the stream has something to hit"
        );
        assert!(
            counts.at(Level::Peer) > 0 && counts.at(Level::Pool) > 0,
            "and reaches the rest"
        );
    }
}
