//! The scheduler comes and goes, and nobody is lost.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ostler_act::{Host, LinuxHost, Scheduler, VcpuScheduler};
use ostler_boost::{Config, Delays, PLACES, Service, WAYS};
use ostler_model::{CpuId, Tid};

use crate::stage::{
    ASLEEP, Guest, Stage, WITHIN, admit, cpus, load, me, possible, release, settings, turn,
};

#[test]
fn threads_run_on_when_it_ends_and_it_can_come_again() {
    let _turn = turn();
    let name = "threads_run_on_when_it_ends_and_it_can_come_again";
    let guests: [&[&str]; 2] = [&["spin"], &["spin"]];
    let Some(stage) = Stage::set(name, Config::default(), &guests) else {
        return;
    };
    let second = Scheduler::load(
        Path::new("/sys"),
        settings(Config::default()),
        &[],
        possible(),
    );
    let error = second.expect_err("there is room for one").to_string();
    assert!(error.contains("another sched_ext scheduler"), "{error}");
    stage.run_for(200_000_000, || {});
    let Stage { scheduler, guests } = stage;
    drop(scheduler);
    let scheduled = || std::fs::read_to_string("/sys/kernel/sched_ext/state").expect("sysfs");
    let start = Instant::now();
    while scheduled().trim() != "disabled" {
        assert!(start.elapsed() < WITHIN, "{}", scheduled());
        thread::sleep(Duration::from_millis(5));
    }
    let ran = |tid: &Tid| {
        let path = format!("/proc/{0}/task/{0}/schedstat", tid.0);
        let text = std::fs::read_to_string(path).expect("it lives");
        text.split(' ')
            .next()
            .and_then(|ns| ns.parse::<u64>().ok())
            .expect("a number")
    };
    let threads: Vec<Tid> = guests
        .iter()
        .flat_map(|guest| guest.threads.clone())
        .collect();
    let before: Vec<u64> = threads.iter().map(ran).collect();
    let start = Instant::now();
    while threads
        .iter()
        .zip(&before)
        .any(|(tid, before)| ran(tid) < before + 20_000_000)
    {
        assert!(start.elapsed() < WITHIN, "they stand still");
        thread::sleep(Duration::from_millis(5));
    }
    let again = load(name, Config::default(), &[]).expect("as before");
    for thread in &threads {
        assert!(
            again.thread(*thread).expect("a map").is_some(),
            "they kept the policy"
        );
        release(*thread);
        assert!(
            again.thread(*thread).expect("a map").is_none(),
            "it was let go"
        );
    }
}

/// Nothing is left of what the last one knew, though its programs are the same.
#[test]
fn one_that_is_started_again_knows_nobody() {
    let _turn = turn();
    let name = "one_that_is_started_again_knows_nobody";
    let Some(stage) = Stage::set(name, Config::default(), &[&["serve"], &["spin"]]) else {
        return;
    };
    let serves = stage.guests[0].threads[0];
    stage.run_for(1_000_000_000, || {
        if stage.thread(serves).state == ASLEEP {
            stage.scheduler.event(serves).expect("it is there");
        }
    });
    stage.scheduler.works(me(), 2).expect("room for it");
    let known = |of: &dyn VcpuScheduler, guest| {
        let delays = of.delays(guest).expect("a map").expect("a guest");
        let had = of.guest(guest).expect("a map").expect("a guest");
        (delays, had, of.service(guest).expect("a map"))
    };
    let before = known(&*stage.scheduler, 2);
    assert_ne!(before.2, Some(Service::default()), "it has run");
    let Stage { scheduler, guests } = stage;
    // With another turn, and all cores in one domain.
    let config = Config {
        slice_ns: 20_000_000,
        slice_max_ns: 40_000_000,
        ..Config::default()
    };
    let again = Box::new(scheduler.into_inner()).again(settings(config), &[cpus()]);
    let again = again.expect("as before");
    for guest in [1, 2] {
        assert_eq!(
            known(&*again, guest),
            (
                Delays::default(),
                ostler_boost::Guest::default(),
                Some(Service::default())
            )
        );
    }
    assert_eq!(again.end().expect("a map"), None);
    let thread = |tid| {
        again
            .thread(tid)
            .expect("a map")
            .expect("it kept the policy")
    };
    for guest in &guests {
        let known = thread(guest.threads[0]);
        assert_eq!(
            (known.guest, known.works, known.domain),
            (0, 0, 0),
            "{known:?}"
        );
    }
    // It is told of guests as a new one is.
    again.own(guests[0].pid(), 1).expect("room for it");
    release(serves);
    admit(serves);
    assert_eq!(thread(serves).guest, 1);
}

