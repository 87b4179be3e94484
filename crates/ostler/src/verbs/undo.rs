//! `ostler undo`: takes back what a steward wrote.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;

use super::ConfigArg;
use crate::output;
use crate::steward::Restored;
use crate::steward::lock::{HostLock, InstanceLock};
use crate::wire::{self, Roots};

/// Take back what a steward wrote, where it still holds; what others changed since is left to them
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The steward must not be running: it would write again. What can't be put back stays in the journal, and undo can be run again.\n\n\
    Examples:\n  ostler undo\n  ostler undo --journal /var/lib/ostler/journal.db --json\n\n\
    Exit codes: 0 all taken back, or nothing to take back; 1 something was left, or the journal can't be read."
)]
pub struct Args {
    #[command(flatten)]
    config: ConfigArg,
    /// The journal [default: the one that the configuration names]
    #[arg(long, value_name = "FILE")]
    journal: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    roots: Roots,
}

#[derive(Serialize)]
struct Result<'a> {
    journal: String,
    #[serde(flatten)]
    restored: &'a Restored,
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let journal = match &args.journal {
        Some(journal) => journal.clone(),
        None => args.config.load(None)?.config.daemon.journal.path.into(),
    };
    let restored = if journal.exists() {
        let _lock = InstanceLock::take(&journal).map_err(|error| error.into_error("undo"))?;
        let _host = HostLock::take(&args.roots.proc()).map_err(|error| error.into_error("undo"))?;
        wire::undo(&journal, &args.roots)?
    } else if args.journal.is_some() {
        anyhow::bail!(
            "there is no journal {}; name the one that the steward wrote, or leave --journal out for that of its configuration",
            journal.display()
        );
    } else {
        // No journal was ever begun: nothing was ever written.
        Restored::default()
    };
    if args.json {
        output::print_json(&Result {
            journal: journal.display().to_string(),
            restored: &restored,
        })?;
    } else {
        let mut text = format!(
            "{} values put back, {} needed nothing, {} left\n",
            restored.put_back,
            restored.unchanged,
            restored.left.len()
        );
        if restored.by_agents > 0 {
            let _ = writeln!(
                text,
                "agents of {} guests hear from no steward any more, and give back what they were asked for by themselves within seconds",
                restored.by_agents
            );
        }
        for left in &restored.left {
            let _ = writeln!(text, "! {left}");
        }
        output::print(&text)?;
    }
    Ok(if restored.left.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
