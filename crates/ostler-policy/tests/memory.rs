//! Tier and sizing within decisions, from one budget of local memory; each plan is judged.

mod support;

use ostler_check::check;
use ostler_model::{
    Bytes, Facts, FilesView, FilesWish, GuestMemory, Intent, Layer, LocalShares, MemoryClass,
    MemoryFacts, MemoryNode, MemoryRange, Nanos, NodeBytes, NodeId, NodeView, PartitionPolicy,
    RangeView, Reason, ServiceTime, SizingParts, SizingSettings, Snapshot, State, TenantFloor,
    TierPlan, TierSettings,
};
use ostler_policy::{Decider, Decision};
use support::{guest, intent, snapshot};

const GIB: u64 = 1 << 30;
const NEAR: NodeId = NodeId(0);
const FAR: NodeId = NodeId(1);

/// A host of 32 GiB near and as much far, on which all moves are made at once.
struct Run {
    facts: Facts,
    intent: Intent,
    seen: Snapshot,
    decider: Decider,
    last: Option<Decision>,
    moved: u64,
}

/// What a guest has near and far, in GiB, and its misses and interrupts a second.
type Has = (&'static str, u64, u64, f64, f64);

impl Run {
    fn new(guests: &[Has]) -> Run {
        let mut facts = support::facts(4);
        let node = |node, far| MemoryNode {
            node,
            bytes: Bytes(32 * GIB),
            far,
            latency: None,
            bytes_per_s: None,
        };
        facts.memory = MemoryFacts {
            nodes: vec![node(NEAR, false), node(FAR, true)],
            distances: vec![10, 20, 20, 10],
        };
        let mut intent = intent(PartitionPolicy::Energy);
        intent.tier = Some(TierSettings::default());
        let views = guests.iter().map(|has| guest(has.0, 1, 0));
        let mut seen = snapshot(&facts, views.collect());
        seen.memory = guests.iter().map(memory).collect();
        let mut run = Run {
            facts,
            intent,
            seen,
            decider: Decider::default(),
            last: None,
            moved: 0,
        };
        run.free();
        run
    }

    /// What nobody has is free.
    fn free(&mut self) {
        let had = |node| -> u64 {
            self.seen
                .memory
                .iter()
                .map(|memory| memory.on(node).0)
                .sum()
        };
        let files: u64 = self.seen.files.iter().map(|view| view.bytes.0).sum();
        let view = |node, had| NodeView {
            node,
            free: Bytes(32 * GIB - had),
            age: Nanos::ZERO,
        };
        self.seen.nodes = vec![view(NEAR, had(NEAR) + files), view(FAR, had(FAR))];
    }

    fn uses(&mut self, guest: usize, misses: f64, io: f64) {
        self.seen.memory[guest].llc_misses_per_s = Some(misses);
        self.seen.memory[guest].io_interrupts_per_s = Some(io);
    }

    /// Decides, lets that long pass, and has all done that was decided then.
    fn step(&mut self, millis: u64) -> Decision {
        let none = State::default();
        let state = self.last.as_ref().map_or(&none, |last| &last.state);
        let (facts, intent, seen) = (&self.facts, &self.intent, &self.seen);
        let mut random = || 0;
        let decision = self
            .decider
            .decide(facts, seen, intent, state, seen.at, &mut random);
        let before = self.last.as_ref().map(|last| &last.plan);
        assert_eq!(check(facts, seen, intent, before, &decision.plan), []);
        if let Some(tier) = &decision.plan.tier
            && tier.since == self.seen.at
        {
            self.make(tier);
        }
        for given in decision.plan.files.iter().flat_map(|files| &files.guests) {
            let mut views = self.seen.files.iter_mut();
            if let Some(view) = views.find(|view| view.guest == given.guest) {
                view.bytes = given.bytes;
            }
        }
        self.free();
        self.seen.at = Nanos(self.seen.at.0 + millis * 1_000_000);
        self.last = Some(decision.clone());
        decision
    }

    fn make(&mut self, tier: &TierPlan) {
        for moves in &tier.moves {
            self.moved += moves.bytes.0;
            let mut memory = self.seen.memory.iter_mut();
            let memory = memory.find(|memory| memory.guest == moves.guest).unwrap();
            for node in &mut memory.nodes {
                if node.node == moves.from {
                    node.bytes.0 -= moves.bytes.0;
                }
                if node.node == moves.to {
                    node.bytes.0 += moves.bytes.0;
                }
            }
            for range in &moves.ranges {
                let moved = RangeView {
                    range: *range,
                    node: moves.to,
                    hot: false,
                };
                cut(&mut memory.ranges, moved);
            }
        }
    }

    /// What guests have near, to the nearest GiB: a step stays free beside the reserve.
    fn local(&self) -> Vec<u64> {
        let memory = self.seen.memory.iter();
        let near = memory.map(|memory| (memory.on(NEAR).0 + GIB / 2) / GIB);
        near.collect()
    }
}

/// Has a part of a range be elsewhere.
fn cut(ranges: &mut Vec<RangeView>, moved: RangeView) {
    let part = |range: MemoryRange, from: u64, to: u64| MemoryRange {
        start: range.start + from,
        bytes: Bytes(to - from),
    };
    let at = ranges
        .iter()
        .position(|view| {
            let end = view.range.start + view.range.bytes.0;
            (view.range.start..end).contains(&moved.range.start)
        })
        .unwrap();
    let old = ranges.remove(at);
    let from = moved.range.start - old.range.start;
    let to = from + moved.range.bytes.0;
    let rest = [
        (0, from, old),
        (from, to, moved),
        (to, old.range.bytes.0, old),
    ];
    let rest = rest.into_iter().filter(|(from, to, _)| from < to);
    let rest = rest.map(|(from, to, view)| RangeView {
        range: part(old.range, from, to),
        hot: old.hot,
        ..view
    });
    ranges.splice(at..at, rest);
}

fn memory(&(guest, near, far, misses, io): &Has) -> GuestMemory {
    let node = |node, gib| NodeBytes {
        node,
        bytes: Bytes(gib * GIB),
    };
    GuestMemory {
        guest: guest.into(),
        nodes: vec![node(NEAR, near), node(FAR, far)],
        hot: None,
        llc_misses_per_s: Some(misses),
        io_interrupts_per_s: Some(io),
        ranges: Vec::new(),
        age: Nanos::ZERO,
    }
}

fn shares(decision: &Decision) -> LocalShares {
    let mut reasons = decision.reasons.iter();
    let told = reasons.find_map(|reason| match reason {
        Reason::LocalMemory { shares, .. } => Some(*shares),
        _ => None,
    });
    told.expect("it tells who has what")
}

fn gib(bytes: u64) -> Bytes {
    Bytes(bytes * GIB)
}

#[test]
fn pressure_moves_memory_within_the_rate_and_back_when_it_lifts() {
    let mut run = Run::new(&[("be0", 24, 0, 0.0, 0.0), ("lc0", 7, 9, 0.0, 0.0)]);
    run.step(1000);
    assert_eq!((run.local(), run.moved), (vec![24, 7], 0), "nobody presses");
    run.uses(1, 2e6, 0.0);
    for second in 1..=30 {
        run.step(1000);
        assert!(run.moved <= second * GIB);
    }
    // A reserve of 1 GiB stays free, and a step beside it.
    assert_eq!(run.local(), [15, 16]);
    assert_eq!(run.moved, 18 * GIB);
    let classes = run.last.as_ref().unwrap().plan.tier.as_ref().unwrap();
    assert_eq!(classes.guests[1].class, MemoryClass::Memory);
    // It pauses, and keeps what it has; the other one keeps away.
    run.uses(1, 0.0, 0.0);
    for _ in 0..20 {
        run.step(1000);
    }
    assert_eq!(run.moved, 18 * GIB, "nobody is moved for an equal");
    // It goes, and what was pushed out comes back at once.
    run.seen.guests.pop();
    run.seen.memory.pop();
    run.free();
    for _ in 0..9 {
        run.step(1000);
    }
    assert_eq!(run.local(), [24]);
    assert_eq!(run.moved, 27 * GIB);
}

#[test]
fn the_hosts_reserve_is_of_who_is_best_effort() {
    // Nobody has done anything yet, and nothing is free: be0 makes room, though lc0 stands behind it by its name.
    let mut run = Run::new(&[("be0", 24, 0, 0.0, 0.0), ("lc0", 8, 8, 0.0, 0.0)]);
    for _ in 0..3 {
        run.step(1000);
    }
    assert_eq!((run.local(), run.moved), (vec![23, 8], GIB));
    // And lc0 has all of it once it presses.
    run.uses(1, 2e6, 2000.0);
    for _ in 0..30 {
        run.step(1000);
    }
    assert_eq!(run.local(), [15, 16]);
}

#[test]
fn a_guest_that_pauses_for_less_than_the_hold_keeps_its_class() {
    let mut run = Run::new(&[("be0", 24, 0, 2e6, 0.0), ("lc0", 7, 9, 0.0, 0.0)]);
    run.step(1000);
    // be0 is quiet in all but one second of nine; lc0 presses all the time.
    for second in 0..60 {
        run.uses(0, if second % 9 == 0 { 2e6 } else { 0.0 }, 0.0);
        run.uses(1, 2e6, 2000.0);
        let decision = run.step(1000);
        assert!(decision.plan.tier.unwrap().peak);
    }
    assert_eq!((run.local(), run.moved), (vec![24, 7], 0));
    run.uses(0, 0.0, 0.0);
    for _ in 0..40 {
        run.step(1000);
    }
    assert_eq!(run.local(), [15, 16]);
}

#[test]
fn floors_hold_for_guests_and_for_tenants_even_at_the_peak() {
    let mut run = Run::new(&[
        ("be0", 16, 0, 2e6, 0.0),
        ("be1", 14, 2, 2e6, 0.0),
        ("lc0", 1, 11, 2e6, 2000.0),
    ]);
    run.intent.tier.as_mut().unwrap().tenants = vec![TenantFloor {
        tenant: "web".into(),
        local_min: gib(6),
    }];
    let rules = &mut run.intent.guests;
    let critical = rules.iter().position(|rule| rule.slo.is_some()).unwrap();
    rules[critical].terms.tenant = Some("web".into());
    for _ in 0..20 {
        let decision = run.step(1000);
        assert!(decision.plan.tier.unwrap().peak);
    }
    assert_eq!(run.local()[2], 6, "its tenant's floor, and no more");
    let others = &mut run.intent.guests[1 - critical];
    others.terms.local_min = gib(15);
    // More floors than there is memory: nobody is pushed below what it has of its own.
    run.uses(0, 0.0, 0.0);
    run.uses(1, 0.0, 0.0);
    for _ in 0..60 {
        run.step(1000);
    }
    assert_eq!(run.local(), [15, 10, 6]);
}

/// A guest's files beside guests' memory.
fn with_files(run: &mut Run, held: u64, least: u64, most: u64) {
    run.intent.sizing = Some(SizingSettings {
        budget: gib(16),
        interval_min: Nanos::from_secs(1),
        interval_max: Nanos::from_secs(1),
        parts: SizingParts::Queue,
        ..SizingSettings::default()
    });
    let time = |gib, ms| ServiceTime {
        bytes: Bytes(gib * GIB),
        time: Nanos::from_millis(ms),
    };
    let critical = run.intent.guests.iter_mut();
    let critical = critical.into_iter().find(|rule| rule.slo.is_some());
    critical.unwrap().terms.files = Some(FilesWish {
        // Out of reach, so that it wishes for the most that makes a difference.
        response: Nanos::from_millis(50),
        least: gib(least),
        most: gib(most),
        service: vec![time(1, 1000), time(most, 100)],
    });
    run.seen.files = vec![FilesView {
        guest: "lc0".into(),
        bytes: gib(held),
        response: Some(Nanos::from_secs(2)),
        arrivals_per_s: 0.5,
        age: Nanos::ZERO,
    }];
    run.free();
}

#[test]
fn files_and_guests_stand_in_one_line_that_the_reasons_tell() {
    // 24 of 32 GiB are a guest's that doesn't press; files wish for 12.
    let mut run = Run::new(&[("be0", 24, 0, 0.0, 0.0), ("lc0", 2, 0, 0.0, 0.0)]);
    with_files(&mut run, 2, 2, 12);
    for _ in 0..40 {
        run.step(1000);
    }
    assert_eq!(
        run.seen.files[0].bytes,
        gib(12),
        "wishes come before who doesn't press"
    );
    let told = shares(run.last.as_ref().unwrap());
    assert_eq!((told.leasts, told.wishes), (gib(2), gib(10)));
    assert_eq!((told.pressing, told.rest), (gib(0), gib(19)));
    assert_eq!(
        run.local(),
        [17, 2],
        "a best-effort guest makes way before others"
    );
    // It presses: it comes before wishes, and files go back to what is left.
    run.uses(0, 2e6, 0.0);
    for _ in 0..40 {
        run.step(1000);
    }
    let told = shares(run.last.as_ref().unwrap());
    assert_eq!((told.leasts, told.pressing), (gib(2), gib(24)));
    assert_eq!((told.wishes, told.rest), (gib(5), gib(0)));
    assert_eq!(run.local()[0], 24);
    let files = run.last.as_ref().unwrap().plan.files.clone().unwrap();
    assert_eq!((files.budget, files.guests[0].bytes), (gib(7), gib(7)));
    assert_eq!(
        files.guests[0].wish,
        gib(12),
        "what it wishes for stays told"
    );
    // The other one presses, too: at the peak nobody makes way, not even for leasts' sake more than that.
    run.uses(1, 2e6, 0.0);
    let before = (run.local(), run.moved);
    for _ in 0..10 {
        run.step(1000);
    }
    assert_eq!((run.local(), run.moved), before);
}

#[test]
fn files_do_not_grow_into_what_is_on_its_way_to_guests() {
    let mut run = Run::new(&[("be0", 8, 16, 2e6, 0.0), ("lc0", 2, 0, 0.0, 0.0)]);
    with_files(&mut run, 2, 2, 12);
    run.intent.tier.as_mut().unwrap().bytes_per_s = gib(64);
    let mut grown = Vec::new();
    for period in 0..40 {
        let before = run.seen.files[0].bytes;
        run.step(100);
        if run.seen.files[0].bytes > before {
            grown.push(period);
        }
    }
    assert!(grown.iter().all(|period| period % 10 == 0), "{grown:?}");
    assert_eq!(run.local(), [24, 0]);
    assert_eq!(
        run.seen.files[0].bytes,
        gib(7),
        "32 less 24 and the reserve"
    );
}

#[test]
fn without_far_memory_or_word_of_it_sizing_goes_on_by_itself() {
    let mut run = Run::new(&[("be0", 8, 16, 2e6, 0.0), ("lc0", 2, 0, 0.0, 0.0)]);
    with_files(&mut run, 2, 2, 12);
    run.facts.memory.nodes.pop();
    let decision = run.step(1000);
    let unseen = |reason: &Reason| {
        matches!(
            reason,
            Reason::NotSeen {
                layer: Layer::Tier,
                ..
            }
        )
    };
    assert!(decision.reasons.iter().any(unseen));
    assert_eq!(decision.plan.tier, None);
    for _ in 0..3 {
        run.step(1000);
    }
    assert_eq!(run.seen.files[0].bytes, gib(12));
}

#[test]
fn what_nobody_knows_is_not_moved() {
    let mut run = Run::new(&[("be0", 24, 0, 0.0, 0.0), ("lc0", 7, 9, 2e6, 0.0)]);
    run.seen.memory[0].llc_misses_per_s = None;
    let decision = run.step(1000);
    let plan = decision.plan.tier.unwrap();
    assert_eq!(plan.guests.len(), 1);
    assert!(plan.moves.is_empty());
    let unseen = |reason: &Reason| {
        matches!(
            reason,
            Reason::NotSeen {
                layer: Layer::Tier,
                ..
            }
        )
    };
    assert!(decision.reasons.iter().any(unseen));
    // Where misses aren't counted, what was touched lately says it.
    run.seen.memory[0].hot = Some(gib(1));
    for _ in 0..20 {
        run.step(1000);
    }
    assert_eq!(run.local(), [15, 16]);
}

#[test]
fn a_decision_stays_for_its_interval_unless_a_guest_goes() {
    let mut run = Run::new(&[("be0", 24, 0, 0.0, 0.0), ("lc0", 7, 9, 2e6, 0.0)]);
    let first = run.step(100).plan.tier.unwrap();
    assert!(!first.moves.is_empty());
    let second = run.step(100).plan.tier.unwrap();
    assert!(std::sync::Arc::ptr_eq(&first, &second));
    run.seen.guests.remove(0);
    run.seen.memory.remove(0);
    run.free();
    let third = run.step(100).plan.tier.unwrap();
    assert!(
        third
            .moves
            .iter()
            .all(|moves| moves.guest.as_str() == "lc0")
    );
    assert_eq!(third.since, run.last.as_ref().unwrap().plan.at);
}

#[test]
fn who_begins_to_press_is_not_kept_waiting_and_the_rate_holds_even_so() {
    let mut run = Run::new(&[
        ("be0", 20, 0, 0.0, 0.0),
        ("lc0", 5, 11, 0.0, 0.0),
        ("lc1", 6, 4, 0.0, 0.0),
    ]);
    let quiet = run.step(300).plan.tier.unwrap();
    assert!(quiet.moves.is_empty());
    // It presses in the middle of the interval: all that an interval is long enough for moves at once.
    run.uses(1, 2e6, 0.0);
    let first = run.step(100).plan.tier.unwrap();
    assert_eq!((first.since.0, run.moved), (400_000_000, GIB));
    // And goes on to: nothing is decided again for that, nor for a pause.
    for misses in [2e6, 0.0, 2e6] {
        run.uses(1, misses, 0.0);
        let same = run.step(100).plan.tier.unwrap();
        assert!(std::sync::Arc::ptr_eq(&first, &same));
    }
    // Another one does: it is heard once that has moved.
    run.uses(2, 2e6, 2000.0);
    for _ in 0..6 {
        let same = run.step(100).plan.tier.unwrap();
        assert!(std::sync::Arc::ptr_eq(&first, &same));
    }
    let second = run.step(100).plan.tier.unwrap();
    assert_eq!(second.since.0, 1_400_000_000);
    assert_eq!(second.guests[2].class, MemoryClass::IoAndMemory);
    // A guest goes at once, and what moves for others keeps to the rate.
    run.seen.guests.remove(0);
    run.seen.memory.remove(0);
    run.free();
    let third = run.step(100).plan.tier.unwrap();
    assert_eq!(third.since.0, 1_500_000_000);
    let sum: u64 = third.moves.iter().map(|moves| moves.bytes.0).sum();
    assert!(sum <= GIB / 10, "a tenth of an interval has passed: {sum}");
    // Whatever begins when: never more in a time than the rate, and an interval's worth at once.
    let begun = run.seen.at;
    let before = run.moved;
    for step in 0..200_u64 {
        let pressing = |divisor: u64| (step / divisor).is_multiple_of(2);
        let press = |divisor| if pressing(divisor) { 2e6 } else { 0.0 };
        run.uses(0, press(7), press(130));
        run.uses(1, press(120), press(11));
        run.step(100);
        let passed = (run.seen.at.0 - begun.0) / 1_000_000;
        assert!(run.moved - before <= GIB + passed * GIB / 1000);
    }
}

#[test]
fn cold_ranges_go_far_and_hot_ones_come_near() {
    let mut run = Run::new(&[("be0", 24, 0, 0.0, 0.0), ("lc0", 7, 9, 2e6, 0.0)]);
    // Each GiB is a range; of four one is hot.
    for memory in &mut run.seen.memory {
        let near = memory.on(NEAR).0 / GIB;
        let all = near + memory.on(FAR).0 / GIB;
        memory.ranges = (0..all)
            .map(|at| RangeView {
                range: MemoryRange {
                    start: at * GIB,
                    bytes: gib(1),
                },
                node: if at < near { NEAR } else { FAR },
                hot: at % 4 == 3,
            })
            .collect();
    }
    for _ in 0..4 {
        run.step(1000);
    }
    let on = |guest: usize, node, hot| -> u64 {
        let ranges = run.seen.memory[guest].ranges.iter();
        let there = ranges.filter(|view| view.node == node && view.hot == hot);
        there.map(|view| view.range.bytes.0).sum()
    };
    assert_eq!(
        on(0, FAR, true),
        0,
        "no hot one goes before the cold ones have"
    );
    assert!(on(0, FAR, false) >= GIB);
    assert!(on(1, FAR, true) < 2 * GIB, "hot ones come first");
    assert_eq!(on(1, FAR, false), 6 * GIB);
}
