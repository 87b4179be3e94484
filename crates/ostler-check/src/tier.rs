//! Guests' local and far memory: nothing is lost, nothing goes where there is no room or more than may, no address moves twice, and floors hold.
//!
//! What moves is judged when it is decided, by what was seen then; until it is decided again it stands while it is carried out.

use std::cmp::Reverse;

use ostler_model::{
    Bytes, GuestId, GuestMemory, GuestTier, Layer, MemoryClass, MemoryMove, Nanos, NodeId, Plan,
    TierPlan, TierSettings,
};

use crate::files::grows;
use crate::{Scene, Violation};

/// What a page may be as large as: what is rounded is rounded by no more.
const PAGE_MAX: u128 = 2 << 20;

pub(crate) fn check(
    scene: &Scene<'_>,
    previous: Option<&Plan>,
    plan: &Plan,
    found: &mut Vec<Violation>,
) {
    let Some(tier) = &plan.tier else { return };
    let layer = Layer::Tier;
    let Some(settings) = &scene.intent.tier else {
        found.push(Violation::Unasked { layer });
        return;
    };
    if tier.since > plan.at {
        found.push(Violation::Since { layer });
    }
    let guests = &tier.guests;
    if guests.windows(2).any(|two| two[0].guest >= two[1].guest) {
        found.push(Violation::Twice { layer });
    }
    for given in guests {
        if scene
            .guests
            .binary_search_by(|(view, _)| view.id.cmp(&given.guest))
            .is_err()
        {
            found.push(Violation::NobodysMemory {
                guest: given.guest.clone(),
            });
        }
    }
    let pressing = |given: &GuestTier| given.class != MemoryClass::Rest;
    if tier.peak != (!guests.is_empty() && guests.iter().all(pressing)) {
        found.push(Violation::Peak { peak: tier.peak });
    }
    if tier.since == plan.at {
        Fresh::new(scene, settings, plan, tier).check(found);
    } else if let Some(before) = previous.and_then(|previous| previous.tier.as_ref())
        && before != tier
    {
        found.push(Violation::Since { layer });
    }
}

/// A section that was decided by what the snapshot shows.
struct Fresh<'a> {
    scene: &'a Scene<'a>,
    settings: &'a TierSettings,
    plan: &'a Plan,
    tier: &'a TierPlan,
    changes: Vec<Change<'a>>,
}

/// A guest of the plan, and what comes of it.
struct Change<'a> {
    given: &'a GuestTier,
    seen: &'a GuestMemory,
    local: u128,
    near: u128,
    far: u128,
    floor: u128,
    tenant: Option<&'a str>,
    own: Vec<&'a MemoryMove>,
}

impl Change<'_> {
    fn after(&self) -> u128 {
        (self.local + self.near).saturating_sub(self.far)
    }
}

