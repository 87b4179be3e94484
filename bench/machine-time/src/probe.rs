//! What is run in the emulated host, in its guest, and (`--quick`) on the machine itself: it prints a line a figure, in ns.
//!
//! Nothing is printed before all is measured: a line on a serial console takes 0.3 ms of interrupts, of which most fall into whatever comes next. And
//! the first loop of each core is none of its figures: what the program's start leaves to be done later (RCU's callbacks) is work of the kernel's that
//! comes at once, in the first 100 ms, and isn't the loop's.

use std::hint::black_box;
use std::io::{Read, Write};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// What to measure.
#[derive(Clone, Copy, Debug, clap::Subcommand)]
pub enum Probe {
    /// A fixed loop on the first core.
    Loop {
        /// Rounds of the loop.
        rounds: u64,
        /// Figures.
        runs: u32,
    },
    /// The same on every core at once; a figure per core and run.
    Loops {
        /// Rounds of the loop.
        rounds: u64,
        /// Figures per core.
        runs: u32,
    },
    /// A byte to a thread on another core and back; the 95th percentile of each run.
    Wake {
        /// Bytes.
        rounds: usize,
        /// Figures.
        runs: u32,
    },
    /// The same, while all other cores compute.
    Wakes {
        /// Bytes.
        rounds: usize,
        /// Figures.
        runs: u32,
    },
}

/// Measures, and prints `LOOP 1234`, `LOOPS 1234`, `WAKE 1234` or `WAKES 1234` for each figure.
pub fn run(probe: Probe) -> Result<()> {
    let cpus = cpus()?;
    match probe {
        Probe::Loop { rounds, runs } => {
            pin(cpus[0])?;
            timed(rounds);
            let figures: Vec<u128> = (0..runs).map(|_| timed(rounds)).collect();
            print("LOOP", &figures);
        }
        Probe::Loops { rounds, runs } => {
            let together = Barrier::new(cpus.len());
            let on = |cpu| {
                pin(cpu)?;
                let run = |_| {
                    together.wait();
                    timed(rounds)
                };
                Ok((0..=runs).map(run).skip(1).collect::<Vec<_>>())
            };
            let figures: Vec<Result<Vec<u128>>> = std::thread::scope(|scope| {
                let threads: Vec<_> = cpus
                    .iter()
                    .map(|&cpu| scope.spawn(move || on(cpu)))
                    .collect();
                threads.into_iter().filter_map(|t| t.join().ok()).collect()
            });
            for figures in figures {
                print("LOOPS", &figures?);
            }
        }
        Probe::Wake { rounds, runs } => wake("WAKE", &cpus, rounds, runs)?,
        Probe::Wakes { rounds, runs } => {
            let done = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let done = &done;
                for &cpu in cpus.iter().skip(2) {
                    scope.spawn(move || {
                        let pinned = pin(cpu);
                        while pinned.is_ok() && !done.load(Ordering::Relaxed) {
                            timed(1000);
                        }
                        pinned
                    });
                }
                let woken = wake("WAKES", &cpus, rounds, runs);
                done.store(true, Ordering::Relaxed);
                woken
            })?;
        }
    }
    Ok(())
}

fn print(word: &str, figures: &[u128]) {
    for ns in figures {
        println!("{word} {ns}");
    }
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

/// A loop that no compiler shortens: a xorshift generator.
fn timed(rounds: u64) -> u128 {
    let begin = Instant::now();
    let mut x = black_box(88_172_645_463_325_252_u64);
    for _ in 0..rounds {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
    }
    black_box(x);
    begin.elapsed().as_nanos()
}

fn wake(word: &str, cpus: &[usize], rounds: usize, runs: u32) -> Result<()> {
    let other = *cpus.get(1).unwrap_or(&cpus[0]);
    let (mut there, mut outward) = std::io::pipe().context("could not make a pipe")?;
    let (mut here, mut homeward) = std::io::pipe().context("could not make a pipe")?;
    let echo = std::thread::spawn(move || -> Result<()> {
        pin(other)?;
        let mut byte = [0];
        while there.read(&mut byte)? == 1 {
            homeward.write_all(&byte)?;
        }
        Ok(())
    });
    pin(cpus[0])?;
    let mut byte = [0];
    let mut figures = Vec::new();
    for _ in 0..runs {
        let mut ns = Vec::with_capacity(rounds);
        for _ in 0..rounds {
            let begin = Instant::now();
            outward.write_all(&byte)?;
            here.read_exact(&mut byte)?;
            ns.push(begin.elapsed().as_nanos());
        }
        ns.sort_unstable();
        figures.push(ns[rounds * 95 / 100]);
    }
    print(word, &figures);
    drop(outward);
    echo.join().ok().context("the echo failed")?
}
