//! Each rule of hints is shown to fire: good hints, one thing made wrong, and the violation that names it.

use std::mem::discriminant;

use ostler_check::{HintsViolation, check_hints};
use ostler_model::{
    Cpu, CpuId, CpuSet, GuestHints, GuestId, HintsGuest, HintsPlan, HintsScene, HintsSettings,
    HintsVcpu, LoadDegree, LoadThreshold, Nanos, NodeId, PinDecision, PinVerdict, Topology,
    VcpuHint, VirtualGroup,
};

fn good() -> HintsPlan {
    let row = |core, group, load| VcpuHint {
        group: Some(VirtualGroup(group)),
        core: Some(core),
        load,
    };
    let pin = |vcpu, charged, since| PinDecision {
        guest: GuestId::from("a"),
        vcpu,
        verdict: PinVerdict::Granted {
            cpus: CpuSet::range(0, 2),
            charged: CpuId(charged),
            since: Nanos(since),
        },
    };
    HintsPlan {
        threshold: LoadThreshold { vcpus: 8, cpus: 4 },
        guests: vec![GuestHints {
            guest: GuestId::from("a"),
            since: Nanos(100),
            groups: 4,
            vcpus: vec![
                row(0, 3, LoadDegree::Low),
                row(1, 3, LoadDegree::High),
                row(2, 1, LoadDegree::High),
                // Of two there one is its own.
                row(3, 1, LoadDegree::Low),
                row(3, 1, LoadDegree::Low),
            ],
        }],
        pins: vec![pin(0, 0, 100), pin(1, 1, 80)],
    }
}

/// What is found wrong with good hints after a change.
fn after(change: impl FnOnce(&mut HintsPlan, &mut Option<HintsPlan>)) -> Vec<HintsViolation> {
    let cpu = |id: u32| Cpu {
        id: CpuId(id),
        node: NodeId(0),
        core: CpuId(id),
        cache_group: CpuId(id / 2 * 2),
    };
    let topology = Topology {
        cpus: (0..4).map(cpu).collect(),
    };
    let vcpu = |cpu, pin, runnable| HintsVcpu {
        cpu: Some(CpuId(cpu)),
        pin,
        runnable,
    };
    let (a, b) = (GuestId::from("a"), GuestId::from("b"));
    let vcpus = [
        vcpu(0, true, false),
        vcpu(1, true, false),
        vcpu(2, false, false),
        vcpu(3, false, false),
        vcpu(3, false, true),
    ];
    let granted = CpuSet::range(0, 3);
    let guest = |guest, opted_in| HintsGuest {
        guest,
        opted_in,
        granted: &granted,
        placed: false,
        vcpus: &vcpus,
    };
    let guests = [guest(&a, true), guest(&b, false)];
    let scene = HintsScene {
        topology: &topology,
        runnable: &[1, 2, 2, 2],
        guests: &guests,
    };
    let settings = HintsSettings {
        interval: Nanos(10),
        grants_max: 1,
        pins_per_core_max: 1,
        key: [0; 32],
    };
    let (mut plan, mut previous) = (good(), None);
    change(&mut plan, &mut previous);
    check_hints(&scene, &settings, previous.as_ref(), &plan, Nanos(100))
}

fn breaks(change: impl FnOnce(&mut HintsPlan, &mut Option<HintsPlan>), expected: &HintsViolation) {
    let found = after(change);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(discriminant(&found[0]), discriminant(expected), "{found:?}");
}

fn granted(plan: &mut HintsPlan, at: usize, new: (CpuSet, u32, u64)) {
    plan.pins[at].verdict = PinVerdict::Granted {
        cpus: new.0,
        charged: CpuId(new.1),
        since: Nanos(new.2),
    };
}

#[test]
fn good_hints_are_found_good() {
    assert_eq!(after(|_, _| ()), []);
}

#[test]
fn each_rule_fires() {
    let id = || GuestId::from("a");
    let pin = |vcpu| (id(), vcpu);
    let beyond = |vcpu| HintsViolation::PinBeyond {
        guest: id(),
        vcpu,
        cpus: CpuSet::EMPTY,
    };
    breaks(|plan, _| plan.pins.reverse(), &HintsViolation::Order(id()));
    breaks(
        |plan, _| plan.guests[0].guest = GuestId::from("b"),
        &HintsViolation::Unasked(id()),
    );
    breaks(
        |plan, _| plan.guests[0].groups = 3,
        &HintsViolation::Bounds(id()),
    );
    breaks(
        |plan, _| plan.guests[0].groups = 257,
        &HintsViolation::Bounds(id()),
    );
    // Two groups with one number, and one group with two.
    for (row, group) in [(2, 3), (1, 2)] {
        breaks(
            |plan, _| plan.guests[0].vcpus[row].group = Some(VirtualGroup(group)),
            &HintsViolation::Numbering(id()),
        );
    }
    breaks(
        |plan, _| plan.guests[0].vcpus[1].load = LoadDegree::Low,
        &HintsViolation::Load {
            guest: id(),
            vcpu: 1,
        },
    );
    // One that its own vCPU is made out to keep busy.
    breaks(
        |plan, _| plan.guests[0].vcpus[4].load = LoadDegree::High,
        &HintsViolation::Load {
            guest: id(),
            vcpu: 4,
        },
    );
    for (vcpu, core) in [(4, Some(4)), (2, Some(1)), (1, None)] {
        breaks(
            |plan, _| plan.guests[0].vcpus[vcpu].core = core,
            &HintsViolation::Core { guest: id(), vcpu },
        );
    }
    breaks(
        |plan, previous| {
            let mut last = plan.clone();
            last.guests[0].since = Nanos(91);
            *previous = Some(last);
        },
        &HintsViolation::TooSoon(id()),
    );
    breaks(
        |plan, _| plan.guests[0].since = Nanos(99),
        &HintsViolation::TooSoon(id()),
    );
    let (guest, vcpu) = pin(2);
    breaks(
        |plan, _| plan.pins[1].vcpu = 2,
        &HintsViolation::PinUnasked { guest, vcpu },
    );
    // Beyond what was granted, beyond the group, and charged elsewhere.
    for new in [
        (CpuSet::range(2, 4), 2, 80),
        (CpuSet::range(1, 3), 1, 80),
        (CpuSet::range(0, 2), 2, 80),
    ] {
        breaks(|plan, _| granted(plan, 1, new), &beyond(1));
    }
    breaks(
        |plan, _| granted(plan, 1, (CpuSet::range(0, 2), 0, 80)),
        &HintsViolation::Overcharged {
            cpu: CpuId(0),
            pins: 2,
        },
    );
    breaks(
        |plan, _| granted(plan, 1, (CpuSet::range(0, 2), 1, 91)),
        &HintsViolation::PinRate {
            guest: id(),
            pins: 2,
        },
    );
}
