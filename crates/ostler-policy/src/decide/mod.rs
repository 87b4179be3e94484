//! One decision of all layers.
//!
//! # The order
//!
//! Each layer decides within what those before it have given, and none gives anything away again:
//!
//! 1. **partition**: which cores for vCPUs, for queues, for best-effort guests, and a place for each interrupt and thread, in turn.
//! 2. **placement**: better places for those on packets' ways, within the same groups. What it has placed is its own; the rest stays with partition.
//! 3. **tier** and **sizing**: how much local and far memory for guests, and how much local memory for their files in the host, of one budget of local memory (`memory`).
//! 4. **hints**: what guests are shown of it, and which of their wishes are granted within it.
//! 5. **boost**: which guests take part. It moves nothing.
//!
//! # The ledger
//!
//! A core has one owner by [`Ledger`]: nobody can claim what another has. A queue's interrupt and a thread's affinity stand once in the plan, in those of
//! their NIC and guest; whoever is in [`PlacementPlan`](ostler_model::PlacementPlan) is placement's, all others are partition's. `ostler-check` holds plans
//! to all of that by rules of its own.
//!
//! # Periods
//!
//! A layer has a period of its own, at the end of which it decides again; until then its last decision stays, shared and not copied. What no
//! longer fits what partition gives now is decided again at once.

mod hints;
mod memory;
mod placement;

use std::borrow::Cow;

use ostler_model::{Facts, Intent, Layer, Nanos, Plan, Reason, Snapshot, State};

pub use placement::{Calibration, StageCalibrated, StageKind};

use crate::{Decision, Ledger, Random, Roster, Seen, boost, partition};

/// Makes decisions, one after the other. It keeps buffers, and nothing that a decision depends on: a new one decides the same.
#[derive(Debug, Default)]
pub struct Decider {
    lined: partition::cores::Lined,
    placement: placement::Layered,
    memory: memory::Layered,
    hints: hints::Layered,
    domains: boost::Domains,
}

impl Decider {
    /// Decides for the whole host.
    ///
    /// `now` is on the clock of [`Snapshot::at`]; a snapshot that has grown old by then is not acted on. The same arguments give
    /// the same decision.
    pub fn decide(
        &mut self,
        facts: &Facts,
        snapshot: &Snapshot,
        intent: &Intent,
        state: &State,
        now: Nanos,
        rng: &mut (impl Random + ?Sized),
    ) -> Decision {
        let roster = Roster::new(snapshot, intent);
        let seen = Seen {
            facts,
            snapshot,
            intent,
            roster: &roster,
            now,
        };
        let mut ledger = Ledger::new(facts, snapshot, intent);
        // As many as an uneventful period has.
        let mut reasons = Vec::with_capacity(16);
        let mut partition = partition::decide(
            &seen,
            &mut ledger,
            &state.partition,
            &mut self.lined,
            &mut reasons,
        );
        let groups = ledger.close();
        let placement = self.placement.decide(
            &seen,
            &groups,
            &mut partition,
            &state.placement,
            &mut reasons,
        );
        let memory = self.memory.decide(&seen, state, &mut reasons);
        let hints = self
            .hints
            .decide(&seen, &partition.guests, &state.hints, rng, &mut reasons);
        let boost = boost::decide(
            &seen,
            &groups,
            &partition.guests,
            &mut self.domains,
            &mut reasons,
        );
        let generation = state.generation + 1;
        Decision {
            plan: Plan {
                generation,
                parent: (state.generation > 0).then_some(state.generation),
                at: snapshot.at,
                groups,
                guests: partition.guests,
                nics: partition.nics,
                boost,
                placement: placement.plan.clone(),
                tier: memory.tier.plan.clone(),
                files: memory.sizing.plan.clone(),
                hints: hints.plan.clone(),
            },
            reasons,
            state: State {
                generation,
                partition: partition.memory,
                placement,
                tier: memory.tier,
                sizing: memory.sizing,
                hints,
            },
        }
    }
}

/// Decides for the whole host, with buffers of its own: see [`Decider::decide`].
pub fn decide(
    facts: &Facts,
    snapshot: &Snapshot,
    intent: &Intent,
    state: &State,
    now: Nanos,
    rng: &mut (impl Random + ?Sized),
) -> Decision {
    Decider::default().decide(facts, snapshot, intent, state, now, rng)
}

/// Whether a layer decides again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    /// It does.
    Now,
    /// In so long.
    In(Nanos),
}

/// Whether a layer that decided last at some time decides again. Where the clock went back, it does.
fn due(decided: Option<Nanos>, interval: Nanos, now: Nanos) -> Due {
    match decided {
        Some(decided) if decided <= now && now.0 - decided.0 < interval.0 => {
            Due::In(Nanos(interval.0 - (now.0 - decided.0)))
        }
        _ => Due::Now,
    }
}

/// A layer has nothing to go by.
fn not_seen(layer: Layer, what: impl Into<Cow<'static, str>>) -> Reason {
    Reason::NotSeen {
        layer,
        what: what.into(),
    }
}

fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
