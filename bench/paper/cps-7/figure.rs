//! CPS, figure 7.

use anyhow::Result;

use crate::figure::{Case, Run};
use crate::simulated::Simulated;

pub fn cases(run: Run) -> Result<Vec<Case>> {
    let rounds = |scenario: &str, wakeups: &str| {
        let scenario = scenario.replace("\"pload\"", &format!("\"{wakeups}\""));
        Simulated::new(&scenario, 12, run)?.work(0, "hints", "parsec")
    };
    let mut cases = Vec::new();
    let alone = include_str!("alone.toml");
    for (name, scenario) in [
        ("alone", alone),
        ("over-committed", include_str!("scenario.toml")),
    ] {
        for baseline in ["pvm", "hvm"] {
            cases.push(Case {
                name: format!("{name}, Pload beside {}", baseline.to_uppercase()),
                ours: rounds(scenario, "pload")?,
                baseline: rounds(scenario, baseline)?,
            });
        }
    }
    let often = alone.replace(
        "[steward.hints]\n",
        "[steward.steward]\nperiod = \"10ms\"\n\n[steward.hints]\ninterval = \"10ms\"\n",
    );
    cases.push(Case {
        name: "alone, Pload told every 10 ms beside every 100 ms".to_owned(),
        ours: rounds(&often, "pload")?,
        baseline: rounds(alone, "pload")?,
    });
    Ok(cases)
}
