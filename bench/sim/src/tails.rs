//! What of a request is left to do once the next stage has been told, and how long it takes a core that sleeps to begin: from a trace of wake-ups and switches.
//!
//! A thread of the guest's tells the other kind by waking it: a vCPU by the doorbell of an answer, a worker by an interrupt. What it does from then until it sleeps is in nobody's way. Only wake-ups of its own count, none that
//! an interrupt brought on its core.
//!
//! A vCPU that wakes another has a lock meanwhile which that one takes first: where it loses its very core to it, the other spins for the lock (`crates/ostler-sim/src/tenants/held.rs`).

use std::collections::HashMap;

use anyhow::Result;

/// Whose a thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Vcpu,
    Worker,
}

/// A line of a trace: who is woken, who has a core now, or what a NIC is handed.
#[derive(Debug, PartialEq)]
pub enum Seen {
    /// On which core the one that is woken is to be, and whether an interrupt of the waker's core woke it.
    Waking { pid: u32, to: u32, by_irq: bool },
    /// Whether the thread before sleeps, and who is next.
    Switch { sleeps: bool, next: u32 },
    /// On which NIC, by which of its queues, and whether an interrupt of the core's does it.
    Transmit {
        dev: String,
        queue: u32,
        by_irq: bool,
    },
    /// A guest is interrupted.
    Msi,
    /// A handler or a softirq begins.
    Enters,
    /// It ends.
    Leaves,
}

/// When, on which core, and what.
pub fn seen(line: &str) -> Option<(f64, u32, Seen)> {
    let (head, what) = line.split_once(": ")?;
    let (_, head) = head.split_once('[')?;
    let (cpu, head) = head.split_once(']')?;
    let mut head = head.split_whitespace();
    // irqs-off, need-resched, hardirq/softirq, preempt-depth: Documentation/trace/ftrace.rst
    let (flags, at) = (head.next()?, head.next()?);
    let (event, rest) = what.split_once(": ")?;
    let after = |key: &str| rest.split_once(key)?.1.split_whitespace().next();
    let by_irq = matches!(flags.as_bytes().get(2), Some(b'h' | b's' | b'H'));
    let seen = match event {
        "sched_waking" => Seen::Waking {
            pid: after(" pid=")?.parse().ok()?,
            to: after("target_cpu=")?.parse().ok()?,
            by_irq,
        },
        "sched_switch" => Seen::Switch {
            sleeps: after("prev_state=")?.starts_with('S'),
            next: after("next_pid=")?.parse().ok()?,
        },
        "net_dev_start_xmit" => Seen::Transmit {
            dev: rest
                .strip_prefix("dev=")?
                .split_whitespace()
                .next()?
                .to_owned(),
            queue: after("queue_mapping=")
                .and_then(|queue| queue.parse().ok())
                .unwrap_or(0),
            by_irq,
        },
        "kvm_msi_set_irq" => Seen::Msi,
        "irq_handler_entry" | "softirq_entry" => Seen::Enters,
        "irq_handler_exit" | "softirq_exit" => Seen::Leaves,
        _ => return None,
    };
    Some((at.parse().ok()?, cpu.parse().ok()?, seen))
}

/// Times, s.
#[derive(Debug, Default, PartialEq)]
pub struct Tails {
    /// From when a vCPU that sleeps then has told a worker, to the switch to another.
    pub vcpu: Vec<f64>,
    /// From when a worker has told a vCPU, likewise.
    pub worker: Vec<f64>,
    /// From when any of them is woken whose core sleeps, to the switch to it.
    pub idle: Vec<f64>,
    /// From when another core wakes a vCPU whose core somebody else has had for [`ALONE`], to the switch to it.
    pub stops: Vec<f64>,
    /// From when a vCPU has taken the core of the one that woke it, until it sleeps, where that one has had no core meanwhile.
    pub held: Vec<f64>,
}

/// Who has had a core so long, s, computes there, and the timer of a slice is over that was set for anybody before: so the core is interrupted for who comes.
const ALONE: f64 = 0.003;

/// Who has a core, since when, whom it has told last and when; and how often it has.
#[derive(Clone, Copy, Default)]
struct Run {
    pid: u32,
    since: f64,
    told: Option<f64>,
    times: u32,
    /// Whom of its own kind it has woken last.
    woke: Option<u32>,
}

