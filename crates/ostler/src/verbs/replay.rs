//! `ostler replay`: makes recorded decisions again.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::SystemTime;

use ostler_record::{Reader, Report, Wall, replay};
use serde::Serialize;

use super::EXIT_DIFFERENT;
use crate::output::{self, parse_time};
use crate::wire;

/// Make recorded decisions again and find the first that comes out differently
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Decisions depend on nothing but what is recorded, so the same program repeats them to the bit, and another \
    program shows what it would have decided otherwise.\n\n\
    Examples:\n  ostler replay /var/lib/ostler/record.db\n  ostler replay record.db --since 14:00 --until 14:05 --json\n\n\
    Exit codes: 0 all the same; 5 one differs; 1 the record can't be read."
)]
pub struct Args {
    /// The record
    file: PathBuf,
    /// From this time on
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    since: Option<String>,
    /// Up to this time
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    until: Option<String>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Summary {
    replayed: u64,
    skipped: u64,
    damaged: Vec<String>,
    difference: Option<Differs>,
}

#[derive(Serialize)]
struct Differs {
    what: &'static str,
    wall: Wall,
    time: String,
    seq: u64,
    recorded: ostler_model::Plan,
    recorded_reasons: Vec<String>,
    now: ostler_model::Plan,
    now_reasons: Vec<String>,
}

impl From<Report> for Summary {
    fn from(report: Report) -> Summary {
        Summary {
            replayed: report.replayed,
            skipped: report.skipped,
            damaged: report.damaged.iter().map(ToString::to_string).collect(),
            difference: report.difference.map(|difference| Differs {
                what: difference.what,
                wall: difference.period.wall,
                time: output::time(difference.period.wall),
                seq: difference.period.snapshot.seq,
                recorded: ostler_model::Plan::clone(&difference.period.plan),
                recorded_reasons: difference
                    .period
                    .reasons
                    .iter()
                    .map(ToString::to_string)
                    .collect(),
                now: difference.now.plan,
                now_reasons: difference
                    .now
                    .reasons
                    .iter()
                    .map(ToString::to_string)
                    .collect(),
            }),
        }
    }
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let now = Wall::from(SystemTime::now());
    let time = |text: &Option<String>, usual| {
        text.as_deref()
            .map_or(Ok(usual), |text| parse_time(text, now))
    };
    let (from, to) = (time(&args.since, Wall::MIN)?, time(&args.until, Wall::MAX)?);
    let reader = Reader::open(&args.file)?;
    let summary = Summary::from(replay(&reader, from, to, wire::decide)?);
    let code = if summary.difference.is_some() {
        ExitCode::from(EXIT_DIFFERENT)
    } else {
        ExitCode::SUCCESS
    };
    if args.json {
        output::print_json(&summary)?;
        return Ok(code);
    }
    let mut text = format!("{} decisions made again", summary.replayed);
    if summary.skipped > 0 {
        let _ = write!(
            text,
            ", {} skipped for want of a checkpoint",
            summary.skipped
        );
    }
    match &summary.difference {
        None => text.push_str(": all the same\n"),
        Some(differs) => {
            let _ = writeln!(
                text,
                ": {} differs at {} (snapshot {})",
                differs.what, differs.time, differs.seq
            );
            for (title, plan, reasons) in [
                ("recorded", &differs.recorded, &differs.recorded_reasons),
                ("now", &differs.now, &differs.now_reasons),
            ] {
                let groups = &plan.groups;
                let _ = writeln!(
                    text,
                    "{title}: vCPU {}, NQ {}, best-effort {}, idle {}",
                    output::cpus(&groups.vcpu),
                    output::cpus(&groups.nq),
                    output::cpus(&groups.best_effort),
                    output::cpus(&groups.idle)
                );
                for reason in reasons {
                    let _ = writeln!(text, "  - {reason}");
                }
            }
        }
    }
    for damaged in &summary.damaged {
        let _ = writeln!(text, "! {damaged}");
    }
    output::print(&text)?;
    Ok(code)
}
