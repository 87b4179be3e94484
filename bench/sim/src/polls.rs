//! How long a core polls a NIC, from a trace of its interrupts and softirqs.

use std::collections::HashMap;

use anyhow::Result;

/// What a line of a trace says of interrupts and softirqs: when, on which core.
#[derive(Debug, PartialEq)]
enum Irq<'a> {
    /// A handler of this name begins.
    Handler(&'a str),
    /// The softirq that polls NICs begins.
    Begins,
    /// It ends.
    Ends,
}

fn irq(line: &str) -> Option<(f64, u32, Irq<'_>)> {
    let (head, what) = line.split_once(": ")?;
    let (_, head) = head.split_once('[')?;
    let (cpu, head) = head.split_once(']')?;
    let at = head.split_whitespace().next_back()?.parse().ok()?;
    let (event, rest) = what.split_once(": ")?;
    let polls = rest.contains("action=NET_RX");
    let seen = match event {
        "irq_handler_entry" => Irq::Handler(rest.split_once("name=")?.1.trim()),
        "softirq_entry" if polls => Irq::Begins,
        "softirq_exit" if polls => Irq::Ends,
        _ => return None,
    };
    Some((at, cpu.parse().ok()?, seen))
}

/// What a core's interrupts have come for since its last poll, and when that began.
#[derive(Clone, Copy, Default)]
struct Polling {
    received: bool,
    sent: bool,
    began: Option<f64>,
}

/// How long polls took that found only what was received, and only what was sent, s. Polls that an interrupt of a device came into are left out.
pub fn polled(
    lines: impl Iterator<Item = std::io::Result<String>>,
    nic: &str,
) -> Result<[Vec<f64>; 2]> {
    let mut each: [Vec<f64>; 2] = Default::default();
    let mut cores: HashMap<u32, Polling> = HashMap::new();
    for line in lines {
        let line = line?;
        let Some((at, cpu, seen)) = irq(&line) else {
            continue;
        };
        let core = cores.entry(cpu).or_default();
        match seen {
            Irq::Handler(name) => {
                let ring = name.strip_prefix(nic).unwrap_or("");
                if core.began.take().is_some() {
                    *core = Polling::default();
                }
                core.received |= ring.starts_with("-rx-");
                core.sent |= ring.starts_with("-tx-");
            }
            Irq::Begins => core.began = Some(at),
            Irq::Ends => {
                let core = std::mem::take(core);
                if let Some(began) = core.began.filter(|_| core.received != core.sent) {
                    each[usize::from(core.sent)].push(at - began);
                }
            }
        }
    }
    Ok(each)
}

/// A mean and its standard error. Not a median: the lab's cores see time go in steps as long as a poll, so that each reads as none or several, and only the mean is right.
pub fn mean(times: &[f64]) -> (f64, f64) {
    let count = times.len() as f64;
    let mean = times.iter().sum::<f64>() / count;
    let squares: f64 = times.iter().map(|time| (time - mean).powi(2)).sum();
    (mean, (squares / (count - 1.0) / count).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polls_are_told_apart_by_what_their_cores_were_interrupted_for() {
        let text = "\
            <idle>-0 [001] d.h1. 10.000100: irq_handler_entry: irq=30 name=eth0-tx-1
            <idle>-0 [001] ..s1. 10.000200: softirq_entry: vec=3 [action=NET_RX]
            <idle>-0 [000] d.h1. 10.000250: irq_handler_entry: irq=28 name=eth0-rx-0
            <idle>-0 [001] ..s1. 10.000300: softirq_exit: vec=3 [action=NET_RX]
            <idle>-0 [000] ..s1. 10.000300: softirq_entry: vec=7 [action=SCHED]
            <idle>-0 [000] ..s1. 10.000400: softirq_exit: vec=7 [action=SCHED]
            <idle>-0 [000] ..s1. 10.000400: softirq_entry: vec=3 [action=NET_RX]
            <idle>-0 [000] ..s1. 10.000700: softirq_exit: vec=3 [action=NET_RX]
            both-1 [002] d.h1. 10.000700: irq_handler_entry: irq=28 name=eth0-rx-0
            both-1 [002] d.h1. 10.000700: irq_handler_entry: irq=31 name=eth0-tx-0
            both-1 [002] ..s1. 10.000800: softirq_entry: vec=3 [action=NET_RX]
            both-1 [002] ..s1. 10.000900: softirq_exit: vec=3 [action=NET_RX]
            into-1 [003] d.h1. 10.001000: irq_handler_entry: irq=28 name=eth0-rx-0
            into-1 [003] ..s1. 10.001100: softirq_entry: vec=3 [action=NET_RX]
            into-1 [003] d.h1. 10.001200: irq_handler_entry: irq=9 name=ahci
            into-1 [003] ..s1. 10.001900: softirq_exit: vec=3 [action=NET_RX]
            other-1 [004] d.h1. 10.002000: irq_handler_entry: irq=40 name=eth1-rx-0
            other-1 [004] ..s1. 10.002100: softirq_entry: vec=3 [action=NET_RX]
            other-1 [004] ..s1. 10.002200: softirq_exit: vec=3 [action=NET_RX]";
        let lines = text.lines().map(|line| Ok(line.trim().to_owned()));
        let each = polled(lines, "eth0").expect("a trace");
        let us = each.map(|times| times.iter().map(|t| (t * 1e6).round()).collect::<Vec<_>>());
        assert_eq!(us, [vec![300.0], vec![100.0]]);
        assert_eq!(mean(&[1.0, 2.0, 6.0]), (3.0, (7.0_f64 / 3.0).sqrt()));
    }
}
