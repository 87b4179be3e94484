//! The simulated machine's promises, measured. See README.md.

mod expected;
mod hits;
mod icount;
mod probe;
mod speeds;
mod works;

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use bench_harness::{Args, Line, median};
use bench_host::{HostArgs, Parts, Printed, figures};
use clap::Parser;
use expected::expected;
use ostler_lab::hogs::Hogs;
use ostler_lab::scenario::{self, Scenario};

/// This folder's name.
const BENCH: &str = "machine";
/// Runs of each case, quiet and hogged each.
const RUNS: u32 = 5;
/// The part that the scenario's cores are.
const PART: &str = "epyc-7742";
/// Cases with a figure to meet: name, the word that the probe prints, its unit, and how far a run may be off.
const EXACT: &[(&str, &str, &str, f64)] = &[
    ("latency-l1", "L1", "ns", 0.01),
    ("latency-l2", "L2", "ns", 0.01),
    ("latency-l3", "L3", "ns", 0.01),
    ("latency-local", "LOCAL", "ns", 0.01),
    ("latency-remote", "REMOTE", "ns", 0.01),
    ("latency-pool", "POOL", "ns", 0.01),
    ("bandwidth-pool", "STREAM", "MB/s", 0.05),
];
/// Cases that must be steady: name, word, unit in what the probe prints, spread.
const STEADY: &[(&str, &str, &str, f64, f64)] = &[
    ("steady-chase", "LOCAL", "ns", 1.0, 0.005),
    ("steady-mix", "MIX", "ms", 1e6, 0.005),
];

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    host: HostArgs,
    /// Only these; all unless said.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Group>,
    #[command(subcommand)]
    verb: Option<Verb>,
}

/// Cases that are measured together.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Group {
    /// Hit rates, which need no emulated host.
    Hits,
    /// Latencies, bandwidth and how steady they are.
    Memory,
    /// Counts of instructions.
    Icount,
    /// How fast it is.
    Speed,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Measures where it is run, and prints the figures.
    Probe {
        #[command(subcommand)]
        probe: probe::Probe,
    },
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    if let Some(Verb::Probe { probe }) = cli.verb {
        return probe::run(probe);
    }
    if cli.host.args.quick {
        quick(&cli.host.args)
    } else {
        full(&cli.host, &cli.only)
    }
}

fn full(host: &HostArgs, only: &[Group]) -> Result<()> {
    let asked = |group: Group| only.is_empty() || only.contains(&group);
    let args = &host.args;
    let mut broken = Vec::new();
    if asked(Group::Hits) {
        hits::hits(args, PART, &mut broken)?;
    }
    if only != [Group::Hits] {
        let parts = Parts::ensure(host)?;
        if asked(Group::Memory) {
            memory(args, &parts, &mut broken)?;
        }
        if asked(Group::Icount) {
            icount::counts(args, &parts, &mut broken)?;
        }
        if asked(Group::Speed) {
            speeds::speeds(args, &parts)?;
        }
    }
    held(&broken)
}

fn memory(args: &Args, parts: &Parts, broken: &mut Vec<String>) -> Result<()> {
    let with_caches = scenario::parse(include_str!("scenario.toml"), Path::new("scenario.toml"))?;
    let session = include_str!("session.sh").replace("RUNS", &RUNS.to_string());
    let host = parts.boot(&with_caches, &parts.own_time)?;
    let quiet = host.run(&session, "END").context("the quiet session")?;
    let hogs = Hogs::start();
    let hogged = host.run(&session, "END").context("the hogged session")?;
    drop(hogs);
    exact(args, &with_caches, &quiet, &hogged, broken)?;
    steady(args, &quiet, &hogged, broken)
}

/// Whether all is as promised.
fn held(broken: &[String]) -> Result<()> {
    if !broken.is_empty() {
        bail!(
            "the machine doesn't hold what it promises: {}",
            broken.join("; ")
        );
    }
    Ok(())
}

fn exact(
    args: &Args,
    scenario: &Scenario,
    quiet: &Printed,
    hogged: &Printed,
    broken: &mut Vec<String>,
) -> Result<()> {
    for &(case, word, unit, bound) in EXACT {
        let table = expected(case, PART, scenario)?;
        let figures: Vec<f64> = [quiet.of(word)?, hogged.of(word)?].concat();
        for figure in &figures {
            let off = (figure / table - 1.0).abs();
            if off > bound {
                broken.push(format!(
                    "{case}: {figure:.3} {unit} in a run, {table:.3} by the table: {:.2} % off, and {:.0} % is allowed",
                    off * 100.0,
                    bound * 100.0
                ));
            }
        }
        line(case, unit, figures, table).print(args);
    }
    Ok(())
}

fn steady(args: &Args, quiet: &Printed, hogged: &Printed, broken: &mut Vec<String>) -> Result<()> {
    for &(case, word, unit, scale, bound) in STEADY {
        let scaled = |figures: Vec<f64>| figures.into_iter().map(|f| f / scale).collect::<Vec<_>>();
        let (quiet, hogged) = (scaled(quiet.of(word)?), scaled(hogged.of(word)?));
        let line = line(
            case,
            unit,
            [hogged, quiet.clone()].concat(),
            median(&mut quiet.clone()),
        );
        line.print(args);
        let spread = line.spread.unwrap_or(f64::INFINITY);
        if spread > bound {
            broken.push(format!(
                "{case}: its spread is {:.2} %, and {:.2} % is allowed",
                spread * 100.0,
                bound * 100.0
            ));
        }
    }
    Ok(())
}

/// The probe on this machine, of which nothing is held; and a short program's hit rates, which are.
fn quick(args: &Args) -> Result<()> {
    let mut broken = Vec::new();
    hits::hits(args, PART, &mut broken)?;
    held(&broken)?;
    let program = std::env::current_exe().context("could not find this program")?;
    for (case, word, verb) in [
        ("chase-here", "NEAR", ["chase", "NEAR", "16", "3", ""]),
        (
            "stream-here",
            "STREAM",
            ["stream", "STREAM", "1024", "3", ""],
        ),
        ("mix-here", "MIX", ["mix", "MIX", "1000", "1", "3"]),
    ] {
        let printed = std::process::Command::new(&program)
            .arg("probe")
            .args(verb.iter().filter(|word| !word.is_empty()))
            .output()
            .context("could not start the probe")?;
        ensure!(
            printed.status.success(),
            "{case}: the probe failed: {}",
            String::from_utf8_lossy(&printed.stderr)
        );
        let figures: Vec<f64> = figures(&String::from_utf8(printed.stdout)?, word).collect();
        ensure!(figures.len() == 3, "{case}: {} figures of 3", figures.len());
        ensure!(
            figures.iter().all(|&figure| figure > 0.0),
            "{case}: a figure of nothing"
        );
        let baseline = median(&mut figures.clone());
        line(case, "as printed", figures, baseline).print(args);
    }
    Ok(())
}

fn line(case: &str, unit: &str, ours: Vec<f64>, baseline: f64) -> Line {
    Line::of(BENCH, case, unit, ours, vec![baseline])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expectations_come_from_the_tables() {
        let scenario = scenario::parse(include_str!("scenario.toml"), Path::new("scenario.toml"))
            .expect("the bench's own scenario");
        let expected = |case| expected(case, PART, &scenario).expect("a known part");
        assert!((expected("latency-l1") - 4.0 / 3.4).abs() < 1e-9);
        assert!((expected("latency-pool") - 400.0).abs() < 1e-9);
        assert!((expected("bandwidth-pool") - 4194.304).abs() < 1e-9);
    }
}
