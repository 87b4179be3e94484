//! Sizing of files within a decision.

mod support;

use std::sync::Arc;

use ostler_check::check;
use ostler_model::{
    Bytes, Facts, FilesPlan, FilesView, FilesWish, Intent, MemoryFacts, MemoryNode, Nanos, NodeId,
    NodeView, PartitionPolicy, Reason, ServiceTime, SizingParts, SizingSettings, Snapshot, State,
};
use ostler_policy::sizing::queue::Service;
use ostler_policy::sizing::{Control, Parts, Seen, Settings};
use ostler_policy::{Decider, Decision};
use support::{PERIOD, guest, intent, snapshot};

const GIB: u64 = 1 << 30;

/// A host of 32 GiB, and guests whose tasks take a second with 1 GiB and a tenth of it with 9.
fn world(budget: u64, least: u64) -> (Facts, Intent, Snapshot) {
    let mut facts = support::facts(4);
    facts.memory = MemoryFacts {
        nodes: vec![MemoryNode {
            node: NodeId(0),
            bytes: Bytes(32 * GIB),
            far: false,
            latency: None,
            bytes_per_s: None,
        }],
        distances: Vec::new(),
    };
    let mut intent = intent(PartitionPolicy::Energy);
    intent.sizing = Some(SizingSettings {
        budget: Bytes(budget * GIB),
        interval_min: Nanos::from_secs(1),
        interval_max: Nanos::from_secs(4),
        parts: SizingParts::Both,
        ..SizingSettings::default()
    });
    let time = |gib, ms| ServiceTime {
        bytes: Bytes(gib * GIB),
        time: Nanos::from_millis(ms),
    };
    for rule in &mut intent.guests {
        rule.terms.files = Some(FilesWish {
            response: Nanos::from_millis(500),
            least: Bytes(least * GIB),
            most: Bytes(16 * GIB),
            service: vec![time(1, 1000), time(9, 100)],
        });
    }
    let guests = vec![guest("be0", 1, 0), guest("lc0", 2, 1)];
    let mut seen = snapshot(&facts, guests);
    seen.nodes = vec![NodeView {
        node: NodeId(0),
        free: Bytes(16 * GIB),
        age: Nanos::ZERO,
    }];
    seen.files = vec![view("be0", 1), view("lc0", 1)];
    (facts, intent, seen)
}

fn view(guest: &str, gib: u64) -> FilesView {
    FilesView {
        guest: guest.into(),
        bytes: Bytes(gib * GIB),
        response: Some(Nanos::from_secs(2)),
        arrivals_per_s: 0.5,
        age: Nanos::ZERO,
    }
}

struct Run {
    facts: Facts,
    intent: Intent,
    seen: Snapshot,
    decider: Decider,
    last: Option<Decision>,
}

impl Run {
    fn new((facts, intent, seen): (Facts, Intent, Snapshot)) -> Run {
        Run {
            facts,
            intent,
            seen,
            decider: Decider::default(),
            last: None,
        }
    }

    /// Decides, and lets a period pass.
    fn step(&mut self) -> &Decision {
        let none = State::default();
        let state = self.last.as_ref().map_or(&none, |last| &last.state);
        let mut random = || 0;
        let (facts, intent, seen) = (&self.facts, &self.intent, &self.seen);
        let decision = self
            .decider
            .decide(facts, seen, intent, state, seen.at, &mut random);
        let before = self.last.as_ref().map(|last| &last.plan);
        assert_eq!(check(facts, seen, intent, before, &decision.plan), []);
        self.seen.at = Nanos(self.seen.at.0 + PERIOD.0);
        self.last.insert(decision)
    }

    fn files(&mut self) -> Arc<FilesPlan> {
        self.step().plan.files.clone().expect("there are files")
    }

