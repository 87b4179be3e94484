use std::path::Path;

use ostler_load::lines::{Figures, Line, StepLine, WindowLine};
use ostler_model::{CpuId, CpuSet, CpuWeight, GuestId, GuestPlan, Nanos, Plan};

use super::super::{Summary, figure_names, result_lines, summaries};
use super::*;
use crate::events::{BoostPeriod, Cell, Counters, Event, GuestCounters, Stamped};
use ostler_scenario::testing::Emulator;

/// Three guests of a vCPU each: a core for each, one for all under the kernel's scheduler, and one under ours.
fn scenario() -> Scenario {
    let guest = |name: &str, class: &str, workload: &str| {
        format!(
            "[[guest]]\nname = \"{name}\"\nclass = \"{class}\"\nvcpus = 1\nmemory = \"256M\"\nworkload = \"{workload}\"\nslo_p95 = \"1ms\"\n"
        )
    };
    let policy = |name: &str, cores: &str, boost: &str| {
        format!("[[policy]]\nname = \"{name}\"\nsteward.cores.managed = \"{cores}\"\n{boost}")
    };
    let text = [
        "name = \"t\"\nsummary = \"\"\nrounds = 2\n[host]\ncores = 4\nmemory = \"2G\"\nunder_test = \"0-2\"\nclient = \"3\"\npnic_queues = 1\n",
        &guest("lc", "latency-critical", "memcached"),
        &guest("be1", "best-effort", "spin").replace("slo_p95 = \"1ms\"\n", ""),
        &guest("be2", "best-effort", "spin").replace("slo_p95 = \"1ms\"\n", ""),
        "[[load]]\nguest = \"lc\"\nsteps = [{ rate = 100, seconds = 1 }]\n",
        &policy("alone", "0-2", ""),
        &policy("kernel", "0", ""),
        &policy("ours", "0", "steward.boost.mode = \"io\"\n"),
    ]
    .concat();
    Scenario::parse(&text, Path::new("t"), &Emulator).expect("a scenario")
}

const UNIX_MS: u64 = 1_000_000;
const UPTIME_MS: u64 = 50_000;

/// A cell of so many seconds, in which each of `lc`, `be1` and `be2` had these milliseconds a second.
struct Toy {
    index: u32,
    policy: &'static str,
    seconds: u32,
    had_ms: fn(u32) -> [u64; 3],
    work: u64,
    boost: Vec<BoostPeriod>,
    sampled: fn(&mut GuestSample),
    planned: fn(&mut GuestPlan),
}

impl Default for Toy {
    fn default() -> Toy {
        Toy {
            index: 0,
            policy: "kernel",
            seconds: 12,
            had_ms: |_| [200, 400, 400],
            work: 60,
            boost: Vec::new(),
            sampled: |_| {},
            planned: |_| {},
        }
    }
}

const NAMES: [&str; 3] = ["lc", "be1", "be2"];

impl Toy {
    fn events(&self) -> Vec<Stamped> {
        let cell = self.index;
        let start = serde_json::json!({"kind": "start", "protocol": "memcached", "target": "t", "seed": 1, "connections": 1, "depth": 1,
            "threads": 1, "steps": 1, "start_unix_ms": UNIX_MS, "start_monotonic_ns": 0, "slo_us": null});
        let begins = Event::CellStart {
            cell: Cell {
                index: cell,
                round: 0,
                policy: self.policy.into(),
                load: 0,
                guest: "lc".into(),
            },
            unix_ms: UNIX_MS,
        };
        let samples = (0..=self.seconds).map(|second| {
            let at_ms = UPTIME_MS + u64::from(second) * 1000;
            (at_ms, self.sample(second))
        });
        let lines = [start].into_iter().chain(self.lines());
        let lines = lines.map(|line| (UPTIME_MS, Event::Load { cell, line }));
        let record =
            serde_json::json!({"wall": UNIX_MS * 1_000_000, "plan": self.plan(), "reasons": []});
        let ends = [
            Event::Steward { cell, record },
            Event::Boost {
                cell,
                periods: self.boost.clone(),
            },
            Event::CellEnd {
                cell,
                counters: self.counters(),
                problems: vec![],
            },
        ];
        [(UPTIME_MS, begins)]
            .into_iter()
            .chain(lines)
            .chain(samples)
            .chain(ends.map(|event| (UPTIME_MS, event)))
            .map(|(t_ms, event)| Stamped { t_ms, event })
            .collect()
    }

