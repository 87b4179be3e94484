//! What sensing costs: CPU time per period with 64 guests, and what our programs add to a context switch.
//!
//! See README.md for the claim and the baseline.

mod guest;
mod naive;
mod switch;
mod whole;

use std::thread;
use std::time::{Duration, Instant};

use bench_harness::{Args, compare};
use ostler_model::Nanos;
use ostler_sense::{SenseConfig, Sensor, now};
use rustix::time::{ClockId, clock_gettime};

use guest::Guests;

const PERIOD: Duration = Duration::from_millis(100);
const VCPUS: u32 = 4;

fn main() {
    // The process that `Guests::start` starts.
    if guest::run_if_asked() {
        return;
    }
    let args = Args::parse();
    let (guests, periods) = if args.quick { (4, 2) } else { (64, 20) };
    let folder = tempfile::tempdir().expect("a folder for sockets");
    let guests = Guests::start(folder.path(), guests, VCPUS);
    let runs = args.runs(7, 1);

    for (case, bpf) in [
        (format!("period-{}-guests", guests.len()), true),
        (format!("period-{}-guests-without-bpf", guests.len()), false),
    ] {
        let mut sensor = Sensor::new(SenseConfig {
            qmp_globs: vec![format!("{}/*.qmp", folder.path().display())],
            bpf,
            ..SenseConfig::default()
        })
        .expect("this host can be sensed");
        settle(&mut sensor, guests.len());
        compare(
            "sense",
            &case,
            "us",
            runs,
            || {
                cpu_us_per_period(periods, || {
                    let snapshot = sensor.snapshot(now());
                    assert_eq!(snapshot.guests.len(), guests.len());
                    assert!(
                        snapshot
                            .guests
                            .iter()
                            .all(|g| g.vcpus.len() == VCPUS as usize)
                    );
                })
            },
            || cpu_us_per_period(periods, || naive::read(guests.pids())),
        )
        .print(&args);
    }
    whole::bench(&args, &guests, folder.path(), runs, periods);
    drop(guests);

    let rounds = if args.quick { 200 } else { 50_000 };
    compare(
        "sense",
        "context-switch",
        "ns",
        runs,
        || {
            let sensor = Sensor::new(SenseConfig::default()).expect("this host can be sensed");
            let ns = switch::ns_per_switch(rounds);
            drop(sensor);
            ns
        },
        || switch::ns_per_switch(rounds),
    )
    .print(&args);
}

/// Takes snapshots until all guests are known with all their threads.
fn settle(sensor: &mut Sensor, guests: usize) {
    let deadline = Instant::now() + Duration::from_mins(1);
    loop {
        let snapshot = sensor.snapshot(now());
        let whole = |g: &&ostler_model::GuestView| {
            g.vcpus.len() == VCPUS as usize && g.vhost.len() == 1 && g.age < Nanos::from_secs(2)
        };
        if snapshot.guests.iter().filter(whole).count() == guests {
            return;
        }
        assert!(Instant::now() < deadline, "not all guests were found");
        thread::sleep(Duration::from_millis(20));
    }
}

/// The CPU time of this whole process per call, with calls at the pace of a period.
fn cpu_us_per_period(periods: u32, mut work: impl FnMut()) -> f64 {
    let before = cpu_ns();
    for _ in 0..periods {
        thread::sleep(PERIOD);
        work();
    }
    (cpu_ns() - before) as f64 / 1e3 / f64::from(periods)
}

fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let part = |n: i64| u64::try_from(n).expect("CPU time is not negative");
    part(time.tv_sec) * 1_000_000_000 + part(time.tv_nsec)
}
