//! What the load generator's thread takes for what it does: from a trace of its system calls, of what its driver is handed, and of switches and interrupts.
//!
//! It looks for what is to be done (`epoll_wait`), reads what has come, one answer after the other, and sends what is due likewise ([`ostler_load`]'s loop). What it takes from one of these to the next is told by
//! what they are; what comes upon it meanwhile is no part of that.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use anyhow::{Context as _, Result};

use super::overhead::{Overhead, is_short, told};

/// The load generator's threads are called so.
pub const NAME: &str = "ostler-load";
/// What is to be traced.
pub const EVENTS: &str = "sched_switch,irq:irq_handler_entry,irq:irq_handler_exit,irq:softirq_entry,irq:softirq_exit,syscalls:sys_enter_epoll_wait,syscalls:sys_exit_epoll_wait,syscalls:sys_exit_recvfrom,syscalls:sys_exit_sendto,net:net_dev_start_xmit";
/// Who slept so long has gone to sleep, s.
const ASLEEP: f64 = 1e-4;
/// A packet that is no longer holds no request.
const EMPTY: u64 = 70;

/// Where the thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum At {
    /// It has a core from now on.
    Runs,
    /// It knows what there is to be done.
    Knows,
    /// It has read an answer.
    Read,
    /// Its driver has a request.
    Handed,
    /// It has sent one.
    Sent,
    /// It looks for what there is to be done.
    Looks,
    /// It sleeps.
    Sleeps,
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            At::Runs => "it runs",
            At::Knows => "it knows what there is",
            At::Read => "an answer is read",
            At::Handed => "the driver has a request",
            At::Sent => "a request is sent",
            At::Looks => "it looks for what there is",
            At::Sleeps => "it sleeps",
        })
    }
}

/// What it took from one to the next, s, each time.
pub type Took = BTreeMap<(At, At), Vec<f64>>;

/// What a thread does.
#[derive(Debug, Default)]
struct Thread {
    took: Took,
    last: Option<(f64, At)>,
    /// What has come upon it since, s.
    lost: f64,
    reads: u64,
    runs: Vec<f64>,
    sleeps: Vec<f64>,
}

impl Thread {
    fn comes(&mut self, time: f64, at: At, overhead: Overhead) {
        if let Some((before, from)) = self.last.replace((time, at)) {
            let took = time - before - self.lost - overhead.event;
            if from != At::Sleeps {
                self.took.entry((from, at)).or_default().push(took);
            }
        }
        self.lost = 0.0;
        match at {
            At::Runs => self.runs.push(time),
            At::Sleeps => self.sleeps.push(time),
            At::Read => self.reads += 1,
            _ => {}
        }
    }
}

/// What the thread took that reads answers, and from when requests were due while it slept to the switch to it; of `due` times within the trace.
pub fn took(
    lines: impl Iterator<Item = std::io::Result<String>>,
    due: &[f64],
    overhead: Overhead,
) -> Result<(Took, Vec<f64>)> {
    let mut threads: HashMap<u32, Thread> = HashMap::new();
    let mut entered: HashMap<u32, Vec<f64>> = HashMap::new();
    for line in lines {
        let line = line?;
        let Some((time, cpu, event, rest)) = told(&line) else {
            continue;
        };
        if event == "sched_switch" {
            let who = |key: &str| {
                let (_, after) = rest.split_once(&format!("{key}_comm={NAME} {key}_pid="))?;
                after.split_whitespace().next()?.parse::<u32>().ok()
            };
            if let Some(thread) = who("prev") {
                let thread = threads.entry(thread).or_default();
                if rest.contains("prev_state=S") {
                    thread.comes(time, At::Sleeps, overhead);
                } else {
                    // Whoever takes its core isn't part of it.
                    thread.last = None;
                }
            }
            if let Some(thread) = who("next") {
                threads
                    .entry(thread)
                    .or_default()
                    .comes(time, At::Runs, overhead);
            }
            continue;
        }
        let Some(thread) = of(&line).and_then(|pid| threads.get_mut(&pid)) else {
            continue;
        };
        if is_short(event) {
            let entered = entered.entry(cpu).or_default();
            if event.ends_with("entry") {
                entered.push(time);
            } else if let Some(since) = entered.pop().filter(|_| entered.is_empty()) {
                thread.lost += time - since + overhead.short + overhead.way;
            }
            continue;
        }
        if let Some(at) = at(event, rest) {
            thread.comes(time, at, overhead);
        }
    }
    let thread = threads.into_values().max_by_key(|thread| thread.reads);
    let thread = thread.filter(|thread| thread.reads > 0);
    let thread = thread.with_context(|| {
        format!(
            "the load generator reads nothing in the trace; name runs of the lab that were traced with `--trace {EVENTS}`"
        )
    })?;
    let mut late = Vec::new();
    for due in due {
        let ran = thread.runs.partition_point(|at| at <= due);
        let slept = thread.sleeps.partition_point(|at| at <= due);
        let (Some(before), Some(slept)) = (
            ran.checked_sub(1).map(|at| thread.runs[at]),
            slept.checked_sub(1).map(|at| thread.sleeps[at]),
        ) else {
            continue;
        };
        if let Some(runs) = thread.runs.get(ran)
            && slept > before
            && due - slept > ASLEEP
        {
            late.push(runs - due);
        }
    }
    Ok((thread.took, late))
}

