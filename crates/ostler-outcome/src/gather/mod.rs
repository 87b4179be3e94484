//! From a run's events to what the report shows: one [`RunSummary`] for each of the scenario's loads.
//!
//! A round of a policy becomes one [`PolicyLine`], and rounds become spreads; what a vCPU scheduler is judged by is told cell by cell
//! too ([`CellLine`]). Percentiles can't be merged, so a round's are the median, over its windows of a second, of that window's
//! percentile, and those over all of a cell are the load generator's own, of loads of one step. Core-seconds are of cores held, as the steward's
//! plans have them; without a steward, vCPUs and queues share all cores under test. Rounds in which something went wrong
//! are left out, and the run says so.

mod cells;
mod expect;
mod sharing;
mod timeline;

use std::collections::BTreeMap;

use ostler_load::lines::{Figures as LoadFigures, Line, StepLine, WindowLine};
use ostler_model::Class;
use serde::Serialize;

use crate::events::{BoostPeriod, Cell, Counters, Event, GuestSample, MachineCounters, Stamped};
use crate::report::{
    Clock, CurvePoint, Family, Figures, Host, PolicyLine, PolicySummary, RunSummary, Sharing,
    Spread,
};
pub use cells::CellLine;
pub use expect::{Behaviour, JsonLine, figure_names, unmet};
use ostler_scenario::{Guest, Load, Policy, Scenario};
use sharing::Sharers;
use timeline::Decided;

/// What a run amounts to under one of its loads.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// The report's input.
    pub run: RunSummary,
    /// Per policy, in the same order: what its plans did.
    pub behaviour: Vec<Behaviour>,
    /// Per policy, in the same order: the work that guests did by themselves.
    pub work_per_s: Vec<BTreeMap<String, f64>>,
    /// One line for each cell in which nothing went wrong, in the order in which they ran.
    pub cells: Vec<CellLine>,
}

impl Summary {
    /// One line per policy.
    pub fn lines(&self) -> Vec<JsonLine> {
        let lines = self.run.policies.iter().zip(&self.behaviour);
        lines
            .zip(&self.work_per_s)
            .map(|((policy, behaviour), work_per_s)| JsonLine {
                line: policy.figures.line(&policy.policy),
                workload: self.run.workload.clone(),
                rounds: self.run.rounds,
                ranges: policy.figures.ranges(),
                behaviour: behaviour.clone(),
                work_per_s: work_per_s.clone(),
            })
            .collect()
    }
}

/// A line of `ostler lab run --json`.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum ResultLine<'a> {
    /// A policy's.
    Policy(Box<JsonLine>),
    /// A cell's.
    Cell(&'a CellLine),
}

/// All lines of a run: load by load, its policies' and then its cells'.
pub fn result_lines(summaries: &[Summary]) -> Vec<ResultLine<'_>> {
    let of_load = |summary: &'_ Summary| {
        summary
            .lines()
            .into_iter()
            .map(|line| ResultLine::Policy(Box::new(line)))
    };
    summaries
        .iter()
        .flat_map(|summary| of_load(summary).chain(summary.cells.iter().map(ResultLine::Cell)))
        .collect()
}

/// What one cell showed.
#[derive(Debug)]
struct Seen<'a> {
    cell: &'a Cell,
    /// Unix time less the host's uptime.
    offset_ms: i64,
    /// Unix time at which the load began.
    load_from_ms: Option<u64>,
    windows: Vec<WindowLine>,
    steps: Vec<StepLine>,
    decided: Vec<Decided>,
    tap_us: &'a [(f64, f64)],
    boost: &'a [BoostPeriod],
    samples: Vec<(u64, &'a [GuestSample])>,
    counters: Option<&'a Counters>,
    failed: bool,
}

/// What all loads of a run have in common.
#[derive(Debug, Default)]
struct Machine {
    revision: String,
    started: String,
    qemu: String,
    kernel: String,
    /// `None` for events without a run's beginning.
    clock: Option<Clock>,
}

