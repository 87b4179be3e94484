//! Anubis, figure 3.11.

use anyhow::Result;

use crate::figure::{Case, Run};
use crate::simulated::Simulated;

pub fn cases(run: Run) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for vcpus in [2, 4, 8] {
        let world = Simulated::new(&sized(include_str!("scenario.toml"), vcpus), 3, run)?;
        for ratio in [2, 4] {
            let read = |policy: &str| world.work(0, policy, "disk");
            let boost = format!("boost-{ratio}");
            for (name, baseline) in [
                ("the kernel's", format!("eevdf-{ratio}")),
                ("short turns", format!("short-{ratio}")),
                ("alone", "alone".to_owned()),
            ] {
                cases.push(Case {
                    name: format!("{vcpus} vCPUs, {ratio}:1, beside {name}"),
                    ours: read(&boost)?,
                    baseline: read(&baseline)?,
                });
            }
        }
    }
    Ok(cases)
}

/// The scenario, which is of four vCPUs, with so many to a guest, and cores in proportion.
fn sized(scenario: &str, vcpus: u32) -> String {
    let line = |line: &str| match line {
        "vcpus = 4" => format!("vcpus = {vcpus}"),
        "managed = \"0-15\"" => format!("managed = \"0-{}\"", 4 * vcpus - 1),
        "managed = \"0-7\"" => format!("managed = \"0-{}\"", 2 * vcpus - 1),
        "managed = \"0-3\"" => format!("managed = \"0-{}\"", vcpus - 1),
        other => other.to_owned(),
    };
    scenario.lines().map(|text| line(text) + "\n").collect()
}
