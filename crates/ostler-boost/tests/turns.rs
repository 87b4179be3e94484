//! How long turns are.

use ostler_boost::Config;
use proptest::prelude::*;

proptest! {
    /// A turn that ticks end is whole ones, and as near to what was asked for as those can be; none is longer than the longest stretch.
    #[test]
    fn a_turn_of_more_than_half_a_tick_is_whole_ticks(
        slice_us in 100..100_000_u64,
        tick_ms in 0..11_u64,
        longer in 0..20_000_000_u64,
    ) {
        let slice_ns = slice_us * 1000;
        let config = Config {
            slice_ns,
            slice_max_ns: slice_ns + longer,
            ..Config::default()
        };
        let tick = tick_ms * 1_000_000;
        let turns = config.in_ticks(tick);
        prop_assert!(turns.slice_max_ns >= turns.slice_ns.max(config.slice_max_ns));
        if slice_ns <= tick / 2 || tick == 0 {
            prop_assert_eq!(turns, config);
        } else {
            prop_assert!(turns.slice_ns > 0 && turns.slice_ns.is_multiple_of(tick));
            prop_assert!(turns.slice_ns.abs_diff(slice_ns) <= tick / 2);
            prop_assert_eq!(turns.in_ticks(tick), turns, "nothing is left to be made whole");
        }
    }
}
