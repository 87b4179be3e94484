//! What the vCPU scheduler costs where no guest does IO, on machine time. See README.md.

mod hooks;
mod probe;
mod worker;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use bench_harness::{Args, Line, median, revision};
use clap::Parser;
use hooks::Hook;
use ostler_act::{Host as _, LinuxHost};
use ostler_lab::binaries::Binaries;
use ostler_lab::image::{Image, LabDir};
use ostler_lab::machine::{Time, guest_address};
use ostler_lab::program::Program;
use ostler_lab::progress::Progress;
use ostler_lab::scenario::Scenario;
use ostler_lab::up;
use ostler_model::{CpuSet, Pid, Tid};
use probe::Size;

/// What no case may cost more than with the kernel's own scheduler.
const GOAL: f64 = 1.03;

const SIZE: Size = Size {
    rounds: 5,
    loops: 20_000_000,
    messages: 2000,
};
/// Cores of the emulated host: neither the one that takes its housekeeping nor the client's.
const CORES: &str = "1-2";
/// To the guest, for what the hooks in KVM cost.
const PINGS: u32 = 200;

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
        probe: Probe,
    },
    /// A process that does work under whatever scheduler it is given.
    Worker {
        #[command(subcommand)]
        work: worker::Work,
    },
}

#[derive(clap::Subcommand)]
enum Probe {
    /// The workloads under both schedulers, in turn.
    Compare {
        #[command(flatten)]
        size: Size,
        #[arg(long)]
        on: CpuSet,
    },
    /// What each program of the scheduler takes meanwhile.
    Hooks {
        #[command(flatten)]
        size: Size,
        #[arg(long)]
        on: CpuSet,
    },
    /// The same while a guest takes part, and a command has it do IO.
    GuestHooks {
        /// Its QEMU.
        qemu: u32,
        #[arg(long)]
        on: CpuSet,
        #[arg(trailing_var_arg = true)]
        command: Vec<String>,
    },
}

/// Whose scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Ours,
    Baseline,
}

impl std::fmt::Display for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Side::Ours => "ours",
            Side::Baseline => "baseline",
        })
    }
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    match cli.verb {
        Some(Verb::Worker { work }) => worker::run(work),
        Some(Verb::Probe { probe }) => match probe {
            Probe::Compare { size, on } => {
                let ours = || probe::load(on).map(Some);
                probe::compare(&size, on, ours, |case, side, ns| {
                    println!("FIGURE {case} {side} {ns}");
                })
            }
            Probe::Hooks { size, on } => probe::hooks_of_threads(&size, on),
            Probe::GuestHooks { qemu, on, command } => {
                probe::hooks_of_guest(on, Pid(qemu), &command)
            }
        },
        None if cli.args.quick => quick(&cli.args),
        None => full(&cli.args, cli.bin_dir.as_deref()),
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
    let plugin = std::path::absolute(plugin).context("could not find the plugin")?;
    let told = session(
        &binaries,
        &Time::Machine {
            plugin,
            pace: false,
        },
    )?;
    let told = Told::parse(&told)?;

    let mut missed = Vec::new();
    for (case, sides) in &told.figures {
        let line = line(case, "ms", &sides.ours, &sides.baseline, 1e6)?;
        line.print(args);
        let ratio = line
            .ratio
            .context("the kernel's own scheduler took no time")?;
        if ratio > GOAL {
            missed.push(format!("{case} takes {ratio:.3} times as long"));
        }
    }
    // What a hook is a part of: a message from one thread to another, all that it takes of the two cores.
    let messages = told
        .figures
        .get("messages-1-on-2")
        .context("there are no messages")?;
    let message = median(&mut messages.baseline.clone()) / (2 * SIZE.messages) as f64;
    for (hook, count) in &told.hooks {
        let each = count.ns as f64 / count.runs as f64;
        line(
            &format!("hook-{hook}"),
            "instructions",
            &[each],
            &[message],
            1.0,
        )?
        .print(args);
    }
    if !missed.is_empty() {
        bail!(
            "the goal is at most {GOAL} times what the kernel's own scheduler takes, and it is missed: {}",
            missed.join("; ")
        );
    }
    Ok(())
}

/// Workers on this machine, under its own scheduler on both sides: it shows that they work, and holds nothing.
fn quick(args: &Args) -> Result<()> {
    let size = Size {
        rounds: 1,
        loops: 100_000,
        messages: 50,
    };
    let here = LinuxHost::detect().affinity(Tid(std::process::id()));
    let here = here.context("could not ask for this process's cores")?;
    let mut told = Told::default();
    probe::compare(
        &size,
        here,
        || Ok(None),
        |case, side, ns| told.figure(case, side, ns as f64),
    )?;
    for (case, sides) in &told.figures {
        line(
            &format!("{case}-here"),
            "ms",
            &sides.ours,
            &sides.baseline,
            1e6,
        )?
        .print(args);
    }
    Ok(())
}

