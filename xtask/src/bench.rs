//! `cargo xtask bench`: runs the folders in bench/, each a claim with its baseline beside it.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use ostler_report::{BenchLine, render_benches};

use crate::run;

#[derive(clap::Args)]
pub struct Args {
    /// Which benches; all of them unless named.
    names: Vec<String>,
    /// Run each tiny: shows that it works, not how fast it is.
    #[arg(long)]
    pub quick: bool,
    /// Print JSON lines only.
    #[arg(long)]
    pub json: bool,
    /// Write a page to look at, too.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

/// What `cargo xtask paper` takes.
#[derive(clap::Args)]
pub struct PaperArgs {
    /// Which figures; all of them unless named. `--list` says which there are.
    names: Vec<String>,
    /// Say which figures there are, and end.
    #[arg(long)]
    list: bool,
    /// Draw each tiny: shows that it works, not what comes of it.
    #[arg(long)]
    quick: bool,
    /// Print JSON lines only.
    #[arg(long)]
    json: bool,
    /// Write a page to look at, too.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

/// How benches' programs are built.
#[derive(Clone, Copy)]
enum Built {
    /// As one measures.
    Released,
    /// As tests are, which has been done by then: to build all there is a second time takes longer than any tiny run.
    Tested,
}

/// The benches there are: folders of bench/ with a program.
fn names() -> Result<Vec<String>> {
    let folder = run::root().join("bench");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&folder)
        .with_context(|| format!("could not list {}", folder.display()))?
    {
        let entry = entry?;
        if entry.path().join("src/main.rs").is_file() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

pub fn bench(args: &Args) -> Result<()> {
    run::setup()?;
    let all = names()?;
    for name in &args.names {
        if !all.contains(name) {
            bail!("there is no bench `{name}`; there are: {}", all.join(", "));
        }
    }
    let chosen = if args.names.is_empty() {
        &all
    } else {
        &args.names
    };
    let rev = revision();
    let (mut lines, mut broken) = (Vec::new(), Vec::new());
    for name in chosen {
        if !args.json {
            run::step(&format!("bench {name}"));
        }
        let quick = args.quick.then(|| "--quick".to_owned());
        let program = Program {
            name,
            words: quick.into_iter().collect(),
            json: args.json,
            built: Built::Released,
        };
        // What one has missed is no reason to keep the others from running, nor its figures from the report.
        if let Err(why) = program.run(&rev, &mut lines) {
            eprintln!("FAILED bench {name}: {why:#}");
            broken.push(name.as_str());
        }
    }
    report(args.report.as_deref(), &lines)?;
    none_of(&broken, chosen.len())
}

/// Builds tests, and benches as these: all with the same words, as what libraries are built with depends on who else needs them. So neither builds what the other has.
pub fn build_as_tests() -> Result<()> {
    let words = ["build", "--quiet", "--bins", "--tests"];
    run::run(run::cargo().args(words).args(run::ALL))
}

/// All benches, tiny and as many at a time as there are cores: what every test run does. They are built ([`build_as_tests`]).
pub fn quick() -> Result<()> {
    let (all, rev) = (names()?, revision());
    let broken = run::side_by_side(&all, |name| {
        let program = Program {
            name,
            words: vec!["--quick".to_owned()],
            json: true,
            built: Built::Tested,
        };
        let why = program.run(&rev, &mut Vec::new()).err()?;
        eprintln!("FAILED bench {name}: {why:#}");
        Some(name.as_str())
    });
    let broken: Vec<_> = broken.into_iter().flatten().collect();
    none_of(&broken, all.len())
}

fn none_of(broken: &[&str], run: usize) -> Result<()> {
    if !broken.is_empty() {
        bail!(
            "{} of {run} benches failed, for what is told above: {}",
            broken.len(),
            broken.join(", ")
        );
    }
    Ok(())
}

/// The papers' figures: a bench that takes names.
pub fn paper(args: &PaperArgs) -> Result<()> {
    run::setup()?;
    let mut words = args.names.clone();
    if args.quick {
        words.push("--quick".to_owned());
    }
    if args.list {
        words.push("--list".to_owned());
        return run::run(
            run::cargo()
                .args(RUN)
                .args(["bench-paper", "--"])
                .args(words),
        );
    }
    let program = Program {
        name: "paper",
        words,
        json: args.json,
        built: Built::Released,
    };
    let mut lines = Vec::new();
    let done = program.run(&revision(), &mut lines);
    report(args.report.as_deref(), &lines)?;
    done
}

fn report(file: Option<&Path>, lines: &[BenchLine]) -> Result<()> {
    let Some(file) = file else {
        return Ok(());
    };
    std::fs::write(file, render_benches(lines))
        .with_context(|| format!("could not write the report to {}", file.display()))
}

fn revision() -> String {
    run::output(Command::new("git").current_dir(run::root()).args([
        "describe",
        "--always",
        "--dirty",
        "--abbrev=12",
    ]))
    .map_or_else(|_| "unknown".to_owned(), |rev| rev.trim().to_owned())
}

const RUN: [&str; 4] = ["run", "--release", "--quiet", "--package"];

/// A bench's program.
struct Program<'a> {
    name: &'a str,
    /// Further words for it.
    words: Vec<String>,
    /// Whether its lines are shown as they are.
    json: bool,
    built: Built,
}

impl Program<'_> {
    /// The command that starts it.
    fn command(&self) -> Command {
        let package = format!("bench-{}", self.name);
        match self.built {
            Built::Released => {
                let mut cargo = run::cargo();
                cargo.args(RUN).args([&package, "--"]);
                cargo
            }
            Built::Tested => {
                let mut program = Command::new(run::target_dir().join("debug").join(package));
                program.current_dir(run::root());
                program
            }
        }
    }

