//! Random numbers that are the same everywhere.
//!
//! Each thing that draws has a stream of its own, found from the run's seed, what kind of thing it is, and its number. So a guest more, or
//! one draw more in it, changes nothing for the others, and policies are compared under the same arrivals. Logarithms and powers are
//! libm's, which computes the same bits on every machine.

use ostler_model::Nanos;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng};

/// A stream of random numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream(Xoshiro256PlusPlus);

impl Stream {
    /// The stream of the thing `kind` number `index` in a run of `seed`.
    pub fn new(seed: u64, kind: &str, index: u64) -> Stream {
        // FNV-1a over the name, then two rounds of a 64-bit finaliser: near seeds and indices have nothing in common.
        let name = kind.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        Stream(Xoshiro256PlusPlus::seed_from_u64(mix(
            mix(seed ^ name).wrapping_add(index)
        )))
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Uniform from 0 up to 1, never 1.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }

    /// Uniform below `bound`; 0 where that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The high half of a product: biased by less than bound / 2^64.
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// Whether something of this probability happens.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Exponential, of this mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * libm::log1p(-self.unit())
    }

    /// The time to the next of events that come at random, `per_second` of them; the end of time where none come.
    pub fn gap(&mut self, per_second: f64) -> Nanos {
        if per_second <= 0.0 {
            return Nanos(u64::MAX);
        }
        crate::round::nanos(self.exponential(1e9 / per_second))
    }

    /// Normal, of mean 0 and deviation 1.
    pub fn normal(&mut self) -> f64 {
        let radius = libm::sqrt(-2.0 * libm::log1p(-self.unit()));
        radius * libm::cos(std::f64::consts::TAU * self.unit())
    }

    /// Log-normal, by its median and the deviation of its logarithm.
    pub fn log_normal(&mut self, median: f64, sigma: f64) -> f64 {
        median * libm::exp(sigma * self.normal())
    }

    /// Generalised Pareto: location, scale, shape.
    pub fn pareto(&mut self, location: f64, scale: f64, shape: f64) -> f64 {
        let survival = 1.0 - self.unit();
        if shape == 0.0 {
            return location - scale * libm::log(survival);
        }
        location + scale * (libm::pow(survival, -shape) - 1.0) / shape
    }
}

fn mix(mut bits: u64) -> u64 {
    bits ^= bits >> 30;
    bits = bits.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits ^= bits >> 27;
    bits = bits.wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean(count: u32, mut draw: impl FnMut() -> f64) -> f64 {
        (0..count).map(|_| draw()).sum::<f64>() / f64::from(count)
    }

    #[test]
    fn streams_are_the_same_each_time_and_differ_from_each_other() {
        let first = |seed, kind, index| Stream::new(seed, kind, index).bits();
        assert_eq!(first(1, "client", 2), first(1, "client", 2));
        let all = [
            first(1, "client", 2),
            first(2, "client", 2),
            first(1, "guest", 2),
            first(1, "client", 3),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(all[..at].iter().all(|other| other != one));
        }
        // What came out when this was written; other numbers mean other runs for everybody's seeds.
        assert_eq!(first(0, "", 0), FIRST);
    }

    const FIRST: u64 = 16_385_988_670_353_934_174;

    #[test]
    fn draws_have_the_means_that_they_should() {
        let mut stream = Stream::new(7, "test", 0);
        let near = |value: f64, wanted: f64| (value / wanted - 1.0).abs() < 0.02;
        assert!(near(mean(100_000, || stream.unit()), 0.5));
        assert!(near(mean(100_000, || stream.below(11) as f64), 5.0));
        assert!(near(mean(200_000, || stream.exponential(3.0)), 3.0));
        assert!(near(
            mean(200_000, || stream.gap(1000.0).as_secs_f64()),
            1e-3
        ));
        assert!(near(
            mean(200_000, || {
                let normal = stream.normal();
                normal * normal
            }),
            1.0
        ));
        // Its mean is location + scale / (1 - shape).
        assert!(near(
            mean(400_000, || stream.pareto(1.0, 2.0, 0.2)),
            1.0 + 2.0 / 0.8
        ));
        assert_eq!(stream.gap(0.0), Nanos(u64::MAX));
    }
}
