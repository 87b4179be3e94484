//! Each rule is shown to fire: a good plan, one thing made wrong, and the one violation that names it.

mod support;

use std::mem::discriminant;

use ostler_check::{Holder, Violation};
use ostler_model::{
    AgentHealth, BoostPlan, BoostSettings, Capability, Class, CpuId, CpuSet, CpuWeight, Group,
    IrqId, Nanos, PartitionPolicy, Plan, QueueCount, Ring, RunState, SharedCores,
};
use proptest::prelude::*;
use support::{Case, be, be0, eth0, good, guest, lc, lc0, rejects, sends, set};

#[test]
fn accepts_a_good_plan() {
    assert_eq!(good().check(), []);
    let mut first = good();
    first.previous = None;
    first.plan.generation = 1;
    first.plan.parent = None;
    assert_eq!(first.check(), []);
}

#[test]
fn rejects_a_broken_lineage() {
    let generation = Violation::Generation {
        parent: 7,
        found: 9,
    };
    rejects(&generation, |case| case.plan.generation = 9);
    let parent = Violation::Parent {
        expected: 6,
        found: Some(7),
    };
    rejects(&parent, |case| {
        case.previous.as_mut().unwrap().generation = 6;
    });
    rejects(&Violation::At, |case| case.plan.at = Nanos(1));
}

/// The good case with the boost, as it should be.
fn boosted(case: &mut Case) -> &mut BoostPlan {
    case.intent.boost = Some(BoostSettings::default());
    case.plan.boost.insert(BoostPlan {
        settings: BoostSettings::default(),
        domains: vec![set("0-5"), set("6-11")],
        workers: false,
        guests: vec![be0(), lc0()],
    })
}

#[test]
fn rejects_a_boost_that_is_not_as_it_is_to_be() {
    let mut case = good();
    boosted(&mut case);
    assert_eq!(case.check(), []);

    rejects(&Violation::NotBoosted, |case| {
        boosted(case);
        case.plan.boost = None;
    });
    rejects(&Violation::BoostedUnasked, |case| {
        boosted(case);
        case.intent.boost = None;
    });
    rejects(&Violation::BoostedUnasked, |case| {
        boosted(case).settings.io = false;
    });
    rejects(&Violation::BoostOrder { guest: be0() }, |case| {
        boosted(case).guests.reverse();
    });
    rejects(&Violation::BoostedGuest { guest: be0() }, |case| {
        boosted(case);
        case.intent.guests[1].boost = false;
    });
    let other = Violation::BoostedGuest {
        guest: "other0".into(),
    };
    rejects(&other, |case| boosted(case).guests.push("other0".into()));
    rejects(&Violation::BoostLeftOut { guest: lc0() }, |case| {
        boosted(case).guests.truncate(1);
    });
    rejects(&Violation::BoostWorkers { planned: true }, |case| {
        boosted(case).workers = true;
    });
    let weighed = Violation::BoostedAndWeighed {
        guest: be0(),
        weight: CpuWeight::Idle,
    };
    rejects(&weighed, |case| {
        boosted(case);
        be(case).weight = CpuWeight::Idle;
    });
}

#[test]
fn rejects_cores_that_cannot_share_a_queue_of_vcpus() {
    let twice = Violation::BoostDomain {
        cpus: set("5-11"),
        twice: set("5"),
    };
    rejects(&twice, |case| boosted(case).domains[1] = set("5-11"));
    let none = Violation::BoostDomain {
        cpus: CpuSet::EMPTY,
        twice: CpuSet::EMPTY,
    };
    rejects(&none, |case| boosted(case).domains.push(CpuSet::EMPTY));
    let many = Violation::BoostDomain {
        cpus: set("0-16"),
        twice: CpuSet::EMPTY,
    };
    rejects(&many, |case| boosted(case).domains = vec![set("0-16")]);
    let without = Violation::BoostCores {
        placed: set("0-5"),
        online: set("0-11"),
    };
    rejects(&without, |case| boosted(case).domains.truncate(1));
}

