//! The JSON line of a policy, and whether a run showed what its scenario expects of it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Summary;
use crate::report::PolicyLine;
use ostler_scenario::Expectation;

/// A line of `ostler lab run --json`: a policy's medians over its rounds under a load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JsonLine {
    /// Its figures.
    #[serde(flatten)]
    pub line: PolicyLine,
    /// What was loaded.
    pub workload: String,
    /// Rounds that count.
    pub rounds: u32,
    /// Least and most of each figure that isn't the same in all of them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ranges: BTreeMap<String, [f64; 2]>,
    /// What its plans did.
    #[serde(flatten)]
    pub behaviour: Behaviour,
    /// What each guest that counts its work did in a second, in its own unit: rounds or blocks.
    #[serde(default)]
    pub work_per_s: BTreeMap<String, f64>,
}

/// What a policy's plans did while it was under load, over all rounds: firm on any machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Behaviour {
    /// Plans that asked for something new.
    pub plan_changes: u32,
    /// Time during which a best-effort guest was suspended.
    pub be_suspended_s: f64,
    /// Time during which best-effort guests had cores of their own.
    pub be_cores_s: f64,
    /// Fewest cores that network queues had.
    pub nq_cores_min: Option<u32>,
    /// Most cores that network queues had.
    pub nq_cores_max: Option<u32>,
    /// Fewest cores that vCPUs had.
    pub vcpu_cores_min: Option<u32>,
    /// Most cores that vCPUs had.
    pub vcpu_cores_max: Option<u32>,
    /// Periods in which the steward saw responses of the loaded guest on its tap.
    pub tap_periods: u32,
    /// Median over periods of the median of response times on the tap; of several rounds, the largest.
    pub tap_p50_us: Option<f64>,
    /// The same of the 95th percentile.
    pub tap_p95_us: Option<f64>,
}

impl Behaviour {
    /// Several rounds put together: sums, and the extremes of all.
    #[must_use]
    pub fn and(self, other: &Behaviour) -> Behaviour {
        let least = |a: Option<u32>, b: Option<u32>| [a, b].into_iter().flatten().min();
        let larger = |a: Option<f64>, b: Option<f64>| [a, b].into_iter().flatten().reduce(f64::max);
        Behaviour {
            tap_periods: self.tap_periods + other.tap_periods,
            tap_p50_us: larger(self.tap_p50_us, other.tap_p50_us),
            tap_p95_us: larger(self.tap_p95_us, other.tap_p95_us),
            plan_changes: self.plan_changes + other.plan_changes,
            be_suspended_s: self.be_suspended_s + other.be_suspended_s,
            be_cores_s: self.be_cores_s + other.be_cores_s,
            nq_cores_min: least(self.nq_cores_min, other.nq_cores_min),
            nq_cores_max: self.nq_cores_max.max(other.nq_cores_max),
            vcpu_cores_min: least(self.vcpu_cores_min, other.vcpu_cores_min),
            vcpu_cores_max: self.vcpu_cores_max.max(other.vcpu_cores_max),
        }
    }

    /// Adds a plan that was in force for some seconds.
    pub fn saw(&mut self, groups: &ostler_model::Groups, suspends: bool, seconds: f64) {
        let own = Behaviour {
            plan_changes: 1,
            be_suspended_s: if suspends { seconds } else { 0.0 },
            be_cores_s: if groups.best_effort.is_empty() || suspends {
                0.0
            } else {
                seconds
            },
            nq_cores_min: Some(groups.nq.len()),
            nq_cores_max: Some(groups.nq.len()),
            vcpu_cores_min: Some(groups.vcpu.len()),
            vcpu_cores_max: Some(groups.vcpu.len()),
            ..Behaviour::default()
        };
        *self = std::mem::take(self).and(&own);
    }
}

/// The figures that can be expected: every number of a JSON line, under its name there.
pub fn figure_names() -> Vec<String> {
    match serde_json::to_value(JsonLine::default()) {
        Ok(Value::Object(map)) => map
            .into_iter()
            .filter(|(_, value)| !value.is_string() && !value.is_object())
            .map(|(name, _)| name)
            .collect(),
        _ => Vec::new(),
    }
}

/// What was expected and didn't hold, in sentences; a figure that wasn't measured holds nothing.
pub fn unmet(expectations: &[Expectation], summaries: &[Summary]) -> Vec<String> {
    let mut unmet = Vec::new();
    for summary in summaries {
        let lines = summary.lines();
        for expected in expectations {
            if let Err(why) = holds(expected, &lines) {
                unmet.push(format!("{}: {why}", summary.run.workload));
            }
        }
    }
    unmet
}

