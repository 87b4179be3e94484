//! What the vCPU scheduler costs where no guest does IO, on machine time. See README.md.

mod hooks;
mod probe;
mod worker;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use bench_harness::{Args, Line, median};
use bench_host::{Host, HostArgs, Parts};
use clap::Parser;
use hooks::Hook;
use ostler_act::{Host as _, LinuxHost};
use ostler_lab::machine::{Time, guest_address};
use ostler_lab::scenario;
use ostler_model::{CpuSet, Pid, Tid};
use probe::{Loaded, Size};

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
    host: HostArgs,
    /// Measure nothing, and tell where the instructions of `messages-4-on-2` go instead: a file for each scheduler, by function, in this folder.
    #[arg(long, value_name = "FOLDER", conflicts_with = "quick")]
    profile: Option<PathBuf>,
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
    /// The workloads under each scheduler, in turn.
    Compare {
        #[command(flatten)]
        size: Size,
        #[arg(long)]
        on: CpuSet,
    },
    /// Where the instructions go under each.
    Profile {
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
    /// The least that a scheduler does with sched_ext.
    Least,
    Baseline,
}

impl Side {
    const ALL: [Side; 3] = [Side::Ours, Side::Baseline, Side::Least];
}

impl std::fmt::Display for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Side::Ours => "ours",
            Side::Least => "least",
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
                let by = |side| Loaded::of(side, on);
                probe::compare(&size, on, by, |case, side, ns| {
                    println!("FIGURE {case} {side} {ns}");
                })
            }
            Probe::Profile { size, on } => probe::profile(&size, on),
            Probe::Hooks { size, on } => probe::hooks_of_threads(&size, on),
            Probe::GuestHooks { qemu, on, command } => {
                probe::hooks_of_guest(on, Pid(qemu), &command)
            }
        },
        None if cli.host.args.quick => quick(&cli.host.args),
        None if let Some(folder) = &cli.profile => profile(&cli.host, folder),
        None => full(&cli.host),
    }
}

/// Boots the host with a machine that counts by address, and puts what it counted together with what the addresses are.
fn profile(args: &HostArgs, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)
        .with_context(|| format!("could not make {}", folder.display()))?;
    let mut parts = Parts::ensure(args)?;
    if let Time::Machine { profile, .. } = &mut parts.own_time {
        *profile = true;
    }
    let (host, told) = session(&parts, include_str!("profile.sh"))?;
    let on: CpuSet = CORES.parse().context("the cores are no list")?;
    for (window, side) in (0..).zip(Side::ALL) {
        // The kernel's own functions, and the programs that were loaded then.
        let symbols: Vec<&str> = told
            .lines()
            .filter_map(|line| {
                let (of, symbol) = line.trim().strip_prefix("SYMBOL ")?.split_once(' ')?;
                (of == "all" || of == side.to_string()).then_some(symbol)
            })
            .collect();
        let path = folder.join(format!("{side}.tsv"));
        std::fs::write(&path, host.profile(window, &symbols.join("\n"), &on)?)
            .with_context(|| format!("could not write {}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}

fn full(args: &HostArgs) -> Result<()> {
    let (_, told) = session(&Parts::ensure(args)?, include_str!("session.sh"))?;
    let args = &args.args;
    let told = Told::parse(&told)?;

    let mut missed = Vec::new();
    for (case, sides) in &told.figures {
        let line = line(case, "ms", &sides.ours, &sides.baseline, 1e6)?;
        line.print(args);
        let floor = format!("{case}-least");
        self::line(&floor, "ms", &sides.least, &sides.baseline, 1e6)?.print(args);
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

/// Workers on this machine, under its own scheduler on all sides: it shows that they work, and holds nothing.
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
        |_| Ok(Loaded::Nobodys),
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
    least: Vec<f64>,
    baseline: Vec<f64>,
}

impl Told {
    fn figure(&mut self, case: &str, side: Side, ns: f64) {
        let sides = self.figures.entry(case.to_owned()).or_default();
        match side {
            Side::Ours => sides.ours.push(ns),
            Side::Least => sides.least.push(ns),
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
                        "least" => Side::Least,
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
    let scaled = |figures: &[f64]| figures.iter().map(|figure| figure / ns).collect();
    Ok(Line::of(
        "boost",
        case,
        unit,
        scaled(ours),
        scaled(baseline),
    ))
}

/// Boots the host, and runs a session in it; returns the host and what was printed.
fn session(parts: &Parts, script: &str) -> Result<(Host, String)> {
    let scenario = scenario::parse(include_str!("scenario.toml"), Path::new("scenario.toml"))?;
    let host = parts.boot(&scenario, &parts.own_time)?;
    let size = format!("{} {} {}", SIZE.rounds, SIZE.loops, SIZE.messages);
    let script = script
        .replace("SIZE", &size)
        .replace("CORES", CORES)
        .replace("PINGS", &PINGS.to_string())
        .replace("GUEST", &guest_address(0));
    let told = host.run(&script, "END")?.text;
    Ok((host, told))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_picked_out_of_what_is_printed() {
        let printed = "FIGURE loop ours 100\n[    1.0] noise\r\nFIGURE loop baseline 50\r\nFIGURE loop least 70\n\
                       HOOK boost_tick_op 2 200\nHOOK boost_on_pio 0 0\nHOOK boost_tick_op 1 100\nEND\n";
        let told = Told::parse(printed).expect("figures");
        let loops = &told.figures["loop"];
        assert_eq!(
            (&loops.ours[..], &loops.least[..], &loops.baseline[..]),
            (&[100.0][..], &[70.0][..], &[50.0][..])
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
