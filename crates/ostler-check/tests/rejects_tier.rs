//! Each rule on guests' local and far memory is shown to fire: a good plan, one thing made wrong, and the violation that names it.

mod support;

use std::sync::Arc;

use ostler_check::Violation;
use ostler_model::{
    Bytes, FilesPlan, FilesView, FilesWish, GuestFiles, GuestId, GuestMemory, GuestTier, Layer,
    MemoryClass, MemoryMove, MemoryNode, MemoryRange, Nanos, NodeBytes, NodeId, NodeView,
    RangeView, SizingSettings, TenantFloor, TierPlan, TierSettings,
};
use support::{Case, good, rejects};

const fn gib(count: u64) -> Bytes {
    Bytes(count << 30)
}

fn wide(bytes: Bytes) -> u128 {
    u128::from(bytes.0)
}

fn id(guest: &str) -> GuestId {
    guest.into()
}

const NEAR: NodeId = NodeId(0);
const FAR: NodeId = NodeId(1);

/// Of 32 GiB near be0, which uses them little, has 16 and lc0 8 of its 16; 8 are free, of which 2 are the host's. 6 GiB of lc0 come near, then 1 of be0 goes far and 1 more comes near.
fn moves(case: &mut Case) -> &mut TierPlan {
    case.intent.tier = Some(TierSettings {
        bytes_per_s: gib(8),
        reserve: gib(2),
        tenants: vec![TenantFloor {
            tenant: "batch".into(),
            local_min: gib(10),
        }],
        ..TierSettings::default()
    });
    let be = case.intent.guests.iter_mut();
    let be = be.into_iter().find(|rule| rule.slo.is_none()).unwrap();
    be.terms.tenant = Some("batch".into());
    be.terms.local_min = gib(4);
    let node = |node, far| MemoryNode {
        node,
        bytes: gib(32),
        far,
        latency: None,
        bytes_per_s: None,
    };
    case.facts.memory.nodes = vec![node(NEAR, false), node(FAR, true)];
    let free = |node, bytes| NodeView {
        node,
        free: bytes,
        age: Nanos::ZERO,
    };
    case.snapshot.nodes = vec![free(NEAR, gib(8)), free(FAR, gib(24))];
    let memory = |guest: &str, near, far| GuestMemory {
        guest: guest.into(),
        nodes: [(NEAR, near), (FAR, far)]
            .map(|(node, bytes)| NodeBytes { node, bytes })
            .to_vec(),
        hot: None,
        llc_misses_per_s: Some(0.0),
        io_interrupts_per_s: None,
        ranges: Vec::new(),
        age: Nanos::ZERO,
    };
    case.snapshot.memory = vec![
        memory("be0", gib(16), gib(0)),
        memory("lc0", gib(8), gib(8)),
    ];
    let given = |guest: &str, class, local, far| GuestTier {
        guest: guest.into(),
        class,
        local,
        far,
    };
    let moved = |guest: &str, from, to, bytes| MemoryMove {
        guest: guest.into(),
        from,
        to,
        bytes,
        ranges: Vec::new(),
    };
    let tier = case.plan.tier.insert(Arc::new(TierPlan {
        since: case.plan.at,
        peak: false,
        guests: vec![
            given("be0", MemoryClass::Rest, gib(14), gib(2)),
            given("lc0", MemoryClass::Memory, gib(16), gib(0)),
        ],
        moves: vec![
            moved("lc0", FAR, NEAR, gib(6)),
            moved("be0", NEAR, FAR, gib(1)),
            moved("lc0", FAR, NEAR, gib(1)),
        ],
    }));
    Arc::make_mut(tier)
}

#[test]
fn accepts_moves_that_fit() {
    let mut case = good();
    moves(&mut case);
    assert_eq!(case.check(), []);
    // While it is carried out it stands, whatever is free by then.
    let before = case.plan.tier.clone();
    case.previous.as_mut().unwrap().tier = before;
    case.plan.at = Nanos(case.plan.at.0 + 1);
    case.snapshot.at = case.plan.at;
    case.snapshot.nodes[0].free = gib(0);
    assert_eq!(case.check(), []);
}

