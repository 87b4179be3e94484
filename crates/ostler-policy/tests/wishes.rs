//! What guests and NICs are given, case by case.

mod support;

use ostler_check::check;
use ostler_model::{
    ActMode, AgentHealth, ByThreads, Capability, CpuId, CpuSet, CpuWeight, Facts, Group, GuestView,
    Intent, LatencyView, Nanos, PartitionPolicy, Plan, QueueCount, Reason, RunState, SharedCores,
    Snapshot, State, Thresholds, Unmeasured,
};
use ostler_policy::Decision;
use support::{Fluid, PERIOD, busy, decide_now, facts, guest, intent, nanos, sends, set, snapshot};

/// Two decisions: one on no measurement, the other after a period in which the groups' cores were so busy, in cores' time.
fn settle(
    facts: &Facts,
    intent: &Intent,
    guests: &[GuestView],
    vcpu: f64,
    nq: f64,
) -> (Snapshot, Decision) {
    let mut first = snapshot(facts, guests.to_vec());
    first.interval = Nanos::ZERO;
    let begun = decide_now(facts, &first, intent, &State::default());
    let mut second = snapshot(facts, guests.to_vec());
    second.at = Nanos(2 * PERIOD.0);
    for (cpus, cores) in [(begun.plan.groups.vcpu, vcpu), (begun.plan.groups.nq, nq)] {
        busy(&mut second, &cpus, cores / f64::from(cpus.len()));
    }
    let decision = decide_now(facts, &second, intent, &begun.state);
    let violations = check(facts, &second, intent, Some(&begun.plan), &decision.plan);
    assert_eq!(violations, []);
    (second, decision)
}

fn lc(plan: &Plan) -> &ostler_model::GuestPlan {
    plan.guest(&"lc0".into()).unwrap()
}

fn be(plan: &Plan) -> &ostler_model::GuestPlan {
    plan.guest(&"be0".into()).unwrap()
}

fn has(decision: &Decision, wanted: impl Fn(&Reason) -> bool) -> bool {
    decision.reasons.iter().any(wanted)
}

fn ids(ids: &[u32]) -> Vec<CpuId> {
    ids.iter().copied().map(CpuId).collect()
}

/// A guest whose agent says that it uses these vCPUs.
fn uses(guest: &mut GuestView, vcpus: &[u32]) {
    let agent = guest.agent.as_mut().expect("an agent");
    agent.state.as_mut().expect("its state").vcpus_active = vcpus.to_vec();
}

#[test]
fn queues_workers_and_interrupts_share_the_cores() {
    let (facts, intent) = (facts(12), intent(PartitionPolicy::Energy));
    let guests = [guest("lc0", 4, 4)];
    let (_, decision) = settle(&facts, &intent, &guests, 2.0, 1.2);
    let plan = &decision.plan;
    assert_eq!(
        (plan.groups.vcpu, plan.groups.nq),
        (set("0-3"), set("10-11"))
    );
    assert_eq!(plan.groups.idle, set("4-9"));
    let nic = &plan.nics[0];
    assert_eq!(nic.queues, 2);
    // Queue 0 is where the first core given to queues is; queues out of use are parked there too.
    for irq in &nic.irqs {
        assert_eq!(irq.cpus, CpuSet::single(CpuId(11 - irq.queue % 2)));
    }
    assert!(nic.rps.iter().all(CpuSet::is_empty));
    assert!(nic.xps[0].contains(CpuId(11)) && nic.xps[1].contains(CpuId(10)));
    assert!(nic.xps[2..].iter().all(CpuSet::is_empty));
    let everyone = nic
        .xps
        .iter()
        .fold(CpuSet::EMPTY, |all, set| all.union(set));
    assert_eq!(everyone, set("0-11"));
    let lc = lc(plan);
    assert_eq!(lc.vhost_pins, ids(&[11, 10, 11, 10]));
    assert_eq!((lc.queues, lc.vcpus_active), (Some(2), Some(4)));
    assert_eq!(lc.vcpu_pins, ids(&[0, 1, 2, 3]));
}

