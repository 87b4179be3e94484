//! Hit rates of threads that run at once, in quanta, against the textbook's, which takes the quanta in turn.

mod common;

use std::sync::Barrier;

use common::quanta::{QUANTA, assert_rates, quantum, shape, textbook};
use ostler_machine_memory::Policy;

#[test]
fn threads_hit_as_often_as_the_textbook_says() {
    for policy in [Policy::Inclusive, Policy::Victim] {
        let shape = shape(policy);
        let cores = shape.count();
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
        assert_rates(&system, &textbook(&shape), &format!("{policy:?}"));
    }
}
