//! Softirqs that bring others, as a poll does that has found something.

use super::*;

/// Nobody works; each softirq brings the next on its core until there were so many of its kind.
struct Again {
    left: [u32; 2],
}

impl Work for Again {
    fn next(&mut self, _: ThreadId, _: CpuId, _: Nanos, _: &mut Effects) -> Next {
        Next::Sleep
    }

    fn ran(&mut self, _: ThreadId, _: CpuId, _: Nanos, _: Nanos, _: &mut Effects) {}

    fn interrupted(
        &mut self,
        cpu: CpuId,
        token: u64,
        _: Nanos,
        out: &mut Effects,
    ) -> Option<Nanos> {
        let left = &mut self.left[token as usize];
        if *left > 0 {
            *left -= 1;
            out.softirq(cpu, token, Nanos(20_000));
        }
        None
    }

    fn alarm(&mut self, _: u64, _: Nanos, _: &mut Effects) {}

    fn slowdown(&self, _: ThreadId, _: CpuId) -> u32 {
        FULL_SPEED
    }
}

/// Each turn of ksoftirqd's is the last that it knows of, and no interrupt comes any more to have the next one seen.
#[test]
fn ksoftirqd_does_not_sleep_on_what_its_own_turn_brings() {
    let topology = topology(1, 1, 2, false);
    let costs = HostCosts::of(2);
    let mut world = World::new(&topology, costs, Again { left: [1000, 20] });
    // ksoftirqd has them once one waits for the other, and then the one alone.
    for token in 0..2 {
        let first = Interrupt {
            kind: Kind::Device,
            token,
            work: Nanos(1000),
        };
        world
            .act(|host, scene| host.interrupt(0, first, scene))
            .unwrap();
    }
    world.run(Nanos::from_millis(40)).unwrap();
    assert!(world.host.counters.ksoftirqd > 0, "it takes too long");
    assert_eq!(world.work.left, [0, 0]);
    assert_eq!(world.host.interrupts_pending(CpuId(0)), 0);
    let view = world.host.view(world.now());
    assert!(view.thread_time(ThreadId(0)).ran > 10_000_000);
}

/// A thread that sleeps, and a softirq that wakes it and goes on, step by step.
struct Polls {
    thread: ThreadId,
    /// Steps that it still has, and what each takes.
    left: u32,
    each: Nanos,
    /// Whether the thread has something to do, and when it had the core for it first.
    woken: bool,
    began: Option<Nanos>,
    /// When the last step ended.
    over: Nanos,
}

impl Work for Polls {
    fn next(&mut self, _: ThreadId, _: CpuId, now: Nanos, _: &mut Effects) -> Next {
        if !std::mem::take(&mut self.woken) {
            return Next::Sleep;
        }
        self.began.get_or_insert(now);
        Next::Run(Nanos(5000))
    }

    fn ran(&mut self, _: ThreadId, _: CpuId, _: Nanos, _: Nanos, _: &mut Effects) {}

    fn interrupted(
        &mut self,
        cpu: CpuId,
        token: u64,
        now: Nanos,
        out: &mut Effects,
    ) -> Option<Nanos> {
        if token == 0 {
            out.softirq(cpu, 1, self.each);
            return None;
        }
        if !std::mem::replace(&mut self.woken, true) {
            out.notify_from(self.thread, cpu);
        }
        self.over = now;
        self.left -= 1;
        (self.left > 0).then_some(self.each)
    }

    fn alarm(&mut self, _: u64, _: Nanos, _: &mut Effects) {}

    fn slowdown(&self, _: ThreadId, _: CpuId) -> u32 {
        FULL_SPEED
    }
}