#[test]
fn a_host_that_cannot_boost_need_not() {
    let mut case = good();
    boosted(&mut case);
    case.plan.boost = None;
    case.facts.capabilities.push(Capability {
        name: "vcpu-scheduler".into(),
        missing: Some("the kernel has no sched_ext".into()),
    });
    assert_eq!(case.check(), []);
}

#[test]
fn rejects_cpus_that_are_not_the_stewards() {
    let idle = || Holder::Group(Group::Idle);
    let offline = Violation::NotManaged {
        what: idle(),
        cpus: set("12"),
    };
    rejects(&offline, |case| case.plan.groups.idle = set("4,10,12"));
    let unmanaged = Violation::NotManaged {
        what: idle(),
        cpus: set("4,10"),
    };
    rejects(&unmanaged, |case| {
        case.intent.cores.managed = Some(set("0-3,5-9,11"));
    });
    let gone = Violation::NotManaged {
        what: idle(),
        cpus: set("10"),
    };
    rejects(&gone, |case| {
        case.snapshot.cpus.remove(10);
    });
    let reserved = Violation::Reserved {
        what: idle(),
        cpus: set("0"),
    };
    rejects(&reserved, |case| case.plan.groups.idle = set("0,4,10"));
    let guest = Violation::Reserved {
        what: Holder::Emulator(lc0()),
        cpus: set("6"),
    };
    rejects(&guest, |case| lc(case).emulator_cpus = set("6"));
    let differ = Violation::ReservedDiffer {
        expected: set("0,6"),
        found: set("0"),
    };
    rejects(&differ, |case| case.plan.groups.reserved = set("0"));
}

#[test]
fn rejects_a_ledger_that_does_not_add_up() {
    let two = |first, second| Violation::TwoOwners {
        cpus: set("5,11"),
        first,
        second,
    };
    rejects(&two(Group::Nq, Group::BestEffort), |case| {
        case.plan.groups.best_effort = set("3,5,9,11");
    });
    rejects(&two(Group::Vcpu, Group::Nq), |case| {
        case.plan.groups.vcpu = set("1-2,5,7-8,11");
    });
    // Even a plan that shares by design shares with the queues alone, and nothing that is idle.
    rejects(&two(Group::Nq, Group::Idle), |case| {
        case.plan.groups.shared = true;
        case.plan.groups.idle = set("4-5,10-11");
    });
    let shared = Violation::TwoOwners {
        cpus: set("1"),
        first: Group::Vcpu,
        second: Group::BestEffort,
    };
    rejects(&shared, |case| {
        case.plan.groups.shared = true;
        case.plan.groups.best_effort = set("1,3,9");
    });
    let nobody = Violation::NoOwner { cpus: set("4,10") };
    rejects(&nobody, |case| case.plan.groups.idle = CpuSet::EMPTY);
    let split = Violation::SiblingsSplit { core: CpuId(4) };
    rejects(&split, |case| {
        case.plan.groups.idle = set("4");
        case.plan.groups.vcpu = set("1-2,7-8,10");
    });
}

#[test]
fn rejects_empty_groups_that_are_needed() {
    let vcpu = Violation::EmptyGroup {
        group: Group::Vcpu,
        needed_by: "a latency-critical guest",
    };
    rejects(&vcpu, |case| {
        case.plan.groups.vcpu = CpuSet::EMPTY;
    });
    let by_nic = Violation::EmptyGroup {
        group: Group::Nq,
        needed_by: "a NIC",
    };
    rejects(&by_nic, |case| case.plan.groups.nq = CpuSet::EMPTY);
    let by_worker = Violation::EmptyGroup {
        group: Group::Nq,
        needed_by: "a vhost worker",
    };
    rejects(&by_worker, |case| {
        case.snapshot.nics.clear();
        case.plan.nics.clear();
        case.plan.groups.nq = CpuSet::EMPTY;
    });
    let nobodys = Violation::NobodysCores { cpus: set("3,9") };
    rejects(&nobodys, |case| {
        case.snapshot.guests.remove(0);
        case.plan.guests.remove(0);
    });
}

