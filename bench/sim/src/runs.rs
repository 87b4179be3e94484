//! What both programs that read runs ask of them, of the lab's and of simulated ones that were kept like these.

use std::path::Path;

use anyhow::{Context as _, Result};
use ostler_outcome::events::{Event, Stamped};
use ostler_sim::scenario;
use serde_json::Value;

/// What a run's host is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Host {
    /// What an instruction takes there, ns.
    pub instruction_ns: f64,
    /// Nobody is held up by being traced there.
    pub simulated: bool,
}

impl Host {
    pub fn of(run: &Path) -> Result<Host> {
        if let Some(simulated) = simulated(&run.join("events.jsonl"))? {
            return Ok(simulated);
        }
        let file = run.join("program.json");
        let text = std::fs::read_to_string(&file)
            .with_context(|| format!("could not read {}", file.display()))?;
        let program: Value = serde_json::from_str(&text)?;
        let ns = program["scenario"]["host"]["instruction_ns"].as_f64();
        Ok(Host {
            instruction_ns: ns.context("a run doesn't say what an instruction takes")?,
            simulated: false,
        })
    }
}

/// A simulated run's, by the scenario that it says it simulates; `None` where it is none.
fn simulated(events: &Path) -> Result<Option<Host>> {
    let text = std::fs::read_to_string(events)
        .with_context(|| format!("could not read {}", events.display()))?;
    // It is told before all that happens.
    for line in text.lines().take(3) {
        let Ok(Stamped { event, .. }) = serde_json::from_str(line) else {
            continue;
        };
        if let Event::Simulates { scenario, .. } = event {
            let scenario = scenario::parse(&scenario, events)?;
            return Ok(Some(Host {
                instruction_ns: scenario.host.instruction_ns,
                simulated: true,
            }));
        }
    }
    Ok(None)
}
