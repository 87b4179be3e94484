//! Instructions, counted by the machine's time and by Valgrind.

use anyhow::Result;
use bench_harness::{Args, Line};
use bench_host::Parts;

use crate::speeds::hosts;
use crate::works::Work;
use crate::{BENCH, hits};

/// Figures of each.
const RUNS: u32 = 3;
/// How far a count of instructions may be off, and all of them in the mean (the thesis's figures for its simulator against `perf`).
const ICOUNT: f64 = 0.13;
const ICOUNT_MEAN: f64 = 0.04;

/// Holds the numbers of instructions that the machine's time makes of a few programs against Valgrind's. The emulated host's kernel has its
/// ticks in between.
pub fn counts(args: &Args, parts: &Parts, broken: &mut Vec<String>) -> Result<()> {
    let (_, without) = hosts()?;
    let instruction_ns = without.host.instruction_ns;
    let host = parts.boot(&without, &parts.own_time)?;
    let mut offs = Vec::new();
    for work in Work::ALL {
        let name = work.name();
        let script = format!(
            "echo $$ > /sys/fs/cgroup/cgroup.procs\n\
             /lab/kernel-tests/bench-machine probe count COUNT {name} {RUNS}\necho END\n"
        );
        let took = host.run(&script, "END")?.of("COUNT")?;
        let ours: Vec<f64> = took.iter().map(|ns| ns / instruction_ns / 1e6).collect();
        let theirs = hits::instructions(work)? / 1e6;
        let line = Line::of(
            BENCH,
            &format!("icount-{name}"),
            "million instructions",
            ours,
            vec![theirs],
        );
        let off = (line.ours / theirs - 1.0).abs();
        offs.push(off);
        if off > ICOUNT {
            broken.push(format!(
                "icount-{name}: {:.2} million instructions here, {theirs:.2} by Valgrind: {:.1} % off, and {:.0} % is allowed",
                line.ours,
                off * 100.0,
                ICOUNT * 100.0
            ));
        }
        line.print(args);
    }
    let mean = offs.iter().sum::<f64>() / offs.len() as f64;
    if mean > ICOUNT_MEAN {
        broken.push(format!(
            "icount: {:.1} % off in the mean of {} programs, and {:.0} % is allowed",
            mean * 100.0,
            offs.len(),
            ICOUNT_MEAN * 100.0
        ));
    }
    Ok(())
}
