//! Hints, wired into a decision: guests are shown what the other layers decided, and a wish is granted within what these gave.
//!
//! A guest's vCPUs are where its plan's vCPU set has them, so a pin is granted within that. Where partition or placement has a core for each of its vCPUs,
//! their affinity has its owner and nothing is left to grant.
//!
//! The host's secret, by which each guest's numbering is drawn, is made of the decision's randomness when hints are first given, and remembered: a
//! replay needs nothing else.

use std::sync::Arc;

use ostler_model::{
    CpuSet, GuestPlan, HintsGuest, HintsPlan, HintsScene, HintsSettings, HintsState, HintsVcpu,
    Layer, PinGrant, Reason,
};

use super::not_seen;
use crate::hints::Publisher;
use crate::walk::Walk;
use crate::{Random, Seen};

/// The layer's buffers. What is in them between decisions is of no consequence.
#[derive(Debug, Default)]
pub(super) struct Layered {
    publisher: Publisher,
    /// What the publisher has published last, if that is known.
    last: Option<(Arc<HintsPlan>, Arc<[PinGrant]>)>,
    runnable: Vec<u32>,
    unknown: Vec<HintsVcpu>,
}

impl Layered {
    pub(super) fn decide(
        &mut self,
        seen: &Seen<'_>,
        planned: &[GuestPlan],
        state: &HintsState,
        rng: &mut (impl Random + ?Sized),
        reasons: &mut Vec<Reason>,
    ) -> HintsState {
        let Some(intent) = &seen.intent.hints else {
            return HintsState::default();
        };
        let key = state.key.unwrap_or_else(|| draw(rng));
        let settings = HintsSettings {
            interval: intent.interval,
            grants_max: intent.grants_max,
            pins_per_core_max: intent.pins_per_core_max,
            key,
        };
        let ours = self.last.as_ref().is_some_and(|(plan, granted)| {
            let shown = state
                .plan
                .as_ref()
                .is_some_and(|shown| Arc::ptr_eq(shown, plan));
            shown && Arc::ptr_eq(granted, &state.granted)
        });
        if !ours {
            self.publisher.resume(state.plan.as_deref(), &state.granted);
        }
        self.count(seen, reasons);
        let guests = guests(seen, planned, &mut self.unknown);
        let scene = HintsScene {
            topology: &seen.facts.topology,
            runnable: &self.runnable,
            guests: &guests,
        };
        let plan = self.publisher.publish(&scene, &settings, seen.snapshot.at);
        let plan = match &state.plan {
            Some(before) if **before == *plan => Arc::clone(before),
            _ => Arc::new(plan.clone()),
        };
        let before = state.granted.iter().map(|grant| (&grant.guest, grant.at));
        let granted = if self.publisher.granted().eq(before) {
            Arc::clone(&state.granted)
        } else {
            let granted = self.publisher.granted();
            granted
                .map(|(guest, at)| PinGrant {
                    guest: guest.clone(),
                    at,
                })
                .collect()
        };
        self.last = Some((Arc::clone(&plan), Arc::clone(&granted)));
        explain(&plan, reasons);
        HintsState {
            key: Some(key),
            plan: Some(plan),
            granted,
        }
    }

    /// Runnable vCPUs by core, in order of the topology.
    fn count(&mut self, seen: &Seen<'_>, reasons: &mut Vec<Reason>) {
        let views = &seen.snapshot.runnable;
        if views.is_empty() {
            reasons.push(not_seen(
                Layer::Hints,
                "count of runnable vCPUs, so that all cores pass for busy",
            ));
        }
        self.runnable.clear();
        let mut from = 0;
        for cpu in &seen.facts.topology.cpus {
            // Both ascend.
            while views.get(from).is_some_and(|view| view.cpu < cpu.id) {
                from += 1;
            }
            let view = views.get(from).filter(|view| view.cpu == cpu.id);
            // Nobody is told that a core is idle of which nobody knows.
            self.runnable.push(view.map_or(u32::MAX, |view| view.vcpus));
        }
    }
}

/// All guests, as hints see them.
fn guests<'a>(
    seen: &Seen<'a>,
    planned: &'a [GuestPlan],
    unknown: &'a mut Vec<HintsVcpu>,
) -> Vec<HintsGuest<'a>> {
    let views = &seen.snapshot.guests;
    let most = views.iter().map(|view| view.vcpus.len()).max();
    unknown.clear();
    unknown.resize(most.unwrap_or(0), HintsVcpu::default());
    let unknown = &*unknown;
    let old = seen.intent.old_after();
    let mut wishes = Walk::new(&seen.snapshot.wishes, |wishes| &wishes.guest);
    let mut planned = Walk::new(planned, |given| &given.guest);
    let mut members = Walk::new(seen.roster.members(), |member| &member.view.id);
    let guest = |view: &'a ostler_model::GuestView| {
        let id = &view.id;
        let given = planned.find(id);
        let rule = members.find(id).and_then(|member| member.rule);
        let told = wishes.find(id);
        let told =
            told.filter(|wishes| wishes.age <= old && wishes.vcpus.len() == view.vcpus.len());
        HintsGuest {
            guest: id,
            opted_in: given.is_some() && rule.is_some_and(|rule| rule.terms.hints),
            granted: given.map_or(&CpuSet::EMPTY, |given| &given.vcpu_cpus),
            placed: given.is_some_and(|given| !given.vcpu_pins.is_empty()),
            vcpus: told.map_or(&unknown[..view.vcpus.len()], |told| &told.vcpus),
        }
    };
    if seen.roster.in_order() {
        return views.iter().map(guest).collect();
    }
    let mut order: Vec<_> = views.iter().collect();
    order.sort_by(|a, b| a.id.cmp(&b.id));
    order.dedup_by(|a, b| a.id == b.id);
    order.into_iter().map(guest).collect()
}

fn draw(rng: &mut (impl Random + ?Sized)) -> [u8; 32] {
    let mut key = [0; 32];
    for word in key.chunks_exact_mut(8) {
        word.copy_from_slice(&rng.next_u64().to_le_bytes());
    }
    key
}

fn explain(plan: &HintsPlan, reasons: &mut Vec<Reason>) {
    let refused = plan
        .pins
        .iter()
        .filter(|pin| matches!(pin.verdict, ostler_model::PinVerdict::Refused(_)));
    let refused = super::count(refused.count());
    reasons.push(Reason::Hinted {
        guests: super::count(plan.guests.len()),
        granted: super::count(plan.pins.len()) - refused,
        refused,
    });
}
