//! `ostler lab`: an emulated KVM host to try it all in. The lab is a room of its own; this only hands over.

use std::process::ExitCode;

use ostler_lab::cli::{self, LabCommand};

/// Build, boot and use an emulated KVM host with real guests, to try policies in
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  ostler lab check scenarios/smoke.toml\n  ostler lab run scenarios/smoke.toml --json out.jsonl\n  \
    ostler lab up && ostler lab shell"
)]
pub struct Args {
    #[command(subcommand)]
    command: LabCommand,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    cli::run(args.command)
}