/// A core that sleeps and is interrupted once; the softirq has so many steps of 10 us, the first of which wakes a thread there.
fn polls(steps: u32, kernel: Kernel) -> World<Polls> {
    let one = topology(1, 1, 1, false);
    let mut costs = costs_of(&one, kernel);
    costs.idle_leave = 7000;
    let polls = Polls {
        thread: ThreadId(0),
        left: steps,
        each: Nanos::from_micros(10),
        woken: false,
        began: None,
        over: Nanos::ZERO,
    };
    let mut world = World::new(&one, costs, polls);
    let spawn = Spawn {
        allowed: all(),
        ..Spawn::default()
    };
    world.work.thread = world.host.spawn(spawn, Nanos::ZERO);
    world.run(Nanos::from_millis(1)).expect("time goes on");
    let interrupt = Interrupt {
        kind: Kind::Device,
        token: 0,
        work: Nanos(1000),
    };
    world
        .act(|host, scene| host.interrupt(0, interrupt, scene))
        .expect("time goes on");
    world.run(Nanos::from_millis(60)).expect("time goes on");
    world
}

#[test]
fn a_softirq_goes_on_before_the_thread_that_it_has_woken() {
    let world = polls(20, Kernel::Linux7_3);
    let began = world.work.began.expect("it was woken");
    assert_eq!(world.work.left, 0);
    // All of it is one, and then the core leaves its idle loop: it slept for nobody who comes now.
    let rises = began.0 - world.work.over.0;
    assert_eq!(rises, 7000);
    assert_eq!(world.host.counters.ksoftirqd, 0);
    let took = world.host.view(world.now()).core_time(CpuId(0)).soft;
    assert_eq!(took, 200_000);
}

/// `net_rx_action` gives up after 8 ms, and the rest is ksoftirqd's, which shares the core.
#[test]
fn a_softirq_that_goes_on_for_too_long_is_left_to_ksoftirqd() {
    let world = polls(2000, Kernel::Linux7_3);
    let began = world.work.began.expect("it was woken");
    assert_eq!(world.work.left, 0);
    assert!(world.host.counters.ksoftirqd > 0);
    let took = world.host.view(world.now()).core_time(CpuId(0)).soft;
    assert_eq!(took, 8_000_000, "and not a step more");
    assert!(began < world.work.over, "the thread waits for no end of it");
    let view = world.host.view(world.now());
    // With what it takes to switch to it.
    let ran = view.thread_time(ThreadId(0)).ran;
    assert!((12_000_000..12_100_000).contains(&ran), "{ran}");
}

/// Threads that work in turn for a while with softirqs held off and for a while without, but for the last, which never holds any. An interrupt of a device brings a softirq.
struct Holders {
    first: u32,
    /// By thread: how long it does either, and whether it holds them off now.
    threads: Vec<([u64; 2], bool)>,
    /// When each softirq's interrupt was over, and by when it was done.
    raised: std::collections::VecDeque<Nanos>,
    waits: Vec<u64>,
    on: Option<usize>,
    done: Vec<u64>,
}

impl Holders {
    fn at(&self, thread: ThreadId) -> usize {
        (thread.0 - self.first) as usize
    }
}

impl Work for Holders {
    fn next(&mut self, thread: ThreadId, _: CpuId, _: Nanos, _: &mut Effects) -> Next {
        let at = self.at(thread);
        assert!(
            self.on.is_none_or(|on| on == at),
            "it had to wait for its turn"
        );
        self.on = Some(at);
        let (times, holds) = self.threads[at];
        Next::Run(Nanos(times[usize::from(holds)] - self.done[at]))
    }

    fn ran(&mut self, thread: ThreadId, _: CpuId, work: Nanos, _: Nanos, _: &mut Effects) {
        let at = self.at(thread);
        let (times, holds) = &mut self.threads[at];
        self.done[at] += work.0;
        if self.done[at] == times[usize::from(*holds)] {
            self.done[at] = 0;
            *holds = !*holds && times[1] > 0;
        }
    }

    fn left(&mut self, thread: ThreadId, _: CpuId, _: Nanos, _: &mut Effects) {
        let at = self.at(thread);
        assert!(
            !self.threads[at].1,
            "nobody takes the core of one that holds softirqs off"
        );
        self.on = None;
    }