/// What a core of queues sends would otherwise interrupt a vCPU's core, as often as answers leave.
#[test]
fn what_is_sent_is_seen_to_on_the_core_that_sends_it() {
    let (facts, intent) = (facts(12), intent(PartitionPolicy::Energy));
    let mut seen = snapshot(&facts, vec![guest("lc0", 4, 4)]);
    seen.nics[0].irqs.truncate(6);
    let without = decide_now(&facts, &seen, &intent, &State::default()).plan;
    sends(&mut seen);
    let plan = decide_now(&facts, &seen, &intent, &State::default()).plan;
    assert_eq!(check(&facts, &seen, &intent, None, &plan), []);
    let (nic, before) = (&plan.nics[0], &without.nics[0]);
    assert_eq!((nic.irqs.len(), before.irqs.len()), (12, 6));
    for irq in &nic.irqs {
        assert!(irq.cpus.is_subset(&plan.groups.nq));
        assert_eq!(irq.cpus, before.irqs[irq.queue as usize].cpus);
        let sends = &nic.xps[irq.queue as usize];
        assert!(
            irq.queue >= nic.queues || irq.cpus.is_subset(sends),
            "by {sends}"
        );
    }
    // Nothing else changes: vectors that only send are no queues.
    assert_eq!(
        (nic.queues, &nic.xps, &nic.rps),
        (before.queues, &before.xps, &before.rps)
    );
    // More than there are queues, as some drivers number them: none is left elsewhere.
    let irqs = &mut seen.nics[0].irqs;
    irqs.last_mut().expect("one that sends").queue = 77;
    let plan = decide_now(&facts, &seen, &intent, &State::default()).plan;
    assert_eq!(check(&facts, &seen, &intent, None, &plan), []);
    let nic = &plan.nics[0];
    assert_eq!((nic.queues, &nic.xps), (before.queues, &before.xps));
}

#[test]
fn a_nic_with_one_queue_spreads_its_softirqs() {
    let (mut facts, intent) = (facts(12), intent(PartitionPolicy::Energy));
    facts.nics[0].queues_max = 1;
    let (_, decision) = settle(&facts, &intent, &[guest("lc0", 4, 4)], 2.0, 1.8);
    let nic = &decision.plan.nics[0];
    assert_eq!(decision.plan.groups.nq, set("9-11"));
    assert_eq!((nic.queues, &nic.rps), (1, &vec![set("9-11")]));
    assert_eq!(nic.irqs[0].cpus, set("11"));
}

#[test]
fn a_nic_that_cannot_be_set_keeps_its_queues() {
    let (mut facts, intent) = (facts(12), intent(PartitionPolicy::Energy));
    facts.nics[0].rss_settable = false;
    let (_, decision) = settle(&facts, &intent, &[guest("lc0", 4, 4)], 2.0, 1.2);
    assert_eq!(decision.plan.nics[0].queues, 1);
    assert_eq!(decision.plan.nics[0].rps[0], set("10-11"));
    assert!(has(&decision, |r| matches!(
        r,
        Reason::QueuesFixed { queues: 1, .. }
    )));
}

#[test]
fn a_guest_that_has_not_followed_yet_is_not_pinned() {
    let (facts, intent) = (facts(12), intent(PartitionPolicy::Energy));
    let mut lc0 = guest("lc0", 8, 2);
    let (_, before) = settle(&facts, &intent, &[lc0.clone()], 2.0, 0.5);
    assert_eq!(lc(&before.plan).vcpus_active, Some(4));
    assert_eq!(lc(&before.plan).vcpu_pins, []);
    assert!(has(&before, |r| matches!(r, Reason::TurnedDown { .. })));
    uses(&mut lc0, &[0, 2, 4, 6]);
    let (_, after) = settle(&facts, &intent, &[lc0], 2.0, 0.5);
    // Each vCPU in use has a core to itself; the others are parked beside them.
    assert_eq!(lc(&after.plan).vcpu_pins, ids(&[0, 0, 1, 1, 2, 2, 3, 3]));
}

