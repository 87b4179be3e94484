//! What a vCPU is charged for its guest's other threads, at a time.

use ostler_boost::{Config, instalment};
use proptest::prelude::*;

proptest! {
    /// A burst of theirs is paid to its end, and never with more at a time than a quarter of it, or of a turn, beyond what the vCPU has run itself.
    #[test]
    fn a_burst_is_paid_in_parts_and_to_its_end(
        slice_ns in 4_000..100_000_000_u64,
        burst in 0..200_000_000_u64,
        runs in prop::collection::vec(0..8_000_000_u64, 1..20),
    ) {
        let config = Config { slice_ns, ..Config::default() };
        let (mut late, mut times) = (burst, 0);
        for ran in runs.iter().cycle() {
            if late == 0 {
                break;
            }
            let part = instalment(&config, late, *ran);
            prop_assert!(part > 0 && part <= late);
            prop_assert!(part <= (burst / 4).max(slice_ns / 4) + ran);
            late -= part;
            times += 1;
        }
        // Three quarters each time at most remain, until a quarter of a turn is more than that.
        let quarter = (slice_ns / 4) as f64;
        let most = (burst as f64 / quarter).max(1.0).ln() / (4.0_f64 / 3.0).ln() + 5.0;
        prop_assert!(f64::from(times) <= most, "{times} times, at most {most}");
    }

    /// What others run no more of than the vCPU itself is paid as it goes, however short its runs are.
    #[test]
    fn steady_service_is_paid_as_it_goes(
        runs in prop::collection::vec((1..8_000_000_u64, 0..=100_u64), 1..200),
    ) {
        let config = Config::default();
        let mut late = 0;
        for (ran, percent) in runs {
            late += ran * percent / 100;
            late -= instalment(&config, late, ran);
            prop_assert_eq!(late, 0);
        }
    }

    /// Of what others run without end, there is never more unpaid than four times what comes between two payments.
    #[test]
    fn what_is_unpaid_of_a_flood_is_bounded(
        flood in prop::collection::vec(0..50_000_000_u64, 1..200),
    ) {
        let config = Config::default();
        let most = flood.iter().max().copied().unwrap_or(0);
        let mut late = 0;
        for more in flood {
            late += more;
            late -= instalment(&config, late, 0);
            prop_assert!(late <= 3 * most + 4, "{late}");
        }
    }
}
