//! `ostler sim`: a scenario in simulated worlds, and what came of two runs side by side.

mod compare;
mod fleet;
mod log;
mod records;
mod traces;

use std::io::IsTerminal as _;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, bail, ensure};
use ostler_outcome::events::{Cell, Event};
use ostler_outcome::gather::{self, Summary};
use ostler_outcome::report;
use ostler_record::Wall;
use ostler_report::Spread;
use ostler_report::say::{micros, percent, short};
use ostler_scenario::{Scenario, ScenarioError};
use ostler_sim::run::{self, Meanwhile, Run, Watch};
use ostler_sim::scenario;

use super::EXIT_CONFIG;
use crate::output::{self, Paint, Table};
use log::Log;
use records::Records;
use traces::Traces;

/// Run a scenario in simulated worlds: the same `decide()`, no hardware
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Scenarios are the lab's, and more (scenarios/README.md). Each policy runs under each load in each round, on all cores; the same seed gives the \
    same bytes, on any machine and any number of threads.\n\n\
    Examples:\n  ostler sim scenarios/vspace-ramp.toml --report ramp.html\n  ostler sim scenarios/anubis.toml --policy eevdf-2 --policy boost-2 --seed 7 --json\n  \
    ostler sim scenarios/vspace-ramp.toml --events ramp.jsonl   # cut off? the same command goes on\n  \
    ostler sim scenarios/vspace-ramp.toml --beside target/lab/runs/0001-vspace-ramp   # the lab's figures and these\n  \
    ostler sim scenarios/smoke.toml --records kept && ostler replay kept/cell-2/record.db   # the first two have no steward\n  ostler sim scenarios/smoke.toml --trace kept   # who had which core when, as the lab's kernel tells it\n  \
    ostler sim compare lab.jsonl sim.jsonl\n  \
    ostler sim scenarios/simulated/fleet.toml --oversubscription 1,2,3 --policy vanilla,boost   # whose users wait too long?\n\n\
    Exit codes: 0 done, and as the scenario expects; 1 not as expected, or a world's books were wrong; 4 the scenario was refused."
)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// The scenario's file
    scenario: Option<PathBuf>,
    /// Run these policies only
    #[arg(long = "policy", value_name = "NAME", value_delimiter = ',')]
    policies: Vec<String>,
    /// What everything random is drawn from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// vCPUs that may come to a host for each of its cores, instead of the fleet's; several are compared
    #[arg(long, value_name = "RATIO", value_delimiter = ',', value_parser = ratio)]
    oversubscription: Vec<f64>,
    /// So many rounds instead of the scenario's
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Threads [default: as many as cores]
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Print JSON lines, one per policy and cell, as `ostler lab run` does
    #[arg(long)]
    json: bool,
    /// Write a report here
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// Keep all that happened here, of a fleet what came of each host; of a run that was cut off, what is there counts, and the rest is run
    #[arg(long, value_name = "FILE.jsonl")]
    events: Option<PathBuf>,
    /// Keep the steward's record of each cell in this folder, as `cell-N/record.db`, for `ostler replay` and `ostler explain --record`
    #[arg(long, value_name = "FOLDER")]
    records: Option<PathBuf>,
    /// Keep what Linux's tracer would have written of each cell in this folder, as `cell-N/trace.txt`: who is woken by whom, who has each core, interrupts, what leaves, in
    /// the format of /sys/kernel/tracing/trace (2 MB for a busy second)
    #[arg(long, value_name = "FOLDER")]
    trace: Option<PathBuf>,
    /// Show it beside this run of the same scenario, the lab's say, as `compare` does: its folder, or its JSON lines
    #[arg(long, value_name = "RUN")]
    beside: Option<PathBuf>,
    /// Keep each world's books twice and hold them against each other (half as fast)
    #[arg(long)]
    audit: bool,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Compare(compare::Args),
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    if let Some(Command::Compare(args)) = args.command {
        return compare::run(&args);
    }
    let Some(path) = &args.scenario else {
        bail!("name a scenario's file, like `ostler sim scenarios/smoke.toml`");
    };
    let scenario = match scenario::load(path) {
        Ok(scenario) => scenario,
        Err(error @ ScenarioError::Read { .. }) => return Err(error.into()),
        Err(error) => return Ok(refused(&error)),
    };
    // Before anything is run for it.
    if let Some(report) = &args.report {
        writable(report)?;
    }
    let beside = args.beside.as_deref().map(compare::Read::new).transpose()?;
    if scenario.fleet.is_some() {
        ensure!(
            beside.is_none(),
            "--beside is for scenarios of one host, as the lab has no fleets; leave it out"
        );
        ensure!(
            args.records.is_none(),
            "--records is for scenarios of one host; leave it out"
        );
        ensure!(
            args.trace.is_none(),
            "--trace is for scenarios of one host; leave it out"
        );
        return fleet::run(&args, path, &scenario);
    }
    ensure!(
        args.oversubscription.is_empty(),
        "--oversubscription is for fleets, and the scenario has none"
    );
    let run = match prepare(&args, scenario) {
        Ok(run) => run,
        Err(error) => return Ok(refused(&error)),
    };
    for left_out in scenario::left_out(run.scenario()) {
        ostler_lab::tell!("sim: {left_out}");
    }
    let revision = ostler_lab::run::revision();
    let started = output::time(Wall::from(SystemTime::now()));
    let begins = run.begins(&revision, &started);
    let mut log = match &args.events {
        Some(path) => Log::open(path, &begins)?,
        None => Log::in_memory(&begins),
    };
    let cells: Vec<_> = run
        .cells()
        .into_iter()
        .filter(|cell| !log.has(cell.index))
        .collect();
    if log.cells() > 0 {
        ostler_lab::tell!(
            "sim: {} cells are there already, {} are to be run",
            log.cells(),
            cells.len()
        );
    }
    let records = args.records.as_deref();
    let records = records.map(|folder| Records::new(folder, &cells));
    let traces = args.trace.as_deref();
    let traces = traces.map(|folder| Traces::new(folder, &cells));
    let kept = Kept {
        records: records.transpose()?,
        traces: traces.transpose()?,
    };
    let problems = play(&run, &cells, &args, &mut log, &kept)?;
    let summaries = gather::summaries(run.scenario(), log.events());
    match beside {
        None => show(&run, &summaries, &args)?,
        Some(beside) => {
            let simulated = compare::Read::simulated(&summaries, path, &revision)?;
            compare::show(beside, simulated, args.json, args.report.as_deref())?;
        }
    }
    let unmet = gather::unmet(&run.scenario().expectations, &summaries);
    for unmet in &unmet {
        ostler_lab::tell!("sim: not as expected: {unmet}");
    }
    Ok(if problems || !unmet.is_empty() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn ratio(text: &str) -> Result<f64, String> {
    let ratio = text
        .parse()
        .ok()
        .filter(|ratio| (0.1..=100.0).contains(ratio));
    ratio.ok_or_else(|| "write 0.1 to 100 vCPUs to a core, like 3".to_owned())
}

fn refused(error: &dyn std::error::Error) -> ExitCode {
    ostler_lab::tell!("{error}\n\nthe scenario is refused");
    ExitCode::from(EXIT_CONFIG)
}

fn prepare(args: &Args, mut scenario: Scenario) -> Result<Run, run::RunError> {
    if let Some(rounds) = args.rounds {
        scenario.rounds = rounds;
    }
    let watch = Watch {
        books: args.audit,
        periods: args.records.is_some(),
        trace: args.trace.is_some(),
    };
    Run::new(scenario, args.seed, watch)?.only(&args.policies)
}

/// What is kept of cells beside their events.
struct Kept {
    records: Option<Records>,
    traces: Option<Traces>,
}

impl Kept {
    /// A cell is over, and what is kept of it whole.
    fn ended(&self, cell: &Cell) -> anyhow::Result<()> {
        self.records
            .as_ref()
            .map_or(Ok(()), |records| records.ended(cell))?;
        self.traces
            .as_ref()
            .map_or(Ok(()), |traces| traces.ended(cell))
    }
}

/// Runs cells and keeps what they tell; whether anything was wrong.
fn play(
    run: &Run,
    cells: &[Cell],
    args: &Args,
    log: &mut Log,
    beside: &Kept,
) -> anyhow::Result<bool> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = args.jobs.unwrap_or(cores);
    ensure!(threads > 0, "--jobs 0: write 1 or more, or leave it out");
    let progress = Progress::new(cells.len());
    let mut kept = Ok(());
    let begun = Instant::now();
    let mut happened = 0;
    run::all(
        run,
        cells,
        threads,
        &|cell, what| match what {
            Meanwhile::Done(done) => progress.at(cell, done),
            Meanwhile::Period(period) => {
                if let Some(records) = &beside.records {
                    records.keep(cell, *period);
                }
            }
            Meanwhile::Trace(text) => {
                if let Some(traces) = &beside.traces {
                    traces.keep(cell, &text);
                }
            }
        },
        &mut |cell, came| {
            happened += came.events;
            progress.ended(cell);
            // A cell that the log has is not run again, so what is kept of it comes first.
            kept = beside.ended(cell);
            if kept.is_ok() {
                kept = log.add(came.told);
            }
            if kept.is_ok() {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        },
    )?;
    kept?;
    progress.over(happened, begun.elapsed());
    let mut wrong = false;
    for event in log.events() {
        if let Event::CellEnd { cell, problems, .. } = &event.event {
            for problem in problems {
                wrong = true;
                ostler_lab::tell!("sim: cell {cell}: {problem}");
            }
        }
    }
    Ok(wrong)
}

/// What it took, in words: it differs from machine to machine, so it is in no result.
fn effort(events: u64, took: Duration) -> String {
    let seconds = took.as_secs_f64();
    let rate = short(events as f64 / seconds.max(1e-9));
    let memory = std::fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| peak_kib(&status))
        .map(|kib| format!(", {} MiB at most", kib >> 10))
        .unwrap_or_default();
    format!("{events} events in {seconds:.1} s, {rate} a second{memory}")
}