    fn sample(&self, second: u32) -> Event {
        let guests = NAMES.iter().zip((self.had_ms)(second));
        let guests = guests.map(|(name, cpu_ms)| {
            let mut sample = GuestSample {
                name: (*name).into(),
                cpu_ms,
                cpus: CpuSet::range(0, 3),
                frozen: false,
                idle: false,
                work: None,
            };
            (self.sampled)(&mut sample);
            sample
        });
        Event::Sample {
            cell: Some(self.index),
            busy: vec![],
            guests: guests.collect(),
        }
    }

    /// What the load generator says: a window and its step, whose percentiles are others.
    fn lines(&self) -> impl Iterator<Item = serde_json::Value> {
        let seconds = f64::from(self.seconds);
        let figures = |p99_us| Figures {
            due: 100 * u64::from(self.seconds),
            completed: 100 * u64::from(self.seconds),
            lag_max_us: p99_us / 2.0,
            p50_us: Some(100.0),
            p95_us: Some(300.0),
            p99_us: Some(p99_us),
            ..Figures::default()
        };
        let window = WindowLine {
            step: 0,
            window: 0,
            start_s: 0.0,
            seconds,
            rate_per_s: 100.0,
            figures: figures(1.0),
        };
        let step = StepLine {
            step: 0,
            start_s: 0.0,
            seconds,
            rate_per_s: 100.0,
            completed_per_s: 100.0,
            windows: 1,
            slo_met_share: None,
            figures: figures(900.0),
        };
        [Line::Window(window), Line::Step(step)]
            .into_iter()
            .map(|line| serde_json::to_value(line).expect("JSON"))
    }

    fn plan(&self) -> Plan {
        let cpus = CpuSet::range(0, 1);
        let guests = NAMES.map(|name| {
            let mut guest = GuestPlan {
                guest: GuestId::from(name),
                class: Class::BestEffort,
                run: RunState::Running,
                vcpu_cpus: cpus,
                vcpu_pins: Vec::new(),
                vhost_cpus: cpus,
                vhost_pins: Vec::new(),
                emulator_cpus: cpus,
                weight: CpuWeight::Untouched,
                vcpus_active: None,
                queues: None,
            };
            (self.planned)(&mut guest);
            guest
        });
        Plan {
            guests: guests.to_vec(),
            ..Plan::default()
        }
    }

    fn counters(&self) -> Counters {
        let guests = NAMES.iter().enumerate().map(|(which, name)| {
            let had_ms: u64 = (1..=self.seconds).map(|s| (self.had_ms)(s)[which]).sum();
            GuestCounters {
                name: (*name).into(),
                cpu_seconds: had_ms as f64 / 1e3,
                work: (which > 0).then_some(self.work as f64),
                ..GuestCounters::default()
            }
        });
        Counters {
            seconds: f64::from(self.seconds),
            context_switches: 100 * u64::from(self.seconds),
            guests: guests.collect(),
            ..Counters::default()
        }
    }
}

fn summary(toys: &[Toy]) -> Summary {
    let events: Vec<_> = toys.iter().flat_map(Toy::events).collect();
    summaries(&scenario(), &events).remove(0)
}

/// The fairness error of a cell of its own.
fn error(toy: Toy) -> Option<f64> {
    let error = summary(&[toy]).cells[0].fairness_error_10s;
    error.map(|error| (error * 1e6).round() / 1e6)
}

