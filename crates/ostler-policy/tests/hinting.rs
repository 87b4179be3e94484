//! Hints within a decision: what the other layers gave is what a wish is granted within.

mod support;

use std::sync::Arc;

use ostler_check::check;
use ostler_model::{
    CpuId, Facts, GuestWishes, HintsIntent, HintsPlan, HintsVcpu, Intent, LoadDegree, Nanos,
    PartitionPolicy, PinRefusal, PinVerdict, Plan, RunnableView, Snapshot, State,
};
use ostler_policy::{Decision, decide};
use support::{guest, intent, set, snapshot};

/// Eight cores, four to a cache; two guests that take part, so that none has a core for each vCPU, and a best-effort one that doesn't.
fn world() -> (Facts, Intent, Snapshot) {
    let mut facts = support::facts(8);
    for cpu in &mut facts.topology.cpus {
        cpu.cache_group = CpuId(cpu.id.0 / 4 * 4);
    }
    let mut intent = intent(PartitionPolicy::Static { vcpu: 6, nq: 2 });
    intent.hints = Some(HintsIntent::default());
    intent.guests[0].terms.hints = true;
    let guests = vec![guest("be0", 1, 0), guest("lc0", 2, 1), guest("lc1", 2, 1)];
    let mut seen = snapshot(&facts, guests);
    seen.runnable = (0..8)
        .map(|cpu| RunnableView {
            cpu: CpuId(cpu),
            vcpus: cpu % 3,
        })
        .collect();
    let wish = |cpu| HintsVcpu {
        cpu: Some(CpuId(cpu)),
        pin: true,
        runnable: false,
    };
    seen.wishes = vec![GuestWishes {
        guest: "lc0".into(),
        vcpus: vec![wish(4), wish(6)],
        age: Nanos::ZERO,
    }];
    (facts, intent, seen)
}

fn decided(
    facts: &Facts,
    seen: &Snapshot,
    intent: &Intent,
    state: &State,
    before: Option<&Plan>,
) -> Decision {
    let mut drawn = 0;
    let mut random = || {
        drawn += 1;
        drawn
    };
    let decision = decide(facts, seen, intent, state, seen.at, &mut random);
    assert_eq!(check(facts, seen, intent, before, &decision.plan), []);
    decision
}

fn hints(decision: &Decision) -> &Arc<HintsPlan> {
    decision.plan.hints.as_ref().expect("there are hints")
}

#[test]
fn a_wish_is_granted_within_what_partition_gave() {
    let (facts, intent, seen) = world();
    let decision = decided(&facts, &seen, &intent, &State::default(), None);
    assert_eq!(decision.plan.groups.vcpu, set("0-5"));
    let hints = hints(&decision);
    // Of the second cache's cores 4 and 5 are for vCPUs; 6 and 7 are for queues, wherever a guest would like to be.
    for vcpu in [0, 1] {
        let Some(PinVerdict::Granted { cpus, .. }) = hints.pin(&"lc0".into(), vcpu) else {
            panic!("{:?}", hints.pins);
        };
        assert_eq!(*cpus, set("4-5"));
    }
    // What it is shown: both in one group; core 4 has one runnable vCPU of 5 on 8 cores, core 6 none.
    let shown = &hints.guest(&"lc0".into()).unwrap().vcpus;
    assert_eq!(shown[0].group, shown[1].group);
    assert_eq!(
        [shown[0].load, shown[1].load],
        [LoadDegree::High, LoadDegree::Low]
    );
    // Of a guest of whose vCPUs nothing is known, nothing is said; who isn't opted in is shown nothing.
    let lc1 = hints.guest(&"lc1".into()).unwrap();
    assert!(
        lc1.vcpus
            .iter()
            .all(|row| row.group.is_none() && row.load == LoadDegree::High)
    );
    assert!(hints.guest(&"be0".into()).is_none());
}

#[test]
fn a_vcpu_with_a_core_of_its_own_needs_no_pin() {
    let (facts, intent, mut seen) = world();
    // Alone, it has a core for each vCPU.
    seen.guests.truncate(2);
    let decision = decided(&facts, &seen, &intent, &State::default(), None);
    assert_eq!(decision.plan.guests[1].vcpu_pins.len(), 2);
    let refused = Some(PinVerdict::Refused(PinRefusal::Placed));
    assert_eq!(hints(&decision).pin(&"lc0".into(), 0).copied(), refused);
}

#[test]
fn a_grant_goes_when_the_cores_do() {
    let (facts, mut intent, seen) = world();
    let first = decided(&facts, &seen, &intent, &State::default(), None);
    intent.partition.policy = PartitionPolicy::Static { vcpu: 3, nq: 2 };
    let mut later = seen.clone();
    later.at = Nanos(seen.at.0 + 1);
    let second = decided(&facts, &later, &intent, &first.state, Some(&first.plan));
    assert!(second.plan.groups.vcpu.is_disjoint(&set("4-7")));
    assert!(
        hints(&second)
            .pins
            .iter()
            .all(|pin| matches!(pin.verdict, PinVerdict::Refused(PinRefusal::NotGranted)))
    );
}

#[test]
fn the_secret_is_drawn_once_and_hints_that_stay_are_shared() {
    let (facts, intent, seen) = world();
    let first = decided(&facts, &seen, &intent, &State::default(), None);
    let key = first.state.hints.key.unwrap();
    assert_ne!(key, [0; 32]);
    let mut later = seen.clone();
    later.at = Nanos(seen.at.0 + 1);
    let second = decided(&facts, &later, &intent, &first.state, Some(&first.plan));
    assert_eq!(second.state.hints.key, Some(key));
    assert!(Arc::ptr_eq(hints(&first), hints(&second)));
    assert!(Arc::ptr_eq(
        &first.state.hints.granted,
        &second.state.hints.granted
    ));
}
