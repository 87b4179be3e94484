//! The agent, as a program. Static, so that it runs in any guest, down to an initrd with a shell.

use std::io::{self, IsTerminal as _};
use std::sync::Arc;

use anyhow::Context as _;
use clap::Parser;
use ostler_guest::cli::{Args, serve};
use ostler_outlet::{Log, Outlet};
use tracing_subscriber::EnvFilter;

/// Lets the steward on the host say which vCPUs and network queues this guest should use.
///
/// Everything it changes is put back when it ends, when the host asks, and when the host has been silent for too long.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

fn main() -> anyhow::Result<()> {
    let Cli { args } = Cli::parse();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let outlet = Outlet::start("log", io::stderr())
        .context("could not start the thread that writes the log")?;
    let outlet = Arc::new(outlet);
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(Log::by(Arc::clone(&outlet)))
        .with_ansi(io::stderr().is_terminal())
        // It would tell of a log that can't be written by a macro that panics: whose log nobody reads any more goes on.
        .log_internal_errors(false)
        .init();
    let result = serve(args);
    outlet.close();
    result
}