/// Threads whose numbers have the same places in the map are more than there are places: the others are elsewhere, and known as well, until they go. So are those that
/// come to the places of those that went.
#[test]
fn threads_whose_numbers_collide_are_all_known() {
    let _turn = turn();
    let name = "threads_whose_numbers_collide_are_all_known";
    let Some(scheduler) = load(name, Config::default(), &[]) else {
        return;
    };
    let first = me().0 + PLACES;
    let numbers: Vec<u32> = (0..2 * WAYS).map(|n| first + n * PLACES).collect();
    let most = numbers.last().expect("some") + 2 * PLACES;
    std::fs::write("/proc/sys/kernel/pid_max", most.to_string()).expect("a number");
    let lines: Vec<String> = numbers
        .iter()
        .flat_map(|number| [format!("number {number}"), "nap".to_owned()])
        .collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let guest = Guest::start(&lines);
    let told: Vec<u32> = guest.threads.iter().map(|thread| thread.0).collect();
    assert_eq!(told, numbers, "nobody else has them");
    let known = |thread: Tid| scheduler.thread(thread).expect("a map");
    for thread in &guest.threads {
        assert_eq!(known(*thread), None);
        admit(*thread);
        assert_eq!(known(*thread).map(|known| known.tid), Some(thread.0));
    }
    // Each is still who it was, in turn, whichever of the others come and go.
    for thread in &guest.threads {
        release(*thread);
        assert_eq!(known(*thread), None);
        let others = guest.threads.iter().filter(|other| *other != thread);
        for other in others {
            assert_eq!(known(*other).map(|known| known.tid), Some(other.0));
        }
        admit(*thread);
        assert_eq!(known(*thread).map(|known| known.tid), Some(thread.0));
    }
    for thread in &guest.threads {
        release(*thread);
    }
}

/// Affinities, policies and events change at random, as fast as they can.
#[test]
fn no_change_makes_it_lose_a_thread() {
    let _turn = turn();
    let guests: [&[&str]; 3] = [
        &["spin", "nap", "nap"],
        &["nap", "spin"],
        &["nap", "nap", "nap"],
    ];
    let Some(stage) = Stage::set(
        "no_change_makes_it_lose_a_thread",
        Config::default(),
        &guests,
    ) else {
        return;
    };
    let host = LinuxHost::detect();
    let cpus: Vec<CpuId> = cpus().iter().collect();
    let threads: Vec<Tid> = stage
        .guests
        .iter()
        .flat_map(|guest| guest.threads.clone())
        .collect();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for &thread in &threads {
                    stage.scheduler.event(thread).expect("it is there");
                }
            }
        });
        let mut dice = 1_u64;
        for _ in 0..3000 {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let thread = threads[usize::try_from(dice >> 40).unwrap() % threads.len()];
            let mask = 1 + (dice >> 20) % ((1 << cpus.len()) - 1);
            let on = cpus
                .iter()
                .enumerate()
                .filter(|(at, _)| mask >> at & 1 == 1);
            match dice >> 60 {
                // Not for longer: on a core where one of the kernel's own computes, kernels that have no server for sched_ext (6.18) give its
                // threads nothing, and after five seconds they end the scheduler for that.
                0 | 1 => {
                    release(thread);
                    admit(thread);
                }
                _ => host
                    .set_affinity(thread, &on.map(|(_, cpu)| *cpu).collect())
                    .expect("it is ours"),
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(stage.scheduler.end().expect("a map"), None);
    for &thread in &threads {
        admit(thread);
    }
    let before: Vec<u64> = threads.iter().map(|t| stage.thread(*t).ran_ns).collect();
    let start = Instant::now();
    while threads
        .iter()
        .zip(&before)
        .any(|(t, before)| stage.thread(*t).ran_ns <= *before)
    {
        assert!(start.elapsed() < WITHIN, "one has been forgotten");
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(stage.scheduler.end().expect("a map"), None);
}
