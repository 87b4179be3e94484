//! Who is taken from a core by one that has nothing to do, and whom a thread meets that it wakes before it sleeps.

use super::*;
use crate::host::busy::{Amount, Busy, Kind, Looker, Pair};
use crate::host::newly::Newly;

const PERCENT: u64 = 117;

/// A core with so many threads that have used so much of it of late, and would have used so much.
fn core(threads: u64, used: u64, wanted: u64) -> Busy {
    Busy {
        cores: 1,
        threads,
        idle: u64::from(threads == 0),
        load: wanted,
        capacity: 1024,
        used,
        wanted,
    }
}

#[test]
fn a_core_is_overloaded_by_what_its_threads_use_and_not_by_how_many_they_are() {
    let kind = |threads, used, wanted| core(threads, used, wanted).kind(PERCENT);
    assert_eq!(kind(0, 0, 0), Kind::Spare);
    assert_eq!(kind(1, 875, 875), Kind::Spare);
    assert_eq!(kind(1, 876, 876), Kind::Full);
    // However much one wants there is a core for it.
    assert_eq!(kind(1, 1024, 1024), Kind::Full);
    assert_eq!(kind(2, 500, 700), Kind::Spare);
    assert_eq!(kind(2, 876, 900), Kind::Overloaded);
    assert_eq!(kind(2, 700, 1199), Kind::Overloaded);
    // What interrupts take is missing.
    let less = Busy {
        capacity: 512,
        ..core(2, 500, 550)
    };
    assert_eq!(less.kind(PERCENT), Kind::Overloaded);
}

fn pair(local: Busy, busiest: Busy, looker: Looker) -> Pair {
    Pair {
        local,
        busiest,
        all: local.with(busiest),
        looker,
        near: true,
        node: None,
        percent: PERCENT,
    }
}

#[test]
fn a_core_without_threads_takes_one_of_two_but_none_where_another_is_full() {
    let (empty, light, full) = (core(0, 0, 0), core(2, 400, 600), core(1, 1024, 1024));
    let takes = |from| pair(empty, from, Looker::Newly).amount();
    assert_eq!(takes(light), Some(Amount::Threads(1)));
    assert_eq!(takes(core(3, 1024, 3000)), Some(Amount::Threads(1)));
    assert_eq!(takes(core(5, 1024, 5000)), Some(Amount::Threads(2)));
    // The full one is asked, and has nobody to give.
    assert!(full.is_busier(&light, PERCENT) && !light.is_busier(&full, PERCENT));
    assert_eq!(takes(full), None);
    assert!(core(2, 900, 1500).is_busier(&full, PERCENT));
}

#[test]
fn a_core_that_has_a_thread_takes_by_load_and_only_from_who_is_overloaded() {
    let takes = |local, from| pair(local, from, Looker::Busy).amount();
    assert_eq!(takes(core(1, 1024, 1024), core(2, 400, 600)), None);
    let three = core(3, 1024, 3072);
    // Half of what they are apart.
    assert_eq!(takes(core(1, 1024, 1024), three), Some(Amount::Load(1024)));
    assert_eq!(takes(core(2, 1024, 3000), three), None, "not 117 to 100");
}

#[test]
fn nodes_are_filled_one_after_the_other_as_long_as_threads_are_few() {
    let node = |threads| Busy {
        cores: 16,
        threads,
        idle: 16 - threads,
        load: threads * 1024,
        capacity: 16 * 1024,
        used: threads * 1024,
        wanted: threads * 1024,
    };
    let takes = |here, there| {
        let far = Pair {
            near: false,
            node: Some(2),
            ..pair(node(here), node(there), Looker::Asleep)
        };
        far.amount()
    };
    assert_eq!(takes(0, 2), None);
    assert_eq!(takes(0, 4), Some(Amount::Threads(2)));
    assert_eq!(takes(4, 6), Some(Amount::Threads(1)));
    assert_eq!(takes(5, 6), None);
}