#[test]
fn rejects_a_wrong_list_of_guests() {
    rejects(&Violation::GuestOrder { guest: be0() }, |case| {
        case.plan.guests.reverse();
    });
    rejects(&Violation::GuestOrder { guest: be0() }, |case| {
        let twice = be(case).clone();
        case.plan.guests.insert(0, twice);
    });
    rejects(&Violation::UnknownGuest { guest: lc0() }, |case| {
        case.snapshot.guests.remove(1);
    });
    let unmanaged = Violation::UnmanagedGuest {
        guest: "other0".into(),
    };
    rejects(&unmanaged, |case| {
        let mut other = lc(case).clone();
        other.guest = "other0".into();
        case.plan.guests.push(other);
    });
    rejects(&Violation::MissingGuest { guest: be0() }, |case| {
        case.plan.guests.remove(0);
    });
    let class = Violation::GuestClass {
        guest: lc0(),
        expected: Class::LatencyCritical,
        found: Class::BestEffort,
    };
    rejects(&class, |case| lc(case).class = Class::BestEffort);
}

#[test]
fn rejects_guests_where_they_must_not_be() {
    let nowhere = Violation::Nowhere {
        what: Holder::Vcpus(lc0()),
    };
    rejects(&nowhere, |case| {
        lc(case).vcpu_cpus = CpuSet::EMPTY;
        lc(case).vcpu_pins.clear();
    });
    let trespass = |what| Violation::Trespass {
        what,
        cpus: set("4"),
    };
    rejects(&trespass(Holder::Vcpus(lc0())), |case| {
        lc(case).vcpu_cpus = set("1-2,4,7-8");
    });
    rejects(&trespass(Holder::Vhost(lc0())), |case| {
        lc(case).vhost_cpus = set("4-5,11");
    });
    rejects(&trespass(Holder::Emulator(be0())), |case| {
        be(case).emulator_cpus = set("3-4,9");
    });
    let count = Violation::PinCount {
        what: Holder::Vcpus(lc0()),
        pins: 3,
        threads: 4,
    };
    rejects(&count, |case| {
        lc(case).vcpu_pins.pop();
    });
    let workers = Violation::PinCount {
        what: Holder::Vhost(lc0()),
        pins: 2,
        threads: 3,
    };
    rejects(&workers, |case| {
        case.snapshot.guests[1] = guest("lc0", 4, 3);
    });
    let outside = Violation::PinOutside {
        what: Holder::Vhost(lc0()),
        cpu: CpuId(4),
    };
    rejects(&outside, |case| lc(case).vhost_pins[1] = CpuId(4));
}

#[test]
fn rejects_suspending_whom_it_must_not() {
    let critical = Violation::Suspended {
        guest: lc0(),
        class: Class::LatencyCritical,
    };
    rejects(&critical, |case| lc(case).run = RunState::Suspended);
    let needless = Violation::SuspendedNeedlessly {
        guest: be0(),
        cpus: set("3-4,9-10"),
    };
    rejects(&needless, |case| be(case).run = RunState::Suspended);
    let policy = Violation::SuspendedByPolicy { guest: be0() };
    rejects(&policy, |case| {
        case.intent.partition.policy = PartitionPolicy::Energy;
        be(case).run = RunState::Suspended;
    });
}

