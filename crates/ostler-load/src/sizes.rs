//! Sizes of keys and values as Facebook saw them in its ETC pool.
//!
//! B. Atikoglu et al., "Workload Analysis of a Large-Scale Key-Value Store" (SIGMETRICS'12), section 5, fits the general-purpose pool
//! "ETC" with: key sizes ~ generalized extreme value (mu 30.7984, sigma 8.20449, k 0.078688); value sizes ~ generalized Pareto (theta 0,
//! sigma 214.476, k 0.348238), but for the first fifteen lengths, whose probabilities are given one by one because a few fixed-size
//! records dominate there. A draw therefore first looks in the table (total mass 0.4415) and else draws from the Pareto, unconditioned,
//! which is also how the field's customary generator reads the paper.
//!
//! Samples come from the inverse of the distribution function, so tests can hold them against the closed forms.

use rand::Rng;

use crate::schedule::unit;

/// Generalized extreme value distribution, shape not zero.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gev {
    /// Location.
    pub mu: f64,
    /// Scale.
    pub sigma: f64,
    /// Shape.
    pub k: f64,
}

impl Gev {
    /// The value below which a share `u` of (0, 1] lies.
    pub fn quantile(&self, u: f64) -> f64 {
        // u = 1 would be infinite; the largest f64 below 1 stands in for it.
        let u = u.min(1.0 - f64::EPSILON / 2.0);
        self.mu + self.sigma * ((-u.ln()).powf(-self.k) - 1.0) / self.k
    }

    /// The share of values that are at most `x`.
    pub fn cdf(&self, x: f64) -> f64 {
        let t = 1.0 + self.k * (x - self.mu) / self.sigma;
        if t <= 0.0 {
            0.0
        } else {
            (-t.powf(-1.0 / self.k)).exp()
        }
    }
}

/// Generalized Pareto distribution, shape not zero.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GenPareto {
    /// Location.
    pub theta: f64,
    /// Scale.
    pub sigma: f64,
    /// Shape.
    pub k: f64,
}

impl GenPareto {
    /// The value above which a share `u` of (0, 1] lies.
    pub fn upper_quantile(&self, u: f64) -> f64 {
        self.theta + self.sigma * (u.powf(-self.k) - 1.0) / self.k
    }

    /// The share of values that are at most `x`.
    pub fn cdf(&self, x: f64) -> f64 {
        if x <= self.theta {
            return 0.0;
        }
        1.0 - (1.0 + self.k * (x - self.theta) / self.sigma).powf(-1.0 / self.k)
    }
}

/// ETC's key sizes, bytes.
pub const ETC_KEY: Gev = Gev {
    mu: 30.7984,
    sigma: 8.20449,
    k: 0.078_688,
};

/// ETC's value sizes beyond the table, bytes.
pub const ETC_VALUE: GenPareto = GenPareto {
    theta: 0.0,
    sigma: 214.476,
    k: 0.348_238,
};

/// ETC's share of values of 0, 1, 2, ... 14 bytes.
pub const ETC_SMALL_VALUES: [f64; 15] = [
    0.00536, 0.00047, 0.17820, 0.09239, 0.00018, 0.02740, 0.00065, 0.00606, 0.00023, 0.00837,
    0.00837, 0.08989, 0.00092, 0.00326, 0.01980,
];

/// memcached refuses longer keys.
pub const KEY_BYTES_MAX: usize = 250;

/// Draws a key's length: at least `min` (room for its number), at most what memcached takes.
pub fn draw_key_bytes(rng: &mut impl Rng, min: usize) -> usize {
    clamp_to_usize(ETC_KEY.quantile(unit(rng)), min, KEY_BYTES_MAX)
}

/// Draws a value's length, at most `max`.
pub fn draw_value_bytes(rng: &mut impl Rng, max: usize) -> usize {
    let mut u = unit(rng);
    for (bytes, share) in ETC_SMALL_VALUES.iter().enumerate() {
        if u <= *share {
            return bytes.min(max);
        }
        u -= share;
    }
    clamp_to_usize(ETC_VALUE.upper_quantile(unit(rng)), 0, max)
}

fn clamp_to_usize(x: f64, min: usize, max: usize) -> usize {
    // Clamped to small bounds first, and NaN can't come from quantiles of (0, 1].
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let whole = x.clamp(0.0, 1e9) as usize;
    whole.clamp(min.min(max), max)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;

    const N: u32 = 200_000;

    #[test]
    fn key_sizes_follow_the_gev() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut counts = [0_u32; KEY_BYTES_MAX + 1];
        for _ in 0..N {
            counts[draw_key_bytes(&mut rng, 1)] += 1;
        }
        let mut below = 0;
        for (bytes, count) in counts.iter().enumerate().take(KEY_BYTES_MAX) {
            below += count;
            // Lengths are rounded down: those up to `bytes` are the real values below `bytes + 1`.
            let expected = ETC_KEY.cdf((bytes + 1) as f64);
            let seen = f64::from(below) / f64::from(N);
            assert!(
                (seen - expected).abs() < 0.006,
                "P(key <= {bytes}) = {seen}, expected {expected}"
            );
        }
    }

    #[test]
    fn value_sizes_follow_the_table_and_the_pareto() {
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        let draws: Vec<usize> = (0..N)
            .map(|_| draw_value_bytes(&mut rng, 1 << 20))
            .collect();
        let in_table: f64 = ETC_SMALL_VALUES.iter().sum();
        let mut table_below = 0.0;
        for bytes in 0..4096_usize {
            table_below += ETC_SMALL_VALUES.get(bytes).copied().unwrap_or_default();
            let expected = table_below + (1.0 - in_table) * ETC_VALUE.cdf((bytes + 1) as f64);
            if bytes < 32 || bytes % 97 == 0 {
                let seen = draws.iter().filter(|&&d| d <= bytes).count() as f64 / f64::from(N);
                assert!(
                    (seen - expected).abs() < 0.006,
                    "P(value <= {bytes}) = {seen}, expected {expected}"
                );
            }
        }
    }

    proptest! {
        #[test]
        fn quantiles_invert_the_distribution_functions(u in 1e-9..0.999_999_f64) {
            prop_assert!((ETC_KEY.cdf(ETC_KEY.quantile(u)) - u).abs() < 1e-6);
            prop_assert!((1.0 - ETC_VALUE.cdf(ETC_VALUE.upper_quantile(u)) - u).abs() < 1e-6);
        }

        #[test]
        fn draws_stay_within_their_bounds(seed: u64, min in 1..=10_usize, max in 0..2000_usize) {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            for _ in 0..100 {
                prop_assert!((min..=KEY_BYTES_MAX).contains(&draw_key_bytes(&mut rng, min)));
                prop_assert!(draw_value_bytes(&mut rng, max) <= max);
            }
        }
    }

    #[test]
    fn the_ends_of_the_unit_interval_give_finite_sizes() {
        for u in [f64::MIN_POSITIVE, 1.0] {
            assert!(ETC_KEY.quantile(u).is_finite());
            assert!(ETC_VALUE.upper_quantile(u).is_finite());
        }
    }
}
