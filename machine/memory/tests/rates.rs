//! Hit rates of threads that run at once, in quanta, against the textbook's, which takes the quanta in turn.

mod common;

use std::sync::Barrier;

use common::Random;
use common::reference::Reference;
use common::shape::{NODE_BYTES, Pool, Shape};
use ostler_machine_memory::{Kind, Level, Policy};

const QUANTA: usize = 40;
/// Accesses in a quantum: about what a core does in 10 us.
const STEPS: usize = 2_000;
/// What a core's rate may differ by, in shares of all accesses.
const APART: f64 = 0.02;

fn shape(policy: Policy) -> Shape {
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
fn quantum(core: usize, quantum: usize) -> Vec<(Kind, u64)> {
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

#[test]
fn threads_hit_as_often_as_the_textbook_says() {
    for policy in [Policy::Inclusive, Policy::Victim] {
        let shape = shape(policy);
        let cores = shape.count();
        let mut reference = Reference::new(&shape);
        let mut theirs = vec![[0_u64; Level::ALL.len()]; cores];
        for now in 0..QUANTA {
            for (core, served) in theirs.iter_mut().enumerate() {
                for (kind, address) in quantum(core, now) {
                    served[reference.access(core, kind, address) as usize] += 1;
                }
            }
        }
        let system = shape.system();
        let barrier = Barrier::new(cores);
        std::thread::scope(|scope| {
            for core in 0..cores {
                let (system, barrier) = (&system, &barrier);
                scope.spawn(move || {
                    for now in 0..QUANTA {
                        barrier.wait();
                        for (kind, address) in quantum(core, now) {
                            system.access(core, kind, address, || now as u64 * 10_000_000);
                        }
                    }
                });
            }
        });
        for (core, theirs) in theirs.iter().enumerate() {
            let counts = system.counts(core);
            for level in Level::ALL {
                let all = counts.accesses() as f64;
                let ours = counts.at(level) as f64 / all;
                let theirs = theirs[level as usize] as f64 / all;
                assert!(
                    (ours - theirs).abs() <= APART,
                    "{policy:?}, core {core}, {level:?}: {ours:.4} of all accesses, by the textbook {theirs:.4}"
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
}
