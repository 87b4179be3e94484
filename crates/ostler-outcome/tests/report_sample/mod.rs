//! A made-up run that looks like a real one: an arithmetic toy of a queue under nine policies. It says nothing about any policy; it is
//! there to have something to draw, with gaps, hostile names and all.

use ostler_outcome::report::{
    Clock, Cores, CurvePoint, Decision, Family, Figures, Host, Interval, PolicyLine, PolicySummary,
    RunSummary, Sample, Spread, Timeline,
};

const CORES: f64 = 6.0;
const ROUNDS: u32 = 5;
/// Requests per second that one core can carry.
const PER_VCPU: f64 = 3_000.0;
const PER_NQ: f64 = 5_200.0;

/// A number of 0..1 that depends on its arguments alone.
fn noise(a: u64, b: u64) -> f64 {
    let mut x = a.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ b.wrapping_mul(0xd1b5_4a32_d192_ed03);
    x ^= x >> 29;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^= x >> 32;
    (x >> 11) as f64 / (1_u64 << 53) as f64
}

#[derive(Clone, Copy)]
enum Kind {
    Shared {
        queues: f64,
    },
    Static {
        nq: f64,
    },
    Dynamic {
        idle_to_be: bool,
        spread: bool,
        overhead: f64,
    },
}

struct Toy {
    name: &'static str,
    about: &'static str,
    family: Family,
    kind: Kind,
}

fn toys() -> Vec<Toy> {
    let base = |name, about, kind| Toy {
        name,
        about,
        family: Family::Baseline,
        kind,
    };
    let ours = |name, about, kind| Toy {
        name,
        about,
        family: Family::Ostler,
        kind,
    };
    let dynamic = |idle_to_be, spread, overhead| Kind::Dynamic {
        idle_to_be,
        spread,
        overhead,
    };
    vec![
        base(
            "6vCPU-6NQ",
            "time-sharing, one queue per core",
            Kind::Shared { queues: 6.0 },
        ),
        base(
            "6vCPU-1NQ",
            "time-sharing, one queue",
            Kind::Shared { queues: 1.0 },
        ),
        base(
            "static-4-2",
            "four vCPU cores, two for queues",
            Kind::Static { nq: 2.0 },
        ),
        base(
            "static-5-1",
            "five vCPU cores, one for queues",
            Kind::Static { nq: 1.0 },
        ),
        base(
            "corenap-like",
            "dynamic, shared cores",
            dynamic(false, false, 1.35),
        ),
        base(
            "demeter-like",
            "best effort by vCPU time only",
            dynamic(true, false, 1.28),
        ),
        ours(
            "vspace-p",
            "all cores, split by demand",
            dynamic(false, true, 1.0),
        ),
        ours(
            "vspace-e",
            "as few cores as the objective allows",
            dynamic(false, false, 1.0),
        ),
        ours(
            "vspace-r",
            "idle cores go to best effort",
            dynamic(true, false, 1.02),
        ),
    ]
}

/// Who holds the cores, and the P95, at an offered load.
fn at_load(kind: Kind, rate: f64, jitter: f64) -> (Cores, f64) {
    let need_vcpu = rate / PER_VCPU;
    let need_nq = rate / PER_NQ;
    let latency =
        |busy: f64| 180.0 * (0.85 + 0.3 * jitter) * (1.0 + 0.9 * busy / (1.0 - busy.min(0.975)));
    match kind {
        Kind::Shared { queues } => {
            let busy = ((need_vcpu + need_nq) * 1.45 / CORES).max(need_nq * 1.3 / queues);
            (
                Cores {
                    shared: CORES,
                    ..Cores::default()
                },
                latency(busy) * 1.4,
            )
        }
        Kind::Static { nq } => {
            let busy = (need_nq / nq).max(need_vcpu / (CORES - nq));
            (
                Cores {
                    vcpu: CORES - nq,
                    nq,
                    ..Cores::default()
                },
                latency(busy),
            )
        }
        Kind::Dynamic {
            idle_to_be,
            spread,
            overhead,
        } => {
            let (need_vcpu, need_nq) = (need_vcpu * overhead, need_nq * overhead);
            let threshold = if spread { 0.6 } else { 0.72 };
            let mut vcpu = (need_vcpu / threshold).ceil().max(1.0);
            let mut nq = (need_nq / threshold).ceil().max(1.0);
            if spread || vcpu + nq > CORES {
                vcpu = (CORES * need_vcpu / (need_vcpu + need_nq))
                    .round()
                    .clamp(1.0, CORES - 1.0);
                nq = CORES - vcpu;
            }
            let rest = CORES - vcpu - nq;
            let (be, idle) = if idle_to_be { (rest, 0.0) } else { (0.0, rest) };
            (
                Cores {
                    vcpu,
                    nq,
                    be,
                    idle,
                    shared: 0.0,
                },
                latency((need_vcpu / vcpu).max(need_nq / nq)),
            )
        }
    }
}

