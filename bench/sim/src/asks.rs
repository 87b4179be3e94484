//! What a guest's vCPUs take to answer the steward, which asks its agent for the guest's state twice a second; from a trace of wake-ups and switches.
//!
//! A question is a wake-up of the guest's vsock worker by the thread that keeps agents' connections, and ends as that worker wakes the thread for the answer. Whatever else the guest does meanwhile is in it, so
//! nothing is to be asked of it but that.

use std::collections::{HashMap, HashSet};

use anyhow::Result;

use super::tails::{Kind, Seen, seen};

/// The thread of the steward that keeps agents' connections.
const ASKS: &str = "ostler-agents-";
/// Names of workers begin so.
const WORKER: &str = " comm=vhost-";

/// What vCPUs have had by a time.
#[derive(Default)]
struct Ran {
    /// Of those that have left their cores, s.
    over: f64,
    /// By core: which has it, and since when.
    on: HashMap<u32, f64>,
    /// What was traced of them.
    events: u32,
}

impl Ran {
    fn by(&self, at: f64, event: f64) -> f64 {
        let now: f64 = self.on.values().map(|since| at - since).sum();
        self.over + now - f64::from(self.events) * event
    }
}

/// CPU time of a guest's vCPUs for each answer within a time, s; `event` is what a traced event takes, s.
pub fn asks(
    lines: impl Iterator<Item = std::io::Result<String>>,
    threads: &HashMap<u32, Kind>,
    within: &std::ops::Range<f64>,
    event: f64,
) -> Result<Vec<f64>> {
    let is_vcpu = |pid: &u32| threads.get(pid) == Some(&Kind::Vcpu);
    let mut ran = Ran::default();
    let mut cores: HashMap<u32, u32> = HashMap::new();
    // By worker: what vCPUs had had when it was last asked, and what answers took. Those that never wake one of the guest's are others'.
    let mut asked: HashMap<u32, f64> = HashMap::new();
    let mut took: HashMap<u32, Vec<f64>> = HashMap::new();
    let mut own_workers: HashSet<u32> = HashSet::new();
    for line in lines {
        let line = line?;
        let Some((at, cpu, seen)) = seen(&line) else {
            continue;
        };
        let own = cores.get(&cpu).copied().unwrap_or(0);
        ran.events += u32::from(is_vcpu(&own));
        match seen {
            Seen::Waking { pid, by_irq, .. } if !by_irq => {
                if is_vcpu(&pid) {
                    own_workers.insert(own);
                } else if line.trim_start().starts_with(ASKS) && line.contains(WORKER) {
                    asked.insert(pid, ran.by(at, event));
                } else if line.contains(" comm=ostler-agents ")
                    && let Some(before) = asked.remove(&own)
                    && within.contains(&at)
                {
                    took.entry(own)
                        .or_default()
                        .push(ran.by(at, event) - before);
                }
            }
            Seen::Switch { next, .. } => {
                cores.insert(cpu, next);
                if let Some(since) = ran.on.remove(&cpu) {
                    ran.over += at - since;
                }
                if is_vcpu(&next) {
                    ran.on.insert(cpu, at);
                }
            }
            _ => {}
        }
    }
    took.retain(|worker, _| own_workers.contains(worker));
    Ok(took.into_values().flatten().collect())
}

/// Tells their mean, with its standard error.
pub fn say(which: &str, took: &[f64], ns: f64) {
    if took.is_empty() {
        return;
    }
    let instructions = |s: f64| s * 1e9 / ns;
    let mean = took.iter().sum::<f64>() / took.len() as f64;
    let off = took.iter().map(|took| (took - mean).powi(2)).sum::<f64>();
    let error = (off / took.len() as f64).sqrt() / (took.len() as f64).sqrt();
    println!(
        "{which}: {:.0} ± {:.0} instructions an answer ({} of them)",
        instructions(mean),
        instructions(error),
        took.len()
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_what_vcpus_ran_until_the_steward_was_woken() {
        let switch = |who: &str, pid: u32, cpu: u32, at: &str, next: u32| {
            format!(
                "{who}-{pid} [00{cpu}] d..2. {at}: sched_switch: prev_comm={who} prev_pid={pid} prev_prio=120 prev_state=S ==> next_comm=x next_pid={next} next_prio=120"
            )
        };
        let waking = |who: &str, pid: u32, cpu: u32, at: &str, whom: &str, to: u32| {
            format!(
                "{who}-{pid} [00{cpu}] d..3. {at}: sched_waking: comm={whom} pid={to} prio=120 target_cpu=000"
            )
        };
        let lines = [
            // Before it is asked.
            switch("<idle>", 0, 0, "1.000000", 10),
            // Worker 21 is another guest's, whose answer is none of this one's; worker 20 this one's.
            switch("<idle>", 0, 7, "1.001000", 30),
            waking("ostler-agents", 30, 7, "1.002000", "vhost-4", 21),
            waking("ostler-agents", 30, 7, "1.003000", "vhost-3", 20),
            switch("<idle>", 0, 1, "1.003500", 20),
            waking("vhost-3", 20, 1, "1.003600", "CPU 1/KVM", 11),
            switch("vhost-3", 20, 1, "1.003700", 11),
            // vCPU 10 has had 2 ms since, and 11 has 4.
            switch("CPU 0/KVM", 10, 0, "1.005000", 0),
            switch("<idle>", 0, 2, "1.006000", 21),
            waking("vhost-4", 21, 2, "1.007000", "ostler-agents", 30),
            switch("CPU 1/KVM", 11, 1, "1.007700", 20),
            waking("vhost-3", 20, 1, "1.008000", "ostler-agents", 30),
            // It says that it has got it, which nobody answers.
            waking("ostler-agents", 30, 7, "1.009000", "vhost-3", 20),
            // The next question ends outside.
            waking("ostler-agents", 30, 7, "1.509000", "vhost-3", 20),
            waking("vhost-3", 20, 1, "1.518000", "ostler-agents", 30),
        ];
        let threads = HashMap::from([(10, Kind::Vcpu), (11, Kind::Vcpu)]);
        let read = |event| {
            let lines = lines.iter().map(|line| Ok(line.clone()));
            asks(lines, &threads, &(1.0..1.5), event).expect("a trace")
        };
        let us = |times: &[f64]| -> Vec<f64> { times.iter().map(|s| (s * 1e6).round()).collect() };
        assert_eq!(us(&read(0.0)), [6000.0]);
        // Two events were traced of vCPUs meanwhile, both switches from one.
        assert_eq!(us(&read(9e-6)), [6000.0 - 18.0]);
    }
}