#[test]
fn a_group_with_cores_to_spare_takes_what_fills_them_from_one_that_is_overloaded_elsewhere() {
    let group = |threads: u64, used| Busy {
        cores: 16,
        threads,
        idle: 16_u64.saturating_sub(threads),
        load: threads * 1024,
        capacity: 16 * 1024,
        used,
        wanted: threads * 1024,
    };
    let takes = |local| {
        let far = Pair {
            near: false,
            ..pair(local, group(20, 16 * 1024), Looker::Asleep)
        };
        far.amount()
    };
    assert_eq!(takes(group(4, 4096)), Some(Amount::Used(12 * 1024)));
    // What has just left still counts, and a core has nobody.
    assert_eq!(takes(group(4, 17_000)), Some(Amount::Threads(1)));
}

#[test]
fn a_core_looks_as_often_as_that_was_worth_it() {
    // Looks of the last half of so many, one every so many ns, of which so many in a hundred find somebody.
    let looked = |every: u64, worth: u64| {
        let mut newly = Newly::new(1, true);
        newly.some_wait();
        let mut random = Stream::new(7, "worth", 0);
        let mut looks = 0;
        for at in 0..40_000_u64 {
            let now = Nanos(at * every);
            if newly.throws(0, 0, now) {
                looks += u64::from(at >= 20_000);
                newly.has_looked(0, 0, random.below(100) < worth, now);
            }
        }
        looks as f64 / 20_000.0
    };
    // A million a second: what it finds is all that counts.
    let near = |found: f64, wanted: f64| assert!((found - wanted).abs() < 0.03, "{found} {wanted}");
    near(looked(1000, 0), 0.0);
    near(looked(1000, 30), 0.3);
    // What one look stands for is rounded: once it is more than two of three it stays about there.
    assert!(looked(1000, 100) > 0.67);
    // A thousand a second: an eighth more, and always at a hundred.
    near(looked(976_562, 0), 0.12);
    near(looked(976_562, 30), 0.42);
    near(looked(10_000_000, 0), 1.0);
    // Kernels without the die look always.
    let mut always = Newly::new(1, false);
    assert!((0..1000).all(|at| always.throws(0, 0, Nanos(at))));
}

#[test]
fn who_wakes_another_on_its_core_and_sleeps_leaves_it_to_that_one() {
    let partner = |other| Habit::Partner {
        work: 150_000,
        other,
    };
    for kernel in [Kernel::Linux6_12, Kernel::Linux7_3] {
        let on = CpuSet::single(CpuId(0));
        let threads = [(None, on, partner(1)), (None, on, partner(0))];
        let topology = topology(1, 1, 1, false);
        let mut world = world_with(&topology, &threads, costs_of(&topology, kernel));
        assert_eq!(watched(&mut world, SECOND, None), []);
        let view = world.host.view(world.now());
        assert!(view.thread_time(ThreadId(1)).ran > 400_000_000);
        // The core slept once, at the beginning, and nobody came to it while it slept.
        let idle: u64 = view.core_time(CpuId(0)).idle.iter().sum();
        assert_eq!(idle, world.host.costs.idle_exit[2], "{kernel}");
    }
}

/// Whether core 1, which sleeps, takes a thread that waits on core 0, where two are seldom there, while so many other cores compute.
fn pulled(hogs: u32) -> bool {
    let on = |cpu| CpuSet::single(CpuId(cpu));
    let nap = Habit::Nap {
        work: 200_000,
        sleep: 3_000_000,
    };
    let mut threads = vec![(None, on(0), nap), (None, on(0), nap)];
    threads.extend((2..2 + hogs).map(|cpu| (None, on(cpu), Habit::Spin)));
    let mut world = world(&topology(1, 1, 8, false), &threads);
    world.run(SECOND).unwrap();
    while world.host.cores[0].fair < 2 {
        let next = world.queue.next_at().unwrap();
        world.run(next).unwrap();
    }
    for thread in 0..2 {
        let thread = ThreadId(world.host.own_threads() + thread);
        let both = CpuSet::range(0, 2);
        world
            .act(|host, scene| host.set_affinity(thread, both, scene))
            .unwrap();
    }
    world.act(|host, scene| host.pull(1, scene)).unwrap()
}

