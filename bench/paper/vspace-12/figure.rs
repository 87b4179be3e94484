//! vSPACE, figure 12.

use anyhow::Result;

use crate::figure::{Case, Run};
use crate::simulated::{Simulated, held, mean, median, seconds_at};

const E: &str = "vspace-e";
const BASELINES: [(&str, &str); 3] = [
    ("P", "vspace-p"),
    ("CoreNap", "corenap"),
    ("20vCPU-20NQ", "20vcpu-20nq"),
];

/// The two higher loads are come to by steps, as no policy is told beforehand.
fn to(kqps: u32) -> &'static str {
    if kqps > 50 { "up to" } else { "at" }
}

pub fn cases(run: Run) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    let memcached = Simulated::new(include_str!("scenario.toml"), 3, run)?;
    let nginx = Simulated::new(include_str!("nginx.toml"), 3, run)?;
    for (workload, world, loads) in [
        ("memcached", &memcached, [50, 150, 250].as_slice()),
        ("nginx", &nginx, &[50, 150]),
    ] {
        for (load, kqps) in loads.iter().enumerate() {
            for (name, baseline) in BASELINES {
                // The paper tells of time sharing at the one load that it bears there.
                if name == "20vCPU-20NQ" && (workload, *kqps) != ("memcached", 50) {
                    continue;
                }
                cases.push(Case {
                    name: format!("{workload} {} {kqps} KQPS, E beside {name}", to(*kqps)),
                    ours: world.of(load, E, median!(energy_j))?,
                    baseline: world.of(load, baseline, median!(energy_j))?,
                });
            }
        }
    }
    let cores = |policy| {
        memcached.of(0, policy, |summary| {
            mean(&seconds_at(summary, 5e4), |second| second.cores.map(held))
        })
    };
    cases.push(Case {
        name: "memcached at 50 KQPS, cores, E beside CoreNap".to_owned(),
        ours: cores(E)?,
        baseline: cores("corenap")?,
    });
    Ok(cases)
}
