//! Whatever the summary holds, the page is well-formed, self-contained, and shows no number that isn't one.

use ostler_report::testing::well_formed;
use proptest::prelude::*;

use super::*;
use crate::events::MachineCounters;

fn wild_number() -> impl Strategy<Value = f64> {
    prop_oneof![
        8 => 0.0..1e6_f64,
        1 => prop::sample::select(vec![0.0, -1.0, 1e-12, 1e300, -1e300, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX]),
        1 => any::<f64>(),
    ]
}

/// No capital letters and no f: so that "NaN" and "inf" can only be numbers of ours.
fn wild_text() -> impl Strategy<Value = String> {
    "[a-eg-z0-9<>&\"'/=\\-\\]\\[ \u{1}\u{7f}\u{fffe}\u{202e}\u{e9}\u{1f40e}]{0,24}"
}

fn wild_spread() -> impl Strategy<Value = Option<Spread>> {
    prop::option::of(
        (wild_number(), wild_number(), wild_number()).prop_map(|(median, min, max)| Spread {
            median,
            min,
            max,
        }),
    )
}

prop_compose! {
    fn wild_figures()(s in prop::collection::vec(wild_spread(), 21)) -> Figures {
        Figures {
            max_rate_under_slo: s[0], slo_met_share: s[1], core_seconds: s[2], p50_us: s[3], p95_us: s[4], p99_us: s[5],
            ctx_switches_per_s: s[6], migrations_per_s: s[7], irqs_per_s: s[8], kvm_exits_per_s: s[9], be_core_seconds: s[10], ops_per_s: s[11], cell_p50_us: s[12], cell_p95_us: s[13], cell_p99_us: s[14], irq_to_run_p99_us: s[15],
            fairness_error_10s: s[16], neighbour_throughput: s[17], energy_j: s[18], local_unused: s[19], moved_mib: s[20],
        }
    }
}

prop_compose! {
    fn wild_sample()(
        t_s in wild_number(),
        n in prop::collection::vec(prop::option::of(wild_number()), 3),
        cores in prop::option::of(prop::collection::vec(wild_number(), 5)),
    ) -> Sample {
        let cores = cores.map(|c| Cores { vcpu: c[0], nq: c[1], shared: c[2], be: c[3], idle: c[4] });
        Sample { t_s, offered_per_s: n[0], completed_per_s: n[1], p95_us: n[2], cores }
    }
}

prop_compose! {
    fn wild_timeline()(
        round in 0..9_u32,
        samples in prop::collection::vec(wild_sample(), 0..12),
        suspended in prop::collection::vec((wild_number(), wild_number()), 0..3),
        decisions in prop::collection::vec((wild_number(), wild_text(), prop::collection::vec(wild_text(), 0..3)), 0..4),
    ) -> Timeline {
        Timeline {
            round,
            samples,
            be_suspended: suspended.into_iter().map(|(from_s, to_s)| Interval { from_s, to_s }).collect(),
            decisions: decisions.into_iter().map(|(t_s, what, reasons)| Decision { t_s, what, reasons }).collect(),
        }
    }
}

prop_compose! {
    fn wild_machine()(
        n in prop::collection::vec(wild_number(), 4),
        served in prop::option::of(prop::array::uniform7(0..u64::MAX >> 4)),
        node_bytes in prop::collection::vec(0..u64::MAX >> 4, 0..4),
        instructions: u64, snoops: u64,
    ) -> MachineCounters {
        MachineCounters { core_seconds: n[0], halted_s: n[1], stall_s: n[2], queued_s: n[3], instructions, served, snoops, node_bytes }
    }
}

prop_compose! {
    fn wild_span()(n in prop::collection::vec(wild_number(), 9), cores in prop::option::of(wild_number()), accounted: bool) -> GuestSpan {
        let account = Account {
            boosts_per_s: n[2], refused_per_s: n[3], borrowed_ms: n[4], paid_ms: n[5], lent_ms: n[6], returned_ms: n[7], balance_ms: n[8],
        };
        GuestSpan { from_s: n[0], to_s: n[1], cores, account: accounted.then_some(account) }
    }
}

prop_compose! {
    fn wild_sharing()(
        ratio in prop::option::of(wild_number()), scheduler in wild_text(),
        delays in prop::collection::vec(0..u64::from(u32::MAX), 0..26),
        guests in prop::collection::vec((wild_text(), any::<bool>(), wild_spread(), prop::collection::vec(wild_span(), 0..8)), 0..4),
    ) -> Sharing {
        let shares = guests.iter().map(|(guest, loaded, of_equal, _)| GuestShare { guest: guest.clone(), loaded: *loaded, vcpus: 1, of_equal: *of_equal });
        Sharing {
            ratio, scheduler, delays, guests: shares.collect(),
            timeline: guests.into_iter().map(|(guest, loaded, _, spans)| GuestTimeline { guest, loaded, spans }).collect(),
        }
    }
}

