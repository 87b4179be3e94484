//! CPS, figure 10, and what figure 12 has of it.

use anyhow::Result;
use ostler_sim::costs::path::{FX_CALL, FX_ENTRY, FX_WRITE};

use crate::figure::{Case, Run};
use crate::simulated::Simulated;

/// FxMark's workloads that the paper tells numbers of.
struct Workload {
    name: &'static str,
    /// Whether threads share in fours, or all together.
    fours: bool,
    /// How long one goes on by itself, and how long with what is shared.
    alone: f64,
    shared: f64,
    /// The lines that come with it.
    lines: u32,
}

/// An entry of a directory on a tmpfs has two: its own count, and the directory's lock, which is held for no longer than that takes (`scan_positives`, fs/libfs.c of
/// Linux 5.10). A write has the file's lock for all of it, with the lines of that and of its times; who writes the same block, its page's too. The block itself comes with
/// so many lines at a time that they are not waited for one by one.
const WORKLOADS: [Workload; 4] = [
    Workload::new("MRDL", true, FX_ENTRY.value, 0.0, 2),
    Workload::new("MRDM", false, FX_ENTRY.value, 0.0, 2),
    Workload::new(
        "DWOL",
        true,
        FX_CALL.value,
        FX_WRITE.value - FX_CALL.value,
        3,
    ),
    Workload::new(
        "DWOM",
        false,
        FX_CALL.value,
        FX_WRITE.value - FX_CALL.value,
        2,
    ),
];

impl Workload {
    const fn new(name: &'static str, fours: bool, alone: f64, shared: f64, lines: u32) -> Workload {
        Workload {
            name,
            fours,
            alone,
            shared,
            lines,
        }
    }

    /// As a scenario has it.
    fn lock(&self, threads: u32) -> String {
        let locks = if self.fours { threads / 4 } else { 1 };
        let (alone, shared, lines) = (self.alone, self.shared, self.lines);
        format!(
            "threads = {threads}, locks = {locks}, think = {{ mean = \"{alone}ns\" }}, hold = \"{shared}ns\", lines = {lines}"
        )
    }
}

/// In the scenarios.
const LOCK: &str =
    "threads = 4, locks = 1, think = { mean = \"176ns\" }, hold = \"0ns\", lines = 2";

pub fn cases(run: Run) -> Result<Vec<Case>> {
    all(include_str!("scenario.toml"), [0.05, 0.05], run)
}

/// Each workload on four and on all vCPUs, for so many seconds each, and the mean of what it gains.
pub(super) fn all(scenario: &str, seconds: [f64; 2], run: Run) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for (threads, seconds) in [4, 128].into_iter().zip(seconds) {
        let mut gains: Vec<f64> = Vec::new();
        for workload in &WORKLOADS {
            let operations = |wakeups: &str| {
                let scenario = scenario
                    .replace(LOCK, &workload.lock(threads))
                    .replace("seconds = 0.05", &format!("seconds = {seconds}"))
                    .replace("\"cgsched\"", &format!("\"{wakeups}\""));
                Simulated::new(&scenario, 3, run)?.work(0, "hints", "fx")
            };
            let ours = operations("cgsched")?;
            let baseline = operations("hvm")?;
            gains.resize(ours.len(), 0.0);
            for (gain, (ours, baseline)) in gains.iter_mut().zip(ours.iter().zip(&baseline)) {
                *gain += ours / baseline / WORKLOADS.len() as f64;
            }
            cases.push(Case {
                name: format!("{threads} threads, {}", workload.name),
                ours,
                baseline,
            });
        }
        cases.push(Case {
            name: format!("{threads} threads, mean"),
            baseline: vec![1.0; gains.len()],
            ours: gains,
        });
    }
    Ok(cases)
}
