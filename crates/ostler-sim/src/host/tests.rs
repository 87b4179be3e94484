//! Threads that do simple things, on hosts of all kinds, watched.

use ostler_model::{Cpu, CpuId, CpuSet, Nanos, NodeId, Topology};
use proptest::prelude::*;

mod balance;
mod boosted;
mod flat;
mod idle;
mod lazy;
mod relieved;
mod scan;
mod softirqs;

use super::{GroupId, HostCosts, Kernel, Spawn};
use crate::check::{Violation, Watcher};
use crate::random::Stream;
use crate::work::{Effect, Effects, FULL_SPEED, Interrupt, IoEvent, Kind, Next, ThreadId, Work};
use crate::world::World;

/// What a thread of the tests does over and over.
#[derive(Clone, Copy, Debug)]
enum Habit {
    /// It computes without end.
    Spin,
    /// It computes in pieces.
    Pieces(u64),
    /// It works for so long, then sleeps for so long, both by chance about these.
    Sleeper { work: u64, sleep: u64 },
    /// Likewise, exactly, woken without an event, as for a timer of the guest's.
    Nap { work: u64, sleep: u64 },
    /// Likewise, and the last that it does before it sleeps is to touch a device.
    Asks { work: u64, sleep: u64 },
    /// It works for as long as whoever is woken by it, in turn.
    Partner { work: u64, other: u32 },
}

#[derive(Clone, Debug)]
struct Act {
    habit: Habit,
    left: u64,
    did: u64,
    woken_at: Option<Nanos>,
    /// From being woken to having a core.
    delays: Vec<u64>,
    /// It stays in the kernel until it sleeps.
    in_kernel: bool,
    /// Otherwise between timers for which it leaves its guest, if there are any.
    timer: Option<u64>,
    /// How long it is in its guest at a time.
    stays: Nanos,
    /// How often it has left its guest, which it does behind each piece, if it does.
    exits: Option<u64>,
}

#[derive(Clone, Debug)]
struct Actors {
    acts: Vec<Act>,
    first: u32,
    random: Stream,
    interrupts: u64,
}

impl Actors {
    fn act(&mut self, thread: ThreadId) -> &mut Act {
        &mut self.acts[(thread.0 - self.first) as usize]
    }

    fn about(&mut self, mean: u64) -> u64 {
        1 + self.random.exponential(mean as f64) as u64
    }
}

impl Work for Actors {
    fn next(&mut self, thread: ThreadId, cpu: CpuId, now: Nanos, out: &mut Effects) -> Next {
        let habit = self.act(thread).habit;
        if let Some(at) = self.act(thread).woken_at.take() {
            self.act(thread).delays.push(now.0 - at.0);
        }
        if let Some(exits) = &mut self.act(thread).exits {
            *exits += 1;
        }
        match habit {
            Habit::Spin => return Next::Spin,
            Habit::Pieces(piece) => return Next::Run(Nanos(piece)),
            _ => {}
        }
        let left = self.act(thread).left;
        if left > 0 {
            return Next::Run(Nanos(left));
        }
        match habit {
            Habit::Sleeper { sleep, .. } => {
                let after = self.about(sleep);
                out.alarm(Nanos(now.0 + after), u64::from(thread.0));
            }
            Habit::Nap { sleep, .. } | Habit::Asks { sleep, .. } => {
                out.alarm(Nanos(now.0 + sleep), u64::from(thread.0));
            }
            Habit::Partner { other, .. } => {
                let other = ThreadId(self.first + other);
                let work = match self.act(other).habit {
                    Habit::Partner { work, .. } => work,
                    _ => 1,
                };
                self.act(other).left = work;
                self.act(other).woken_at = Some(now);
                out.notify_from(other, cpu);
            }
            _ => {}
        }
        Next::Sleep
    }

