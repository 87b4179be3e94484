//! Who has how much of the cores.

use std::thread;
use std::time::{Duration, Instant};

use ostler_act::{Host, LinuxHost, VcpuScheduler as _};
use ostler_boost::Config;
use ostler_model::{CpuSet, Pid, Tid};

use crate::stage::{
    ASLEEP, Guest, Stage, TICK_NS, WITHIN, computes_as_well, employ, release, turn, two_cores,
};

#[test]
fn guests_that_compute_have_equal_shares() {
    let _turn = turn();
    let guests: [&[&str]; 4] = [&["spin"], &["spin"], &["spin"], &["spin"]];
    let Some(stage) = Stage::set(
        "guests_that_compute_have_equal_shares",
        Config::default(),
        &guests,
    ) else {
        return;
    };
    stage.run_for(2_000_000_000, || {});
    let ran = stage.ran();
    assert_equal(&ran, 1);
}

fn assert_equal(ran: &[u64], cores: u64) {
    let (least, most) = (ran.iter().min().unwrap(), ran.iter().max().unwrap());
    let turns = 2 * cores * (Config::default().slice_ns + TICK_NS);
    assert!(most - least <= turns, "{ran:?}: {turns} apart at most");
}

#[test]
fn guests_share_all_cores_of_a_queue_equally() {
    let _turn = turn();
    let test = "guests_share_all_cores_of_a_queue_equally";
    let guests: [&[&str]; 3] = [&["spin"], &["spin"], &["spin"]];
    let Some(cores) = two_cores(test) else { return };
    let Some(stage) = Stage::on(&cores, test, Config::default(), &guests) else {
        return;
    };
    stage.run_for(3_000_000_000, || {});
    assert_equal(&stage.ran(), 2);
}

/// Who sleeps has the kernel look for whoever follows it, on another core as well, which the kernel counts as the sleeper's run.
#[test]
fn what_is_charged_is_what_the_kernel_counts() {
    let _turn = turn();
    let test = "what_is_charged_is_what_the_kernel_counts";
    let guests: [&[&str]; 2] = [&["ask", "answer"], &["spin"]];
    let Some(cores) = two_cores(test) else { return };
    let Some(stage) = Stage::on(&cores, test, Config::default(), &guests) else {
        return;
    };
    // Each has a core, so whoever computes goes to the other one, each time that one of them wakes the other.
    let wakes_itself = &stage.guests[0];
    for (thread, core) in wakes_itself.threads.iter().zip(cores.iter()) {
        let confined = LinuxHost::detect().set_affinity(*thread, &CpuSet::single(core));
        confined.expect("it is ours");
    }
    let counted = || {
        let of = |thread: &Tid| {
            let file = format!("/proc/{}/task/{thread}/schedstat", wakes_itself.pid());
            let told = std::fs::read_to_string(&file).expect("procfs");
            let ns: Option<u64> = told.split(' ').next().and_then(|ns| ns.parse().ok());
            ns.unwrap_or_else(|| panic!("{file} tells no run time: {told}"))
        };
        wakes_itself.threads.iter().map(of).sum::<u64>()
    };
    stage.run_for(500_000_000, || {});
    let (charged_before, counted_before) = (stage.ran(), counted());
    stage.run_for(3_000_000_000, || {});
    let charged = stage.ran_since(&charged_before)[0];
    let of_counted = charged as f64 / (counted() - counted_before) as f64;
    println!("{of_counted:.4} of it");
    assert!((of_counted - 1.0).abs() < 0.01, "{of_counted}");
}

/// A guest of four vCPUs of which one is busy has what four are due.
#[test]
fn what_sleeping_vcpus_leave_their_siblings_have() {
    let _turn = turn();
    let guests: [&[&str]; 2] = [&["spin", "rest", "rest", "rest"], &["spin"; 4]];
    let test = "what_sleeping_vcpus_leave_their_siblings_have";
    let Some(stage) = Stage::set(test, Config::default(), &guests) else {
        return;
    };
    // They have fallen asleep by then, on the core that all share.
    stage.run_for(2_500_000_000, || {});
    let before = stage.ran();
    stage.run_for(4_500_000_000, || {});
    let ran = stage.ran_since(&before);
    let of_all = ran[0] as f64 / ran.iter().sum::<u64>() as f64;
    assert!((of_all - 0.5).abs() < 0.03, "{of_all}");
}