/// Whose line it is, where it is one of the load generator's.
fn of(line: &str) -> Option<u32> {
    let (who, _) = line.split_once('[')?;
    let (name, pid) = who.trim().rsplit_once('-')?;
    (name == NAME).then(|| pid.parse().ok())?
}

/// Where it is then, if the event tells.
fn at(event: &str, rest: &str) -> Option<At> {
    match event {
        "net_dev_start_xmit" => {
            let (_, length) = rest.split_once(" len=")?;
            let length: u64 = length.split_whitespace().next()?.parse().ok()?;
            (length > EMPTY).then_some(At::Handed)
        }
        "sys_epoll_wait" if rest.starts_with('(') => Some(At::Looks),
        "sys_epoll_wait" => Some(At::Knows),
        "sys_recvfrom" => Some(At::Read),
        "sys_sendto" => Some(At::Sent),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_thread_takes_is_told_by_what_it_does() {
        let text = "\
            <idle>-0 [007] d..2. 1.000000: sched_switch: prev_comm=swapper/7 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=ostler-load next_pid=30 next_prio=120
            ostler-load-30 [007] ..... 1.000020: sys_epoll_wait -> 0x1
            ostler-load-30 [007] ..... 1.000050: sys_recvfrom -> 0x4d
            ostler-load-30 [007] d.h1. 1.000060: irq_handler_entry: irq=65 name=eth1-rx-0
            ostler-load-30 [007] d.h1. 1.000062: irq_handler_exit: irq=65 ret=handled
            ostler-load-30 [007] ..s1. 1.000063: softirq_entry: vec=3 [action=NET_RX]
            ostler-load-30 [007] d.h1. 1.000065: irq_handler_entry: irq=65 name=eth1-rx-0
            ostler-load-30 [007] d.h1. 1.000067: irq_handler_exit: irq=65 ret=handled
            ostler-load-30 [007] ..s1. 1.000073: softirq_exit: vec=3 [action=NET_RX]
            ostler-load-30 [007] b..1. 1.000150: net_dev_start_xmit: dev=eth1 queue_mapping=0 len=66 data_len=0
            ostler-load-30 [007] b..1. 1.000160: net_dev_start_xmit: dev=eth1 queue_mapping=0 len=102 data_len=0
            ostler-load-30 [007] ..... 1.000200: sys_sendto -> 0x3e
            ostler-load-31 [006] ..... 1.000210: sys_epoll_wait -> 0x1
            ostler-load-30 [007] ..... 1.000220: sys_epoll_wait(epfd: 0x13, events: 0x7f, maxevents: 0x400, timeout: 0xffffffff)
            ostler-load-30 [007] d..2. 1.000250: sched_switch: prev_comm=ostler-load prev_pid=30 prev_prio=120 prev_state=S ==> next_comm=swapper/7 next_pid=0 next_prio=120
            <idle>-0 [007] d..2. 1.002000: sched_switch: prev_comm=swapper/7 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=ostler-load next_pid=30 next_prio=120
            ostler-load-30 [007] d..2. 1.002010: sched_switch: prev_comm=ostler-load prev_pid=30 prev_prio=120 prev_state=R ==> next_comm=exe next_pid=9 next_prio=120
            exe-9 [007] d..2. 1.002030: sched_switch: prev_comm=exe prev_pid=9 prev_prio=120 prev_state=S ==> next_comm=ostler-load next_pid=30 next_prio=120";
        let lines = text.lines().map(|line| Ok(line.trim().to_owned()));
        let overhead = Overhead {
            short: 1e-6,
            event: 2e-6,
            way: 3e-6,
        };
        // Of these the first and the last find it awake or hardly asleep.
        let due = [1.0001, 1.00195, 1.0003];
        let (took, late) = took(lines, &due, overhead).expect("a trace");
        let us = |s: &f64| (s * 1e6).round();
        let told: Vec<_> = took
            .iter()
            .map(|(which, times)| (*which, times.iter().map(us).collect::<Vec<_>>()))
            .collect();
        // Of 110 us between reading and the driver, 2 + 10 are interrupts', which are traced for 1 each, with 3 for the way.
        assert_eq!(
            told,
            [
                ((At::Runs, At::Knows), vec![18.0]),
                ((At::Knows, At::Read), vec![28.0]),
                ((At::Read, At::Handed), vec![88.0]),
                ((At::Handed, At::Sent), vec![38.0]),
                ((At::Sent, At::Looks), vec![18.0]),
                ((At::Looks, At::Sleeps), vec![28.0]),
            ]
        );
        assert_eq!(late.iter().map(us).collect::<Vec<_>>(), [50.0]);
        let switches = text.lines().filter(|line| line.contains("sched_switch"));
        let lines = switches.map(|line| Ok(line.trim().to_owned()));
        let error = super::took(lines, &due, overhead).expect_err("nothing is read");
        assert!(error.to_string().contains("sys_exit_recvfrom"), "{error}");
    }
}
