use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::part::Catalogue;
use crate::topology::Topology;

/// Two cores with an L2 each, and a line that the first has modified: in its L2, and no longer in its L1.
fn system() -> System {
    let topology = Topology::parse(
        "
        [[cores]]
        first = 0
        last = 1
        part = 'epyc-7742'
        node = 0

        [[nodes]]
        ranges = [{ start = 0, bytes = 0x10_0000 }]
        ",
    );
    let topology = topology.expect("a good topology");
    let system = System::new(&topology, &Catalogue::built_in()).expect("a good machine");
    for way in 0..9 {
        system.access(0, Kind::Store, way * 4096, || 0);
    }
    assert!(!system.cores[0].data.holds(0) && in_l2(&system, 0));
    system
}

/// Whether a core's L2 has the first line.
fn in_l2(system: &System, core: usize) -> bool {
    system.cores[core].l2.find(0).is_some()
}

/// Has another thread do an access while the first core's own lock is held, gives it time to do what it shouldn't, and calls `held`. Returns
/// what served the access once the lock was free.
fn while_locked(system: &System, core: usize, kind: Kind, held: impl FnOnce()) -> Level {
    let begun = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let guard = system.lock_core(&system.cores[0]);
        let thread = scope.spawn(|| {
            begun.store(true, Ordering::Release);
            system.access(core, kind, 0, || 0).level
        });
        while !begun.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        for _ in 0..1000 {
            std::thread::yield_now();
        }
        held();
        drop(guard);
        thread.join().expect("it doesn't panic")
    })
}

/// The core's own lock is what a hit in its L2 and a snoop have in common: neither goes on while the other has it.
#[test]
fn an_l2_hit_waits_for_a_snoop_and_a_snoop_for_an_l2_hit() {
    let one = system();
    let level = while_locked(&one, 0, Kind::Load, || {
        assert!(
            !one.cores[0].data.holds(0),
            "it was filled without the lock"
        );
    });
    assert_eq!(level, Level::L2);
    assert!(one.cores[0].data.holds(0));
    for kind in [Kind::Store, Kind::Load] {
        let one = system();
        let slot = one.cores[0].l2.find(0).expect("it is there");
        let level = while_locked(&one, 1, kind, || {
            let state = one.cores[0].l2.state(slot, 0);
            assert_eq!(
                state,
                Some(State::Modified),
                "it was snooped without the lock"
            );
        });
        assert_eq!(level, Level::Peer);
        assert_eq!(in_l2(&one, 0), kind == Kind::Load);
    }
}

/// The worst of moments: the line goes between the look without the lock and the one with it.
#[test]
fn a_line_that_goes_before_the_lock_is_taken_is_a_miss() {
    let one = system();
    let place = one.map.place(0).expect("there is memory");
    let slot = one.cores[0].l2.find(place.index);
    one.access(1, Kind::Store, 0, || 0);
    assert!(!in_l2(&one, 0));
    let slot = slot.expect("it was there");
    let second = one.second_in(&one.cores[0], Kind::Load, place, slot);
    assert!(matches!(second, Second::Missed(_, None)));
    assert!(!one.cores[0].data.holds(0), "no stale copy");
    let charge = one.miss(0, Kind::Load, place, Some(slot), 0);
    assert_eq!(charge.level, Level::Peer, "it is the other's now");
    assert!(in_l2(&one, 0));
    let to_store = one.second_in(
        &one.cores[0],
        Kind::Store,
        place,
        one.cores[0].l2.find(0).expect("there"),
    );
    assert!(
        matches!(to_store, Second::Missed(_, Some(_))),
        "others have it"
    );
    let level = while_locked(&one, 0, Kind::Load, || {});
    assert_eq!(level, Level::L1);
}
