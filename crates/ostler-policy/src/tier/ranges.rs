//! Which of a guest's ranges move: what is hot goes near first, what is cold goes far first.
//!
//! What was seen of a guest's ranges can be anything. One that begins before the one before it ends, or ends beyond all addresses, doesn't count, so that no address moves twice.

use ostler_model::{Bytes, MemoryRange, NodeId, RangeView};

/// What there is of a node among ranges, bytes.
pub fn on(ranges: &[RangeView], node: NodeId) -> u64 {
    let here = sound(ranges).filter(|view| view.node == node);
    here.fold(0, |sum, view| sum + view.range.bytes.0)
}

/// Picks so many bytes of a node, after the first `skip` that were picked already; how many there were.
pub fn pick(
    ranges: &[RangeView],
    node: NodeId,
    hot_first: bool,
    skip: u64,
    bytes: u64,
    into: &mut Vec<MemoryRange>,
) -> u64 {
    let (mut skip, mut left) = (skip, bytes);
    for hot in [hot_first, !hot_first] {
        let here = sound(ranges).filter(|view| view.node == node && view.hot == hot);
        for view in here {
            if left == 0 {
                return bytes;
            }
            let MemoryRange { start, bytes } = view.range;
            let skipped = skip.min(bytes.0);
            skip -= skipped;
            let taken = (bytes.0 - skipped).min(left);
            if taken == 0 {
                continue;
            }
            left -= taken;
            into.push(MemoryRange {
                start: start + skipped,
                bytes: Bytes(taken),
            });
        }
    }
    bytes - left
}

/// Those that count.
fn sound(ranges: &[RangeView]) -> impl Iterator<Item = &RangeView> {
    let mut end = 0;
    ranges.iter().filter(move |view| {
        let MemoryRange { start, bytes } = view.range;
        let Some(ends) = start.checked_add(bytes.0) else {
            return false;
        };
        let counts = start >= end;
        if counts {
            end = ends;
        }
        counts
    })
}