/// A guest that is about to use more vCPUs finds a core under each, before it has said that it uses them.
#[test]
fn vcpus_that_a_guest_is_told_to_use_have_the_cores_that_came() {
    let (facts, intent) = (facts(12), intent(PartitionPolicy::Energy));
    let mut lc0 = guest("lc0", 8, 2);
    uses(&mut lc0, &[0, 1]);
    let (_, decision) = settle(&facts, &intent, &[lc0], 2.0, 0.5);
    assert_eq!(lc(&decision.plan).vcpus_active, Some(4));
    assert_eq!(lc(&decision.plan).vcpu_pins, ids(&[0, 1, 2, 3, 0, 1, 2, 3]));
}

#[test]
fn several_guests_float_over_all_cores() {
    let (facts, intent) = (facts(20), intent(PartitionPolicy::Performance));
    let mut guests = [guest("lc0", 16, 2), guest("lc1", 16, 2)];
    for guest in &mut guests {
        uses(guest, &[0]);
    }
    guests[0].vcpus[0].usage.run = nanos(0.9);
    guests[1].vcpus[0].usage.run = nanos(0.2);
    guests[1].vcpus[1].usage.wait = nanos(0.1);
    let (_, decision) = settle(&facts, &intent, &guests, 8.0, 2.0);
    let plans = &decision.plan.guests;
    assert_eq!(
        (plans[0].vcpus_active, plans[1].vcpus_active),
        (Some(16), Some(16))
    );
    assert!(plans.iter().all(|plan| plan.vcpu_pins.is_empty()));
    assert_eq!(plans[0].vhost_pins, ids(&[19, 18]));
    assert_eq!(plans[1].vhost_pins, ids(&[17, 16]));
}

#[test]
fn a_guest_without_an_agent_to_rely_on_is_asked_nothing() {
    let (facts, intent) = (facts(12), intent(PartitionPolicy::Energy));
    let breaks: [fn(&mut GuestView); 4] = [
        |guest| guest.agent = None,
        |guest| guest.agent.as_mut().unwrap().health = AgentHealth::Silent,
        |guest| guest.agent.as_mut().unwrap().state = None,
        |guest| guest.agent.as_mut().unwrap().age = Nanos::from_secs(5),
    ];
    for broken in breaks {
        let mut lc0 = guest("lc0", 4, 2);
        broken(&mut lc0);
        let (_, decision) = settle(&facts, &intent, &[lc0], 2.0, 0.5);
        let plan = lc(&decision.plan);
        assert_eq!((plan.vcpus_active, plan.queues), (None, None));
        assert!(has(&decision, |r| matches!(r, Reason::NoAgent { .. })));
        assert_eq!(plan.vcpu_pins.len(), 4);
    }
}

