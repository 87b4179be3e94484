//! Makes recorded decisions again and finds the first that comes out differently.
//!
//! Replay begins at the first checkpoint of the state and carries the state from decision to decision as the loop did. Where periods
//! are missing, it goes on at the next checkpoint. A state that differs from a later checkpoint is a difference too: it would have led to
//! another plan some day.

use std::sync::Arc;

use ostler_model::{Facts, Intent, Nanos, Plan, Reason, Snapshot, State};

use crate::{Period, Reader, RecordError, Wall};

/// What a decision is made from.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// What the host was.
    pub facts: &'a Facts,
    /// What was seen.
    pub snapshot: &'a Snapshot,
    /// What the operator wanted.
    pub intent: &'a Intent,
    /// What was carried over.
    pub state: &'a State,
    /// When.
    pub now: Nanos,
    /// The seed of its randomness.
    pub seed: u64,
}

/// What a decision comes to.
#[derive(Clone, Debug, PartialEq)]
pub struct Decided {
    /// What.
    pub plan: Plan,
    /// Why.
    pub reasons: Vec<Reason>,
    /// What is carried over to the next.
    pub state: State,
}

/// What replaying came to.
#[derive(Debug, Default)]
pub struct Report {
    /// Decisions made again.
    pub replayed: u64,
    /// Periods that could not be: they come before the first checkpoint or after a gap.
    pub skipped: u64,
    /// Parts of the record that can't be read.
    pub damaged: Vec<RecordError>,
    /// The first decision that came out differently.
    pub difference: Option<Box<Difference>>,
}

/// A decision that came out differently.
#[derive(Debug)]
pub struct Difference {
    /// The period as it was recorded.
    pub period: Period,
    /// What it came to now; its state is the one before the decision when that is what differs.
    pub now: Decided,
    /// What differs: the plan, the reasons, or the state carried over.
    pub what: &'static str,
}

/// The state that replaying has arrived at.
struct Carried {
    seq: u64,
    state: State,
}

/// Makes the decisions of a range again, up to the first that differs.
pub fn replay(
    reader: &Reader,
    from: Wall,
    to: Wall,
    mut decide: impl FnMut(Inputs<'_>) -> Decided,
) -> Result<Report, RecordError> {
    let mut report = Report::default();
    let mut carried: Option<Carried> = None;
    for period in reader.range(from, to) {
        let period = match period {
            Ok(period) => period,
            Err(error @ RecordError::Damaged { .. }) => {
                carried = None;
                report.damaged.push(error);
                continue;
            }
            Err(error) => return Err(error),
        };
        let seq = period.snapshot.seq;
        let followed = carried.take().filter(|carried| carried.seq + 1 == seq);
        let state = match (followed, &period.before) {
            (Some(carried), Some(checkpoint)) if carried.state != **checkpoint => {
                report.difference = Some(Box::new(Difference {
                    now: Decided {
                        plan: Plan::clone(&period.plan),
                        reasons: period.reasons.to_vec(),
                        state: carried.state,
                    },
                    period,
                    what: "the state carried over",
                }));
                return Ok(report);
            }
            (Some(carried), _) => carried.state,
            (None, Some(checkpoint)) => State::clone(checkpoint),
            (None, None) => {
                report.skipped += 1;
                continue;
            }
        };
        let decided = decide(Inputs {
            facts: &period.facts,
            snapshot: &period.snapshot,
            intent: &period.intent,
            state: &state,
            now: period.now,
            seed: period.seed,
        });
        report.replayed += 1;
        let what = if decided.plan != *period.plan {
            Some("the plan")
        } else if decided.reasons != *period.reasons {
            Some("the reasons")
        } else {
            None
        };
        if let Some(what) = what {
            report.difference = Some(Box::new(Difference {
                period: Period {
                    before: Some(Arc::new(state)),
                    ..period
                },
                now: decided,
                what,
            }));
            return Ok(report);
        }
        carried = Some(Carried {
            seq,
            state: if period.adopted { decided.state } else { state },
        });
    }
    Ok(report)
}
