//! `cargo xtask demo`: the first thing a stranger runs.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::{artifacts, run};

#[derive(clap::Args)]
pub struct Args {
    /// The scenario to show.
    #[arg(long, default_value = "scenarios/demo.toml")]
    scenario: PathBuf,
    /// Whose time the emulated host lives in: the wall's, to be done in ten minutes, or the machine's own, to have latencies as firm as
    /// counters after several times as long.
    #[arg(long, default_value = "wall", value_parser = ["wall", "machine"])]
    time: String,
    /// Where to write the report.
    #[arg(long, default_value = "target/demo/report.html")]
    report: PathBuf,
}

pub fn demo(args: &Args) -> Result<()> {
    run::step("set-up: packages");
    run::setup()?;
    run::step("set-up: building ostler");
    let bin = artifacts::build()?;
    let root = run::root();
    let report = root.join(&args.report);
    if let Some(folder) = report.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let json = report.with_extension("jsonl");
    run::step("the lab");
    run::run(
        Command::new(bin.join("ostler"))
            .current_dir(root)
            .args(["lab", "run", "--time", &args.time])
            .arg(root.join(&args.scenario))
            .arg("--bin-dir")
            .arg(&bin)
            .arg("--json")
            .arg(&json)
            .arg("--report")
            .arg(&report),
    )?;
    println!("\nOpen the report: {}", report.display());
    println!("The figures as JSON lines: {}", json.display());
    Ok(())
}
