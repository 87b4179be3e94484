//! What holds of every plan, whatever the host, the guests and the policy.

use ostler_check::check;
use ostler_model::testing::{World, world};
use ostler_model::{Nanos, Plan, Reason, Snapshot, State};
use ostler_policy::{Decision, decide};
use proptest::prelude::*;

fn run(world: &World) -> Vec<Decision> {
    let mut state = State::default();
    world
        .snapshots
        .iter()
        .map(|snapshot| {
            let decision = step(world, snapshot, &state);
            state = decision.state.clone();
            decision
        })
        .collect()
}

fn step(world: &World, snapshot: &Snapshot, state: &State) -> Decision {
    let mut none = || 0;
    decide(
        &world.facts,
        snapshot,
        &world.intent,
        state,
        snapshot.at,
        &mut none,
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn checker_accepts_every_plan(world in world(4)) {
        let mut previous: Option<Plan> = None;
        for (snapshot, decision) in world.snapshots.iter().zip(run(&world)) {
            let violations = check(&world.facts, snapshot, &world.intent, previous.as_ref(), &decision.plan);
            prop_assert!(violations.is_empty(), "{violations:?}\n{:#?}", decision.plan);
            prop_assert!(!decision.reasons.is_empty() || decision.plan.groups.idle.is_empty());
            previous = Some(decision.plan);
        }
    }

    #[test]
    fn the_same_arguments_give_the_same_decision(world in world(3)) {
        prop_assert_eq!(run(&world), run(&world));
    }

    #[test]
    fn order_independent(world in world(3), seed in any::<u64>()) {
        let mut shuffled = world.clone();
        for snapshot in &mut shuffled.snapshots {
            let len = snapshot.guests.len().max(1) as u64;
            snapshot.guests.rotate_left(usize::try_from(seed % len).unwrap());
            if seed % 2 == 0 {
                snapshot.guests.reverse();
            }
            snapshot.nics.reverse();
        }
        prop_assert_eq!(run(&world), run(&shuffled));
    }

    #[test]
    fn an_old_snapshot_moves_no_core(world in world(3)) {
        let decisions = run(&world);
        let last = world.snapshots.last().unwrap();
        let mut none = || 0;
        let state = &decisions.last().unwrap().state;
        let late = Nanos(last.at.0 + 10 * world.intent.period.0 + 1);
        let decision = decide(&world.facts, last, &world.intent, state, late, &mut none);
        prop_assert_eq!(decision.plan.groups, decisions.last().unwrap().plan.groups);
        let said = decision.reasons.iter().any(|reason| matches!(reason, Reason::Unmeasured(_)));
        prop_assert!(said || decision.plan.guests.is_empty());
    }
}
