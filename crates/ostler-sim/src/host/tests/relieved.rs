//! Cores of which interrupts take a part.

use super::*;
use crate::host::capacity::WHOLE;

/// Runs a host until a time, with softirqs that take so much of each 100 us of core 0.
fn interrupted(world: &mut World<Actors>, until: Nanos, work: u64) -> Vec<Violation> {
    let mut watcher = Watcher::new(world.host.view(world.now()), None);
    let mut at = world.now().0;
    while at < until.0 {
        at += 100_000;
        while let Some(next) = world.queue.next_at().filter(|next| next.0 <= at) {
            world.run(next).unwrap();
            watcher.observe(world.host.view(next));
        }
        world.run(Nanos(at)).unwrap();
        interrupt(world, 0, Kind::Softirq, work);
        watcher.observe(world.host.view(world.now()));
    }
    let costs = world.host.costs.clone();
    watcher.verdict(
        world.host.view(world.now()),
        &costs.idle_power,
        costs.busy_power,
    )
}

fn cpu(world: &World<Actors>, at: u32) -> CpuId {
    let thread = ThreadId(world.host.own_threads() + at);
    world.host.view(world.now()).cpu(thread)
}

#[test]
fn capacity_is_what_interrupts_leave_and_comes_back() {
    let mut world = world(&topology(1, 1, 2, false), &[]);
    assert_eq!(interrupted(&mut world, SECOND, 30_000), []);
    let left = world.host.capacity(0, world.now());
    assert!(left.abs_diff(WHOLE * 7 / 10) < 5, "{left}");
    assert_eq!(world.host.capacity(1, world.now()), WHOLE);
    // Half of it is forgotten in 32 periods of 1024 * 1024 ns.
    let half = Nanos(world.now().0 + (32 << 20));
    world.run(half).unwrap();
    let left = world.host.capacity(0, half);
    assert!(left.abs_diff(WHOLE * 85 / 100) < 5, "{left}");
}

#[test]
fn one_that_computes_leaves_a_core_that_interrupts_take_much_of() {
    let spin = [(None, all(), Habit::Spin)];
    let after = |cores, work| {
        let mut world = world(&topology(1, 1, cores, false), &spin);
        assert_eq!(cpu(&world, 0), CpuId(0), "it begins where it is to leave");
        assert_eq!(interrupted(&mut world, SECOND, work), []);
        (cpu(&world, 0), world.host.counters.migrations)
    };
    // 100 of 117 parts are left at 14.5 us of 100.
    assert_eq!(after(4, 30_000), (CpuId(1), 1));
    assert_eq!(after(4, 16_000), (CpuId(1), 1));
    assert_eq!(after(4, 13_000), (CpuId(0), 0));
    assert_eq!(after(1, 30_000), (CpuId(0), 0), "there is no other");
}

#[test]
fn one_that_may_not_leave_stays_and_none_goes_to_a_core_that_is_no_better() {
    let mine = [(None, CpuSet::single(CpuId(0)), Habit::Spin)];
    let mut pinned = world(&topology(1, 1, 4, false), &mine);
    assert_eq!(interrupted(&mut pinned, SECOND, 30_000), []);
    assert_eq!(pinned.host.counters.migrations, 0);
    // Both cores of it have as many interrupts.
    let spin = [(None, all(), Habit::Spin)];
    let mut alike = world(&topology(1, 1, 2, false), &spin);
    for at in 1..10_000 {
        alike.run(Nanos(at * 100_000)).unwrap();
        for cpu in [0, 1] {
            interrupt(&mut alike, cpu, Kind::Softirq, 30_000);
        }
    }
    assert_eq!(alike.host.counters.migrations, 0);
}

/// It sleeps and wakes where it was; the one that runs at a tick is moved, and nothing takes it back.
#[test]
fn one_that_sleeps_now_and_then_leaves_too() {
    let sleeper = Habit::Sleeper {
        work: 700_000,
        sleep: 300_000,
    };
    let mut world = world(&topology(1, 1, 4, false), &[(Some(0), all(), sleeper)]);
    assert_eq!(interrupted(&mut world, SECOND, 30_000), []);
    assert_ne!(cpu(&world, 0), CpuId(0));
    assert_eq!(world.host.counters.migrations, 1);
}

#[test]
fn of_many_threads_fewer_are_where_interrupts_are() {
    let spin = [(None, all(), Habit::Spin); 12];
    let waits = |work| {
        let mut world = world(&topology(1, 1, 2, false), &spin);
        assert_eq!(interrupted(&mut world, Nanos(4 * SECOND.0), work), []);
        (0..12).filter(|at| cpu(&world, *at) == CpuId(0)).count()
    };
    assert_eq!(waits(0), 6);
    // Half a core has a third of them.
    let few = waits(50_000);
    assert!((3..=4).contains(&few), "{few}");
}

/// A kernel that doesn't tell interrupts apart has whoever they come upon pay for them, and all cores are whole to it.
#[test]
fn whose_core_interrupts_take_pays_for_them_where_they_are_not_told_apart() {
    let pinned = (None, CpuSet::single(CpuId(0)), Habit::Spin);
    let topology = topology(1, 1, 2, false);
    let outcome = |kernel| {
        let mut world = world_with(&topology, &[pinned, pinned], costs_of(&topology, kernel));
        let first = ThreadId(world.host.own_threads());
        // Three tenths of the time of one of two alone, a tenth of a millisecond at a time.
        while world.now() < SECOND {
            let next = world.now().saturating_add(Nanos::from_micros(100));
            world.run(next).unwrap();
            if world.host.view(next).running(CpuId(0)) == Some(first) {
                interrupt(&mut world, 0, Kind::Softirq, 30_000);
            }
        }
        let now = world.now();
        let view = world.host.view(now);
        let times = [first.0, first.0 + 1].map(|thread| view.thread_time(ThreadId(thread)));
        let charged = times.map(|time| view.charged(time) as f64 / 1e9);
        let ran = times.map(|time| time.ran as f64 / 1e9);
        let used = world.host.used(0, now);
        (charged, ran, used, world.host.capacity(0, now))
    };
    let near = |one: f64, other: f64| (one - other).abs() < 0.03;

    let (charged, ran, used, capacity) = outcome(Kernel::Linux6_12);
    assert!(
        charged
            .iter()
            .zip(&ran)
            .all(|(one, other)| (one - other).abs() < 1e-12)
    );
    assert!(near(ran[0], ran[1]), "{ran:?}");
    assert!(used < WHOLE * 9 / 10 && capacity < WHOLE * 9 / 10);

    let (charged, ran, used, capacity) = outcome(Kernel::Linux7_3);
    assert!(
        near(charged[0], 0.5) && near(charged[1], 0.5),
        "{charged:?}"
    );
    assert!(near(ran[0], 0.5 * 0.7) && near(ran[1], 0.5), "{ran:?}");
    assert!(used > WHOLE * 98 / 100, "{used}");
    assert_eq!(capacity, WHOLE);
}