#[test]
fn best_effort_guests_go_where_the_mode_says() {
    let facts = facts(8);
    let guests = [guest("be0", 2, 1), guest("lc0", 4, 2)];
    let place = |policy, vcpu, nq| {
        let (_, decision) = settle(&facts, &intent(policy), &guests, vcpu, nq);
        let plan = decision.plan.clone();
        let reason = decision
            .reasons
            .into_iter()
            .find(|reason| matches!(reason, Reason::BestEffortOn { .. } | Reason::Suspend { .. }));
        (
            be(&plan).run,
            be(&plan).vcpu_cpus,
            plan.groups,
            reason.unwrap(),
        )
    };
    let (run, cpus, groups, why) = place(PartitionPolicy::Resource, 1.0, 0.5);
    let leftovers = groups.best_effort.union(&groups.vcpu);
    assert_eq!((run, cpus), (RunState::Running, leftovers));
    assert!(matches!(
        why,
        Reason::BestEffortOn {
            group: Group::BestEffort,
            cores: 5
        }
    ));
    let (run, cpus, groups, why) = place(PartitionPolicy::Resource, 4.0, 1.3);
    assert_eq!(
        (run, cpus, groups.best_effort),
        (RunState::Suspended, CpuSet::EMPTY, CpuSet::EMPTY)
    );
    assert!(matches!(why, Reason::Suspend { .. }), "{groups:?}");
    let (run, cpus, groups, why) = place(PartitionPolicy::Energy, 1.0, 0.5);
    assert_eq!((run, cpus), (RunState::Running, groups.idle));
    assert!(matches!(
        why,
        Reason::BestEffortOn {
            group: Group::Idle,
            ..
        }
    ));
    let (run, cpus, groups, why) = place(PartitionPolicy::Performance, 1.0, 0.5);
    assert_eq!((run, cpus), (RunState::Running, groups.vcpu));
    assert!(matches!(
        why,
        Reason::BestEffortOn {
            group: Group::Vcpu,
            ..
        }
    ));
}

#[test]
fn leftovers_are_had_only_where_they_cost_nothing() {
    let facts = facts(8);
    let guests = [guest("be0", 2, 1), guest("lc0", 4, 2)];
    // Whether the guest has leftovers besides its own cores, what it weighs, and whether it is told why not.
    let had = |intent: &Intent, facts: &Facts| {
        let (_, decision) = settle(facts, intent, &guests, 1.0, 0.5);
        let groups = decision.plan.groups;
        assert!(!groups.best_effort.is_empty() && !groups.vcpu.is_empty());
        let plan = be(&decision.plan);
        let own = plan.vcpu_cpus == groups.best_effort;
        // Queues' are another matter, below.
        let more = plan.vcpu_cpus == groups.best_effort.union(&groups.vcpu);
        assert!(own || more, "{plan:?}");
        assert_eq!(plan.vcpu_cpus, plan.vhost_cpus);
        let told = has(
            &decision,
            |r| matches!(r, Reason::TurnedDown { alternative, .. } if alternative.what.contains("latency-critical guests leave")),
        );
        (more, plan.weight, told)
    };
    let resource = intent(PartitionPolicy::Resource);
    assert_eq!(had(&resource, &facts), (true, CpuWeight::Idle, false));
    let mut changed = resource.clone();
    changed.partition.leftovers = false;
    assert_eq!(had(&changed, &facts), (false, CpuWeight::AsFound, false));
    for (shared, weight) in [
        (SharedCores::Weight(1), CpuWeight::AsFound),
        (SharedCores::Equal, CpuWeight::Untouched),
    ] {
        changed = resource.clone();
        changed.partition.best_effort = shared;
        assert_eq!(had(&changed, &facts), (false, weight, true));
    }
    let mut without = facts.clone();
    without.capabilities = vec![Capability {
        name: "cpu-weight".into(),
        missing: Some("no cpu controller".into()),
    }];
    assert_eq!(
        had(&resource, &without),
        (false, CpuWeight::Untouched, true)
    );
    let mut siblings = facts.clone();
    for cpu in &mut siblings.topology.cpus {
        cpu.core = CpuId(cpu.id.0 / 2 * 2);
    }
    assert_eq!(had(&resource, &siblings), (false, CpuWeight::AsFound, true));
}

