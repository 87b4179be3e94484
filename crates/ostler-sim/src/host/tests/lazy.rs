//! A kernel that only marks whoever is to give up a core.

use super::*;
use crate::host::thread::State;

/// Two threads wake each other, on core 0 and on core 1, where a guest computes that yields to all. The second one's cores may share no cache.
fn beside(kernel: Kernel, shared: bool) -> World<Actors> {
    // Slices have no part in this: the timer of the first is set for all that follows.
    beside_with(kernel, shared, 100_000_000)
}

/// The same, with slices of so many nanoseconds.
fn beside_with(kernel: Kernel, shared: bool, slice: u32) -> World<Actors> {
    let on = |cpu| CpuSet::single(CpuId(cpu));
    // Their times are no part of a tick, so that they are woken at any time of it.
    let partner = |other| Habit::Partner {
        work: 311_000,
        other,
    };
    let threads = [
        (Some(0), on(0), partner(1)),
        (Some(0), on(1), partner(0)),
        (Some(1), on(1), Habit::Spin),
    ];
    let topology = if shared {
        topology(1, 1, 2, false)
    } else {
        topology(1, 2, 1, false)
    };
    let costs = HostCosts {
        slice,
        ..costs_of(&topology, kernel)
    };
    let mut world = world_with(&topology, &threads, costs);
    world.host.set_weight(GroupId(1), 100, true, Nanos::ZERO);
    world
}

/// How long the second one waited, of a hundred times, from the shortest to the longest: now and then whoever yields has its small share in earnest.
fn waits(world: &mut World<Actors>) -> Vec<u64> {
    assert_eq!(watched(world, Nanos(4 * SECOND.0), None), []);
    let mut delays = world.work.acts[1].delays.clone();
    delays.sort_unstable();
    assert!(delays.len() > 300, "{}", delays.len());
    (0..100)
        .map(|part| delays[delays.len() * part / 100])
        .collect()
}

#[test]
fn who_is_woken_takes_a_core_at_once_or_at_the_next_tick() {
    let at_once = waits(&mut beside(Kernel::Linux6_12, true));
    assert_eq!(at_once[97], 0);
    let mut world = beside(Kernel::Linux7_3, true);
    let lazily = waits(&mut world);
    let tick = world.host.costs.tick;
    assert!(lazily[5] > 0 && lazily[50] > tick / 4, "{}", lazily[50]);
    assert!((tick / 2..=tick).contains(&lazily[97]), "{}", lazily[97]);
}

#[test]
fn a_mark_is_seen_when_the_guest_is_left_for_a_timer_unless_the_thread_is_in_the_kernel() {
    let mut world = beside(Kernel::Linux7_3, true);
    world.work.acts[2].timer = Some(500_000);
    let longest = waits(&mut world)[97];
    assert!((250_000..=500_000).contains(&longest), "{longest}");
    let mut world = beside(Kernel::Linux7_3, true);
    world.work.acts[2].timer = Some(500_000);
    world.work.acts[2].in_kernel = true;
    let longest = waits(&mut world)[97];
    let tick = world.host.costs.tick;
    assert!((tick / 2..=tick).contains(&longest), "{longest}");
}

#[test]
fn a_mark_is_seen_when_the_thread_leaves_its_guest_by_itself() {
    let longest = |exits| {
        let mut world = beside(Kernel::Linux7_3, true);
        world.work.acts[2].habit = Habit::Pieces(500_000);
        world.work.acts[2].exits = exits;
        (waits(&mut world)[97], world.host.costs.tick)
    };
    let (exiting, _) = longest(Some(0));
    assert!((1..=500_000).contains(&exiting), "{exiting}");
    let (staying, tick) = longest(None);
    assert!((tick / 2..=tick).contains(&staying), "{staying}");
}

#[test]
fn a_core_that_shares_no_cache_with_the_wakers_is_interrupted() {
    assert_eq!(waits(&mut beside(Kernel::Linux7_3, false))[97], 0);
}

