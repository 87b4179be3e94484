//! `ostler status`: the running steward in short.

use std::fmt::Write as _;
use std::process::ExitCode;

use ostler_model::{Accesses, AgentHealth, BoostOutcome, Nanos, RunState};

use super::SocketArg;
use crate::api::client;
use crate::output::{self, Paint, Table, cpus, span, tame};
use crate::steward::view::{GuestStatus, Status};

/// Show the running steward in short: its mode, groups of cores, guests and their objectives
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  ostler status\n  ostler status --json | jq '.guests[] | {name, slo_met}'\n\n\
    Exit codes: 0 shown; 3 no steward is running; 1 it can't be asked."
)]
pub struct Args {
    #[command(flatten)]
    socket: SocketArg,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let status: Status = client::get(&args.socket.path()?, "/v1/status")?;
    if args.json {
        output::print_json(&status)?;
    } else {
        output::print(&render(&status, Paint(output::colours())))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The status as people read it.
pub fn render(status: &Status, paint: Paint) -> String {
    let mut out = String::new();
    let mode = if status.mode == "act" {
        paint.good("acting")
    } else {
        paint.bold("observing (nothing is written)")
    };
    let _ = writeln!(
        out,
        "{} {}, process {}, {mode}; policy {}, every {}",
        paint.bold("ostler"),
        status.version,
        status.pid,
        status.policy,
        span(status.period)
    );
    if let Some(at) = status.at {
        let _ = writeln!(
            out,
            "plan {} at {}, snapshot {}; sense {}, decide {}, act {}; {} periods missed",
            status.generation,
            output::time(at),
            status.seq,
            span(status.cost.sense),
            span(status.cost.decide),
            span(status.cost.act),
            status.missed_periods
        );
    }
    out.push('\n');
    out.push_str(&groups(status, paint));
    if status.guests.is_empty() {
        out.push_str("\nno guest is found\n");
    } else {
        out.push('\n');
        out.push_str(&guests(&status.guests, paint));
    }
    if let Some(boosted) = status.outcome.as_ref().and_then(|o| o.boost.as_ref()) {
        out.push('\n');
        out.push_str(&boost(boosted, paint));
    }
    if !status.pmu.is_empty() {
        out.push('\n');
        out.push_str(&machine(status, paint));
    }
    out.push_str(&troubles(status, paint));
    out
}

/// What the scheduler of vCPUs has done.
fn boost(boost: &BoostOutcome, paint: Paint) -> String {
    let mut table = Table::new(&[
        "VCPUS OF",
        "DO IO",
        "RAN",
        "WAITED",
        "SERVED",
        "BALANCE",
        "BORROWED",
        "PAID",
        "BOOSTS",
        "REFUSED",
        "DELAY P50",
        "P99",
    ]);
    for guest in &boost.guests {
        let delay = |share: f64| {
            let bound = guest.delay(share);
            bound.map_or_else(|| "-".to_owned(), |most| format!("< {}", span(most)))
        };
        let balance = Nanos(guest.balance_ns.unsigned_abs());
        let sign = if guest.balance_ns < 0 { "-" } else { "" };
        table.row(vec![
            tame(guest.guest.as_str()),
            format!("{} of {}", guest.io_vcpus, guest.vcpus),
            span(guest.ran),
            span(guest.waited),
            span(guest.served),
            format!("{sign}{}", span(balance)),
            span(guest.borrowed),
            span(guest.paid),
            guest.boosts.to_string(),
            guest.refused.to_string(),
            delay(0.5),
            delay(0.99),
        ]);
    }
    let mut out = table.render(paint);
    for what in &boost.deaf_to {
        let _ = writeln!(
            out,
            "{} the vCPU scheduler isn't told of {what}",
            paint.bad("!")
        );
    }
    out
}

/// What an emulated machine's counters tell.
fn machine(status: &Status, paint: Paint) -> String {
    let mut cpus = Table::new(&[
        "CPU", "HALTED", "MIPS", "L1", "L2", "L3", "PEER", "LOCAL", "REMOTE", "POOL", "STALL",
    ]);
    for cpu in &status.pmu {
        let elapsed = cpu.elapsed.as_secs_f64();
        let mut row = vec![
            cpu.cpu.to_string(),
            percent(cpu.halted.as_secs_f64(), elapsed),
            mips(cpu.instructions, elapsed),
        ];
        let shares = cpu.accesses.as_ref();
        row.extend(shares.map_or_else(
            || vec!["-".to_owned(); 8],
            |accesses| shares_of(accesses, elapsed),
        ));
        cpus.row(row);
    }
    let mut out = cpus.render(paint);
    if !status.guest_pmu.is_empty() {
        let mut guests = Table::new(&[
            "GUEST", "EXECUTED", "MIPS", "L1", "L2", "L3", "PEER", "LOCAL", "REMOTE", "POOL",
            "STALL",
        ]);
        for guest in &status.guest_pmu {
            let executed = guest.executed.as_secs_f64();
            let mut row = vec![
                tame(guest.id.as_str()),
                span(guest.executed),
                mips(guest.instructions, executed),
            ];
            row.extend(shares_of(&guest.accesses, executed));
            guests.row(row);
        }
        out.push('\n');
        out.push_str(&guests.render(paint));
    }
    out
}

fn percent(part: f64, whole: f64) -> String {
    if whole > 0.0 {
        format!("{:.1} %", part * 100.0 / whole)
    } else {
        "-".to_owned()
    }
}

fn mips(instructions: u64, seconds: f64) -> String {
    if seconds > 0.0 {
        format!("{:.0}", instructions as f64 / seconds / 1e6)
    } else {
        "-".to_owned()
    }
}

/// What served accesses, and the share of time that they stalled.
fn shares_of(accesses: &Accesses, seconds: f64) -> Vec<String> {
    let total = accesses.total() as f64;
    let levels = accesses.levels().map(|(_, n)| percent(n as f64, total));
    let stall = percent(accesses.stall.as_secs_f64(), seconds);
    levels.into_iter().chain([stall]).collect()
}

fn groups(status: &Status, paint: Paint) -> String {
    let mut table = Table::new(&["GROUP", "CORES", "CPUS", "BUSY"]);
    let groups = &status.groups;
    for (name, set, busy) in [
        ("vCPU", &groups.vcpu, Some(status.busy.vcpu)),
        ("NQ", &groups.nq, Some(status.busy.nq)),
        (
            "best-effort",
            &groups.best_effort,
            Some(status.busy.best_effort),
        ),
        ("idle", &groups.idle, None),
        ("reserved", &groups.reserved, None),
    ] {
        table.row(vec![
            name.to_owned(),
            set.len().to_string(),
            cpus(set),
            busy.map_or_else(|| "-".to_owned(), |busy| format!("{busy:.2}")),
        ]);
    }
    let mut out = table.render(paint);
    if groups.shared {
        out.push_str("vCPUs and queues share cores by policy\n");
    }
    let _ = writeln!(
        out,
        "all online cores are busy for {:.2} cores' time",
        status.busy.all
    );
    out
}

fn guests(guests: &[GuestStatus], paint: Paint) -> String {
    let mut table = Table::new(&[
        "GUEST", "CLASS", "RUNS", "VCPUS", "BUSY", "CPUS", "WEIGHT", "P50", "P95", "P99", "SLO",
        "MISSED", "AGENT",
    ]);
    let dash = || "-".to_owned();
    for guest in guests {
        let latency = guest.latency;
        let p95 = latency.map_or_else(dash, |latency| {
            let text = span(latency.p95);
            match guest.slo_met {
                Some(true) => paint.good(text),
                Some(false) => paint.bad(text),
                None => text,
            }
        });
        table.row(vec![
            tame(&guest.name),
            guest.class.to_string(),
            match guest.run {
                Some(RunState::Running) => "yes".to_owned(),
                Some(RunState::Suspended) => paint.bad("suspended"),
                None => dash(),
            },
            guest.vcpus.to_string(),
            format!("{:.2}", guest.vcpu_busy),
            guest.vcpu_cpus.as_ref().map_or_else(dash, cpus),
            guest.weight.map_or_else(dash, |weight| weight.to_string()),
            latency.map_or_else(dash, |latency| span(latency.p50)),
            p95,
            latency.map_or_else(dash, |latency| span(latency.p99)),
            guest.slo.map_or_else(dash, span),
            guest
                .slo_missed_share
                .map_or_else(dash, |share| format!("{:.1} %", share * 100.0)),
            match &guest.agent {
                None => dash(),
                Some(AgentHealth::Healthy) => paint.good("healthy"),
                Some(AgentHealth::Silent) => paint.bad("silent"),
                Some(AgentHealth::Slow) => paint.bad("slow"),
                Some(AgentHealth::Lying(what)) => paint.bad(format!("lying: {}", tame(what))),
                Some(AgentHealth::Refused(why)) => paint.bad(format!("refused: {}", tame(why))),
            },
        ]);
    }
    table.render(paint)
}

fn troubles(status: &Status, paint: Paint) -> String {
    let mut lines: Vec<String> = Vec::new();
    if let Some(error) = &status.sense_error {
        lines.push(format!("the host can't be sensed: {error}"));
    }
    lines.extend(
        status
            .violations
            .iter()
            .map(|violation| format!("the plan breaks a rule and is not acted on: {violation}")),
    );
    if let Some(outcome) = &status.outcome {
        lines.extend(outcome.failures.iter().map(|failure| {
            format!(
                "could not set {} to {}: {}",
                failure.target, failure.value, failure.error
            )
        }));
        lines.extend(outcome.foreign.iter().map(|change| {
            format!(
                "someone else set {} to {} (ours was {})",
                change.target, change.found, change.ours
            )
        }));
    }
    if let Some(record) = &status.record
        && record.dropped + record.failed > 0
    {
        lines.push(format!(
            "the record lost {} periods: {}",
            record.dropped + record.failed,
            record
                .last_error
                .as_deref()
                .unwrap_or("the disk is too slow")
        ));
    }
    if status.config.refused.is_some() {
        lines.push("the configuration was read again and refused; the old one is in force (`ostler check-config` tells why)".to_owned());
    }
    lines.extend(status.config.needs_restart.iter().map(|key| {
        format!("{key} was changed and takes effect when the steward is started again")
    }));
    let mut out = String::new();
    for line in lines {
        let _ = writeln!(out, "{} {line}", paint.bad("!"));
    }
    for missing in &status.missing {
        let _ = writeln!(out, "{}", paint.faint(format!("not here: {missing}")));
    }
    if out.is_empty() {
        out
    } else {
        format!("\n{out}")
    }
}