/// The most memory that a process has had at once, KiB, by its `/proc/PID/status` (proc(5), `VmHWM`).
fn peak_kib(status: &str) -> Option<u64> {
    let told = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    told.trim().strip_suffix(" kB")?.parse().ok()
}

/// How far all cells are, on a terminal's last line; elsewhere, a line for each cell.
struct Progress {
    all: usize,
    terminal: bool,
    state: Mutex<State>,
}

struct State {
    ended: usize,
    under_way: std::collections::BTreeMap<u32, f64>,
    shown: Option<Instant>,
}

/// A terminal's line is drawn no more often.
const REDRAW: Duration = Duration::from_millis(100);

impl Progress {
    fn new(all: usize) -> Progress {
        let state = State {
            ended: 0,
            under_way: std::collections::BTreeMap::new(),
            shown: None,
        };
        Progress {
            all,
            terminal: std::io::stderr().is_terminal(),
            state: Mutex::new(state),
        }
    }

    fn at(&self, cell: &Cell, done: f64) {
        let Ok(mut state) = self.state.lock() else {
            return;
        };
        state.under_way.insert(cell.index, done);
        if self.terminal && state.shown.is_none_or(|shown| shown.elapsed() >= REDRAW) {
            let parts: f64 = state.under_way.values().sum();
            let share = (state.ended as f64 + parts) / self.all.max(1) as f64;
            eprint!("\r\x1b[Ksim: {:3.0} %  {cell}", share.min(1.0) * 100.0);
            state.shown = Some(Instant::now());
        }
    }