/// What best-effort guests have of the vCPU group isn't its demand: it stays as large as without them.
#[test]
fn leftovers_are_nobodys_demand() {
    for (leftovers, counts_yielding) in [(false, true), (true, true), (true, false)] {
        let mut wanted = intent(PartitionPolicy::Resource);
        wanted.partition.leftovers = leftovers;
        let mut host = Fluid::new(12, wanted, true);
        host.best_effort_vcpus = 12;
        host.counts_yielding = counts_yielding;
        for _ in 0..60 {
            host.step(2.0, 1.0, |_| Some(0.3));
        }
        // Where they are lent, they are ample.
        let ample = if leftovers { 2 } else { 0 };
        assert_eq!(host.sizes(), [4 + ample, 2, 6 - ample, 0]);
        // What queues leave is had only where it can be told from what they need.
        let groups = &host.plan.groups;
        let cpus = be(&host.plan).vcpu_cpus;
        assert_eq!(cpus.is_disjoint(&groups.vcpu), !leftovers);
        assert_eq!(
            cpus.is_disjoint(&groups.nq),
            !(leftovers && counts_yielding)
        );
        let told = host.reasons.iter().any(|reason| {
            matches!(reason, Reason::TurnedDown { alternative, .. } if alternative.what.contains("what queues leave"))
        });
        assert_eq!(told, leftovers && !counts_yielding);
    }
}

/// What is left of others' cores is had while there is room within the objective: queues' not before anybody was seen to answer; when P95 comes
/// near, queues' is taken back, then vCPUs'; and neither is had again as soon as P95 has fallen because of that.
#[test]
fn leftovers_are_lent_while_there_is_room() {
    let mut host = Fluid::new(12, intent(PartitionPolicy::Resource), true);
    // Whether vCPUs' and queues' leftovers are had.
    let run = |host: &mut Fluid, periods, responses, ratio: Option<f64>| {
        host.responses = responses;
        for _ in 0..periods {
            host.step(2.0, 1.0, |_| ratio);
        }
        let (groups, cpus) = (host.plan.groups, be(&host.plan).vcpu_cpus);
        [groups.vcpu, groups.nq].map(|set| {
            assert!(set.is_subset(&cpus) || set.is_disjoint(&cpus));
            set.is_subset(&cpus)
        })
    };
    assert_eq!(
        run(&mut host, 10, 100, None),
        [true, false],
        "nobody can tell"
    );
    assert_eq!(
        run(&mut host, 15, 100, Some(0.3)),
        [true, true],
        "there is room"
    );
    assert_eq!(
        run(&mut host, 10, 100, Some(0.9)),
        [true, false],
        "there is little"
    );
    assert_eq!(
        run(&mut host, 10, 100, Some(0.9)),
        [false, false],
        "there is none"
    );
    assert_eq!(
        run(&mut host, 50, 100, Some(0.3)),
        [false, false],
        "there is none under this load"
    );
    assert_eq!(
        run(&mut host, 35, 50, Some(0.3)),
        [true, true],
        "this is another load"
    );
}

/// A group that had ample cores wasn't short of any when it grows: nothing is taken back for that.
#[test]
fn a_group_that_grows_from_ample_cores_keeps_lending() {
    let mut host = Fluid::new(12, intent(PartitionPolicy::Resource), true);
    host.best_effort_vcpus = 12;
    for _ in 0..40 {
        host.step(1.0, 1.0, |_| Some(0.3));
    }
    let before = host.sizes();
    for _ in 0..20 {
        host.step(1.6, 1.0, |_| Some(0.3));
        let (groups, cpus) = (host.plan.groups, be(&host.plan).vcpu_cpus);
        assert!(groups.nq.union(&groups.vcpu).is_subset(&cpus));
    }
    assert!(host.sizes()[0] > before[0], "{before:?}");
}

