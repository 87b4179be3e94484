//! Which core a vCPU takes when it wakes.

use ostler_boost::{
    Config, Guest, PLACES, Vcpu, WAYS, left, may_borrow, misplaced, order, places, rate, stays,
};
use proptest::prelude::*;

/// Longer than a host is up, ns.
const LONG: u64 = 1 << 60;

proptest! {
    /// Who has had about as much as its domain goes as it comes, all others by virtual time, and nobody is put out of the order of virtual times by more than an
    /// eighth of a turn.
    #[test]
    fn a_queue_is_in_the_order_of_virtual_times_but_for_an_eighth_of_a_turn(
        slice_ns in 1000..20_000_000_u64,
        now in 0..LONG,
        apart in [-60_000_000..60_000_000_i64, -60_000_000..60_000_000_i64],
        near in any::<bool>(),
    ) {
        let config = Config { slice_ns, ..Config::default() };
        let eighth = slice_ns / 8;
        // As often as not close to the domain's, to either side of an eighth of a turn.
        let scale = if near { 60_000_000 / (eighth.cast_signed() * 2).max(1) } else { 1 };
        let vtimes = apart.map(|apart| now.saturating_add_signed(apart / scale.max(1)));
        let orders = vtimes.map(|vtime| order(&config, vtime, now));
        for (vtime, order) in vtimes.into_iter().zip(orders) {
            prop_assert!(order.abs_diff(vtime) <= eighth);
            prop_assert_eq!(order == now, vtime.abs_diff(now) <= eighth);
            prop_assert!(order == now || order == vtime);
        }
        let [one, other] = vtimes;
        prop_assert!(one > other || orders[0] <= orders[1]);
    }

    /// So whoever comes after another by that order isn't out of its place, however the domain's virtual time goes on in between, and one that is as far behind as
    /// three eighths is.
    #[test]
    fn who_is_in_order_is_in_its_place(
        slice_ns in 1000..20_000_000_u64,
        nows in [0..LONG, 0..100_000_000],
        apart in [-60_000_000..60_000_000_i64, -60_000_000..60_000_000_i64],
    ) {
        let config = Config { slice_ns, ..Config::default() };
        let nows = [nows[0], nows[0] + nows[1]];
        let vtimes = [nows[0].saturating_add_signed(apart[0]), nows[1].saturating_add_signed(apart[1])];
        let orders = [order(&config, vtimes[0], nows[0]), order(&config, vtimes[1], nows[1])];
        prop_assert!(orders[0] > orders[1] || !misplaced(&config, vtimes[0], vtimes[1]));
        let behind = vtimes[1] + slice_ns * 3 / 8 <= vtimes[0];
        prop_assert!(!behind || misplaced(&config, vtimes[0], vtimes[1]));
    }

    /// From one that isn't boosted first, then where no other work has the core, then from who has had most; and always with some readiness.
    #[test]
    fn cores_are_taken_in_the_order_that_is_told(
        one in (any::<bool>(), any::<bool>(), 0..LONG),
        other in (any::<bool>(), any::<bool>(), 0..LONG),
    ) {
        let rated = |of: (bool, bool, u64)| rate(of.2, of.0, of.1);
        let rank = |of: (bool, bool, u64)| (!of.0, of.1, of.2);
        prop_assert!(rated(one) > 0);
        prop_assert_eq!(rated(one).cmp(&rated(other)), rank(one).cmp(&rank(other)));
    }

    /// It stays where it may have the core at once, of one that isn't boosted and has had as much as whoever last came to a core.
    #[test]
    fn one_stays_where_nobody_is_better_to_take_from(
        (boosted, runs) in (any::<bool>(), any::<bool>()),
        vtime in 0..LONG,
        now in 0..LONG,
        even in any::<bool>(),
    ) {
        let now = if even { vtime } else { now };
        let may = !boosted && runs && vtime >= now;
        prop_assert_eq!(stays(rate(vtime, boosted, runs), now), may);
        prop_assert!(!stays(0, now), "it may not have it at all");
    }

    /// Who goes on with a turn ends no further ahead of who waits than at a turn's end, and has no less than half of one.
    #[test]
    fn a_turn_that_is_gone_on_with_ends_where_it_would_have(
        slice_ns in 1_000..20_000_000_u64,
        least in 0..LONG,
        ahead in -20_000_000..20_000_000_i64,
    ) {
        let config = Config { slice_ns, ..Config::default() };
        let vtime = least.saturating_add_signed(ahead);
        let left = left(&config, vtime, least);
        prop_assert!(left <= slice_ns && (left == 0 || left >= slice_ns / 2));
        prop_assert!(left == 0 || vtime <= least || vtime + left == least + slice_ns);
        prop_assert_eq!(left > 0, 2 * ahead <= slice_ns.cast_signed() || ahead <= 0);
    }

    /// Where nobody looks at who waits, there was nothing to be borrowed of anybody: not of one that waits no further than a turn behind the domain.
    #[test]
    fn who_needs_no_look_borrows_nothing(
        slice_ns in 1_000..20_000_000_u64,
        now in 1_u64 << 40..LONG,
        had in -60_000_000..40_000_000_i64,
        waits in -20_000_000..20_000_000_i64,
        ran in 0..40_000_000_u64,
    ) {
        let config = Config { slice_ns, ..Config::default() };
        let vtime = now.saturating_add_signed(had);
        let slice = slice_ns.cast_signed();
        let mut waits = Vcpu {
            vtime: now.saturating_add_signed(waits.max(-slice)),
            ..Vcpu::default()
        };
        let mut vcpu = Vcpu { vtime, ..Vcpu::default() };
        let (mut guest, mut lender) = (Guest::default(), Guest::default());
        vcpu.charge(&config, &mut guest, (&mut waits, &mut lender), ran, true);
        if guest.borrowed_ns > 0 {
            prop_assert!(may_borrow(&config, vtime + ran, now));
        }
    }

    /// A thread may be in a few places in a row, of which the first is its own as long as nobody has the same number but for a multiple of the places.
    #[test]
    fn threads_that_follow_each_other_have_places_of_their_own(tid in any::<u32>(), other in 1..PLACES) {
        let of = |tid: u32| places(tid).collect::<Vec<_>>();
        let all = of(tid);
        prop_assert_eq!(all.len(), WAYS as usize);
        prop_assert!(all.iter().all(|place| *place < PLACES));
        prop_assert!(all.windows(2).all(|two| two[1] == (two[0] + 1) % PLACES));
        prop_assert_ne!(all[0], of(tid.wrapping_add(other))[0]);
    }
}
