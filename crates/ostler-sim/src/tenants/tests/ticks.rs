//! Ticks that vCPUs keep when they sleep, timers of connections, and what the steward's questions take.

use super::*;
use crate::work::{Effect, Effects, Kind};

const SERVICE: Nanos = Nanos::from_micros(40);
const DELAY: Nanos = Nanos::from_millis(40);

/// A guest's ticks are four milliseconds apart, and the first is at the beginning.
fn ticking(guests: Vec<GuestSpec>, loads: Vec<LoadSpec>, delayed_ack: Nanos) -> Driver {
    let costs = Costs {
        guest_tick: Nanos::from_millis(4),
        delayed_ack,
        tick: Nanos::from_micros(100),
        ..free()
    };
    let mut world = world(guests, loads, costs, 5);
    world.work.inner.guests[0].ticks_from = Nanos::ZERO;
    world
}

/// Requests at 1 ms and every so many ms after that, so many in all, each on a connection of its own.
fn requests(every_ms: u64, count: u64) -> Vec<LoadSpec> {
    let one = |nth| LoadSpec {
        start: Nanos::from_millis(every_ms * nth),
        connections: 1,
        ..load(&[0], 1000.0, 0.0015, Arrivals::Even)
    };
    (0..count).map(one).collect()
}

/// Interrupts that the guest's vCPUs have had by some times.
fn by(world: &mut Driver, at_ms: &[u64]) -> Vec<u64> {
    let mut seen = Vec::new();
    for ms in at_ms {
        world.run(Nanos::from_millis(*ms));
        let vcpus = world.work.inner.guests[0].vcpus.iter();
        seen.push(vcpus.map(|vcpu| vcpu.interrupts).sum());
    }
    world.check();
    seen
}

/// Those of a lone vCPU that is asked ten times.
fn interrupts(every_ms: u64, at_ms: &[u64]) -> Vec<u64> {
    let guests = vec![guest(1, 1, serve(1, Time::Fixed(SERVICE)))];
    let mut world = ticking(guests, requests(every_ms, 10), Nanos::ZERO);
    by(&mut world, at_ms)
}

#[test]
fn a_vcpu_that_has_worked_keeps_its_tick_until_that_wakes_it() {
    // At 1, 101, ... ms a request, at 4, 104, ... a tick, and no further.
    assert_eq!(
        interrupts(100, &[2, 5, 90, 102, 105, 190]),
        [1, 2, 2, 3, 4, 4]
    );
    // At 1, 3, 5, ... 19 ms a request; in between, at 4, 8, 12, 16, 20 a tick.
    assert_eq!(interrupts(2, &[2, 5, 14, 100]), [1, 3, 7 + 3, 10 + 5]);
}

/// What wakes a vCPU but none of its tasks leaves a tick stopped that is.
#[test]
fn an_interrupt_for_no_task_brings_no_tick_back() {
    let asks = LoadSpec {
        connections: 1,
        depth: Some(1),
        acknowledged: true,
        ..load(&[0], 1000.0, 0.0015, Arrivals::Even)
    };
    let guests = vec![guest(1, 1, serve(1, Time::Fixed(SERVICE)))];
    let mut world = ticking(guests, vec![asks], Nanos::ZERO);
    // A request at 1 ms and a tick at 4; at 41 the client acknowledges the answer, and no tick comes at 44.
    assert_eq!(by(&mut world, &[2, 5, 40, 42, 90]), [1, 2, 2, 3, 3]);
}

/// Forty milliseconds and what is left of a tick after a request comes its connection's timer, if none has come since.
#[test]
fn a_connection_on_which_nothing_follows_wakes_its_guest_once() {
    let one = || vec![guest(1, 1, serve(1, Time::Fixed(SERVICE)))];
    let mut world = ticking(one(), requests(100, 2), DELAY);
    // At 1, 4, 44, 101, 104, 144.
    let at = [2, 5, 43, 45, 100, 102, 105, 143, 145, 500];
    assert_eq!(by(&mut world, &at), [1, 2, 2, 3, 3, 4, 5, 5, 6, 6]);

    // Ten connections, each asked at another tick: ten timers, each a wake-up.
    let mut world = ticking(one(), requests(4, 10), DELAY);
    assert_eq!(
        by(&mut world, &[38, 42, 83, 500]),
        [19, 20, 20 + 10, 20 + 10]
    );

    // One that is asked ten times, each 20 ms: a request and a tick for each, and one timer.
    let again = LoadSpec {
        connections: 1,
        ..load(&[0], 50.0, 0.201, Arrivals::Even)
    };
    let mut world = ticking(one(), vec![again], DELAY);
    let seen = by(&mut world, &[205, 239, 245, 500]);
    assert_eq!(world.work.inner.net.totals().1, 10);
    assert_eq!(seen, [20, 20, 21, 21]);
}

