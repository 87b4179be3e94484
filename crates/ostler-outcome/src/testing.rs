//! A run to hold things against: what the host of a small scenario would tell.

use std::path::Path;

use ostler_load::lines::{Figures as LoadFigures, Line, StepLine, WindowLine};
use ostler_scenario::Scenario;
use ostler_scenario::testing::Emulator;

use crate::events::{Cell, Counters, Event, GuestCounters, Stamped};

/// A small scenario: a guest that is asked at two rates, one that computes, and two policies.
///
/// # Panics
///
/// When it can't be read.
pub fn scenario() -> Scenario {
    let text = "name = \"t\"\nsummary = \"\"\nrounds = 3\n[host]\ncores = 4\nmemory = \"2G\"\nunder_test = \"0-2\"\nclient = \"3\"\npnic_queues = 1\n\
        [[guest]]\nname = \"lc\"\nclass = \"latency-critical\"\nvcpus = 1\nmemory = \"256M\"\nworkload = \"memcached\"\nslo_p95 = \"1ms\"\n\
        [[guest]]\nname = \"be\"\nclass = \"best-effort\"\nvcpus = 1\nmemory = \"256M\"\nworkload = \"spin\"\n\
        [[load]]\nguest = \"lc\"\nsteps = [{ rate = 100, seconds = 1 }, { rate = 200, seconds = 1 }]\n\
        [[policy]]\nname = \"vanilla\"\n[[policy]]\nname = \"ours\"\nsteward.partition.policy = \"energy\"\n";
    Scenario::parse(text, Path::new("t"), &Emulator).expect("a scenario")
}

pub(crate) fn figures(p95_us: f64) -> LoadFigures {
    LoadFigures {
        due: 10,
        completed: 10,
        p50_us: Some(p95_us / 2.0),
        p95_us: Some(p95_us),
        p99_us: Some(p95_us * 2.0),
        ..LoadFigures::default()
    }
}

/// Unix time of the load's start, and of a host that booted 50 s before.
pub(crate) const UNIX_MS: u64 = 1_000_000;
pub(crate) const UPTIME_MS: u64 = 50_000;

/// A cell with two steps of one window each.
///
/// # Panics
///
/// When its lines are no JSON.
pub fn cell(index: u32, policy: &str, p95s: [f64; 2], problems: &[&str]) -> Vec<Stamped> {
    let cell = Cell {
        index,
        round: index,
        policy: policy.into(),
        load: 0,
        guest: "lc".into(),
    };
    let mut events = vec![Event::CellStart {
        cell,
        unix_ms: UNIX_MS,
    }];
    let start = serde_json::json!({"kind": "start", "protocol": "memcached", "target": "t", "seed": 1, "connections": 1, "depth": 1,
        "threads": 1, "steps": 2, "start_unix_ms": UNIX_MS, "start_monotonic_ns": 0, "slo_us": null});
    events.push(Event::Load {
        cell: index,
        line: start,
    });
    for (step, p95_us) in (0u32..).zip(p95s) {
        let rate_per_s = 100.0 * f64::from(step + 1);
        let window = WindowLine {
            step,
            window: 0,
            start_s: f64::from(step),
            seconds: 1.0,
            rate_per_s,
            figures: figures(p95_us),
        };
        let whole = StepLine {
            step,
            start_s: f64::from(step),
            seconds: 1.0,
            rate_per_s,
            completed_per_s: 10.0,
            windows: 1,
            slo_met_share: None,
            figures: figures(p95_us),
        };
        for line in [Line::Window(window), Line::Step(whole)] {
            events.push(Event::Load {
                cell: index,
                line: serde_json::to_value(line).expect("JSON"),
            });
        }
    }
    let guest = |name: &str, cpu_seconds, work| GuestCounters {
        name: name.into(),
        cpu_seconds,
        migrations: 4,
        work,
        ..GuestCounters::default()
    };
    let counters = Counters {
        seconds: 2.0,
        context_switches: 40,
        device_irqs: 6,
        ipis: 2,
        kvm_exits: Some(100),
        guests: vec![
            guest("lc", 1.0, None),
            guest("be", 3.0, Some(10.0 + f64::from(index))),
        ],
        ..Counters::default()
    };
    let problems = problems.iter().map(|&p| p.to_owned()).collect();
    events.push(Event::CellEnd {
        cell: index,
        counters,
        problems,
    });
    events
        .into_iter()
        .map(|event| Stamped {
            t_ms: UPTIME_MS,
            event,
        })
        .collect()
}
