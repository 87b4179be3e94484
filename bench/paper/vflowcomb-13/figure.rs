//! vFlowComb, figure 13.

use std::fmt::Write as _;

use anyhow::{Result, ensure};

use crate::figure::{Case, Run};
use crate::simulated::{Simulated, mean, seconds_at};

/// Service chains.
const CHAINS: f64 = 8.0;
/// Of a load's guest, how many VNFs a packet passes.
const LENGTHS: [(&str, u32); 3] = [("vnf1", 3), ("vnf2", 2), ("vnf3", 1)];
/// Packets of a message.
pub(super) const PACKETS: u32 = 8;
/// Packets a second of a flow, of which each chain has four.
pub(super) const LOADS: [(&str, u32); 2] = [("medium", 48_000), ("heavy", 64_000)];
pub(super) const FLOWS: u32 = 4;
pub(super) const CONTENTION: &str = include_str!("contention.toml");

pub fn cases(run: Run) -> Result<Vec<Case>> {
    let scenario = include_str!("scenario.toml");
    let (head, rest) = scenario.split_once("[[load]]").unwrap_or_default();
    let policies = rest.find("[steward").map_or("", |at| &rest[at..]);
    let mut loads = String::new();
    let mut named = Vec::new();
    for (guest, vnfs) in LENGTHS {
        for (load, packets) in LOADS {
            let rate = packets * FLOWS / PACKETS;
            writeln!(
                loads,
                "[[load]]\nguest = \"{guest}\"\nconnections = {FLOWS}\npackets = {PACKETS}\nsteps = [{{ rate = {rate}, seconds = 5 }}]"
            )?;
            named.push((format!("{vnfs} VNFs, {load}"), f64::from(rate)));
        }
    }
    let mut cases = Vec::new();
    let (mut received, mut busy) = (Means::default(), Means::default());
    for (beside, others) in [("", ""), (", contention", CONTENTION)] {
        let world = Simulated::new(&format!("{head}{others}{loads}{policies}"), 3, run)?;
        for (load, (name, rate)) in named.iter().enumerate() {
            let share = |policy: &str| {
                world.of(load, policy, |summary| {
                    let samples = seconds_at(summary, *rate);
                    let offered = mean(&samples, |sample| sample.offered_per_s)? * CHAINS;
                    Some(mean(&samples, |sample| sample.completed_per_s)? / offered)
                })
            };
            let cores = |policy: &str| world.busy_cores(load, policy);
            let ours = (share("chains")?, cores("chains")?);
            for (letter, policy) in [("A", "numa-aware"), ("B", "contention-aware")] {
                let theirs = (share(policy)?, cores(policy)?);
                received.add(letter, &ours.0, &theirs.0);
                busy.add(letter, &ours.1, &theirs.1);
                for (what, ours, baseline) in
                    [("received", &ours.0, theirs.0), ("CPU", &ours.1, theirs.1)]
                {
                    cases.push(Case {
                        name: format!("{name}{beside}, {what} beside {letter}"),
                        ours: ours.clone(),
                        baseline,
                    });
                }
            }
        }
    }
    for (what, means) in [("received", received), ("CPU", busy)] {
        for letter in ["A", "B"] {
            cases.push(means.case(what, letter)?);
        }
    }
    Ok(cases)
}

/// Ratios of all cases, by baseline.
#[derive(Default)]
struct Means(Vec<(&'static str, f64)>);

impl Means {
    fn add(&mut self, letter: &'static str, ours: &[f64], baseline: &[f64]) {
        let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
        self.0.push((letter, mean(ours) / mean(baseline)));
    }

    fn case(&self, what: &str, letter: &str) -> Result<Case> {
        let of = self.0.iter().filter(|(of, _)| *of == letter);
        let all: Vec<f64> = of.map(|(_, ratio)| *ratio).collect();
        ensure!(!all.is_empty(), "no cases beside {letter}");
        Ok(Case {
            name: format!("all cases, {what} beside {letter}"),
            ours: vec![all.iter().sum::<f64>() / all.len() as f64],
            baseline: vec![1.0],
        })
    }
}
