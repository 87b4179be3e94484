//! Tiered memory against a ledger of its own: nothing is lost, nothing is anywhere twice, moves take their time, and far memory costs what it must.

use std::collections::BTreeMap;

use ostler_model::{GuestId, Nanos};
use ostler_sim::memory::{Allocation, CLASSES, Memory, Move, Node};
use ostler_sim::random::Stream;
use ostler_sim::work::FULL_SPEED;
use proptest::prelude::*;

const GIB: u64 = 1 << 30;

fn host(local: u64, far: u64) -> Memory {
    let node = |bytes, local, latency_ns, bytes_per_s| Node {
        bytes,
        local,
        latency_ns,
        bytes_per_s,
    };
    let nodes = vec![
        node(local, true, 100.0, 100e9),
        node(far, false, 250.0, 25e9),
    ];
    Memory::new(nodes, 1e9)
}

fn id(number: u64) -> GuestId {
    GuestId::from(format!("guest-{number}").as_str())
}

#[derive(Clone, Debug)]
enum Does {
    Give(u64, [u64; CLASSES], u8),
    Leave(u64),
    Heat(u64, u64, u64),
    Order(u64, usize, usize, usize, u64),
    Pass(u64),
    Hold(u64),
    Shift(u64, usize, u64),
}

fn does() -> impl Strategy<Value = Does> {
    prop_oneof![
        (0..6_u64, [0..GIB, 0..GIB, 0..GIB], 0..3_u8)
            .prop_map(|(guest, bytes, by)| Does::Give(guest, bytes, by)),
        (0..6_u64).prop_map(Does::Leave),
        (0..6_u64, 0..4 * GIB, 0..4 * GIB)
            .prop_map(|(guest, hot, warm)| Does::Heat(guest, hot, warm)),
        (0..7_u64, 0..CLASSES, 0..3_usize, 0..3_usize, 0..2 * GIB)
            .prop_map(|(guest, class, from, to, bytes)| Does::Order(guest, class, from, to, bytes)),
        (0..3_000_u64).prop_map(Does::Pass),
        (0..5 * GIB).prop_map(Does::Hold),
        (0..7_u64, 0..3_usize, 0..4 * GIB)
            .prop_map(|(guest, to, bytes)| Does::Shift(guest, to, bytes)),
    ]
}

proptest! {
    /// The checker knows only what guests were given: that is what they have, no node has more than there is, and no more moves than time and rate allow.
    #[test]
    fn memory_is_conserved(steps in proptest::collection::vec(does(), 0..60)) {
        let mut memory = host(8 * GIB, 6 * GIB);
        let mut draw = Stream::new(1, "test", 0);
        let mut given: BTreeMap<GuestId, u64> = BTreeMap::new();
        let (mut ordered, mut time) = (0_u64, 0_u64);
        let mut held = 0;
        for step in steps {
            match step {
                Does::Give(guest, bytes, by) => {
                    let by = [Allocation::LocalFirst, Allocation::Split(0.6), Allocation::Unaware][usize::from(by)];
                    let sum: u64 = bytes.iter().sum();
                    let free = 14 * GIB - given.values().sum::<u64>() - held;
                    let had = memory.give(&id(guest), bytes, by, &mut draw);
                    prop_assert_eq!(had.is_ok(), sum <= free);
                    if had.is_ok() {
                        *given.entry(id(guest)).or_default() += sum;
                    }
                }
                Does::Leave(guest) => {
                    memory.take_away(&id(guest));
                    given.remove(&id(guest));
                }
                Does::Heat(guest, hot, warm) => {
                    memory.heats(&id(guest), hot, warm);
                    if let Some(guest) = memory.guest(&id(guest)) {
                        prop_assert_eq!(guest.of(0), hot.min(guest.bytes()));
                        prop_assert_eq!(guest.of(1), warm.min(guest.bytes() - guest.of(0)));
                    }
                }
                Does::Order(guest, class, from, to, bytes) => {
                    ordered += bytes;
                    memory.order([Move { guest: id(guest), class, from, to, bytes }]);
                }
                Does::Hold(bytes) => {
                    held = bytes.min(14 * GIB - given.values().sum::<u64>());
                    memory.hold(bytes);
                }
                Does::Shift(guest, to, bytes) => {
                    // No more than is there and isn't on its way already.
                    let from = 1 - to.min(1);
                    let there = memory.guest(&id(guest)).map_or(0, |guest| guest.on(from));
                    let before = memory.under_way();
                    memory.shift(&id(guest), from, to, bytes);
                    let more = memory.under_way() - before;
                    prop_assert!(more <= bytes.min(there));
                    prop_assert!(to < 2 || more == 0, "there is no such node");
                    ordered += more;
                }
                Does::Pass(millis) => {
                    time += millis;
                    memory.pass(Nanos::from_millis(millis));
                }
            }
            prop_assert_eq!(memory.guests().len(), given.len());
            for (guest, bytes) in &given {
                prop_assert_eq!(memory.guest(guest).map(ostler_sim::memory::Guest::bytes), Some(*bytes));
            }
            let free: u64 = (0..2).map(|node| memory.free(node)).sum();
            prop_assert_eq!(free, 14 * GIB - given.values().sum::<u64>() - held);
            for (node, size) in [8 * GIB, 6 * GIB].into_iter().enumerate() {
                let on: u64 = memory.guests().iter().map(|guest| guest.on(node)).sum();
                prop_assert!(on + memory.free(node) <= size);
                prop_assert!(held > 0 || memory.free(node) == size - on);
                prop_assert!((0.0..=0.95).contains(&memory.used(node)));
            }
            prop_assert_eq!(ordered, memory.moved + memory.dropped + memory.under_way());
            prop_assert!(memory.moved <= time * 1_000_000 + 1, "faster than the mover");
            prop_assert!(given.keys().all(|guest| memory.slowdown(guest) >= FULL_SPEED));
        }
    }
}

