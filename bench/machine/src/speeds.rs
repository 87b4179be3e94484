//! How fast the emulated host is: millions of instructions per second of its emulator's CPU time, on one core and more.
//!
//! By CPU time and not by the clock, since what else the real machine does would be measured otherwise: a core's speed is what one real
//! core's whole time would get out of it. What cores wait for each other is in it, as far as they spin.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use bench_harness::{Args, Line, cpu, median};
use bench_host::{Host, Parts};
use ostler_lab::image::LabDir;
use ostler_lab::machine::Time;
use ostler_lab::scenario::{self, Scenario};
use ostler_lab::up::State;

use crate::BENCH;

/// Numbers that a core sorts and searches for: they don't fit its L2.
const WORK: u32 = 400_000;
/// How often in the longer of two sessions, beyond once.
const SORTS: u32 = 4;
/// Figures of each.
const RUNS: u32 = 3;
/// On so many cores.
const CORES: [u32; 4] = [1, 2, 4, 8];
/// A host with caches, and the same with no more than a clock.
pub fn hosts() -> Result<(Scenario, Scenario)> {
    let caches = scenario::parse(include_str!("speed.toml"), Path::new("speed.toml"))?;
    let mut without = caches.clone();
    without.host.caches = None;
    Ok((caches, without))
}

/// How long the same work took.
struct Speed {
    /// By the emulated host's clock, ns.
    inside_ns: f64,
    /// Of the emulator's CPU time, s: a figure a run.
    cpu_s: Vec<f64>,
}

/// Measures it with caches, counting instructions and by plain TCG, in a boot of each.
pub fn speeds(args: &Args, parts: &Parts) -> Result<()> {
    let (caches, without) = hosts()?;
    let own = &parts.own_time;
    let measure = |scenario, time: &Time| in_host(&parts.boot(scenario, time)?);
    let modelled = measure(&caches, own)?;
    let counted = measure(&without, own)?;
    let plain = measure(&without, &Time::Wall { plugin: None })?;

    for (at, cores) in CORES.into_iter().enumerate() {
        // Without caches, an instruction costs the same whatever it does: its time tells how many there were.
        let count = f64::from(cores) * counted[at].inside_ns / without.host.instruction_ns;
        let mips = |speed: &Speed| -> Vec<f64> {
            let figures = speed.cpu_s.iter().map(|s| count / s / 1e6);
            figures.collect()
        };
        for (case, ours) in [("", &modelled), ("-instructions", &counted)] {
            let case = format!("speed-{cores}{case}");
            Line::of(BENCH, &case, "MIPS", mips(&ours[at]), mips(&plain[at])).print(args);
        }
    }
    Ok(())
}

/// Sorts and searches on so many cores at once. What it takes is the difference between many runs and one: the program's start, its
/// memory's first use and the session itself are in both.
fn in_host(host: &Host) -> Result<Vec<Speed>> {
    let lab = LabDir::detect();
    let used = || -> Result<f64> {
        let state = State::read(&lab).context("the lab has ended by itself")?;
        cpu::of_process(state.pid).context("could not read the emulator's CPU time in /proc")
    };
    let session = |cores: u32, runs: u32| {
        let script = format!(
            "echo $$ > /sys/fs/cgroup/cgroup.procs\n\
             /lab/kernel-tests/bench-machine probe mix MIX {WORK} {cores} {runs}\necho END\n"
        );
        let before = used()?;
        let printed = host.run(&script, "END")?;
        anyhow::Ok((printed.of("MIX")?, used()? - before))
    };
    let mut all = Vec::new();
    for cores in CORES {
        let (mut inside, mut cpu_s) = (Vec::new(), Vec::new());
        for _ in 0..RUNS {
            let (_, one) = session(cores, 1)?;
            let (took, many) = session(cores, 1 + SORTS)?;
            inside.extend(took);
            let each = (many - one) / f64::from(SORTS);
            ensure!(
                each > 0.0,
                "{SORTS} sorts more took no more CPU time, {one} s and {many} s: too little for a figure"
            );
            cpu_s.push(each);
        }
        all.push(Speed {
            inside_ns: median(&mut inside),
            cpu_s,
        });
    }
    Ok(all)
}