prop_compose! {
    fn wild_policy()(
        policy in wild_text(), about in wild_text(), ours: bool, figures in wild_figures(),
        curve in prop::collection::vec((wild_number(), wild_spread()), 0..6),
        timeline in prop::option::of(wild_timeline()),
        machine in prop::option::of(wild_machine()), sharing in prop::option::of(wild_sharing()),
    ) -> PolicySummary {
        let family = if ours { Family::Ostler } else { Family::Baseline };
        let curve = curve.into_iter().map(|(rate_per_s, p95_us)| CurvePoint { rate_per_s, p95_us }).collect();
        PolicySummary { policy, about, family, figures, curve, timeline, machine, sharing }
    }
}

prop_compose! {
    fn wild_run()(
        texts in prop::collection::vec(wild_text(), 8), cores in 0..4096_u32, rounds in 0..99_u32, wall: bool,
        slo_us in wild_number(), instruction_ns in wild_number(), parts: bool, baseline in 0..5_usize, policies in prop::collection::vec(wild_policy(), 0..5),
    ) -> RunSummary {
        let [scenario, description, revision, started, workload, name, kernel, hypervisor] =
            <[String; 8]>::try_from(texts).unwrap();
        let part = parts.then(|| name.clone());
        RunSummary {
            scenario, description, revision, started, workload, rounds, slo_us,
            host: Host { name, cores, kernel, hypervisor, instruction_ns, part },
            clock: if wall { Clock::Wall } else { Clock::Machine },
            baseline: policies.get(baseline).map_or(String::new(), |p| p.policy.clone()),
            policies,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_summary_renders_well_formed_and_without_nan(run in wild_run(), other in wild_run(), two: bool) {
        // A clock is told once for each run.
        let other = RunSummary { clock: run.clock, ..other };
        let page = if two { render_all(&[&run, &other]) } else { render(&run) };
        let elements = well_formed(&page).map_err(TestCaseError::fail)?;
        prop_assert!(elements > 40);
        prop_assert!(!page.contains("NaN"), "a NaN reached the page");
        // In our own text "inf" may be part of a word; as a number it stands alone or after a sign.
        for infinite in ["\"inf", "-inf", ">inf", " inf<", "inf ms", "inf s"] {
            prop_assert!(!page.contains(infinite), "an infinity reached the page: {infinite}");
        }
        prop_assert_eq!(page.contains("Wall time."), run.clock == Clock::Wall);
        prop_assert_eq!(page.contains("Machine time."), run.clock == Clock::Machine);
    }
}

/// One policy, five seconds, the middle one not measured.
fn with_a_gap() -> RunSummary {
    let sample = |second: u32| {
        let measured = second != 2;
        Sample {
            t_s: f64::from(second),
            offered_per_s: measured.then_some(100.0),
            completed_per_s: measured.then_some(90.0),
            p95_us: measured.then_some(500.0),
            cores: measured.then_some(Cores {
                vcpu: 2.0,
                ..Cores::default()
            }),
        }
    };
    let timeline = Timeline {
        samples: (0..5).map(sample).collect(),
        ..Timeline::default()
    };
    RunSummary {
        scenario: "gap".to_owned(),
        description: String::new(),
        revision: String::new(),
        started: String::new(),
        host: Host {
            name: String::new(),
            cores: 4,
            kernel: String::new(),
            hypervisor: String::new(),
            instruction_ns: 1.0,
            part: None,
        },
        workload: String::new(),
        rounds: 1,
        clock: Clock::Machine,
        slo_us: 1_000.0,
        baseline: "a".to_owned(),
        policies: vec![PolicySummary {
            policy: "a".to_owned(),
            about: String::new(),
            family: Family::Baseline,
            figures: Figures::default(),
            curve: Vec::new(),
            timeline: Some(timeline),
            machine: None,
            sharing: None,
        }],
    }
}

/// How often each path letter occurs in the path of a class.
fn moves(page: &str, class: &str) -> usize {
    let end = page.find(&format!("\" class=\"{class}\"")).expect(class);
    let start = page[..end].rfind("d=\"").expect("a path") + 3;
    page[start..end].matches('M').count()
}

#[test]
fn what_a_second_is_made_of_is_told() {
    let mut run = with_a_gap();
    run.host.instruction_ns = 10.0;
    assert!(
        render(&run)
            .contains("an instruction each 10 ns, and caches and memory nodes cost nothing")
    );
    run.host.part = Some("epyc-7742".to_owned());
    assert!(render(&run).contains("an instruction a cycle of epyc-7742"));
    run.clock = Clock::Wall;
    let page = render(&run);
    assert!(
        page.contains("rates and latencies are indicative") && !page.contains("an instruction")
    );
}

#[test]
fn a_second_that_was_not_measured_is_a_gap_in_every_panel() {
    let page = render(&with_a_gap());
    assert_eq!(moves(&page, "latency"), 2, "a line of two pieces");
    assert_eq!(moves(&page, "served"), 2);
    assert_eq!(moves(&page, "offered"), 4, "four blocks of five");
    assert_eq!(moves(&page, "g-vcpu"), 4);
    assert_eq!(page.matches("class=\"within\"").count(), 4);
    assert!(page.contains("not measured"), "figures say so too");
}

#[test]
fn what_the_machine_counted_is_a_table_and_nothing_without() {
    let mut run = with_a_gap();
    assert!(!render(&run).contains("machine-table"), "on wall time");
    let counted = MachineCounters {
        core_seconds: 8.0,
        halted_s: 6.0,
        instructions: 3_000_000_000,
        ..MachineCounters::default()
    };
    run.policies[0].machine = Some(counted.clone());
    let page = render(&run);
    for cell in ["<td>75 %</td>", "<td>3G</td>"] {
        assert!(page.contains(cell), "{cell}");
    }
    assert!(!page.contains("remote"), "without caches");
    run.policies[0].machine = Some(MachineCounters {
        served: Some([60, 20, 10, 4, 3, 2, 1]),
        stall_s: 0.5,
        queued_s: 0.25,
        snoops: 17,
        node_bytes: vec![5_000_000, 0],
        ..counted
    });
    let page = render(&run);
    for cell in [
        "<td>60 %</td>",
        "<td>1 %</td>",
        "<td>25 %</td>",
        "<td>12.5 %</td>",
        "<td>17</td>",
        "<td>5</td>",
        "node 1, MB",
    ] {
        assert!(page.contains(cell), "{cell}");
    }
}

/// A policy without sharing, one under the kernel's scheduler, and one under ours, of which one round was recorded.
pub fn sharing() -> RunSummary {
    let mut run = with_a_gap();
    let spread = |x: f64| Spread::of([Some(x)]);
    let policy = |name: &str, ratio: f64, p99: f64, delays: Vec<u64>| {
        let span = |from: u32, account| GuestSpan {
            from_s: f64::from(from),
            to_s: f64::from(from + 1),
            cores: Some(0.25),
            account,
        };
        let counted = !delays.is_empty();
        let account = |from: u32| Account {
            boosts_per_s: 200.0,
            borrowed_ms: f64::from(from) * 2.0,
            balance_ms: -1.0,
            ..Account::default()
        };
        let guest = |guest: &str, loaded: bool| GuestTimeline {
            guest: guest.to_owned(),
            loaded,
            spans: (0..5)
                .map(|from| span(from, counted.then(|| account(from))))
                .collect(),
        };
        let share = |guest: &str, loaded: bool, of_equal: f64| GuestShare {
            guest: guest.to_owned(),
            loaded,
            vcpus: 1,
            of_equal: spread(of_equal),
        };
        PolicySummary {
            policy: name.to_owned(),
            figures: Figures {
                cell_p99_us: spread(p99),
                fairness_error_10s: spread(0.04),
                neighbour_throughput: spread(1.1),
                ..Figures::default()
            },
            sharing: Some(Sharing {
                ratio: Some(ratio),
                scheduler: "kernel".to_owned(),
                delays,
                guests: vec![share("lc", true, 0.5), share("be", false, 1.5)],
                timeline: vec![guest("lc", true), guest("be", false)],
            }),
            ..run.policies[0].clone()
        }
    };
    run.policies = vec![
        policy("alone", 1.0, 2_000.0, Vec::new()),
        policy("eevdf", 4.0, 9_000.0, Vec::new()),
        policy("boost", 4.0, 3_000.0, vec![0, 8, 1, 1, 0]),
    ];
    run.baseline = "alone".to_owned();
    run
}

#[test]
fn a_run_that_compares_no_schedulers_of_vcpus_shows_nothing_of_them() {
    let page = render(&with_a_gap());
    for id in ["id=\"sharing", "id=\"guests-"] {
        assert!(!page.contains(id), "{id}");
        assert!(render(&sharing()).contains(id), "{id}");
    }
}

/// A drawing of a page, by its id.
fn drawing<'p>(page: &'p str, id: &str) -> &'p str {
    let from = page
        .find(&format!("<svg id=\"{id}\""))
        .unwrap_or_else(|| panic!("{id}"));
    let to = page[from..].find("</svg>").expect("an end") + from;
    &page[from..to]
}

