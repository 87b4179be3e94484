//! Fused machines' promises, measured: exact atomics, interrupts on time, figures that don't depend on the real machine's
//! load; what memory costs; and how fast machines run. See README.md.

mod costs;
mod micro;
mod speed;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bench_harness::{Args, Line, median, revision};
use clap::Parser;
use ostler_lab::binaries::Binaries;
use ostler_lab::hogs::Hogs;
use ostler_lab::image::{Emulators as Tree, LabDir};
use ostler_lab::progress::Progress;
use ostler_machine_launch::{Emulators, Ended, Isa, Options, World, run};
use ostler_machine_programs::{DOORBELL, LITMUS, Program, figures};

/// The models: their description, and where there is memory that both see.
const MODELS: &[(&str, &str, u64)] = &[
    ("separated", include_str!("separated.toml"), 4 << 30),
    ("shared", include_str!("shared.toml"), 4 << 30),
    ("fully-shared", include_str!("fully-shared.toml"), 2 << 30),
];
/// Operations of each of three kinds, by each machine: more than 10^7 in all.
const OPERATIONS: u64 = 2_000_000;
/// Rounds of store buffering.
const ROUNDS: u64 = 10_000;
/// Doorbells there and back.
const RINGS: u64 = 5_000;
/// Runs of each timed case, quiet and hogged each.
const RUNS: usize = 3;
/// Of all figures of virtual time.
const SPREAD: f64 = 0.005;
/// What may come between a doorbell's latency and the reading of the clock in its handler: instructions.
const AROUND: u64 = 60;
const HUNG: Duration = Duration::from_mins(20);

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
    /// The plugin that keeps time, instead of building it.
    #[arg(long)]
    plugin: Option<PathBuf>,
    /// Only how fast machines run, which holds nothing, and on so many cores.
    #[arg(long, value_name = "CORES", value_delimiter = ',', num_args = 1..)]
    speed: Vec<u32>,
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    ostler_lab::catch_interrupts();
    let tree = Tree::ensure(&LabDir::detect(), Progress::Lines)?;
    let plugin = match cli.plugin {
        Some(plugin) => plugin,
        None => Binaries::build_plugin(Progress::Lines)?,
    };
    let bench = Bench {
        emulators: Emulators::in_tree(tree.root(), std::path::absolute(plugin)?),
        args: cli.args,
    };
    let mut broken = Vec::new();
    let models = if cli.speed.is_empty() { MODELS } else { &[] };
    for &model in models {
        bench.litmus(model, &mut broken)?;
        bench.doorbells(model, &mut broken)?;
        bench.costs(model, &mut broken)?;
        bench.micro(model, &mut broken)?;
    }
    for isa in [Isa::X86_64, Isa::Aarch64] {
        bench.speed(isa)?;
        bench.boots(isa, &cli.speed)?;
    }
    ensure!(
        broken.is_empty(),
        "fused machines don't hold what they promise: {}",
        broken.join("; ")
    );
    Ok(())
}

/// A name, a description, and an address that both machines see.
type Model = (&'static str, &'static str, u64);

struct Bench {
    emulators: Emulators,
    args: Args,
}

impl Bench {
    fn run(&self, text: &str, program: Program, parameters: &[u64]) -> Result<Vec<Ended>> {
        self.run_each(text, program, &[parameters, parameters])
    }

    /// With parameters for either.
    fn run_each(
        &self,
        text: &str,
        program: Program,
        [x86_64, aarch64]: &[&[u64]; 2],
    ) -> Result<Vec<Ended>> {
        let folder = tempfile::tempdir()?;
        std::fs::write(folder.path().join("x86_64"), program.x86_64(x86_64))?;
        std::fs::write(folder.path().join("aarch64"), program.aarch64(aarch64))?;
        let world = World::parse(text, &folder.path().join("world.toml"))?;
        let options = Options {
            timeout: Some(HUNG),
            quiet: true,
            ..Options::default()
        };
        Ok(run(&world, &self.emulators, &options)?)
    }