/// What one leaves that is told, asleep, to be on another domain's core, its sibling there has from then on, and that which it left no longer.
#[test]
fn who_is_told_to_sleep_elsewhere_leaves_its_share_there() {
    let _turn = turn();
    let test = "who_is_told_to_sleep_elsewhere_leaves_its_share_there";
    let Some(cores) = two_cores(test) else { return };
    let each: Vec<CpuSet> = cores.iter().map(CpuSet::single).collect();
    let guests: [&[&str]; 3] = [&["spin", "spin", "rest"], &["spin"], &["spin"]];
    let Some(stage) = Stage::across(&each, test, Config::default(), &guests) else {
        return;
    };
    let host = LinuxHost::detect();
    let threads = &stage.guests[0].threads;
    let confine = |thread: Tid, to: usize| host.set_affinity(thread, &each[to]);
    let places = [
        (threads[0], 0),
        (threads[1], 1),
        (threads[2], 0),
        (stage.guests[1].threads[0], 0),
        (stage.guests[2].threads[0], 1),
    ];
    for (thread, to) in places {
        confine(thread, to).expect("it is ours");
    }
    // It has fallen asleep by then, on either core.
    let ran = || places.map(|(thread, _)| stage.thread(thread).ran_ns);
    stage.run_for(6_000_000_000, || {});
    for to in [0, 1] {
        confine(threads[2], to).expect("it is ours");
        let before = ran();
        stage.run_for(stage.ran().iter().sum::<u64>() + 4_000_000_000, || {});
        let after = ran();
        let had = |at: usize| (after[at] - before[at]) as f64;
        let of = [had(0) / (had(0) + had(3)), had(1) / (had(1) + had(4))];
        assert!((of[to] - 0.667).abs() < 0.03, "asleep on {to}: {of:?}");
        assert!((of[1 - to] - 0.5).abs() < 0.03, "asleep on {to}: {of:?}");
    }
}

/// One that wakes among others that compute.
#[test]
fn one_that_wakes_stays_on_the_core_where_it_slept() {
    let _turn = turn();
    let test = "one_that_wakes_stays_on_the_core_where_it_slept";
    let guests: [&[&str]; 5] = [&["nap"], &["spin"], &["spin"], &["spin"], &["spin"]];
    let Some(cores) = two_cores(test) else { return };
    let Some(stage) = Stage::on(&cores, test, Config::default(), &guests) else {
        return;
    };
    let naps = stage.guests[0].threads[0];
    let (mut was, mut woken, mut moved) = (stage.thread(naps), 0, 0);
    stage.run_for(6_000_000_000, || {
        let is = stage.thread(naps);
        // As often as it is seen to have run anew.
        if is.ran_ns > was.ran_ns && is.state == ASLEEP {
            woken += 1;
            moved += u32::from(is.cpu != was.cpu);
            was = is;
        }
    });
    assert!(woken >= 20, "{woken}");
    assert!(moved * 5 < woken, "{moved} moves of {woken}");
}

/// One that wakes where a core sleeps comes to no queue. What it slept through is lost all the same, and isn't had of those that come after it.
#[test]
fn what_was_slept_through_is_lost_on_a_core_that_slept_as_well() {
    let _turn = turn();
    let test = "what_was_slept_through_is_lost_on_a_core_that_slept_as_well";
    let guests: [&[&str]; 4] = [&["spin"], &["late"], &["later"], &["later"]];
    let Some(cores) = two_cores(test) else { return };
    let Some(stage) = Stage::on(&cores, test, Config::default(), &guests) else {
        return;
    };
    let start = Instant::now();
    while stage.ran().iter().any(|ran| *ran < 10_000_000) {
        assert!(start.elapsed() < WITHIN, "{:?}", stage.ran());
        thread::sleep(Duration::from_millis(2));
    }
    let before = stage.ran();
    stage.run_for(before.iter().sum::<u64>() + 1_500_000_000, || {});
    assert_equal(&stage.ran_since(&before), 2);
}

/// The kernel hands a core on from one that is about to sleep to the one that it wakes, past any queue, as long as some core of the host is idle.
#[test]
fn two_that_wake_each_other_keep_nobody_from_a_core() {
    let _turn = turn();
    let test = "two_that_wake_each_other_keep_nobody_from_a_core";
    let pair = ["ask", "answer"].as_slice();
    let Some(cores) = two_cores(test) else { return };
    let Some(stage) = Stage::on(&cores, test, Config::default(), &[pair; 4]) else {
        return;
    };
    // Not for synchronisation. Whoever looks at them now and then keeps the host's other cores from being idle.
    let before = stage.ran();
    thread::sleep(Duration::from_secs(1));
    assert_equal(&stage.ran_since(&before), 2);
}