/// The best-effort guest on the cores of the latency-critical one: no other is left.
fn share(case: &mut Case) {
    case.intent.partition.policy = PartitionPolicy::Energy;
    case.plan.groups.vcpu = set("1-4,7-10");
    case.plan.groups.best_effort = CpuSet::EMPTY;
    case.plan.groups.idle = CpuSet::EMPTY;
    let shared = case.plan.groups.vcpu;
    lc(case).vcpu_cpus = shared;
    lc(case).emulator_cpus = shared;
    let be = be(case);
    be.vcpu_cpus = shared;
    be.vhost_cpus = shared;
    be.emulator_cpus = shared;
    be.weight = CpuWeight::Idle;
}

#[test]
fn accepts_a_guest_that_yields_where_it_shares() {
    let mut case = good();
    share(&mut case);
    assert_eq!(case.check(), []);
    case.intent.partition.best_effort = SharedCores::Weight(7);
    be(&mut case).weight = CpuWeight::Weight(7);
    assert_eq!(case.check(), []);
    case.intent.partition.best_effort = SharedCores::Equal;
    be(&mut case).weight = CpuWeight::Untouched;
    assert_eq!(case.check(), []);
    // And where the host has no weights, there is nothing to ask.
    case.intent.partition.best_effort = SharedCores::Idle;
    case.facts.capabilities = vec![Capability {
        name: "cpu-weight".into(),
        missing: Some("no cpu controller".into()),
    }];
    assert_eq!(case.check(), []);
}

#[test]
fn rejects_weights_of_latency_critical_guests() {
    for weight in [
        CpuWeight::Idle,
        CpuWeight::Weight(99),
        CpuWeight::Weight(200),
        CpuWeight::AsFound,
    ] {
        let weighed = Violation::Weighed {
            guest: lc0(),
            class: Class::LatencyCritical,
            weight,
        };
        rejects(&weighed, |case| lc(case).weight = weight);
        rejects(&weighed, |case| {
            share(case);
            lc(case).weight = weight;
        });
    }
}

#[test]
fn rejects_weights_out_of_bounds() {
    for weight in [0, 100, 10_001, u32::MAX] {
        let bounds = Violation::WeightBounds {
            guest: be0(),
            weight,
        };
        rejects(&bounds, |case| {
            share(case);
            case.intent.partition.best_effort = SharedCores::Weight(weight);
            be(case).weight = CpuWeight::Weight(weight);
        });
    }
}

#[test]
fn rejects_a_guest_that_yields_where_it_need_not_or_does_not_where_it_must() {
    let needless = Violation::WeighedNeedlessly { guest: be0() };
    rejects(&needless, |case| be(case).weight = CpuWeight::Idle);
    let not = |cpus| Violation::NotWeighed {
        guest: be0(),
        cpus: set(cpus),
    };
    for weight in [CpuWeight::Untouched, CpuWeight::AsFound] {
        rejects(&not("1-4,7-10"), |case| {
            share(case);
            be(case).weight = weight;
        });
    }
    // A single worker on a single core of theirs is enough.
    rejects(&not("5"), |case| be(case).vhost_cpus = set("3,5,9"));
}

#[test]
fn leftovers_are_for_who_is_idle_and_has_cores_of_its_own() {
    // Cores without siblings, and a best-effort guest that has what is left of the vCPUs' besides its own.
    let mut case = good();
    for cpu in &mut case.facts.topology.cpus {
        cpu.core = cpu.id;
    }
    let everywhere = set("1-3,5,7-9");
    let guest = be(&mut case);
    guest.vcpu_cpus = everywhere;
    guest.vhost_cpus = everywhere;
    guest.emulator_cpus = everywhere;
    guest.weight = CpuWeight::Idle;
    assert_eq!(case.check(), []);
    let trespass = Violation::Trespass {
        what: Holder::Vcpus(be0()),
        cpus: set("1-2,5,7-8"),
    };
    let found = |change: &dyn Fn(&mut Case)| {
        let mut case = case.clone();
        change(&mut case);
        case.check()
    };
    let wrong: [&dyn Fn(&mut Case); 5] = [
        &|case| be(case).weight = CpuWeight::AsFound,
        &|case| case.intent.partition.leftovers = false,
        &|case| case.facts.topology.cpus[7].core = CpuId(1),
        &|case| case.intent.partition.policy = PartitionPolicy::Energy,
        &|case| case.intent.partition.best_effort = SharedCores::Weight(1),
    ];
    for (at, change) in wrong.into_iter().enumerate() {
        let found = found(change);
        // With another weight it may be there, if the weight were the one asked for: then it is the weight that is wrong.
        let named = found.contains(&trespass)
            || found
                .iter()
                .any(|one| matches!(one, Violation::WeighedUnasked { .. }));
        assert!(named, "{at}: {found:?}");
    }
    // The queues' cores are shared only where what yields is counted, the vCPUs' in any case.
    let queues = found(&|case| case.snapshot.cpus[3].yielding = None);
    assert!(
        queues.contains(&Violation::Trespass {
            what: Holder::Vhost(be0()),
            cpus: set("5"),
        }),
        "{queues:?}"
    );
}