#[test]
fn loads_of_all_runs_are_told_beside_each_other() {
    let spread = |x: f64| Spread::of([Some(x)]);
    let run = |vcpus: u32, neighbours: f64| {
        let mut run = sharing();
        run.workload = format!("memcached in guest lc ({vcpus} vCPUs, 1 queues)");
        for policy in &mut run.policies {
            policy.curve = vec![CurvePoint {
                rate_per_s: 200.0,
                p95_us: None,
            }];
            let sharing = policy.sharing.as_mut().expect("sharing");
            sharing.guests[0].vcpus = vcpus;
        }
        run.policies[2].policy = "boost-4".to_owned();
        run.policies[2].figures.neighbour_throughput = spread(neighbours);
        let ours = run.policies[2].sharing.as_mut().expect("sharing");
        ours.scheduler = "io 3ms".to_owned();
        run
    };
    let (one, two) = (run(1, 0.99), run(2, 0.55));
    let page = render_all(&[&one, &two]);
    well_formed(&page).expect("well-formed");
    let p99 = drawing(&page, "loads-p99");
    for said in [
        "memcached, 1 vCPU, 200/s \u{b7} 4:1\neevdf: 4.50\u{d7}",
        "memcached, 2 vCPU, 200/s \u{b7} 4:1\nboost-4: 1.50\u{d7}",
    ] {
        assert!(p99.contains(said), "{said}");
    }
    assert_eq!(
        p99.matches("class=\"mark\"").count(),
        6,
        "two loads under two schedulers, and these in the legend"
    );
    let neighbours = drawing(&page, "loads-neighbours");
    for said in ["boost-4: 0.90\u{d7}", "boost-4: 0.50\u{d7}"] {
        assert!(
            neighbours.contains(said),
            "{said}: of the kernel\u{2019}s 1.1"
        );
    }
    assert_eq!(
        drawing(&page, "loads-ops")
            .matches("class=\"mark\"")
            .count(),
        2,
        "what wasn\u{2019}t measured has no mark but the legend\u{2019}s"
    );
    assert!(
        !render(&one).contains("id=\"loads"),
        "one load is beside none"
    );
}