fn boosted(at_ms: u64, ran_ms: u64, delays: &[u64]) -> BoostPeriod {
    let ms = Nanos::from_millis;
    let guest = GuestBoost {
        guest: GuestId::from("lc"),
        vcpus: 1,
        io_vcpus: 1,
        ran: ms(ran_ms),
        waited: Nanos::ZERO,
        served: Nanos::ZERO,
        balance_ns: 3_000_000,
        borrowed: ms(ran_ms / 2),
        paid: ms(ran_ms / 4),
        lent: Nanos::ZERO,
        returned: Nanos::ZERO,
        boosts: ran_ms,
        refused: 0,
        tasks_seen: 0,
        delays: delays.to_vec(),
    };
    BoostPeriod {
        unix_ms: UNIX_MS + at_ms,
        guests: vec![guest],
    }
}

#[test]
fn a_scenario_says_who_schedules_how_many_vcpus_to_a_core() {
    let text = include_str!("../../../../scenarios/anubis.toml");
    let scenario = Scenario::parse(text, Path::new("anubis"), &Emulator).expect("a scenario");
    let told = scenario.policies.iter().map(|policy| {
        let sharers = Sharers::of(&scenario, policy, "lc");
        let ratio = sharers.ratio().expect("a ratio");
        let scheduler = policy.scheduler().unwrap_or_default();
        format!("{} {ratio} {scheduler}", policy.name)
    });
    let told: Vec<_> = told.collect();
    assert_eq!(
        told[..5],
        [
            "alone 1 ",
            "eevdf-2 2 ",
            "fair-2 2 fair 3ms",
            "short-2 2 fair 500us",
            "burst-2 2 io 3ms, threshold 1, limit 1h"
        ]
    );
    assert_eq!(told.last().map(String::as_str), Some("boost-4 4 io 3ms"));
}

