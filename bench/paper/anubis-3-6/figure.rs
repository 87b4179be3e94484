//! Anubis, figure 3.6.

use anyhow::Result;

use crate::figure::{Case, Run};
use crate::simulated::{Simulated, median};

const SERVERS: [&str; 3] = ["memcached", "nginx", "redis"];

pub fn cases(run: Run) -> Result<Vec<Case>> {
    let world = Simulated::new(include_str!("scenario.toml"), 3, run)?;
    let most = |server, policy: &str| world.of(server, policy, median!(max_rate_under_slo));
    let mut cases = Vec::new();
    for ratio in [2, 4] {
        let (boost, eevdf) = (format!("boost-{ratio}"), format!("eevdf-{ratio}"));
        let mut case = |name: &str, ours: Vec<f64>, baseline: Vec<f64>| {
            cases.push(Case {
                name: format!("{ratio}:1, {name}"),
                ours,
                baseline,
            });
        };
        for (at, server) in SERVERS.into_iter().enumerate() {
            case(server, most(at, &boost)?, most(at, &eevdf)?);
        }
        let disk = |policy: &str| world.work(SERVERS.len(), policy, "disk");
        case("disk", disk(&boost)?, disk(&eevdf)?);
        // Of each seed, the servers' mean by what they do alone.
        let of_alone = |policy: &str| -> Result<Vec<f64>> {
            let mut sum: Vec<f64> = Vec::new();
            for server in 0..SERVERS.len() {
                let rates = most(server, policy)?.into_iter();
                let shares = rates.zip(most(server, "alone")?);
                let shares = shares.map(|(rate, alone)| rate / alone / SERVERS.len() as f64);
                sum = match sum.as_slice() {
                    [] => shares.collect(),
                    _ => sum
                        .iter()
                        .zip(shares)
                        .map(|(sum, share)| sum + share)
                        .collect(),
                };
            }
            Ok(sum)
        };
        let (ours, kernels, alone) = (of_alone(&boost)?, of_alone(&eevdf)?, of_alone("alone")?);
        case(
            "mean of three servers, beside the kernel's",
            ours.clone(),
            kernels,
        );
        case("mean of three servers, beside alone", ours, alone);
    }
    Ok(cases)
}
