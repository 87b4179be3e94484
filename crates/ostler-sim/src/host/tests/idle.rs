//! How deep cores sleep.

use super::*;
use crate::host::costs::IDLE_STATES;

/// Two threads that sleep shortly, so that their cores do; then they are frozen, as a guest's that is suspended.
#[test]
fn a_core_that_is_left_alone_sleeps_deeply_though_its_last_sleeps_were_short() {
    let topology = topology(1, 1, 2, false);
    let brief = Habit::Sleeper {
        work: 20_000,
        sleep: 10_000,
    };
    let mut world = world(
        &topology,
        &[(Some(0), all(), brief), (Some(0), all(), brief)],
    );
    let at = Nanos::from_millis;
    world.run(at(100)).unwrap();
    let deepest = |world: &World<Actors>| -> u64 {
        let view = world.host.view(world.now());
        let cores = [CpuId(0), CpuId(1)].into_iter();
        cores
            .map(|cpu| view.core_time(cpu).idle[IDLE_STATES - 1])
            .sum()
    };
    let before = deepest(&world);
    assert!(
        before < 2_000_000,
        "{before}: sleeps of 10 us are worth nothing deep"
    );
    world
        .act(|host, scene| host.set_frozen(GroupId(0), true, scene))
        .unwrap();
    world.run(at(200)).unwrap();
    // Half of the last eight sleeps are long once four ticks have found it asleep, and the first may come at once.
    let slept = deepest(&world) - before;
    assert!(
        (2 * 78_000_000..=2 * 85_000_000).contains(&slept),
        "{slept}"
    );
}

#[test]
fn a_host_at_rest_sleeps_deeply() {
    let mut world = world(&topology(1, 1, 2, false), &[]);
    world.run(Nanos::from_millis(50)).unwrap();
    let view = world.host.view(world.now());
    for cpu in [CpuId(0), CpuId(1)] {
        assert_eq!(view.core_time(cpu).idle[IDLE_STATES - 1], 50_000_000);
    }
}
