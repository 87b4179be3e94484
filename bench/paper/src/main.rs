//! The papers' figures, by name: each case beside its baseline and what the paper has.

mod figure;
mod figures;
mod files;
mod simulated;

use anyhow::{Result, bail};
use clap::Parser as _;
use figure::{Figure, Run};

/// What to draw.
#[derive(clap::Parser)]
#[command(
    about = "Draws the papers' figures anew, each case beside its baseline and what the paper has"
)]
struct Args {
    /// Which figures; all of them unless named.
    names: Vec<String>,
    /// Each tiny: shows that it works, not what comes of it.
    #[arg(long)]
    quick: bool,
    /// One JSON object per case on standard output, instead of a line to read.
    #[arg(long)]
    json: bool,
    /// Say which figures there are, and end.
    #[arg(long)]
    list: bool,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let all = figures::all()?;
    if args.list {
        for figure in &all {
            println!(
                "{:<18} {} ({})",
                figure.name, figure.paper.title, figure.paper.source
            );
        }
        return Ok(());
    }
    for name in &args.names {
        if !all.iter().any(|figure| figure.name == name) {
            let there: Vec<_> = all.iter().map(|figure| figure.name).collect();
            bail!(
                "there is no figure `{name}`; there are: {}",
                there.join(", ")
            );
        }
    }
    let chosen = |figure: &&Figure| {
        args.names.is_empty() || args.names.iter().any(|name| name == figure.name)
    };
    let printing = bench_harness::Args {
        quick: args.quick,
        json: args.json,
    };
    for figure in all.iter().filter(chosen) {
        let lines = figure.draw(Run { quick: args.quick })?;
        if lines.is_empty() {
            bail!("figure {} has no case", figure.name);
        }
        for line in lines {
            line.print(&printing);
        }
    }
    Ok(())
}