    fn ran(&mut self, thread: ThreadId, _: CpuId, work: Nanos, _: Nanos, out: &mut Effects) {
        let act = self.act(thread);
        act.did += work.0;
        act.left = act.left.saturating_sub(work.0);
        if matches!(act.habit, Habit::Asks { .. }) && work.0 > 0 && act.left == 0 {
            let event = IoEvent {
                task: 1,
                arrives: false,
            };
            out.0.push(Effect::Io { thread, event });
        }
    }

    fn interrupted(&mut self, _: CpuId, _: u64, _: Nanos, _: &mut Effects) -> Option<Nanos> {
        self.interrupts += 1;
        None
    }

    fn alarm(&mut self, token: u64, now: Nanos, out: &mut Effects) {
        let thread = ThreadId(token as u32);
        if let Habit::Nap { work, .. } | Habit::Asks { work, .. } = self.act(thread).habit {
            let act = self.act(thread);
            act.left = work;
            act.woken_at = Some(now);
        }
        if let Habit::Sleeper { work, .. } = self.act(thread).habit {
            let work = self.about(work);
            let act = self.act(thread);
            act.left = work;
            act.woken_at = Some(now);
            // An interrupt of a device; only the boost scheduler cares.
            out.0.push(Effect::Io {
                thread,
                event: IoEvent {
                    task: 1,
                    arrives: true,
                },
            });
        }
        out.notify(thread);
    }

    fn in_kernel(&self, thread: ThreadId) -> bool {
        self.acts[(thread.0 - self.first) as usize].in_kernel
    }

    fn exits(&self, thread: ThreadId) -> u64 {
        let act = &self.acts[(thread.0 - self.first) as usize];
        act.exits.unwrap_or_default()
    }

    fn leaves_at(&self, thread: ThreadId, now: Nanos) -> Option<Nanos> {
        let act = &self.acts[(thread.0 - self.first) as usize];
        let timer = act.timer.filter(|_| !act.in_kernel)?;
        Some(Nanos((now.0 / timer + 1) * timer))
    }

    fn stays(&self, thread: ThreadId) -> Nanos {
        self.acts[(thread.0 - self.first) as usize].stays
    }

    fn slowdown(&self, _: ThreadId, _: CpuId) -> u32 {
        FULL_SPEED
    }
}

/// Cores in cache groups, nodes and, if wanted, pairs of siblings.
fn topology(nodes: u32, groups: u32, cores: u32, smt: bool) -> Topology {
    let per_node = groups * cores;
    let cpus = (0..nodes * per_node).map(|id| Cpu {
        id: CpuId(id),
        node: NodeId(id / per_node),
        core: CpuId(if smt { id - id % 2 } else { id }),
        cache_group: CpuId(id - id % cores),
    });
    Topology {
        cpus: cpus.collect(),
    }
}

/// A world of threads, each with a group of its own or none, a set of cores and a habit.
fn world(topology: &Topology, threads: &[(Option<u32>, CpuSet, Habit)]) -> World<Actors> {
    let costs = HostCosts::of(topology.cpus.len() as u32);
    world_with(topology, threads, costs)
}

fn world_with(
    topology: &Topology,
    threads: &[(Option<u32>, CpuSet, Habit)],
    costs: HostCosts,
) -> World<Actors> {
    world_in(topology, threads, costs, false)
}