fn holds(expected: &Expectation, lines: &[JsonLine]) -> Result<(), String> {
    let Expectation {
        figure,
        policy,
        of,
        of_figure,
        at_least,
        at_most,
        same_slo,
    } = expected;
    if let (true, Some(other)) = (same_slo, of) {
        let met = |policy| figure_of(lines, policy, "slo_met_share");
        if met(other)? < met(policy)? {
            return Ok(());
        }
    }
    let value = figure_of(lines, policy, figure)?;
    let unit_figure = of_figure.as_ref().unwrap_or(figure);
    let (unit, times) = match (of, of_figure) {
        (None, None) => (1.0, String::new()),
        (of, _) => {
            let other = of.as_ref().unwrap_or(policy);
            (
                figure_of(lines, other, unit_figure)?,
                format!(" times {unit_figure} of {other}"),
            )
        }
    };
    if let Some(least) = at_least
        && value < least * unit
    {
        return Err(format!(
            "{figure} of {policy} is {value:.3}, expected at least {least}{times} ({:.3})",
            least * unit
        ));
    }
    if let Some(most) = at_most
        && value > most * unit
    {
        return Err(format!(
            "{figure} of {policy} is {value:.3}, expected at most {most}{times} ({:.3})",
            most * unit
        ));
    }
    Ok(())
}

fn figure_of(lines: &[JsonLine], policy: &str, figure: &str) -> Result<f64, String> {
    let line = lines
        .iter()
        .find(|line| line.line.policy == policy)
        .ok_or_else(|| format!("policy {policy} did not run"))?;
    serde_json::to_value(line)
        .ok()
        .and_then(|value| value.get(figure)?.as_f64())
        .ok_or_else(|| format!("{figure} of {policy} was not measured"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines() -> Vec<JsonLine> {
        [("a", 6.0, 1.0), ("e", 5.0, 0.9), ("late", 7.0, 0.8)]
            .map(|(policy, core_seconds, met)| JsonLine {
                line: PolicyLine {
                    policy: policy.to_owned(),
                    core_seconds: Some(core_seconds),
                    slo_met_share: Some(met),
                    ..PolicyLine::default()
                },
                ..JsonLine::default()
            })
            .to_vec()
    }

    fn expect(figure: &str, of: Option<&str>, at_least: Option<f64>, at_most: Option<f64>) -> bool {
        expect_at(figure, of, at_least, at_most, false)
    }

    fn expect_at(
        figure: &str,
        of: Option<&str>,
        at_least: Option<f64>,
        at_most: Option<f64>,
        same_slo: bool,
    ) -> bool {
        let expected = Expectation {
            figure: figure.to_owned(),
            policy: "e".to_owned(),
            of: of.map(str::to_owned),
            of_figure: None,
            at_least,
            at_most,
            same_slo,
        };
        holds(&expected, &lines()).is_ok()
    }

    #[test]
    fn bounds_are_inclusive_and_in_the_others_unit() {
        assert!(expect("core_seconds", Some("a"), None, Some(0.9)));
        assert!(!expect("core_seconds", Some("a"), None, Some(0.8)));
        assert!(!expect("core_seconds", Some("a"), Some(0.9), None));
        assert!(expect("core_seconds", None, Some(5.0), Some(5.0)));
    }

    #[test]
    fn who_misses_the_objective_more_often_is_no_measure() {
        for (of, asked) in [("a", true), ("e", true), ("late", false)] {
            assert_eq!(
                expect_at("core_seconds", Some(of), Some(2.0), None, true),
                !asked
            );
            assert!(!expect_at("core_seconds", Some(of), Some(2.0), None, false));
        }
        assert!(!expect_at(
            "core_seconds",
            Some("absent"),
            Some(0.0),
            None,
            true
        ));
    }

    #[test]
    fn what_was_not_measured_holds_nothing() {
        assert!(!expect("p95_us", None, Some(0.0), None));
        assert!(!expect("core_seconds", Some("absent"), Some(0.0), None));
    }

    #[test]
    fn figures_have_the_names_of_the_json_line() {
        let names = figure_names();
        for name in ["core_seconds", "be_suspended_s", "nq_cores_max", "rounds"] {
            assert!(names.iter().any(|n| n == name), "{name} in {names:?}");
        }
        let others = ["policy", "workload", "work_per_s"];
        assert!(!names.iter().any(|n| others.contains(&n.as_str())));
    }
}
