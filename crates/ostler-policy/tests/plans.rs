//! What holds of every plan, whatever the host, the guests and the policy.

use ostler_check::check;
use ostler_model::testing::{World, world};
use ostler_model::{
    Class, CpuSet, CpuWeight, GuestPlan, Nanos, PartitionPolicy, Plan, Reason, RunState,
    SharedCores, Snapshot, State,
};
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

/// Every CPU that a guest of this class may run on.
fn cpus_of(plan: &Plan, class: Class) -> CpuSet {
    plan.guests
        .iter()
        .filter(|given| given.class == class)
        .fold(CpuSet::EMPTY, |all, given| all.union(&cpus(given)))
}

fn cpus(given: &GuestPlan) -> CpuSet {
    given
        .vcpu_cpus
        .union(&given.vhost_cpus)
        .union(&given.emulator_cpus)
}

fn wanted(shared: SharedCores) -> CpuWeight {
    match shared {
        SharedCores::Idle => CpuWeight::Idle,
        SharedCores::Weight(weight) => CpuWeight::Weight(weight),
        SharedCores::Equal => CpuWeight::Untouched,
    }
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

    /// A latency-critical guest is never weighed; a best-effort one is exactly while it runs on cores of theirs, and goes back to what it
    /// had in the period in which it doesn't.
    #[test]
    fn best_effort_guests_yield_exactly_where_they_share(world in world(4)) {
        let policy = world.intent.partition.policy;
        let compared = !matches!(policy, PartitionPolicy::Performance | PartitionPolicy::Energy | PartitionPolicy::Resource);
        for decision in run(&world) {
            let critical = cpus_of(&decision.plan, Class::LatencyCritical);
            let weight = wanted(world.intent.partition.best_effort);
            let mut sharing = false;
            for given in &decision.plan.guests {
                if given.class != Class::BestEffort || compared || weight == CpuWeight::Untouched {
                    prop_assert_eq!(given.weight, CpuWeight::Untouched, "{:?}", given);
                    continue;
                }
                let shares = given.run == RunState::Running && !cpus(given).is_disjoint(&critical);
                sharing |= shares;
                prop_assert_eq!(given.weight == weight, shares, "{:?}", given);
                prop_assert!(shares || !given.weight.is_set(), "{:?}", given);
            }
            let said = decision.reasons.iter().any(|reason| matches!(reason, Reason::Yield { weight: said, .. } if *said == weight));
            prop_assert_eq!(said, sharing, "{:?}", decision.reasons);
        }
    }

    /// What best-effort guests are to weigh moves no core, no thread and no queue; nor does it change what is remembered. But for leftovers,
    /// which are for who weighs nothing.
    #[test]
    fn weights_change_nothing_else(world in world(3), equal in any::<bool>()) {
        let mut world = world;
        world.intent.partition.leftovers = false;
        let mut other = world.clone();
        other.intent.partition.best_effort = if equal { SharedCores::Equal } else { SharedCores::Weight(1) };
        for (one, two) in run(&world).into_iter().zip(run(&other)) {
            let mut plan = two.plan.clone();
            for (given, same) in plan.guests.iter_mut().zip(&one.plan.guests) {
                given.weight = same.weight;
            }
            prop_assert_eq!(plan, one.plan);
            prop_assert_eq!(two.state.partition, one.state.partition);
        }
    }
}