/// One whose groups are within another, or not.
fn world_in(
    topology: &Topology,
    threads: &[(Option<u32>, CpuSet, Habit)],
    costs: HostCosts,
    nested: bool,
) -> World<Actors> {
    let first = topology.cpus.len() as u32;
    let acts = threads.iter().map(|(_, _, habit)| Act {
        habit: *habit,
        left: match habit {
            Habit::Sleeper { work, .. }
            | Habit::Nap { work, .. }
            | Habit::Asks { work, .. }
            | Habit::Partner { work, .. } => *work,
            _ => 0,
        },
        did: 0,
        woken_at: None,
        delays: Vec::new(),
        in_kernel: false,
        timer: None,
        stays: Nanos::ZERO,
        exits: None,
    });
    let actors = Actors {
        acts: acts.collect(),
        first,
        random: Stream::new(1, "actors", 0),
        interrupts: 0,
    };
    let mut world = World::new(topology, costs, actors);
    if nested {
        world.host.nest_groups(all());
    }
    let groups = threads.iter().filter_map(|(group, _, _)| *group).max();
    for _ in 0..groups.map_or(0, |most| most + 1) {
        world.host.add_group();
    }
    for (group, allowed, _) in threads {
        let spawn = Spawn {
            group: group.map(GroupId),
            allowed: *allowed,
            ..Spawn::default()
        };
        world.host.spawn(spawn, Nanos::ZERO);
    }
    for (at, (_, _, habit)) in threads.iter().enumerate() {
        if matches!(habit, Habit::Partner { other, .. } if (*other as usize) < at) {
            continue;
        }
        let thread = ThreadId(first + at as u32);
        world
            .act(|host, scene| host.notify(thread.0, None, scene))
            .unwrap();
    }
    world
}

/// Runs it to a time, watched.
fn watched(world: &mut World<Actors>, until: Nanos, delay: Option<Nanos>) -> Vec<Violation> {
    let mut watcher = Watcher::new(world.host.view(world.now()), delay);
    while let Some(at) = world.queue.next_at().filter(|at| *at <= until) {
        world.run(at).unwrap();
        watcher.observe(world.host.view(at));
    }
    world.run(until).unwrap();
    let costs = world.host.costs.clone();
    watcher.verdict(world.host.view(until), &costs.idle_power, costs.busy_power)
}

fn ran(world: &World<Actors>, at: u32) -> u64 {
    let thread = ThreadId(world.host.own_threads() + at);
    world.host.view(world.now()).thread_time(thread).ran
}

/// Interrupts a core, for so much work.
fn interrupt(world: &mut World<Actors>, cpu: u32, kind: Kind, work: u64) {
    let interrupt = Interrupt {
        token: 1,
        work: Nanos(work),
        kind,
    };
    world
        .act(|host, scene| host.interrupt(cpu, interrupt, scene))
        .unwrap();
}

fn all() -> CpuSet {
    CpuSet::range(0, 1024)
}

const SECOND: Nanos = Nanos(1_000_000_000);

/// Whoever has a core is told what it has done before it is asked anew, whatever came between: an interrupt, in which it had something else to do, and a look at who is to have the core.
#[test]
fn who_keeps_its_core_is_told_of_all_that_it_has_done() {
    let one = topology(1, 1, 1, false);
    let costs = costs_of(&one, Kernel::Linux6_12);
    let mut world = world_with(&one, &[(None, all(), Habit::Spin)], costs);
    let thread = world.host.own_threads();
    let tell = |world: &mut World<Actors>| {
        world
            .act(|host, scene| host.notify(thread, None, scene))
            .expect("time goes on");
    };
    world.run(Nanos(1_000_000)).expect("time goes on");
    tell(&mut world);
    let before = (world.work.acts[0].did, ran(&world, 0));
    world.run(Nanos(1_500_000)).expect("time goes on");
    interrupt(&mut world, 0, Kind::Device, 10_000);
    tell(&mut world);
    world.host.cores[0].resched = true;
    world.run(Nanos(2_000_000)).expect("time goes on");
    tell(&mut world);
    let (did, had) = (world.work.acts[0].did - before.0, ran(&world, 0) - before.1);
    assert_eq!((did, had), (990_000, 990_000));
}

#[test]
fn one_thread_has_a_core_for_itself() {
    let mut world = world(&topology(1, 1, 2, false), &[(None, all(), Habit::Spin)]);
    assert_eq!(watched(&mut world, SECOND, Some(Nanos::ZERO)), []);
    // From the deepest idle state: the host was at rest.
    let woke = world.host.costs.idle_exit[2];
    assert_eq!(ran(&world, 0), SECOND.0 - woke);
}

