//! Tier, wired into a decision: what is seen of guests' memory becomes claims, and what moves a section of the plan.
//!
//! A guest takes part when it is seen where its memory is, and how it uses it. Of others nothing is known to go by: they keep what they have, and what they have is
//! in no sum.

use std::sync::Arc;

use ostler_model::{
    Bytes, Class, GuestId, GuestMemory, GuestTier, Layer, MemoryClass, MemoryMove, Nanos,
    NodeBytes, NodeView, Reason, TierPlan, TierSettings, TierState, TierWatch,
};

use super::super::{count, not_seen};
use crate::tier::class::{Thresholds, Use, Watch};
use crate::tier::moves::{self, Guests, Host, Mover, Node, Settings};
use crate::tier::proportion::{Claim, Files, Order, Targets};
use crate::tier::ranges;
use crate::walk::Walk;
use crate::{Member, Seen};

/// The layer's buffers. What is in them between decisions is of no consequence.
#[derive(Debug, Default)]
pub(super) struct Layered {
    nodes: Vec<Node>,
    tenants: Vec<u64>,
    /// By place in the roster: when a guest came, and what it was seen to do.
    watches: Vec<(Nanos, Watch)>,
    claims: Vec<Claim>,
    /// By claim: places in the roster and among what was seen of guests' memory.
    who: Vec<(usize, usize)>,
    /// Bytes by claim and node.
    on: Vec<u64>,
    local: Vec<u64>,
    /// Local memory that there is to give out.
    bytes: u64,
    targets: Targets,
    /// What may move until it is decided again.
    budget: u64,
    mover: Mover,
}

impl Layered {
    /// Takes stock of nodes and guests; whether there is anything to go by.
    pub(super) fn see(
        &mut self,
        seen: &Seen<'_>,
        settings: &TierSettings,
        state: &TierState,
        reasons: &mut Vec<Reason>,
    ) -> bool {
        let nodes = self.see_nodes(seen);
        if let Err(what) = nodes {
            reasons.push(not_seen(Layer::Tier, what));
            return false;
        }
        self.tenants.clear();
        let tenants = settings.tenants.iter();
        self.tenants.extend(tenants.map(|floor| floor.local_min.0));
        let unseen = self.see_guests(seen, settings, state);
        if unseen > 0 {
            let what = format!("word of where {unseen} guests' memory is, and how it is used");
            reasons.push(not_seen(Layer::Tier, what));
        }
        true
    }

