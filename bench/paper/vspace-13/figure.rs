//! vSPACE, figure 13.

use anyhow::Result;

use crate::figure::{Case, Run};
use crate::simulated::{Simulated, mean, median, seconds_at};

const R: &str = "vspace-r";
const ONE: (&str, &str) = ("Demeter(1NQ)", "demeter-1nq");
const MANY: (&str, &str) = ("Demeter(20NQ)", "demeter-20nq");

/// The two higher loads are come to by steps, as no policy is told beforehand.
fn to(kqps: u32) -> &'static str {
    if kqps > 50 { "up to" } else { "at" }
}

pub fn cases(run: Run) -> Result<Vec<Case>> {
    let memcached = Simulated::new(include_str!("scenario.toml"), 3, run)?;
    let nginx = Simulated::new(include_str!("nginx.toml"), 3, run)?;
    let mut cases = Vec::new();
    let mut had = |workload: &str, world: &Simulated, load, kqps, (name, baseline)| {
        cases.push(Case {
            name: format!("{workload} {} {kqps} KQPS, R beside {name}", to(kqps)),
            ours: world.of(load, R, median!(be_core_seconds))?,
            baseline: world.of(load, baseline, median!(be_core_seconds))?,
        });
        anyhow::Ok(())
    };
    had("memcached", &memcached, 0, 50, ONE)?;
    had("memcached", &memcached, 0, 50, MANY)?;
    had("memcached", &memcached, 1, 150, MANY)?;
    had("nginx", &nginx, 0, 50, ONE)?;
    had("nginx", &nginx, 0, 50, MANY)?;
    for (workload, world, load, kqps) in
        [("memcached", &memcached, 2, 250), ("nginx", &nginx, 1, 150)]
    {
        let within = |policy| {
            world.of(load, policy, |summary| {
                let slo_us = if workload == "nginx" { 1e4 } else { 1e3 };
                let met = |p95: f64| f64::from(u8::from(p95 <= slo_us));
                let seconds = seconds_at(summary, f64::from(kqps) * 1e3);
                mean(&seconds, |second| second.p95_us.map(met))
            })
        };
        cases.push(Case {
            name: format!(
                "{workload} at {kqps} KQPS, seconds within the objective, R beside {}",
                MANY.0
            ),
            ours: within(R)?,
            baseline: within(MANY.1)?,
        });
    }
    cases.push(Case {
        name: format!("nginx at 50 KQPS, answers, R beside {}", ONE.0),
        ours: nginx.of(0, R, median!(ops_per_s))?,
        baseline: nginx.of(0, ONE.1, median!(ops_per_s))?,
    });
    let p95 = |policy| {
        memcached.of(0, policy, |summary| {
            mean(&seconds_at(summary, 5e4), |second| second.p95_us)
        })
    };
    cases.push(Case {
        name: format!("memcached at 50 KQPS, P95, R beside {}", MANY.0),
        ours: p95(R)?,
        baseline: p95(MANY.1)?,
    });
    Ok(cases)
}
