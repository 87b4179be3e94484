//! vSPACE, figure 14.

use anyhow::Result;
use ostler_outcome::report::PolicySummary;

use crate::figure::{Case, Run};
use crate::simulated::{Simulated, held, mean, median, seconds_at};

const TIME_SHARING: &str = "20vcpu-20nq";
const P: &str = "vspace-p";
const E: &str = "vspace-e";

pub fn cases(run: Run) -> Result<Vec<Case>> {
    let world = Simulated::new(include_str!("scenario.toml"), 2, run)?;
    let p95_at = |rate: f64| {
        move |policy: &PolicySummary| mean(&seconds_at(policy, rate), |second| second.p95_us)
    };
    let cores_at = |rate: f64| {
        move |policy: &PolicySummary| {
            mean(&seconds_at(policy, rate), |second| second.cores.map(held))
        }
    };
    let case = |name: &str, ours: Vec<f64>, baseline: Vec<f64>| Case {
        name: name.to_owned(),
        ours,
        baseline,
    };
    let within = |policy| world.of(0, policy, median!(slo_met_share));
    let energy = |policy| world.of(0, policy, median!(energy_j));
    Ok(vec![
        case(
            "seconds within the objective, P beside 20vCPU-20NQ",
            within(P)?,
            within(TIME_SHARING)?,
        ),
        case(
            "seconds within the objective, E beside 20vCPU-20NQ",
            within(E)?,
            within(TIME_SHARING)?,
        ),
        case(
            "P95 at 50 KQPS, P beside E",
            world.of(0, P, p95_at(5e4))?,
            world.of(0, E, p95_at(5e4))?,
        ),
        case(
            "P95 at 250 KQPS, P beside 20vCPU-20NQ",
            world.of(0, P, p95_at(25e4))?,
            world.of(0, TIME_SHARING, p95_at(25e4))?,
        ),
        case(
            "energy, E beside 20vCPU-20NQ",
            energy(E)?,
            energy(TIME_SHARING)?,
        ),
        case("energy, E beside P", energy(E)?, energy(P)?),
        case(
            "cores at 50 KQPS, E beside 20vCPU-20NQ",
            world.of(0, E, cores_at(5e4))?,
            world.of(0, TIME_SHARING, cores_at(5e4))?,
        ),
        case(
            "cores at 250 KQPS, E beside 20vCPU-20NQ",
            world.of(0, E, cores_at(25e4))?,
            world.of(0, TIME_SHARING, cores_at(25e4))?,
        ),
    ])
}