#[test]
fn threads_that_compute_on_one_core_have_equal_shares() {
    let spin = (None, all(), Habit::Spin);
    let mut world = world(&topology(1, 1, 1, false), &[spin; 5]);
    assert_eq!(watched(&mut world, Nanos(10 * SECOND.0), None), []);
    for at in 0..5 {
        let share = ran(&world, at) as f64 / 2e9;
        assert!((share - 1.0).abs() < 0.005, "{share}");
    }
}

#[test]
fn guests_have_shares_by_weight_however_many_threads_they_have() {
    let mut threads = vec![(Some(0), all(), Habit::Spin)];
    threads.extend([(Some(1), all(), Habit::Spin); 3]);
    threads.push((Some(2), all(), Habit::Spin));
    let mut world = world(&topology(1, 1, 1, false), &threads);
    world.host.set_weight(GroupId(0), 200, false, Nanos::ZERO);
    world.host.set_weight(GroupId(2), 100, true, Nanos::ZERO);
    assert_eq!(watched(&mut world, Nanos(10 * SECOND.0), None), []);
    let one = ran(&world, 0) as f64;
    let three: u64 = (1..4).map(|at| ran(&world, at)).sum();
    assert!((one / three as f64 / 2.0 - 1.0).abs() < 0.01);
    // An idle group has 3 / (2048 + 1024 + 3) of the core.
    let idle = ran(&world, 4) as f64 / 1e10;
    assert!(idle < 0.004, "{idle}");
}

/// A thread that wakes beside hogs: it has slept, so it is eligible with the earliest deadline but for who is in its first slice; it waits a tick and a slice at
/// the most, and most often not at all.
#[test]
fn one_that_wakes_beside_hogs_waits_as_eevdf_has_it() {
    let hogs = 3;
    let mut threads = vec![(None, all(), Habit::Spin); hogs];
    threads.push((
        None,
        all(),
        Habit::Sleeper {
            work: 100_000,
            sleep: 10_000_000,
        },
    ));
    let mut world = world(&topology(1, 1, 1, false), &threads);
    assert_eq!(watched(&mut world, Nanos(20 * SECOND.0), None), []);
    let mut delays = world.work.acts[hogs].delays.clone();
    delays.sort_unstable();
    assert!(delays.len() > 1000);
    let at = |part: f64| delays[(delays.len() as f64 * part) as usize] as f64 / 1e6;
    let tick = world.host.costs.tick as f64 / 1e6;
    assert!(at(0.5) < tick, "{}", at(0.5));
    assert!(at(0.999) < 3.0 * tick, "{}", at(0.999));
}

#[test]
fn softirqs_go_before_threads_until_they_are_too_many_and_then_ksoftirqd_has_them() {
    let mut world = world(&topology(1, 1, 1, false), &[(None, all(), Habit::Spin)]);
    let mut watcher = Watcher::new(world.host.view(Nanos::ZERO), None);
    let mut until = 0;
    // A softirq of 90 us every 100 us, told by a hard interrupt: it fits in.
    let mut load = |world: &mut World<Actors>, work: u64, times: u64| {
        for _ in 0..times {
            until += 100_000;
            while let Some(at) = world.queue.next_at().filter(|at| at.0 <= until) {
                world.run(at).unwrap();
                watcher.observe(world.host.view(at));
            }
            world.run(Nanos(until)).unwrap();
            for (kind, work) in [(Kind::Device, 1000), (Kind::Softirq, work)] {
                interrupt(world, 0, kind, work);
                watcher.observe(world.host.view(Nanos(until)));
            }
        }
    };
    load(&mut world, 90_000, 1000);
    assert_eq!(world.host.counters.ksoftirqd, 0);
    interrupt(&mut world, 0, Kind::Timer, 1000);
    let crate::host::Counters {
        interrupts,
        device_irqs,
        ..
    } = world.host.counters;
    assert_eq!(
        (interrupts, device_irqs),
        (1001, 1000),
        "a device's are counted apart, and softirqs are none"
    );
    assert!(world.work.interrupts >= 1998);
    // One of 150 us every 100 us doesn't.
    load(&mut world, 150_000, 1000);
    assert!(world.host.counters.ksoftirqd > 0);
    let view = world.host.view(world.now());
    assert!(
        view.thread_time(ThreadId(0)).waited > 0,
        "ksoftirqd waits as others do"
    );
    let costs = world.host.costs.clone();
    assert_eq!(
        watcher.verdict(view, &costs.idle_power, costs.busy_power),
        []
    );
}