/// What a trace tells of a guest's threads, of which so much is known, within a time.
pub fn tails(
    lines: impl Iterator<Item = std::io::Result<String>>,
    threads: &HashMap<u32, Kind>,
    within: &std::ops::Range<f64>,
) -> Result<Tails> {
    let mut all = Tails::default();
    let mut cores: HashMap<u32, Run> = HashMap::new();
    let mut woken: HashMap<u32, (f64, u32)> = HashMap::new();
    let mut stops: HashMap<u32, (f64, u32)> = HashMap::new();
    // Those that took their wakers' cores: whose, and since when.
    let mut took: HashMap<u32, (u32, f64)> = HashMap::new();
    for line in lines {
        let line = line?;
        let Some((at, cpu, seen)) = seen(&line) else {
            continue;
        };
        match seen {
            Seen::Waking { pid, to, by_irq } => {
                let Some(kind) = threads.get(&pid) else {
                    continue;
                };
                if cores.get(&to).is_some_and(|run| run.pid == 0) {
                    woken.insert(pid, (at, to));
                }
                let computes = |run: &Run| {
                    run.pid != 0 && !threads.contains_key(&run.pid) && at - run.since >= ALONE
                };
                stops.remove(&pid);
                if *kind == Kind::Vcpu && to != cpu && cores.get(&to).is_some_and(computes) {
                    stops.insert(pid, (at, to));
                }
                if let Some(run) = cores.get_mut(&cpu).filter(|_| !by_irq)
                    && let Some(own) = threads.get(&run.pid)
                {
                    if own == kind {
                        run.woke = Some(pid);
                    } else {
                        run.told = Some(at);
                        run.times += 1;
                    }
                }
            }
            Seen::Transmit { .. } | Seen::Msi | Seen::Enters | Seen::Leaves => {}
            Seen::Switch { sleeps, next } => {
                let run = cores.insert(
                    cpu,
                    Run {
                        pid: next,
                        since: at,
                        ..Run::default()
                    },
                );
                let gone = run.and_then(|run| took.remove(&run.pid));
                if let Some((_, since)) = gone.filter(|_| sleeps)
                    && within.contains(&since)
                {
                    all.held.push(at - since);
                }
                took.retain(|_, (waker, _)| *waker != next);
                if let Some(run) = run.filter(|run| !sleeps && run.woke == Some(next))
                    && threads.get(&next) == Some(&Kind::Vcpu)
                {
                    took.insert(next, (run.pid, at));
                }
                // More than one may be requests of which each has its own.
                if let Some(run) = run.filter(|run| sleeps && run.times == 1)
                    && let Some(told) = run.told.filter(|told| within.contains(told))
                {
                    match threads.get(&run.pid) {
                        Some(Kind::Vcpu) => all.vcpu.push(at - told),
                        Some(Kind::Worker) => all.worker.push(at - told),
                        None => {}
                    }
                }
                for (woken, times) in [(&mut woken, &mut all.idle), (&mut stops, &mut all.stops)] {
                    if let Some((since, to)) = woken.remove(&next)
                        && to == cpu
                        && within.contains(&since)
                    {
                        times.push(at - since);
                    }
                }
            }
        }
    }
    Ok(all)
}

