//! What is run in the emulated host and (`--quick`) on the machine itself: it prints a line a figure.
#![allow(
    unsafe_code,
    reason = "a chase is one load after the other, with nothing between them that a compiler might add or leave out"
)]

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::works::{self, Work};

/// What to measure.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Probe {
    /// A pointer chased through some memory: ns a step.
    Chase {
        /// The word before each figure.
        word: String,
        /// How much memory.
        kib: usize,
        /// Figures.
        runs: u32,
    },
    /// Memory read line after line, by every core at once: MB/s.
    Stream {
        /// The word before each figure.
        word: String,
        /// How much memory for each core.
        kib: usize,
        /// Figures.
        runs: u32,
    },
    /// Numbers sorted and searched for, on so many cores: ns until all are done.
    Mix {
        /// The word before each figure.
        word: String,
        /// How many numbers on each core.
        numbers: usize,
        /// Cores.
        cores: usize,
        /// Figures.
        runs: u32,
    },
    /// A program whose instructions are to be counted: ns.
    Count {
        /// The word before each figure.
        word: String,
        /// What it does.
        work: Work,
        /// Figures.
        runs: u32,
    },
}

/// A cache line, and a large page, in bytes.
const LINE: usize = 64;
const LARGE: usize = 2 << 20;
/// Lines that a stream reads at the most between two looks at the clock: a MiB.
const CHUNK: usize = (1 << 20) / LINE;
/// Steps between two looks at the clock: the instructions of one block of `asm!`, and how many blocks. A look costs what a hundred
/// instructions do, so that ten thousand hits must hide it.
const UNROLLED: usize = 256;
const BLOCKS: usize = 128;
/// Looks at the clock for a figure, which is their median: a tick of the kernel's falls into one of them, not into all.
const LOOKS: usize = 31;

/// Measures, and prints.
pub fn run(probe: Probe) -> Result<()> {
    match probe {
        Probe::Chase { word, kib, runs } => chase(&word, kib, runs),
        Probe::Stream { word, kib, runs } => stream(&word, kib, runs),
        Probe::Mix {
            word,
            numbers,
            cores,
            runs,
        } => mix(&word, numbers, cores, runs),
        Probe::Count { word, work, runs } => {
            works::run(&word, work, runs);
            Ok(())
        }
    }
}

/// A cache line with room for a pointer.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line {
    next: *const Line,
    rest: [u64; 7],
}

/// A size in KiB, in lines.
fn lines_of(kib: usize) -> Result<usize> {
    let count = kib * 1024 / LINE;
    ensure!(
        count >= 2,
        "{kib} KiB are too few for a chase; give it 1 or more"
    );
    Ok(count)
}

/// Memory in whole large pages, so that which of its lines share a cache's set doesn't hang on where the kernel has pages free.
struct Paged<T> {
    all: Vec<T>,
    from: usize,
    count: usize,
}

impl<T: Copy> Paged<T> {
    /// All filled with the same, so that the memory is there. A large page is a whole number of what is in it.
    fn filled(with: T, count: usize) -> Paged<T> {
        let page = LARGE / size_of::<T>();
        // As many large pages as they begin, each whole: the kernel makes none of a part.
        let all = vec![with; count.next_multiple_of(page) + page];
        let into = all.as_ptr().addr() / size_of::<T>() % page;
        let from = (page - into) % page;
        Paged { all, from, count }
    }

    fn all(&mut self) -> &mut [T] {
        &mut self.all[self.from..self.from + self.count]
    }
}

/// Lines to be chased through or read.
fn lines(kib: usize) -> Result<Paged<Line>> {
    let line = Line {
        next: std::ptr::null(),
        rest: [1; 7],
    };
    Ok(Paged::filled(line, lines_of(kib)?))
}

/// A generator of numbers (xorshift): the same on every machine.
pub struct Numbers(u64);

impl Default for Numbers {
    fn default() -> Numbers {
        Numbers(88_172_645_463_325_252)
    }
}

impl Numbers {
    /// The next one.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).unwrap_or(0)
    }
}

fn chase(word: &str, kib: usize, runs: u32) -> Result<()> {
    let mut memory = lines(kib)?;
    let lines = memory.all();
    // One cycle through all of them, in random order (Sattolo).
    let mut order: Vec<usize> = (0..lines.len()).collect();
    let mut numbers = Numbers::default();
    for at in (1..order.len()).rev() {
        order.swap(at, numbers.below(at));
    }
    let base = lines.as_ptr();
    for at in 0..order.len() {
        let next = order[(at + 1) % order.len()];
        lines[order[at]].next = base.wrapping_add(next);
    }
    let mut at = base;
    // Once around, so that caches hold what they can.
    for _ in 0..=lines.len() / UNROLLED {
        at = steps(at);
    }
    for _ in 0..runs {
        let mut figures = Vec::with_capacity(LOOKS);
        for _ in 0..LOOKS {
            let begin = Instant::now();
            for _ in 0..BLOCKS {
                at = steps(at);
            }
            figures.push(begin.elapsed().as_nanos() as f64 / (BLOCKS * UNROLLED) as f64);
        }
        figures.sort_by(f64::total_cmp);
        println!("{word} {}", figures[LOOKS / 2]);
    }
    black_box(at);
    Ok(())
}

/// Follows so many pointers.
#[inline]
fn steps(at: *const Line) -> *const Line {
    let mut at = at;
    // SAFETY: every line's pointer leads to another line of the same memory, which its caller keeps.
    unsafe {
        std::arch::asm!(
            ".rept 256",
            "mov {at}, [{at}]",
            ".endr",
            at = inout(reg) at,
            options(readonly, nostack, preserves_flags)
        );
    }
    at
}