impl<'a> Fresh<'a> {
    fn new(
        scene: &'a Scene<'a>,
        settings: &'a TierSettings,
        plan: &'a Plan,
        tier: &'a TierPlan,
    ) -> Fresh<'a> {
        Fresh {
            scene,
            settings,
            plan,
            tier,
            changes: Vec::new(),
        }
    }

    fn check(mut self, found: &mut Vec<Violation>) {
        self.guests(found);
        self.moves(found);
        self.room(found);
        self.floors(found);
        self.order(found);
    }

    fn node_is_far(&self, node: NodeId) -> Option<bool> {
        self.scene.facts.memory.node(node).map(|node| node.far)
    }

    /// What was seen of each guest is what it is to have, no more and no less.
    fn guests(&mut self, found: &mut Vec<Violation>) {
        let old = self.scene.intent.old_after().max(self.settings.interval);
        // By guest; where one is there twice, the first counts.
        let mut memory: Vec<&GuestMemory> = self.scene.snapshot.memory.iter().collect();
        memory.sort_by(|a, b| a.guest.cmp(&b.guest));
        memory.dedup_by(|a, b| a.guest == b.guest);
        let mut all: Vec<&MemoryMove> = self.tier.moves.iter().collect();
        all.sort_by(|a, b| a.guest.cmp(&b.guest));
        for given in &self.tier.guests {
            let id = &given.guest;
            let view = memory.binary_search_by(|view| view.guest.cmp(id));
            let view = view.ok().map(|at| memory[at]);
            let Some(seen) = view.filter(|view| view.age <= old) else {
                found.push(Violation::NobodysMemory { guest: id.clone() });
                continue;
            };
            let (mut local, mut bytes) = (0, 0);
            for node in &self.scene.facts.memory.nodes {
                let on = u128::from(seen.on(node.node).0);
                bytes += on;
                local += if node.far { 0 } else { on };
            }
            let planned = u128::from(given.local.0) + u128::from(given.far.0);
            if planned != bytes {
                found.push(Violation::MemoryLost {
                    guest: id.clone(),
                    planned,
                    seen: bytes,
                });
            }
            let guests = &self.scene.guests;
            let known = guests.binary_search_by(|(view, _)| view.id.cmp(id));
            let terms = known.ok().map(|at| guests[at].0);
            let terms = terms.and_then(|view| self.scene.intent.rule(view));
            let terms = terms.map(|rule| &rule.terms);
            let from = all.partition_point(|moves| moves.guest < *id);
            let own = all[from..].iter().take_while(|moves| moves.guest == *id);
            let own: Vec<&MemoryMove> = own.copied().collect();
            let moved = |far: bool| -> u128 {
                let moves = own.iter();
                let there = moves.filter(|moves| self.node_is_far(moves.to) == Some(far));
                there.map(|moves| u128::from(moves.bytes.0)).sum()
            };
            let (near, far) = (moved(false), moved(true));
            self.changes.push(Change {
                given,
                seen,
                local,
                near,
                far,
                floor: u128::from(terms.map_or(0, |terms| terms.local_min.0)).min(bytes),
                tenant: terms.and_then(|terms| terms.tenant.as_deref()),
                own,
            });
        }
    }

    /// Each guest moves one way, towards what it is to have, and of what it has.
    fn moves(&self, found: &mut Vec<Violation>) {
        let layer = Layer::Tier;
        for moves in &self.tier.moves {
            let id = &moves.guest;
            let known = |change: &Change<'_>| change.given.guest.cmp(id);
            if self.changes.binary_search_by(known).is_err() {
                found.push(Violation::NobodysMemory { guest: id.clone() });
            }
            let tiers = (self.node_is_far(moves.from), self.node_is_far(moves.to));
            if !matches!(tiers, (Some(from), Some(to)) if from != to) {
                found.push(Violation::MovesNowhere {
                    guest: id.clone(),
                    from: moves.from,
                    to: moves.to,
                });
            }
        }
        for change in &self.changes {
            let id = &change.given.guest;
            let target = u128::from(change.given.local.0);
            let both = change.near > 0 && change.far > 0;
            if both
                || change.near > target.saturating_sub(change.local)
                || change.far > change.local.saturating_sub(target)
            {
                found.push(Violation::MovesBeyond { guest: id.clone() });
            }
            let own = &change.own;
            if own.is_empty() {
                continue;
            }
            for node in &self.scene.facts.memory.nodes {
                let from = own.iter().filter(|moves| moves.from == node.node);
                let sum: u128 = from.map(|moves| u128::from(moves.bytes.0)).sum();
                if sum > u128::from(change.seen.on(node.node).0) {
                    found.push(Violation::MovesBeyond { guest: id.clone() });
                }
            }
            ranges(id, change.seen, own, found);
        }
        let sum = self.tier.moves.iter();
        let sum: u128 = sum.map(|moves| u128::from(moves.bytes.0)).sum();
        let rate = u128::from(self.settings.bytes_per_s.0);
        let budget = rate * u128::from(self.settings.interval.0) / 1_000_000_000;
        if sum > budget {
            found.push(Violation::Budget {
                layer,
                bytes: sum,
                budget: Bytes(u64::try_from(budget).unwrap_or(u64::MAX)),
            });
        }
    }

    /// In the order of the moves, no node has more than there is, and what files grow by and the host's reserve stay free.
    fn room(&self, found: &mut Vec<Violation>) {
        let old = self.scene.intent.old_after();
        let nodes = &self.scene.facts.memory.nodes;
        let mut free: Vec<(NodeId, bool, u128)> = Vec::with_capacity(nodes.len());
        for node in nodes {
            let mut views = self.scene.snapshot.nodes.iter();
            let view = views.find(|view| view.node == node.node && view.age <= old);
            let bytes = view.map_or(0, |view| view.free.0.min(node.bytes.0));
            free.push((node.node, node.far, u128::from(bytes)));
        }
        let kept = self.grown() + u128::from(self.settings.reserve.0);
        for moves in &self.tier.moves {
            let bytes = u128::from(moves.bytes.0);
            if let Some(from) = free.iter_mut().find(|free| free.0 == moves.from) {
                from.2 += bytes;
            }
            let Some(to) = free.iter_mut().find(|free| free.0 == moves.to) else {
                continue;
            };
            if bytes > to.2 {
                found.push(Violation::NodeFull {
                    node: moves.to,
                    bytes,
                    free: to.2,
                });
            }
            to.2 = to.2.saturating_sub(bytes);
            let near = !to.1;
            let local = free.iter().filter(|free| !free.1);
            let local: u128 = local.map(|free| free.2).sum();
            if near && local < kept {
                found.push(Violation::NotFree {
                    layer: Layer::Tier,
                    bytes: bytes + kept,
                    free: local + bytes,
                });
            }
        }
    }

    /// What files are to grow by.
    fn grown(&self) -> u128 {
        let (Some(files), Some(sizing)) = (&self.plan.files, &self.scene.intent.sizing) else {
            return 0;
        };
        let grown = grows(self.scene, sizing, &files.guests);
        grown.map(|(_, bytes)| u128::from(bytes)).sum()
    }

    /// Nobody goes below a floor, and no tenant's guests together do.
    fn floors(&self, found: &mut Vec<Violation>) {
        for change in &self.changes {
            if change.far > 0 && change.after() < change.floor {
                found.push(Violation::FloorBroken {
                    whose: change.given.guest.to_string(),
                    floor: change.floor,
                    left: change.after(),
                });
            }
        }
        for floor in &self.settings.tenants {
            let own = self.of(&floor.tenant);
            let had: u128 = own.iter().map(|change| change.local).sum();
            let left: u128 = own.iter().map(|change| change.after()).sum();
            let floor_bytes = u128::from(floor.local_min.0).min(had);
            if own.iter().any(|change| change.far > 0) && left < floor_bytes {
                found.push(Violation::FloorBroken {
                    whose: floor.tenant.clone(),
                    floor: floor_bytes,
                    left,
                });
            }
        }
    }

    fn of(&self, tenant: &str) -> Vec<&Change<'a>> {
        let own = self.changes.iter();
        own.filter(|change| change.tenant == Some(tenant)).collect()
    }

    /// Nobody makes way while a lower class keeps more than it must; and at the peak nobody does but for floors.
    fn order(&self, found: &mut Vec<Violation>) {
        let has_tenant_floor = |change: &Change<'_>| {
            let tenants = self.settings.tenants.iter();
            tenants
                .map(|floor| Some(floor.tenant.as_str()))
                .any(|tenant| change.tenant == tenant)
        };
        let mut by_class: Vec<&Change<'_>> = self.changes.iter().collect();
        by_class.sort_by_key(|change| Reverse(change.given.class));
        let keeps = by_class.iter().find(|change| {
            let target = u128::from(change.given.local.0);
            target > change.floor && !has_tenant_floor(change)
        });
        let gives = by_class.iter().find(|change| {
            change.far > 0 && keeps.is_some_and(|keeps| change.given.class < keeps.given.class)
        });
        if let (Some(keeps), Some(gives)) = (keeps, gives) {
            found.push(Violation::OutOfLine {
                guest: gives.given.guest.clone(),
                keeps: keeps.given.guest.clone(),
            });
        }
        if !self.tier.peak {
            return;
        }
        let gone: u128 = self.changes.iter().map(|change| change.far).sum();
        let may = self.peak_moves();
        if gone > may + PAGE_MAX {
            found.push(Violation::MovedAtPeak { bytes: gone, may });
        }
    }

    /// What may go far though all press: for floors, for the host's reserve, and for the leasts of files.
    fn peak_moves(&self) -> u128 {
        let own = self.changes.iter();
        let mut may: u128 = own
            .map(|change| change.floor.saturating_sub(change.local))
            .sum();
        for floor in &self.settings.tenants {
            let own = self.of(&floor.tenant);
            let had: u128 = own.iter().map(|change| change.local).sum();
            may += u128::from(floor.local_min.0).saturating_sub(had);
        }
        let free = crate::files::free(self.scene).unwrap_or(0);
        may += u128::from(self.settings.reserve.0).saturating_sub(free);
        let sizing = self.scene.intent.sizing.as_ref();
        let old = sizing.map_or(Nanos::ZERO, |sizing| sizing.interval_min);
        let old = self.scene.intent.old_after().max(old);
        for given in self.plan.files.iter().flat_map(|files| &files.guests) {
            // What was seen too long ago says nothing of what they have: they may lack all of it.
            let mut views = self.scene.snapshot.files.iter();
            let held = views.find(|view| view.guest == given.guest && view.age <= old);
            let guest = self.scene.guests.iter();
            let mut guest = guest.filter(|(view, _)| view.id == given.guest);
            let least = guest
                .next()
                .and_then(|(view, _)| self.scene.intent.rule(view)?.terms.files.as_ref())
                .map_or(0, |wish| wish.least.0);
            may += u128::from(least.saturating_sub(held.map_or(0, |view| view.bytes.0)));
        }
        may
    }
}

