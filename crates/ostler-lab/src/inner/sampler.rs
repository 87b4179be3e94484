//! Once a second, the host as seen from outside the steward. It is also the sign of life that the lab listens for.

use std::collections::BTreeMap;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ostler_model::CpuSet;

use super::counters::{IrqMeter, cpus};
use super::guests::RunningGuest;
use super::say::Say;
use super::{MACHINE_CGROUP, read};
use ostler_outcome::events::{Event, GuestSample};

/// What is being sampled just now.
#[derive(Clone, Debug, Default)]
pub struct Scene {
    /// The cell that runs.
    pub cell: Option<u32>,
    /// The guests that run.
    pub guests: Vec<RunningGuest>,
    /// Interrupts so far.
    pub meter: IrqMeter,
}

/// A sampler that samples until it is dropped.
#[derive(Debug)]
pub struct Sampler {
    _until_dropped: Sender<()>,
}

/// Starts the sampler.
#[must_use]
pub fn start(say: Say, under_test: CpuSet, scene: Arc<Mutex<Scene>>) -> Sampler {
    let (until_dropped, dropped) = channel();
    std::thread::spawn(move || {
        let mut ticks = BTreeMap::new();
        let mut usage = BTreeMap::new();
        loop {
            let Ok((cell, guests)) = scene.lock().map(|mut scene| {
                // What can't be read now is counted the next time.
                let _ = scene.meter.look(&under_test);
                (scene.cell, scene.guests.clone())
            }) else {
                return;
            };
            let busy = busy(&read("/proc/stat").unwrap_or_default(), &mut ticks);
            let guests = guests
                .iter()
                .map(|guest| sample(guest, &mut usage))
                .collect();
            say.say(Event::Sample { cell, busy, guests });
            let ended = dropped.recv_timeout(Duration::from_secs(1));
            if ended != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    });
    Sampler {
        _until_dropped: until_dropped,
    }
}

/// Busy share of each CPU since the call before.
fn busy(stat: &str, before: &mut BTreeMap<u32, (u64, u64)>) -> Vec<f32> {
    cpus(stat)
        .map(|(cpu, busy, total)| {
            let (busy_then, total_then) =
                before.insert(cpu, (busy, total)).unwrap_or((busy, total));
            let span = total.saturating_sub(total_then).max(1) as f32;
            ((busy.saturating_sub(busy_then) as f32 / span) * 1000.0).round() / 1000.0
        })
        .collect()
}

fn sample(guest: &RunningGuest, usage: &mut BTreeMap<String, u64>) -> GuestSample {
    let cgroup = format!("{MACHINE_CGROUP}/{}", guest.name);
    let file = |name: &str| read(format!("{cgroup}/{name}")).unwrap_or_default();
    let usec = file("cpu.stat")
        .lines()
        .find_map(|l| l.strip_prefix("usage_usec ")?.parse::<u64>().ok())
        .unwrap_or(0);
    let then = usage.insert(guest.name.clone(), usec).unwrap_or(usec);
    GuestSample {
        name: guest.name.clone(),
        cpu_ms: usec.saturating_sub(then) / 1000,
        cpus: file("cpuset.cpus.effective")
            .trim()
            .parse()
            .unwrap_or_default(),
        frozen: file("cgroup.events").lines().any(|l| l == "frozen 1"),
        idle: file("cpu.idle").trim() == "1",
        work: guest.done().map(|done| done.work),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_shares_are_of_the_time_between() {
        let mut before = BTreeMap::new();
        let stat = |user: u32, idle: u32| format!("cpu0 {user} 0 0 {idle} 0 0 0 0 0 0\n");
        assert_eq!(
            busy(&stat(100, 100), &mut before),
            [0.0],
            "nothing is known at first"
        );
        assert_eq!(busy(&stat(125, 175), &mut before), [0.25]);
    }
}