#[test]
fn a_frozen_guest_does_nothing_and_goes_on_where_it_was() {
    let spin = (Some(0), all(), Habit::Spin);
    let mut world = world(&topology(1, 1, 2, false), &[spin; 3]);
    world.run(SECOND).unwrap();
    world
        .act(|host, scene| host.set_frozen(GroupId(0), true, scene))
        .unwrap();
    let before: u64 = (0..3).map(|at| ran(&world, at)).sum();
    world.run(Nanos(2 * SECOND.0)).unwrap();
    assert_eq!((0..3).map(|at| ran(&world, at)).sum::<u64>(), before);
    world
        .act(|host, scene| host.set_frozen(GroupId(0), false, scene))
        .unwrap();
    world.run(Nanos(3 * SECOND.0)).unwrap();
    let after: u64 = (0..3).map(|at| ran(&world, at)).sum();
    assert!(after - before > 2 * SECOND.0 - 1_000_000);
}

/// Two that wake each other from core to core, and one that naps: a core begins to run a thread once for each wake-up, goes idle as often, and is told by another's IPI where
/// there is another.
#[test]
fn what_cores_begin_and_tell_each_other_is_counted() {
    let topology = topology(1, 1, 4, false);
    let on = |cpu| CpuSet::single(CpuId(cpu));
    let pair = |other| Habit::Partner {
        work: 100_000,
        other,
    };
    let nap = Habit::Nap {
        work: 100_000,
        sleep: 900_000,
    };
    for (threads, told) in [
        (vec![(None, on(0), pair(1)), (None, on(2), pair(0))], true),
        (vec![(None, on(1), nap)], false),
    ] {
        let mut world = world(&topology, &threads);
        world.run(Nanos(1_000_000_000)).unwrap();
        let counters = world.host.counters;
        let begun = counters.begun;
        assert!((800..=10_000).contains(&begun), "{counters:?}");
        assert!(counters.switches.abs_diff(2 * begun) <= 2, "{counters:?}");
        let ipis = if told { begun } else { 0 };
        assert!(counters.ipis.abs_diff(ipis) <= 1, "{counters:?}");
    }
}

#[test]
fn a_busy_sibling_slows_a_core_and_a_core_of_ones_own_does_not() {
    let on = |cpu| CpuSet::single(CpuId(cpu));
    let piece = Habit::Pieces(1_000_000);
    let beside = [(None, on(0), piece), (None, on(1), piece)];
    let apart = [(None, on(0), piece), (None, on(2), piece)];
    let did = |threads: &[(Option<u32>, CpuSet, Habit)]| {
        let mut world = world(&topology(1, 1, 4, true), threads);
        assert_eq!(watched(&mut world, SECOND, None), []);
        world.work.acts[0].did as f64
    };
    let ratio = did(&beside) / did(&apart);
    assert!((ratio - 1178.0 / 2048.0).abs() < 0.002, "{ratio}");
}

fn kernel() -> impl Strategy<Value = Kernel> {
    prop_oneof![Just(Kernel::Linux6_12), Just(Kernel::Linux7_3)]
}

/// A world's costs, of a host with this kernel.
fn costs_of(topology: &Topology, kernel: Kernel) -> HostCosts {
    HostCosts {
        kernel,
        ..HostCosts::of(topology.cpus.len() as u32)
    }
}

