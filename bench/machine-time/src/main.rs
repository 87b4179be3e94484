//! Machine time's promise, measured: the same figures however busy the real machine is. See README.md.

mod probe;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use bench_harness::{Args, Line, median, revision};
use clap::Parser;
use ostler_lab::binaries::Binaries;
use ostler_lab::hogs::Hogs;
use ostler_lab::image::{Image, LAB_FOLDER, LabDir};
use ostler_lab::machine::Time;
use ostler_lab::program::Program;
use ostler_lab::progress::Progress;
use ostler_lab::scenario::Scenario;
use ostler_lab::up;

/// Runs of each case, quiet and hogged each.
const RUNS: u32 = 5;
/// Rounds of the loop: 120 ms at a nanosecond per instruction.
const ROUNDS: u64 = 10_000_000;
/// Bytes to and fro in a run.
const BYTES: usize = 500;

/// The cases: name, the word that the probe prints, its unit in ns, and the bound on its spread.
const CASES: &[(&str, &str, &str, f64, f64)] = &[
    ("loop-l1", "LOOP", "ms", 1e6, 0.005),
    ("loop-l1-all", "LOOPS", "ms", 1e6, 0.005),
    ("loop-l2", "L2LOOP", "ms", 1e6, 0.005),
    ("loop-l2-all", "L2LOOPS", "ms", 1e6, 0.005),
    ("wake-l1", "WAKE", "us", 1e3, 0.10),
];

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
    /// Take the emulated host's programs from this folder instead of building them.
    #[arg(long)]
    bin_dir: Option<PathBuf>,
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
    if cli.args.quick {
        quick(&cli.args)
    } else {
        full(&cli.args, cli.bin_dir.as_deref())
    }
}

/// What one boot's two sessions printed.
struct Sessions {
    /// Words and figures, quiet and hogged.
    quiet: Vec<(String, f64)>,
    hogged: Vec<(String, f64)>,
    /// Real time of the quiet one.
    real_s: f64,
}

impl Sessions {
    fn figures(&self, word: &str) -> Vec<f64> {
        let all = self.quiet.iter().chain(&self.hogged);
        all.filter(|(its, _)| its == word)
            .map(|(_, ns)| *ns)
            .collect()
    }
}

fn full(args: &Args, bin_dir: Option<&Path>) -> Result<()> {
    ostler_lab::catch_interrupts();
    let mut binaries = match bin_dir {
        Some(folder) => Binaries::in_folder(folder)?,
        None => Binaries::build(None, Progress::Lines)?,
    };
    binaries.tests = vec![std::env::current_exe().context("could not find this program")?];
    let plugin = binaries.plugin.clone().context("the plugin wasn't built")?;
    let machine = sessions(
        &binaries,
        &Time::Machine {
            plugin,
            pace: false,
        },
    )?;
    let wall = sessions(&binaries, &Time::Wall { plugin: None })?;

    let mut broken = Vec::new();
    for &(case, word, unit, ns, bound) in CASES {
        let (ours, baseline) = (machine.figures(word), wall.figures(word));
        ensure!(
            !ours.is_empty() && !baseline.is_empty(),
            "{case}: the emulated host printed no {word}"
        );
        let line = line(case, unit, ns, ours, baseline);
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
    line("cost", "s", 1.0, vec![machine.real_s], vec![wall.real_s]).print(args);
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
    ] {
        let printed = std::process::Command::new(&program)
            .arg("probe")
            .args(verb)
            .output()
            .context("could not start the probe")?;
        ensure!(printed.status.success(), "{case}: the probe failed");
        let figures: Vec<f64> = parse(&String::from_utf8(printed.stdout)?)
            .into_iter()
            .filter(|(its, _)| its == word)
            .map(|(_, ns)| ns)
            .collect();
        ensure!(
            figures.len() >= 3,
            "{case}: the probe printed too few figures"
        );
        line(case, "ns", 1.0, figures.clone(), figures).print(args);
    }
    Ok(())
}

fn line(case: &str, unit: &str, ns: f64, mut ours: Vec<f64>, mut baseline: Vec<f64>) -> Line {
    let (our_median, baseline_median) = (median(&mut ours), median(&mut baseline));
    // `median` left the figures sorted.
    let range = ours[ours.len() - 1] - ours[0];
    Line {
        bench: "machine-time".into(),
        case: case.into(),
        ours: our_median / ns,
        baseline: baseline_median / ns,
        ratio: Some(our_median / baseline_median),
        unit: unit.into(),
        runs: ours.len(),
        spread: Some(range / our_median),
        rev: revision(),
    }
}

/// Boots the host, and runs the session in it twice: quiet, and beside hogs.
fn sessions(binaries: &Binaries, time: &Time) -> Result<Sessions> {
    let scenario = Scenario::parse(include_str!("scenario.toml"), Path::new("scenario.toml"))?;
    let program = Program::new(scenario, true);
    let lab = LabDir::detect();
    let image = Image::ensure(&lab, Progress::Lines)?;
    up::up(&lab, &image, binaries, &program, time, Progress::Lines)?;
    let down = Down(&lab);
    let session = || -> Result<Vec<(String, f64)>> {
        let script = include_str!("session.sh")
            .replace("ROUNDS", &ROUNDS.to_string())
            .replace("RUNS", &RUNS.to_string())
            .replace("BYTES", &BYTES.to_string())
            .replace("KERNEL", &format!("/{LAB_FOLDER}/vmlinuz"));
        let mut printed = Vec::new();
        let status = up::exec(&lab, &script, &mut printed)?;
        let printed = String::from_utf8_lossy(&printed);
        ensure!(
            status == 0 && printed.contains("L2END"),
            "the session failed ({status}):\n{printed}"
        );
        Ok(parse(&printed))
    };
    let began = Instant::now();
    let quiet = session().context("the quiet session")?;
    let real_s = began.elapsed().as_secs_f64();
    let hogs = Hogs::start();
    let hogged = session().context("the hogged session")?;
    drop(hogs);
    drop(down);
    Ok(Sessions {
        quiet,
        hogged,
        real_s,
    })
}

/// Lines of a word and a number.
fn parse(printed: &str) -> Vec<(String, f64)> {
    printed
        .lines()
        .filter_map(|line| {
            let (word, number) = line.trim().split_once(' ')?;
            Some((word.to_owned(), number.parse().ok()?))
        })
        .collect()
}

/// Ends the lab that is up, however the bench ends.
struct Down<'a>(&'a LabDir);

impl Drop for Down<'_> {
    fn drop(&mut self) {
        if let Err(error) = up::down(self.0) {
            eprintln!("the lab could not be ended: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_picked_out_of_what_is_printed() {
        let printed = "LOOP 120\n[    1.0] noise\nL2LOOP 121\r\nL2END\nLOOP x\n";
        assert_eq!(
            parse(printed),
            [("LOOP".to_owned(), 120.0), ("L2LOOP".to_owned(), 121.0)]
        );
    }

    #[test]
    fn spread_is_over_all_runs() {
        let line = line("c", "ms", 1e6, vec![100e6, 101e6, 99e6], vec![50e6]);
        assert_eq!((line.runs, line.spread), (3, Some(0.02)));
        assert!((line.ours - 100.0).abs() < 1e-9 && (line.baseline - 50.0).abs() < 1e-9);
    }
}
