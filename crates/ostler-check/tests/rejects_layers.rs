//! Each rule on the layers' sections is shown to fire: a good plan, one thing made wrong, and the violation that names it.

mod support;

use std::sync::Arc;

use ostler_check::{HintsViolation, Holder, Violation};
use ostler_model::{
    Bytes, CpuId, FilesPlan, FilesView, FilesWish, GuestFiles, GuestHints, GuestWishes,
    HintsIntent, HintsPlan, HintsVcpu, IrqId, Layer, LoadDegree, LoadThreshold, MemoryNode, Nanos,
    NodeId, NodeView, PartitionPolicy, PinDecision, PinVerdict, PlacementPlan, PlacementSettings,
    QueueCore, RunnableView, SizingSettings, ThreadCore, VcpuHint, VirtualGroup,
};
use support::{Case, eth0, good, lc, lc0, rejects, sends, set};

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
        sends(case);
        place(case);
        case.plan.nics[0].irqs[3].cpus = set("5");
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

/// Has the guest shown that its first vCPU is on core 1, which waits, and the second kept there as it asks.
fn hint(case: &mut Case) -> &mut HintsPlan {
    case.intent.hints = Some(HintsIntent::default());
    case.intent.guests[0].terms.hints = true;
    lc(case).vcpu_pins.clear();
    case.snapshot.runnable = vec![RunnableView {
        cpu: CpuId(1),
        vcpus: 9,
    }];
    let vcpu = |pin| HintsVcpu {
        cpu: Some(CpuId(1)),
        pin,
        runnable: false,
    };
    case.snapshot.wishes = vec![GuestWishes {
        guest: lc0(),
        vcpus: [false, true, false, false].map(vcpu).to_vec(),
        age: Nanos::ZERO,
    }];
    let row = VcpuHint {
        group: Some(VirtualGroup(1)),
        core: Some(0),
        load: LoadDegree::High,
    };
    let at = case.plan.at;
    let hints = case.plan.hints.insert(Arc::new(HintsPlan {
        threshold: LoadThreshold { vcpus: 7, cpus: 12 },
        guests: vec![GuestHints {
            guest: lc0(),
            since: at,
            groups: 2,
            vcpus: vec![row; 4],
        }],
        pins: vec![PinDecision {
            guest: lc0(),
            vcpu: 1,
            verdict: PinVerdict::Granted {
                cpus: set("1-2,7-8"),
                charged: CpuId(1),
                since: at,
            },
        }],
    }));
    Arc::make_mut(hints)
}

#[test]
fn accepts_hints_within_what_was_given() {
    let mut case = good();
    hint(&mut case);
    assert_eq!(case.check(), []);
}

#[test]
fn rejects_hints_beyond_what_was_given() {
    rejects(
        &Violation::Unasked {
            layer: Layer::Hints,
        },
        |case| {
            hint(case);
            case.intent.hints = None;
        },
    );
    let broken = |rule, mutate: fn(&mut Case)| rejects(&Violation::Hints(rule), mutate);
    let vcpu = || (lc0(), 1);
    // Its rule doesn't opt it in; it isn't there; another's is shown.
    broken(HintsViolation::Unasked(lc0()), |case| {
        hint(case);
        case.intent.guests[0].terms.hints = false;
    });
    broken(HintsViolation::Unasked("other0".into()), |case| {
        hint(case).guests[0].guest = "other0".into();
    });
    // Cores of the queues, which are in the same cache group; and cores that a plan took from it.
    let (guest, vcpu_at) = vcpu();
    broken(
        HintsViolation::PinBeyond {
            guest,
            vcpu: vcpu_at,
            cpus: set("1-2,5"),
        },
        |case| {
            hint(case).pins[0].verdict = PinVerdict::Granted {
                cpus: set("1-2,5"),
                charged: CpuId(1),
                since: Nanos::from_millis(800),
            };
        },
    );
    let (guest, vcpu_at) = vcpu();
    broken(
        HintsViolation::PinBeyond {
            guest,
            vcpu: vcpu_at,
            cpus: set("1-2,7-8"),
        },
        |case| {
            hint(case);
            lc(case).vcpu_cpus = set("1,7");
        },
    );
    // An affinity with two owners.
    let (guest, vcpu_at) = vcpu();
    broken(
        HintsViolation::PinTwice {
            guest,
            vcpu: vcpu_at,
        },
        |case| {
            hint(case);
            lc(case).vcpu_pins = [1, 7, 2, 8].map(CpuId).to_vec();
        },
    );
    // A guest's word that is too old, or of other vCPUs, is none.
    let (guest, vcpu_at) = vcpu();
    broken(
        HintsViolation::PinUnasked {
            guest,
            vcpu: vcpu_at,
        },
        |case| {
            hint(case);
            case.snapshot.wishes[0].age = Nanos::from_secs(60);
        },
    );
    // That a core is idle of which nobody knows.
    broken(
        HintsViolation::Load {
            guest: lc0(),
            vcpu: 3,
        },
        |case| {
            hint(case).guests[0].vcpus[3].load = LoadDegree::Low;
            case.snapshot.runnable.clear();
        },
    );
}