#[test]
fn rejects_weights_that_nobody_asked_for() {
    let unasked = |weight, expected| Violation::WeighedUnasked {
        guest: be0(),
        weight,
        expected,
    };
    rejects(&unasked(CpuWeight::Weight(7), CpuWeight::Idle), |case| {
        share(case);
        be(case).weight = CpuWeight::Weight(7);
    });
    rejects(&unasked(CpuWeight::AsFound, CpuWeight::Untouched), |case| {
        case.intent.partition.best_effort = SharedCores::Equal;
    });
    let queues = QueueCount::One;
    for policy in [
        PartitionPolicy::TimeSharing { queues },
        PartitionPolicy::Static { vcpu: 4, nq: 1 },
        PartitionPolicy::CoreNap,
        PartitionPolicy::Demeter { queues },
    ] {
        rejects(&unasked(CpuWeight::Idle, CpuWeight::Untouched), |case| {
            share(case);
            case.intent.partition.policy = policy;
        });
    }
}

#[test]
fn rejects_asking_agents_for_what_they_cannot_do() {
    let vcpus = |asked| Violation::VcpusAsked {
        guest: lc0(),
        asked,
        most: 4,
    };
    rejects(&vcpus(5), |case| lc(case).vcpus_active = Some(5));
    rejects(&vcpus(0), |case| lc(case).vcpus_active = Some(0));
    let queues = |asked| Violation::QueuesAsked {
        guest: lc0(),
        asked,
        most: 2,
    };
    rejects(&queues(3), |case| lc(case).queues = Some(3));
    rejects(&queues(0), |case| lc(case).queues = Some(0));
    let nobody = Violation::NobodyToAsk { guest: lc0() };
    rejects(&nobody, |case| case.snapshot.guests[1].agent = None);
    rejects(&nobody, |case| {
        case.snapshot.guests[1].agent.as_mut().unwrap().health = AgentHealth::Silent;
    });
}

#[test]
fn rejects_nics_out_of_bounds() {
    let unknown = Violation::UnknownNic { nic: eth0() };
    rejects(&unknown, |case| case.snapshot.nics.clear());
    rejects(&unknown, |case| case.intent.nics.clear());
    rejects(&unknown, |case| {
        let twice = case.plan.nics[0].clone();
        case.plan.nics.push(twice);
    });
    rejects(&Violation::MissingNic { nic: eth0() }, |case| {
        case.plan.nics.clear();
    });
    let queues = |queues| Violation::NicQueues {
        nic: eth0(),
        queues,
        most: 4,
    };
    rejects(&queues(5), |case| case.plan.nics[0].queues = 5);
    rejects(&queues(0), |case| case.plan.nics[0].queues = 0);
    let fixed = Violation::NicQueuesFixed {
        nic: eth0(),
        from: 1,
        to: 2,
    };
    rejects(&fixed, |case| case.facts.nics[0].rss_settable = false);
}

