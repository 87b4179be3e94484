//! The world of in-memory files: against the queue's closed form, its own accounts, and the paper's three controls.

use ostler_policy::sizing::queue::Service;
use ostler_policy::sizing::{Parts, Settings};
use ostler_sim::files::{By, Run, World, aggregated, hylics, hylics_settings, pooled};
use proptest::prelude::*;

fn still(settings: Settings, bytes: u64) -> By {
    // Nothing changes it: the least and the most are the same.
    By::Oracle(Settings {
        size_min: bytes,
        size_max: bytes,
        ..settings
    })
}

/// Processor sharing: the mean response time is E / (1 - rho), however times are spread.
#[test]
fn response_times_are_the_closed_form() {
    for (spread, mean, gap) in [
        (0.1, 4.0, 8.0),
        (1.0, 4.0, 8.0),
        (0.5, 6.0, 8.0),
        (0.1, 1.0, 4.0),
    ] {
        let service = Service::new(&[(0, mean)]).expect("a time");
        let world = World {
            measured: service.clone(),
            service,
            spread,
            gaps: vec![gap],
            hold: 1e9,
            seconds: 4e5,
            bytes: 0,
        };
        let run = world.run(&still(hylics_settings(), 0), 5);
        let expected = mean / (1.0 - mean / gap);
        let seen = run.waited / run.came as f64;
        assert!((seen / expected - 1.0).abs() < 0.06, "{seen} {expected}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// No task is lost; the time that tasks are there is the time that they waited (Little); the same seed, the same run.
    #[test]
    fn accounts_balance(seed in any::<u64>(), workload in 1..3_u32, slower in 0.7..1.3_f64,
        parts in proptest::sample::select(vec![Parts::Corrected, Parts::Both, Parts::Queue, Parts::Adaptive])) {
        let by = By::Policy(Settings { parts, ..hylics_settings() });
        let world = hylics(workload, slower);
        let run = world.run(&by, seed);
        prop_assert_eq!(run.came, run.ended + run.left);
        prop_assert!((run.task_seconds - run.waited).abs() < 1e-6 * run.waited.max(1.0));
        prop_assert!(run.most <= 512 << 20);
        prop_assert_eq!(run, world.run(&by, seed));
    }
}

fn hours(workload: u32, slower: f64, by: &By, hours: u64) -> Vec<Run> {
    let world = hylics(workload, slower);
    (0..hours).map(|seed| world.run(by, seed)).collect()
}

/// Whatever tasks take beside what was measured, what is found comes close to who knows it all, and beats the paper's controls by far once its measurements are off or its load changes.
#[test]
fn what_is_found_is_near_to_what_is_known() {
    for slower in [0.85, 1.0, 1.15] {
        for workload in [1, 2] {
            let settings = |parts| {
                By::Policy(Settings {
                    parts,
                    ..hylics_settings()
                })
            };
            let of = |by: &By| aggregated(&pooled(&hours(workload, slower, by, 40)), 10.0);
            let found = of(&settings(Parts::Corrected));
            let known = of(&By::Oracle(hylics_settings()));
            let both = of(&settings(Parts::Both));
            let lags = if workload == 1 { 12.0 } else { 60.0 };
            assert!(
                found <= known + lags,
                "{workload} {slower}: {found}, known {known}"
            );
            if workload == 2 || slower > 0.9 {
                assert!(
                    found < 0.6 * both,
                    "{workload} {slower}: {found}, the paper's {both}"
                );
            }
        }
    }
}
