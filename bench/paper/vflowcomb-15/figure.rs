//! vFlowComb, figure 15: where between NIC and guest placement has packets cross from one node to another.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use ostler_model::{CpuId, NodeId, Plan, Snapshot, Topology};
use ostler_sim::run::{Meanwhile, Run as SimRun, Watch};
use ostler_sim::scenario;

use super::vflowcomb_13::{CONTENTION, FLOWS, LOADS, PACKETS};
use crate::figure::{Case, Run};

/// Of the NIC's node, and those of softirq, worker and vCPU: the paper's E, F and G are those that cross once.
const PATTERNS: [&str; 5] = [
    "E: from vhost to the guest",
    "F: from softirq to vhost",
    "G: from the NIC to softirq",
    "nowhere",
    "more than once",
];
const SEEDS: u64 = 8;

pub fn cases(run: Run) -> Result<Vec<Case>> {
    let scenario = include_str!("../vflowcomb-13/scenario.toml");
    let (head, rest) = scenario.split_once("[[load]]").unwrap_or_default();
    let policies = rest.find("[steward").map_or("", |at| &rest[at..]);
    // Four of them, where figure 13 has eight.
    let contention = CONTENTION.replace("count = 8", "count = 4");
    let seconds = if run.quick { 0.2 } else { 4.0 };
    let seeds = if run.quick { 1 } else { SEEDS };
    let mut cases = Vec::new();
    for (beside, others) in [("", ""), (", contention", contention.as_str())] {
        for (load, packets) in LOADS {
            let rate = packets * FLOWS / PACKETS;
            let load = format!("{load}{beside}");
            let text = format!(
                "{head}{others}[[load]]\nguest = \"vnf1\"\nconnections = {FLOWS}\npackets = {PACKETS}\nsteps = [{{ rate = {rate}, seconds = {seconds} }}]\n{policies}"
            );
            let all: Vec<_> = (1..=seeds)
                .map(|seed| shares(&text, seed))
                .collect::<Result<_>>()?;
            for (at, pattern) in PATTERNS.iter().enumerate() {
                let of = |policy: usize| all.iter().map(|all| all[policy][at]).collect();
                cases.push(Case {
                    name: format!("{load}, {pattern}"),
                    ours: of(0),
                    baseline: of(1),
                });
            }
        }
    }
    Ok(cases)
}

/// Shares of patterns among what was decided: by chains, and by contention alone.
fn shares(text: &str, seed: u64) -> Result<[[f64; PATTERNS.len()]; 2]> {
    let scenario = scenario::parse(text, Path::new("scenario.toml")).context("the scenario")?;
    let watch = Watch {
        periods: true,
        ..Watch::default()
    };
    let run = SimRun::new(scenario, seed, watch)?;
    let mut shares = [[0.0; PATTERNS.len()]; 2];
    for (shares, policy) in shares.iter_mut().zip(["chains", "contention-aware"]) {
        let mut cells = run.cells();
        cells.retain(|cell| cell.policy == policy);
        let mut found = [0_u32; PATTERNS.len()];
        for cell in &cells {
            let load = &run.scenario().loads[cell.load as usize];
            let from = run.scenario().settle_s;
            let under_load = from..from + load.seconds();
            // What is in force.
            let mut before: Option<Arc<Plan>> = None;
            run.cell(cell, &mut |what| {
                let Meanwhile::Period(period) = what else {
                    return;
                };
                let changes = before
                    .as_ref()
                    .is_none_or(|old| !old.same_wishes(&period.plan));
                if changes && under_load.contains(&period.now.as_secs_f64()) {
                    count(
                        &period.plan,
                        &period.snapshot,
                        &run.facts().topology,
                        &mut found,
                    );
                }
                if period.adopted {
                    before = Some(period.plan);
                }
            })?;
        }
        let sum: u32 = found.iter().sum();
        ensure!(sum > 0, "`{policy}` has decided nothing under load");
        *shares = found.map(|found| f64::from(found) / f64::from(sum));
    }
    Ok(shares)
}

/// Counts the ways of a decision's queues to the guests that have most of their packets.
fn count(plan: &Plan, snapshot: &Snapshot, topology: &Topology, found: &mut [u32; PATTERNS.len()]) {
    let node = |id: CpuId| {
        let mut cpus = topology.cpus.iter();
        cpus.find(|cpu| cpu.id == id).map(|cpu| cpu.node)
    };
    let Some(placement) = &plan.placement else {
        return;
    };
    for queue in &placement.softirqs {
        let flows = snapshot.flows.iter();
        let flows = flows.filter(|flow| flow.nic == queue.nic && flow.queue == queue.queue);
        let most = flows.max_by(|one, other| one.packets_per_s.total_cmp(&other.packets_per_s));
        let Some(hop) = most.and_then(|flow| flow.hops.first()) else {
            continue;
        };
        let Some(guest) = plan.guest(&hop.guest) else {
            continue;
        };
        let worker = hop.queue.and_then(|at| guest.vhost_pins.get(at as usize));
        let vcpu = hop.vcpu.and_then(|at| guest.vcpu_pins.get(at as usize));
        let (Some(worker), Some(vcpu)) = (worker, vcpu) else {
            continue;
        };
        // The scenario's NIC is on the first.
        let way = [Some(NodeId(0)), node(queue.cpu), node(*worker), node(*vcpu)];
        let crossings: Vec<usize> = (0..3).filter(|at| way[*at] != way[at + 1]).collect();
        let pattern = match crossings[..] {
            [] => 3,
            [at] => 2 - at,
            _ => 4,
        };
        found[pattern] += 1;
    }
}