/// What is random about a host and its threads.
fn worlds() -> impl Strategy<Value = (Topology, Vec<(Option<u32>, CpuSet, Habit)>)> {
    let topologies = (
        1_u32..3,
        1_u32..3,
        prop_oneof![Just(1_u32), Just(2), Just(4)],
        any::<bool>(),
    )
        .prop_map(|(nodes, groups, cores, smt)| topology(nodes, groups, cores, smt && cores > 1));
    topologies.prop_flat_map(|topology| {
        let cores = topology.cpus.len() as u32;
        let set = prop_oneof![
            Just(CpuSet::range(0, cores)),
            (0..cores).prop_map(|cpu| CpuSet::single(CpuId(cpu))),
            proptest::collection::vec(0..cores, 1..4)
                .prop_map(|cpus| cpus.into_iter().map(CpuId).collect()),
        ];
        let habit = prop_oneof![
            Just(Habit::Spin),
            (10_000_u64..5_000_000).prop_map(Habit::Pieces),
            (1_000_u64..5_000_000, 1_000_u64..20_000_000)
                .prop_map(|(work, sleep)| Habit::Sleeper { work, sleep }),
        ];
        let thread = (proptest::option::of(0_u32..3), set, habit);
        (Just(topology), proptest::collection::vec(thread, 1..12))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Time is where it should be. And where all float, no core sleeps for long while a thread waits: until averages whose half-life is 32 ms tell that the other group's cores are used, so that it counts as
    /// overloaded and not as one with cores to spare (`group_is_overloaded`): 100 of 117 parts from nothing take 89 ms. Then come two wide balances, each after as many milliseconds as there are cores, at a tick: the first may find that one thread is more than is to be moved, and what it is counts half at the second (`detach_tasks`, `nr_balance_failed`). Where some are pinned Linux doesn't promise that, as cache groups that have as much to do are even, though all of one's is on one of its cores.
    #[test]
    fn time_and_work_are_conserved(
        (topology, mut threads) in worlds(),
        pinned in any::<bool>(),
        kernel in kernel(),
        in_kernel in 0_u8..4,
        changes in proptest::collection::vec((0_u64..300, 0_u32..3, any::<u8>()), 0..6),
    ) {
        if !pinned {
            for (_, set, _) in &mut threads {
                *set = all();
            }
        }
        let mut world = world_with(&topology, &threads, costs_of(&topology, kernel));
        for act in world.work.acts.iter_mut().skip(1).step_by(1 + usize::from(in_kernel)) {
            act.in_kernel = true;
        }
        let groups = threads.iter().filter_map(|(group, _, _)| *group).max().map_or(0, |g| g + 1);
        let mut changes = changes;
        changes.sort_unstable();
        let delay = Nanos(16 * world.host.costs.tick);
        let delay = (!pinned).then_some(delay);
        let balance = 2 * topology.cpus.len() as u64 * 1_000_000;
        let across = Nanos(89_000_000 + balance + world.host.costs.tick);
        let mut watcher = Watcher::new(world.host.view(Nanos::ZERO), delay).across(across);
        let until = Nanos(300_000_000);
        let mut frozen = [false; 3];
        for (at, group, what) in changes.into_iter().chain([(300, 0, 255)]) {
            let at = Nanos(at * 1_000_000);
            while let Some(next) = world.queue.next_at().filter(|next| *next <= at) {
                world.run(next).unwrap();
                watcher.observe(world.host.view(next));
            }
            world.run(at).unwrap();
            if group >= groups || what == 255 {
                watcher.observe(world.host.view(at));
                continue;
            }
            let id = GroupId(group);
            let cores = topology.cpus.len() as u32;
            match what % 3 {
                0 if pinned => {
                    let set = CpuSet::range(u32::from(what) % cores, cores);
                    world.act(|host, scene| host.set_cpuset(id, set, scene)).unwrap();
                }
                0 | 1 => {
                    frozen[group as usize] ^= true;
                    let frozen = frozen[group as usize];
                    world.act(|host, scene| host.set_frozen(id, frozen, scene)).unwrap();
                }
                _ => world.host.set_weight(id, 1 + u32::from(what), what > 200, at),
            }
            watcher.observe(world.host.view(at));
        }
        let costs = world.host.costs.clone();
        let found = watcher.verdict(world.host.view(until), &costs.idle_power, costs.busy_power);
        prop_assert_eq!(found, vec![]);
        // What threads say they did is what they ran for, less switches and the like, and never more.
        for (at, act) in world.work.acts.iter().enumerate() {
            prop_assert!(act.did <= ran(&world, at as u32));
        }
    }

    /// On one core, threads that compute and never sleep have shares by weight, over any set of weights.
    #[test]
    fn shares_are_by_weight(weights in proptest::collection::vec(1_u32..800, 2..8), kernel in kernel()) {
        let threads: Vec<_> = (0..weights.len())
            .map(|group| (Some(group as u32), all(), Habit::Spin))
            .collect();
        let one = topology(1, 1, 1, false);
        let mut world = world_with(&one, &threads, costs_of(&one, kernel));
        for (group, weight) in weights.iter().enumerate() {
            world.host.set_weight(GroupId(group as u32), *weight, false, Nanos::ZERO);
        }
        let until = Nanos(20 * SECOND.0);
        world.run(until).unwrap();
        let sum: u32 = weights.iter().map(|weight| (weight * 1024 / 100).max(2)).sum();
        for (at, weight) in weights.iter().enumerate() {
            let due = until.0 as f64 * f64::from((weight * 1024 / 100).max(2)) / f64::from(sum);
            // Lag is two slices at the most, and a slice is over at a tick.
            let off = (ran(&world, at as u32) as f64 - due).abs();
            prop_assert!(off < 20e6 + 0.002 * due, "{at}: {off} of {due}");
        }
    }

    /// The same world does the same.
    #[test]
    fn a_world_is_a_function_of_its_seed((topology, threads) in worlds(), kernel in kernel()) {
        let run = || {
            let mut world = world_with(&topology, &threads, costs_of(&topology, kernel));
            world.run(Nanos(100_000_000)).unwrap();
            let ran: Vec<_> = (0..threads.len() as u32).map(|at| ran(&world, at)).collect();
            (world.queue.taken(), world.host.counters, ran)
        };
        prop_assert_eq!(run(), run());
    }
}

#[test]
fn owners_that_ask_for_ever_are_cut_off() {
    let partner = |other| {
        (
            None,
            CpuSet::single(CpuId(other)),
            Habit::Partner { work: 0, other },
        )
    };
    let mut costs = HostCosts::of(2);
    costs.switch = 0;
    costs.idle_exit = [0; 3];
    costs.ipi = 0;
    let mut world = world_with(&topology(1, 1, 2, false), &[partner(1), partner(0)], costs);
    let error = world.run(SECOND).unwrap_err();
    assert!(
        error.to_string().contains("without time going on"),
        "{error}"
    );
}

/// Two guests on six cores, of which one has more threads than the other but not more to say: its threads, wherever they began, come to where the other's
/// are, until both have about half. What cores' loads are is the guests' weights, wherever their threads are.
#[test]
fn guests_that_float_have_about_equal_shares_of_the_host() {
    let sleeper = Habit::Sleeper {
        work: 1_000_000,
        sleep: 100_000,
    };
    for habit in [Habit::Spin, sleeper] {
        let mut threads = vec![(Some(0), all(), Habit::Spin); 4];
        threads.extend([(Some(1), all(), habit); 8]);
        let mut world = world(&topology(1, 1, 6, false), &threads);
        assert_eq!(watched(&mut world, Nanos(5 * SECOND.0), None), []);
        let four: u64 = (0..4).map(|at| ran(&world, at)).sum();
        let cores = four as f64 / 5e9;
        assert!((2.8..3.6).contains(&cores), "{habit:?}: {cores} of 6 cores");
        let loads = world.host.accounts[..6].iter();
        let load: u32 = loads.map(|account| account.load.get()).sum();
        assert!((1900..2350).contains(&load), "{habit:?}: a load of {load}");
    }
}
