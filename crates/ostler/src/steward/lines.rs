//! `ostler run --json`: a line for each period on standard output, for whoever runs the steward as a child.
//!
//! A reader that is slow must not hold the loop up, so the lines go through an outlet; what doesn't fit is dropped, and the next line says how many were.

use anyhow::Context as _;
use ostler_model::{BoostOutcome, ForeignChange, Groups, Nanos};
use ostler_outlet::Outlet;
use ostler_record::{Cost, Period, Wall};
use serde::Serialize;

use super::view::{Busy, GuestStatus, View};

/// A period in short.
#[derive(Serialize)]
pub(super) struct Line<'a> {
    wall: Wall,
    at: Nanos,
    seq: u64,
    generation: u64,
    /// Whether the plan asks for something new.
    changed: bool,
    acting: bool,
    groups: Groups,
    busy: Busy,
    guests: Vec<GuestStatus>,
    /// Why, as sentences.
    reasons: Vec<String>,
    violations: Vec<String>,
    written: u32,
    failures: Vec<String>,
    /// Values that others changed, and what was done about it.
    foreign: Vec<ForeignChange>,
    /// What the scheduler of vCPUs has done so far, while there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    boost: Option<&'a BoostOutcome>,
    cost: Cost,
    missed_periods: u64,
    dropped_lines: u64,
}

/// Writes lines. Dropping it writes what is queued, as long as somebody reads.
pub struct Lines {
    outlet: Outlet,
    dropped: u64,
    last_seq: u64,
}

impl Lines {
    /// Starts the thread, for standard output.
    pub fn start() -> anyhow::Result<Lines> {
        let outlet = Outlet::start("lines", std::io::stdout())
            .context("could not start the thread that prints periods")?;
        Ok(Lines {
            outlet,
            dropped: 0,
            last_seq: 0,
        })
    }

    /// Offers the last period; one that was offered already, or could not be sensed, makes no line.
    pub fn offer(&mut self, view: &View) {
        let Some(last) = view.last.as_deref() else {
            return;
        };
        if last.snapshot.seq == self.last_seq {
            return;
        }
        self.last_seq = last.snapshot.seq;
        if let Ok(mut text) = serde_json::to_vec(&line(view, last, self.dropped)) {
            text.push(b'\n');
            if !self.outlet.offer(text) {
                self.dropped += 1;
            }
        }
    }
}

/// The line of a period.
pub(super) fn line<'a>(view: &View, last: &'a Period, dropped_lines: u64) -> Line<'a> {
    let status = view.status();
    let outcome = last.outcome.as_ref();
    Line {
        wall: last.wall,
        at: last.snapshot.at,
        seq: last.snapshot.seq,
        generation: last.plan.generation,
        changed: view
            .last_change
            .as_ref()
            .is_some_and(|change| change.snapshot.seq == last.snapshot.seq),
        acting: view.acting,
        groups: status.groups,
        busy: status.busy,
        guests: status.guests,
        reasons: last.reasons.iter().map(ToString::to_string).collect(),
        violations: last.violations.clone(),
        written: outcome.map_or(0, |outcome| outcome.written),
        failures: outcome.map_or_else(Vec::new, |outcome| {
            outcome
                .failures
                .iter()
                .map(|failure| {
                    format!("{} to {}: {}", failure.target, failure.value, failure.error)
                })
                .collect()
        }),
        foreign: outcome.map_or_else(Vec::new, |outcome| outcome.foreign.clone()),
        boost: outcome.and_then(|outcome| outcome.boost.as_ref()),
        cost: last.cost,
        missed_periods: status.missed_periods,
        dropped_lines,
    }
}
