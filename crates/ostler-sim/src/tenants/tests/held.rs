//! Locks of guests' kernels whose holders lose their cores.

use super::*;

const SPIN: Nanos = Nanos::from_micros(200);

/// A guest whose first vCPU has all interrupts, and whose others answer: each waker is off its core for so long. What its vCPUs spun, how often one halted, and
/// how many requests of how many were answered.
fn held_up(time: Nanos, spin: Nanos) -> (Nanos, u64, u64, u64) {
    let program = Program::Serve {
        tasks: 4,
        sharing: Sharing::Connection,
        service: Time::Fixed(Nanos::from_micros(50)),
    };
    let costs = Costs {
        lock_spin: spin,
        ..free()
    };
    let mut first = load(&[0], 1000.0, 1.0, Arrivals::Even);
    first.connections = 16;
    let mut world = world(vec![guest(4, 1, program)], vec![first], costs, 5);
    if time > Nanos::ZERO {
        world.give_way(4, time);
    }
    let mut halts = 0;
    let mut halted = [false; 4];
    for step in 1..=120_000 {
        world.run(Nanos::from_micros(10 * step));
        for (vcpu, was) in world.work.inner.guests[0].vcpus.iter().zip(&mut halted) {
            halts += u64::from(vcpu.halted && !*was);
            *was = vcpu.halted;
        }
    }
    let tenants = &world.work.inner;
    let vcpus = &tenants.guests[0].vcpus;
    assert!(
        vcpus
            .iter()
            .all(|vcpu| !vcpu.halted && vcpu.locked_by.is_none()),
        "all locks are given back"
    );
    let spins = vcpus.iter().map(|vcpu| vcpu.accounts.locks.0).sum();
    let books = &tenants.clients[0].books;
    (Nanos(spins), halts, books.answered, books.sent)
}

#[test]
fn who_is_woken_spins_for_the_lock_of_a_waker_that_lost_its_core() {
    let away = Nanos::from_micros(70);
    let (spins, halts, answered, sent) = held_up(away, SPIN);
    assert_eq!(answered, sent);
    assert_eq!(halts, 0, "none spins as long as it would");
    // Each as long as its waker is away, and one more instruction of that.
    let each = away.0 + 1;
    assert_eq!(spins.0 % each, 0, "{spins:?}");
    assert!(spins.0 / each > 100, "{spins:?}");
}

#[test]
fn a_vcpu_spins_for_a_lock_no_longer_than_its_kernel_does_and_sleeps_then() {
    let (spins, halts, answered, sent) = held_up(Nanos::from_micros(450), SPIN);
    assert_eq!(answered, sent);
    assert!(halts > 50, "{halts}");
    assert_eq!(spins.0 % SPIN.0, 0, "{spins:?}");
    // Halts between two looks at it aren't seen.
    assert!(spins.0 / SPIN.0 >= halts, "{spins:?}, {halts} halts");
}

#[test]
fn nobody_spins_where_wakers_keep_their_cores_or_kernels_do_not() {
    let (spins, halts, answered, sent) = held_up(Nanos::ZERO, SPIN);
    assert_eq!((halts, answered), (0, sent));
    assert!(
        spins.0 <= answered,
        "{spins:?}: no wake-up takes longer than what a waker still has to do"
    );
    let (spins, halts, answered, sent) = held_up(Nanos::from_micros(70), Nanos::ZERO);
    assert_eq!((spins, halts, answered), (Nanos::ZERO, 0, sent));
}
