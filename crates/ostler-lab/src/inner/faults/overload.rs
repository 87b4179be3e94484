//! The host is overloaded many times over, and the steward, which has no privilege there, is told to end. What it set must be as it was,
//! and soon: whoever shuts a host down waits for it, and systemd kills what doesn't end in time.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use ostler_model::Class;

use super::{Ground, Verdict, wait_until};
use crate::inner::MACHINE_CGROUP;

/// Processes that spin, for each core.
const SPINNERS_PER_CORE: u32 = 8;
/// Periods under overload before it is told to end.
const PERIODS: usize = 10;
/// From being told to end until its cgroups are gone, and until it has ended itself. A ninth of each core is left for it and for all that the
/// kernel must do meanwhile; systemd waits for 90 s.
const ENDED_WITHIN: Duration = Duration::from_mins(1);

/// Does it.
pub fn end(ground: &mut Ground<'_>, verdict: &mut Verdict) -> anyhow::Result<()> {
    let before = ground.found()?;
    let steward = ground.start("partition = { policy = \"energy\" }")?;
    steward.settled(ground.running.len())?;
    let domain = PathBuf::from(MACHINE_CGROUP).join(&ground.guest(Class::LatencyCritical)?.name);
    let ours = domain.join("ostler.vcpu");
    anyhow::ensure!(
        ours.is_dir(),
        "the steward settled without {}",
        ours.display()
    );

    let spinners = ground.program.scenario.host.cpus.cores * SPINNERS_PER_CORE;
    let spinners = Spinners::start(spinners)?;
    steward.periods(PERIODS)?;
    let told = Instant::now();
    steward.tell_to_end()?;
    wait_until("the steward to take its cgroups away", ENDED_WITHIN, || {
        Ok(!ours.exists())
    })?;
    let undone = told.elapsed();
    steward.end()?;
    let ended = told.elapsed();
    let spun = spinners.0.len();
    drop(spinners);
    verdict.notes.push(format!(
        "beside {spun} spinning processes, its cgroups were gone {} ms after it was told to end, and itself after {} ms",
        undone.as_millis(),
        ended.as_millis()
    ));
    anyhow::ensure!(
        ended <= ENDED_WITHIN,
        "it ended only after {} s",
        ended.as_secs()
    );
    ground.found()?.must_be(&before)
}

/// They spin until they are dropped.
struct Spinners(Vec<Child>);

impl Spinners {
    fn start(count: u32) -> anyhow::Result<Spinners> {
        let mut all = Spinners(Vec::new());
        for _ in 0..count {
            let child = Command::new("sh")
                .args(["-c", "while :; do :; done"])
                .stdin(Stdio::null())
                .spawn()
                .context("could not start a process that spins")?;
            all.0.push(child);
        }
        Ok(all)
    }
}

impl Drop for Spinners {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
        }
        for child in &mut self.0 {
            let _ = child.wait();
        }
    }
}