    fn print(
        &self,
        case: String,
        unit: &str,
        mut ours: Vec<f64>,
        mut baseline: Vec<f64>,
    ) -> Option<f64> {
        let (our_median, baseline_median) = (median(&mut ours), median(&mut baseline));
        // `median` left the figures sorted.
        let spread = (ours[ours.len() - 1] - ours[0]) / our_median;
        let spread = spread.is_finite().then_some(spread);
        Line {
            paper: None,
            bench: "fused".into(),
            case,
            ours: our_median,
            baseline: baseline_median,
            ratio: Some(our_median / baseline_median),
            unit: unit.into(),
            runs: ours.len(),
            spread,
            rev: revision(),
        }
        .print(&self.args);
        spread
    }

    /// Both machines' operations on the same words: none is lost. The baseline is what there should be.
    fn litmus(&self, (name, text, shared): Model, broken: &mut Vec<String>) -> Result<()> {
        let (times, rounds) = if self.args.quick {
            (2_000, 50)
        } else {
            (OPERATIONS, ROUNDS)
        };
        let both = self.run(text, LITMUS, &[times, rounds, shared])?;
        let mut done = 0;
        for ended in &both {
            for word in ["ADDED", "EXCHANGED", "LOCKED"] {
                let count = one(ended, word)?;
                if count != 2 * times {
                    broken.push(format!(
                        "{name}: {word} is {count} instead of {}",
                        2 * times
                    ));
                }
                done += count;
            }
            for word in ["BROKEN", "FENCED"] {
                let count = one(ended, word)?;
                if count != 0 {
                    broken.push(format!("{name}: {word} {count} times"));
                }
            }
        }
        let expected = 6 * times * both.len() as u64;
        self.print(
            format!("operations/{name}"),
            "operations",
            vec![done as f64],
            vec![expected as f64],
        );
        Ok(())
    }

    /// The latest doorbell, from ring to handler, to a machine that sleeps and to one that runs: quiet and hogged. The baseline is the
    /// latency that is set.
    fn doorbells(&self, (name, text, shared): Model, broken: &mut Vec<String>) -> Result<()> {
        let (rings, runs) = if self.args.quick {
            (100, 1)
        } else {
            (RINGS, RUNS)
        };
        for (state, awake) in [("asleep", 0), ("awake", 1)] {
            let mut ours = Vec::new();
            let mut latency = 0;
            for hogged in [false, true] {
                let _hogs = hogged.then(Hogs::start);
                for _ in 0..runs {
                    for ended in self.run(text, DOORBELL, &[rings, awake, shared])? {
                        latency = one(&ended, "LATENCY")?;
                        let (least, most) = (one(&ended, "LEAST")?, one(&ended, "MOST")?);
                        let on_time = one(&ended, "HEARD")? == rings
                            && least >= latency
                            && most <= latency + AROUND
                            && ended.said.contains("delivered, 0 late");
                        if !on_time {
                            broken.push(format!(
                                "{name}, {state}: {} heard doorbells after {least} to {most} ns",
                                ended.name
                            ));
                        }
                        if ended.name == "x86" {
                            ours.push(most as f64);
                        }
                    }
                }
            }
            let case = format!("doorbell-{state}/{name}");
            let spread = self.print(case.clone(), "ns", ours, vec![latency as f64]);
            if spread.is_none_or(|spread| spread > SPREAD) {
                broken.push(format!(
                    "{case}: its spread is more than {} %",
                    SPREAD * 100.0
                ));
            }
        }
        Ok(())
    }
}

/// The one figure of a word.
fn one(ended: &Ended, word: &str) -> Result<u64> {
    let text = String::from_utf8_lossy(&ended.serial);
    let found = figures(&text).into_iter().find(|(its, _)| *its == word);
    found.map(|(_, number)| number).with_context(|| {
        format!(
            "machine {} printed no {word}:\n{text}\n{}",
            ended.name, ended.said
        )
    })
}