/// An operator may have all guests yield, those with an objective among them. That isn't taken off twice: a group is never smaller than what its own
/// threads need.
#[test]
fn guests_that_yield_themselves_keep_their_demand() {
    let facts = facts(12);
    let wanted = intent(PartitionPolicy::Resource);
    let mut host = Fluid::new(12, wanted.clone(), true);
    for _ in 0..60 {
        host.step(2.0, 1.0, |_| Some(0.3));
    }
    let groups = host.plan.groups;
    assert_eq!(host.sizes(), [4, 2, 6, 0]);
    let (mut state, mut sizes) = (host.state, Vec::new());
    for seq in 100..160 {
        let mut next = snapshot(&facts, vec![guest("be0", 2, 1), guest("lc0", 12, 8)]);
        (next.seq, next.at) = (seq, Nanos(PERIOD.0 * seq));
        for usage in &mut next.cpus {
            (usage.busy, usage.yielding) = (PERIOD, Some(PERIOD));
        }
        next.guests[1].vcpus[0].usage.run = nanos(2.0);
        next.guests[1].vhost[0].usage.run = nanos(1.0);
        let decision = decide_now(&facts, &next, &wanted, &state);
        state = decision.state;
        sizes.push([
            decision.plan.groups.vcpu.len(),
            decision.plan.groups.nq.len(),
        ]);
    }
    assert_eq!(sizes.last(), Some(&[groups.vcpu.len(), groups.nq.len()]));
}

#[test]
fn best_effort_guests_yield_only_while_they_share() {
    let facts = facts(8);
    let guests = [guest("be0", 2, 1), guest("be1", 1, 0), guest("lc0", 4, 2)];
    let weights = |intent: &Intent, facts: &Facts, guests: &[GuestView], vcpu| {
        let (_, decision) = settle(facts, intent, guests, vcpu, 1.3);
        let of = |name: &str| decision.plan.guest(&name.into()).map(|plan| plan.weight);
        let yields = has(&decision, |r| matches!(r, Reason::Yield { .. }));
        let refused = has(
            &decision,
            |r| matches!(r, Reason::TurnedDown { alternative, .. } if alternative.what.contains("yield")),
        );
        assert_eq!(of("lc0").unwrap_or_default(), CpuWeight::Untouched);
        assert_eq!(of("be0"), of("be1"));
        (of("be0").unwrap(), yields, refused)
    };
    let mut energy = intent(PartitionPolicy::Energy);
    // Idle cores are there, then they aren't.
    assert_eq!(
        weights(&energy, &facts, &guests, 1.0),
        (CpuWeight::AsFound, false, false)
    );
    assert_eq!(
        weights(&energy, &facts, &guests, 4.0),
        (CpuWeight::Idle, true, false)
    );
    let performance = intent(PartitionPolicy::Performance);
    assert_eq!(
        weights(&performance, &facts, &guests, 1.0),
        (CpuWeight::Idle, true, false)
    );
    let resource = intent(PartitionPolicy::Resource);
    assert_eq!(
        weights(&resource, &facts, &guests, 4.0),
        (CpuWeight::AsFound, false, false),
        "suspended"
    );
    // With nobody to yield to, nothing is touched.
    assert_eq!(
        weights(&performance, &facts, &guests[..2], 0.0),
        (CpuWeight::Untouched, false, false)
    );
    energy.partition.best_effort = SharedCores::Weight(20);
    assert_eq!(
        weights(&energy, &facts, &guests, 4.0),
        (CpuWeight::Weight(20), true, false)
    );
    energy.partition.best_effort = SharedCores::Equal;
    assert_eq!(
        weights(&energy, &facts, &guests, 4.0),
        (CpuWeight::Untouched, false, true)
    );
    // A host that can't is asked for nothing, and told why.
    energy.partition.best_effort = SharedCores::Idle;
    let mut without = facts.clone();
    without.capabilities = vec![Capability {
        name: "cpu-weight".into(),
        missing: Some("no cpu controller".into()),
    }];
    assert_eq!(
        weights(&energy, &without, &guests, 4.0),
        (CpuWeight::Untouched, false, true)
    );
}