#[test]
fn rejects_what_nobody_asked_for_or_is_out_of_order() {
    let layer = Layer::Tier;
    rejects(&Violation::Unasked { layer }, |case| {
        moves(case);
        case.intent.tier = None;
    });
    rejects(&Violation::Since { layer }, |case| {
        moves(case).since = Nanos(u64::MAX);
    });
    rejects(&Violation::Since { layer }, |case| {
        // Older than this plan, and not what stood before.
        let tier = moves(case);
        tier.since = Nanos(0);
        let mut before = tier.clone();
        before.moves.pop();
        case.previous.as_mut().unwrap().tier = Some(Arc::new(before));
    });
    rejects(&Violation::Twice { layer }, |case| {
        moves(case).guests.reverse();
    });
    rejects(&Violation::Peak { peak: true }, |case| {
        moves(case).peak = true;
    });
    rejects(&Violation::Peak { peak: false }, |case| {
        moves(case).guests[0].class = MemoryClass::Memory;
    });
}

#[test]
fn rejects_memory_that_is_nobodys_or_is_lost() {
    let nobody = |guest: &str| Violation::NobodysMemory { guest: id(guest) };
    rejects(&nobody("other0"), |case| {
        moves(case).guests[1].guest = id("other0");
    });
    rejects(&nobody("lc0"), |case| {
        moves(case);
        case.snapshot.memory.pop();
    });
    rejects(&nobody("lc0"), |case| {
        moves(case);
        case.snapshot.memory[1].age = Nanos::from_secs(100);
    });
    rejects(&nobody("gone0"), |case| {
        moves(case).moves[2].guest = id("gone0");
    });
    for far in [1, 3] {
        let lost = Violation::MemoryLost {
            guest: id("be0"),
            planned: wide(gib(14 + far)),
            seen: wide(gib(16)),
        };
        rejects(&lost, |case| moves(case).guests[0].far = gib(far));
    }
}

#[test]
fn rejects_moves_to_nowhere_or_beyond_what_is_to_be() {
    for (from, to) in [
        (NEAR, NEAR),
        (FAR, FAR),
        (NEAR, NodeId(7)),
        (NodeId(7), FAR),
    ] {
        let nowhere = Violation::MovesNowhere {
            guest: id("be0"),
            from,
            to,
        };
        rejects(&nowhere, |case| {
            let moved = &mut moves(case).moves[1];
            (moved.from, moved.to) = (from, to);
        });
    }
    let beyond = |guest: &str| Violation::MovesBeyond { guest: id(guest) };
    rejects(&beyond("be0"), |case| moves(case).moves[1].bytes = gib(3));
    rejects(&beyond("lc0"), |case| {
        let tier = moves(case);
        (tier.guests[1].local, tier.guests[1].far) = (gib(14), gib(2));
    });
    rejects(&beyond("be0"), |case| {
        let tier = moves(case);
        (tier.moves[0].guest, tier.moves[0].bytes) = (id("be0"), gib(1));
    });
    let layer = Layer::Tier;
    let budget = Violation::Budget {
        layer,
        bytes: wide(gib(8)),
        budget: gib(4),
    };
    rejects(&budget, |case| {
        moves(case);
        case.intent.tier.as_mut().unwrap().interval = Nanos::from_millis(500);
    });
}

#[test]
fn rejects_moves_to_where_there_is_no_room() {
    let full = |node, bytes: u64, free: u64| Violation::NodeFull {
        node,
        bytes: wide(gib(bytes)),
        free: wide(gib(free)),
    };
    rejects(&full(NEAR, 6, 5), |case| {
        moves(case);
        case.snapshot.nodes[0].free = gib(5);
    });
    // What came from there made room for 7 of be0's, but nobody knows of the node itself.
    rejects(&full(FAR, 1, 0), |case| {
        moves(case).moves.swap(0, 1);
        case.snapshot.nodes.pop();
    });
    let taken = |bytes: u64, free: u64| Violation::NotFree {
        layer: Layer::Tier,
        bytes: wide(gib(bytes)),
        free: wide(gib(free)),
    };
    rejects(&taken(9, 8), |case| {
        moves(case);
        case.intent.tier.as_mut().unwrap().reserve = gib(3);
    });
    // The room is made only afterwards.
    rejects(&taken(3, 2), |case| moves(case).moves.swap(1, 2));
    // Files grow by 2 GiB of the same room.
    rejects(&taken(10, 8), |case| {
        moves(case);
        case.intent.sizing = Some(SizingSettings {
            budget: gib(8),
            ..SizingSettings::default()
        });
        for rule in &mut case.intent.guests {
            rule.terms.files = Some(FilesWish {
                response: Nanos::from_secs(1),
                least: gib(1),
                most: gib(5),
                service: Vec::new(),
            });
        }
        case.snapshot.files = vec![FilesView {
            guest: id("lc0"),
            bytes: gib(1),
            response: None,
            arrivals_per_s: 1.0,
            age: Nanos::ZERO,
        }];
        case.plan.files = Some(Arc::new(FilesPlan {
            since: case.plan.at,
            budget: gib(8),
            guests: vec![GuestFiles {
                guest: id("lc0"),
                wish: gib(3),
                bytes: gib(3),
            }],
        }));
    });
}

