//! How soon one runs that has an event, and how long.

use std::io::Write as _;
use std::ops::Range;

use ostler_act::{Host, LinuxHost, VcpuScheduler as _};
use ostler_boost::Config;
use ostler_model::{CpuSet, Tid};

use crate::stage::{
    ASLEEP, RUNS, Stage, TICK_NS, WAITS, computes_as_well, core, employ, me, monotonic_ns, turn,
    two_cores,
};

/// A worker that is woken for each packet: its guest has less than its share, so it waits for nobody.
#[test]
fn a_worker_that_is_let_in_is_served_at_once() {
    let _turn = turn();
    let test = "a_worker_that_is_let_in_is_served_at_once";
    let guests: [&[&str]; 2] = [&["nap", "twitch"], &["spin"]];
    let Some(mut stage) = Stage::set(test, Config::default(), &guests) else {
        return;
    };
    let worker = employ(&mut stage);
    let before = stage.ran();
    stage.run_for(before.iter().sum::<u64>() + 2_000_000_000, || {});
    let works = stage.thread(worker);
    assert!(
        works.ran_ns > 200_000_000,
        "it is to have worked: {works:?}"
    );
    // Whoever isn't put first waits for a turn each time, which is many times what this one runs.
    assert!(works.waited_ns < works.ran_ns, "{works:?}");
    let service = stage.scheduler.service(1).unwrap().unwrap();
    assert!(service.ran_ns >= works.ran_ns, "{service:?}, {works:?}");
}

#[test]
fn one_that_sleeps_has_the_core_when_it_wakes() {
    let _turn = turn();
    let guests: [&[&str]; 4] = [&["nap"], &["spin"], &["spin"], &["spin"]];
    let Some(stage) = Stage::set(
        "one_that_sleeps_has_the_core_when_it_wakes",
        Config::default(),
        &guests,
    ) else {
        return;
    };
    stage.run_for(2_000_000_000, || {});
    let naps = stage.thread(stage.guests[0].threads[0]);
    let spins = stage.thread(stage.guests[1].threads[0]);
    // With three others, one that isn't put first waits for a turn of each: many times what it runs.
    assert!(naps.waited_ns < naps.ran_ns, "{naps:?}");
    assert!(spins.waited_ns > spins.ran_ns, "{spins:?}");
}

/// Short ones not at the kernel's next tick, of which there are a thousand a second at the most; others at that tick.
#[test]
fn turns_end_when_they_should() {
    let _turn = turn();
    let name = "turns_end_when_they_should";
    let Some(mean) = mean_turn(name, 500_000) else {
        return;
    };
    assert!(mean < 800_000, "turns of {mean} ns");
    let slice_ns = 12_000_000;
    let mean = mean_turn(name, slice_ns).expect("it was there before");
    let longest = slice_ns + TICK_NS / 2;
    assert!(mean > slice_ns / 2 && mean < longest, "turns of {mean} ns");
}

/// How long the turns of two that compute on one core are, of this much each.
fn mean_turn(name: &str, slice_ns: u64) -> Option<u64> {
    let config = Config {
        slice_ns,
        slice_max_ns: 2 * slice_ns,
        ..Config::default()
    };
    let guests: [&[&str]; 2] = [&["spin"], &["spin"]];
    let stage = Stage::set(name, config, &guests)?;
    let threads = [stage.guests[0].threads[0], stage.guests[1].threads[0]];
    let stopped = || threads.into_iter().map(times_stopped).sum::<u64>();
    let (before, ran_before) = (stopped(), stage.ran().iter().sum::<u64>());
    stage.run_for(ran_before + 1_000_000_000, || {});
    let (turns, ran) = (
        stopped() - before,
        stage.ran().iter().sum::<u64>() - ran_before,
    );
    Some(ran / turns.max(1))
}

/// How often a thread's core was taken from it, by the kernel's count.
fn times_stopped(thread: Tid) -> u64 {
    let path = format!("/proc/{0}/task/{0}/status", thread.0);
    let status = std::fs::read_to_string(path).expect("it lives");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"));
    line.and_then(|count| count.trim().parse().ok())
        .expect("the kernel counts them")
}

#[test]
fn an_event_gives_one_that_waits_the_core() {
    events_are_served_soon("an_event_gives_one_that_waits_the_core", false);
}

/// The event comes while the kernel's own scheduler has work on the very core, as from a vhost worker there.
#[test]
fn an_event_from_other_work_on_the_core_gives_it_the_core_after_that() {
    events_are_served_soon(
        "an_event_from_other_work_on_the_core_gives_it_the_core_after_that",
        true,
    );
}

fn events_are_served_soon(test: &str, from_the_core: bool) {
    let _turn = turn();
    let guests: [&[&str]; 4] = [&["spin"], &["spin"], &["spin"], &["spin"]];
    let Some(stage) = Stage::set(test, Config::default(), &guests) else {
        return;
    };
    if from_the_core {
        let here = LinuxHost::detect().set_affinity(me(), &CpuSet::single(core()));
        here.expect("it is ours");
    }
    let waits = stage.guests[0].threads[0];
    let delays = || stage.scheduler.delays(1).expect("a map").expect("a guest");
    let (mut told, mut next) = (0_u64, 0_u64);
    stage.run_for(3_000_000_000, || {
        // Seldom enough that its turn would come anyhow: what is tested is how soon it comes, not how often.
        let ran: u64 = stage.ran().iter().sum();
        if ran >= next && stage.thread(waits).state == WAITS {
            stage.scheduler.event(waits).expect("it is there");
            told += 1;
            next = ran + 100_000_000;
        }
    });
    let delays = delays();
    let all: u64 = delays.iter().sum();
    // The others' three turns are nine milliseconds at least; within two is bin ten and below.
    let soon: u64 = delays[..=10].iter().sum();
    assert!(all >= 10, "{told} told: {delays:?}");
    assert!(soon * 4 >= all * 3, "{delays:?}");
}

