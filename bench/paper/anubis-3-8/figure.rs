//! Anubis, figure 3.8.

use anyhow::Result;

use crate::figure::{Case, Run};
use crate::simulated::{Simulated, median};

const RATES: [u32; 2] = [12000, 24000];
const NEIGHBOURS: [&str; 3] = ["be-1", "be-2", "be-3"];

pub fn cases(run: Run) -> Result<Vec<Case>> {
    let world = Simulated::new(include_str!("scenario.toml"), 3, run)?;
    let mut cases = Vec::new();
    for ratio in [2, 4] {
        for (load, rate) in RATES.into_iter().enumerate() {
            let error = |policy: &str| {
                world.of(
                    load,
                    &format!("{policy}-{ratio}"),
                    median!(fairness_error_10s),
                )
            };
            let p95 =
                |policy: &str| world.of(load, &format!("{policy}-{ratio}"), median!(cell_p95_us));
            let work = |policy: &str| -> Result<Vec<f64>> {
                let policy = format!("{policy}-{ratio}");
                let mut sum = world.work(load, &policy, NEIGHBOURS[0])?;
                for neighbour in &NEIGHBOURS[1..] {
                    let more = world.work(load, &policy, neighbour)?;
                    sum.iter_mut()
                        .zip(more)
                        .for_each(|(sum, more)| *sum += more);
                }
                Ok(sum)
            };
            let mut case = |what: &str, ours, baseline| {
                cases.push(Case {
                    name: format!("{ratio}:1, {rate} requests/s, {what}"),
                    ours,
                    baseline,
                });
            };
            for (beside, baseline) in [("burst", "burst"), ("the kernel's", "eevdf")] {
                let name = format!("fairness error in 10 s beside {beside}");
                case(&name, error("boost")?, error(baseline)?);
                let name = format!("P95 beside {beside}");
                case(&name, p95("boost")?, p95(baseline)?);
            }
            let burst = work("burst")?;
            case(
                "neighbours' work, boost beside burst",
                work("boost")?,
                burst.clone(),
            );
            case(
                "neighbours' work, burst beside the kernel's",
                burst,
                work("eevdf")?,
            );
        }
    }
    Ok(cases)
}