#[test]
fn rejects_interrupts_and_steering_elsewhere() {
    let missing = Violation::NicIrqs {
        nic: eth0(),
        irq: IrqId(41),
    };
    rejects(&missing, |case| {
        case.plan.nics[0].irqs.pop();
    });
    rejects(&missing, |case| {
        case.snapshot.nics[0].irqs.pop();
    });
    let elsewhere = |cpus| Violation::IrqElsewhere {
        nic: eth0(),
        irq: IrqId(40),
        cpus,
    };
    rejects(&elsewhere(set("1")), |case| {
        case.plan.nics[0].irqs[0].cpus = set("1");
    });
    rejects(&elsewhere(CpuSet::EMPTY), |case| {
        case.plan.nics[0].irqs[0].cpus = CpuSet::EMPTY;
    });
    // Where rings have vectors of their own, these are held as the others.
    let of_sends = |case: &mut Case| {
        sends(case);
        case.plan.nics[0]
            .irqs
            .last_mut()
            .expect("it was added")
            .cpus = set("1");
    };
    let elsewhere = Violation::IrqElsewhere {
        nic: eth0(),
        irq: IrqId(43),
        cpus: set("1"),
    };
    rejects(&elsewhere, of_sends);
    let other = Violation::NicIrqs {
        nic: eth0(),
        irq: IrqId(43),
    };
    rejects(&other, |case| {
        sends(case);
        case.plan.nics[0].irqs[3].ring = Ring::Receive;
    });
    let entries = |what| Violation::SteeringEntries {
        nic: eth0(),
        what,
        entries: 5,
        most: 4,
    };
    rejects(&entries("XPS"), |case| {
        case.plan.nics[0].xps.resize(5, CpuSet::EMPTY);
    });
    rejects(&entries("RPS"), |case| {
        case.plan.nics[0].rps.resize(5, CpuSet::EMPTY);
    });
    let sends = Violation::SteeringElsewhere {
        nic: eth0(),
        what: "XPS",
        queue: 1,
        cpus: set("12"),
    };
    rejects(&sends, |case| {
        case.plan.nics[0].xps[1] = set("6-12");
    });
    let receives = Violation::SteeringElsewhere {
        nic: eth0(),
        what: "RPS",
        queue: 0,
        cpus: set("1"),
    };
    rejects(&receives, |case| {
        case.plan.nics[0].rps[0] = set("1,5");
    });
    let unused = Violation::SendsByUnusedQueue {
        nic: eth0(),
        queue: 2,
    };
    rejects(&unused, |case| case.plan.nics[0].xps.push(set("3")));
}

/// A random bit flipped in a random CPU set of the good plan.
fn flip(plan: &mut Plan, which: usize, cpu: CpuId) {
    let sets = [
        &mut plan.groups.vcpu,
        &mut plan.groups.nq,
        &mut plan.groups.best_effort,
        &mut plan.groups.idle,
        &mut plan.groups.reserved,
    ];
    let set = sets.into_iter().nth(which).unwrap();
    if !set.remove(cpu) {
        set.insert(cpu);
    }
}

proptest! {
    #[test]
    fn no_single_core_can_be_wrong_in_the_ledger(which in 0..5_usize, cpu in 0..16_u32) {
        let mut case = good();
        flip(&mut case.plan, which, CpuId(cpu));
        prop_assert!(!case.check().is_empty());
    }

    #[test]
    fn violations_name_what_they_are_about(which in 0..4_usize, cpu in 12..1024_u32) {
        let mut case = good();
        flip(&mut case.plan, which, CpuId(cpu));
        let found = case.check();
        let expected = Violation::NotManaged { what: Holder::Group(Group::Vcpu), cpus: CpuSet::EMPTY };
        let text = found
            .iter()
            .find(|violation| discriminant(*violation) == discriminant(&expected))
            .map(ToString::to_string);
        prop_assert!(text.is_some_and(|text| text.contains(&cpu.to_string())));
    }
}
