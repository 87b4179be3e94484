//! Timers of tasks that sleep.

use super::*;
use crate::work::{Effect, Effects, Kind};

const WORK: Nanos = Nanos::from_micros(300);

/// Looks for as long as this, and a second later than the one before where nobody asks.
fn keeper(program: Option<Program>) -> Driver {
    let mut one = guest(
        1,
        1,
        Program::Upkeep {
            work: WORK,
            keys: 0,
        },
    );
    one.programs.extend(program);
    world(vec![one], Vec::new(), free(), 3)
}

#[test]
fn a_thread_that_sees_to_its_guests_items_wakes_its_vcpu_each_time_that_it_looks() {
    let mut world = keeper(None);
    world.run(Nanos::from_millis(20_500));
    world.check();
    let vcpu = &world.work.inner.guests[0].vcpus[0];
    // Once at the beginning, once within a second of that, and then each second.
    assert!((20..=21).contains(&vcpu.interrupts), "{}", vcpu.interrupts);
    assert_eq!(vcpu.accounts.tasks.0, WORK.0 * (vcpu.interrupts + 1));
}

#[test]
fn a_vcpu_that_computes_is_interrupted_for_it_and_both_have_their_turns() {
    let mut world = keeper(Some(Program::Compute {
        tasks: 1,
        round: Nanos::from_millis(1),
    }));
    world.run(Nanos::from_millis(20_500));
    world.check();
    let guest = &world.work.inner.guests[0];
    let interrupts = guest.vcpus[0].interrupts;
    assert!((20..=21).contains(&interrupts), "{interrupts}");
    // It waits for the other's slice to end, and for no more than that.
    let looked = guest.tasks[0].ran.0 as f64 / WORK.0 as f64;
    assert!(looked >= 20.0, "{looked}");
}

#[test]
fn a_timer_is_due_later_by_the_slack_that_its_kernel_has() {
    let mut world = keeper(None);
    world.run(Nanos::from_millis(1));
    world.act(|tenants, now, _| {
        let guest = &mut tenants.guests[0];
        let looks = guest.upkeep.clone().expect("it keeps items").looks();
        guest.tasks[0].phase = crate::guest::Phase::Think;
        tenants.costs.timer_slack = Nanos::from_micros(50);
        tenants.keep_up(0, 0, 0, now);
        let (_, then) = tenants.guests[0].vcpus[0].exits.back().expect("it sleeps");
        let crate::guest::Then::Timer(0, after) = *then else {
            panic!("{then:?}");
        };
        assert_eq!(after, looks.saturating_add(Nanos::from_micros(50)));
    });
}

#[test]
fn a_timer_interrupts_the_core_that_its_vcpu_had_last() {
    let mut world = keeper(None);
    world.run(Nanos::from_millis(500));
    world.act(|tenants, now, _| {
        let (thread, cpu) = (
            tenants.guests[0].vcpus[0].thread,
            tenants.guests[0].vcpus[0].cpu,
        );
        let before = tenants.guests[0].vcpus[0].interrupts;
        let mut out = Effects::default();
        tenants.timer(0, 0, &mut out);
        let (at, interrupt) = only_interrupt(&out);
        assert_eq!((at, interrupt.kind), (cpu, Kind::Timer));
        assert_eq!(tenants.guests[0].vcpus[0].interrupts, before, "not yet");
        let mut out = Effects::default();
        tenants.interrupted(cpu, interrupt.token, now, &mut out);
        let from = Some(cpu);
        assert_eq!(out.0, [Effect::Notify { thread, from }]);
        assert_eq!(tenants.guests[0].vcpus[0].interrupts, before + 1);
        // Nobody's who is dead.
        tenants.kill(0, now, &mut Effects::default());
        for due in [
            Tenants::timer,
            |tenants: &mut Tenants, g, task, out: &mut Effects| {
                tenants.timed(g, task, CpuId(0), out);
            },
        ] {
            let mut out = Effects::default();
            due(tenants, 0, 0, &mut out);
            assert_eq!(out.0, []);
        }
    });
}