#[test]
fn moves_take_their_time_and_get_in_the_way() {
    let mut memory = host(8 * GIB, 8 * GIB);
    let mut draw = Stream::new(1, "test", 0);
    memory
        .give(&id(1), [4 * GIB, 0, 0], Allocation::Split(0.0), &mut draw)
        .expect("there is room");
    memory.presses(&id(1), 1e7, 1e7);
    let far = memory.slowdown(&id(1));
    // 10 million misses a second of 250 ns each, over 100 ns, beside 2.56 % of its node's bandwidth.
    let expected = 1024.0 * (1.0 + 1e7 * (250.0 / (1.0 - 0.0256) - 100.0) / 1e9);
    assert!((f64::from(far) - expected).abs() < 2.0, "{far} {expected}");
    // Two after each other: together they move no faster than one.
    memory.order([600_000_000, 2_400_000_000].map(|bytes| Move {
        guest: id(1),
        class: 0,
        from: 1,
        to: 0,
        bytes,
    }));
    assert!(memory.slowdown(&id(1)) > far, "what moves is in the way");
    memory.pass(Nanos::from_secs(1));
    assert_eq!(
        memory.guest(&id(1)).expect("it is there").on(0),
        1_000_000_000
    );
    memory.pass(Nanos::from_secs(9));
    assert_eq!((memory.moved, memory.under_way()), (3_000_000_000, 0));
    assert!(memory.slowdown(&id(1)) < far, "it is nearer now");
}

/// Neighbours that press on the same node slow each other down.
#[test]
fn bandwidth_is_shared() {
    let mut memory = host(8 * GIB, 8 * GIB);
    let mut draw = Stream::new(1, "test", 0);
    for guest in 0..3 {
        memory
            .give(&id(guest), [GIB, 0, 0], Allocation::Split(0.0), &mut draw)
            .expect("there is room");
    }
    memory.presses(&id(0), 1e7, 1e7);
    let alone = memory.slowdown(&id(0));
    memory.presses(&id(1), 1e8, 1e7);
    let beside = memory.slowdown(&id(0));
    memory.presses(&id(2), 2e8, 1e7);
    assert!(alone < beside && beside < memory.slowdown(&id(0)));
}

/// What is hot counts: a guest whose cold memory is far is nearly as fast as one with all of it near.
#[test]
fn far_memory_that_is_cold_costs_little() {
    let mut memory = host(8 * GIB, 8 * GIB);
    let mut draw = Stream::new(1, "test", 0);
    memory
        .give(&id(1), [GIB, 0, 0], Allocation::LocalFirst, &mut draw)
        .expect("there is room");
    memory
        .give(&id(1), [0, 0, 3 * GIB], Allocation::Split(0.0), &mut draw)
        .expect("there is room");
    memory.presses(&id(1), 1e7, 1e7);
    let cold_far = memory.slowdown(&id(1));
    memory.heats(&id(1), 4 * GIB, 0);
    let hot_far = memory.slowdown(&id(1));
    assert!(cold_far < 1024 + 60, "{cold_far}");
    assert!(hot_far > 1024 + 1000, "{hot_far}");
}

#[test]
fn a_host_without_room_says_so() {
    let mut memory = host(GIB, GIB);
    let mut draw = Stream::new(1, "test", 0);
    let before = memory.give(&id(1), [3 * GIB, 0, 0], Allocation::LocalFirst, &mut draw);
    let error = before.expect_err("it is too much");
    assert!(error.to_string().contains("place it elsewhere"), "{error}");
    assert!(memory.guests().is_empty(), "nothing is given by halves");
}
