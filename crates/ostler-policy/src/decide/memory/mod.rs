//! One budget of local memory for guests' memory and for their files in the host.
//!
//! Where the tier layer is on, both stand in one line, and what there is is poured from its beginning to its end ([`tier`](crate::tier)): floors, files' leasts, guests that press, files' wishes, other
//! guests. What that comes to stands in the reasons ([`Reason::LocalMemory`]). So files shrink for a guest that presses, and a guest that doesn't goes far for files.
//!
//! What nobody has now is given out once: in the same order, to pieces that come near and to files that grow. Files grow by what is free already; a piece may also follow one
//! that makes room for it, as moves are made in turn. Between two decisions of tier, files grow by nothing, as what is free then is on its way to guests.
//!
//! Where tier is off or has nothing to go by, sizing has what is free by itself.

mod files;
mod tier;

use ostler_model::{
    Layer, Nanos, Reason, SizingSettings, SizingState, State, TierSettings, TierState,
};

use super::{Due, due};
use crate::Seen;

/// The layers' buffers. What is in them between decisions is of no consequence.
#[derive(Debug, Default)]
pub(super) struct Layered {
    files: files::Layered,
    tier: tier::Layered,
}

/// What both layers have decided.
#[derive(Debug, Default)]
pub(super) struct Decided {
    pub(super) tier: TierState,
    pub(super) sizing: SizingState,
}

impl Layered {
    pub(super) fn decide(
        &mut self,
        seen: &Seen<'_>,
        state: &State,
        reasons: &mut Vec<Reason>,
    ) -> Decided {
        let sizing = seen.intent.sizing.as_ref();
        match sizing {
            Some(settings) => self.files.wish(seen, settings, &state.sizing, reasons),
            None => self.files.clear(),
        }
        let tier = seen.intent.tier.as_ref();
        let (tier, shared) = match tier {
            None => (TierState::default(), self.alone(seen, &state.sizing)),
            Some(settings) => self.both(seen, settings, state, reasons),
        };
        let sizing = sizing.map(|settings| {
            self.files
                .finish(seen, settings, &state.sizing, shared, reasons)
        });
        Decided {
            tier,
            sizing: sizing.unwrap_or_default(),
        }
    }

    /// Sizing by itself; when memory was shared out, if it was.
    fn alone(&mut self, seen: &Seen<'_>, state: &SizingState) -> Option<Nanos> {
        let settings = seen.intent.sizing.as_ref()?;
        let now = seen.snapshot.at;
        if self.files.is_due(state, now) {
            self.files.grant(settings.budget.0, free(seen));
            return Some(now);
        }
        self.files.keep();
        None
    }

    /// Both from one budget.
    fn both(
        &mut self,
        seen: &Seen<'_>,
        settings: &TierSettings,
        state: &State,
        reasons: &mut Vec<Reason>,
    ) -> (TierState, Option<Nanos>) {
        let now = seen.snapshot.at;
        let before = &state.tier;
        let fits = |plan| tier::fits(seen, plan);
        if let Due::In(left) = due(before.decided, settings.interval, now)
            && before.plan.as_deref().is_some_and(fits)
            && !tier::rises(seen, settings, before)
        {
            reasons.push(Reason::Stays {
                layer: Layer::Tier,
                left,
            });
            let sizing = seen.intent.sizing.as_ref();
            let shared = sizing.and_then(|sizing| self.between(sizing, &state.sizing, now));
            return (before.clone(), shared);
        }
        if !self.tier.see(seen, settings, before, reasons) {
            let blind = TierState {
                decided: None,
                plan: None,
                until: tier::until(settings, before.until, now, 0),
                guests: std::sync::Arc::clone(&before.guests),
            };
            return (blind, self.alone(seen, &state.sizing));
        }
        let files = self.tier.pour(settings, self.files.claims(), reasons);
        self.files.divide(files);
        let more = self.tier.shift(seen, settings, before, self.files.lacks());
        self.files.give(files, Some(more));
        let tier = self.tier.finish(seen, settings, before, reasons);
        (tier, Some(now))
    }

    /// Files between two decisions of tier: nobody has more than was poured, and nobody grows.
    fn between(
        &mut self,
        settings: &SizingSettings,
        state: &SizingState,
        now: Nanos,
    ) -> Option<Nanos> {
        let poured = state.plan.as_ref().map(|plan| plan.budget);
        let budget = poured.map_or(settings.budget, |poured| poured.min(settings.budget));
        if self.files.must() {
            self.files.grant(budget.0, Some(0));
            return Some(now);
        }
        self.files.keep();
        self.files.bound(budget.0);
        None
    }
}

/// Free local memory; nothing where it isn't known of each node that has any.
fn free(seen: &Seen<'_>) -> Option<u64> {
    let nodes = &seen.facts.memory.nodes;
    let old = seen.intent.old_after();
    let mut local = nodes.iter().filter(|node| !node.far).peekable();
    local.peek()?;
    local.try_fold(0_u64, |sum, node| {
        let mut views = seen.snapshot.nodes.iter();
        let view = views.find(|view| view.node == node.node && view.age <= old)?;
        Some(sum.saturating_add(view.free.0))
    })
}