#[test]
fn the_first_decision_splits_evenly_and_suspends_nobody() {
    let (facts, intent) = (facts(8), intent(PartitionPolicy::Resource));
    let mut first = snapshot(&facts, vec![guest("be0", 2, 1), guest("lc0", 4, 2)]);
    first.interval = Nanos::ZERO;
    let decision = decide_now(&facts, &first, &intent, &State::default());
    let groups = decision.plan.groups;
    assert_eq!((groups.vcpu, groups.nq), (set("0-3"), set("4-7")));
    assert_eq!(be(&decision.plan).run, RunState::Running);
    assert!(has(&decision, |r| *r
        == Reason::Unmeasured(Unmeasured::NoInterval)));
    assert_eq!((decision.plan.generation, decision.plan.parent), (1, None));
}

#[test]
fn one_core_is_shared() {
    let (facts, intent) = (facts(1), intent(PartitionPolicy::Energy));
    let (_, decision) = settle(&facts, &intent, &[guest("lc0", 2, 1)], 0.4, 0.0);
    let groups = decision.plan.groups;
    assert_eq!(
        (groups.vcpu, groups.nq, groups.shared),
        (set("0"), set("0"), true)
    );
    assert!(has(&decision, |r| matches!(
        r,
        Reason::TooFewCores { available: 1 }
    )));
}

#[test]
fn a_host_without_cores_is_left_alone() {
    let (facts, mut intent) = (facts(4), intent(PartitionPolicy::Energy));
    intent.cores.reserved = set("0-3");
    let (_, decision) = settle(&facts, &intent, &[guest("lc0", 2, 1)], 0.0, 0.0);
    assert!(decision.plan.guests.is_empty() && decision.plan.nics.is_empty());
    assert!(has(&decision, |r| matches!(r, Reason::Nothing { .. })));
}

#[test]
fn groups_that_nothing_needs_are_empty() {
    let (facts, mut intent) = (facts(8), intent(PartitionPolicy::Performance));
    let (_, decision) = settle(&facts, &intent, &[guest("be0", 2, 1)], 0.0, 0.3);
    assert_eq!(decision.plan.groups.vcpu, CpuSet::EMPTY);
    assert_eq!(decision.plan.groups.nq, set("7"));
    assert_eq!(be(&decision.plan).vcpu_cpus, set("0-6"));
    intent.nics.clear();
    let (_, decision) = settle(&facts, &intent, &[guest("lc0", 2, 0)], 0.3, 0.0);
    assert_eq!(decision.plan.groups.vcpu, set("0-7"));
    assert!(has(&decision, |r| matches!(
        r,
        Reason::Unneeded { group: Group::Nq }
    )));
    assert_eq!(lc(&decision.plan).queues, None);
}

#[test]
fn observe_mode_measures_by_threads() {
    let (facts, mut intent) = (facts(8), intent(PartitionPolicy::Energy));
    intent.act.mode = ActMode::Observe;
    let mut lc0 = guest("lc0", 4, 2);
    for vcpu in &mut lc0.vcpus {
        vcpu.usage.run = nanos(0.5);
    }
    lc0.vhost[0].usage.run = nanos(0.8);
    // The cores are busy with something else; nothing of it counts.
    let (_, decision) = settle(&facts, &intent, &[lc0], 4.0, 4.0);
    assert_eq!(decision.plan.groups.vcpu.len(), 4);
    assert_eq!(decision.plan.groups.nq.len(), 2);
    let observing = |r: &Reason| {
        matches!(
            r,
            Reason::ByThreads {
                why: ByThreads::Observing,
                ..
            }
        )
    };
    assert!(has(&decision, observing));
}

#[test]
fn what_is_missing_or_old_is_said() {
    let (facts, mut intent) = (facts(8), intent(PartitionPolicy::Energy));
    intent.nics.push("eth9".into());
    let mut old = guest("lc0", 0, 1);
    old.age = Nanos::from_secs(5);
    old.frozen = true;
    old.latency = Some(LatencyView {
        responses: 1,
        p50: Nanos(1),
        p95: Nanos(1),
        p99: Nanos(1),
        age: Nanos::from_secs(3),
    });
    let (_, decision) = settle(&facts, &intent, &[old], 0.0, 0.0);
    assert!(has(
        &decision,
        |r| matches!(r, Reason::NicAbsent { nic } if nic == "eth9")
    ));
    assert!(has(&decision, |r| matches!(r, Reason::OldView { .. })));
    assert!(has(&decision, |r| matches!(r, Reason::Frozen { .. })));
    assert!(has(&decision, |r| matches!(r, Reason::NoVcpus { .. })));
    let three = Some(Nanos::from_secs(3));
    assert!(has(
        &decision,
        |r| matches!(r, Reason::NoLatency { age, .. } if *age == three)
    ));
    assert_eq!(lc(&decision.plan).vhost_pins, []);
}