/// Whoever another core wakes waits until that has told this one and the guest is left, which does nothing meanwhile but for what it takes until it hears of it; who is woken
/// by whoever leaves its core to it waits for nothing.
#[test]
fn who_makes_room_is_out_of_its_guest_first() {
    let world = |in_kernel| {
        let mut world = beside(Kernel::Linux7_3, false);
        (world.host.costs.stop, world.host.costs.stop_woken) = (50_000, 170_000);
        world.work.acts[2].in_kernel = in_kernel;
        world
    };
    let mut stopped = world(false);
    assert_eq!(waits(&mut stopped)[5..95], [170_000; 90]);
    // All that it had but what it was told it has done: a stop and a switch each time.
    let (time, done) = (
        stopped
            .host
            .view(stopped.now())
            .thread_time(ThreadId(4))
            .ran,
        stopped.work.acts[2].did,
    );
    let lost = (time - done) as f64 / stopped.host.threads[4].switches as f64;
    let each = (50_000 + stopped.host.costs.switch) as f64;
    assert!((lost / each - 1.0).abs() < 0.02, "{lost} for {each}");
    assert!(waits(&mut world(true))[95] > 170_000);
}

/// A guest leaves again to set its next tick when it has handled one, and one that its tick took off has that tick to handle when it is back.
#[test]
fn a_mark_is_seen_when_the_guest_sets_its_next_tick() {
    let world = |tick_exit| {
        let mut world = beside(Kernel::Linux7_3, true);
        // Where a stop costs nothing nobody asks for ticks.
        (world.host.costs.stop, world.host.costs.tick_exit) = (1000, tick_exit);
        world.work.acts[2].timer = Some(2_000_000);
        world
    };
    let (without, with) = (waits(&mut world(0))[50], waits(&mut world(1_000_000))[50]);
    assert!(with > 0 && with < without / 2, "{with} for {without}");
    let mut world = world(100_000);
    // What it takes to be stopped was before.
    let handled = world.host.costs.switch + 100_000;
    let (mut before, mut back) = (Nanos::ZERO, 0);
    while world.now() < SECOND {
        let at = world.queue.next_at().unwrap();
        world.run(at).unwrap();
        let ends = world.host.cores[1].tick_ends;
        if ends > before {
            let stopped = at.0 / 2_000_000 * 2_000_000;
            assert!(at.0 - stopped < 500_000, "back from what the tick began");
            assert_eq!(ends.0, at.0 + handled);
            back += 1;
        }
        before = ends;
    }
    assert!(back > 100, "{back}");
}

/// What brings a vCPU out of its guest takes that of it besides its own time; a thread in the kernel loses no more than that time.
#[test]
fn an_interrupt_takes_an_exit_of_a_vcpu_in_its_guest_alone() {
    let did = |in_kernel, kind| {
        let mut world = world(&topology(1, 1, 1, false), &[(None, all(), Habit::Spin)]);
        world.host.costs.interrupt_exit = 2000;
        world.work.acts[0].in_kernel = in_kernel;
        for ms in 1..=100 {
            world.run(Nanos(ms * 1_000_000 + 5)).unwrap();
            interrupt(&mut world, 0, kind, 1000);
        }
        world.run(Nanos(200_000_000)).unwrap();
        // It is asked what it did.
        let thread = world.host.own_threads();
        world
            .act(|host, scene| host.notify(thread, None, scene))
            .unwrap();
        world.work.acts[0].did
    };
    let (guest, kernel) = (did(false, Kind::Device), did(true, Kind::Device));
    assert_eq!(kernel - guest, 100 * 2000);
    // Timers as devices; softirqs come with a hard interrupt that has taken it.
    assert_eq!(did(false, Kind::Timer), guest);
    assert_eq!(did(false, Kind::Softirq), kernel);
}

/// Who counts interrupts by their handlers sees a part of what a device's takes of a core that has nothing else to do, and all of what it takes of others'; and of a core that is woken from another it
/// sees the handler that queues the thread.
#[test]
fn a_core_without_threads_is_seen_to_be_less_busy_and_one_that_is_woken_more() {
    let one = topology(1, 1, 1, false);
    for (habit, kind, within, unseen) in [
        (None, Kind::Device, false, 100 * 700),
        (None, Kind::Timer, false, 0),
        (None, Kind::Device, true, 0),
        (Some(Habit::Spin), Kind::Device, false, 0),
    ] {
        let threads: Vec<_> = habit
            .map(|habit| (None, all(), habit))
            .into_iter()
            .collect();
        let mut world = world_with(&one, &threads, HostCosts::of(1));
        (world.host.costs.unseen, world.host.costs.woken) = (700, 300);
        for ms in 1..=100 {
            world.run(Nanos(ms * 1_000_000)).unwrap();
            if within {
                interrupt(&mut world, 0, Kind::Softirq, 500_000);
                world.run(Nanos(ms * 1_000_000 + 400_000)).unwrap();
            }
            interrupt(&mut world, 0, kind, 1000);
        }
        world.run(Nanos(200_000_000)).unwrap();
        let view = world.host.view(world.now());
        let (time, handled) = (view.core_time(CpuId(0)), view.handled(CpuId(0)));
        // The thread woke it once, when it began.
        let woken = 300 * threads.len() as u64;
        assert_eq!((handled.unseen, handled.woken), (unseen, woken), "{kind:?}");
        assert_eq!(time.hard, 100 * 1000);
        assert_eq!(handled.seen(time.busy()), time.busy() + woken - unseen);
    }
    // Two wake each other, each on a core that sleeps.
    let mut world = beside(Kernel::Linux7_3, true);
    world.work.acts[2].habit = Habit::Sleeper {
        work: 0,
        sleep: SECOND.0,
    };
    world.host.costs.woken = 300;
    world.run(Nanos(50_000_000)).unwrap();
    let view = world.host.view(world.now());
    let times: u64 = world.work.acts[..2]
        .iter()
        .map(|act| act.delays.len() as u64)
        .sum();
    let handled = [0, 1].map(|cpu| view.handled(CpuId(cpu)));
    let woken: u64 = handled.iter().map(|handled| handled.woken).sum();
    assert!(
        times > 50 && woken.abs_diff(300 * times) <= 2 * 300,
        "{times} {woken}"
    );
    assert_eq!(handled[0].seen(1000), 1000 + handled[0].woken);
}

