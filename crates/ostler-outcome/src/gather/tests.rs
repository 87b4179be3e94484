use ostler_model::{CpuSet, Groups, Plan};

use super::*;
use crate::testing::{UNIX_MS, UPTIME_MS, cell, scenario};

fn decided(index: u32, at_ms: u64, vcpu: u32, best_effort: u32) -> Stamped {
    let groups = Groups {
        vcpu: CpuSet::range(0, vcpu),
        nq: CpuSet::range(vcpu, vcpu + 1),
        best_effort: CpuSet::range(3 - best_effort, 3),
        ..Groups::default()
    };
    let plan = Plan {
        groups,
        ..Plan::default()
    };
    let record = serde_json::json!({"wall": (UNIX_MS + at_ms) * 1_000_000, "plan": plan, "reasons": [{"text": "because"}]});
    Stamped {
        t_ms: 0,
        event: Event::Steward {
            cell: index,
            record,
        },
    }
}

#[test]
fn rounds_become_spreads_and_failed_ones_are_left_out() {
    let events = [
        cell(0, "vanilla", [500.0, 900.0], &[]),
        cell(1, "vanilla", [700.0, 1200.0], &[]),
        cell(2, "vanilla", [1.0, 1.0], &["a guest died"]),
    ]
    .concat();
    let all = summaries(&scenario(), &events);
    let vanilla = &all[0].run.policies[0];
    let line = vanilla.figures.line("vanilla");
    assert_eq!(line.p95_us, Some(825.0), "the median of 700 and 950");
    assert_eq!(line.slo_met_share, Some(0.75));
    assert_eq!(
        line.max_rate_under_slo,
        Some(150.0),
        "200 in one round, 100 in the other"
    );
    assert_eq!(
        line.core_seconds,
        Some(6.0),
        "three shared cores for two seconds"
    );
    assert_eq!(line.be_core_seconds, Some(3.0));
    assert_eq!(line.migrations_per_s, Some(4.0));
    assert_eq!(line.irqs_per_s, Some(4.0));
    assert_eq!(line.kvm_exits_per_s, Some(50.0));
    let work = BTreeMap::from([("be".to_owned(), 5.25)]);
    assert_eq!(
        all[0].lines()[0].work_per_s,
        work,
        "10 and 11 in two seconds"
    );
    assert_eq!(
        vanilla
            .curve
            .iter()
            .map(|p| p.rate_per_s)
            .collect::<Vec<_>>(),
        [100.0, 200.0]
    );
    assert_eq!(
        all[0].run.policies[1].figures,
        Figures::default(),
        "what did not run is not zero"
    );
}

#[test]
fn who_bears_none_of_the_loads_bears_nothing() {
    let events = cell(0, "vanilla", [1100.0, 1200.0], &[]);
    let all = summaries(&scenario(), &events);
    let rate = |policy: usize| {
        let figures = &all[0].run.policies[policy].figures;
        figures.line("any").max_rate_under_slo
    };
    assert_eq!(rate(0), Some(0.0));
    assert_eq!(rate(1), None, "this one wasn't loaded at all");
}

#[test]
fn who_is_asked_nothing_bears_no_rate() {
    let mut events = cell(0, "vanilla", [1100.0, 1200.0], &[]);
    for stamped in &mut events {
        if let Event::Load { line, .. } = &mut stamped.event {
            line["rate_per_s"] = 0.0.into();
        }
    }
    let all = summaries(&scenario(), &events);
    let figures = &all[0].run.policies[0].figures;
    assert_eq!(figures.line("any").max_rate_under_slo, None);
}

#[test]
fn a_stewards_plans_say_who_held_the_cores() {
    let mut events = cell(0, "ours", [500.0, 900.0], &[]);
    let end = events.pop().expect("an end");
    events.push(decided(0, 0, 1, 1));
    events.push(decided(0, 1500, 2, 0));
    let frozen = |t_ms, frozen| Stamped {
        t_ms,
        event: Event::Sample {
            cell: Some(0),
            busy: vec![],
            guests: vec![GuestSample {
                name: "be".into(),
                cpu_ms: 0,
                cpus: CpuSet::EMPTY,
                frozen,
                idle: false,
                work: None,
            }],
        },
    };
    events.extend([
        frozen(UPTIME_MS + 500, true),
        frozen(UPTIME_MS + 1500, false),
    ]);
    events.push(end);
    let all = summaries(&scenario(), &events);
    let ours = &all[0].run.policies[1];
    assert_eq!(ours.family, Family::Ostler);
    let line = ours.figures.line("ours");
    assert_eq!(
        line.core_seconds,
        Some(4.5),
        "two cores for 1.5 s, three for 0.5 s"
    );
    let timeline = ours.timeline.as_ref().expect("a timeline");
    let second = timeline.samples[1].cores.expect("cores");
    assert!((second.vcpu - 1.5).abs() < 1e-9 && (second.be - 0.5).abs() < 1e-9);
    assert_eq!(timeline.decisions.len(), 2);
    assert_eq!(
        timeline.decisions[1].what,
        "vCPU 1 \u{2192} 2, best-effort 1 \u{2192} 0"
    );
    let did = &all[0].behaviour[1];
    assert_eq!((did.vcpu_cores_min, did.vcpu_cores_max), (Some(1), Some(2)));
    assert_eq!((did.plan_changes, did.be_cores_s), (2, 1.5));
    assert_eq!(timeline.be_suspended.len(), 1);
    assert!((timeline.be_suspended[0].to_s - 1.5).abs() < 1e-9);
}
