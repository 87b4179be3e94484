//! The simulated machine's promises, measured. See README.md.

mod expected;
mod hits;
mod probe;

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use bench_harness::{Args, Line, median};
use bench_host::{Host, HostArgs, Parts, Printed, figures};
use clap::Parser;
use expected::expected;
use ostler_lab::hogs::Hogs;
use ostler_lab::machine::Time;
use ostler_lab::scenario::{self, Scenario};

/// Runs of each case, quiet and hogged each.
const RUNS: u32 = 5;
/// The part that the scenario's cores are.
const PART: &str = "epyc-7742";
/// Numbers that a core sorts and searches for while its speed is measured: they don't fit its L2.
const WORK: u32 = 400_000;
/// How often.
const SORTS: u32 = 8;

/// How far a count of instructions may be off.
const ICOUNT: f64 = 0.13;

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
    /// Only what needs no emulated host: the hit rates.
    #[arg(long)]
    hits: bool,
    #[command(subcommand)]
    verb: Option<Verb>,
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
    if cli.hits {
        let mut broken = Vec::new();
        hits::hits(&cli.host.args, PART, &mut broken)?;
        held(&broken)
    } else if cli.host.args.quick {
        quick(&cli.host.args)
    } else {
        full(&cli.host)
    }
}

fn full(args: &HostArgs) -> Result<()> {
    let parts = Parts::ensure(args)?;
    let (args, own) = (&args.args, &parts.own_time);
    let with_caches = scenario::parse(include_str!("scenario.toml"), Path::new("scenario.toml"))?;
    let mut without = with_caches.clone();
    without.host.caches = None;

    let session = include_str!("session.sh").replace("RUNS", &RUNS.to_string());
    let mut broken = Vec::new();
    hits::hits(args, PART, &mut broken)?;
    let host = parts.boot(&with_caches, own)?;
    let quiet = host.run(&session, "END").context("the quiet session")?;
    let hogs = Hogs::start();
    let hogged = host.run(&session, "END").context("the hogged session")?;
    drop(hogs);
    exact(args, &with_caches, &quiet, &hogged, &mut broken)?;
    steady(args, &quiet, &hogged, &mut broken)?;
    let caches = speeds(&host)?;
    drop(host);

    let host = parts.boot(&without, own)?;
    let instructions = speeds(&host)?;
    drop(host);
    let host = parts.boot(&without, &Time::Wall { plugin: None })?;
    let plain = speeds(&host)?;
    drop(host);

    icount(
        args,
        &instructions,
        without.host.instruction_ns,
        &mut broken,
    )?;
    for ((cores, with), ((_, alone), (_, none))) in
        caches.iter().zip(instructions.iter().zip(&plain))
    {
        // Without caches, an instruction costs the same whatever it does: its time tells how many there were.
        let count = f64::from(*cores) * alone.inside_ns / without.host.instruction_ns;
        let mips = |speed: &Speed| count / speed.real_s / 1e6;
        line(
            &format!("speed-{cores}"),
            "MIPS",
            vec![mips(with)],
            mips(none),
        )
        .print(args);
        line(
            &format!("speed-{cores}-instructions"),
            "MIPS",
            vec![mips(alone)],
            mips(none),
        )
        .print(args);
    }
    held(&broken)
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

/// Holds the number of instructions that the machine's time makes of the work on one core against Valgrind's count. The emulated host's
/// kernel has its ticks in between.
fn icount(
    args: &Args,
    speeds: &[(u32, Speed)],
    instruction_ns: f64,
    broken: &mut Vec<String>,
) -> Result<()> {
    let (_, alone) = speeds
        .iter()
        .find(|(cores, _)| *cores == 1)
        .context("nothing ran on one core")?;
    let ours = alone.inside_ns / instruction_ns / 1e6;
    let theirs = hits::mix_instructions(WORK)? / 1e6;
    let off = (ours / theirs - 1.0).abs();
    if off > ICOUNT {
        broken.push(format!(
            "icount-mix: {ours:.2} million instructions here, {theirs:.2} by Valgrind: {:.1} % off, and {:.0} % is allowed",
            off * 100.0,
            ICOUNT * 100.0
        ));
    }
    line("icount-mix", "million instructions", vec![ours], theirs).print(args);
    Ok(())
}

/// How long the same work took, each time.
struct Speed {
    /// By the emulated host's clock.
    inside_ns: f64,
    /// By ours.
    real_s: f64,
}

/// Sorts and searches on one core, two and four. In real time it is the difference between many runs and one: the program's start, its
/// memory's first use and the session itself are in both.
fn speeds(host: &Host) -> Result<Vec<(u32, Speed)>> {
    let mut all = Vec::new();
    for cores in [1, 2, 4] {
        let session = |runs: u32| {
            let script = format!(
                "echo $$ > /sys/fs/cgroup/cgroup.procs\n\
                 /lab/kernel-tests/bench-machine probe mix MIX {WORK} {cores} {runs}\necho END\n"
            );
            host.run(&script, "END")
        };
        let (one, many) = (session(1)?, session(1 + SORTS)?);
        let real_s = (many.real_s - one.real_s) / f64::from(SORTS);
        ensure!(
            real_s > 0.0,
            "{SORTS} sorts more took no longer, {} s and {} s; the machine is too busy to measure a speed on",
            many.real_s,
            one.real_s
        );
        all.push((
            cores,
            Speed {
                inside_ns: median(&mut many.of("MIX")?),
                real_s,
            },
        ));
    }
    Ok(all)
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
    Line::of("machine", case, unit, ours, vec![baseline])
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
