//! What the tests of this room share. Nothing here knows how the room does what it does.
#![allow(dead_code, reason = "each test uses some of it")]

pub mod checker;
pub mod quanta;
pub mod reference;
pub mod shape;

/// Repeatable random numbers (xorshift64*), so that streams are the same in each run.
pub struct Random(pub u64);

impl Random {
    /// Any number.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 33) % end
    }

    /// Shuffles.
    pub fn shuffle<T>(&mut self, all: &mut [T]) {
        for at in (1..all.len()).rev() {
            let other = usize::try_from(self.below(at as u64 + 1)).expect("small");
            all.swap(at, other);
        }
    }
}
