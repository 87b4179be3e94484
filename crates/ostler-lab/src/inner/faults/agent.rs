//! Agents that misbehave: silent, slow, sending noise, lying. They wait in the guests, each on a port of its own.

use ostler_model::Class;
use serde_json::Value;

use super::guest::{guest, missed};
use super::{Ground, Verdict};

/// What is said of an agent that has never answered: there may be none.
const NONE: &str = "none";
/// Each evil agent's port, and what the steward may call it.
const EVILS: [(&str, u32, &[&str]); 4] = [
    ("silent", 1078, &[NONE, "silent"]),
    ("slow", 1079, &[NONE, "silent", "slow"]),
    ("random", 1080, &["lying"]),
    ("lying", 1081, &["lying"]),
];
/// Periods that are looked at.
const PERIODS: usize = 30;

/// The steward speaks with each: it is told for what it is, it is asked for nothing, and the loop goes on in time.
pub fn misbehaves(ground: &mut Ground<'_>, verdict: &mut Verdict) -> anyhow::Result<()> {
    let victim = ground.guest(Class::LatencyCritical)?.clone();
    let before = ground.found()?;
    for (kind, port, words) in EVILS {
        let steward = ground.start(&format!(
            "partition = {{ policy = \"energy\" }}\nagent = {{ port = {port} }}\n"
        ))?;
        let named = |period: &Value| {
            guest(period, &victim.name).map_or_else(String::new, |guest| word(&guest["agent"]))
        };
        steward.until(
            &format!("the {kind} agent to be known for what it is"),
            |period| words.contains(&named(period).as_str()),
        )?;
        let periods = steward.periods(PERIODS)?;
        let trusted = periods
            .iter()
            .filter(|period| named(period) == "healthy")
            .count();
        anyhow::ensure!(
            trusted == 0,
            "the {kind} agent was trusted in {trusted} of {PERIODS} periods"
        );
        let late = missed(&periods);
        anyhow::ensure!(
            late <= PERIODS as u64,
            "{late} periods were missed in {PERIODS} while the {kind} agent was there"
        );
        let planned = periods
            .last()
            .and_then(|period| guest(period, &victim.name))
            .is_some_and(|guest| !guest["vcpu_cpus"].is_null());
        anyhow::ensure!(planned, "{} is no longer planned for", victim.name);
        verdict
            .notes
            .push(format!("{kind}: {late} of {PERIODS} periods missed"));
        steward.end()?;
        ground.found()?.must_be(&before)?;
    }
    Ok(())
}

/// The name of an agent's health; some carry an explanation.
fn word(health: &Value) -> String {
    match health {
        Value::String(word) => word.clone(),
        Value::Object(with_reason) => with_reason.keys().next().cloned().unwrap_or_default(),
        _ => NONE.to_owned(),
    }
}
