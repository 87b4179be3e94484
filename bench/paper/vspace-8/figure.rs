//! vSPACE, figure 8.

use anyhow::Result;

use crate::figure::{Case, Run};
use crate::simulated::{Simulated, median};

pub fn cases(run: Run) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for (workload, scenario) in [
        ("memcached", include_str!("scenario.toml")),
        ("nginx", include_str!("nginx.toml")),
    ] {
        let world = Simulated::new(scenario, 2, run)?;
        let most = |policy| world.of(0, policy, median!(max_rate_under_slo));
        for (name, ours, baseline) in [
            ("P beside 20vCPU-20NQ", "vspace-p", "20vcpu-20nq"),
            ("E beside 20vCPU-20NQ", "vspace-e", "20vcpu-20nq"),
            ("P beside CoreNap", "vspace-p", "corenap"),
            ("P beside 20vCPU-1NQ", "vspace-p", "20vcpu-1nq"),
        ] {
            cases.push(Case {
                name: format!("{workload}, {name}"),
                ours: most(ours)?,
                baseline: most(baseline)?,
            });
        }
    }
    Ok(cases)
}