/// As vhost workers do, and much else that a host has to do.
#[test]
fn the_kernels_own_work_on_a_core_costs_all_guests_alike() {
    let _turn = turn();
    let test = "the_kernels_own_work_on_a_core_costs_all_guests_alike";
    let guests: [&[&str]; 3] = [&["spin"], &["spin", "nap"], &["spin"]];
    let Some(cores) = two_cores(test) else { return };
    let Some(stage) = Stage::on(&cores, test, Config::default(), &guests) else {
        return;
    };
    // One that nobody let in.
    let workers = Guest::start(&["nap", "twitch", "twitch"]);
    let host = LinuxHost::detect();
    let each = cores.iter().cycle();
    for (&worker, core) in workers.threads.iter().zip(each) {
        let set = host.set_affinity(worker, &CpuSet::single(core));
        set.expect("it is ours");
    }
    stage.run_for(4_000_000_000, || {});
    let ran = stage.ran();
    assert_equal(&[ran[0], ran[2]], 2);
    // What its one vCPU leaves, asleep, the other has, and no more: what the one keeps as it wakes isn't left as well, however far behind those are that it meets.
    let of_due = ran[1] as f64 / (2 * ran[0]) as f64;
    assert!((of_due - 1.0).abs() < 0.08, "{of_due} of two shares");
}

/// A host does other things as well. It is nobody's vCPU that such a thing stops for good: those that share the other cores share what is left.
#[test]
fn a_process_that_keeps_a_core_keeps_no_vcpu_from_the_others() {
    let _turn = turn();
    let test = "a_process_that_keeps_a_core_keeps_no_vcpu_from_the_others";
    let guests: [&[&str]; 3] = [&["spin"], &["spin"], &["nap"]];
    let Some(cores) = two_cores(test) else { return };
    let Some(stage) = Stage::on(&cores, test, Config::default(), &guests) else {
        return;
    };
    let process = Guest::start(&["spin"]);
    let kept = cores.iter().last().expect("two cores");
    let set = LinuxHost::detect().set_affinity(process.threads[0], &CpuSet::single(kept));
    set.expect("it is ours");
    let before = stage.ran();
    stage.run_for(before.iter().sum::<u64>() + 2_000_000_000, || {});
    let ran = stage.ran_since(&before);
    assert_equal(&ran[..2], 2);
    // It naps for nine milliseconds in ten, and has its turn when it wakes, where the process is or not.
    assert!(ran[2] > ran[0] / 15, "{ran:?}");
}

/// How long a thread has run, by the kernel's count.
fn run_time(process: Pid, thread: Tid) -> u64 {
    let path = format!("/proc/{}/task/{}/schedstat", process.0, thread.0);
    let text = std::fs::read_to_string(&path).expect("the kernel counts it");
    let ran = text.split(' ').next().and_then(|word| word.parse().ok());
    ran.unwrap_or_else(|| panic!("{path}: {text}"))
}

/// A guest's vhost workers aren't let in, and go before all vCPUs; so does a QEMU that emulates a device. Where they work so much, the vCPU runs
/// seldom, and what they ran in between is charged to it at once: so it is ahead by more than a turn, and then waits for longer.
#[test]
fn what_a_guests_other_threads_run_is_its_own() {
    let _turn = turn();
    let test = "what_a_guests_other_threads_run_is_its_own";
    let guests: [&[&str]; 3] = [&["spin", "twitch"], &["spin"], &["spin"]];
    let Some(mut stage) = Stage::set(test, Config::default(), &guests) else {
        return;
    };
    let serves = stage.guests[0].pid();
    let worker = stage.guests[0].threads.pop().expect("it twitches");
    release(worker);
    let (ran_before, service_before) = (stage.ran(), run_time(serves, worker));
    stage.run_for(ran_before.iter().sum::<u64>() + 2_000_000_000, || {});
    let service = run_time(serves, worker) - service_before;
    let mut ran = stage.ran_since(&ran_before);
    assert!(
        service > 200_000_000,
        "it is to have much of a fair share: {service}"
    );
    ran[0] += service;
    assert_equal(&ran, 3);
}

/// A worker that is flooded, for a guest that hardly asks for it: the two together have a guest's share, and not two.
#[test]
fn a_worker_without_end_has_no_more_than_its_guests_share() {
    let _turn = turn();
    let test = "a_worker_without_end_has_no_more_than_its_guests_share";
    let config = Config {
        limit_ns: 10_000_000,
        ..Config::default()
    };
    let guests: [&[&str]; 3] = [&["spin", "spin"], &["spin"], &["spin"]];
    let Some(mut stage) = Stage::set(test, config, &guests) else {
        return;
    };
    let worker = employ(&mut stage);
    let (before, at_first) = (stage.ran(), stage.thread(worker).ran_ns);
    stage.run_for(before.iter().sum::<u64>() + 2_000_000_000, || {});
    let mut ran = stage.ran_since(&before);
    ran[0] += stage.thread(worker).ran_ns - at_first;
    let (least, most) = (ran.iter().min().unwrap(), ran.iter().max().unwrap());
    let apart = 2 * (config.limit_ns + config.slice_ns + TICK_NS);
    assert!(most - least <= apart, "{ran:?}: {apart} apart at most");
}