    fn ended(&self, cell: &Cell) {
        let Ok(mut state) = self.state.lock() else {
            return;
        };
        state.under_way.remove(&cell.index);
        state.ended += 1;
        if !self.terminal {
            ostler_lab::tell!("sim: {} of {}: {cell}", state.ended, self.all);
        }
    }

    fn over(&self, events: u64, took: Duration) {
        if self.terminal && self.all > 0 {
            eprint!("\r\x1b[K");
        }
        if self.all > 0 {
            ostler_lab::tell!("sim: {} cells, {}", self.all, effort(events, took));
        }
    }
}

/// Prints what came of it, and writes the report; neither goes missing where the other can't be had.
fn show(run: &Run, summaries: &[Summary], args: &Args) -> anyhow::Result<()> {
    let printed = print(run, summaries, args);
    if let Some(path) = &args.report {
        let runs: Vec<_> = summaries.iter().map(|summary| &summary.run).collect();
        write(path, &report::render_all(&runs))?;
        ostler_lab::tell!("sim: report: {}", path.display());
    }
    printed
}

fn print(run: &Run, summaries: &[Summary], args: &Args) -> anyhow::Result<()> {
    if args.json {
        for line in gather::result_lines(summaries) {
            output::print(&format!(
                "{}\n",
                serde_json::to_string(&line).context("a line is always JSON")?
            ))?;
        }
        return Ok(());
    }
    let paint = Paint(output::colours());
    let mut text = String::new();
    for summary in summaries {
        text.push_str(&paint.bold(&summary.run.workload));
        text.push('\n');
        text.push_str(&table(run, summary, paint));
        text.push('\n');
    }
    output::print(&text)
}

