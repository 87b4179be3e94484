//! What holds of every plan of all layers together, whatever the host, the guests and what is opted in to.

use std::sync::Arc;

use ostler_check::check;
use ostler_model::testing::{World, layered};
use ostler_model::{Nanos, Plan, State};
use ostler_policy::{Decider, Decision, decide};
use proptest::prelude::*;

/// Decides period by period, with buffers that are kept or new ones each time.
fn run(world: &World, kept: bool) -> Vec<Decision> {
    let mut state = State::default();
    let mut decider = Decider::default();
    let mut drawn = 0;
    let mut random = || {
        drawn += 1;
        drawn
    };
    let mut decisions = Vec::new();
    for snapshot in &world.snapshots {
        let (facts, intent, now) = (&world.facts, &world.intent, snapshot.at);
        let decision = if kept {
            decider.decide(facts, snapshot, intent, &state, now, &mut random)
        } else {
            decide(facts, snapshot, intent, &state, now, &mut random)
        };
        state = decision.state.clone();
        decisions.push(decision);
    }
    decisions
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn checker_accepts_every_plan_of_all_layers(world in layered(5)) {
        let mut previous: Option<Plan> = None;
        for (snapshot, decision) in world.snapshots.iter().zip(run(&world, true)) {
            let violations = check(&world.facts, snapshot, &world.intent, previous.as_ref(), &decision.plan);
            prop_assert!(violations.is_empty(), "{violations:?}\n{:#?}", decision.plan);
            previous = Some(decision.plan);
        }
    }

    /// Buffers are of no consequence, and neither is a decision's having been written and read.
    #[test]
    fn a_decision_depends_on_its_arguments_alone(world in layered(4)) {
        let decisions = run(&world, true);
        prop_assert_eq!(&decisions, &run(&world, false));
        let mut read = State::default();
        let mut drawn = 0;
        let mut random = || {
            drawn += 1;
            drawn
        };
        for (snapshot, decision) in world.snapshots.iter().zip(&decisions) {
            let again = decide(&world.facts, snapshot, &world.intent, &read, snapshot.at, &mut random);
            prop_assert_eq!(&again, decision);
            let text = serde_json::to_string(&again.state).unwrap();
            read = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(&read, &again.state);
            let text = serde_json::to_string(&again.plan).unwrap();
            let plan: Plan = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(plan, again.plan);
        }
    }

    #[test]
    fn order_independent_with_all_layers(world in layered(3), seed in any::<u64>()) {
        let mut shuffled = world.clone();
        for snapshot in &mut shuffled.snapshots {
            let len = snapshot.guests.len().max(1) as u64;
            snapshot.guests.rotate_left(usize::try_from(seed % len).unwrap());
            snapshot.nics.reverse();
        }
        prop_assert_eq!(run(&world, true), run(&shuffled, true));
    }

    /// A layer decides once in its interval: the same value stays until then, where it can.
    #[test]
    fn a_layer_that_is_not_due_keeps_its_section(world in layered(2)) {
        let mut world = world;
        // The same is seen again.
        let mut again = world.snapshots[1].clone();
        again.at = Nanos(again.at.0 + 100_000_000);
        world.snapshots.push(again);
        let decisions = run(&world, true);
        let [.., before, after] = &decisions[..] else { unreachable!() };
        if let (Some(settings), Some(plan)) = (&world.intent.placement, &before.plan.placement)
            && before.plan.groups == after.plan.groups
            && settings.interval > Nanos(100_000_000)
            && before.state.placement.decided == Some(world.snapshots[1].at)
        {
            prop_assert!(Arc::ptr_eq(plan, after.plan.placement.as_ref().unwrap()));
        }
    }
}

/// The drawn worlds are such that the tier layer has something to do: else all of the above says nothing of it.
#[test]
fn memory_moves_in_drawn_worlds() {
    use proptest::strategy::ValueTree as _;
    use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let (mut near, mut far, mut ranged, mut peaks, mut beside_files) = (0, 0, 0, 0, 0);
    for _ in 0..300 {
        let world = layered(4).new_tree(&mut runner).unwrap().current();
        for decision in run(&world, true) {
            let Some(tier) = &decision.plan.tier else {
                continue;
            };
            let is_far = |node| world.facts.memory.node(node).is_some_and(|node| node.far);
            near += usize::from(tier.moves.iter().any(|moves| !is_far(moves.to)));
            far += usize::from(tier.moves.iter().any(|moves| is_far(moves.to)));
            ranged += usize::from(tier.moves.iter().any(|moves| moves.ranges.len() > 1));
            peaks += usize::from(tier.peak);
            let files = decision.plan.files.as_ref();
            let given =
                files.is_some_and(|files| files.guests.iter().any(|given| given.bytes.0 > 0));
            beside_files += usize::from(given && !tier.moves.is_empty());
        }
    }
    let counts = [near, far, ranged, peaks, beside_files];
    assert!(
        counts.iter().all(|count| *count >= 10),
        "near, far, by ranges, at peaks, beside files: {counts:?}"
    );
}
