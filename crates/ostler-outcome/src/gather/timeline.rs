//! One round second by second: what clients felt, who held the cores, when best-effort guests were suspended, and what
//! was decided. Three clocks meet here: the load's (from its start), the host's uptime (events), and Unix time (the
//! steward's record); each is brought to the first.

use ostler_model::{Class, Groups, Plan, RunState};
use serde::Deserialize;

use super::{Behaviour, Seen};
use crate::report::{Cores, Decision, Interval, Sample, Spread, Timeline};
use ostler_scenario::{Policy, Scenario};

/// A change of plan, as `ostler explain --json` tells it.
#[derive(Debug, Deserialize)]
pub struct Decided {
    /// Unix time in nanoseconds.
    wall: u64,
    plan: Plan,
    reasons: Vec<Sentence>,
}

#[derive(Debug, Deserialize)]
struct Sentence {
    text: String,
}

impl Seen<'_> {
    /// Unix time to the load's clock.
    pub(super) fn load_s_of_unix(&self, unix_ms: f64) -> f64 {
        let from = self.load_from_ms.map_or(0.0, |ms| ms as f64);
        (unix_ms - from) / 1e3
    }

    pub(super) fn load_s_of_uptime(&self, t_ms: u64) -> f64 {
        self.load_s_of_unix((t_ms.cast_signed() + self.offset_ms) as f64)
    }

    /// The plans that were in force under load.
    pub(super) fn plans_under_load(&self) -> impl Iterator<Item = &Plan> {
        let plans = self.plans();
        let ends: Vec<f64> = plans.iter().skip(1).map(|(since, _)| *since).collect();
        let ends = ends.into_iter().chain([f64::INFINITY]);
        let spans = plans.into_iter().zip(ends);
        spans
            .filter(|((since, _), until)| *since < self.load_s() && *until > 0.0)
            .map(|((_, decided), _)| &decided.plan)
    }

    /// Plans with the time each came into force, on the load's clock.
    fn plans(&self) -> Vec<(f64, &Decided)> {
        self.decided
            .iter()
            .map(|decided| (self.load_s_of_unix(decided.wall as f64 / 1e6), decided))
            .collect()
    }
}

/// How many cores each group holds under a plan.
fn cores_of(groups: &Groups) -> Cores {
    let len = |set: &ostler_model::CpuSet| f64::from(set.len());
    if groups.shared {
        return Cores {
            shared: len(&groups.vcpu.union(&groups.nq)),
            be: len(&groups.best_effort),
            idle: len(&groups.idle),
            ..Cores::default()
        };
    }
    Cores {
        vcpu: len(&groups.vcpu),
        nq: len(&groups.nq),
        shared: 0.0,
        be: len(&groups.best_effort),
        idle: len(&groups.idle),
    }
}

/// The mean number of cores held between two times. `None` while a steward has not decided yet.
fn cores_between(
    scenario: &Scenario,
    policy: &Policy,
    plans: &[(f64, &Decided)],
    from: f64,
    to: f64,
) -> Option<Cores> {
    if policy.steward.is_none() {
        // Everything floats over everything.
        return Some(Cores {
            shared: f64::from(scenario.host.under_test.len()),
            ..Cores::default()
        });
    }
    let mut sum = Cores::default();
    let mut known = 0.0;
    for (at, (since, decided)) in plans.iter().enumerate() {
        let until = plans.get(at + 1).map_or(f64::INFINITY, |(next, _)| *next);
        let seconds = until.min(to) - since.max(from);
        if seconds > 0.0 {
            let cores = cores_of(&decided.plan.groups);
            known += seconds;
            sum.vcpu += cores.vcpu * seconds;
            sum.nq += cores.nq * seconds;
            sum.shared += cores.shared * seconds;
            sum.be += cores.be * seconds;
            sum.idle += cores.idle * seconds;
        }
    }
    (known > 0.0).then(|| Cores {
        vcpu: sum.vcpu / known,
        nq: sum.nq / known,
        shared: sum.shared / known,
        be: sum.be / known,
        idle: sum.idle / known,
    })
}

/// Cores held by vCPUs and queues, integrated over the load.
pub fn core_seconds(scenario: &Scenario, policy: &Policy, seen: &Seen<'_>) -> f64 {
    let (plans, seconds) = (seen.plans(), seen.load_s());
    cores_between(scenario, policy, &plans, 0.0, seconds)
        .map_or(0.0, |c| (c.vcpu + c.nq + c.shared) * seconds)
}

