//! No core ever sees a line that another one has changed: checked on what the caches hold, after random accesses by one thread
//! and by many; and every access is served by what the textbook says.

mod common;

use common::Random;
use common::checker::check;
use common::reference::Reference;
use common::shape::{NODE_BYTES, Pool, Shape, Size};
use ostler_machine_memory::{Kind, Policy, System};
use proptest::prelude::*;

fn size() -> impl Strategy<Value = Size> {
    prop_oneof![
        Just((4, 4)),
        Just((8, 2)),
        Just((16, 1)),
        Just((16, 3)),
        Just((8, 4)),
        Just((2, 8)),
        Just((1, 16)),
    ]
}

fn shape() -> impl Strategy<Value = Shape> {
    let policy = prop_oneof![Just(Policy::Inclusive), Just(Policy::Victim)];
    let l3 = proptest::option::of((size(), policy));
    let pool = prop_oneof![
        Just(Pool::Absent),
        Just(Pool::Plain),
        size().prop_map(Pool::Filtered)
    ];
    (
        1_usize..3,
        1_usize..5,
        1_usize..5,
        size(),
        size(),
        size(),
        l3,
        pool,
    )
        .prop_map(
            |(sockets, cores, group_cores, l1i, l1d, l2, l3, pool)| Shape {
                sockets,
                cores,
                group_cores,
                l1i,
                l1d,
                l2,
                l3,
                pool,
            },
        )
}

/// An access to one of a few lines of some node.
fn access() -> impl Strategy<Value = (usize, Kind, u64)> {
    let kind = prop_oneof![
        1 => Just(Kind::Fetch),
        4 => Just(Kind::Load),
        3 => Just(Kind::Store),
        1 => Just(Kind::Atomic),
    ];
    // Four nodes: at times one more than there are. Few lines hit often, many evict often.
    let line = prop_oneof![3 => 0_u64..12, 1 => 0_u64..96];
    (0_usize..8, kind, 0_u64..4, line)
        .prop_map(|(core, kind, node, line)| (core, kind, node * NODE_BYTES + line * 64))
}

fn assert_coherent(system: &System) {
    let wrong = check(&system.contents(), |address| {
        system.node_of_address(address)
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn a_single_writer_or_many_readers_and_the_directory_knows_all(shape in shape(), stream in proptest::collection::vec(access(), 1..400)) {
        let system = shape.system();
        for (step, (core, kind, address)) in stream.into_iter().enumerate() {
            system.access(core % shape.count(), kind, address, || step as u64 * 1000);
            if step % 16 == 0 {
                assert_coherent(&system);
            }
        }
        assert_coherent(&system);
    }

    #[test]
    fn each_access_is_served_by_what_the_textbook_says(shape in shape(), stream in proptest::collection::vec(access(), 1..1500)) {
        let system = shape.system();
        let mut reference = Reference::new(&shape);
        for (step, (core, kind, address)) in stream.into_iter().enumerate() {
            let core = core % shape.count();
            let ours = system.access(core, kind, address, || step as u64 * 1000);
            let theirs = reference.access(core, kind, address);
            prop_assert_eq!(ours.level, theirs, "step {}: core {} {:?} {:#x}", step, core, kind, address);
        }
    }
}

/// As many cores and groups as a directory's entry has two, four, eight and more bytes for.
#[test]
fn machines_of_any_width_are_served_as_the_textbook_says() {
    for (cores, group_cores, policy) in [
        (6, 3, Policy::Victim),
        (8, 2, Policy::Inclusive),
        (16, 2, Policy::Victim),
        (32, 1, Policy::Inclusive),
        (32, 1, Policy::Victim),
    ] {
        let shape = Shape {
            sockets: 2,
            cores,
            group_cores,
            l1i: (4, 4),
            l1d: (8, 2),
            l2: (8, 4),
            l3: Some(((16, 3), policy)),
            pool: Pool::Filtered((16, 20)),
        };
        let system = shape.system();
        let mut reference = Reference::new(&shape);
        let mut random = Random(cores as u64);
        for step in 0..8_000 {
            let core = usize::try_from(random.below(shape.count() as u64)).expect("small");
            let kind = Kind::ALL[usize::try_from(random.below(4)).expect("small")];
            let address = random.below(3) * NODE_BYTES + random.below(120) * 64;
            let ours = system.access(core, kind, address, || step * 1000).level;
            let theirs = reference.access(core, kind, address);
            assert_eq!(
                ours, theirs,
                "{cores} cores, step {step}: core {core} {kind:?} {address:#x}"
            );
        }
        assert_coherent(&system);
    }
}

#[test]
fn caches_are_coherent_after_many_threads_at_once() {
    for (round, policy) in [None, Some(Policy::Inclusive), Some(Policy::Victim)]
        .into_iter()
        .cycle()
        .take(12)
        .enumerate()
    {
        let shape = Shape {
            sockets: 2,
            cores: 4,
            group_cores: 2,
            l1i: (4, 4),
            l1d: (8, 2),
            l2: (8, 4),
            l3: policy.map(|policy| ((16, 3), policy)),
            pool: Pool::Filtered((4, 4)),
        };
        let system = shape.system();
        std::thread::scope(|scope| {
            for core in 0..shape.count() {
                let system = &system;
                scope.spawn(move || {
                    let mut random = Random((round * 64 + core + 1) as u64);
                    for step in 0..10_000 {
                        let kind = Kind::ALL[usize::try_from(random.below(4)).expect("small")];
                        let address = random.below(3) * NODE_BYTES + random.below(48) * 64;
                        system.access(core, kind, address, || step * 1000);
                    }
                });
            }
        });
        assert_coherent(&system);
        let served: u64 = (0..shape.count())
            .map(|core| system.counts(core).accesses())
            .sum();
        assert_eq!(served, 8 * 10_000, "each access is counted once");
    }
}
