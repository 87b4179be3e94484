//! Which guests press on their memory (thesis, section 5.4.1).
//!
//! A threshold is crossed upwards at once, for who needs memory needs it now; and downwards only when nothing above it was seen for `hold`, for what was given once is dear to take and give
//! again. So a guest leaves a class at most once in `hold`, however it wavers about the threshold.
//!
//! A guest of which nobody knows how it uses its memory has no class, and nothing is done to it.

use ostler_model::{MemoryClass, Nanos};

/// From where on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// Misses of the last-level cache a second: it presses on its memory.
    pub misses_per_s: f64,
    /// The share of its memory touched lately: likewise, where misses aren't counted.
    pub hot_share: f64,
    /// Interrupts of its devices a second: it does IO.
    pub io_per_s: f64,
    /// How long it must have been below to count as below.
    pub hold: Nanos,
}

/// What was seen of a guest in a period.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Use {
    /// Misses of the last-level cache a second, if counted.
    pub misses_per_s: Option<f64>,
    /// Bytes touched lately, if looked at.
    pub hot: Option<u64>,
    /// Bytes it has.
    pub bytes: u64,
    /// Interrupts of its devices a second, if counted.
    pub io_per_s: Option<f64>,
}

/// When a guest was last seen above the thresholds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watch {
    /// For its memory.
    pub pressed: Option<Nanos>,
    /// For its IO.
    pub io: Option<Nanos>,
}

impl Use {
    /// Whether it presses on its memory in this period; `None` where nobody knows.
    pub fn presses(&self, by: &Thresholds) -> Option<bool> {
        if let Some(misses) = figure(self.misses_per_s) {
            return Some(misses >= by.misses_per_s);
        }
        // What is nothing isn't pressed on.
        let hot = self.hot? as f64;
        Some(self.bytes > 0 && hot >= by.hot_share * self.bytes as f64)
    }

    /// Whether it does IO in this period. Who isn't known to doesn't.
    pub fn does_io(&self, by: &Thresholds) -> bool {
        figure(self.io_per_s).is_some_and(|io| io >= by.io_per_s)
    }
}

/// What counts as a figure: counters of a guest can be anything.
fn figure(value: Option<f64>) -> Option<f64> {
    value.filter(|value| value.is_finite() && *value >= 0.0)
}

impl Watch {
    /// Notes what was seen, and says what class that makes; `None` where nobody knows.
    pub fn class(&mut self, now: Nanos, seen: &Use, by: &Thresholds) -> Option<MemoryClass> {
        let presses = seen.presses(by)?;
        let pressing = held(&mut self.pressed, presses, now, by.hold);
        let io = held(&mut self.io, seen.does_io(by), now, by.hold);
        Some(match (pressing, io) {
            (true, true) => MemoryClass::IoAndMemory,
            (true, false) => MemoryClass::Memory,
            (false, _) => MemoryClass::Rest,
        })
    }
}

/// Whether something is so, or was within the hold. What was seen in a future, before the clock went back, was seen now.
fn held(last: &mut Option<Nanos>, is: bool, now: Nanos, hold: Nanos) -> bool {
    if is {
        *last = Some(now);
    }
    *last = last.map(|at| at.min(now));
    last.is_some_and(|at| now.0 - at.0 <= hold.0)
}
