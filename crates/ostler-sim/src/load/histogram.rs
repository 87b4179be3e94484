//! Times by their logarithm: 32 steps to each doubling, so that what is read is within 3.2 % of what was put in. Small, and cleared in
//! proportion to what was touched.

use ostler_model::Nanos;

const STEPS: u64 = 32;
const BUCKETS: usize = 36 * STEPS as usize;

/// Counts of times.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    /// Empty until something was put in.
    counts: Vec<u32>,
    lowest: usize,
    highest: usize,
    count: u64,
    sum: u128,
}

/// Below 32 each has its own; from there on 32 to a doubling.
fn bucket(value: u64) -> usize {
    // Eighteen minutes and more are one.
    let value = value.min((1 << 40) - 1);
    if value < STEPS {
        return value as usize;
    }
    let exponent = u64::from(value.ilog2()) - 5;
    (exponent * STEPS + (value >> exponent)) as usize
}

/// The greatest value of a bucket.
fn top(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < STEPS {
        return bucket;
    }
    let exponent = bucket / STEPS - 1;
    ((bucket % STEPS + STEPS + 1) << exponent) - 1
}

impl Histogram {
    /// Counts a time.
    pub fn record(&mut self, time: Nanos) {
        if self.counts.is_empty() {
            self.counts = vec![0; BUCKETS];
        }
        let at = bucket(time.0);
        if self.count == 0 {
            (self.lowest, self.highest) = (at, at);
        }
        self.lowest = self.lowest.min(at);
        self.highest = self.highest.max(at);
        self.counts[at] = self.counts[at].saturating_add(1);
        self.count += 1;
        self.sum += u128::from(time.0);
    }

    /// Counts all that another has counted.
    pub fn merge(&mut self, more: &Histogram) {
        if more.count == 0 {
            return;
        }
        if self.counts.is_empty() {
            self.counts = vec![0; BUCKETS];
        }
        if self.count == 0 {
            (self.lowest, self.highest) = (more.lowest, more.highest);
        }
        self.lowest = self.lowest.min(more.lowest);
        self.highest = self.highest.max(more.highest);
        for at in more.lowest..=more.highest {
            self.counts[at] = self.counts[at].saturating_add(more.counts[at]);
        }
        self.count += more.count;
        self.sum += more.sum;
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their exact mean; 0 of none.
    pub fn mean(&self) -> Nanos {
        let mean = self.sum.checked_div(u128::from(self.count));
        Nanos(mean.map_or(0, |mean| u64::try_from(mean).unwrap_or(u64::MAX)))
    }

    /// The time that this many thousandths of them are not above; 0 of none.
    pub fn quantile(&self, thousandths: u64) -> Nanos {
        let wanted = (self.count * thousandths).div_ceil(1000).max(1);
        let mut seen = 0;
        if self.count > 0 {
            for at in self.lowest..=self.highest {
                seen += u64::from(self.counts[at]);
                if seen >= wanted {
                    return Nanos(top(at));
                }
            }
        }
        Nanos::ZERO
    }

    /// Forgets them.
    pub fn clear(&mut self) {
        if self.count > 0 {
            self.counts[self.lowest..=self.highest].fill(0);
        }
        self.count = 0;
        self.sum = 0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn quantiles_are_within_a_step_of_the_exact_ones(
            mut times in proptest::collection::vec(0_u64..10_000_000_000, 1..200),
            thousandths in 1_u64..=1000,
        ) {
            let mut histogram = Histogram::default();
            for pass in 0..2 {
                histogram.clear();
                for time in &times {
                    histogram.record(Nanos(time + pass));
                }
            }
            times.sort_unstable();
            let rank = (times.len() as u64 * thousandths).div_ceil(1000).max(1) as usize - 1;
            let exact = times[rank] + 1;
            let read = histogram.quantile(thousandths).0;
            prop_assert!(read >= exact && read <= exact + exact / 32, "{read} for {exact}");
            let sum: u64 = times.iter().map(|time| time + 1).sum();
            prop_assert_eq!(histogram.mean().0, sum / times.len() as u64);
        }
    }

    #[test]
    fn buckets_and_their_tops_agree() {
        for at in 0..BUCKETS - 1 {
            assert_eq!(bucket(top(at)), at);
            assert_eq!(bucket(top(at) + 1), at + 1);
        }
        assert_eq!(Histogram::default().quantile(950), Nanos::ZERO);
    }
}
