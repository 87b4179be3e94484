//! CPS, figure 8.

use anyhow::Result;

use crate::figure::{Case, Run};
use crate::simulated::Simulated;

/// Threads, and what each computes in a round: the program's size is fixed.
const THREADS: [(u32, &str); 3] = [(8, "2000us"), (32, "500us"), (128, "125us")];

pub fn cases(run: Run) -> Result<Vec<Case>> {
    let rounds = |scenario: &str, (threads, part): (u32, &str), wakeups: &str| {
        let scenario = scenario
            .replace(
                "threads = 32, compute",
                &format!("threads = {threads}, compute"),
            )
            .replace("\"500us\"", &format!("\"{part}\""))
            .replace("\"pload\"", &format!("\"{wakeups}\""));
        Simulated::new(&scenario, 12, run)?.work(0, "hints", "parsec")
    };
    let mut cases = Vec::new();
    for (name, scenario) in [
        ("alone", include_str!("alone.toml")),
        ("over-committed", include_str!("scenario.toml")),
    ] {
        for threads in THREADS {
            let ours = rounds(scenario, threads, "pload")?;
            for baseline in ["pvm", "hvm"] {
                cases.push(Case {
                    name: format!(
                        "{name}, {} threads, Pload beside {}",
                        threads.0,
                        baseline.to_uppercase()
                    ),
                    ours: ours.clone(),
                    baseline: rounds(scenario, threads, baseline)?,
                });
            }
        }
    }
    Ok(cases)
}
