//! In which order the ways of each set were used, and which one leaves next: least recently used first, as in the textbooks.
//!
//! A set's order is its ways' numbers, the latest used in front: sixteen nibbles of one word for caches of up to 16 ways, and
//! bytes of four words for those of up to 32. Numbers beyond the ways never move. Words are kept less the order of ways that were
//! never used, so that zeros are a fresh set.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::block::{Carver, Ring};

/// The nibbles 0 to 15: the order of use of ways that were never used.
const NIBBLES: u64 = 0xfedc_ba98_7654_3210;
/// A one in each nibble.
const NIBBLE_ONES: u64 = 0x1111_1111_1111_1111;
/// A one in each byte.
const BYTE_ONES: u64 = 0x0101_0101_0101_0101;
/// The bytes 0 to 7.
const BYTES: u64 = 0x0706_0504_0302_0100;
/// Words of a set whose ways don't fit in one.
const WIDE: usize = 4;
/// The most ways whose order is one word.
pub(crate) const NARROW_WAYS: usize = 16;

/// The orders of all sets of a cache. Each set's has one writer at a time.
#[derive(Debug)]
pub(crate) struct Order {
    words: Ring<AtomicU64>,
    wide: bool,
}

impl Order {
    /// Of sets of 1 to 32 ways.
    pub(crate) fn new(sets: usize, ways: usize, carver: &mut Carver) -> Order {
        let wide = ways > NARROW_WAYS;
        Order {
            words: carver.ring(if wide { sets * WIDE } else { sets }),
            wide,
        }
    }

    /// The way is the latest used of its set.
    #[inline]
    pub(crate) fn use_way(&self, set: usize, way: usize) {
        if self.wide {
            return self.use_way_of_many(set, way);
        }
        let word = self.words.at(set);
        let order = word.load(Relaxed);
        // Programs stay with a line for a while, and then there is nothing to do. The lowest nibble is kept as it is.
        if (order & 15) as usize != way {
            word.store(to_front_of_few(order, way), Relaxed);
        }
    }

    #[inline(never)]
    fn use_way_of_many(&self, set: usize, way: usize) {
        let words = &self.words.all()[set * WIDE..][..WIDE];
        let way = way as u64;
        let mut front = way;
        for (word, at) in words.iter().zip(0..) {
            let fresh = BYTES + 8 * at * BYTE_ONES;
            let order = word.load(Relaxed) ^ fresh;
            let (next, back) = bytes_to_front(order, way, front);
            word.store(next ^ fresh, Relaxed);
            match back {
                Some(back) => front = back,
                None => return,
            }
        }
    }

    /// The way of the first `ways` that was used the longest ago.
    #[inline]
    pub(crate) fn last(&self, set: usize, ways: usize) -> usize {
        let at = ways - 1;
        if self.wide {
            let word = self.words.at(set * WIDE + at / 8).load(Relaxed);
            let order = word ^ (BYTES + 8 * (at as u64 / 8) * BYTE_ONES);
            return (order >> (8 * (at % 8)) & 31) as usize;
        }
        last_of_few(self.words.at(set).load(Relaxed), ways)
    }

    /// Has the real machine fetch a set's order.
    #[inline]
    pub(crate) fn prefetch(&self, set: usize) {
        let words = if self.wide { WIDE } else { 1 };
        self.words.all().prefetch(set * words);
    }
}

/// An order that is one word once `way` has been used.
#[inline]
pub(crate) fn to_front_of_few(order: u64, way: usize) -> u64 {
    to_front(order ^ NIBBLES, way as u64) ^ NIBBLES
}

/// The way of the first `ways` that was used the longest ago, by an order that is one word.
#[inline]
pub(crate) fn last_of_few(order: u64, ways: usize) -> usize {
    ((order ^ NIBBLES) >> (4 * (ways - 1)) & 15) as usize
}

/// The order of use of up to eight ways as a matrix of bits: a row, a byte, for each way, in which those bits are set whose ways it was used
/// after. A use is then four instructions without a branch, whatever the order was; and the way that was used the longest ago
/// has an empty row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix {
    /// A row that is full.
    row: u64,
}

impl Matrix {
    /// Of 1 to 8 ways. At first it is 0.
    pub(crate) fn new(ways: usize) -> Matrix {
        Matrix {
            row: (1 << ways) - 1,
        }
    }

    /// The matrix once `way` has been used.
    #[inline]
    pub(crate) fn used(self, matrix: u64, way: usize) -> u64 {
        (matrix | self.row << (8 * way)) & !(BYTE_ONES << way)
    }

    /// The way that was used the longest ago, of ways that were all used.
    #[inline]
    pub(crate) fn last(matrix: u64) -> usize {
        let zeros = matrix.wrapping_sub(BYTE_ONES) & !matrix & (BYTE_ONES << 7);
        zeros.trailing_zeros() as usize / 8
    }
}

/// The order of use once `way` has been used: the nibble moves to the front, those before it one back.
#[inline]
fn to_front(order: u64, way: u64) -> u64 {
    // The lowest zero nibble of `other` is where the way stands; a borrow can only falsify nibbles above it.
    let other = order ^ (way * NIBBLE_ONES);
    let zeros = other.wrapping_sub(NIBBLE_ONES) & !other & (NIBBLE_ONES << 3);
    let at = zeros.trailing_zeros() & !3;
    let before = (1_u64 << (at & 63)) - 1;
    let upto = before << 4 | 15;
    order & !upto | (order & before) << 4 | way
}

/// The same of one word of bytes, into which `front` moves. Returns it, and what falls out behind unless the way was in it.
fn bytes_to_front(order: u64, way: u64, front: u64) -> (u64, Option<u64>) {
    let other = order ^ (way * BYTE_ONES);
    let zeros = other.wrapping_sub(BYTE_ONES) & !other & (BYTE_ONES << 7);
    if zeros == 0 {
        return (order << 8 | front, Some(order >> 56));
    }
    let at = zeros.trailing_zeros() & !7;
    let before = (1_u64 << at) - 1;
    let upto = before << 8 | 255;
    (order & !upto | (order & before) << 8 | front, None)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// So is the matrix, once all ways were used.
        #[test]
        fn the_matrix_has_the_last_of_a_list(ways in 1_usize..9, uses in proptest::collection::vec(0_usize..8, 0..200)) {
            let matrix = Matrix::new(ways);
            let mut list: Vec<usize> = (0..ways).rev().collect();
            let mut now = (0..ways).fold(0, |now, way| matrix.used(now, way));
            for way in uses {
                prop_assert_eq!(Matrix::last(now), list[ways - 1]);
                let way = way % ways;
                now = matrix.used(now, way);
                list.retain(|other| *other != way);
                list.insert(0, way);
            }
            prop_assert_eq!(Matrix::last(now), list[ways - 1]);
        }

        /// The words are the list that one would keep, for any number of ways; other sets don't move.
        #[test]
        fn the_order_of_use_is_that_of_a_list(ways in 1_usize..33, uses in proptest::collection::vec(0_usize..32, 0..200)) {
            let mut carver = Carver::heap(4096).expect("there is memory");
            let order = Order::new(4, ways, &mut carver);
            let mut list: Vec<usize> = (0..ways).collect();
            for way in uses {
                let way = way % ways;
                order.use_way(1, way);
                list.retain(|other| *other != way);
                list.insert(0, way);
                for (at, way) in list.iter().enumerate() {
                    prop_assert_eq!(order.last(1, at + 1), *way);
                    prop_assert_eq!(order.last(0, at + 1), at);
                    prop_assert_eq!(order.last(2, at + 1), at);
                }
            }
        }
    }
}