/// Who answers requests leaves its guest all the time for what it does there.
#[test]
fn a_mark_is_seen_within_the_time_that_the_guest_is_stayed_in() {
    let mut world = beside(Kernel::Linux7_3, true);
    world.work.acts[2].stays = Nanos(200_000);
    let longest = waits(&mut world)[97];
    assert!((100_000..=200_000).contains(&longest), "{longest}");
}

/// Whose thread is alone has no timer of its slice: whoever comes from another core has that core set one, and it is interrupted for it.
#[test]
fn a_core_whose_thread_was_alone_is_interrupted_to_time_its_slice() {
    // By when the second one is woken again the timer has come for nothing.
    let mut world = beside_with(Kernel::Linux7_3, true, 50_000);
    assert_eq!(waits(&mut world)[97], 0);
    // A kernel of before has no such timers, and looks at once anyway.
    assert_eq!(
        waits(&mut beside_with(Kernel::Linux6_12, true, 50_000))[97],
        0
    );
}

/// Runs until the second one waits with the core marked; when the mark would be seen at the latest.
fn marked(in_kernel: bool) -> (World<Actors>, Nanos) {
    let mut world = beside(Kernel::Linux7_3, true);
    world.work.acts[2].in_kernel = in_kernel;
    let second = ThreadId(world.host.own_threads() + 1);
    world.run(Nanos(50_000_000)).unwrap();
    loop {
        let view = world.host.view(world.now());
        let tick = world.host.costs.tick;
        let next = Nanos((world.now().0 / tick + 1) * tick);
        if view.state(second) == State::Waits && next.0 - world.now().0 > tick / 2 {
            assert!(world.host.cores[1].lazy && !world.host.cores[1].resched);
            return (world, next);
        }
        let at = world.queue.next_at().unwrap();
        world.run(at).unwrap();
    }
}

#[test]
fn a_mark_is_seen_at_the_end_of_an_interrupt_but_not_in_the_kernel() {
    let kinds = [Kind::Device, Kind::Softirq];
    for (in_kernel, kind) in [false, true]
        .into_iter()
        .flat_map(|at| kinds.map(|kind| (at, kind)))
    {
        let (mut world, tick) = marked(in_kernel);
        let second = ThreadId(world.host.own_threads() + 1);
        interrupt(&mut world, 1, kind, 7000);
        let after = Nanos(world.now().0 + 7000);
        world.run(after).unwrap();
        let runs = world.host.view(after).state(second) == State::Runs;
        assert_eq!(runs, !in_kernel, "{kind:?}");
        world.run(tick).unwrap();
        assert_eq!(world.host.view(tick).state(second), State::Runs);
    }
}

#[test]
fn who_sleeps_leaves_its_core_at_once() {
    let (mut world, tick) = marked(true);
    // The one that computes has nothing to do any more, and is asked.
    world.work.acts[2].habit = Habit::Sleeper {
        work: 1000,
        sleep: SECOND.0,
    };
    world.work.acts[2].left = 0;
    let computes = world.host.own_threads() + 2;
    world
        .act(|host, scene| host.notify(computes, Some(CpuId(0)), scene))
        .unwrap();
    assert!(world.now() < tick);
    let second = ThreadId(world.host.own_threads() + 1);
    let view = world.host.view(world.now());
    assert_eq!(view.state(second), State::Runs);
    assert!(!world.host.cores[1].lazy);
}

