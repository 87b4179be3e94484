//! `cargo xtask bench`: runs the folders in bench/, each a claim with its baseline beside it.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

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
}

/// What every bench prints, a line a case.
#[derive(Deserialize)]
#[allow(
    dead_code,
    reason = "reading every field is the check that it is there"
)]
struct Line {
    bench: String,
    case: String,
    ours: f64,
    baseline: f64,
    ratio: f64,
    unit: String,
    runs: u32,
    spread: f64,
    rev: String,
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
    let rev = run::output(Command::new("git").current_dir(run::root()).args([
        "describe",
        "--always",
        "--dirty",
        "--abbrev=12",
    ]))
    .map_or_else(|_| "unknown".to_owned(), |rev| rev.trim().to_owned());
    for name in chosen {
        if !args.json {
            run::step(&format!("bench {name}"));
        }
        run_one(name, args, &rev).with_context(|| format!("bench {name}"))?;
    }
    Ok(())
}

fn run_one(name: &str, args: &Args, rev: &str) -> Result<()> {
    let mut cargo = run::cargo();
    cargo
        .args([
            "run",
            "--release",
            "--quiet",
            "--package",
            &format!("bench-{name}"),
            "--",
            "--json",
        ])
        .env("OSTLER_REV", rev)
        .stderr(Stdio::inherit());
    if args.quick {
        cargo.arg("--quick");
    }
    let printed = {
        let out = cargo
            .stdin(Stdio::null())
            .output()
            .context("could not start cargo")?;
        if !out.status.success() {
            bail!("it ended with {}", out.status);
        }
        String::from_utf8(out.stdout)?
    };
    let mut lines = 0;
    for text in printed.lines() {
        let line: Line = serde_json::from_str(text)
            .with_context(|| format!("it printed a line that is no result: {text}"))?;
        if !(line.ours.is_finite() && line.baseline.is_finite() && line.ratio.is_finite()) {
            bail!("it printed a figure that is no number: {text}");
        }
        lines += 1;
        if args.json {
            println!("{text}");
        } else {
            println!(
                "{:<40} ours {:>12.3} {unit}   baseline {:>12.3} {unit}   ratio {:>8.3}   ({} runs, spread {:.1} %)",
                format!("{}/{}", line.bench, line.case),
                line.ours,
                line.baseline,
                line.ratio,
                line.runs,
                line.spread * 100.0,
                unit = line.unit,
            );
        }
    }
    if lines == 0 {
        bail!("it printed no result");
    }
    Ok(())
}

impl Args {
    /// All benches, tiny: what every test run does.
    pub fn quick() -> Args {
        Args {
            names: Vec::new(),
            quick: true,
            json: true,
        }
    }
}