#[test]
fn other_thresholds_from_the_operator_start_over() {
    let (facts, mut intent) = (facts(8), intent(PartitionPolicy::Energy));
    let (second, decision) = settle(&facts, &intent, &[guest("lc0", 4, 1)], 1.0, 0.2);
    let mut state = decision.state;
    state.partition.thresholds = Some(Thresholds { vcpu: 0.3, nq: 0.3 });
    let kept = decide_now(&facts, &second, &intent, &state).state.partition;
    assert_eq!(kept.thresholds, Some(Thresholds { vcpu: 0.3, nq: 0.3 }));
    intent.partition.thresholds = Thresholds { vcpu: 0.5, nq: 0.6 };
    let anew = decide_now(&facts, &second, &intent, &state).state.partition;
    assert_eq!(anew.thresholds, Some(Thresholds { vcpu: 0.5, nq: 0.6 }));
}

#[test]
fn baselines_are_what_they_are_called() {
    let facts = facts(12);
    let guests = [guest("be0", 2, 1), guest("lc0", 6, 4)];
    let plan = |policy, vcpu, nq| settle(&facts, &intent(policy), &guests, vcpu, nq).1.plan;

    for (queues, count) in [(QueueCount::One, 1), (QueueCount::Max, 8)] {
        let plan = plan(PartitionPolicy::TimeSharing { queues }, 3.0, 0.0);
        assert_eq!(
            (plan.groups.vcpu, plan.groups.nq),
            (set("0-11"), set("0-11"))
        );
        assert_eq!(plan.nics[0].queues, count);
        assert_eq!(lc(&plan).queues, Some(count.min(4)));
        assert_eq!(lc(&plan).vcpus_active, Some(6));
        assert!(lc(&plan).vcpu_pins.is_empty() && lc(&plan).vhost_pins.is_empty());
        assert_eq!(be(&plan).vcpu_cpus, set("0-11"));
        assert_eq!(be(&plan).weight, CpuWeight::Untouched, "as equals");
        assert!(plan.nics[0].rps.iter().all(CpuSet::is_empty));
    }

    let fixed = plan(PartitionPolicy::Static { vcpu: 7, nq: 3 }, 0.1, 2.9);
    assert_eq!(
        (fixed.groups.vcpu, fixed.groups.nq),
        (set("0-6"), set("9-11"))
    );

    let pool = plan(PartitionPolicy::CoreNap, 0.0, 3.0);
    assert_eq!((pool.groups.vcpu, pool.groups.nq), (set("0-4"), set("0-4")));
    assert_eq!((pool.groups.idle, pool.nics[0].queues), (set("5-11"), 5));

    // Run time alone counts: the cores' business with packets doesn't.
    let mut guests = guests.clone();
    guests[1].vcpus[0].usage.run = nanos(1.0);
    guests[1].vcpus[1].usage.run = nanos(0.2);
    let queues = QueueCount::One;
    let policy = PartitionPolicy::Demeter { queues };
    let (_, demeter) = settle(&facts, &intent(policy), &guests, 9.0, 0.0);
    let groups = demeter.plan.groups;
    assert_eq!((groups.vcpu, groups.best_effort), (set("0-1"), set("2-11")));
    assert_eq!((groups.nq, demeter.plan.nics[0].queues), (set("0-11"), 1));
}