/// Has 3 GiB for each guest's files, of which 2 are the least, of a budget of 8; each had 2, and 4 were free.
fn size(case: &mut Case) -> &mut FilesPlan {
    case.intent.sizing = Some(SizingSettings {
        budget: gib(8),
        ..SizingSettings::default()
    });
    for rule in &mut case.intent.guests {
        rule.terms.files = Some(FilesWish {
            response: Nanos::from_secs(1),
            least: gib(2),
            most: gib(5),
            service: Vec::new(),
        });
    }
    case.facts.memory.nodes = [(0, false), (1, true)]
        .map(|(node, far)| MemoryNode {
            node: NodeId(node),
            bytes: gib(64),
            far,
            latency: None,
            bytes_per_s: None,
        })
        .to_vec();
    let node = |node, free| NodeView {
        node: NodeId(node),
        free: gib(free),
        age: Nanos::ZERO,
    };
    // Far memory is of no use for them.
    case.snapshot.nodes = vec![node(0, 4), node(1, 60)];
    let ids = ["be0", "lc0"];
    let view = |guest: &str| FilesView {
        guest: guest.into(),
        bytes: gib(2),
        response: None,
        arrivals_per_s: 1.0,
        age: Nanos::ZERO,
    };
    case.snapshot.files = ids.map(view).to_vec();
    let given = |guest: &str| GuestFiles {
        guest: guest.into(),
        wish: gib(4),
        bytes: gib(3),
    };
    let files = case.plan.files.insert(Arc::new(FilesPlan {
        since: case.plan.at,
        budget: gib(8),
        guests: ids.map(given).to_vec(),
    }));
    Arc::make_mut(files)
}

const fn gib(count: u64) -> Bytes {
    Bytes(count << 30)
}

#[test]
fn accepts_files_within_the_budget() {
    let mut case = good();
    size(&mut case);
    assert_eq!(case.check(), []);
    // All that is free, and what was given before though it isn't free any more.
    size(&mut case).guests[1].bytes = gib(4);
    case.snapshot.nodes[0].free = gib(3);
    assert_eq!(case.check(), []);
    let before = case.plan.files.clone();
    case.previous.as_mut().unwrap().files = before;
    case.snapshot.nodes[0].free = gib(0);
    assert_eq!(case.check(), []);
}

#[test]
fn rejects_files_beyond_what_there_is() {
    let layer = Layer::Sizing;
    rejects(&Violation::Unasked { layer }, |case| {
        size(case);
        case.intent.sizing = None;
    });
    rejects(&Violation::Since { layer }, |case| {
        size(case).since = Nanos(u64::MAX);
    });
    rejects(&Violation::Twice { layer }, |case| {
        size(case).guests.reverse();
    });
    let nobody = |guest: &str| Violation::NobodysFiles {
        guest: guest.into(),
    };
    rejects(&nobody("other0"), |case| {
        size(case).guests[1].guest = "other0".into();
    });
    rejects(&nobody("lc0"), |case| {
        size(case);
        case.intent.guests[0].terms.files = None;
    });
    let beyond = |bytes, most| Violation::FilesBeyond {
        guest: lc0(),
        bytes: gib(bytes),
        most: gib(most),
    };
    rejects(&beyond(5, 4), |case| size(case).guests[1].bytes = gib(5));
    rejects(&beyond(3, 5), |case| size(case).guests[1].wish = gib(6));
    let budget = |bytes: u64, budget| Violation::Budget {
        layer,
        bytes: u128::from(gib(bytes).0),
        budget: gib(budget),
    };
    rejects(&budget(6, 5), |case| size(case).budget = gib(5));
    rejects(&budget(6, 8), |case| size(case).budget = gib(9));
    rejects(&budget(6, 5), |case| {
        size(case);
        case.intent.sizing.as_mut().unwrap().budget = gib(5);
    });
    rejects(
        &Violation::NotFree {
            layer,
            bytes: u128::from(gib(2).0),
            free: u128::from(gib(1).0),
        },
        |case| {
            size(case);
            case.snapshot.nodes[0].free = gib(1);
        },
    );
    // The other's least comes first; and memory that was given before doesn't when more is given now.
    rejects(
        &Violation::LeastLast {
            guest: "be0".into(),
            before: lc0(),
        },
        |case| size(case).guests[0].bytes = gib(1),
    );
    rejects(
        &Violation::NotFree {
            layer,
            bytes: u128::from(gib(2).0),
            free: 0,
        },
        |case| {
            let mut before = size(case).clone();
            before.guests[1].bytes = gib(2);
            case.previous.as_mut().unwrap().files = Some(Arc::new(before));
            case.snapshot.nodes[0].free = gib(0);
        },
    );
}
