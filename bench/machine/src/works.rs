//! Programs without chance in them, whose instructions are counted twice: by the machine, and by Valgrind.
//!
//! They differ in what a translator of code may count wrongly: sorting has branches that nobody predicts, text has calls and divisions, matrices have
//! vectors of floating-point numbers, a map has pointers and allocations.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hint::black_box;
use std::time::Instant;

use crate::probe::{Numbers, sort_and_search};

/// What a program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Work {
    /// Numbers sorted and searched.
    Sort,
    /// Numbers written as text, and read again.
    Text,
    /// Matrices multiplied.
    Matrix,
    /// A map filled and emptied.
    Map,
}

impl Work {
    /// All of them.
    pub const ALL: [Work; 4] = [Work::Sort, Work::Text, Work::Matrix, Work::Map];

    /// As the probe is told of it.
    pub fn name(self) -> &'static str {
        match self {
            Work::Sort => "sort",
            Work::Text => "text",
            Work::Matrix => "matrix",
            Work::Map => "map",
        }
    }

    /// How many numbers, or rows: such that it takes some tens of millions of instructions, beside which a kernel's ticks are few.
    pub fn size(self) -> usize {
        match self {
            Work::Sort | Work::Map => 100_000,
            Work::Text => 200_000,
            Work::Matrix => 256,
        }
    }
}

/// Does it, once to have its memory and then so often; prints what each took, ns.
pub fn run(word: &str, what: Work, runs: u32) {
    let mut room = Room::of(what);
    room.work();
    for _ in 0..runs {
        let begin = Instant::now();
        black_box(room.work());
        println!("{word} {}", begin.elapsed().as_nanos());
    }
}

/// The memory that a program works in, which each run finds as the one before has left it.
enum Room {
    Sort(Vec<u64>),
    Text(String, usize),
    Matrix(Vec<f64>, usize),
    Map(BTreeMap<u64, u64>, usize),
}

impl Room {
    fn of(work: Work) -> Room {
        let size = work.size();
        match work {
            Work::Sort => Room::Sort(vec![0; size]),
            Work::Text => Room::Text(String::new(), size),
            Work::Matrix => Room::Matrix(vec![0.0; 3 * size * size], size),
            Work::Map => Room::Map(BTreeMap::new(), size),
        }
    }

    /// The same each time. What comes of it, so that none of it is left out.
    fn work(&mut self) -> u64 {
        let mut numbers = Numbers::default();
        match self {
            Room::Sort(room) => sort_and_search(room),
            Room::Text(text, size) => {
                text.clear();
                for _ in 0..*size {
                    let _ = write!(text, "{} ", numbers.next()); // a String takes all
                }
                let words = text.split(' ').filter_map(|word| word.parse::<u64>().ok());
                words.fold(0, u64::wrapping_add)
            }
            Room::Matrix(room, size) => {
                let (factors, product) = room.split_at_mut(2 * *size * *size);
                factors.fill_with(|| (numbers.next() % 1000) as f64);
                let (left, right) = factors.split_at(*size * *size);
                multiply(left, right, product, *size);
                product.iter().sum::<f64>().to_bits()
            }
            Room::Map(map, size) => {
                for _ in 0..*size {
                    let key = numbers.next();
                    map.insert(key, key >> 7);
                }
                let mut sum = 0_u64;
                while let Some((key, value)) = map.pop_first() {
                    sum = sum.wrapping_add(key ^ value);
                }
                sum
            }
        }
    }
}

fn multiply(left: &[f64], right: &[f64], product: &mut [f64], size: usize) {
    product.fill(0.0);
    for (row, of_left) in product.chunks_mut(size).zip(left.chunks(size)) {
        for (&factor, of_right) in of_left.iter().zip(right.chunks(size)) {
            for (cell, value) in row.iter_mut().zip(of_right) {
                *cell += factor * value;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrices_are_multiplied() {
        let mut product = [9.0; 4];
        multiply(
            &[1.0, 2.0, 3.0, 4.0],
            &[5.0, 6.0, 7.0, 8.0],
            &mut product,
            2,
        );
        let whole = product.map(f64::to_bits);
        assert_eq!(whole, [19.0, 22.0, 43.0, 50.0].map(f64::to_bits));
    }

    #[test]
    fn each_run_does_the_same() {
        for work in Work::ALL {
            let mut room = Room::of(work);
            let first = room.work();
            assert_eq!(room.work(), first, "{work:?}");
            assert_ne!(first, 0, "{work:?}");
        }
    }
}