/// Whichever vCPU has its tick sees to the timers of all; where none has, one alone wakes for each.
#[test]
fn one_vcpu_sees_to_the_timers_of_all() {
    let two = |program| {
        let mut guest = guest(2, 1, serve(2, Time::Fixed(SERVICE)));
        guest.programs.extend(program);
        vec![guest]
    };
    let mut world = ticking(two(None), requests(4, 10), DELAY);
    // The one that was the last to stop its tick before the other was asked wakes for the first, too.
    let idle = by(&mut world, &[42, 46, 500]);
    assert_eq!([idle[1] - idle[0], idle[2] - idle[1]], [2, 9], "{idle:?}");
    let spins = Program::Compute {
        tasks: 1,
        round: Nanos::from_millis(1),
    };
    let mut world = ticking(two(Some(spins)), requests(4, 10), DELAY);
    let busy = by(&mut world, &[45, 500]);
    assert_eq!(busy[1] - busy[0], 0, "{busy:?}");
}

/// However long it takes, an agent is asked at the same times, twice a second.
#[test]
fn an_agent_answers_as_often_as_it_is_asked() {
    for work in [1, 20, 400] {
        let agent = Program::Agent {
            work: Nanos::from_millis(work),
            every: Nanos::from_millis(500),
        };
        let mut world = world(vec![guest(1, 1, agent)], Vec::new(), free(), 5);
        let mut ran = Vec::new();
        for ms in [499, 500 + work, 999, 1000 + work, 5499] {
            world.run(Nanos(ms * 1_000_000 + 10_000));
            world.work.inner.ask_all(&mut Effects::default());
            ran.push(world.work.inner.guests[0].vcpus[0].accounts.tasks.0 / 1_000_000);
        }
        assert_eq!(ran, [1, 2, 2, 3, 11].map(|times| times * work));
    }
}

/// Whoever booted when it liked has its ticks apart from others', and at any time of the host's.
#[test]
fn guests_ticks_are_where_the_seed_has_them() {
    let costs = Costs {
        guest_tick: Nanos::from_millis(4),
        ..free()
    };
    let from = |seed| {
        let guests = (0..20).map(|_| guest(1, 1, serve(1, Time::Fixed(SERVICE))));
        let world = world(guests.collect(), Vec::new(), costs, seed);
        let tenants = &world.work.inner;
        (0..20)
            .map(|g| tenants.next_tick(g, Nanos::from_secs(1)).expect("one"))
            .collect::<Vec<_>>()
    };
    let first = from(5);
    assert_eq!(first, from(5));
    assert_ne!(first, from(6));
    let quarters = |at: &Nanos| (at.0 - 1_000_000_001) / 1_000_000;
    let drawn: std::collections::BTreeSet<u64> = first.iter().map(quarters).collect();
    assert_eq!(drawn, (0..4).collect(), "of the four milliseconds after");
}

/// A vCPU that loses its core has its next tick there, too.
#[test]
fn a_vcpu_that_is_stopped_leaves_its_tick_behind() {
    let costs = Costs {
        guest_tick: Nanos::from_millis(4),
        ..free()
    };
    let spins = Program::Compute {
        tasks: 1,
        round: Nanos::from_millis(1),
    };
    let mut world = world(vec![guest(1, 1, spins)], Vec::new(), costs, 5);
    world.run(Nanos::from_millis(10));
    world.act(|tenants, now, _| {
        let vcpu = &tenants.guests[0].vcpus[0];
        let (thread, cpu) = (vcpu.thread, vcpu.cpu);
        assert_eq!(vcpu.tick_at, None, "it has run since it came up");
        let mut out = Effects::default();
        tenants.left(thread, cpu, now, &mut out);
        let [Effect::Alarm { at, .. }] = out.0[..] else {
            panic!("an alarm and nothing else: {out:?}");
        };
        assert!(at > now && at <= now.saturating_add(Nanos::from_millis(4)));
        assert_eq!(tenants.guests[0].vcpus[0].tick_at, Some(at));
    });
}