/// Sums up a run, load by load.
pub fn summaries(scenario: &Scenario, events: &[Stamped]) -> Vec<Summary> {
    let (machine, cells) = sort(events);
    (0u32..)
        .zip(&scenario.loads)
        // One in the background has no cells of its own.
        .filter(|(_, load)| !load.background)
        .filter_map(|(index, load)| {
            let guest = scenario.guests.iter().find(|g| g.name == load.guest)?;
            let cells: Vec<_> = cells.iter().filter(|c| c.cell.load == index).collect();
            Some(summary(scenario, &machine, load, guest, &cells))
        })
        .collect()
}

/// Sorts events by cell.
fn sort(events: &[Stamped]) -> (Machine, Vec<Seen<'_>>) {
    let mut machine = Machine::default();
    let mut cells: BTreeMap<u32, Seen<'_>> = BTreeMap::new();
    for stamped in events {
        match &stamped.event {
            Event::Run {
                revision,
                started,
                qemu,
                clock,
            } => {
                machine.revision.clone_from(revision);
                machine.started.clone_from(started);
                machine.qemu.clone_from(qemu);
                machine.clock = Some(*clock);
            }
            Event::Up { kernel, .. } => machine.kernel.clone_from(kernel),
            Event::CellStart { cell, unix_ms } => {
                let offset_ms = unix_ms.cast_signed() - stamped.t_ms.cast_signed();
                cells.insert(cell.index, Seen::new(cell, offset_ms));
            }
            Event::Load { cell, line } => {
                if let (Some(seen), Ok(line)) =
                    (cells.get_mut(cell), serde_json::from_value(line.clone()))
                {
                    seen.line(line);
                }
            }
            Event::Steward { cell, record } => {
                let decided = serde_json::from_value(record.clone());
                if let (Some(seen), Ok(decided)) = (cells.get_mut(cell), decided) {
                    seen.decided.push(decided);
                }
            }
            Event::Tap { cell, periods_us } => {
                if let Some(seen) = cells.get_mut(cell) {
                    seen.tap_us = periods_us;
                }
            }
            Event::Boost { cell, periods } => {
                if let Some(seen) = cells.get_mut(cell) {
                    seen.boost = periods;
                }
            }
            Event::Sample {
                cell: Some(cell),
                guests,
                ..
            } => {
                if let Some(seen) = cells.get_mut(cell) {
                    seen.samples.push((stamped.t_ms, guests));
                }
            }
            Event::CellEnd {
                cell,
                counters,
                problems,
            } => {
                if let Some(seen) = cells.get_mut(cell) {
                    seen.counters = Some(counters);
                    seen.failed = !problems.is_empty();
                }
            }
            _ => {}
        }
    }
    (machine, cells.into_values().collect())
}