#[test]
fn rejects_going_below_floors_and_out_of_line() {
    let broken = |whose: &str, floor: u64, left: u64| Violation::FloorBroken {
        whose: whose.into(),
        floor: wide(gib(floor)),
        left: wide(gib(left)),
    };
    rejects(&broken("be0", 16, 15), |case| {
        moves(case);
        let mut rules = case.intent.guests.iter_mut();
        let be = rules.find(|rule| rule.slo.is_none()).unwrap();
        be.terms.local_min = gib(20);
    });
    rejects(&broken("batch", 16, 15), |case| {
        moves(case);
        case.intent.tier.as_mut().unwrap().tenants[0].local_min = gib(20);
    });
    let line = Violation::OutOfLine {
        guest: id("be0"),
        keeps: id("lc0"),
    };
    rejects(&line, |case| {
        let tier = moves(case);
        tier.guests[0].class = MemoryClass::Memory;
        tier.guests[1].class = MemoryClass::Rest;
    });
    let peak = Violation::MovedAtPeak {
        bytes: wide(gib(1)),
        may: 0,
    };
    rejects(&peak, |case| {
        let tier = moves(case);
        tier.guests[0].class = MemoryClass::IoAndMemory;
        tier.peak = true;
    });
}

/// Of lc0's 16 GiB those from the 8th on are far; be0's are all near.
fn ranged(case: &mut Case) -> &mut TierPlan {
    moves(case);
    let view = |start, count, node| RangeView {
        range: MemoryRange {
            start: gib(start).0,
            bytes: gib(count),
        },
        node,
        hot: false,
    };
    case.snapshot.memory[0].ranges = vec![view(0, 16, NEAR)];
    case.snapshot.memory[1].ranges = vec![view(0, 8, NEAR), view(8, 4, FAR), view(12, 4, FAR)];
    let range = |start, count| MemoryRange {
        start: gib(start).0,
        bytes: gib(count),
    };
    let tier = Arc::make_mut(case.plan.tier.as_mut().unwrap());
    tier.moves[0].ranges = vec![range(8, 4), range(12, 2)];
    tier.moves[1].ranges = vec![range(3, 1)];
    tier.moves[2].ranges = vec![range(15, 1)];
    tier
}

#[test]
fn accepts_ranges_that_move_once() {
    let mut case = good();
    ranged(&mut case);
    assert_eq!(case.check(), []);
}

#[test]
fn rejects_ranges_that_move_twice_or_are_elsewhere() {
    let differ = |bytes: u64, ranges: u64| Violation::RangesDiffer {
        guest: id("lc0"),
        bytes: gib(bytes),
        ranges: wide(gib(ranges)),
    };
    rejects(&differ(6, 5), |case| {
        ranged(case).moves[0].ranges[1].bytes = gib(1);
    });
    rejects(&differ(1, 0), |case| ranged(case).moves[2].ranges.clear());
    rejects(&differ(1, 1), |case| {
        ranged(case);
        case.snapshot.memory[1].ranges.clear();
    });
    let twice = Violation::RangeTwice {
        guest: id("lc0"),
        start: gib(13).0,
    };
    rejects(&twice, |case| {
        ranged(case).moves[2].ranges[0].start = gib(13).0;
    });
    for start in [gib(7).0, gib(16).0, u64::MAX] {
        let elsewhere = Violation::RangeElsewhere {
            guest: id("lc0"),
            start,
        };
        rejects(&elsewhere, |case| {
            ranged(case).moves[2].ranges[0].start = start;
        });
    }
}
