//! Random choices that can be made again: from the program's seed, the fault and the time that it is done.

/// A generator of random numbers (SplitMix64: every seed is as good as any other).
#[derive(Debug)]
pub struct Dice(u64);

impl Dice {
    /// Seeded by all of these numbers.
    pub fn new(seeds: &[u64]) -> Dice {
        let mut dice = Dice(0);
        for seed in seeds {
            dice.0 ^= seed;
            dice.0 = dice.next();
        }
        dice
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 up to, not including, `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        let at = self.below(from.len() as u64);
        from[usize::try_from(at).unwrap_or(0)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seeds_throw_the_same_and_others_something_else() {
        let throw = |seeds: &[u64]| {
            let mut dice = Dice::new(seeds);
            [(); 8].map(|()| dice.below(1000))
        };
        assert_eq!(throw(&[1, 2, 3]), throw(&[1, 2, 3]));
        assert_ne!(throw(&[1, 2, 3]), throw(&[1, 2, 4]));
        assert_ne!(throw(&[1, 2, 3]), throw(&[2, 2, 3]));
        assert!(throw(&[7]).iter().all(|n| *n < 1000));
    }
}