fn offered(second: u32) -> f64 {
    let step = f64::from(second / 6);
    800.0 + 720.0 * if step < 10.0 { step } else { 19.0 - step }
}

fn timeline(toy: &Toy, seed: u64) -> Timeline {
    let mut timeline = Timeline {
        round: 3,
        ..Timeline::default()
    };
    let mut before: Option<Cores> = None;
    for second in 0..120 {
        let load = offered(second);
        let jitter = noise(seed, u64::from(second));
        let (cores, p95) = at_load(toy.kind, load * (0.96 + 0.08 * jitter), jitter);
        let t_s = f64::from(second);
        // Some seconds weren't measured: those must be gaps.
        let unmeasured = toy.name == "vspace-e" && (70..75).contains(&second);
        timeline.samples.push(Sample {
            t_s,
            offered_per_s: Some(load),
            completed_per_s: (!unmeasured)
                .then_some(load * (0.98 + 0.02 * jitter) * (1_200.0 / p95).clamp(0.8, 1.0)),
            p95_us: (!unmeasured).then_some(p95),
            cores: (!unmeasured).then_some(cores),
        });
        let suspended = matches!(
            toy.kind,
            Kind::Dynamic {
                idle_to_be: true,
                ..
            }
        ) && cores.be < 0.5;
        if suspended {
            match timeline.be_suspended.last_mut() {
                Some(last) if (last.to_s - t_s).abs() < 0.01 => last.to_s = t_s + 1.0,
                _ => timeline.be_suspended.push(Interval {
                    from_s: t_s,
                    to_s: t_s + 1.0,
                }),
            }
        }
        if let Some(before) =
            before.filter(|b| *b != cores && matches!(toy.kind, Kind::Dynamic { .. }))
        {
            timeline.decisions.push(decision(t_s, before, cores, load));
        }
        before = Some(cores);
    }
    timeline
}

fn decision(t_s: f64, before: Cores, after: Cores, rate: f64) -> Decision {
    Decision {
        t_s,
        what: format!("vCPU {} \u{2192} {}, NQ {} \u{2192} {}, BE {} \u{2192} {}", before.vcpu, after.vcpu, before.nq, after.nq, before.be, after.be),
        reasons: vec![
            format!("vCPU cores busy {:.2} of {}; required at threshold 0.72: {:.0}", rate / PER_VCPU, before.vcpu, after.vcpu),
            format!("NQ cores busy {:.2} of {}; required at threshold 0.72: {:.0}", rate / PER_NQ, before.nq, after.nq),
            "turned down: keeping the split, P95 of <guest \"mc&1\"> was expected over the objective".to_owned(),
        ],
    }
}