#[test]
fn each_cell_has_a_line_of_its_own() {
    let alone = Toy {
        policy: "alone",
        had_ms: |_| [200, 1000, 1000],
        ..Toy::default()
    };
    let ours = Toy {
        index: 1,
        policy: "ours",
        boost: vec![
            boosted(0, 100, &[5, 0, 0, 0]),
            boosted(12_000, 300, &[5, 98, 2, 0]),
        ],
        ..Toy::default()
    };
    let summaries = [summary(&[ours, alone])];
    let lines = result_lines(&summaries);
    assert_eq!(lines.len(), 5, "three policies and two cells");
    let line = serde_json::to_string(lines.last().expect("a line")).expect("JSON");
    insta::assert_snapshot!(line, @r#"{"cell":1,"policy":"ours","round":0,"guest":"lc","workload":"memcached in guest lc (1 vCPUs, 1 queues), 16 connections","ratio":3.0,"vcpus":3,"scheduler":"io 3ms","ops_per_s":100.0,"p50_us":100.0,"p95_us":300.0,"p99_us":900.0,"irq_to_run_p99_us":8.0,"fairness_error_10s":0.0,"neighbour_throughput":3.0,"ctx_switches_per_s":100.0,"client_lag_max_us":0.5}"#);
    let alone = &summaries[0].cells[0];
    assert_eq!((alone.cell, alone.scheduler.as_str()), (0, "kernel"));
    assert_eq!((alone.ratio, alone.irq_to_run_p99_us), (Some(1.0), None));
    let ours = summaries[0].lines().remove(2).line;
    assert_eq!(ours.cell_p99_us, Some(900.0), "of the cell");
    assert_eq!(ours.p99_us, Some(1.0), "of its seconds");
}

/// As on a kernel without `sched_ext`, where a steward that is asked for a scheduler leaves vCPUs to the kernel's.
#[test]
fn a_cell_tells_whose_scheduler_there_was_and_not_what_was_asked_for() {
    let without = Toy {
        policy: "ours",
        ..Toy::default()
    };
    let told = &summary(&[without]).cells[0].scheduler;
    assert_eq!(told, "kernel, for want of io 3ms");
}

#[test]
fn what_a_cell_is_judged_by_can_be_expected_of_its_policy() {
    let names = figure_names();
    for name in [
        "ops_per_s",
        "cell_p50_us",
        "cell_p95_us",
        "cell_p99_us",
        "irq_to_run_p99_us",
        "fairness_error_10s",
        "neighbour_throughput",
    ] {
        assert!(names.iter().any(|n| n == name), "{name} in {names:?}");
    }
}

#[test]
fn what_a_sleeping_guest_leaves_is_the_others_fair_share() {
    assert_eq!(error(Toy::default()), Some(0.0));
    let uneven = |_| [200, 440, 360];
    assert_eq!(
        error(Toy {
            had_ms: uneven,
            ..Toy::default()
        }),
        Some(0.1)
    );
}

#[test]
fn a_guest_that_has_more_than_its_share_is_unfair_to_all_others() {
    let greedy = |_| [600, 200, 200];
    assert_eq!(
        error(Toy {
            had_ms: greedy,
            ..Toy::default()
        }),
        Some(0.4)
    );
}

/// `count` guests of a table are as many that share.
#[test]
fn guests_of_one_table_share_each_for_itself() {
    let mut scenario = scenario();
    scenario.guests.truncate(2);
    scenario.guests[1].count = 2;
    let toy = Toy {
        had_ms: |_| [200, 440, 360],
        ..Toy::default()
    };
    let mut events = toy.events();
    let rename = |name: &mut String| match name.as_str() {
        "be1" => *name = "be1-1".to_owned(),
        "be2" => *name = "be1-2".to_owned(),
        _ => {}
    };
    for stamped in &mut events {
        match &mut stamped.event {
            Event::Sample { guests, .. } => {
                for guest in guests {
                    rename(&mut guest.name);
                }
            }
            Event::CellEnd { counters, .. } => {
                for guest in &mut counters.guests {
                    rename(&mut guest.name);
                }
            }
            _ => {}
        }
    }
    let summary = summaries(&scenario, &events).remove(0);
    let error = summary.cells[0]
        .fairness_error_10s
        .expect("they are equals");
    assert!((error - 0.1).abs() < 1e-6, "{error}");
    assert_eq!(summary.cells[0].ratio, Some(3.0));
}

#[test]
fn unfairness_is_sought_in_every_ten_seconds_and_over_shorter_cells_as_a_whole() {
    // Fair over all, and not in the first ten seconds.
    let late = |second| match second {
        1..=5 => [0, 600, 400],
        16..=20 => [0, 400, 600],
        _ => [0, 500, 500],
    };
    let toy = |seconds| Toy {
        seconds,
        had_ms: late,
        ..Toy::default()
    };
    assert_eq!(error(toy(20)), Some(0.1));
    assert_eq!(error(toy(8)), Some(0.125), "five of eight seconds");
}

#[test]
fn guests_that_dont_compete_as_equals_have_no_fair_share() {
    let sampled: [fn(&mut GuestSample); 2] = [
        |sample| sample.frozen = sample.name == "be2",
        |sample| sample.idle = sample.name == "be2",
    ];
    for sampled in sampled {
        assert_eq!(
            error(Toy {
                sampled,
                ..Toy::default()
            }),
            None
        );
    }
    let planned: [fn(&mut GuestPlan); 4] = [
        |plan| {
            if plan.guest.as_str() == "be2" {
                plan.run = RunState::Suspended;
            }
        },
        |plan| {
            if plan.guest.as_str() == "be2" {
                plan.vcpu_cpus = CpuSet::range(1, 2);
            }
        },
        |plan| {
            if plan.guest.as_str() == "be2" {
                plan.vcpu_pins = vec![CpuId(0)];
            }
        },
        |plan| {
            if plan.guest.as_str() == "be2" {
                plan.weight = CpuWeight::Idle;
            }
        },
    ];
    for planned in planned {
        assert_eq!(
            error(Toy {
                planned,
                ..Toy::default()
            }),
            None
        );
    }
}

#[test]
fn neighbours_work_is_told_in_fair_shares() {
    let alone = |had_ms| Toy {
        policy: "alone",
        had_ms,
        work: 120,
        ..Toy::default()
    };
    let shared = Toy {
        index: 1,
        work: 48,
        ..Toy::default()
    };
    let told = summary(&[alone(|_| [200, 1000, 1000]), shared]);
    let throughput = |cell: usize| told.cells[cell].neighbour_throughput;
    // Ten rounds a core-second; 24 s of a core, of which the two have two thirds: 8 s, and so 80 rounds.
    assert_eq!(throughput(0), Some(1.0));
    assert_eq!(throughput(1), Some(1.2));
    let fresh = Toy {
        index: 2,
        work: 60,
        ..alone(|_| [200, 1000, 1000])
    };
    let shared = Toy {
        index: 1,
        work: 48,
        ..Toy::default()
    };
    let told = summary(&[fresh, shared, alone(|_| [200, 1000, 1000])]);
    assert_eq!(
        told.cells[1].neighbour_throughput,
        Some(1.2),
        "of the better round"
    );
    let without = summary(&[Toy::default()]);
    assert_eq!(
        without.cells[0].neighbour_throughput, None,
        "nobody tells what a core-second is worth"
    );
}

#[test]
fn delays_are_those_under_load_and_unknown_when_the_scheduler_began_anew() {
    let of = |boost| {
        let ours = Toy {
            policy: "ours",
            boost,
            ..Toy::default()
        };
        summary(&[ours]).cells[0].irq_to_run_p99_us
    };
    let (first, last) = (&[100, 0, 50, 0, 0], &[199, 0, 50, 1, 0]);
    assert_eq!(
        of(vec![
            boosted(0, 0, first),
            boosted(500, 9, &[]),
            boosted(900, 9, last)
        ]),
        Some(2.0)
    );
    let anew = &[3, 0, 0, 9, 0];
    assert_eq!(of(vec![boosted(0, 0, first), boosted(900, 9, anew)]), None);
    assert_eq!(of(vec![boosted(0, 0, first)]), None);
}

#[test]
fn a_round_is_told_guest_by_guest_as_the_scheduler_accounts_for_it() {
    let ours = Toy {
        index: 1,
        policy: "ours",
        boost: vec![
            boosted(0, 100, &[1]),
            boosted(2000, 1100, &[]),
            boosted(4000, 1500, &[1]),
        ],
        ..Toy::default()
    };
    let run = summary(&[Toy::default(), ours]).run;
    let sharing = |policy: usize| {
        run.policies[policy]
            .sharing
            .as_ref()
            .expect("a scheduler is compared")
    };
    let [lc, be1, _] = sharing(2).timeline.as_slice() else {
        panic!("three guests");
    };
    assert!(lc.loaded && !be1.loaded);
    let cores: Vec<_> = lc.spans.iter().map(|span| span.cores).collect();
    assert_eq!(cores, [Some(0.5), Some(0.2)]);
    assert_eq!(
        lc.spans[1].account,
        Some(Account {
            boosts_per_s: 200.0,
            borrowed_ms: 700.0,
            paid_ms: 350.0,
            balance_ms: 3.0,
            ..Account::default()
        })
    );
    assert_eq!(
        be1.spans[0],
        GuestSpan {
            from_s: 0.0,
            to_s: 2.0,
            cores: None,
            account: None
        }
    );
    let sampled = &sharing(1).timeline[0];
    assert_eq!(sampled.spans.len(), 12, "of the kernel's, what was sampled");
    assert_eq!(
        (sampled.spans[0].cores, sampled.spans[0].account),
        (Some(0.2), None)
    );
    let shares: Vec<_> = sharing(1)
        .guests
        .iter()
        .map(|g| g.of_equal.map(|s| (s.median * 1e3).round()))
        .collect();
    assert_eq!(shares, [Some(600.0), Some(1200.0), Some(1200.0)]);
}

/// One boot serves many workloads: only the one whose turn it is shares cores with the neighbours.
#[test]
fn guests_that_wait_for_their_turn_share_nothing() {
    let text = include_str!("../../../../scenarios/anubis-workloads.toml");
    let scenario = Scenario::parse(text, Path::new("workloads"), &Emulator).expect("a scenario");
    let two = scenario.policies.iter().find(|p| p.name == "boost-2");
    for load in &scenario.loads {
        let sharers = Sharers::of(&scenario, two.expect("a policy"), &load.guest);
        assert_eq!((sharers.vcpus(), sharers.ratio()), (8, Some(2.0)));
        assert_eq!(sharers.neighbours().count(), 7);
    }
}