#[test]
fn a_core_that_has_nothing_to_do_takes_nobody_while_others_are_full() {
    assert!(pulled(0));
    assert!(!pulled(1));
    assert!(!pulled(6));
}

/// Core 0 has the most to do, and nobody who may leave; core 1 one who may, and core 2 nothing.
#[test]
fn a_core_of_which_all_that_wait_are_pinned_keeps_nobody_from_another() {
    let on = |cpu| CpuSet::single(CpuId(cpu));
    let mut threads = vec![(None, on(0), Habit::Spin); 4];
    threads.push((None, on(1), Habit::Spin));
    threads.push((None, on(1), Habit::Spin));
    let mut world = world(&topology(1, 1, 3, false), &threads);
    world.run(SECOND).unwrap();
    let free = ThreadId(world.host.own_threads() + 5);
    let both = CpuSet::range(1, 3);
    world
        .act(|host, scene| host.set_affinity(free, both, scene))
        .unwrap();
    world.run(Nanos(SECOND.0 + 50_000_000)).unwrap();
    assert_eq!(world.host.view(world.now()).cpu(free), CpuId(2));
}

/// Its core is taken: the first time it goes back to where it was before, but that is no longer where it goes the next.
#[test]
fn where_a_thread_was_before_is_forgotten_once_it_was_told() {
    let hog = (None, CpuSet::single(CpuId(1)), Habit::Spin);
    let nap = Habit::Nap {
        work: 1000,
        sleep: 10_000_000_000,
    };
    let mut world = world(&topology(1, 1, 4, false), &[(None, all(), nap), hog]);
    world.run(SECOND).unwrap();
    let thread = ThreadId(world.host.own_threads());
    assert_eq!(world.host.view(SECOND).cpu(thread), CpuId(0));
    for cpus in [CpuSet::single(CpuId(1)), all()] {
        world
            .act(|host, scene| host.set_affinity(thread, cpus, scene))
            .unwrap();
        if cpus.len() == 1 {
            world
                .act(|host, scene| host.notify(thread.0, None, scene))
                .unwrap();
            world.run(Nanos(SECOND.0 + 100_000_000)).unwrap();
        }
    }
    let now = world.now();
    assert_eq!(world.host.view(now).cpu(thread), CpuId(1));
    assert_eq!(world.host.place(thread.0, None, now), 0);
    assert_eq!(world.host.place(thread.0, None, now), 2);
}

#[test]
fn one_that_wakes_stays_where_all_others_yield_to_it() {
    for kernel in [Kernel::Linux6_12, Kernel::Linux7_3] {
        let on = |cpu| CpuSet::single(CpuId(cpu));
        let nap = Habit::Nap {
            work: 100_000,
            sleep: 4_700_000,
        };
        let threads = [(None, on(1), nap), (Some(0), on(1), Habit::Spin)];
        let topology = topology(1, 1, 4, false);
        let goes_to = |idle| {
            let mut world = world_with(&topology, &threads, costs_of(&topology, kernel));
            world.host.set_weight(GroupId(0), 100, idle, Nanos::ZERO);
            let thread = ThreadId(world.host.own_threads());
            world.run(SECOND).unwrap();
            world
                .act(|host, scene| host.set_affinity(thread, all(), scene))
                .unwrap();
            world.run(Nanos(2 * SECOND.0)).unwrap();
            world.host.view(world.now()).cpu(thread)
        };
        assert_eq!(goes_to(true), CpuId(1), "{kernel}");
        assert_ne!(goes_to(false), CpuId(1), "{kernel}");
    }
}
