//! A whole period in a steady state: sense, decide, act.

use std::path::Path;

use bench_harness::{Args, compare};
use ostler_act::{ActConfig, Actuator, LinuxHost};
use ostler_model::{
    ActIntent, ActMode, Class, ExitPolicy, ForeignPolicy, Intent, PartitionIntent, PartitionPolicy,
    State,
};
use ostler_sense::{SenseConfig, Sensor, now};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::guest::Guests;
use crate::{cpu_us_per_period, naive, settle};

/// Measures it beside reading everything and pinning every thread again.
pub fn bench(args: &Args, guests: &Guests, folder: &Path, runs: usize, periods: u32) {
    let mut sensor = Sensor::new(SenseConfig {
        qmp_globs: vec![format!("{}/*.qmp", folder.display())],
        ..SenseConfig::default()
    })
    .expect("this host can be sensed");
    settle(&mut sensor, guests.len());
    let cores = sensor.facts().topology.online().len();
    let intent = Intent {
        default_class: Class::LatencyCritical,
        // Nothing that is measured here depends on where cores go, but that they stay where they are.
        partition: PartitionIntent {
            policy: PartitionPolicy::Static {
                vcpu: cores.saturating_sub(1).max(1),
                nq: 1,
            },
            ..PartitionIntent::default()
        },
        act: ActIntent {
            mode: ActMode::Act,
            ..ActIntent::default()
        },
        ..Intent::default()
    };
    let config = ActConfig {
        journal: folder.join("journal.db"),
        foreign: ForeignPolicy::Respect,
    };
    let mut actuator =
        Actuator::new(Box::new(LinuxHost::detect()), &config, None).expect("a journal");
    let mut state = State::default();
    let mut period = || {
        let snapshot = sensor.snapshot(now());
        let facts = sensor.facts();
        let decision =
            ostler_policy::decide(facts, &snapshot, &intent, &state, now(), &mut || 0_u64);
        state = decision.state;
        actuator
            .apply(facts, &snapshot, &decision.plan)
            .expect("the journal can be written")
    };
    // Adoption writes; what is measured is what comes after it.
    let mut quiet = 0;
    for _ in 0..100 {
        quiet = if period().written == 0 { quiet + 1 } else { 0 };
        if quiet == 3 {
            break;
        }
    }
    assert_eq!(quiet, 3, "nothing is left to be written");
    compare(
        "sense",
        &format!("whole-period-{}-guests", guests.len()),
        "us",
        runs,
        || cpu_us_per_period(periods, || assert_eq!(period().written, 0)),
        || {
            cpu_us_per_period(periods, || {
                naive::read(guests.pids());
                pin_again(guests.pids());
            })
        },
    )
    .print(args);
    let report = actuator.exit(ExitPolicy::Restore).expect("a journal");
    assert!(report.left.is_empty(), "what we wrote is taken back");
}

/// Sets the affinity of every thread to what it is.
fn pin_again(pids: &[u32]) {
    for pid in pids {
        let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
            continue;
        };
        for task in tasks.flatten() {
            let tid = task.file_name().to_string_lossy().parse().ok();
            let Some(tid) = tid.and_then(rustix::process::Pid::from_raw) else {
                continue;
            };
            let cpus: CpuSet = sched_getaffinity(Some(tid)).expect("a living thread");
            sched_setaffinity(Some(tid), &cpus).expect("its own affinity");
        }
    }
}
