//! `ostler explain`: why the plan is as it is, or was at a time.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::{Context as _, bail};
use ostler_record::{Reader, Wall};

use super::SocketArg;
use crate::api::client::{self, NotRunning};
use crate::output::{self, Paint, cpus, parse_time};
use crate::steward::view::Explained;

/// Say why the plan is as it is, or was at some time
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    ostler explain                        # the plan in force, asked of the running steward\n  \
    ostler explain --at 14:03:20          # the plan of that time today (UTC), from the record\n  \
    ostler explain --since -10min         # every change of plan in the last ten minutes\n  \
    ostler explain --record FILE --at @1795297623 --json\n\n\
    Exit codes: 0 explained; 3 no steward is running and there is no record; 1 otherwise.")]
pub struct Args {
    #[command(flatten)]
    socket: SocketArg,
    /// At this time: 2026-11-21T21:47:03Z, 21:47:03 (today), -30s (ago), @SECONDS (since 1970); UTC
    #[arg(
        long,
        value_name = "TIME",
        conflicts_with = "since",
        allow_hyphen_values = true
    )]
    at: Option<String>,
    /// Every change of plan since this time
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    since: Option<String>,
    /// Up to this time
    #[arg(
        long,
        value_name = "TIME",
        requires = "since",
        allow_hyphen_values = true
    )]
    until: Option<String>,
    /// Read this record, whether a steward runs or not
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Print it as JSON, one line for each plan
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let now = Wall::from(SystemTime::now());
    let at = args
        .at
        .as_deref()
        .map(|at| parse_time(at, now))
        .transpose()?;
    if let Some(since) = &args.since {
        let from = parse_time(since, now)?;
        let to = args
            .until
            .as_deref()
            .map_or(Ok(now), |until| parse_time(until, now))?;
        return changes(args, from, to);
    }
    let explained = match (&args.record, at) {
        (Some(_), at) => from_record(args, at.unwrap_or(Wall::MAX))?,
        (None, at) => match from_steward(args, at) {
            Ok(explained) => explained,
            // Without a steward, the record it left can still tell.
            Err(error) if error.downcast_ref::<NotRunning>().is_some() => {
                match from_record(args, at.unwrap_or(Wall::MAX)) {
                    Ok(explained) => explained,
                    Err(unreadable) => {
                        return Err(error
                            .context(format!("the record can't be read either ({unreadable:#})")));
                    }
                }
            }
            Err(error) => return Err(error),
        },
    };
    show(args, &explained)?;
    Ok(ExitCode::SUCCESS)
}

fn from_steward(args: &Args, at: Option<Wall>) -> anyhow::Result<Explained> {
    let path = match at {
        None => "/v1/explain".to_owned(),
        Some(at) => format!("/v1/explain?at={}", client::escape(&output::time(at))),
    };
    client::get(&args.socket.path()?, &path)
}

fn reader(args: &Args) -> anyhow::Result<Reader> {
    let path = match &args.record {
        Some(path) => path.clone(),
        None => args.socket.config()?.daemon.record.path.into(),
    };
    Ok(Reader::open(&path)?)
}

fn from_record(args: &Args, at: Wall) -> anyhow::Result<Explained> {
    let reader = reader(args)?;
    let Some(period) = reader.at(at)? else {
        match reader.span()? {
            Some(span) => bail!(
                "nothing is recorded at {}: the record covers {} to {}",
                output::time(at),
                output::time(span.first),
                output::time(span.last)
            ),
            None => bail!("the record is empty"),
        }
    };
    Ok(Explained::from(&period))
}

fn changes(args: &Args, from: Wall, to: Wall) -> anyhow::Result<ExitCode> {
    let reader = reader(args)?;
    let mut shown = 0_u64;
    for period in reader.changes(from, to) {
        match period {
            Ok(period) => {
                show(args, &Explained::from(&period))?;
                shown += 1;
            }
            Err(error @ ostler_record::RecordError::Damaged { .. }) => {
                tracing::warn!("{error}");
            }
            Err(error) => return Err(error).context("could not read on"),
        }
    }
    if shown == 0 && !args.json {
        output::print(&format!(
            "the plan did not change between {} and {}\n",
            output::time(from),
            output::time(to)
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn show(args: &Args, explained: &Explained) -> anyhow::Result<()> {
    if args.json {
        let mut line = serde_json::to_string(explained).context("could not write JSON")?;
        line.push('\n');
        return output::print(&line);
    }
    output::print(&render(explained, Paint(output::colours())))
}

/// A plan and its reasons as sentences.
pub fn render(explained: &Explained, paint: Paint) -> String {
    let mut out = String::new();
    let groups = &explained.plan.groups;
    let _ = writeln!(
        out,
        "{}",
        paint.bold(format!(
            "plan {} at {}",
            explained.plan.generation, explained.time
        ))
    );
    let _ = writeln!(
        out,
        "  vCPU {} ({}), NQ {} ({}), best-effort {} ({}), idle {} ({})",
        groups.vcpu.len(),
        cpus(&groups.vcpu),
        groups.nq.len(),
        cpus(&groups.nq),
        groups.best_effort.len(),
        cpus(&groups.best_effort),
        groups.idle.len(),
        cpus(&groups.idle),
    );
    for why in &explained.reasons {
        // A sentence may quote a guest's id, which its owner chose.
        let text: String = why
            .text
            .chars()
            .map(|c| if c.is_control() { '\u{fffd}' } else { c })
            .collect();
        let _ = writeln!(out, "  - {text}");
    }
    for violation in &explained.violations {
        let _ = writeln!(
            out,
            "  {} breaks a rule, so it was not acted on: {violation}",
            paint.bad("!")
        );
    }
    if let Some(outcome) = &explained.outcome {
        let _ = writeln!(
            out,
            "  {}",
            paint.faint(format!(
                "{} values written, {} held already, {} failed, {} changed by others",
                outcome.written,
                outcome.unchanged,
                outcome.failures.len(),
                outcome.foreign.len()
            ))
        );
    }
    out
}