#[test]
fn how_guests_shared_cores_is_told_against_cores_of_their_own() {
    let page = render(&sharing());
    let drawing = |id: &str| drawing(&page, id);
    let p99 = drawing("sharing-p99");
    for said in [
        "4.50\u{d7}",
        "1.50\u{d7}",
        "boost \u{b7} 4:1",
        "eevdf: 9 ms, 4.50\u{d7} of alone",
    ] {
        assert!(p99.contains(said), "{said}");
    }
    assert!(drawing("sharing-p50").contains("not measured"));
    assert_eq!(
        drawing("sharing-fairness").matches("class=\"bar\"").count(),
        3
    );
    assert_eq!(
        drawing("sharing-fairness")
            .matches("class=\"reference\"")
            .count(),
        0
    );
    assert_eq!(
        drawing("sharing-neighbours")
            .matches("class=\"reference\"")
            .count(),
        1
    );
    let delays = drawing("sharing-delays");
    assert_eq!(
        delays.matches("class=\"line\"").count(),
        2,
        "one line, and its place in the legend"
    );
    assert!(delays.contains("80 % within 4"), "eight of ten");
    let shares = drawing("sharing-shares");
    assert_eq!(
        (
            shares.matches("class=\"stroke\"").count(),
            shares.matches("class=\"mark\"").count()
        ),
        (3, 3)
    );
}

#[test]
fn an_account_is_drawn_where_there_is_one() {
    let page = render(&sharing());
    assert_eq!(
        page.matches("class=\"guest loaded\"").count(),
        3,
        "each policy has its guests"
    );
    for line in [
        "account boosts",
        "account borrowed",
        "account paid",
        "account balance",
    ] {
        assert_eq!(
            page.matches(&format!("class=\"{line}\"")).count(),
            1,
            "{line}"
        );
    }
    let mut run = sharing();
    for policy in &mut run.policies {
        policy.sharing.as_mut().expect("sharing").timeline.clear();
    }
    assert!(
        !render(&run).contains("id=\"guests-"),
        "nothing was recorded"
    );
}
