//! What FxMark's calls take where nobody shares a thing: the times of figures 10 and 12 of CPS, which tells none: `cargo run --release -p bench-paper --bin calls`.
//!
//! One thread does on a tmpfs what `MRDM` and `DWOM` do in a loop (sslab-gatech/fxmark, src): it reads a directory, an operation an entry, and overwrites a block of 4 KiB.
//! A call is what remains where the kernel has nothing to do: the same write to `/dev/null`.

use std::fs::{self, File};
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use bench_harness::median;
use rustix::fs::RawDir;

const RUNS: usize = 51;
const ENTRIES: u64 = 20_000;
const WRITES: u32 = 50_000;
/// The C library's buffer for entries of a directory.
const BUFFER: usize = 32 << 10;

/// A directory that goes when it is dropped.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // It is in memory, and nothing else is to be done about it.
        let _gone = fs::remove_dir_all(&self.0);
    }
}

/// Prints name and nanoseconds of each, the least of some runs, since whatever else the machine does adds to it, and their median.
fn main() -> Result<()> {
    let path = PathBuf::from(format!("/dev/shm/ostler-calls-{}", std::process::id()));
    fs::create_dir(&path).context("a tmpfs at /dev/shm")?;
    let scratch = Scratch(path);
    for entry in 0..ENTRIES {
        File::create(scratch.0.join(format!("n_shdir_rd-0-{entry}.dat")))?;
    }
    report("entry", || entry(&scratch.0))?;
    let block = File::create(scratch.0.join("block"))?;
    block.write_all_at(&[1; 4096], 0)?;
    report("write", || write(&block))?;
    report("call", || write(&File::create("/dev/null")?))
}

fn report(name: &str, run: impl Fn() -> Result<f64>) -> Result<()> {
    let mut all = (0..RUNS).map(|_| run()).collect::<Result<Vec<f64>>>()?;
    let middle = median(&mut all);
    let least = all.first().context("no runs")?;
    println!("{name}: {least:.0} ns (median {middle:.0}, {RUNS} runs)");
    Ok(())
}

fn entry(path: &std::path::Path) -> Result<f64> {
    let mut buffer = vec![MaybeUninit::uninit(); BUFFER];
    let begins = Instant::now();
    let mut entries = RawDir::new(File::open(path)?, &mut buffer);
    let mut seen = 0_u64;
    while let Some(entry) = entries.next() {
        entry?;
        seen += 1;
    }
    let took = begins.elapsed();
    if seen < ENTRIES {
        bail!("{seen} entries of {ENTRIES}");
    }
    Ok(took.as_secs_f64() * 1e9 / seen as f64)
}

fn write(file: &File) -> Result<f64> {
    let block = [1; 4096];
    let begins = Instant::now();
    for _ in 0..WRITES {
        file.write_all_at(&block, 0)?;
    }
    Ok(begins.elapsed().as_secs_f64() * 1e9 / f64::from(WRITES))
}