fn table(run: &Run, summary: &Summary, paint: Paint) -> String {
    let mut head = vec![
        "POLICY",
        "WITHIN SLO",
        "P50",
        "P95",
        "P99",
        "ANSWERS/S",
        "CORE-S",
        "BE CORE-S",
        "ENERGY J",
        "SWITCHES/S",
    ];
    let policies = &summary.run.policies;
    let far = policies
        .iter()
        .any(|policy| policy.figures.local_unused.is_some());
    if far {
        head.extend(["NEAR UNUSED", "MOVED MIB"]);
    }
    let mut table = Table::new(&head);
    let said = |spread: Option<Spread>, say: fn(f64) -> String| {
        let spread = spread.and_then(Spread::finite);
        spread.map_or_else(|| "-".to_owned(), |spread| say(spread.median))
    };
    for policy in policies {
        let f = &policy.figures;
        let ours = run.scenario().policies.iter();
        let ours = ours
            .filter(|known| known.name == policy.policy)
            .any(ostler_scenario::Policy::is_ours);
        let mut row = vec![
            if ours {
                paint.bold(&policy.policy)
            } else {
                policy.policy.clone()
            },
            said(f.slo_met_share, percent),
            said(f.p50_us, micros),
            said(f.p95_us, micros),
            said(f.p99_us, micros),
            said(f.ops_per_s, short),
            said(f.core_seconds, short),
            said(f.be_core_seconds, short),
            said(f.energy_j, short),
            said(f.ctx_switches_per_s, short),
        ];
        if far {
            row.extend([said(f.local_unused, percent), said(f.moved_mib, short)]);
        }
        table.row(row);
    }
    table.render(paint)
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    folder_of(path)?;
    std::fs::write(path, text).with_context(|| format!("could not write {}", path.display()))
}

fn folder_of(path: &Path) -> anyhow::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("could not create the folder {}", folder.display()))?;
    }
    Ok(())
}

/// Whether a report can be written there, which is asked before the run that it is of. What is there stays; what isn't doesn't come of it.
fn writable(path: &Path) -> anyhow::Result<()> {
    folder_of(path)?;
    let there = path.symlink_metadata().is_ok();
    std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
        .with_context(|| format!("could not write the report {}", path.display()))?;
    if !there {
        std::fs::remove_file(path)
            .with_context(|| format!("could not remove {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::peak_kib;

    #[test]
    fn the_most_memory_is_read_of_a_status() {
        let status = "Name:\tostler\nVmPeak:\t  9000 kB\nVmHWM:\t   54321 kB\nVmRSS:\t  100 kB\n";
        assert_eq!(peak_kib(status), Some(54321));
        for damaged in ["", "VmHWM:", "VmHWM:\t54321", "VmHWM:\t-1 kB"] {
            assert_eq!(peak_kib(damaged), None, "{damaged:?}");
        }
        let own = std::fs::read_to_string("/proc/self/status").expect("proc");
        assert!(peak_kib(&own) > Some(100));
    }
}
