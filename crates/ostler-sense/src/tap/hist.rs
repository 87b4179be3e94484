//! The log-linear histogram of `bpf/core/hist.h`, on this side. A property holds both to each other.

use ostler_abi::bpf::HIST_BUCKETS;

const UNIT_SHIFT: u32 = 8;
const SUB_SHIFT: u32 = 4;
const SUB: usize = 1 << SUB_SHIFT;

/// The smallest time of a bucket in nanoseconds; of the bucket after the last, where that one ends.
pub(crate) fn lower_ns(bucket: usize) -> u64 {
    let Some(above) = bucket.checked_sub(SUB) else {
        return (bucket as u64) << UNIT_SHIFT;
    };
    ((SUB + above % SUB) as u64) << (above / SUB) << UNIT_SHIFT
}

/// The time in nanoseconds below which `permille` thousandths of all counted times lie, by linear interpolation
/// within its bucket.
pub(crate) fn percentile_ns(
    counts: &[u32; HIST_BUCKETS],
    total: u64,
    permille: u32,
) -> Option<u64> {
    // In thousandths of a count, so that the rank needs no rounding.
    let rank = total * u64::from(permille);
    let mut below = 0;
    let mut last = None;
    for (bucket, &count) in counts.iter().enumerate() {
        let here = u64::from(count) * 1000;
        if here == 0 {
            continue;
        }
        last = Some(bucket);
        if below + here >= rank {
            let low = lower_ns(bucket);
            let width = lower_ns(bucket + 1) - low;
            return Some(low + width * ((rank - below) * 1024 / here) / 1024);
        }
        below += here;
    }
    last.map(|bucket| lower_ns(bucket + 1))
}
