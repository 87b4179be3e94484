//! Physical memory without its holes: each line has an *index*, and indices are dense.
//!
//! What stands behind the L1s goes by index. So a tag fits in 32 bits, and the directory is an array. An index has the lowest bits
//! of its line, as many as choose a set in the largest cache: it falls into the same sets as the line's address.

use crate::part::LINE_BYTES;
use crate::topology::TopologyError;

/// Bits of a tag that are a line's.
const TAG_BITS: u32 = 29;

/// A line that a node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) line: u64,
    pub(crate) index: u64,
    pub(crate) node: usize,
}

/// A range of physical memory.
#[derive(Clone, Copy, Debug)]
struct Mapped {
    /// Its first line, and that line's index.
    line: u64,
    index: u64,
    lines: u64,
    node: usize,
}

/// All memory.
#[derive(Debug)]
pub(crate) struct Map {
    ranges: Box<[Mapped]>,
}

impl Map {
    /// Of ranges in order: first line, line behind the last, node. Caches have `least` to `most` sets, powers of two.
    pub(crate) fn new(
        ranges: &[(u64, u64, usize)],
        least: u64,
        most: u64,
    ) -> Result<Map, TopologyError> {
        let mut end = 0_u64;
        let mapped = ranges.iter().map(|&(line, behind, node)| {
            let index = end + (line.wrapping_sub(end) & (most - 1));
            let lines = behind - line;
            end = index + lines;
            Mapped {
                line,
                index,
                lines,
                node,
            }
        });
        let ranges = mapped.collect();
        let room = least << TAG_BITS;
        if end > room {
            return Err(TopologyError::TooMuchMemory {
                gib: end.div_ceil((1 << 30) / LINE_BYTES),
                most: room / ((1 << 30) / LINE_BYTES),
            });
        }
        Ok(Map { ranges })
    }

    /// Indices in all, those that are left out included.
    pub(crate) fn indices(&self) -> u64 {
        self.ranges
            .last()
            .map_or(0, |range| range.index + range.lines)
    }

    /// A line's place, if a node has it.
    #[inline]
    pub(crate) fn place(&self, line: u64) -> Option<Place> {
        // There are a handful of ranges: a search would be slower.
        self.ranges.iter().find_map(|range| {
            let offset = line.wrapping_sub(range.line);
            (offset < range.lines).then(|| Place {
                line,
                index: range.index + offset,
                node: range.node,
            })
        })
    }

    /// The place of an index that some cache has.
    #[inline]
    pub(crate) fn of_index(&self, index: u64) -> Option<Place> {
        self.ranges.iter().find_map(|range| {
            let offset = index.wrapping_sub(range.index);
            (offset < range.lines).then(|| Place {
                line: range.line + offset,
                index,
                node: range.node,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn indices_are_dense_and_fall_into_the_lines_sets(
            gaps in proptest::collection::vec((0_u64..5000, 1_u64..3000), 1..6),
            bits in 0_u32..12,
        ) {
            let mut ranges = Vec::new();
            let mut at = 0;
            for (node, (gap, lines)) in gaps.into_iter().enumerate() {
                ranges.push((at + gap, at + gap + lines, node));
                at += gap + lines;
            }
            let most = 1 << bits;
            let map = Map::new(&ranges, 1, most).expect("little memory");
            let mut last = None;
            for line in 0..at + 10 {
                let node = ranges.iter().find(|(start, end, _)| (*start..*end).contains(&line));
                let place = map.place(line);
                prop_assert_eq!(place.map(|place| place.node), node.map(|(_, _, node)| *node));
                let Some(place) = place else { continue };
                prop_assert_eq!(place.index % most, line % most);
                prop_assert_eq!(map.of_index(place.index), Some(place));
                let dense = last.is_none_or(|last| place.index > last && place.index - last <= most);
                prop_assert!(dense, "{place:?} after {last:?}");
                last = Some(place.index);
            }
            prop_assert_eq!(map.indices(), last.expect("there are lines") + 1);
        }
    }

    #[test]
    fn more_memory_than_tags_can_tell_apart_is_refused() {
        let lines = 1 << TAG_BITS;
        assert!(Map::new(&[(0, lines, 0)], 1, 64).is_ok());
        assert!(Map::new(&[(0, 2 * lines, 0)], 2, 64).is_ok());
        let error = Map::new(&[(0, lines, 0), (2 * lines, 2 * lines + 64, 1)], 1, 64)
            .expect_err("a set of lines too many")
            .to_string();
        for word in ["33 GiB", "32 GiB", "smaller"] {
            assert!(error.contains(word), "`{word}` isn't in: {error}");
        }
    }
}
