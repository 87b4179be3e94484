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

    fn interrupted(&mut self, cpu: CpuId, token: u64, _: Nanos, out: &mut Effects) {
        let left = &mut self.left[token as usize];
        if *left > 0 {
            *left -= 1;
            out.softirq(cpu, token, Nanos(20_000));
        }
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
