//! Anubis, figures 3.9 and 3.10.

use anyhow::Result;

use crate::figure::{Case, Run};
use crate::simulated::{Simulated, median};

const RATES: [u32; 3] = [4000, 8000, 12000];
const NEIGHBOURS: [&str; 3] = ["be-1", "be-2", "be-3"];

pub fn cases(run: Run) -> Result<Vec<Case>> {
    let world = Simulated::new(include_str!("scenario.toml"), 3, run)?;
    let mut cases = Vec::new();
    for ratio in [2, 4] {
        let (boost, eevdf) = (format!("boost-{ratio}"), format!("eevdf-{ratio}"));
        for (load, rate) in RATES.into_iter().enumerate() {
            let error = |policy: &str| world.of(load, policy, median!(fairness_error_10s));
            let p95 = |policy: &str| world.of(load, policy, median!(cell_p95_us));
            let work = |policy: &str| -> Result<Vec<f64>> {
                let mut sum = world.work(load, policy, NEIGHBOURS[0])?;
                for neighbour in &NEIGHBOURS[1..] {
                    let more = world.work(load, policy, neighbour)?;
                    sum.iter_mut()
                        .zip(more)
                        .for_each(|(sum, more)| *sum += more);
                }
                Ok(sum)
            };
            for (name, ours, baseline) in [
                ("fairness error in 10 s", error(&boost)?, error(&eevdf)?),
                ("P95", p95(&boost)?, p95(&eevdf)?),
                ("neighbours' work", work(&boost)?, work(&eevdf)?),
            ] {
                cases.push(Case {
                    name: format!("{ratio}:1, {name} at {rate} requests/s"),
                    ours,
                    baseline,
                });
            }
        }
    }
    Ok(cases)
}