    fn see_nodes(&mut self, seen: &Seen<'_>) -> Result<(), &'static str> {
        let old = seen.intent.old_after();
        let views = &seen.snapshot.nodes;
        self.nodes.clear();
        let mut tiers = [false; 2];
        for node in &seen.facts.memory.nodes {
            let fresh = |view: &&NodeView| view.node == node.node && view.age <= old;
            let free = views.iter().find(fresh).map(|view| view.free.0);
            // Nothing goes far to where nobody knows of any room.
            let free = free
                .or(node.far.then_some(0))
                .ok_or("word of free memory")?;
            tiers[usize::from(node.far)] = true;
            self.nodes.push(Node {
                far: node.far,
                free: free.min(node.bytes.0),
            });
        }
        match tiers {
            [true, true] => Ok(()),
            [_, false] => Err("far memory"),
            [false, true] => Err("local memory"),
        }
    }

    /// Makes claims of what is seen; of how many guests nothing is known.
    fn see_guests(&mut self, seen: &Seen<'_>, settings: &TierSettings, state: &TierState) -> u32 {
        self.watches.clear();
        self.claims.clear();
        self.who.clear();
        self.on.clear();
        self.local.clear();
        let by = thresholds(settings);
        let now = seen.snapshot.at;
        let old = seen.intent.old_after().max(settings.interval);
        let all = &seen.snapshot.memory;
        let mut views = Walk::new(all, |view| &view.guest);
        let mut before = Walk::new(&state.guests, |watch| &watch.guest);
        let mut unseen = 0;
        for (guest, member) in seen.roster.members().iter().enumerate() {
            let id = &member.view.id;
            let known = before.find(id);
            let mut watch = known.map_or(Watch::default(), |known| Watch {
                pressed: known.pressed,
                io: known.io,
            });
            let came = known.map_or(now, |known| known.came.min(now));
            let view = views.place(id).filter(|at| all[*at].age <= old);
            let class = view.and_then(|at| {
                let view = &all[at];
                let (local, bytes) = self.enter(seen, view);
                let class = watch.class(now, &use_of(view, bytes), &by)?;
                Some((at, class, local, bytes))
            });
            self.watches.push((came, watch));
            let Some((view, class, local, bytes)) = class else {
                unseen += 1;
                self.on.truncate(self.claims.len() * self.nodes.len());
                continue;
            };
            let (floor, priority, tenant) = terms(member, settings);
            self.claims.push(Claim {
                class,
                priority,
                critical: member.class == Class::LatencyCritical,
                came,
                bytes,
                local,
                floor,
                tenant,
            });
            self.who.push((guest, view));
            self.local.push(local);
        }
        unseen
    }

    /// Enters what a guest has by node; what of it is local, and all of it. Nodes that nobody knows don't count.
    fn enter(&mut self, seen: &Seen<'_>, view: &GuestMemory) -> (u64, u64) {
        let (mut local, mut all) = (0_u64, 0_u64);
        let mut next = 0;
        for node in &seen.facts.memory.nodes {
            let there = |here: &&NodeBytes| here.node == node.node;
            // Most are told in the host's order. Who is there twice has what stands first.
            let in_order = view.nodes.get(next).filter(there);
            next += usize::from(in_order.is_some());
            let here = in_order.or_else(|| view.nodes.iter().find(there));
            let here = here.map_or(0, |here| here.bytes.0);
            self.on.push(here);
            all = all.saturating_add(here);
            if !node.far {
                local = local.saturating_add(here);
            }
        }
        (local, all)
    }

    /// Gives local memory out, to guests' files too; what these are to have.
    pub(super) fn pour(
        &mut self,
        settings: &TierSettings,
        files: Files,
        reasons: &mut Vec<Reason>,
    ) -> u64 {
        let free = self.nodes.iter().filter(|node| !node.far);
        let free = free.fold(0_u64, |sum, node| sum.saturating_add(node.free));
        let held = self.local.iter();
        let held = held.fold(files.held, |sum, local| sum.saturating_add(*local));
        self.bytes = free.saturating_add(held).saturating_sub(settings.reserve.0);
        self.targets
            .pour(self.bytes, &self.claims, &self.tenants, files, Order::Keep);
        reasons.push(Reason::LocalMemory {
            bytes: Bytes(self.bytes),
            shares: self.targets.shares,
            all_press: self.targets.all_press,
        });
        self.targets.files
    }

    /// Makes moves; how much of what is free guests' files may have.
    pub(super) fn shift(
        &mut self,
        seen: &Seen<'_>,
        settings: &TierSettings,
        state: &TierState,
        files: moves::Files,
    ) -> u64 {
        self.budget = budget(settings, state.until, seen.snapshot.at);
        let facts = &seen.facts.memory;
        let nodes = &self.nodes;
        for (claim, &(_, view)) in self.who.iter().enumerate() {
            let view = &seen.snapshot.memory[view];
            if view.ranges.is_empty() || self.local[claim] == self.targets.local[claim] {
                continue;
            }
            // What moves is of ranges that are known.
            let on = &mut self.on[claim * nodes.len()..][..nodes.len()];
            for (on, node) in on.iter_mut().zip(&facts.nodes) {
                *on = ranges::on(&view.ranges, node.node).min(*on);
            }
        }
        let square = facts.distances.len() == nodes.len() * nodes.len();
        let host = Host {
            nodes,
            distances: if square { &facts.distances } else { &[] },
        };
        let guests = Guests {
            on: &self.on,
            local: &self.local,
            target: &self.targets.local,
            floors: &self.targets.floors,
            line: &self.targets.line,
            pressing: self.targets.pressing,
        };
        let by = Settings {
            budget: self.budget,
            step: settings.step.0,
            reserve: settings.reserve.0,
        };
        self.mover.plan(&host, &guests, files, &by);
        self.mover.files
    }

    /// Enters what is to be and what moves.
    pub(super) fn finish(
        &self,
        seen: &Seen<'_>,
        settings: &TierSettings,
        state: &TierState,
        reasons: &mut Vec<Reason>,
    ) -> TierState {
        self.tell(seen, state, reasons);
        let now = seen.snapshot.at;
        let members = seen.roster.members();
        let guests = || {
            let claims = self.claims.iter().zip(&self.targets.local).zip(&self.who);
            claims.map(|((claim, &local), &(guest, _))| {
                let far = Bytes(claim.bytes.saturating_sub(local));
                (&members[guest].view.id, claim.class, Bytes(local), far)
            })
        };
        let same = |plan: &&Arc<TierPlan>| {
            self.mover.pieces.is_empty()
                && plan.moves.is_empty()
                && plan.peak == self.targets.all_press
                && plan.guests.len() == self.claims.len()
                && plan
                    .guests
                    .iter()
                    .zip(guests())
                    .all(|(before, now)| told(before) == now)
        };
        let plan = state.plan.as_ref().filter(same).map_or_else(
            || {
                Arc::new(TierPlan {
                    since: now,
                    peak: self.targets.all_press,
                    guests: guests()
                        .map(|(guest, class, local, far)| GuestTier {
                            guest: guest.clone(),
                            class,
                            local,
                            far,
                        })
                        .collect(),
                    moves: self.moves(seen),
                })
            },
            Arc::clone,
        );
        TierState {
            decided: Some(now),
            plan: Some(plan),
            until: until(settings, state.until, now, self.moving()),
            guests: self.watched(seen, state),
        }
    }

    /// What was seen of guests, to be remembered.
    fn watched(&self, seen: &Seen<'_>, state: &TierState) -> Arc<[TierWatch]> {
        let members = seen.roster.members().iter();
        let watches = members.zip(&self.watches);
        let same = state.guests.len() == self.watches.len()
            && watches
                .clone()
                .zip(&*state.guests)
                .all(|((member, (came, watch)), before)| {
                    before.guest == member.view.id
                        && (before.came, before.pressed, before.io)
                            == (*came, watch.pressed, watch.io)
                });
        if same {
            return Arc::clone(&state.guests);
        }
        watches
            .map(|(member, &(came, watch))| TierWatch {
                guest: member.view.id.clone(),
                came,
                pressed: watch.pressed,
                io: watch.io,
            })
            .collect()
    }

    /// All that moves, bytes.
    fn moving(&self) -> u64 {
        let pieces = self.mover.pieces.iter();
        pieces.fold(0, |sum, piece| piece.bytes.saturating_add(sum))
    }

    fn moves(&self, seen: &Seen<'_>) -> Vec<MemoryMove> {
        let nodes = &seen.facts.memory.nodes;
        let pieces = &self.mover.pieces;
        let moves = pieces.iter().enumerate().map(|(at, piece)| {
            let (guest, view) = self.who[piece.guest];
            let known = &seen.snapshot.memory[view].ranges;
            let (from, to) = (nodes[piece.from].node, nodes[piece.to].node);
            let mut ranges = Vec::new();
            if !known.is_empty() {
                // Earlier pieces have had the first ones.
                let same = pieces[..at]
                    .iter()
                    .filter(|had| (had.guest, had.from) == (piece.guest, piece.from));
                let skip = same.map(|had| had.bytes).sum();
                let near = nodes[piece.from].far;
                ranges::pick(known, from, near, skip, piece.bytes, &mut ranges);
            }
            MemoryMove {
                guest: seen.roster.members()[guest].view.id.clone(),
                from,
                to,
                bytes: Bytes(piece.bytes),
                ranges,
            }
        });
        moves.collect()
    }

    /// Why it is so.
    fn tell(&self, seen: &Seen<'_>, state: &TierState, reasons: &mut Vec<Reason>) {
        let before = state.plan.as_ref().map_or(&[][..], |plan| &plan.guests);
        let mut before = Walk::new(before, |before| &before.guest);
        for (claim, &(guest, _)) in self.claims.iter().zip(&self.who) {
            let id = &seen.roster.members()[guest].view.id;
            let known = before.find(id);
            if known.is_none_or(|before| before.class != claim.class) {
                reasons.push(Reason::Uses {
                    guest: id.clone(),
                    class: claim.class,
                });
            }
        }
        if self.mover.pieces.is_empty() && self.mover.left == 0 {
            return;
        }
        let sum = |far: bool| {
            let pieces = self.mover.pieces.iter();
            let there = pieces.filter(|piece| self.nodes[piece.to].far == far);
            Bytes(there.map(|piece| piece.bytes).sum())
        };
        reasons.push(Reason::Moves {
            near: sum(false),
            far: sum(true),
            left: Bytes(self.mover.left),
            budget: Bytes(self.budget),
        });
    }
}

/// What a section of a plan says of a guest.
fn told(guest: &GuestTier) -> (&GuestId, MemoryClass, Bytes, Bytes) {
    (&guest.guest, guest.class, guest.local, guest.far)
}

/// Whether what was decided last is of guests that are all still there.
pub(super) fn fits(seen: &Seen<'_>, plan: &TierPlan) -> bool {
    let mut there = seen.roster.members().iter();
    let mut guests = plan.guests.iter();
    count(plan.guests.len()) <= count(seen.roster.members().len())
        && guests.all(|guest| there.any(|member| member.view.id == guest.guest))
}

/// Whether a guest uses its memory more than it was seen to when it was decided last. Who needs memory needs it now, and not at the end of the interval; but as long as memory moves, what is seen of it is neither what
/// was nor what is to be, and it would be moved twice.
pub(super) fn rises(seen: &Seen<'_>, settings: &TierSettings, state: &TierState) -> bool {
    let by = thresholds(settings);
    let now = seen.snapshot.at;
    if state.until > now {
        return false;
    }
    let old = seen.intent.old_after().max(settings.interval);
    let plan = state.plan.as_ref().map_or(&[][..], |plan| &plan.guests);
    let mut views = Walk::new(&seen.snapshot.memory, |view| &view.guest);
    let mut watches = Walk::new(&state.guests, |watch| &watch.guest);
    let mut plans = Walk::new(plan, |guest| &guest.guest);
    seen.roster.members().iter().any(|member| {
        let id = &member.view.id;
        let before = plans
            .find(id)
            .map_or(MemoryClass::Rest, |guest| guest.class);
        let mut watch = watches.find(id).map_or(Watch::default(), |known| Watch {
            pressed: known.pressed,
            io: known.io,
        });
        let Some(view) = views.find(id).filter(|view| view.age <= old) else {
            return false;
        };
        let nodes = seen.facts.memory.nodes.iter();
        let bytes = nodes.fold(0_u64, |sum, node| sum.saturating_add(view.on(node.node).0));
        let class = watch.class(now, &use_of(view, bytes), &by);
        class.is_some_and(|class| class < before)
    })
}

/// What may move until it is decided again: what an interval is long enough for, but for what was to move before and hasn't yet.
fn budget(settings: &TierSettings, until: Nanos, now: Nanos) -> u64 {
    let left = settings.interval.saturating_sub(until.saturating_sub(now));
    let bytes = u128::from(settings.bytes_per_s.0) * u128::from(left.0);
    u64::try_from(bytes / 1_000_000_000).unwrap_or(u64::MAX)
}

/// When all has moved; zero where nothing moves. No later than in an interval, also where the clock went back.
pub(super) fn until(settings: &TierSettings, until: Nanos, now: Nanos, bytes: u64) -> Nanos {
    let rate = u128::from(settings.bytes_per_s.0).max(1);
    let takes = u64::try_from(u128::from(bytes) * 1_000_000_000 / rate).unwrap_or(u64::MAX);
    if bytes == 0 && until <= now {
        return Nanos::ZERO;
    }
    let begins = until.0.max(now.0);
    let ends = begins.saturating_add(takes);
    Nanos(ends.min(now.0.saturating_add(settings.interval.0)))
}

fn thresholds(settings: &TierSettings) -> Thresholds {
    Thresholds {
        misses_per_s: settings.misses_per_s,
        hot_share: settings.hot_share,
        io_per_s: settings.io_per_s,
        hold: settings.hold,
    }
}

fn use_of(view: &GuestMemory, bytes: u64) -> Use {
    Use {
        misses_per_s: view.llc_misses_per_s,
        hot: view.hot.map(|hot| hot.0),
        bytes,
        io_per_s: view.io_interrupts_per_s,
    }
}

/// A guest's floor, whether it goes first, and its tenant.
fn terms(member: &Member<'_>, settings: &TierSettings) -> (u64, bool, Option<usize>) {
    let Some(rule) = member.rule else {
        return (0, false, None);
    };
    let tenant = rule.terms.tenant.as_ref().and_then(|tenant| {
        let tenants = &settings.tenants;
        tenants
            .binary_search_by(|floor| floor.tenant.cmp(tenant))
            .ok()
    });
    (rule.terms.local_min.0, rule.terms.priority, tenant)
}
