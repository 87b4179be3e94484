//! Average demand, which P divides the cores by.
//!
//! An exponential average whose time constant is the hold: it needs no history, forgets what is older than a few holds, and a late or
//! skipped period counts for as long as it took. A hold of zero makes it the period's own demand.

use ostler_model::{Average, Nanos};

/// The average after a period of `interval` with this demand of vCPUs and of queues.
pub fn after(
    before: Option<Average>,
    interval: Nanos,
    hold: Nanos,
    (vcpu, nq): (f64, f64),
) -> Average {
    let Some(before) = before.filter(|_| hold > Nanos::ZERO) else {
        return Average { vcpu, nq };
    };
    let weight = 1.0 - libm::exp(-(interval.0 as f64) / hold.0 as f64);
    let toward = |from: f64, to: f64| from + weight * (to - from);
    Average {
        vcpu: toward(before.vcpu, vcpu),
        nq: toward(before.nq, nq),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// To the bit: C libraries' exponentials differ in the last one, at 52 ms those of glibc and libm.
    #[test]
    fn it_is_the_same_on_any_machine() {
        let none = Average { vcpu: 0.0, nq: 0.0 };
        let period = Nanos::from_millis(52);
        let average = after(Some(none), period, Nanos::from_secs(1), (1.0, 0.0));
        let left = f64::from_bits(0x3fee_60e6_ee87_a57a);
        assert_eq!(average.vcpu.to_bits(), (1.0 - left).to_bits());
    }

    proptest! {
        /// However a stretch of constant demand is cut into periods, the average after it is the same, and between before and demand.
        #[test]
        fn periods_count_by_their_length(
            before in (0.0..20.0_f64, 0.0..20.0_f64),
            demand in (0.0..20.0_f64, 0.0..20.0_f64),
            cuts in proptest::collection::vec(1..1000_u64, 1..20),
            hold in 1..5000_u64,
        ) {
            let before = Average { vcpu: before.0, nq: before.1 };
            let whole = Nanos(cuts.iter().sum());
            let once = after(Some(before), whole, Nanos(hold), demand);
            let cut = cuts.iter().fold(before, |average, &cut| {
                after(Some(average), Nanos(cut), Nanos(hold), demand)
            });
            prop_assert!((once.vcpu - cut.vcpu).abs() < 1e-9 && (once.nq - cut.nq).abs() < 1e-9);
            let (low, high) = (before.vcpu.min(demand.0), before.vcpu.max(demand.0));
            prop_assert!((low - 1e-9..=high + 1e-9).contains(&once.vcpu));
        }

        #[test]
        fn without_a_hold_it_is_the_periods_own(before in 0.0..20.0_f64, demand in 0.0..20.0_f64) {
            let before = Average { vcpu: before, nq: before };
            let own = Average { vcpu: demand, nq: demand };
            prop_assert_eq!(after(Some(before), Nanos(100), Nanos::ZERO, (demand, demand)), own);
        }
    }
}
