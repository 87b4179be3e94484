//! Each rule on the layers' sections is shown to fire: a good plan, one thing made wrong, and the violation that names it.

mod support;

use std::sync::Arc;

use ostler_check::{Holder, Violation};
use ostler_model::{
    CpuId, IrqId, Layer, Nanos, PartitionPolicy, PlacementPlan, PlacementSettings, QueueCore,
    ThreadCore,
};
use support::{Case, eth0, good, lc, lc0, rejects, set};

/// Has queue 1, worker 0 and vCPU 2 placed where the good plan has them.
fn place(case: &mut Case) {
    case.intent.placement = Some(PlacementSettings {
        vcpus: true,
        ..PlacementSettings::default()
    });
    let thread = |at, cpu| ThreadCore {
        guest: lc0(),
        at,
        cpu: CpuId(cpu),
    };
    case.plan.placement = Some(Arc::new(PlacementPlan {
        since: case.plan.at,
        softirqs: vec![QueueCore {
            nic: eth0(),
            queue: 1,
            cpu: CpuId(11),
        }],
        workers: vec![thread(0, 5)],
        vcpus: vec![thread(2, 2)],
    }));
}

fn placed(case: &mut Case) -> &mut PlacementPlan {
    place(case);
    Arc::make_mut(case.plan.placement.as_mut().unwrap())
}

#[test]
fn accepts_a_placement_that_all_agree_on() {
    let mut case = good();
    place(&mut case);
    assert_eq!(case.check(), []);
}

#[test]
fn rejects_a_placement_that_nobody_asked_for() {
    let unasked = Violation::Unasked {
        layer: Layer::Placement,
    };
    rejects(&unasked, |case| {
        place(case);
        case.intent.placement = None;
    });
    rejects(&unasked, |case| {
        place(case);
        case.intent.partition.policy = PartitionPolicy::CoreNap;
    });
    rejects(&unasked, |case| {
        place(case);
        case.intent.placement.as_mut().unwrap().vcpus = false;
    });
    rejects(&unasked, |case| {
        place(case);
        case.plan.groups.shared = true;
    });
}

#[test]
fn rejects_a_placement_out_of_order_or_of_the_future() {
    let layer = Layer::Placement;
    rejects(&Violation::Since { layer }, |case| {
        placed(case).since = Nanos(u64::MAX);
    });
    for which in 0..3 {
        rejects(&Violation::Twice { layer }, |case| {
            let placed = placed(case);
            match which {
                0 => placed.softirqs.push(placed.softirqs[0].clone()),
                1 => placed.workers.push(placed.workers[0].clone()),
                _ => placed.vcpus.push(placed.vcpus[0].clone()),
            }
        });
    }
}

#[test]
fn rejects_placing_what_is_not_there() {
    for queue in [2, 9] {
        let nothing = Violation::PlacedNothing {
            what: Holder::Queue(eth0(), queue),
        };
        rejects(&nothing, |case| placed(case).softirqs[0].queue = queue);
    }
    rejects(
        &Violation::PlacedNothing {
            what: Holder::Queue("eth1".into(), 1),
        },
        |case| placed(case).softirqs[0].nic = "eth1".into(),
    );
    rejects(
        &Violation::PlacedNothing {
            what: Holder::Vhost(lc0()),
        },
        |case| placed(case).workers[0].at = 2,
    );
    rejects(
        &Violation::PlacedNothing {
            what: Holder::Vcpus(lc0()),
        },
        |case| {
            place(case);
            lc(case).vcpu_pins.clear();
        },
    );
    rejects(
        &Violation::PlacedNothing {
            what: Holder::Vhost("be0".into()),
        },
        |case| {
            placed(case).workers[0].guest = "be0".into();
            case.plan.guests[0].vhost_pins = vec![CpuId(3)];
        },
    );
}

#[test]
fn rejects_two_places_for_one_thing() {
    let two = |what, first: &str, second: &str| Violation::TwoPlaces {
        what,
        first: first.into(),
        second: second.into(),
    };
    let queue = || Holder::Queue(eth0(), 1);
    rejects(&two(queue(), "5", "11"), |case| {
        placed(case).softirqs[0].cpu = CpuId(5);
    });
    rejects(&two(queue(), "11", "5,11"), |case| {
        place(case);
        case.plan.nics[0].irqs[1].cpus = set("5,11");
    });
    rejects(&two(queue(), "11", "5"), |case| {
        place(case);
        case.plan.nics[0].rps[1] = set("5");
    });
    rejects(&two(Holder::Vhost(lc0()), "11", "5"), |case| {
        placed(case).workers[0].cpu = CpuId(11);
    });
    rejects(&two(Holder::Vcpus(lc0()), "1", "2"), |case| {
        placed(case).vcpus[0].cpu = CpuId(1);
    });
    rejects(&two(Holder::Irq(IrqId(40)), "5", "11"), |case| {
        case.plan.nics[0].irqs[1].irq = IrqId(40);
    });
}
