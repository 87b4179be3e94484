//! The verbs of `ostler lab` without the rest of ostler: quicker to build while working on the lab itself.

use std::process::ExitCode;

use clap::Parser;
use ostler_lab::cli::{self, LabCommand};

#[derive(Parser)]
struct Lab {
    #[command(subcommand)]
    command: LabCommand,
}

fn main() -> anyhow::Result<ExitCode> {
    cli::run(Lab::parse().command)
}
