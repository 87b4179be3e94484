//! A kernel with all threads of a core in one queue.

use super::*;

/// A world whose guests are in a cgroup of their own.
fn nested(topology: &Topology, threads: &[(Option<u32>, CpuSet, Habit)]) -> World<Actors> {
    world_in(
        topology,
        threads,
        costs_of(topology, Kernel::Linux7_3),
        true,
    )
}

#[test]
fn a_guests_weight_counts_as_often_as_its_threads_would_run_at_once() {
    // Three threads, each beside one of the host's own. What an average of three comes to is a little less, and two when rounded down.
    let on = |cpu| CpuSet::single(CpuId(cpu));
    let guest = (0..3).map(|cpu| (Some(0), on(cpu), Habit::Spin));
    let own = (0..3).map(|cpu| (None, on(cpu), Habit::Spin));
    let threads: Vec<_> = guest.chain(own).collect();
    let three = topology(1, 1, 3, false);
    for (kernel, share) in [(Kernel::Linux6_12, 0.25), (Kernel::Linux7_3, 0.4)] {
        let mut world = world_with(&three, &threads, costs_of(&three, kernel));
        assert_eq!(watched(&mut world, Nanos(10 * SECOND.0), None), []);
        for at in 0..3 {
            let had = ran(&world, at) as f64 / 1e10;
            assert!((had - share).abs() < 0.01, "{kernel}: {had}");
        }
    }
}

/// Threads that go from core to core count on, wherever they are.
#[test]
fn a_guest_weighs_as_much_while_its_threads_move() {
    let on = |cpu| CpuSet::single(CpuId(cpu));
    let threads = [0, 1, 2].map(|cpu| (Some(0), on(cpu), Habit::Spin));
    let six = topology(1, 1, 6, false);
    let mut world = world_with(&six, &threads, costs_of(&six, Kernel::Linux7_3));
    for round in 0..300 {
        world.run(Nanos(round * 10_000_000)).unwrap();
        let would_run = world.host.groups[0].tasks as f64 / f64::from(crate::host::fair::WEIGHT);
        assert!(
            round < 100 || (2.8..=3.0).contains(&would_run),
            "{would_run} in round {round}"
        );
        for at in 0..3 {
            let thread = ThreadId(world.host.own_threads() + at);
            let cpu = at + 3 * (round as u32 % 2);
            world
                .act(|host, scene| host.set_affinity(thread, on(cpu), scene))
                .unwrap();
        }
    }
}

#[test]
fn a_guests_threads_on_a_core_share_what_it_has_there() {
    let threads: Vec<_> = [0, 1, 1, 1, 2]
        .map(|group| (Some(group), all(), Habit::Spin))
        .to_vec();
    let one = topology(1, 1, 1, false);
    let mut world = world_with(&one, &threads, costs_of(&one, Kernel::Linux7_3));
    world.host.set_weight(GroupId(0), 200, false, Nanos::ZERO);
    world.host.set_weight(GroupId(2), 100, true, Nanos::ZERO);
    assert_eq!(watched(&mut world, Nanos(10 * SECOND.0), None), []);
    let had = |at| ran(&world, at) as f64 / 1e10;
    assert!((had(0) / (had(1) + had(2) + had(3)) - 2.0).abs() < 0.02);
    assert!((had(1) / had(3) - 1.0).abs() < 0.01);
    assert!(had(4) < 0.004, "{}", had(4));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// What is kept of the cgroup that guests are in is what its guests' threads on each core come to, whatever happens to them.
    #[test]
    fn what_a_slice_weighs_is_what_its_guests_do(
        (topology, threads) in worlds(),
        changes in proptest::collection::vec((0_u32..3, any::<u8>()), 1..12),
    ) {
        let mut world = nested(&topology, &threads);
        let groups = threads.iter().filter_map(|(group, _, _)| *group).max().map_or(0, |g| g + 1);
        let cores = topology.cpus.len() as u32;
        for (at, (group, what)) in (1..).zip(changes) {
            let at = Nanos(at * 5_300_000);
            while let Some(next) = world.queue.next_at().filter(|next| *next <= at) {
                world.run(next).unwrap();
                let [kept, found] = world.host.slice_sums();
                prop_assert_eq!(kept, found, "at {}", next);
            }
            let id = GroupId(group);
            match what % 4 {
                _ if group >= groups => {}
                0 => {
                    let set = CpuSet::range(u32::from(what) % cores, cores);
                    world.act(|host, scene| host.set_cpuset(id, set, scene)).unwrap();
                }
                1 => world.act(|host, scene| host.set_frozen(id, true, scene)).unwrap(),
                2 => world.act(|host, scene| host.set_frozen(id, false, scene)).unwrap(),
                _ => world.host.set_weight(id, 1 + u32::from(what), what > 200, world.now()),
            }
            let [kept, found] = world.host.slice_sums();
            prop_assert_eq!(kept, found, "after {}", what % 4);
        }
    }
}

#[test]
fn who_was_alone_has_longer_turns_than_its_weight_until_it_is_looked_at() {
    // One that computes, and one of another guest that comes for a little and goes.
    let comes = Habit::Sleeper {
        work: 200_000,
        sleep: 7_300_000,
    };
    let one = topology(1, 1, 1, false);
    let threads = [(Some(0), all(), Habit::Spin), (Some(1), all(), comes)];
    let waits = |mut world: World<Actors>| {
        assert_eq!(watched(&mut world, Nanos(20 * SECOND.0), None), []);
        let delays = &world.work.acts[1].delays;
        delays.iter().sum::<u64>() / delays.len() as u64
    };
    let alone = waits(world_with(&one, &threads, costs_of(&one, Kernel::Linux7_3)));
    let within = waits(nested(&one, &threads));
    assert!(within > alone + alone / 10, "{within} ns for {alone}");
}

/// A guest's thread that sleeps much isn't behind for what its guest's others run on the same core.
#[test]
fn each_thread_has_a_turn_of_its_own() {
    let waits = |kernel| {
        let one = topology(1, 1, 1, false);
        let mut threads = vec![(Some(0), all(), Habit::Spin); 3];
        let sleeper = Habit::Sleeper {
            work: 200_000,
            sleep: 20_000_000,
        };
        threads.push((Some(0), all(), sleeper));
        threads.push((Some(1), all(), Habit::Spin));
        let mut world = world_with(&one, &threads, costs_of(&one, kernel));
        assert_eq!(watched(&mut world, Nanos(20 * SECOND.0), None), []);
        let mut delays = world.work.acts[3].delays.clone();
        delays.sort_unstable();
        delays[delays.len() / 2]
    };
    let (grouped, flat) = (waits(Kernel::Linux6_12), waits(Kernel::Linux7_3));
    assert!(flat < grouped, "{flat} for {grouped}");
}
