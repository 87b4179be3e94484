//! A memory device serves so many lines in a given time, and who comes when it is busy waits: a queue in virtual time.
//!
//! ## Why not simply the time until which it is busy
//!
//! The textbook's queue is one number: an access at `t` starts at `max(t, busy_until)` and moves that on. It needs accesses
//! in order of time. Ours come from threads whose clocks differ by up to a quantum, Q: one core runs 10 us ahead, takes the
//! device's next 10 us line by line, however idle it leaves it, and a core that is still at the beginning would queue behind
//! all of them. With one number, skew looks like load.
//!
//! ## Buckets
//!
//! Time is cut into buckets of width W = 2^k ps, about a microsecond. Each can serve as many lines as fit in W at the
//! device's bandwidth; a fraction is carried over by rounding sums, not widths, so that in the long run the limit is exact.
//! An access at `t` takes a place in the first bucket from `t`'s on that has one:
//!
//! - in `t`'s own bucket, it doesn't wait. Where in the bucket is nobody's knowledge: order within W is lost. So an access
//!   to a device that isn't saturated for a whole W pays nothing, whatever others did earlier or later in real time;
//! - in a later one, it starts when those that have places there before it are served: at the bucket's start, and a
//!   line's service time for each of them. That is the wait.
//!
//! So a load below the limit never waits, a load above it gets the limit, and how skewed the threads are changes neither:
//! each fills the buckets of its own time. What is given up are the short waits below saturation (half a service time at
//! half load in an M/D/1 queue, some nanoseconds), and the wait's resolution, which is W.
//!
//! A line written back takes a place too but nobody waits for it.
//!
//! ## The ring
//!
//! Buckets live in a ring that covers twice the skew and the longest queue, each a word of the bucket's number and the places
//! taken, changed by compare-exchange. Who first comes to a bucket of the ring's next lap empties it. An access from a time
//! that the ring has left behind isn't counted and doesn't wait; one that finds every bucket full waits to the ring's end: a
//! bound, so that no access looks at more buckets than there are.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::block::{Area, Carver};
use crate::part::LINE_BYTES;

/// Width of a bucket, as a power of two of picoseconds: 1.05 us.
const SHIFT: u32 = 20;
/// A bucket has room for at least so many lines, so that a slow device's are wider.
const LINES_MIN: u64 = 32;
/// Buckets beyond those that skew needs.
const QUEUE: u64 = 64;
/// Bits of a word that count places.
const COUNT_BITS: u32 = 24;

/// A device's queue.
#[derive(Debug)]
pub(crate) struct Bandwidth {
    ring: Area<AtomicU64>,
    shift: u32,
    /// Lines that a bucket has room for, and the fraction beyond, in 1/2^32.
    whole: u64,
    fraction: u64,
    /// A line's service time, in 1/1024 ps.
    service: u64,
}

impl Bandwidth {
    /// A device of so many millions of bytes per second, 1 to 10,000,000, asked by cores whose times differ by `skew_ps`.
    pub(crate) fn new(mb_per_s: u64, skew_ps: u64, carver: &mut Carver) -> Bandwidth {
        // A line takes 64e12 / (mb * 1e6) ps.
        let line_ps = |scale: u64| LINE_BYTES * 1_000_000 * scale / mb_per_s;
        let mut shift = SHIFT;
        while line_ps(1) * LINES_MIN > 1 << shift {
            shift += 1;
        }
        let scaled = (u128::from(mb_per_s) << (shift + 32)) / u128::from(LINE_BYTES * 1_000_000);
        let lines = u64::try_from(scaled >> 32).unwrap_or(u64::MAX);
        let buckets = (2 * (skew_ps >> shift) + QUEUE).next_power_of_two();
        let buckets = usize::try_from(buckets).unwrap_or(usize::MAX);
        Bandwidth {
            ring: carver.area(buckets),
            shift,
            whole: lines,
            fraction: u64::try_from(scaled & u128::from(u32::MAX)).unwrap_or(0),
            service: line_ps(1024),
        }
    }

    /// Places of a bucket. Those of the first n buckets add up to what n buckets' time has room for, rounded down.
    fn places(&self, bucket: u64) -> u64 {
        // Bucket numbers are cut to 31 bits so that the products fit; where they wrap, one line may be lost.
        let at = bucket & 0x7fff_ffff;
        self.whole + ((((at + 1) * self.fraction) >> 32) - ((at * self.fraction) >> 32))
    }

    /// Takes a line's place at a time. Returns the wait, ps.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "the mask is the ring's length, a usize"
    )]
    pub(crate) fn take(&self, now_ps: u64) -> u64 {
        let first = now_ps >> self.shift;
        let size = self.ring.len() as u64;
        for bucket in first..first + size {
            let slot = &self.ring[(bucket & (size - 1)) as usize];
            let places = self.places(bucket);
            let mut seen = slot.load(Relaxed);
            loop {
                // Numbers are one more than the bucket's, so that a fresh ring is of a lap long past.
                let (number, taken) = (seen >> COUNT_BITS, seen & ((1 << COUNT_BITS) - 1));
                let taken = match number.cmp(&(bucket + 1)) {
                    std::cmp::Ordering::Less => 0,
                    std::cmp::Ordering::Equal => taken,
                    std::cmp::Ordering::Greater => return 0,
                };
                if taken >= places {
                    break;
                }
                let next = (bucket + 1) << COUNT_BITS | (taken + 1);
                match slot.compare_exchange_weak(seen, next, Relaxed, Relaxed) {
                    Ok(_) if bucket == first => return 0,
                    Ok(_) => {
                        let start = (bucket << self.shift) + ((taken * self.service) >> 10);
                        return start - now_ps;
                    }
                    Err(other) => seen = other,
                }
            }
        }
        ((first + size) << self.shift) - now_ps
    }
}

#[cfg(test)]
#[path = "bandwidth_tests.rs"]
mod tests;
