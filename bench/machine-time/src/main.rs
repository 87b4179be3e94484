//! Machine time's promise, measured: the same figures however busy the real machine is. See README.md.

mod probe;

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use bench_harness::{Args, Line};
use bench_host::{HostArgs, Parts, Printed, figures};
use clap::Parser;
use ostler_lab::hogs::Hogs;
use ostler_lab::image::LAB_FOLDER;
use ostler_lab::machine::{Time, guest_kernel};
use ostler_lab::scenario;

/// This folder's name.
const BENCH: &str = "machine-time";
/// Runs of each case, quiet and hogged each.
const RUNS: u32 = 5;
/// Rounds of the loop: 120 ms at a nanosecond per instruction.
const ROUNDS: u64 = 10_000_000;
/// Bytes to and fro in a run.
const BYTES: usize = 500;

/// The cases: name, the word that the probe prints, its unit in ns, and the bound on its spread. Beside cores that compute there is none: those ask for the
/// time, too, and how far they are by then is the real machine's choice, within a quantum and a half.
const CASES: &[(&str, &str, &str, f64, f64)] = &[
    ("loop-l1", "LOOP", "ms", 1e6, 0.005),
    ("loop-l1-all", "LOOPS", "ms", 1e6, 0.005),
    ("loop-l2", "L2LOOP", "ms", 1e6, 0.005),
    ("loop-l2-all", "L2LOOPS", "ms", 1e6, 0.005),
    ("wake-l1", "WAKE", "us", 1e3, 0.10),
    ("wake-l1-beside", "WAKES", "us", 1e3, f64::INFINITY),
];

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    host: HostArgs,
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
    if cli.host.args.quick {
        quick(&cli.host.args)
    } else {
        full(&cli.host)
    }
}

/// What one boot's two sessions printed.
struct Sessions {
    quiet: Printed,
    hogged: Printed,
}

impl Sessions {
    /// A word's figures of both, in units of so many ns.
    fn of(&self, word: &str, ns: f64) -> Result<Vec<f64>> {
        let all = [self.quiet.of(word)?, self.hogged.of(word)?].concat();
        Ok(all.into_iter().map(|figure| figure / ns).collect())
    }
}

fn full(args: &HostArgs) -> Result<()> {
    let parts = Parts::ensure(args)?;
    let args = &args.args;
    let machine = sessions(&parts, &parts.own_time)?;
    let wall = sessions(&parts, &Time::Wall { plugin: None })?;

    let mut broken = Vec::new();
    for &(case, word, unit, ns, bound) in CASES {
        let line = Line::of(BENCH, case, unit, machine.of(word, ns)?, wall.of(word, ns)?);
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
    let real_s = |sessions: &Sessions| vec![sessions.quiet.real_s];
    Line::of(BENCH, "cost", "s", real_s(&machine), real_s(&wall)).print(args);
    if !broken.is_empty() {
        bail!(
            "machine time doesn't hold what it promises: {}",
            broken.join("; ")
        );
    }
    Ok(())
}

/// The probe on this machine: ours and the baseline are the same, and nothing is held.
fn quick(args: &Args) -> Result<()> {
    let program = std::env::current_exe().context("could not find this program")?;
    for (case, word, verb) in [
        ("loop-here", "LOOP", ["loop", "100000", "3"]),
        ("loop-here-all", "LOOPS", ["loops", "100000", "3"]),
        ("wake-here", "WAKE", ["wake", "50", "3"]),
        ("wake-here-beside", "WAKES", ["wakes", "50", "3"]),
    ] {
        let printed = std::process::Command::new(&program)
            .arg("probe")
            .args(verb)
            .output()
            .context("could not start the probe")?;
        ensure!(printed.status.success(), "{case}: the probe failed");
        let figures: Vec<f64> = figures(&String::from_utf8(printed.stdout)?, word).collect();
        ensure!(
            figures.len() >= 3,
            "{case}: the probe printed too few figures"
        );
        Line::of(BENCH, case, "ns", figures.clone(), figures).print(args);
    }
    Ok(())
}

/// Boots a host, and runs the session in it twice: quiet, and beside hogs.
fn sessions(parts: &Parts, time: &Time) -> Result<Sessions> {
    let scenario = scenario::parse(include_str!("scenario.toml"), Path::new("scenario.toml"))?;
    let host = parts.boot(&scenario, time)?;
    let script = include_str!("session.sh")
        .replace("ROUNDS", &ROUNDS.to_string())
        .replace("RUNS", &RUNS.to_string())
        .replace("BYTES", &BYTES.to_string())
        .replace("KERNEL", &format!("/{LAB_FOLDER}/vmlinuz"))
        .replace("COMMAND_LINE", &guest_kernel());
    let session = || host.run(&script, "L2END");
    let quiet = session().context("the quiet session")?;
    let _hogs = Hogs::start();
    let hogged = session().context("the hogged session")?;
    Ok(Sessions { quiet, hogged })
}