/// One that is never known to do IO, as it computes as well: an event late in its turn has it go on for another, and one early in it leaves the turn as it is.
#[test]
fn one_with_a_late_event_goes_on_when_its_turn_ends() {
    let _turn = turn();
    let test = "one_with_a_late_event_goes_on_when_its_turn_ends";
    let config = computes_as_well();
    let slice = config.slice_ns;
    let Some(stage) = Stage::set(test, config, &[&["spin"], &["spin"]]) else {
        return;
    };
    let early = stint(&stage, slice / 8..slice * 3 / 8);
    let late = stint(&stage, slice * 5 / 8..slice);
    println!("turns of {slice} ns; early {early} ns, late {late} ns");
    assert!(early < slice * 5 / 4, "{early} ns of {slice}");
    assert!(late > slice * 3 / 2, "{late} ns of {slice}");
}

/// How long the first guest's thread has its core at a stretch if an event comes when it has had it for so long: the median of several. Moments of other work there are none
/// of its ends, so it is told by when the other thread was stopped, and runs again.
fn stint(stage: &Stage, when: Range<u64>) -> u64 {
    let [thread, other] = [0, 1].map(|at: usize| stage.guests[at].threads[0]);
    let (mut told, mut stints) = (None, Vec::new());
    let before = stage.ran().iter().sum::<u64>();
    stage.run_for(before + 3_000_000_000, || {
        let is = stage.thread(other);
        if let Some(began) = told
            && is.state == RUNS
        {
            stints.push(is.runs_since.saturating_sub(began));
            told = None;
        }
        let had = monotonic_ns().saturating_sub(is.waits_since);
        if is.state == WAITS
            && told.is_none()
            && when.contains(&had)
            && stage.thread(thread).state == RUNS
        {
            stage.scheduler.event(thread).expect("it is there");
            told = Some(is.waits_since);
        }
    });
    assert!(stints.len() >= 5, "{stints:?}");
    stints.sort_unstable();
    println!("{stints:?}");
    stints[stints.len() / 2]
}

/// It wakes for its event where one of its own guest has the core, as a worker has that brings a vCPU its packets: it takes another one, and at once.
#[test]
fn an_event_is_served_soon_on_another_core() {
    let _turn = turn();
    let test = "an_event_is_served_soon_on_another_core";
    let guests: [&[&str]; 2] = [&["serve", "spin", "spin"], &["spin", "spin"]];
    let config = Config {
        slice_ns: 12_000_000,
        slice_max_ns: 24_000_000,
        ..Config::default()
    };
    let Some(cores) = two_cores(test) else { return };
    let Some(mut stage) = Stage::on(&cores, test, config, &guests) else {
        return;
    };
    let serves = stage.guests[0].threads[0];
    let mut line = stage.guests[0].process.stdin.take().expect("a pipe");
    let (mut next, mut times, mut moved, mut was) = (0, 0, 0, stage.thread(serves));
    stage.run_for(8_000_000_000, || {
        let is = stage.thread(serves);
        if is.state == ASLEEP && is.ran_ns > was.ran_ns {
            times += 1;
            moved += u32::from(is.cpu != was.cpu);
            was = is;
        }
        let ran: u64 = stage.ran().iter().sum();
        if is.state == ASLEEP && ran >= next {
            stage.scheduler.event(serves).expect("it is there");
            line.write_all(b"poke\n").expect("it listens");
            next = ran + 40_000_000;
        }
    });
    let delays = stage.scheduler.delays(1).expect("a map");
    let delays = delays.expect("a guest");
    let all: u64 = delays.iter().sum();
    // Within two milliseconds, which is bin ten and below. Turns are of twelve.
    let soon: u64 = delays[..=10].iter().sum();
    assert!(all >= 50 && times >= 50, "{times} times: {delays:?}");
    assert!(moved >= 10, "{moved} of {times} on another core");
    assert!(soon * 10 >= all * 9, "{moved} of {times} moved: {delays:?}");
}

/// Two that may not leave their core, as a BPF program runs in their context, are put back into its own queue when they are stopped, whoever is to be next: they must get on
/// all the same, or neither they nor whoever waits for them, as for a grace period of RCU, ever does.
#[test]
fn two_that_may_not_leave_their_core_do_not_stop_each_other_for_good() {
    let _turn = turn();
    let test = "two_that_may_not_leave_their_core_do_not_stop_each_other_for_good";
    let guests: [&[&str]; 3] = [&["probed"], &["probed"], &["spin"]];
    let Some(stage) = Stage::set(test, Config::default(), &guests) else {
        return;
    };
    let waits = stage.guests[2].threads[0];
    let (mut told, mut next) = (0, 0);
    let before = stage.ran();
    stage.run_for(4_000_000_000, || {
        let ran: u64 = stage.ran().iter().sum();
        if ran >= next && stage.thread(waits).state == WAITS {
            stage.scheduler.event(waits).expect("it is there");
            told += 1;
            next = ran + 20_000_000;
        }
    });
    assert!(told >= 50, "{told} told");
    // Whoever is only ever stopped has as much of the core, and does nothing with it: it would be stopped thousands of times a second.
    for guest in &stage.guests {
        let stopped = times_stopped(guest.threads[0]);
        assert!(stopped < 4000, "{stopped} times in four seconds");
    }
    let ran = stage.ran_since(&before);
    let (least, most) = (ran.iter().min().unwrap(), ran.iter().max().unwrap());
    assert!(least * 3 > most * 2, "{ran:?}");
}
