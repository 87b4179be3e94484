//! A guest's process, as far as a scheduler sees it: threads that compute, or that wake each other. It prints its threads' numbers, waits for a line
//! on its standard input, and prints when it began, when it was done, and what it saw.

use std::hint::black_box;
use std::io::{PipeReader, PipeWriter, Read as _, Write as _};
use std::sync::Barrier;

use anyhow::{Context as _, Result};
use rustix::time::{ClockId, clock_gettime};

/// What a worker does.
#[derive(Clone, Copy, Debug, clap::Subcommand)]
pub enum Work {
    /// A thread that computes.
    Loop {
        /// Rounds of a xorshift generator.
        rounds: u64,
    },
    /// Two threads that send each other messages by pipes, each of which wakes the other.
    Pair {
        /// Messages each way.
        messages: usize,
    },
}

/// Does it.
pub fn run(work: Work) -> Result<()> {
    match work {
        Work::Loop { rounds } => {
            println!("thread {}", own_number());
            go()?;
            let begin = now();
            compute(rounds);
            println!("span {begin} {}", now());
        }
        Work::Pair { messages } => pair(messages)?,
    }
    Ok(())
}

/// Waits to be told.
fn go() -> Result<()> {
    let mut line = String::new();
    std::io::stdin()
        .read_line(&mut line)
        .context("could not wait for the word to go")?;
    Ok(())
}

fn own_number() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// A clock that is the same on all cores, ns.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// A loop that no compiler shortens.
fn compute(rounds: u64) {
    let mut x = black_box(88_172_645_463_325_252_u64);
    for _ in 0..rounds {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
    }
    black_box(x);
}

/// One end of a pair: what it takes from, and what it sends to.
struct End {
    from: PipeReader,
    to: PipeWriter,
}

impl End {
    /// A message is the time at which it was sent.
    fn send(&mut self) -> Result<()> {
        self.to
            .write_all(&now().to_ne_bytes())
            .context("could not send")
    }

    /// Waits for one; how long it took to come.
    fn receive(&mut self) -> Result<u64> {
        let mut sent = [0; 8];
        self.from
            .read_exact(&mut sent)
            .context("could not receive")?;
        Ok(now().saturating_sub(u64::from_ne_bytes(sent)))
    }
}

fn pair(messages: usize) -> Result<()> {
    let (there, outward) = std::io::pipe().context("could not make a pipe")?;
    let (here, homeward) = std::io::pipe().context("could not make a pipe")?;
    let mut first = End {
        from: here,
        to: outward,
    };
    let mut second = End {
        from: there,
        to: homeward,
    };
    let begins = Barrier::new(3);
    std::thread::scope(|scope| -> Result<()> {
        let asks = scope.spawn(|| -> Result<_> {
            println!("thread {}", own_number());
            begins.wait();
            let begin = now();
            let mut ns = Vec::with_capacity(messages);
            for _ in 0..messages {
                first.send()?;
                ns.push(first.receive()?);
            }
            Ok((begin, now(), ns))
        });
        let answers = scope.spawn(|| -> Result<_> {
            println!("thread {}", own_number());
            begins.wait();
            let mut ns = Vec::with_capacity(messages);
            for _ in 0..messages {
                ns.push(second.receive()?);
                second.send()?;
            }
            Ok(ns)
        });
        let told = go();
        begins.wait();
        told?;
        let (begin, end, mut ns) = asks.join().ok().context("a thread failed")??;
        ns.extend(answers.join().ok().context("a thread failed")??);
        ns.sort_unstable();
        println!("p99 {}", ns[ns.len() * 99 / 100]);
        println!("span {begin} {end}");
        Ok(())
    })
}