    /// What files have is what they were granted.
    fn follow(&mut self, files: &FilesPlan) {
        let free = self.seen.nodes[0].free.0;
        let held = |seen: &Snapshot| seen.files.iter().map(|view| view.bytes.0).sum::<u64>();
        let before = held(&self.seen);
        for (view, given) in self.seen.files.iter_mut().zip(&files.guests) {
            view.bytes = given.bytes;
        }
        self.seen.nodes[0].free = Bytes(free + before - held(&self.seen));
    }
}

fn sizes(files: &FilesPlan) -> Vec<u64> {
    files.guests.iter().map(|given| given.bytes.0).collect()
}

/// The queue that tasks really see: what was measured is a quarter too fast.
fn response(service: &Service, bytes: u64, arrivals: f64) -> f64 {
    let mean = service.mean(bytes) * 1.25;
    mean / (1.0 - (arrivals * mean).min(0.95))
}

#[test]
fn a_loop_within_decisions_is_the_loop_by_itself() {
    for (parts, by) in [
        (SizingParts::Both, Parts::Both),
        (SizingParts::Corrected, Parts::Corrected),
        (SizingParts::Queue, Parts::Queue),
        (SizingParts::Adaptive, Parts::Adaptive),
    ] {
        let mut run = Run::new(world(16, 1));
        run.intent.sizing.as_mut().unwrap().parts = parts;
        run.seen.guests.remove(0);
        run.seen.files.remove(0);
        let settings = Settings {
            wanted: 0.5,
            size_min: GIB,
            size_max: 16 * GIB,
            interval_min: Nanos::from_secs(1),
            interval_max: Nanos::from_secs(4),
            parts: by,
            ..Settings::default()
        };
        let service = Service::new(&[(GIB, 1.0), (9 * GIB, 0.1)]).unwrap();
        let mut alone = Control::new(run.seen.at, GIB, &settings);
        let mut wishes = Vec::new();
        for period in 0..1200_u32 {
            let held = run.seen.files[0].bytes.0;
            // The rate of arrivals doubles now and then.
            let arrivals = if period / 300 % 2 == 0 { 0.5 } else { 1.0 };
            let time = response(&service, held, arrivals);
            run.seen.files[0].response = Some(support::nanos(time * 10.0));
            run.seen.files[0].arrivals_per_s = arrivals;
            let tasks = Seen {
                response: run.seen.files[0].response.unwrap().as_secs_f64(),
                arrivals,
            };
            let now = run.seen.at;
            if period > 0 {
                alone.step(now, tasks, &service, &settings);
            }
            alone.grant(alone.wish);
            let files = run.files();
            assert_eq!(sizes(&files), [alone.wish], "{parts:?} in period {period}");
            run.follow(&files);
            wishes.push(alone.wish);
        }
        wishes.dedup();
        assert!(wishes.len() > 2, "{parts:?}: {wishes:?}");
    }
}

#[test]
fn a_budget_is_shared_and_leasts_go_to_latency_critical_guests_first() {
    // Both wish for more than there is.
    let mut run = Run::new(world(6, 1));
    let mut last = run.files();
    for _ in 0..30 {
        last = run.files();
        run.follow(&last);
    }
    assert_eq!(sizes(&last), [3 * GIB, 3 * GIB]);
    // Two leasts of 4 don't fit: the latency-critical one has its own.
    let mut run = Run::new(world(6, 4));
    run.files();
    let files = run.files();
    assert_eq!(sizes(&files), [2 * GIB, 4 * GIB]);
}

#[test]
fn files_grow_by_what_is_free_and_again_when_more_is() {
    let mut run = Run::new(world(16, 1));
    run.seen.nodes[0].free = Bytes(2 * GIB);
    let mut files = run.files();
    for _ in 0..30 {
        files = run.files();
        run.follow(&files);
    }
    assert_eq!(sizes(&files).iter().sum::<u64>(), 4 * GIB);
    assert_eq!(run.seen.nodes[0].free, Bytes(0));
    run.seen.nodes[0].free = Bytes(GIB);
    for _ in 0..11 {
        files = run.files();
        run.follow(&files);
    }
    assert_eq!(sizes(&files).iter().sum::<u64>(), 5 * GIB);
}

