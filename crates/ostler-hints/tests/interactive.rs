//! Groups of threads that interact, planted among threads that don't, are found: none of them torn, and nobody taken for one who isn't.

use std::collections::BTreeMap;

use ostler_hints::interactive::{Config, Detector, EDGES_MAX, Edge, TASKS_MAX, Task};
use proptest::prelude::*;
use proptest::sample::Index;

/// A window of a second in a guest: groups, batch threads, a hub that wakes everyone, and accidental wake-ups.
#[derive(Debug)]
struct Window {
    tasks: Vec<Task>,
    edges: Vec<Edge>,
    planted: Vec<Option<u32>>,
}

fn edge(from: usize, to: usize, wakeups: u32) -> Edge {
    Edge {
        waker: u32::try_from(from).unwrap(),
        wakee: u32::try_from(to).unwrap(),
        wakeups,
    }
}

fn windows() -> impl Strategy<Value = Window> {
    let groups = prop::collection::vec((2..9_usize, any::<bool>(), 60..2000_u32), 0..6);
    let noise = prop::collection::vec((any::<Index>(), any::<Index>(), 1..4_u32), 0..60);
    (groups, 0..20_usize, noise, any::<Index>()).prop_map(|(groups, batch, noise, turn)| {
        let mut window = Window {
            tasks: Vec::new(),
            edges: Vec::new(),
            planted: Vec::new(),
        };
        for (size, ring, wakeups) in groups {
            let first = window.tasks.len();
            for at in 0..size {
                window.planted.push(u32::try_from(first).ok());
                window.tasks.push(Task {
                    ran_ns: 300_000_000,
                    woken: 0,
                });
                // Requests and answers along a ring, or a barrier at which the first wakes all.
                let other = match (ring, at) {
                    (_, 0) => continue,
                    (true, _) => at - 1,
                    (false, _) => 0,
                };
                window.edges.push(edge(first + other, first + at, wakeups));
                window
                    .edges
                    .push(edge(first + at, first + other, wakeups / 2));
            }
        }
        for _ in 0..batch {
            window.planted.push(None);
            window.tasks.push(Task {
                ran_ns: 900_000_000,
                woken: 5,
            });
        }
        // The hub: wakes everyone often, and is woken by nobody.
        let hub = window.tasks.len();
        window.planted.push(None);
        window.tasks.push(Task {
            ran_ns: 1_000_000,
            woken: 1000,
        });
        for wakee in 0..hub {
            window.edges.push(edge(hub, wakee, 100));
        }
        // No more of it between any two than an eighth of what the hub wakes each: else it would be an answer to that.
        let mut between = BTreeMap::<_, u32>::new();
        for (a, b, wakeups) in noise {
            let (a, b) = (a.index(hub + 1), b.index(hub + 1));
            let all = between.entry((a, b)).or_default();
            if *all + wakeups <= 12 {
                *all += wakeups;
                window.edges.push(edge(a, b, wakeups));
            }
        }
        for edge in &window.edges {
            if edge.waker != edge.wakee {
                window.tasks[edge.wakee as usize].woken += edge.wakeups;
            }
        }
        let turn = turn.index(window.edges.len().max(1));
        window.edges.rotate_left(turn);
        window
    })
}