fn summary(toy: &Toy, seed: u64) -> PolicySummary {
    let round = |round: u32| {
        let wobble = |k: u64| 0.96 + 0.08 * noise(seed * 31 + k, u64::from(round));
        let seconds: Vec<(Cores, f64)> = (0..120)
            .map(|s| {
                at_load(
                    toy.kind,
                    offered(s) * wobble(1),
                    noise(seed + u64::from(round) * 977, u64::from(s)),
                )
            })
            .collect();
        let mut p95s: Vec<f64> = seconds.iter().map(|s| s.1).collect();
        p95s.sort_by(f64::total_cmp);
        let met = p95s.iter().filter(|p| **p <= 1_000.0).count();
        let held: f64 = seconds.iter().map(|(c, _)| c.vcpu + c.nq + c.shared).sum();
        let sharing = match toy.kind {
            Kind::Shared { queues } => 1.0 - (6.0 - queues) * 0.02,
            Kind::Static { .. } => 0.62,
            Kind::Dynamic { spread: true, .. } => 0.58,
            Kind::Dynamic { overhead, .. } => 0.28 * overhead * overhead * overhead,
        };
        let highest = (1..200)
            .map(|k| f64::from(k) * 50.0)
            .take_while(|r| at_load(toy.kind, *r * wobble(2), 0.5).1 <= 1_000.0)
            .last();
        PolicyLine {
            policy: toy.name.to_owned(),
            max_rate_under_slo: highest,
            slo_met_share: Some(met as f64 / 120.0),
            core_seconds: Some(held),
            p50_us: Some(p95s[60] * 0.42),
            p95_us: Some(p95s[60]),
            p99_us: Some(p95s[114]),
            ctx_switches_per_s: Some(21_400.0 * sharing * wobble(3)),
            migrations_per_s: Some(if sharing < 0.7 { 4.0 } else { 1_310.0 } * sharing * wobble(4)),
            irqs_per_s: Some(9_800.0 * sharing.sqrt() * wobble(5)),
            kvm_exits_per_s: (toy.name != "static-5-1")
                .then_some(31_000.0 * sharing.powf(0.7) * wobble(6)),
            be_core_seconds: Some(seconds.iter().map(|(c, _)| c.be * 0.97).sum()),
            ..PolicyLine::default()
        }
    };
    let rounds: Vec<PolicyLine> = (0..ROUNDS).map(round).collect();
    let point = |k: u32| {
        let rate_per_s = f64::from(k) * 600.0;
        let rounds = (0..ROUNDS).map(|r| {
            let (_, p95) = at_load(
                toy.kind,
                rate_per_s * (0.97 + 0.06 * noise(seed, u64::from(r * 50 + k))),
                noise(seed, u64::from(k)),
            );
            Some(p95)
        });
        let measured = !(toy.name == "static-4-2" && k == 7);
        CurvePoint {
            rate_per_s,
            p95_us: Spread::of(rounds).filter(|_| measured),
        }
    };
    PolicySummary {
        policy: toy.name.to_owned(),
        about: toy.about.to_owned(),
        family: toy.family,
        figures: Figures::over_rounds(&rounds),
        curve: (1..=14).map(point).collect(),
        timeline: (toy.name != "static-5-1").then(|| timeline(toy, seed)),
        machine: None,
        sharing: None,
    }
}

/// The run.
pub fn sample() -> RunSummary {
    RunSummary {
        scenario: "vspace-ramp (synthetic sample)".to_owned(),
        description: "A ramp of requests up and down to guest <mc&1> while a best-effort guest wants every idle core. Made-up figures: they \
                      show what the report looks like, and nothing else."
            .to_owned(),
        revision: "0123abcd".to_owned(),
        started: "2026-01-01 00:00 UTC".to_owned(),
        host: Host {
            name: "emulated EPYC-v4".to_owned(),
            cores: 6,
            kernel: "Linux 7.3.4-cloud-amd64".to_owned(),
            hypervisor: "QEMU 10.0.2, TCG, nested SVM".to_owned(),
            instruction_ns: 1.0,
            part: None,
        },
        workload: "memcached, ETC-like, 30:1 gets to sets".to_owned(),
        rounds: ROUNDS,
        clock: Clock::Wall,
        slo_us: 1_000.0,
        baseline: "6vCPU-6NQ".to_owned(),
        policies: (1..).zip(toys()).map(|(seed, toy)| summary(&toy, seed)).collect(),
    }
}
