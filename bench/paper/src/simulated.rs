//! Figures that are drawn from a scenario of the simulator: all its cells, from several seeds, on all cores.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::thread::available_parallelism;

use anyhow::{Context as _, Result, bail};
use ostler_outcome::events::Event;
use ostler_outcome::gather::{self, Summary};
use ostler_outcome::report::{Cores, PolicySummary, Sample};
use ostler_scenario::Scenario;
use ostler_sim::run::{self, Run as SimRun, Watch};
use ostler_sim::scenario;

use crate::figure::Run;

/// What came of a scenario.
pub struct Simulated {
    /// By seed, and there by load.
    seeds: Vec<Vec<Summary>>,
    /// By seed: cores that were busy in the mean, by load and policy.
    busy: Vec<BTreeMap<(u32, String), f64>>,
}

/// A quick run's steps are so much shorter, and what goes before them.
const QUICK: f64 = 0.1;

impl Simulated {
    /// Runs a folder's `scenario.toml`, once from each of so many seeds.
    pub fn new(text: &str, seeds: u64, how: Run) -> Result<Simulated> {
        let path = Path::new("scenario.toml");
        let mut scenario = scenario::parse(text, path).context("the figure's scenario")?;
        let mut seeds = seeds;
        if how.quick {
            seeds = 1;
            scenario.settle_s *= QUICK;
            let loads = scenario.loads.iter_mut();
            loads
                .flat_map(|load| &mut load.steps)
                .for_each(|step| step.seconds *= QUICK);
        }
        let of = |seed| summaries(&scenario, seed).with_context(|| format!("seed {seed}"));
        let all: Vec<_> = (1..=seeds).map(of).collect::<Result<_>>()?;
        let (seeds, busy) = all.into_iter().unzip();
        Ok(Simulated { seeds, busy })
    }

    /// Cores that were busy in the mean under a load, from each seed.
    pub fn busy_cores(&self, load: usize, policy: &str) -> Result<Vec<f64>> {
        let key = (u32::try_from(load)?, policy.to_owned());
        let all = self.busy.iter().map(|busy| busy.get(&key).copied());
        all.collect::<Option<_>>()
            .with_context(|| format!("the scenario has no `{policy}` under a load {load}"))
    }

    /// A policy's figure under the load of this number, from each seed.
    pub fn of(
        &self,
        load: usize,
        policy: &str,
        figure: impl Fn(&PolicySummary) -> Option<f64>,
    ) -> Result<Vec<f64>> {
        self.each(load, policy, |_, summary| figure(summary))
    }

    /// The work a second of a guest that counts it, likewise.
    pub fn work(&self, load: usize, policy: &str, guest: &str) -> Result<Vec<f64>> {
        self.each(load, policy, |summary, of| {
            let mut all = summary.run.policies.iter().zip(&summary.work_per_s);
            let (_, work) = all.find(|(other, _)| other.policy == of.policy)?;
            work.get(guest).copied()
        })
    }

    fn each(
        &self,
        load: usize,
        policy: &str,
        figure: impl Fn(&Summary, &PolicySummary) -> Option<f64>,
    ) -> Result<Vec<f64>> {
        let of = |summaries: &Vec<Summary>| {
            let summary = summaries
                .get(load)
                .with_context(|| format!("the scenario has no load {load}"))?;
            let mut policies = summary.run.policies.iter();
            let found = policies
                .find(|found| found.policy == policy)
                .with_context(|| format!("the scenario has no policy `{policy}`"))?;
            figure(summary, found)
                .with_context(|| format!("`{policy}` has no such figure under load {load}"))
        };
        self.seeds.iter().map(of).collect()
    }
}

/// What a reader of figures takes of [`ostler_report`]'s spreads: here each is of one round.
macro_rules! median {
    ($figure:ident) => {
        |summary: &ostler_outcome::report::PolicySummary| {
            summary.figures.$figure.map(|spread| spread.median)
        }
    };
}
pub(crate) use median;

/// Its seconds under a load of so many requests, but for the first of each step: there policies still take it in.
pub fn seconds_at(summary: &PolicySummary, rate: f64) -> Vec<Sample> {
    let samples = summary.timeline.iter().flat_map(|line| &line.samples);
    let mut before = None;
    let mut settled = Vec::new();
    let mut all = Vec::new();
    for sample in samples.filter(|sample| sample.offered_per_s.is_some()) {
        let same = before == sample.offered_per_s;
        before = sample.offered_per_s;
        if sample
            .offered_per_s
            .is_some_and(|offered| (offered - rate).abs() < 0.5)
        {
            all.push(*sample);
            if same {
                settled.push(*sample);
            }
        }
    }
    // A quick run's steps are shorter than a second.
    if settled.is_empty() { all } else { settled }
}

/// Cores that vCPUs and queues hold.
pub fn held(cores: Cores) -> f64 {
    cores.vcpu + cores.nq + cores.shared
}

/// The mean of what samples have.
pub fn mean(samples: &[Sample], of: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
    let all: Vec<f64> = samples.iter().filter_map(of).collect();
    (!all.is_empty()).then(|| all.iter().sum::<f64>() / all.len() as f64)
}

type Came = (Vec<Summary>, BTreeMap<(u32, String), f64>);

fn summaries(scenario: &Scenario, seed: u64) -> Result<Came> {
    let run = SimRun::new(scenario.clone(), seed, Watch::default())?;
    let threads = available_parallelism().map_or(1, usize::from);
    let mut events = run.begins("", "").to_vec();
    let cells = run.cells();
    run::all(&run, &cells, threads, &|_, _| {}, &mut |_, came| {
        events.extend(came.told);
        ControlFlow::Continue(())
    })?;
    let mut busy = BTreeMap::new();
    for told in &events {
        let Event::CellEnd {
            cell,
            problems,
            counters,
        } = &told.event
        else {
            continue;
        };
        if let Some(problem) = problems.first() {
            bail!("cell {cell}: {problem}");
        }
        if let Some(of) = cells.iter().find(|of| of.index == *cell) {
            let cores = counters.busy_core_seconds / counters.seconds;
            busy.insert((of.load, of.policy.clone()), cores);
        }
    }
    Ok((gather::summaries(run.scenario(), &events), busy))
}
