//! Judges a plan before anything acts on it.
//!
//! Its rules are written apart from the policies and import nothing of theirs: a plan is checked against the facts, the
//! snapshot and the intent by asking what must hold of *any* plan, not by deciding again. A policy with a bug, or one read back
//! from a record, is stopped here; the steward refuses to act on a plan with a violation and leaves the host as it is.
//!
//! - cores: the ledger, below
//! - guests: where they run, whether they run, and what their agents are asked
//! - weights: who yields to whom on shared cores
//! - NICs: queues, interrupts and steering
//! - placement: threads on packets' ways have one place each
//! - tier: what of guests' memory is local and far, and what moves
//! - files: what they have of local memory
//! - hints, also by themselves ([`check_hints`]): what guests are shown of the host, and which vCPUs are kept where
//!
//! # The ledger
//!
//! A core is *managed* when it is online (in the facts, and in the snapshot unless that lists no CPU) and the intent doesn't leave it
//! out; it is *available* when it isn't reserved either. Each available core is in one group. In a plan that shares cores by
//! design, the NQ group may overlap the vCPU and the best-effort group, and nothing else may overlap. SMT siblings go
//! together as soon as there are two physical cores to divide.
//!
//! May depend on: `ostler-model`.

mod boost;
mod cores;
mod files;
mod guests;
mod hints;
mod nics;
mod placement;
mod tier;
mod violation;
mod weights;

use ostler_model::{Class, CpuId, CpuSet, Facts, GuestView, Intent, Plan, Snapshot};

pub use hints::{HintsViolation, check_hints};
pub use violation::{Holder, Violation};

/// Everything that is wrong with a plan; nothing when it may be acted on.
///
/// `previous` is the plan that was decided before it in this run, where there is one.
pub fn check(
    facts: &Facts,
    snapshot: &Snapshot,
    intent: &Intent,
    previous: Option<&Plan>,
    plan: &Plan,
) -> Vec<Violation> {
    let mut found = Vec::new();
    let scene = Scene::new(facts, snapshot, intent);
    lineage(snapshot, previous, plan, &mut found);
    cores::check(&scene, plan, &mut found);
    guests::check(&scene, plan, &mut found);
    weights::check(&scene, plan, &mut found);
    nics::check(&scene, plan, &mut found);
    boost::check(&scene, plan, &mut found);
    placement::check(&scene, plan, &mut found);
    tier::check(&scene, previous, plan, &mut found);
    files::check(&scene, previous, plan, &mut found);
    hints::check(&scene, previous, plan, &mut found);
    found
}

/// What the rules look at besides the plan.
struct Scene<'a> {
    facts: &'a Facts,
    snapshot: &'a Snapshot,
    intent: &'a Intent,
    online: CpuSet,
    managed: CpuSet,
    reserved: CpuSet,
    available: CpuSet,
    /// Whether two CPUs are one core's.
    siblings: bool,
    /// Managed guests and their classes, in order of id.
    guests: Vec<(&'a GuestView, Class)>,
}

impl<'a> Scene<'a> {
    fn new(facts: &'a Facts, snapshot: &'a Snapshot, intent: &'a Intent) -> Scene<'a> {
        let online = facts.topology.online();
        let there: CpuSet = snapshot.cpus.iter().map(|usage| usage.cpu).collect();
        let still = if snapshot.cpus.is_empty() {
            online
        } else {
            online.intersection(&there)
        };
        let managed = intent
            .cores
            .managed
            .map_or(still, |managed| managed.intersection(&still));
        let reserved = managed.intersection(&intent.cores.reserved);
        let mut guests: Vec<_> = snapshot
            .guests
            .iter()
            .map(|guest| (guest, intent.classify(guest).0))
            .filter(|(_, class)| *class != Class::Unmanaged)
            .collect();
        guests.sort_by(|a, b| a.0.id.cmp(&b.0.id));
        Scene {
            facts,
            snapshot,
            intent,
            online,
            managed,
            reserved,
            available: managed.difference(&reserved),
            siblings: has_siblings(facts),
            guests,
        }
    }

    fn any(&self, class: Class) -> bool {
        self.guests.iter().any(|guest| guest.1 == class)
    }
}

fn has_siblings(facts: &Facts) -> bool {
    let mut cores: Vec<CpuId> = facts.topology.cpus.iter().map(|cpu| cpu.core).collect();
    cores.sort_unstable();
    cores.windows(2).any(|two| two[0] == two[1])
}

fn lineage(snapshot: &Snapshot, previous: Option<&Plan>, plan: &Plan, found: &mut Vec<Violation>) {
    let parent = plan.parent.unwrap_or(0);
    if plan.generation != parent.saturating_add(1) {
        found.push(Violation::Generation {
            parent,
            found: plan.generation,
        });
    }
    if let Some(previous) = previous
        && plan.parent != Some(previous.generation)
    {
        found.push(Violation::Parent {
            expected: previous.generation,
            found: plan.parent,
        });
    }
    if plan.at != snapshot.at {
        found.push(Violation::At);
    }
}
