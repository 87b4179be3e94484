//! The JSON line of a cell: one policy under one load in one round, by the figures that a scheduler of vCPUs is judged by.

use serde::{Deserialize, Serialize};

use super::Seen;
use super::sharing::Sharers;
use crate::report::PolicyLine;
use ostler_scenario::{Policy, Scenario};

/// A line of `ostler lab run --json` that tells of one cell. `cell` tells it from a policy's line, whose percentiles are medians over seconds; these are
/// over all of the cell, and named `cell_p50_us` and so on in a policy's line. The others have the names that they have there, and are defined there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CellLine {
    /// Position in the program, from 0.
    pub cell: u32,
    /// The policy's name.
    pub policy: String,
    /// Round, from 0.
    pub round: u32,
    /// The guest that is loaded.
    pub guest: String,
    /// What was loaded, as in the policy's line.
    pub workload: String,
    /// vCPUs of the guests that the policy's cores are divided over, by those cores: those that its steward manages, or all under test without one.
    pub ratio: Option<f64>,
    /// Those vCPUs.
    pub vcpus: u32,
    /// What schedules vCPUs: `kernel`, or the steward's scheduler by its mode and the length of its turns, like `io 3ms`; `kernel, for want of` it where the host
    /// couldn't have it.
    pub scheduler: String,
    /// Correct answers.
    pub ops_per_s: Option<f64>,
    /// Median latency over the whole cell.
    pub p50_us: Option<f64>,
    /// 95th percentile of latency over the whole cell.
    pub p95_us: Option<f64>,
    /// 99th percentile of latency over the whole cell.
    pub p99_us: Option<f64>,
    /// From an interrupt or IPI to its vCPU running.
    pub irq_to_run_p99_us: Option<f64>,
    /// How far any guest that is always busy was from an equal share in any 10 s.
    pub fairness_error_10s: Option<f64>,
    /// Work that the best-effort guests beside it did, in what they do in an equal share of the cores.
    pub neighbour_throughput: Option<f64>,
    /// Context switches on the cores under test.
    pub ctx_switches_per_s: Option<f64>,
    /// The load generator's own worst lag behind its schedule, which is part of the latencies above: of the same size as these, it is
    /// the client that was short of CPU. `None` where nothing was asked.
    pub client_lag_max_us: Option<f64>,
}

impl CellLine {
    /// Of a cell's figures.
    pub(super) fn new(
        scenario: &Scenario,
        policy: &Policy,
        workload: &str,
        seen: &Seen<'_>,
        line: &PolicyLine,
    ) -> CellLine {
        let cell = seen.cell;
        let sharers = Sharers::of(scenario, policy, &cell.guest);
        let asked = seen.windows.iter().filter(|window| window.figures.due > 0);
        CellLine {
            cell: cell.index,
            policy: line.policy.clone(),
            round: cell.round,
            guest: cell.guest.clone(),
            workload: workload.to_owned(),
            ratio: sharers.ratio(),
            vcpus: sharers.vcpus(),
            scheduler: scheduler(policy, &[seen]),
            ops_per_s: line.ops_per_s,
            p50_us: line.cell_p50_us,
            p95_us: line.cell_p95_us,
            p99_us: line.cell_p99_us,
            irq_to_run_p99_us: line.irq_to_run_p99_us,
            fairness_error_10s: line.fairness_error_10s,
            neighbour_throughput: line.neighbour_throughput,
            ctx_switches_per_s: line.ctx_switches_per_s,
            client_lag_max_us: asked
                .map(|window| window.figures.lag_max_us)
                .reduce(f64::max),
        }
    }
}

/// What has scheduled a policy's vCPUs in some cells, for people. A steward whose host can't have the scheduler that it is to bring leaves them to the kernel's, and then no
/// period tells of it.
pub(super) fn scheduler(policy: &Policy, cells: &[&Seen<'_>]) -> String {
    let Some(wanted) = policy.scheduler() else {
        return "kernel".to_owned();
    };
    let decided = cells.iter().any(|seen| !seen.decided.is_empty());
    let told = cells.iter().any(|seen| !seen.boost.is_empty());
    if policy.host_scheduler.is_none() && decided && !told {
        return format!("kernel, for want of {wanted}");
    }
    wanted
}