/// It does IO all the time, so it never pays by waiting; and it is well within its share, but for its first second.
#[test]
fn what_a_guest_leaves_pays_for_its_busy_moment() {
    let _turn = turn();
    let config = Config {
        limit_ns: 20_000_000,
        threshold: 1,
        ..Config::default()
    };
    let test = "what_a_guest_leaves_pays_for_its_busy_moment";
    let guests: [&[&str]; 3] = [&["surge"], &["spin"], &["spin"]];
    let Some(stage) = Stage::set(test, config, &guests) else {
        return;
    };
    let io = stage.guests[0].threads[0];
    let guest = || stage.scheduler.guest(1).expect("a map").expect("a guest");
    let mut most = 0;
    stage.run_for(2_500_000_000, || {
        stage.scheduler.event(io).expect("it is there");
        most = most.max(guest().balance_ns);
    });
    let limit = config.limit_ns.cast_signed();
    assert!(most > limit / 2, "it was boosted, by {most} ns");
    let left = guest();
    assert!(left.balance_ns < limit / 4, "{left:?}");
    assert!(
        stage.thread(io).vcpu.does_io(&config),
        "{:?}",
        stage.thread(io)
    );
}

/// Two that compute have a core for themselves, so there is never but one that waits: what the one has borrowed for its events it pays the other, once it has none.
#[test]
fn who_borrowed_pays_where_only_one_other_waits() {
    let _turn = turn();
    let test = "who_borrowed_pays_where_only_one_other_waits";
    let config = computes_as_well();
    let Some(stage) = Stage::set(test, config, &[&["spin"], &["spin"]]) else {
        return;
    };
    let greedy = stage.guests[0].threads[0];
    let guest = |number| stage.scheduler.guest(number).unwrap().unwrap();
    stage.run_for(1_000_000_000, || {
        stage.scheduler.event(greedy).expect("it is there");
    });
    let owes = guest(1).balance_ns;
    assert!(owes > 2 * config.slice_ns.cast_signed(), "{owes} ns");
    let before = stage.ran();
    stage.run_for(before.iter().sum::<u64>() + 3_000_000_000, || {});
    let (paid, back) = (guest(1), guest(2));
    println!("{owes} ns: {paid:?}");
    assert!(paid.balance_ns * 4 < owes, "{owes} ns: {paid:?}");
    assert_eq!(paid.balance_ns + back.balance_ns, 0, "{paid:?} {back:?}");
    assert_eq!(paid.paid_ns, back.returned_ns, "{paid:?} {back:?}");
    let ran = stage.ran_since(&before);
    assert!(ran[1] > ran[0], "{ran:?}: it has it back");
}

#[test]
fn a_storm_of_events_takes_no_more_than_the_limit() {
    let _turn = turn();
    let config = Config {
        limit_ns: 40_000_000,
        ..Config::default()
    };
    let guests: [&[&str]; 2] = [&["spin"], &["spin"]];
    let Some(stage) = Stage::set(
        "a_storm_of_events_takes_no_more_than_the_limit",
        config,
        &guests,
    ) else {
        return;
    };
    let greedy = stage.guests[0].threads[0];
    let mut checks = 0;
    stage.run_for(3_000_000_000, || {
        for _ in 0..10 {
            stage.scheduler.event(greedy).expect("it is there");
        }
        let ran = stage.ran();
        let apart = i128::from(ran[0]) - i128::from(ran[1]);
        // Two balances of opposite signs, and turns of both.
        let turns = 2 * (2 * config.slice_ns + config.slice_max_ns + 2 * TICK_NS);
        let most = i128::from(2 * config.limit_ns + turns);
        assert!(apart.abs() <= most, "{ran:?}: {most} apart at most");
        checks += 1;
    });
    assert!(checks > 10, "it was looked at {checks} times only");
    let balances = [1, 2].map(|number| stage.scheduler.guest(number).unwrap().unwrap());
    assert_eq!(balances[0].balance_ns + balances[1].balance_ns, 0);
    assert!(
        balances[0].borrowed_ns > 0,
        "it was boosted, and stopped: {balances:?}"
    );
    assert!(
        balances[0].balance_ns.unsigned_abs() <= config.limit_ns,
        "{balances:?}"
    );
    assert!(stage.thread(greedy).boosts > 0);
}
