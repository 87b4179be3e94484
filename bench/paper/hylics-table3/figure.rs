//! Hylics, table 3.

use anyhow::Result;
use ostler_policy::sizing::{Parts, Settings};
use ostler_sim::files::{By, Run as Hour, aggregated, hylics, hylics_settings, pooled};

use crate::figure::{Case, Run};

/// The paper's hundred runs, so many times.
const HOURS: u64 = 100;
const TIMES: u64 = 5;

#[expect(clippy::unnecessary_wraps, reason = "other figures can fail")]
pub fn cases(run: Run) -> Result<Vec<Case>> {
    let (hours, times) = if run.quick { (2, 1) } else { (HOURS, TIMES) };
    let by = |parts| {
        By::Policy(Settings {
            parts,
            ..hylics_settings()
        })
    };
    let batches = |workload: u32, slower: f64, by: &By| -> Vec<Vec<Hour>> {
        let world = &hylics(workload, slower);
        let batch = |time: u64| (0..hours).map(move |hour| world.run(by, time * hours + hour));
        (0..times).map(|time| batch(time).collect()).collect()
    };
    let errors = |batches: &[Vec<Hour>]| -> Vec<f64> {
        let of = |batch: &Vec<Hour>| aggregated(&pooled(batch), hylics_settings().wanted);
        batches.iter().map(of).collect()
    };
    let most = |batches: &[Vec<Hour>]| -> Vec<f64> {
        let of = |batch: &Vec<Hour>| {
            let sum: f64 = batch.iter().map(|hour| hour.most as f64 / 1e6).sum();
            sum / batch.len() as f64
        };
        batches.iter().map(of).collect()
    };
    let mut cases = Vec::new();
    for workload in [1, 2] {
        let mut case = |what: &str, ours: Vec<f64>, baseline: Vec<f64>| {
            cases.push(Case {
                name: format!("workload {workload}, {what}"),
                ours,
                baseline,
            });
        };
        for (slower, what) in [(1.0, "as measured"), (1.15, "tasks 15 % longer")] {
            let ours = batches(workload, slower, &by(Parts::Corrected));
            let paper = batches(workload, slower, &by(Parts::Both));
            case(what, errors(&ours), errors(&paper));
            if slower > 1.0 {
                continue;
            }
            let known = batches(workload, slower, &By::Oracle(hylics_settings()));
            case("beside who knows all", errors(&ours), errors(&known));
            case("memory at the most", most(&ours), most(&paper));
        }
    }
    Ok(cases)
}