proptest! {
    #[test]
    fn planted_groups_are_found_and_nobody_else(window in windows()) {
        let mut detector = Detector::default();
        let found = detector.detect(&Config::default(), &window.tasks, &window.edges);
        // The error, in threads put with the wrong ones: none.
        prop_assert_eq!(found, &window.planted[..]);
    }

    #[test]
    fn edges_in_any_order_give_the_same_groups(window in windows(), turn in any::<Index>()) {
        let mut detector = Detector::default();
        let before = detector.detect(&Config::default(), &window.tasks, &window.edges).to_vec();
        let mut edges = window.edges;
        edges.sort();
        let turn = turn.index(edges.len().max(1));
        edges.rotate_left(turn);
        prop_assert_eq!(detector.detect(&Config::default(), &window.tasks, &edges), &before[..]);
    }

    #[test]
    fn whatever_is_said_of_whoever_groups_are_named_by_their_lowest(
        tasks in prop::collection::vec((any::<u64>(), any::<u32>()), 0..40),
        edges in prop::collection::vec((0..50_u32, 0..50_u32, any::<u32>()), 0..200),
    ) {
        let tasks: Vec<_> = tasks.into_iter().map(|(ran_ns, woken)| Task { ran_ns, woken }).collect();
        let edges: Vec<_> = edges.into_iter().map(|(waker, wakee, wakeups)| Edge { waker, wakee, wakeups }).collect();
        let config = Config { wakeups_min: 0, reciprocity: u32::MAX, share: u32::MAX, burst_ns_max: u64::MAX };
        let mut detector = Detector::default();
        let found = detector.detect(&config, &tasks, &edges);
        prop_assert_eq!(found.len(), tasks.len());
        for (at, group) in found.iter().enumerate() {
            if let Some(group) = group {
                prop_assert!(*group as usize <= at);
                prop_assert_eq!(found[*group as usize], Some(*group));
                prop_assert!(found.iter().filter(|other| *other == &Some(*group)).count() > 1);
            }
        }
    }
}

/// Two threads of which the second never wakes the first.
fn one_way() -> ([Task; 2], Vec<Edge>) {
    let task = Task {
        ran_ns: 100_000_000,
        woken: 1000,
    };
    ([task; 2], vec![edge(0, 1, 1000)])
}

#[test]
fn a_pipeline_that_goes_one_way_is_missed_and_one_that_is_answered_is_not() {
    let (tasks, mut edges) = one_way();
    let mut detector = Detector::default();
    let found = detector.detect(&Config::default(), &tasks, &edges);
    assert_eq!(found, [None, None]);
    edges.push(edge(1, 0, 125));
    let found = detector.detect(&Config::default(), &tasks, &edges);
    assert_eq!(found, [Some(0), Some(0)]);
}

#[test]
fn who_computes_between_wake_ups_is_no_part_of_a_group() {
    let (mut tasks, mut edges) = one_way();
    edges.push(edge(1, 0, 1000));
    tasks[1].ran_ns = 3_000_000 * 1000;
    let mut detector = Detector::default();
    let config = Config::default();
    assert_eq!(detector.detect(&config, &tasks, &edges), [Some(0); 2]);
    tasks[1].ran_ns += 1000;
    assert_eq!(detector.detect(&config, &tasks, &edges), [None; 2]);
}

#[test]
fn what_matters_to_neither_is_no_interaction() {
    let (mut tasks, mut edges) = one_way();
    edges.push(edge(1, 0, 1000));
    tasks[0].woken = 8000;
    tasks[1].woken = 8000;
    let mut detector = Detector::default();
    let config = Config::default();
    assert_eq!(detector.detect(&config, &tasks, &edges), [Some(0); 2]);
    tasks[0].woken = 8001;
    tasks[1].woken = 8001;
    assert_eq!(detector.detect(&config, &tasks, &edges), [None; 2]);
}

#[test]
fn more_than_is_looked_at_is_left_out() {
    let tasks = vec![one_way().0[0]; TASKS_MAX + 2];
    let mut edges = vec![edge(0, 0, 1); EDGES_MAX - 2];
    edges.extend([edge(0, 1, 500), edge(1, 0, 500)]);
    let mut detector = Detector::default();
    let config = Config::default();
    assert_eq!(detector.detect(&config, &tasks, &edges)[1], Some(0));
    edges.insert(0, edge(TASKS_MAX, TASKS_MAX + 1, 500));
    let found = detector.detect(&config, &tasks, &edges);
    assert!(found.iter().all(Option::is_none));
    let beyond = [
        edge(TASKS_MAX, TASKS_MAX + 1, 500),
        edge(TASKS_MAX + 1, TASKS_MAX, 500),
    ];
    let found = detector.detect(&config, &tasks, &beyond);
    assert!(found.iter().all(Option::is_none));
}
