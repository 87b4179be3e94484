//! How far a waker looks for a core that sleeps.

use super::*;

/// On eight cores that share a cache, of which the first so many compute.
fn found(busy: u32, from: u32) -> Option<u32> {
    let topology = topology(1, 1, 8, false);
    let nap = Habit::Nap {
        work: 1000,
        sleep: 10_000_000_000,
    };
    let mut threads = vec![(None, all(), nap)];
    threads.extend((0..busy).map(|cpu| (None, CpuSet::single(CpuId(cpu)), Habit::Spin)));
    let mut world = world(&topology, &threads);
    world.run(Nanos(1_000_000_000)).unwrap();
    let now = world.now();
    world.host.free_near(world.host.own_threads(), from, now)
}

/// By the kernel's formula 7, 5, 3, 1 and none of the eight are looked at where 2, 4, 5, 6 and 7 are busy.
#[test]
fn the_busier_cores_are_the_fewer_are_looked_at_for_one_that_sleeps() {
    assert_eq!(found(0, 3), Some(4));
    // The second and the fourth that are looked at.
    assert_eq!(found(2, 0), Some(2));
    assert_eq!(found(4, 0), Some(4));
    // The fifth would be; the third is.
    assert_eq!(found(5, 0), None);
    assert_eq!(found(5, 2), Some(5));
    assert_eq!(found(6, 4), None);
    assert_eq!(found(6, 5), Some(6));
    assert_eq!(found(7, 6), None);
}