/// Ranges are of the guest, on the node that they are moved from, as many bytes as move, and each once.
fn ranges(id: &GuestId, seen: &GuestMemory, moves: &[&MemoryMove], found: &mut Vec<Violation>) {
    let mut all: Vec<(u64, u64)> = Vec::new();
    for moves in moves {
        let sum: u128 = moves.ranges.iter().map(|r| u128::from(r.bytes.0)).sum();
        if seen.ranges.is_empty() != moves.ranges.is_empty()
            || (!moves.ranges.is_empty() && sum != u128::from(moves.bytes.0))
        {
            found.push(Violation::RangesDiffer {
                guest: id.clone(),
                bytes: moves.bytes,
                ranges: sum,
            });
        }
        for range in &moves.ranges {
            let end = range.start.checked_add(range.bytes.0);
            let within = |view: &ostler_model::RangeView| {
                let ends = view.range.start.checked_add(view.range.bytes.0);
                view.node == moves.from
                    && view.range.start <= range.start
                    && end.zip(ends).is_some_and(|(end, ends)| end <= ends)
            };
            match end {
                Some(end) if range.bytes.0 > 0 && seen.ranges.iter().any(within) => {
                    all.push((range.start, end));
                }
                _ => found.push(Violation::RangeElsewhere {
                    guest: id.clone(),
                    start: range.start,
                }),
            }
        }
    }
    all.sort_unstable();
    if let Some(two) = all.windows(2).find(|two| two[0].1 > two[1].0) {
        found.push(Violation::RangeTwice {
            guest: id.clone(),
            start: two[1].0,
        });
    }
}
