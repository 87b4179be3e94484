//! vFlowComb, figure 16.

use anyhow::{Context as _, Result};
use bench_harness::ns_per_call;
use bench_placement::World;
use ostler_policy::placement::{Placer, Policy, Settings};

use crate::figure::{Case, Run};

pub fn cases(run: Run) -> Result<Vec<Case>> {
    let runs = if run.quick { 1 } else { 21 };
    let world = World::new(128, 32);
    let (mut ours, mut baseline) = (Vec::new(), Vec::new());
    world.with(|problem| {
        let mut placer = Placer::default();
        placer
            .place(problem, Settings::default())
            .context("the bench's own world")?;
        for _ in 0..runs {
            for (policy, times) in [
                (Policy::Chains, &mut ours),
                (Policy::AllCores, &mut baseline),
            ] {
                let settings = Settings {
                    policy,
                    ..Settings::default()
                };
                times.push(
                    ns_per_call(20, || {
                        placer
                            .place(problem, settings)
                            .map(|placed| placed.slowdown)
                    }) / 1e6,
                );
            }
        }
        anyhow::Ok(())
    })?;
    Ok(vec![Case {
        name: "128 cores, 32 queues".to_owned(),
        ours,
        baseline,
    }])
}
