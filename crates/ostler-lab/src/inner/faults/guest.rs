//! Guests that die, and guests whose monitor answers no more.

use anyhow::Context;
use ostler_model::Class;
use rustix::process::{Pid, Signal};
use serde_json::Value;

use super::{Ground, Verdict};

const POLICY: &str = "partition = { policy = \"energy\" }\n";
/// Periods that are looked at.
const PERIODS: usize = 30;

/// A guest's QEMU is killed: the steward forgets the guest, goes on with the others, and undo has nothing to complain of.
pub fn dies(ground: &mut Ground<'_>, verdict: &mut Verdict) -> anyhow::Result<()> {
    let victim = ground.guest(Class::BestEffort)?.clone();
    let other = ground.guest(Class::LatencyCritical).ok().cloned();
    let before = ground.found()?;
    let steward = ground.start(POLICY)?;
    steward.settled(ground.running.len())?;

    victim.kill();
    let mut periods = 0;
    steward.until("the guest to be forgotten", |period| {
        periods += 1;
        guest(period, &victim.name).is_none()
    })?;
    let after = steward.periods(PERIODS)?;
    // The write that was under way may fail; one that fails for good is tried forever.
    let late = after.iter().rev().take(PERIODS / 2);
    let repeated: Vec<_> = late
        .flat_map(|period| period["failures"].as_array().into_iter().flatten())
        .map(ToString::to_string)
        .collect();
    anyhow::ensure!(
        repeated.is_empty(),
        "writes still fail {PERIODS} periods later: {}",
        repeated[0]
    );
    if let (Some(other), Some(last)) = (&other, after.last()) {
        let planned = guest(last, &other.name).is_some_and(|g| !g["vcpu_cpus"].is_null());
        anyhow::ensure!(planned, "{} is no longer planned for", other.name);
    }
    steward.kill()?;
    ground.undo()?;
    ground.found()?.must_be(&before.without(&victim))?;
    verdict
        .notes
        .push(format!("the dead guest was gone within {periods} periods"));
    ground
        .prepare(false)
        .context("the guest could not be started again")
}

/// A guest's QEMU is stopped, its monitor with it: periods go on in time, the other guests with them.
pub fn hangs(ground: &mut Ground<'_>, verdict: &mut Verdict) -> anyhow::Result<()> {
    let victim = ground.guest(Class::BestEffort)?.clone();
    let other = ground.guest(Class::LatencyCritical).ok().cloned();
    let before = ground.found()?;
    let steward = ground.start(POLICY)?;
    steward.settled(ground.running.len())?;
    let quiet = missed(&steward.periods(PERIODS)?);

    let stopped = Stopped::stop(victim.pid)?;
    let during = steward.periods(2 * PERIODS)?;
    let while_hung = missed(&during);
    // A loop that waited for the monitor, if only for a tenth of a second, would miss one period after each.
    let allowed = 2 * quiet + PERIODS as u64;
    anyhow::ensure!(
        while_hung <= allowed,
        "{while_hung} periods were missed in {} while the monitor hung; {quiet} in {PERIODS} before",
        2 * PERIODS
    );
    if let (Some(other), Some(last)) = (&other, during.last()) {
        let planned = guest(last, &other.name).is_some_and(|g| !g["vcpu_cpus"].is_null());
        anyhow::ensure!(planned, "{} is no longer planned for", other.name);
    }
    drop(stopped);
    steward.until("the guest to be there again", |period| {
        guest(period, &victim.name).is_some_and(|g| !g["vcpu_cpus"].is_null())
    })?;
    // Told to end, it puts everything back itself.
    steward.end()?;
    verdict.notes.push(format!(
        "{while_hung} of {} periods missed while a monitor hung, {quiet} of {PERIODS} before",
        2 * PERIODS
    ));
    ground.found()?.must_be(&before)
}

/// How many periods the steward missed between the first and the last of these.
pub(super) fn missed(periods: &[Value]) -> u64 {
    let of = |period: Option<&Value>| period.and_then(|p| p["missed_periods"].as_u64());
    of(periods.last())
        .unwrap_or(0)
        .saturating_sub(of(periods.first()).unwrap_or(0))
}

/// A guest in a period's line.
pub(super) fn guest<'a>(period: &'a Value, name: &str) -> Option<&'a Value> {
    period["guests"]
        .as_array()?
        .iter()
        .find(|g| g["name"] == name)
}

/// A process that is stopped until this is dropped.
struct Stopped(Pid);

impl Stopped {
    fn stop(pid: u32) -> anyhow::Result<Stopped> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let pid = pid.context("the guest has no process number")?;
        rustix::process::kill_process(pid, Signal::STOP).context("could not stop the guest")?;
        Ok(Stopped(pid))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(self.0, Signal::CONT);
    }
}