/// What a session told, by case and by program.
#[derive(Debug, Default, PartialEq)]
struct Told {
    figures: BTreeMap<String, Sides>,
    hooks: BTreeMap<String, Hook>,
}

#[derive(Debug, Default, PartialEq)]
struct Sides {
    ours: Vec<f64>,
    baseline: Vec<f64>,
}

impl Told {
    fn figure(&mut self, case: &str, side: Side, ns: f64) {
        let sides = self.figures.entry(case.to_owned()).or_default();
        match side {
            Side::Ours => sides.ours.push(ns),
            Side::Baseline => sides.baseline.push(ns),
        }
    }

    fn parse(printed: &str) -> Result<Told> {
        let mut told = Told::default();
        for line in printed.lines() {
            let wrong = || format!("the emulated host printed {line}");
            match line.trim().split(' ').collect::<Vec<_>>()[..] {
                ["FIGURE", case, side, ns] => {
                    let side = match side {
                        "ours" => Side::Ours,
                        "baseline" => Side::Baseline,
                        _ => bail!(wrong()),
                    };
                    told.figure(case, side, ns.parse().with_context(wrong)?);
                }
                ["HOOK", name, runs, ns] => {
                    // With threads and with a guest: each program where it has something to do.
                    let hook = told.hooks.entry(name.to_owned()).or_default();
                    hook.runs += runs.parse::<u64>().with_context(wrong)?;
                    hook.ns += ns.parse::<u64>().with_context(wrong)?;
                }
                _ => {}
            }
        }
        told.hooks.retain(|_, hook| hook.runs > 0);
        ensure!(
            !told.figures.is_empty() && !told.hooks.is_empty(),
            "the emulated host told nothing:\n{printed}"
        );
        Ok(told)
    }
}

fn line(case: &str, unit: &str, ours: &[f64], baseline: &[f64], ns: f64) -> Result<Line> {
    ensure!(
        !ours.is_empty() && !baseline.is_empty(),
        "{case} was measured on one side only"
    );
    let (mut ours, mut baseline) = (ours.to_vec(), baseline.to_vec());
    let (our_median, baseline_median) = (median(&mut ours), median(&mut baseline));
    // `median` left the figures sorted.
    let range = ours[ours.len() - 1] - ours[0];
    Ok(Line {
        bench: "boost".into(),
        case: case.into(),
        ours: our_median / ns,
        baseline: baseline_median / ns,
        ratio: (baseline_median > 0.0).then_some(our_median / baseline_median),
        unit: unit.into(),
        runs: ours.len(),
        spread: (our_median > 0.0).then_some(range / our_median),
        rev: revision(),
    })
}

/// Boots the host, and runs the session in it; returns what it printed.
fn session(binaries: &Binaries, time: &Time) -> Result<String> {
    let scenario = Scenario::parse(include_str!("scenario.toml"), Path::new("scenario.toml"))?;
    let program = Program::new(scenario, true);
    let lab = LabDir::detect();
    let image = Image::ensure(&lab, Progress::Lines)?;
    up::up(&lab, &image, binaries, &program, time, Progress::Lines)?;
    let _down = Down(&lab);
    let size = format!("{} {} {}", SIZE.rounds, SIZE.loops, SIZE.messages);
    let script = include_str!("session.sh")
        .replace("SIZE", &size)
        .replace("CORES", CORES)
        .replace("PINGS", &PINGS.to_string())
        .replace("GUEST", &guest_address(0));
    let mut printed = Vec::new();
    let status = up::exec(&lab, &script, &mut printed)?;
    let printed = String::from_utf8_lossy(&printed).into_owned();
    ensure!(
        status == 0 && printed.contains("END"),
        "the session failed ({status}):\n{printed}"
    );
    Ok(printed)
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
        let printed = "FIGURE loop ours 100\n[    1.0] noise\r\nFIGURE loop baseline 50\r\n\
                       HOOK boost_tick_op 2 200\nHOOK boost_on_pio 0 0\nHOOK boost_tick_op 1 100\nEND\n";
        let told = Told::parse(printed).expect("figures");
        let loops = &told.figures["loop"];
        assert_eq!(
            (&loops.ours[..], &loops.baseline[..]),
            (&[100.0][..], &[50.0][..])
        );
        assert_eq!(told.hooks.len(), 1, "one that never ran has no cost");
        let tick = told.hooks["boost_tick_op"];
        assert_eq!((tick.runs, tick.ns), (3, 300));
        assert!(Told::parse("FIGURE loop theirs 1\n").is_err());
    }

    #[test]
    fn a_case_without_a_baseline_is_no_result() {
        assert!(line("c", "ms", &[1.0], &[], 1e6).is_err());
        let line = line("c", "ms", &[2e6, 3e6, 1e6], &[1e6], 1e6).expect("a result");
        assert_eq!(
            (line.ratio, line.spread, line.runs),
            (Some(2.0), Some(1.0), 3)
        );
    }
}