/// How many chunks were read in a span of time, by the times between which each was: parts of those at its ends, too.
fn chunks_within(marks: &[Instant], begin: Instant, end: Instant) -> f64 {
    let chunks = marks.windows(2).map(|chunk| {
        let (from, to) = (chunk[0].max(begin), chunk[1].min(end));
        let whole = (chunk[1] - chunk[0]).as_secs_f64();
        // A chunk that took no time was read at one moment, in the span or not.
        if whole == 0.0 {
            f64::from(u8::from(from <= to))
        } else {
            to.saturating_duration_since(from).as_secs_f64() / whole
        }
    });
    chunks.sum()
}

fn stream(word: &str, kib: usize, runs: u32) -> Result<()> {
    let chunk = CHUNK.min(kib * 1024 / LINE);
    ensure!(
        chunk > 0 && (kib * 1024 / LINE).is_multiple_of(chunk),
        "{kib} KiB are no whole number of MiB; give it a multiple of 1024, or fewer"
    );
    let cpus = cpus()?;
    let together = Barrier::new(cpus.len());
    let on = |cpu: usize| -> Result<Vec<Vec<Instant>>> {
        pin(cpu)?;
        let mut memory = lines(kib)?;
        let lines = memory.all();
        let read = || {
            let mut marks = vec![Instant::now()];
            for chunk in lines.chunks(chunk) {
                let words = chunk.iter().map(|line| line.rest[0]);
                black_box(words.fold(0, u64::wrapping_add));
                marks.push(Instant::now());
            }
            marks
        };
        // What was written is in caches still, and is written back as it is read: that takes bandwidth too.
        read();
        let mut all = Vec::new();
        for _ in 0..runs {
            together.wait();
            all.push(read());
        }
        Ok(all)
    };
    let cores = std::thread::scope(|scope| {
        let threads: Vec<_> = cpus
            .iter()
            .map(|&cpu| scope.spawn(move || on(cpu)))
            .collect();
        let joined = threads.into_iter().map(|thread| {
            thread
                .join()
                .map_err(|_| anyhow::anyhow!("a reading thread panicked"))?
        });
        joined.collect::<Result<Vec<_>>>()
    })?;
    let mut figures = Vec::new();
    for run in 0..runs as usize {
        let marks = || cores.iter().map(|core| &core[run]);
        let begins = || marks().filter_map(|marks| marks.first().copied());
        let ends = || marks().filter_map(|marks| marks.last().copied());
        // While all of them read, or the device has less to do than it could.
        let (mut begin, mut end) = (
            begins().max().context("no core")?,
            ends().min().context("no core")?,
        );
        if end <= begin {
            // Too little to read for them to meet.
            (begin, end) = (
                begins().min().context("no core")?,
                ends().max().context("no core")?,
            );
        }
        let within = (end - begin).as_secs_f64();
        let chunks: f64 = marks().map(|marks| chunks_within(marks, begin, end)).sum();
        let bytes = chunks * (chunk * LINE) as f64;
        figures.push(bytes / within / 1e6);
    }
    for figure in figures {
        println!("{word} {figure}");
    }
    Ok(())
}

fn mix(word: &str, numbers: usize, cores: usize, runs: u32) -> Result<()> {
    let cpus = cpus()?;
    ensure!(
        (1..=cpus.len()).contains(&cores),
        "{cores} cores of {}",
        cpus.len()
    );
    let together = Barrier::new(cores);
    let (together, cpus) = (&together, &cpus);
    let on = move |core: usize| -> Result<Vec<u128>> {
        pin(cpus[core])?;
        // Kept, so that every run has the same memory, and not what the kernel gives it anew.
        let mut room = Paged::filled(0, numbers);
        let room = room.all();
        sort_and_search(room);
        let mut figures = Vec::new();
        for _ in 0..runs {
            together.wait();
            let begin = Instant::now();
            black_box(sort_and_search(room));
            together.wait();
            figures.push(begin.elapsed().as_nanos());
        }
        Ok(figures)
    };
    let figures = std::thread::scope(|scope| {
        let others: Vec<_> = (1..cores)
            .map(|core| scope.spawn(move || on(core)))
            .collect();
        let figures = on(0);
        for thread in others {
            thread
                .join()
                .map_err(|_| anyhow::anyhow!("a sorting thread panicked"))??;
        }
        figures
    })?;
    for figure in figures {
        println!("{word} {figure}");
    }
    Ok(())
}

/// Fills memory with numbers, sorts them and searches for as many.
pub fn sort_and_search(room: &mut [u64]) -> u64 {
    let mut numbers = Numbers::default();
    room.fill_with(|| numbers.next());
    room.sort_unstable();
    let mut sum = 0_u64;
    for _ in 0..room.len() {
        let wanted = numbers.next();
        sum = sum.wrapping_add(room.partition_point(|&n| n < wanted) as u64);
    }
    sum
}

/// The cores that we may use.
fn cpus() -> Result<Vec<usize>> {
    let set = sched_getaffinity(None).context("could not ask for the cores")?;
    Ok((0..CpuSet::MAX_CPU)
        .filter(|&cpu| set.is_set(cpu))
        .collect())
}

fn pin(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).with_context(|| format!("could not go to core {cpu}"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_chunk_counts_as_far_as_it_was_read_in_the_span() {
        let zero = Instant::now();
        let at = |ms| zero + Duration::from_millis(ms);
        // Fast at first, then slowly.
        let marks = [at(10), at(20), at(30), at(70)];
        let within = |from, to| chunks_within(&marks, at(from), at(to));
        assert!((within(0, 100) - 3.0).abs() < 1e-9);
        assert!((within(15, 50) - 2.0).abs() < 1e-9);
        assert!((within(30, 40) - 0.25).abs() < 1e-9);
        assert!(within(80, 90).abs() < 1e-9);
    }
}
