//! What a trace takes of who is traced: lines of a trace by what they are of, and where they were written.

use std::collections::BTreeMap;

use anyhow::Result;

/// What an event takes, instructions: that of an interrupt or a softirq, and any other (`request events`: 266 ± 53 and 719 ± 67, of six runs of bench/sim/busy.toml that were traced differently beside two that weren't, 17 seconds, R2 0.88; 43541f1).
const SHORT: f64 = 266.0;
const OTHER: f64 = 719.0;
/// The way into a handler or a softirq and back: half of `HARDIRQ` (`crates/ostler-sim/src/costs/emulated.rs`) less what is between a handler's events, as one of both mostly follows the other.
const WAY: f64 = 310.0;

/// What the events of a trace take, s.
#[derive(Clone, Copy, Debug, Default)]
pub struct Overhead {
    /// One of an interrupt or a softirq.
    pub short: f64,
    /// Any other.
    pub event: f64,
    /// The way into a handler or a softirq and back: none of its time, nor of whose it comes upon.
    pub way: f64,
}

impl Overhead {
    /// On a host whose instructions take so long, ns.
    pub fn of(ns: f64) -> Overhead {
        Overhead {
            short: SHORT * ns / 1e9,
            event: OTHER * ns / 1e9,
            way: WAY * ns / 1e9,
        }
    }
}

/// Whether a line is of an interrupt or a softirq, which say little; others say who, where and what, and take longer to write.
pub fn is_short(event: &str) -> bool {
    matches!(
        event,
        "irq_handler_entry" | "irq_handler_exit" | "softirq_entry" | "softirq_exit"
    )
}

/// When lines were written on a core, by whether they are short, s.
pub type Written = BTreeMap<u32, [Vec<f64>; 2]>;

/// The lines of a trace.
pub fn written(lines: impl Iterator<Item = std::io::Result<String>>) -> Result<Written> {
    let mut all = Written::new();
    for line in lines {
        let line = line?;
        let Some((at, cpu, event, _)) = told(&line) else {
            continue;
        };
        all.entry(cpu).or_default()[usize::from(is_short(event))].push(at);
    }
    Ok(all)
}

/// When a line was written, on which core, of which event, and what it says.
pub fn told(line: &str) -> Option<(f64, u32, &str, &str)> {
    let (head, what) = line.split_once(": ")?;
    let (_, head) = head.split_once('[')?;
    let (cpu, head) = head.split_once(']')?;
    let at = head.split_whitespace().next_back()?.parse().ok()?;
    // A system call's begins with a bracket, and says what it comes to behind an arrow.
    let (event, rest) = what.split_at(what.find([':', '(', ' '])?);
    let rest = rest.strip_prefix(':').unwrap_or(rest).trim_start();
    Some((at, cpu.parse().ok()?, event, rest))
}

/// How many lines were written on a core within a time: others and short ones. `None` where the trace begins later there, as what is older was overwritten.
pub fn count(all: &Written, cpu: u32, within: &std::ops::Range<f64>) -> Option<[f64; 2]> {
    let lines = all.get(&cpu)?;
    let first = lines.iter().filter_map(|at| at.first()).copied();
    if first.fold(f64::INFINITY, f64::min) > within.start {
        return None;
    }
    Some([0, 1].map(|kind| lines[kind].iter().filter(|at| within.contains(at)).count() as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_where_they_were_written_and_by_what_they_are_of() {
        let text = "\
            # tracer: nop
            <idle>-0 [001] d.h1. 10.000100: irq_handler_entry: irq=30 name=eth0-tx-1
            <idle>-0 [001] d.h1. 10.000150: irq_handler_exit: irq=30 ret=handled
            <idle>-0 [001] ..s1. 10.000200: softirq_entry: vec=3 [action=NET_RX]
            <idle>-0 [001] b.s1. 10.000250: net_dev_start_xmit: dev=tap-lc queue_mapping=0 len=99
            <idle>-0 [000] D.s4. 10.000250: sched_waking: comm=vhost-9 pid=9 prio=120 target_cpu=000
            <idle>-0 [001] ..s1. 10.000300: softirq_exit: vec=3 [action=NET_RX]";
        let lines = text.lines().map(|line| Ok(line.trim().to_owned()));
        let all = written(lines).expect("a trace");
        assert_eq!(count(&all, 1, &(10.00015..10.0003)), Some([1.0, 2.0]));
        assert_eq!(count(&all, 0, &(10.00025..11.0)), Some([1.0, 0.0]));
        assert_eq!(count(&all, 1, &(10.0..11.0)), None, "some may be lost");
        assert_eq!(count(&all, 2, &(10.0..11.0)), None);
    }

    #[test]
    fn system_calls_are_told() {
        let told = |what: &str| {
            let line = format!("ostler-load-9 [007] ..... 1.5: {what}");
            told(&line).map(|(at, cpu, event, rest)| (at, cpu, event.to_owned(), rest.to_owned()))
        };
        let is = |event: &str, rest: &str| Some((1.5, 7, event.to_owned(), rest.to_owned()));
        let begins = "sys_epoll_wait(epfd: 0x13, timeout: 0x0)";
        assert_eq!(
            told(begins),
            is("sys_epoll_wait", "(epfd: 0x13, timeout: 0x0)")
        );
        assert_eq!(told("sys_recvfrom -> 0x3e"), is("sys_recvfrom", "-> 0x3e"));
    }
}