    fn interrupted(
        &mut self,
        cpu: CpuId,
        token: u64,
        now: Nanos,
        out: &mut Effects,
    ) -> Option<Nanos> {
        if token == 0 {
            self.raised.push_back(now);
            out.softirq(cpu, 1, Nanos(3000));
        } else {
            assert!(
                self.on.is_none_or(|on| !self.threads[on].1),
                "it is held off"
            );
            let raised = self.raised.pop_front().expect("each was raised");
            self.waits.push(now.0 - raised.0);
        }
        None
    }

    fn alarm(&mut self, _: u64, _: Nanos, _: &mut Effects) {}

    fn in_kernel(&self, _: ThreadId) -> bool {
        true
    }

    fn holds_softirqs(&self, thread: ThreadId) -> bool {
        self.threads[self.at(thread)].1
    }

    fn slowdown(&self, _: ThreadId, _: CpuId) -> u32 {
        FULL_SPEED
    }
}

/// Threads on one core, interrupted ever so often.
fn holders(threads: &[[u64; 2]], every: u64, kernel: Kernel) -> World<Holders> {
    let one = topology(1, 1, 1, false);
    let costs = costs_of(&one, kernel);
    let holders = Holders {
        first: 1,
        threads: threads.iter().map(|times| (*times, false)).collect(),
        raised: std::collections::VecDeque::new(),
        waits: Vec::new(),
        on: None,
        done: vec![0; threads.len()],
    };
    let mut world = World::new(&one, costs, holders);
    for _ in threads {
        let spawn = Spawn {
            allowed: all(),
            ..Spawn::default()
        };
        let thread = world.host.spawn(spawn, Nanos::ZERO);
        world
            .act(|host, scene| host.notify(thread.0, None, scene))
            .expect("time goes on");
    }
    let interrupt = Interrupt {
        kind: Kind::Device,
        token: 0,
        work: Nanos(1000),
    };
    for at in (every..200_000_000).step_by(every as usize) {
        world.run(Nanos(at)).expect("time goes on");
        world
            .act(|host, scene| host.interrupt(0, interrupt, scene))
            .expect("time goes on");
    }
    world.run(Nanos(202_000_000)).expect("time goes on");
    world
}

#[test]
fn what_interrupts_bring_waits_for_a_thread_that_holds_it_off_and_for_nothing_else() {
    // Three fifths of the time are held: a softirq's work, and what is left of that.
    let world = holders(&[[200_000, 300_000]], 70_001, Kernel::Linux7_3);
    let waits = &world.work.waits;
    assert_eq!(waits.len(), 2857);
    let held = waits.iter().filter(|wait| **wait > 30_000).count();
    assert!((1400..1700).contains(&held), "{held} of {}", waits.len());
    // Four interrupts come to a hold, whose softirqs are one after the other; none waits for another hold.
    let longest = *waits.iter().max().expect("some");
    assert!((300_000..330_000).contains(&longest), "{longest}");
    assert_eq!(world.host.counters.ksoftirqd, 0);
    // None is held by whoever never does.
    let never = holders(&[[200_000, 0]], 70_001, Kernel::Linux7_3);
    assert!(never.work.waits.iter().all(|wait| *wait == 3000));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Whoever else wants the core, and whatever the kernel: the world itself says where a softirq runs that is held off, or a thread loses the core that holds one.
    #[test]
    fn whoever_holds_softirqs_off_keeps_its_core_and_lets_them_go(
        threads in prop::collection::vec([1_u64..3_000_000, 0_u64..3_000_000], 1..4),
        every in 20_000_u64..3_000_000,
        lazy in any::<bool>(),
    ) {
        let kernel = if lazy { Kernel::Linux7_3 } else { Kernel::Linux6_12 };
        let world = holders(&threads, every, kernel);
        let raised = (200_000_000 - 1) / every;
        let longest = threads.iter().map(|times| times[1]).max().unwrap_or_default();
        prop_assert!(world.work.waits.len() as u64 + world.work.raised.len() as u64 == raised);
        // ksoftirqd may have to wait for all others.
        if world.host.counters.ksoftirqd == 0 {
            for wait in &world.work.waits {
                prop_assert!(*wait <= longest + 4000 * (longest / every + 2), "{wait}");
            }
        }
    }
}