#[test]
fn nobody_grows_beyond_its_least_before_others_have_theirs() {
    // Both have 1 of 4 and wish for much more.
    let mut run = Run::new(world(16, 4));
    run.intent.sizing.as_mut().unwrap().parts = SizingParts::Queue;
    run.seen.nodes[0].free = Bytes(0);
    let mut files = run.files();
    for _ in 0..12 {
        files = run.files();
    }
    assert!(files.guests[1].wish > Bytes(4 * GIB));
    run.seen.nodes[0].free = Bytes(4 * GIB);
    for _ in 0..10 {
        files = run.files();
    }
    assert_eq!(sizes(&files), [2 * GIB, 4 * GIB]);
}

#[test]
fn nothing_changes_between_intervals_and_what_is_unseen_is_told() {
    let mut run = Run::new(world(16, 1));
    let first = run.step().clone();
    let second = run.step().clone();
    let plans = |decision: &Decision| decision.plan.files.clone().unwrap();
    assert!(Arc::ptr_eq(&plans(&first), &plans(&second)));
    assert!(Arc::ptr_eq(
        &first.state.sizing.guests,
        &second.state.sizing.guests
    ));
    run.seen.files.pop();
    let third = run.step().clone();
    let not_seen = |reason: &Reason| matches!(reason, Reason::NotSeen { .. });
    assert!(third.reasons.iter().any(not_seen));
    assert_eq!(
        sizes(&plans(&third)),
        sizes(&plans(&first)),
        "they keep what they have"
    );
    // A guest that goes takes its loop with it.
    run.seen.guests.pop();
    assert_eq!(run.step().state.sizing.guests.len(), 1);
}

/// However many loops are due, a period has a bound, and who has waited longest goes first.
#[test]
fn loops_that_are_due_together_go_on_in_turn() {
    const LOOPS: usize = 100;
    const IN_TURN: usize = 32;
    let (facts, intent, mut seen) = world(64, 0);
    let names: Vec<String> = (0..LOOPS).map(|at| format!("be{at:03}")).collect();
    seen.guests = names.iter().map(|name| guest(name, 1, 0)).collect();
    seen.files = names.iter().map(|name| view(name, 1)).collect();
    let mut run = Run::new((facts, intent, seen));
    // All of them come at once, and each has a loop at once.
    let looked_at = |run: &Run| -> Vec<Nanos> {
        let sizing = &run.last.as_ref().unwrap().state.sizing;
        sizing.guests.iter().map(|control| control.next).collect()
    };
    let interval = Nanos::from_secs(1);
    let due = run.seen.at.saturating_add(interval);
    run.step();
    assert_eq!(looked_at(&run), [due; LOOPS]);
    let mut last = vec![run.seen.at; LOOPS];
    let mut gaps = Vec::new();
    for _ in 0..300 {
        let (before, now) = (looked_at(&run), run.seen.at);
        run.step();
        let after = looked_at(&run);
        let (mut went, mut waits) = (Vec::new(), Vec::new());
        for at in 0..LOOPS {
            if before[at] != after[at] {
                went.push(before[at]);
                gaps.push(now.saturating_sub(last[at]));
                last[at] = now;
            } else if before[at] <= now {
                waits.push(before[at]);
            }
        }
        assert!(went.len() <= IN_TURN, "{} at {now:?}", went.len());
        assert!(waits.is_empty() || went.len() == IN_TURN);
        let longest = waits.iter().min();
        assert!(longest.is_none_or(|longest| went.iter().max() <= Some(longest)));
    }
    // An interval of four seconds at the most, and three periods.
    let most = Nanos::from_millis(4300);
    assert!(
        gaps.iter().all(|gap| *gap <= most),
        "{:?}",
        gaps.iter().max()
    );
    assert!(gaps.len() > 3 * LOOPS);
}