/// The median of times, the mean, and how many there are.
pub fn middle(times: &mut [f64]) -> Option<(f64, f64, usize)> {
    times.sort_by(f64::total_cmp);
    let median = *times.get(times.len() / 2)?;
    let mean = times.iter().sum::<f64>() / times.len() as f64;
    Some((median, mean, times.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_after_the_last_wake_up_is_told_of_those_that_sleep_then() {
        let text = "\
            <idle>-0 [000] d..2. 1.000000: sched_switch: prev_comm=x prev_pid=9 prev_prio=120 prev_state=S ==> next_comm=swapper/0 next_pid=0 next_prio=120
            <idle>-0 [001] d.h3. 1.000100: sched_waking: comm=CPU 0/KVM pid=5 prio=120 target_cpu=000
            <idle>-0 [000] d..2. 1.000170: sched_switch: prev_comm=swapper/0 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=CPU 0/KVM next_pid=5 next_prio=120
            CPU 0/KVM-5 [000] d.s3. 1.000200: sched_waking: comm=vhost-4 pid=7 prio=120 target_cpu=001
            CPU 0/KVM-5 [000] d..3. 1.000300: sched_waking: comm=vhost-4 pid=7 prio=120 target_cpu=001
            vhost-4-7 [001] d..2. 1.000400: sched_switch: prev_comm=y prev_pid=8 prev_prio=120 prev_state=S ==> next_comm=vhost-4 next_pid=7 next_prio=120
            vhost-4-7 [001] d..3. 1.000450: sched_waking: comm=CPU 0/KVM pid=5 prio=120 target_cpu=000
            CPU 0/KVM-5 [000] d..2. 1.000500: sched_switch: prev_comm=CPU 0/KVM prev_pid=5 prev_prio=120 prev_state=S ==> next_comm=swapper/0 next_pid=0 next_prio=120
            vhost-4-7 [001] d..2. 1.000550: sched_switch: prev_comm=vhost-4 prev_pid=7 prev_prio=120 prev_state=R ==> next_comm=y next_pid=8 next_prio=120";
        let threads = HashMap::from([(5, Kind::Vcpu), (7, Kind::Worker)]);
        let lines = || text.lines().map(|line| Ok(line.trim().to_owned()));
        let us = |times: &[f64]| times.iter().map(|t| (t * 1e6).round()).collect::<Vec<_>>();
        let all = tails(lines(), &threads, &(0.0..2.0)).expect("a trace");
        // The worker was taken off its core, and its own wake-up found a core with a thread.
        assert_eq!(
            (us(&all.vcpu), us(&all.worker), us(&all.idle)),
            (vec![200.0], vec![], vec![70.0])
        );
        assert_eq!(
            tails(lines(), &threads, &(1.5..2.0)).expect("a trace"),
            Tails::default()
        );
        assert_eq!(
            all.held,
            [] as [f64; 0],
            "nobody has taken its waker's core"
        );
        assert_eq!(middle(&mut [3.0, 1.0, 8.0]), Some((3.0, 4.0, 3)));
    }

    /// vCPU 5 wakes vCPU 6, loses its core to it and is back: `meanwhile` where it has another core before, or none.
    fn held(meanwhile: &str, state: &str) -> Vec<f64> {
        let text = format!(
            "CPU 1/KVM-5 [000] d..2. 1.000000: sched_switch: prev_comm=x prev_pid=9 prev_prio=120 prev_state=S ==> next_comm=CPU 1/KVM next_pid=5 next_prio=120
            CPU 1/KVM-5 [000] d..3. 1.000100: sched_waking: comm=CPU 2/KVM pid=6 prio=120 target_cpu=000
            CPU 1/KVM-5 [000] d..2. 1.000200: sched_switch: prev_comm=CPU 1/KVM prev_pid=5 prev_prio=120 prev_state=R ==> next_comm=CPU 2/KVM next_pid=6 next_prio=120
            {meanwhile}
            CPU 2/KVM-6 [000] d..2. 1.002400: sched_switch: prev_comm=CPU 2/KVM prev_pid=6 prev_prio=120 prev_state={state} ==> next_comm=CPU 1/KVM next_pid=5 next_prio=120"
        );
        let threads = HashMap::from([(5, Kind::Vcpu), (6, Kind::Vcpu)]);
        let lines = text.lines().map(|line| Ok(line.trim().to_owned()));
        let all = tails(lines, &threads, &(0.0..2.0)).expect("a trace");
        all.held.iter().map(|t| (t * 1e6).round()).collect()
    }

    #[test]
    fn whoever_computes_is_stopped_for_one_that_another_core_wakes() {
        let text = |waker: u32, since: &str| {
            format!(
                "x-9 [000] d..2. {since}: sched_switch: prev_comm=y prev_pid=4 prev_prio=120 prev_state=S ==> next_comm=CPU 0/KVM next_pid=9 next_prio=120
                vhost-4-7 [00{waker}] d..3. 1.010000: sched_waking: comm=CPU 0/KVM pid=5 prio=120 target_cpu=000
                CPU 0/KVM-9 [000] d..2. 1.010180: sched_switch: prev_comm=CPU 0/KVM prev_pid=9 prev_prio=120 prev_state=R ==> next_comm=CPU 0/KVM next_pid=5 next_prio=120"
            )
        };
        let threads = HashMap::from([(5, Kind::Vcpu), (7, Kind::Worker)]);
        let stops = |waker, since| {
            let text = text(waker, since);
            let lines = text.lines().map(|line| Ok(line.trim().to_owned()));
            let all = tails(lines, &threads, &(0.0..2.0)).expect("a trace");
            let us = all.stops.iter().map(|t| (t * 1e6).round());
            us.collect::<Vec<_>>()
        };
        assert_eq!(stops(1, "1.005000"), [180.0]);
        assert_eq!(stops(1, "1.008000"), [] as [f64; 0], "a timer may be left");
        assert_eq!(stops(0, "1.005000"), [] as [f64; 0], "by its own interrupt");
    }

    #[test]
    fn vcpus_that_took_their_wakers_cores_are_told_until_they_sleep() {
        let elsewhere = "x-8 [001] d..2. 1.001000: sched_switch: prev_comm=x prev_pid=8 prev_prio=120 prev_state=S ==> next_comm=CPU 1/KVM next_pid=5 next_prio=120";
        assert_eq!(held("", "S"), [2200.0]);
        assert_eq!(held(elsewhere, "S"), [] as [f64; 0], "its waker was back");
        assert_eq!(held("", "R"), [] as [f64; 0], "it was taken off");
    }
}
