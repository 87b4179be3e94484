//! Demand at its peak, held for a while.
//!
//! The paper goes by each period's demand. In 100 ms a guest serves some tens of thousands of requests on the paper's machine and
//! the sum is smooth; a guest that serves a hundred is busy in one period and idle in the next, and cores would move at every one of
//! them: each move is a few writes, a wake-up on another core and, with an agent, a queue taken away in the guest. So the demand that
//! the algorithms go by is the highest within a hold: a group grows at once, and shrinks when its demand has been lower for as
//! long as the hold. With a hold of zero it is the paper's.
//!
//! Only a demand that no later one has reached can still be the highest one day; the others are forgotten. What stays falls
//! with time, so the first is the peak, and under noise few stay.

use ostler_model::{Nanos, Peak};

/// At most so many are kept; when more would be, the oldest go, which can only make a group shrink sooner.
const PEAKS_MAX: usize = 256;

/// The highest demand within the hold.
pub fn highest(peaks: &[Peak], now: Nanos, hold: Nanos) -> Option<f64> {
    within(peaks, now, hold).first().map(|peak| peak.busy)
}

/// The peaks to remember after a period with this demand.
pub fn after(peaks: &[Peak], now: Nanos, hold: Nanos, busy: Option<f64>) -> Vec<Peak> {
    if hold == Nanos::ZERO {
        return Vec::new();
    }
    let kept = within(peaks, now, hold);
    let above = busy.map_or(kept.len(), |busy| {
        kept.partition_point(|peak| peak.busy > busy)
    });
    let kept = &kept[above.saturating_sub(PEAKS_MAX - 1)..above];
    let mut next = Vec::with_capacity(kept.len() + 1);
    next.extend_from_slice(kept);
    next.extend(busy.map(|busy| Peak { at: now, busy }));
    next
}

/// Those that are younger than the hold; they stand in the order of time.
fn within(peaks: &[Peak], now: Nanos, hold: Nanos) -> &[Peak] {
    let old = peaks.partition_point(|peak| now.saturating_sub(peak.at) >= hold);
    &peaks[old..]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Held against the definition: the largest of all demands within the hold.
        #[test]
        fn the_peak_is_the_largest_within_the_hold(
            steps in proptest::collection::vec((1..40_u64, 0.0..8.0_f64), 1..80),
            hold in 0..200_u64,
        ) {
            let hold = Nanos(hold);
            let (mut peaks, mut all, mut now) = (Vec::new(), Vec::new(), Nanos(1000));
            for (step, busy) in steps {
                now = Nanos(now.0 + step);
                let seen = highest(&peaks, now, hold).map_or(busy, |peak| peak.max(busy));
                let younger = |(at, _): &&(Nanos, f64)| now.0 - at.0 < hold.0;
                let largest = all.iter().filter(younger).fold(busy, |most, (_, b)| busy.max(*b).max(most));
                prop_assert_eq!(seen.to_bits(), largest.to_bits());
                all.push((now, busy));
                peaks = after(&peaks, now, hold, Some(busy));
                prop_assert!(peaks.windows(2).all(|w| w[0].busy > w[1].busy && w[0].at < w[1].at));
            }
        }

        #[test]
        fn what_is_remembered_is_bounded(start in 0.0..1.0_f64) {
            let mut peaks = Vec::new();
            for i in 0..1000_u64 {
                let busy = start + 1000.0 - i as f64;
                peaks = after(&peaks, Nanos(i), Nanos::from_secs(1), Some(busy));
            }
            prop_assert_eq!(peaks.len(), PEAKS_MAX);
        }
    }
}