/// What the round's plans did under load.
pub fn behaviour(seen: &Seen<'_>) -> Behaviour {
    let plans = seen.plans();
    let tap = |read: fn(&(f64, f64)) -> f64| {
        Spread::of(seen.tap_us.iter().map(|period| Some(read(period)))).map(|spread| spread.median)
    };
    let mut behaviour = Behaviour {
        tap_periods: u32::try_from(seen.tap_us.len()).unwrap_or(u32::MAX),
        tap_p50_us: tap(|period| period.0),
        tap_p95_us: tap(|period| period.1),
        ..Behaviour::default()
    };
    for (at, (since, decided)) in plans.iter().enumerate() {
        let until = plans.get(at + 1).map_or(f64::INFINITY, |(next, _)| *next);
        let seconds = until.min(seen.load_s()) - since.max(0.0);
        if seconds > 0.0 {
            let suspends = decided
                .plan
                .guests
                .iter()
                .any(|g| g.run == RunState::Suspended);
            behaviour.saw(&decided.plan.groups, suspends, seconds);
        }
    }
    behaviour
}

/// The round's timeline.
pub fn of(scenario: &Scenario, policy: &Policy, seen: &Seen<'_>) -> Timeline {
    let plans = seen.plans();
    let samples = seen
        .windows
        .iter()
        .map(|window| Sample {
            t_s: window.start_s,
            offered_per_s: Some(window.rate_per_s),
            completed_per_s: (window.seconds > 0.0)
                .then(|| window.figures.completed as f64 / window.seconds),
            p95_us: window.figures.p95_us,
            cores: cores_between(
                scenario,
                policy,
                &plans,
                window.start_s,
                window.start_s + window.seconds,
            ),
        })
        .collect();
    Timeline {
        round: seen.cell.round,
        samples,
        be_suspended: suspended(scenario, seen),
        decisions: decisions(seen, &plans),
    }
}

/// When any best-effort guest was frozen, as sampled once a second.
fn suspended(scenario: &Scenario, seen: &Seen<'_>) -> Vec<Interval> {
    let best_effort: Vec<&str> = scenario
        .guests
        .iter()
        .filter(|g| g.class == Class::BestEffort)
        .map(|g| g.name.as_str())
        .collect();
    let mut intervals: Vec<Interval> = Vec::new();
    let mut was = false;
    for (t_ms, guests) in &seen.samples {
        let t_s = seen.load_s_of_uptime(*t_ms).clamp(0.0, seen.load_s());
        let frozen = guests
            .iter()
            .any(|g| g.frozen && best_effort.contains(&g.name.as_str()));
        match (frozen, was, intervals.last_mut()) {
            (true, false, _) => intervals.push(Interval {
                from_s: t_s,
                to_s: t_s,
            }),
            (_, true, Some(last)) => last.to_s = t_s,
            _ => {}
        }
        was = frozen;
    }
    intervals.retain(|i| i.to_s > i.from_s);
    intervals
}

/// What changed at each decision during the load, and why.
fn decisions(seen: &Seen<'_>, plans: &[(f64, &Decided)]) -> Vec<Decision> {
    let mut decisions = Vec::new();
    let mut before: Option<&Plan> = None;
    for (t_s, decided) in plans {
        let what = change(before, &decided.plan);
        before = Some(&decided.plan);
        if *t_s <= seen.load_s() && !what.is_empty() {
            decisions.push(Decision {
                t_s: t_s.max(0.0),
                what,
                reasons: decided.reasons.iter().map(|r| r.text.clone()).collect(),
            });
        }
    }
    decisions
}

/// A change of plan in a few words.
fn change(before: Option<&Plan>, now: &Plan) -> String {
    type Read = fn(&Cores) -> f64;
    let cores = cores_of(&now.groups);
    let then = before.map(|plan| cores_of(&plan.groups));
    let groups: [(&str, Read); 5] = [
        ("vCPU", |c| c.vcpu),
        ("queues", |c| c.nq),
        ("shared", |c| c.shared),
        ("best-effort", |c| c.be),
        ("idle", |c| c.idle),
    ];
    let mut words = Vec::new();
    for (name, read) in groups {
        match then.as_ref().map(read) {
            None if read(&cores) > 0.0 => words.push(format!("{name} {}", read(&cores))),
            Some(then) if (then - read(&cores)).abs() > f64::EPSILON => {
                words.push(format!("{name} {then} \u{2192} {}", read(&cores)));
            }
            _ => {}
        }
    }
    for guest in &now.guests {
        let then = before.and_then(|plan| plan.guest(&guest.guest));
        if let Some(then) = then
            && then.run != guest.run
        {
            let verb = match guest.run {
                RunState::Running => "resume",
                RunState::Suspended => "suspend",
            };
            words.push(format!("{verb} {}", guest.guest));
        }
    }
    words.join(", ")
}
