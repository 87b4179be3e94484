use proptest::prelude::*;

use super::*;

/// A device with a ring of its own.
fn bandwidth(mb_per_s: u64, skew_ps: u64) -> Bandwidth {
    let mut measuring = Carver::measuring();
    Bandwidth::new(mb_per_s, skew_ps, &mut measuring);
    let mut carver = Carver::heap(measuring.bytes()).expect("there is memory");
    Bandwidth::new(mb_per_s, skew_ps, &mut carver)
}

/// Places in all of a time's buckets.
fn places(device: &Bandwidth, ps: u64) -> u64 {
    (0..ps >> device.shift)
        .map(|bucket| device.places(bucket))
        .sum()
}

proptest! {
    /// Any bandwidth: in a millisecond there is room for what fits, to a line.
    #[test]
    fn buckets_add_up_to_the_bandwidth(mb_per_s in 1_u64..10_000_000) {
        let device = bandwidth(mb_per_s, 10_000_000);
        let ps = 1_u64 << 32;
        let lines = u128::from(ps) * u128::from(mb_per_s) / 64_000_000;
        prop_assert!(u128::from(places(&device, ps)).abs_diff(lines) <= 1);
    }

    /// Below the limit nobody waits, however skewed the askers are; the order in which they ask is any.
    #[test]
    fn who_asks_for_less_than_there_is_never_waits(order in Just((0_u64..160).collect::<Vec<_>>()).prop_shuffle()) {
        // 16.4 lines to a bucket, and asked for 16: ten buckets in any order of time.
        let device = bandwidth(1_001, 10_000_000);
        prop_assert_eq!(device.shift, 21);
        for at in order {
            prop_assert_eq!(device.take((at / 16) << 20), 0);
        }
    }
}

#[test]
fn who_asks_for_more_gets_the_limit_and_waits_in_line() {
    // 1 GB/s: 32.77 lines of 64 ns to a bucket of 2.1 us.
    let device = bandwidth(1_000, 10_000_000);
    let waits: Vec<u64> = (0..200).map(|_| device.take(5)).collect();
    assert!(
        waits[..32].iter().all(|wait| *wait == 0),
        "the first fit in"
    );
    assert!(waits.is_sorted());
    let off = waits[199].abs_diff(199 * 64_000);
    assert!(
        off < 1 << 21,
        "the last starts when those before it are served: {}",
        waits[199]
    );
}

#[test]
fn a_time_long_past_is_not_counted_and_a_full_ring_bounds_the_wait() {
    let device = bandwidth(1_000, 10_000_000);
    device.take(1 << 40);
    let old = (1 << 40) - ((device.ring.len() as u64) << device.shift);
    assert_eq!(device.take(old), 0);
    let before = device
        .ring
        .iter()
        .map(|slot| slot.load(Relaxed))
        .sum::<u64>();
    assert_eq!(device.take(old), 0);
    let after = device
        .ring
        .iter()
        .map(|slot| slot.load(Relaxed))
        .sum::<u64>();
    assert_eq!(before, after, "it left no trace");
    let device = bandwidth(1_000, 0);
    let end = (device.ring.len() as u64) << device.shift;
    for _ in 0..places(&device, end) {
        assert!(device.take(0) < end);
    }
    assert_eq!(device.take(0), end);
}

/// Threads whose times differ by a quantum, asking for twice of what there is: together they get the limit, and no place is
/// given twice.
#[test]
fn many_threads_at_once_get_the_limit() {
    let device = bandwidth(4_000, 10_000_000);
    let served: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4_u64)
            .map(|thread| {
                let device = &device;
                scope.spawn(move || {
                    // Each wants 2 GB/s: a line in 32 ns.
                    let (mut now, mut lines) = (thread * 2_500_000, 0);
                    let end = now + 1_000_000_000;
                    while now < end {
                        now += 32_000 + device.take(now);
                        lines += 1;
                    }
                    lines
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("it doesn't panic"))
            .collect()
    });
    let lines: u64 = served.iter().sum();
    // Threads run as the real machine lets them: one far ahead of the others may have the device to itself.
    let taken: u64 = device
        .ring
        .iter()
        .map(|slot| slot.load(Relaxed) & ((1 << COUNT_BITS) - 1))
        .sum();
    assert!(taken <= places(&device, (device.ring.len() as u64) << device.shift) + 1);
    assert!(lines > 62_500 * 9 / 10, "{lines} of 62500 in a millisecond");
}
