//! What KVM tells of vCPUs: real ones, of virtual machines.

use std::io::Write as _;

use ostler_boost::Config;

use crate::stage::{ASLEEP, Stage, has_machines, turn};

/// An interrupt that a device sends a vCPU that sleeps has it run before all that compute, which have turns of four milliseconds and more.
#[test]
fn an_interrupt_gives_a_vcpu_the_core() {
    let _turn = turn();
    let test = "an_interrupt_gives_a_vcpu_the_core";
    if !has_machines(test) {
        return;
    }
    let guests: [&[&str]; 4] = [&["vm waits"], &["spin"], &["spin"], &["spin"]];
    let Some(mut stage) = Stage::set(test, Config::default(), &guests) else {
        return;
    };
    let vcpu = stage.guests[0].threads[0];
    let mut line = stage.guests[0].process.stdin.take().expect("a pipe");
    // It has an APIC that is on by then, and waits.
    stage.run_for(500_000_000, || {});
    let (mut sent, mut next) = (0, 0);
    let before = stage.thread(vcpu);
    stage.run_for(3_000_000_000, || {
        let ran: u64 = stage.ran().iter().sum();
        if stage.thread(vcpu).state == ASLEEP && ran >= next {
            line.write_all(b"interrupt\n").expect("it listens");
            sent += 1;
            next = ran + 40_000_000;
        }
    });
    let after = stage.thread(vcpu);
    assert!(sent >= 20, "{sent}");
    let (points, boosts) = (
        after.vcpu.points - before.vcpu.points,
        after.boosts - before.boosts,
    );
    // The last may be on its way.
    assert!(points == sent || points + 1 == sent, "{points} of {sent}");
    assert!(boosts * 4 >= sent * 3, "{boosts} of {sent}: {after:?}");
    let (ran, waited) = (
        after.ran_ns - before.ran_ns,
        after.waited_ns - before.waited_ns,
    );
    assert!(waited < ran, "{waited} ns, {ran} ns: {after:?}");
}

/// The timer of a vCPU that does IO waits for the turn of another to end; that of one that does none may be all it waits for, and doesn't.
#[test]
fn the_timer_of_a_vcpu_that_does_io_stops_nobody() {
    let _turn = turn();
    let test = "the_timer_of_a_vcpu_that_does_io_stops_nobody";
    if !has_machines(test) {
        return;
    }
    let config = Config {
        slice_ns: 12_000_000,
        slice_max_ns: 24_000_000,
        ..Config::default()
    };
    for (kind, does_io) in [("vm rings", true), ("vm counts", false)] {
        let guests: [&[&str]; 2] = [&[kind], &["spin"]];
        let Some(mut stage) = Stage::set(test, config, &guests) else {
            return;
        };
        let vcpu = stage.guests[0].threads[0];
        // An interrupt tells whose vCPU it is. Ticks must find it at its IO a few times until it is known for that.
        stage.run_for(500_000_000, || {});
        let mut line = stage.guests[0].process.stdin.take().expect("a pipe");
        line.write_all(b"interrupt\n").expect("it listens");
        stage.run_for(4_000_000_000, || {});
        let before = stage.thread(vcpu);
        stage.run_for(stage.ran().iter().sum::<u64>() + 3_000_000_000, || {});
        let after = stage.thread(vcpu);
        let known = after.vcpu.confidence >= config.threshold;
        assert_eq!(known, does_io, "{kind}: {after:?}");
        let (ran, waited) = (
            after.ran_ns - before.ran_ns,
            after.waited_ns - before.waited_ns,
        );
        println!("{kind}: ran {ran} ns, waited {waited} ns");
        if does_io {
            assert!(waited > 2 * ran, "{waited} ns, {ran} ns: {after:?}");
        } else {
            assert!(waited < ran, "{waited} ns, {ran} ns: {after:?}");
        }
    }
}