    /// Runs it, and adds to `lines` what it prints, also if it fails then.
    fn run(&self, rev: &str, lines: &mut Vec<BenchLine>) -> Result<()> {
        let mut command = self.command();
        let mut bench = command
            .arg("--json")
            .args(&self.words)
            .env("OSTLER_REV", rev)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .with_context(|| format!("could not start `{}`", run::shown(&command)))?;
        let printed = bench.stdout.take().context("it has no output")?;
        let before = lines.len();
        // As they come: a bench may take an hour, and what it has measured until it is interrupted was measured.
        let shown = BufReader::new(printed)
            .lines()
            .try_for_each(|text| show(&text?, self.json, lines));
        // One whose output nobody reads any more ends when it prints next.
        let status = bench.wait().context("could not wait for it")?;
        shown?;
        // After what it printed: a bench that finds one promise broken has measured all the others.
        if !status.success() {
            bail!("it ended with {status}");
        }
        if lines.len() == before {
            bail!("it printed no result");
        }
        Ok(())
    }
}

/// Shows a line that a bench has printed, and keeps it.
fn show(text: &str, json: bool, lines: &mut Vec<BenchLine>) -> Result<()> {
    let line: BenchLine = serde_json::from_str(text)
        .with_context(|| format!("it printed a line that is no result: {text}"))?;
    if json {
        println!("{text}");
    } else {
        let ratio = line.ratio.map_or("-".to_owned(), |r| format!("{r:.3}"));
        let spread = line
            .spread
            .map_or("-".to_owned(), |s| format!("{:.1} %", s * 100.0));
        let paper = line
            .paper
            .map_or_else(String::new, |paper| format!("   paper {paper:>8.3}"));
        println!(
            "{:<40} ours {:>12.3} {unit}   baseline {:>12.3} {unit}   ratio {ratio:>8}{paper}   ({} runs, spread {spread})",
            format!("{}/{}", line.bench, line.case),
            line.ours,
            line.baseline,
            line.runs,
            unit = line.unit,
        );
    }
    lines.push(line);
    Ok(())
}
