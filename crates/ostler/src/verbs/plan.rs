//! `ostler plan`: what would be done here, and why; nothing is written.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use ostler_model::{Plan, Snapshot, State};
use ostler_record::Inputs;
use serde::Serialize;

use super::ConfigArg;
use crate::output::{self, Paint, Table, cpus, tame};
use crate::steward::timer::monotonic;
use crate::steward::view::Why;
use crate::steward::{Agents as _, Decide as _, Sense as _};
use crate::wire::{self, Change, Roots};

/// Show what the steward would do here and why; nothing is written
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Looks at the host for a while, decides once as if for the first time, and compares with what is. A steward that runs already is neither \
    asked nor disturbed.\n\n\
    Examples:\n  ostler plan\n  ostler plan --config new.toml --interval-ms 5000\n  ostler plan --json | jq '.changes[]'\n\n\
    Exit codes: 0 decided; 4 the configuration was refused; 1 otherwise."
)]
pub struct Args {
    #[command(flatten)]
    config: ConfigArg,
    /// How long to look at the host before deciding
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(10..=600_000))]
    interval_ms: u64,
    /// How long to look for guests before that
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(0..=60_000))]
    settle_ms: u64,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    roots: Roots,
}

#[derive(Serialize)]
struct Result {
    plan: Plan,
    reasons: Vec<Why>,
    violations: Vec<String>,
    changes: Vec<Change>,
    /// What the steward can't do here, and why.
    missing: Vec<String>,
    snapshot: Snapshot,
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let first = args.config.load(None)?;
    let mut sense = wire::sense(&first.config, &args.roots, || {})?;
    let config = args.config.load(Some(sense.facts()))?.config;
    let (mut agents, _) = wire::agents(&config.daemon.agent)?;

    // Guests are found and agents answer on threads of their own: give them a moment, and look at what they bring as the loop would.
    let mut left = Duration::from_millis(args.settle_ms);
    while !left.is_zero() {
        let mut snapshot = sense.snapshot(monotonic())?;
        agents.fill(&config.intent, &mut snapshot);
        let step = left.min(Duration::from_millis(200));
        std::thread::sleep(step);
        left -= step;
    }
    sense.snapshot(monotonic())?;
    std::thread::sleep(Duration::from_millis(args.interval_ms));
    let mut snapshot = sense.snapshot(monotonic())?;
    agents.fill(&config.intent, &mut snapshot);

    let decide = wire::decider();
    let state = State::default();
    let facts = sense.facts();
    let inputs = Inputs {
        facts,
        snapshot: &snapshot,
        intent: &config.intent,
        state: &state,
        now: monotonic(),
        seed: 0,
    };
    let decided = decide.decide(inputs);
    let violations = decide.check(inputs, None, &decided.plan);
    let changes = wire::preview(&args.roots, facts, &snapshot, &decided.plan);
    let missing = facts
        .capabilities
        .iter()
        .filter_map(|capability| {
            Some(format!(
                "{}: {}",
                capability.name,
                capability.missing.as_ref()?
            ))
        })
        .collect();
    let result = Result {
        plan: decided.plan,
        reasons: decided.reasons.iter().map(Why::from).collect(),
        violations,
        changes,
        missing,
        snapshot,
    };
    if args.json {
        output::print_json(&result)?;
    } else {
        output::print(&render(&result, Paint(output::colours())))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn render(result: &Result, paint: Paint) -> String {
    let mut out = String::new();
    let groups = &result.plan.groups;
    let mut table = Table::new(&["GROUP", "CORES", "CPUS"]);
    for (name, set) in [
        ("vCPU", &groups.vcpu),
        ("NQ", &groups.nq),
        ("best-effort", &groups.best_effort),
        ("idle", &groups.idle),
        ("reserved", &groups.reserved),
    ] {
        table.row(vec![name.to_owned(), set.len().to_string(), cpus(set)]);
    }
    out.push_str(&table.render(paint));
    if result.plan.guests.is_empty() {
        let _ = writeln!(
            out,
            "\nno guest here is the steward's ({} found)",
            result.snapshot.guests.len()
        );
    } else {
        let mut table = Table::new(&[
            "GUEST", "CLASS", "RUNS", "VCPUS ON", "VHOST ON", "WEIGHT", "ACTIVE", "QUEUES",
        ]);
        let asked =
            |wish: Option<u32>| wish.map_or_else(|| "-".to_owned(), |wish| wish.to_string());
        for given in &result.plan.guests {
            let name = result
                .snapshot
                .guest(&given.guest)
                .map_or_else(|| given.guest.to_string(), |guest| guest.name.clone());
            table.row(vec![
                tame(&name),
                given.class.to_string(),
                match given.run {
                    ostler_model::RunState::Running => "yes".to_owned(),
                    ostler_model::RunState::Suspended => "suspended".to_owned(),
                },
                cpus(&given.vcpu_cpus),
                cpus(&given.vhost_cpus),
                if given.weight.is_set() {
                    given.weight.to_string()
                } else {
                    "-".to_owned()
                },
                asked(given.vcpus_active),
                asked(given.queues),
            ]);
        }
        let _ = write!(out, "\n{}", table.render(paint));
    }
    let _ = writeln!(out, "\n{}", paint.bold("WHY"));
    for why in &result.reasons {
        let _ = writeln!(out, "  {}", why.text);
    }
    for violation in &result.violations {
        let _ = writeln!(
            out,
            "  {} it breaks a rule and would not be acted on: {violation}",
            paint.bad("!")
        );
    }
    let _ = writeln!(out, "\n{}", paint.bold("WHAT WOULD CHANGE"));
    if result.changes.is_empty() {
        out.push_str("  nothing\n");
    }
    for change in &result.changes {
        let _ = writeln!(out, "  {}: {} -> {}", change.target, change.from, change.to);
    }
    for missing in &result.missing {
        let _ = writeln!(out, "{}", paint.faint(format!("not here: {missing}")));
    }
    out
}