impl<'a> Seen<'a> {
    fn new(cell: &'a Cell, offset_ms: i64) -> Seen<'a> {
        Seen {
            cell,
            offset_ms,
            load_from_ms: None,
            windows: Vec::new(),
            steps: Vec::new(),
            decided: Vec::new(),
            tap_us: &[],
            boost: &[],
            samples: Vec::new(),
            counters: None,
            failed: false,
        }
    }

    fn line(&mut self, line: Line) {
        match line {
            Line::Start(start) => self.load_from_ms = Some(start.start_unix_ms),
            Line::Window(window) => self.windows.push(window),
            Line::Step(step) => self.steps.push(step),
        }
    }

    fn good(&self) -> bool {
        !self.failed && self.counters.is_some() && !self.windows.is_empty()
    }

    /// Length of the load.
    fn load_s(&self) -> f64 {
        self.windows.iter().map(|w| w.seconds).sum()
    }
}

fn summary(
    scenario: &Scenario,
    machine: &Machine,
    load: &Load,
    guest: &Guest,
    cells: &[&Seen<'_>],
) -> Summary {
    let slo_us = guest.slo_p95_us.map_or(f64::NAN, |us| us as f64);
    let worth = sharing::work_per_core_second(scenario, cells);
    let of_policy = |policy: &Policy| {
        let mine = cells
            .iter()
            .filter(|c| c.cell.policy == policy.name && c.good());
        mine.copied().collect::<Vec<_>>()
    };
    let rounds = scenario
        .policies
        .iter()
        .map(|policy| of_policy(policy).len())
        .min();
    let workload = format!(
        "{} in guest {} ({} vCPUs, {} queues), {} connections",
        guest.workload, guest.name, guest.vcpus, guest.queues, load.connections
    );
    let lines = scenario.policies.iter().map(|policy| {
        let line = |seen: &&Seen<'_>| policy_line(scenario, policy, slo_us, worth, seen);
        of_policy(policy).iter().map(line).collect::<Vec<_>>()
    });
    let lines: Vec<_> = lines.collect();
    let of_cells = scenario.policies.iter().zip(&lines);
    let of_cells = of_cells.flat_map(|(policy, lines)| {
        let rounds = of_policy(policy).into_iter().zip(lines);
        rounds.map(|(seen, line)| CellLine::new(scenario, policy, &workload, seen, line))
    });
    let mut of_cells: Vec<_> = of_cells.collect();
    of_cells.sort_by_key(|line| line.cell);
    let run = RunSummary {
        scenario: scenario.name.clone(),
        description: scenario.summary.clone(),
        revision: machine.revision.clone(),
        started: machine.started.clone(),
        host: Host {
            name: format!(
                "{}, {} CPUs, pNIC with {} queues",
                if machine.clock == Some(Clock::Simulated) {
                    "simulated"
                } else {
                    "emulated"
                },
                scenario.host.cpus.count(),
                scenario.host.pnic_queues
            ),
            cores: scenario.host.under_test.len(),
            kernel: machine.kernel.clone(),
            hypervisor: machine.qemu.clone(),
            instruction_ns: scenario.host.instruction_ns,
            part: scenario
                .host
                .caches
                .as_ref()
                .map(|caches| caches.part.clone()),
        },
        workload,
        // A round that went wrong counts for nobody.
        rounds: rounds.map_or(0, |n| u32::try_from(n).unwrap_or(u32::MAX)),
        clock: machine.clock.unwrap_or(Clock::Wall),
        slo_us,
        baseline: scenario
            .policies
            .first()
            .map_or_else(String::new, |p| p.name.clone()),
        policies: scenario
            .policies
            .iter()
            .zip(&lines)
            .map(|(policy, lines)| policy_summary(scenario, policy, lines, &of_policy(policy)))
            .collect(),
    };
    let behaviour = scenario
        .policies
        .iter()
        .map(|policy| {
            let rounds = of_policy(policy);
            rounds.iter().fold(Behaviour::default(), |sum, seen| {
                sum.and(&timeline::behaviour(seen))
            })
        })
        .collect();
    let work_per_s = scenario
        .policies
        .iter()
        .map(|policy| work_per_s(&of_policy(policy)))
        .collect();
    Summary {
        run,
        behaviour,
        work_per_s,
        cells: of_cells,
    }
}

/// Of each guest that counts its work, the median over rounds of what it did in a second.
fn work_per_s(rounds: &[&Seen<'_>]) -> BTreeMap<String, f64> {
    let mut rates: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    let counted = rounds.iter().filter_map(|seen| seen.counters);
    for counters in counted.filter(|counters| counters.seconds > 0.0) {
        for guest in &counters.guests {
            if let Some(work) = guest.work {
                let rates = rates.entry(&guest.name).or_default();
                rates.push(work / counters.seconds);
            }
        }
    }
    let median = |rates: Vec<f64>| Some(Spread::of(rates.into_iter().map(Some))?.median);
    rates
        .into_iter()
        .filter_map(|(name, rates)| Some((name.to_owned(), median(rates)?)))
        .collect()
}

fn policy_summary(
    scenario: &Scenario,
    policy: &Policy,
    lines: &[PolicyLine],
    rounds: &[&Seen<'_>],
) -> PolicySummary {
    let figures = Figures::over_rounds(lines);
    let typical = typical(&figures, lines).and_then(|at| rounds.get(at).copied());
    PolicySummary {
        policy: policy.name.clone(),
        about: policy.about.clone(),
        family: if policy.is_ours() {
            Family::Ostler
        } else {
            Family::Baseline
        },
        figures,
        curve: curve(rounds),
        timeline: typical.map(|seen| timeline::of(scenario, policy, seen)),
        machine: machine(rounds),
        sharing: sharing_of(scenario, policy, rounds, typical),
    }
}

/// How guests shared their cores; `None` in runs that compare no schedulers of vCPUs, whose reports are about other things.
fn sharing_of(
    scenario: &Scenario,
    policy: &Policy,
    rounds: &[&Seen<'_>],
    typical: Option<&Seen<'_>>,
) -> Option<Sharing> {
    let mut schedulers = scenario.policies.iter().map(Policy::scheduler);
    schedulers.find(Option::is_some)?;
    let loaded = rounds.first().map_or("", |seen| &seen.cell.guest);
    let sharers = Sharers::of(scenario, policy, loaded);
    Some(Sharing {
        ratio: sharers.ratio(),
        scheduler: cells::scheduler(policy, rounds),
        delays: sharing::all_delays(rounds),
        guests: sharing::shares(&sharers, loaded, rounds),
        timeline: typical.map_or_else(Vec::new, |seen| sharing::timeline(&sharers, seen)),
    })
}

/// What the machine counted in all rounds together.
fn machine(rounds: &[&Seen<'_>]) -> Option<MachineCounters> {
    let counted = rounds
        .iter()
        .filter_map(|seen| seen.counters?.machine.as_ref());
    counted.fold(None, |sum: Option<MachineCounters>, more| {
        let mut sum = sum.unwrap_or_default();
        sum.add(more);
        Some(sum)
    })
}

/// The round whose figures lie nearest to the medians.
fn typical(figures: &Figures, lines: &[PolicyLine]) -> Option<usize> {
    let far = |spread: Option<Spread>, value: Option<f64>| match (spread, value) {
        (Some(spread), Some(value)) if spread.median.abs() > f64::EPSILON => {
            (value - spread.median).abs() / spread.median.abs()
        }
        _ => 0.0,
    };
    let distance = |line: &PolicyLine| {
        far(figures.p95_us, line.p95_us)
            + far(figures.core_seconds, line.core_seconds)
            + far(figures.be_core_seconds, line.be_core_seconds)
    };
    (0..lines.len()).min_by(|&a, &b| distance(&lines[a]).total_cmp(&distance(&lines[b])))
}

/// A round's figures. `worth`: the work that a core-second is worth, where that is known.
fn policy_line(
    scenario: &Scenario,
    policy: &Policy,
    slo_us: f64,
    worth: Option<f64>,
    seen: &Seen<'_>,
) -> PolicyLine {
    let sharers = Sharers::of(scenario, policy, &seen.cell.guest);
    let p95s: Vec<f64> = seen
        .windows
        .iter()
        .filter_map(|w| w.figures.p95_us)
        .collect();
    let met = p95s.iter().filter(|p95| **p95 <= slo_us).count();
    let counters = seen.counters;
    let per_s = |count: u64| {
        counters
            .filter(|c| c.seconds > 0.0)
            .map(|c| count as f64 / c.seconds)
    };
    let guests = || counters.iter().flat_map(|c| &c.guests);
    let memory = counters.and_then(|c| c.memory.as_ref());
    let best_effort = |name: &str| {
        scenario
            .guests
            .iter()
            .any(|g| g.class == Class::BestEffort && g.name == name)
    };
    PolicyLine {
        policy: policy.name.clone(),
        max_rate_under_slo: max_rate(seen, slo_us),
        slo_met_share: (!p95s.is_empty()).then(|| met as f64 / p95s.len() as f64),
        core_seconds: Some(timeline::core_seconds(scenario, policy, seen)),
        p50_us: median_of(seen, |f| f.p50_us),
        p95_us: median_of(seen, |f| f.p95_us),
        p99_us: median_of(seen, |f| f.p99_us),
        ctx_switches_per_s: per_s(counters.map_or(0, |c| c.context_switches)),
        migrations_per_s: per_s(guests().map(|g| g.migrations).sum()),
        irqs_per_s: per_s(counters.map_or(0, |c| c.device_irqs + c.ipis)),
        kvm_exits_per_s: counters.and_then(|c| c.kvm_exits).and_then(per_s),
        be_core_seconds: counters.map(|_| {
            guests()
                .filter(|g| best_effort(&g.name))
                .map(|g| g.cpu_seconds)
                .sum()
        }),
        energy_j: counters.and_then(|c| c.energy_j),
        local_unused: memory.map(|memory| memory.local_unused),
        moved_mib: memory.map(|memory| memory.moved_bytes as f64 / f64::from(1 << 20)),
        ops_per_s: answers_per_s(seen),
        cell_p50_us: whole(seen).and_then(|f| f.p50_us),
        cell_p95_us: whole(seen).and_then(|f| f.p95_us),
        cell_p99_us: whole(seen).and_then(|f| f.p99_us),
        irq_to_run_p99_us: sharing::delay_p99_us(seen),
        fairness_error_10s: sharers.fairness_error(seen),
        neighbour_throughput: worth.and_then(|worth| sharers.neighbour_throughput(seen, worth)),
    }
}

/// Correct answers over all steps.
fn answers_per_s(seen: &Seen<'_>) -> Option<f64> {
    let seconds: f64 = seen.steps.iter().map(|step| step.seconds).sum();
    let answers: u64 = seen.steps.iter().map(|step| step.figures.completed).sum();
    (seconds > 0.0).then(|| answers as f64 / seconds)
}

/// The figures of the whole load, which only a single step's can be.
fn whole<'s>(seen: &'s Seen<'_>) -> Option<&'s LoadFigures> {
    match seen.steps.as_slice() {
        [step] => Some(&step.figures),
        _ => None,
    }
}

fn median_of(seen: &Seen<'_>, read: impl Fn(&LoadFigures) -> Option<f64>) -> Option<f64> {
    Spread::of(seen.windows.iter().map(|w| read(&w.figures))).map(|s| s.median)
}

/// The highest rate all of whose steps met the objective; 0 when the load had steps and none did. A step without an answer didn't; one in
/// which nothing was asked says nothing.
fn max_rate(seen: &Seen<'_>, slo_us: f64) -> Option<f64> {
    let met = |step: &StepLine| step.figures.p95_us.is_some_and(|p95| p95 <= slo_us);
    let asked = || seen.steps.iter().filter(|step| step.rate_per_s > 0.0);
    let rates = asked().map(|s| s.rate_per_s);
    rates
        .filter(|rate| {
            let mut steps = seen
                .steps
                .iter()
                .filter(|s| s.rate_per_s.total_cmp(rate).is_eq());
            steps.all(met)
        })
        .max_by(f64::total_cmp)
        .or_else(|| asked().next().map(|_| 0.0))
}

/// P95 at each rate, over all steps of that rate in all rounds.
fn curve(rounds: &[&Seen<'_>]) -> Vec<CurvePoint> {
    let steps = || rounds.iter().flat_map(|seen| &seen.steps);
    let mut rates: Vec<f64> = steps().map(|s| s.rate_per_s).collect();
    rates.sort_by(f64::total_cmp);
    rates.dedup_by(|a, b| a.total_cmp(b).is_eq());
    rates
        .into_iter()
        .map(|rate_per_s| CurvePoint {
            rate_per_s,
            p95_us: Spread::of(
                steps()
                    .filter(|s| s.rate_per_s.total_cmp(&rate_per_s).is_eq())
                    .map(|s| s.figures.p95_us),
            ),
        })
        .collect()
}

#[cfg(test)]
pub(crate) mod tests;