/// So a core that has been marked for somebody looks, whether or not it is for the vCPU whose timer that is.
#[test]
fn a_tick_that_a_vcpu_has_kept_interrupts_the_core_that_it_had_last() {
    let costs = Costs {
        guest_tick: Nanos::from_millis(4),
        ..free()
    };
    let guests = vec![guest(1, 1, serve(1, Time::Fixed(SERVICE)))];
    let one = load(&[0], 1000.0, 0.0015, Arrivals::Even);
    let mut world = world(guests, vec![one], costs, 5);
    world.run(Nanos::from_millis(2));
    let (interrupts, token) = world.act(|tenants, now, _| {
        let (before, mut out) = (tenants.guests[0].vcpus[0].interrupts, Effects::default());
        // An alarm for a time that isn't its any more.
        tenants.tick(0, 0, now, &mut out);
        assert_eq!(out.0, []);
        tenants.guests[0].vcpus[0].tick_at = Some(now);
        tenants.tick(0, 0, now, &mut out);
        let cpu = tenants.guests[0].vcpus[0].cpu;
        let (at, interrupt) = only_interrupt(&out);
        assert_eq!((at, interrupt.kind), (cpu, Kind::Timer));
        assert_eq!(tenants.guests[0].vcpus[0].interrupts, before, "not yet");
        let mut out = Effects::default();
        tenants.interrupted(cpu, interrupt.token, now, &mut out);
        let wakes = Effect::Notify {
            thread: tenants.guests[0].vcpus[0].thread,
            from: Some(cpu),
        };
        assert_eq!(out.0, [wakes]);
        (
            tenants.guests[0].vcpus[0].interrupts - before,
            interrupt.token,
        )
    });
    assert_eq!(interrupts, 1);
    world.act(|tenants, now, _| {
        // One that is stopped has left it behind, and isn't woken: the tick is still to come when it has a core again.
        tenants.guests[0].vcpus[0].told = crate::guest::Told::Poll;
        tenants.guests[0].vcpus[0].tick_at = Some(now);
        let cpu = tenants.guests[0].vcpus[0].cpu;
        let mut out = Effects::default();
        tenants.tick(0, 0, now, &mut out);
        let (at, _) = only_interrupt(&out);
        assert_eq!(at, cpu);
        let mut out = Effects::default();
        tenants.interrupted(cpu, token, now, &mut out);
        assert_eq!(out.0, []);
        // One that has a core has taken it along.
        tenants.guests[0].vcpus[0].on = Some(cpu);
        tenants.guests[0].vcpus[0].tick_at = Some(now);
        tenants.tick(0, 0, now, &mut out);
        assert_eq!(out.0, []);
    });
}

/// Wake-ups in a second of the vCPU that a guest of two doesn't use, while so many tasks have the other for so much of each millisecond each.
fn balances(tasks: u32, busy: Nanos) -> u64 {
    let costs = Costs {
        guest_tick: Nanos::from_millis(4),
        balances: Nanos::from_micros(5),
        ..free()
    };
    let guests = vec![guest(2, 1, serve(tasks, Time::Fixed(busy)))];
    let each = |_| LoadSpec {
        connections: 1,
        ..load(&[0], 1000.0, 1.2, Arrivals::Even)
    };
    let mut world = world(guests, (0..tasks).map(each).collect(), costs, 5);
    world.act(|tenants, _, out| assert!(tenants.ask_vcpus(0, 1, out)));
    world.run(Nanos::from_millis(200));
    let woken = |world: &Driver| world.work.inner.guests[0].vcpus[1].interrupts;
    let before = woken(&world);
    world.run(Nanos::from_millis(1200));
    world.check();
    woken(&world) - before
}

/// A vCPU that isn't used balances for those that are: once what idle ones were busy with is to fade, which is after 32 ms and at the next tick, and at each tick of one that has tasks waiting.
#[test]
fn a_vcpu_that_is_not_used_is_woken_to_balance() {
    let alone = balances(1, Nanos::from_micros(400));
    assert!((25..=32).contains(&alone), "{alone}");
    let wait = balances(8, Nanos::from_micros(100));
    assert!(wait > 4 * alone && wait <= 250, "{wait}");
}

/// Two that kick at the same tick have it balance once.
#[test]
fn a_vcpu_that_has_been_kicked_is_not_kicked_again_before_it_has_balanced() {
    let tick = Nanos::from_millis(4);
    let guests = vec![guest(3, 1, serve(1, Time::Fixed(SERVICE)))];
    let mut world = ticking(guests, Vec::new(), Nanos::ZERO);
    world.run(Nanos::from_millis(50));
    world.act(|tenants, now, _| {
        let guest = &mut tenants.guests[0];
        guest.fades = now;
        guest.vcpus[0].ticks = true;
        assert_eq!(guest.kicks(0, now, tick), Some(1), "another that is idle");
        assert_eq!(guest.kicks(0, now, tick), None, "once a tick");
        let exit = (Nanos(1), crate::guest::Then::Nothing);
        guest.vcpus[1].exits.push_back(exit);
        guest.fades = now;
        assert_eq!(guest.kicks(2, now, tick), None, "it is on its way");
    });
}