/// Two that compute on a core of the lab's host do less together than one alone would, by what each stop takes, and the more by as much where they are stopped in guests.
#[test]
fn who_is_stopped_in_its_guest_comes_back_for_more_than_a_switch() {
    let spin = (None, all(), Habit::Spin);
    let one = topology(1, 1, 1, false);
    let lost = |in_kernel: bool, timer: Option<u64>, costs: HostCosts| {
        let mut world = world_with(&one, &[spin; 2], costs);
        for act in &mut world.work.acts {
            act.in_kernel = in_kernel;
            act.timer = timer;
        }
        assert_eq!(watched(&mut world, SECOND, None), []);
        let done: u64 = world.work.acts.iter().map(|act| act.did).sum();
        (SECOND.0 - done) as f64 / world.host.counters.switches as f64
    };
    let lab = || HostCosts::new(1, 10.0);
    let costs = lab();
    let (kernel, guest) = (lost(true, None, lab()), lost(false, None, lab()));
    let apart = (costs.stop, guest - kernel);
    assert!(
        (apart.1 - apart.0 as f64).abs() < 0.03 * apart.0 as f64,
        "{apart:?}"
    );
    assert!(costs.stop > costs.switch);
    // With a tick of the guest's in each turn, which comes while it is stopped, it is that more.
    let ticks = lost(false, Some(u64::from(costs.slice)), lab());
    let apart = (costs.missed_tick, ticks - guest);
    assert!(
        (apart.1 - apart.0 as f64).abs() < 0.05 * apart.0 as f64,
        "{apart:?}"
    );
    // A paper's host has a switch for all.
    let paper = || HostCosts::new(1, 0.3);
    let (kernel, guest) = (lost(true, None, paper()), lost(false, None, paper()));
    assert!((guest - kernel).abs() < 0.01 * kernel, "{guest} {kernel}");
}

#[test]
fn a_slice_ends_on_time_whatever_its_thread_is_in() {
    let spin = (None, all(), Habit::Spin);
    let one = topology(1, 1, 1, false);
    let switches = |kernel| {
        let mut world = world_with(&one, &[spin; 3], costs_of(&one, kernel));
        for act in &mut world.work.acts {
            act.in_kernel = true;
        }
        assert_eq!(watched(&mut world, SECOND, None), []);
        let turn = world.host.costs.slice + world.host.costs.switch as u32;
        (world.host.counters.switches, SECOND.0 / u64::from(turn))
    };
    // Whoever ends a round in which all had a slice begins the next one, as all are even then.
    let (ticks, slices) = switches(Kernel::Linux6_12);
    assert!(3 * ticks < slices, "{ticks} for {slices}");
    let (timed, slices) = switches(Kernel::Linux7_3);
    let wanted = slices * 2 / 3;
    assert!(timed.abs_diff(wanted) < wanted / 50, "{timed} for {wanted}");
}

/// A core that sleeps comes to a thread later than to an interrupt, and no earlier to one that an interrupt there has woken.
#[test]
fn an_interrupt_waits_for_no_switch() {
    let one = topology(1, 1, 1, false);
    let costs = HostCosts {
        idle_exit: [70_000; 3],
        idle_interrupt: [0; 3],
        idle_leave: 0,
        ..costs_of(&one, Kernel::Linux7_3)
    };
    let nap = Habit::Nap {
        work: 100_000,
        sleep: 10_000_000,
    };
    let mut world = world_with(&one, &[(None, all(), nap)], costs.clone());
    world.run(Nanos(5_000_000)).unwrap();
    let before = ran(&world, 0);
    let slept_at = costs.idle_exit[0] + before;
    interrupt(&mut world, 0, Kind::Device, 3000);
    let seen = world.work.interrupts;
    world.run(Nanos(5_002_999)).unwrap();
    assert_eq!(world.work.interrupts, seen);
    world.run(Nanos(5_003_000)).unwrap();
    assert_eq!(world.work.interrupts, seen + 1);
    // It is woken ten milliseconds after it slept.
    let begins = slept_at + 10_000_000 + costs.idle_exit[0];
    world.run(Nanos(begins)).unwrap();
    assert_eq!(ran(&world, 0), before);
    world.run(Nanos(begins + 50_000)).unwrap();
    assert_eq!(ran(&world, 0), before + 50_000);
    let again = costs.switch + 100_000;
    world.run(Nanos(begins + again)).unwrap();
    assert_eq!(ran(&world, 0), before + again);
}
