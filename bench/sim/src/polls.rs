//! What a core takes to poll a NIC, from a trace of its interrupts and softirqs, of what it hands to taps there and whom it wakes for it.
//!
//! A NIC's softirq sees to what was sent and to what was received, packet by packet, and wakes a guest's worker for the first that finds that asleep. What a poll takes is told by all of these together, by least
//! squares: interrupts come while others are seen to, and so a busy NIC's polls find several packets. What the trace takes of it and handlers that come into it are left out, as both are known.

use std::collections::HashMap;

use anyhow::Result;

use crate::cells::whole;
use crate::fit::Row;
use crate::overhead::{Overhead, is_short, told};

/// What a line of a trace says of interrupts and softirqs.
#[derive(Debug, PartialEq)]
enum Irq<'a> {
    /// A handler of this name begins.
    Handler(&'a str),
    /// The softirq that polls NICs begins.
    Begins,
    /// It ends.
    Ends,
    /// A packet goes to a guest's tap.
    Taps,
    /// Somebody is woken.
    Wakes,
    /// A core has somebody who had nobody.
    Leaves,
    /// Anything else that takes its time to be traced.
    Else,
}

/// When, on which core, and whether that is of an interrupt or a softirq.
fn irq(line: &str) -> Option<(f64, u32, bool, Irq<'_>)> {
    let (at, cpu, event, rest) = told(line)?;
    let polls = rest.contains("action=NET_RX");
    let seen = match event {
        "irq_handler_entry" => Irq::Handler(rest.split_once("name=")?.1.trim()),
        "softirq_entry" if polls => Irq::Begins,
        "softirq_exit" if polls => Irq::Ends,
        "net_dev_start_xmit" if rest.starts_with("dev=tap") => Irq::Taps,
        "sched_waking" => Irq::Wakes,
        "sched_switch" if rest.starts_with("prev_comm=swapper/") => Irq::Leaves,
        _ => Irq::Else,
    };
    Some((at, cpu, is_short(event), seen))
}

/// What is known to be in a poll's time and none of it, s.
#[derive(Clone, Copy, Debug)]
pub struct Besides {
    /// Events of the trace.
    pub overhead: Overhead,
    /// A handler.
    pub handler: f64,
}

/// What a core's interrupts have come for since its last poll, and what that has done.
#[derive(Clone, Copy, Default)]
struct Polling {
    own: bool,
    sent: bool,
    began: Option<f64>,
    packets: u32,
    wakes: u32,
    besides: f64,
    /// When one ended that has woken somebody, if nothing has come since.
    woke: Option<f64>,
}

/// What polls of a NIC take.
#[derive(Debug, Default)]
pub struct Polls {
    /// Each, s: by whether what was sent is seen to, whether anything was received, packets, and wakings.
    pub rows: Vec<Row<4>>,
    /// From the end of one that has woken somebody, on a core that had nobody, until it has, s.
    pub leaves: Vec<f64>,
}

/// What a trace has of polls of a NIC.
pub fn polled(
    lines: impl Iterator<Item = std::io::Result<String>>,
    nic: &str,
    besides: Besides,
) -> Result<Polls> {
    let mut polls = Polls::default();
    let mut cores: HashMap<u32, Polling> = HashMap::new();
    for line in lines {
        let line = line?;
        let Some((at, cpu, short, seen)) = irq(&line) else {
            continue;
        };
        let core = cores.entry(cpu).or_default();
        if seen != Irq::Ends {
            core.besides += if short {
                besides.overhead.short
            } else {
                besides.overhead.event
            };
        }
        let woke = core.woke.take();
        match seen {
            Irq::Handler(name) => {
                let ring = name.strip_prefix(nic).unwrap_or("");
                core.own |= !ring.is_empty();
                core.sent |= ring.starts_with("-tx-");
                core.besides += besides.handler;
            }
            Irq::Begins => {
                *core = Polling {
                    own: core.own,
                    sent: core.sent,
                    began: Some(at),
                    besides: besides.overhead.short,
                    ..Polling::default()
                };
            }
            Irq::Taps => core.packets += 1,
            Irq::Wakes => core.wakes += 1,
            Irq::Leaves => {
                polls
                    .leaves
                    .extend(woke.map(|ended| at - ended - besides.overhead.short));
            }
            Irq::Else => {}
            Irq::Ends => {
                let polling = std::mem::take(core);
                if let Some(began) = polling.began.filter(|_| polling.own) {
                    let causes = [
                        f64::from(u8::from(polling.sent)),
                        f64::from(polling.packets.min(1)),
                        f64::from(polling.packets),
                        f64::from(polling.wakes),
                    ];
                    core.woke = (polling.wakes > 0).then_some(at);
                    let row = (causes, at - began - polling.besides);
                    polls.rows.push(row);
                }
            }
        }
    }
    Ok(polls)
}

/// How many polls found so many packets, and their mean time, s. Not a median: the lab's cores see time go in steps as long as a poll, so that each reads as none or several, and only the mean is right.
pub fn by_packets(rows: &[Row<4>]) -> Vec<(u64, usize, f64)> {
    let most = rows.iter().map(|row| whole(row.0[2])).max().unwrap_or(0);
    (0..=most)
        .filter_map(|packets| {
            let times: Vec<f64> = rows
                .iter()
                .filter(|row| whole(row.0[2]) == packets)
                .map(|row| row.1)
                .collect();
            let mean = times.iter().sum::<f64>() / times.len() as f64;
            (!times.is_empty()).then_some((packets, times.len(), mean))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polls_are_told_by_what_they_found_and_did() {
        let text = "\
            <idle>-0 [001] d.h1. 10.000100: irq_handler_entry: irq=30 name=eth0-tx-1
            <idle>-0 [001] ..s1. 10.000200: softirq_entry: vec=3 [action=NET_RX]
            <idle>-0 [000] d.h1. 10.000250: irq_handler_entry: irq=28 name=eth0-rx-0
            <idle>-0 [001] ..s1. 10.000300: softirq_exit: vec=3 [action=NET_RX]
            <idle>-0 [000] ..s1. 10.000300: softirq_entry: vec=7 [action=SCHED]
            <idle>-0 [000] ..s1. 10.000400: softirq_exit: vec=7 [action=SCHED]
            <idle>-0 [000] ..s1. 10.000400: softirq_entry: vec=3 [action=NET_RX]
            <idle>-0 [000] b.s1. 10.000450: net_dev_start_xmit: dev=tap-lc queue_mapping=0 len=99
            <idle>-0 [000] D.s4. 10.000450: sched_waking: comm=vhost-9 pid=9 prio=120 target_cpu=000
            <idle>-0 [000] b.s1. 10.000500: net_dev_start_xmit: dev=eth0 queue_mapping=0 len=99
            <idle>-0 [000] ..s1. 10.000700: softirq_exit: vec=3 [action=NET_RX]
            <idle>-0 [000] d..2. 10.000720: sched_switch: prev_comm=swapper/0 prev_pid=0 prev_state=R ==> next_comm=vhost-9 next_pid=9
            into-1 [003] d.h1. 10.001000: irq_handler_entry: irq=28 name=eth0-rx-0
            into-1 [003] ..s1. 10.001100: softirq_entry: vec=3 [action=NET_RX]
            into-1 [003] b.s1. 10.001150: net_dev_start_xmit: dev=tap-lc queue_mapping=0 len=99
            into-1 [003] d.H1. 10.001200: irq_handler_entry: irq=31 name=eth0-tx-0
            into-1 [003] d.H1. 10.001200: irq_handler_exit: irq=31 ret=handled
            into-1 [003] b.s1. 10.001350: net_dev_start_xmit: dev=tap-lc queue_mapping=0 len=99
            into-1 [003] ..s1. 10.001900: softirq_exit: vec=3 [action=NET_RX]
            into-1 [003] d..2. 10.001950: sched_switch: prev_comm=swapper/3 prev_pid=0 prev_state=R ==> next_comm=vhost-9 next_pid=9
            other-1 [004] d.h1. 10.002000: irq_handler_entry: irq=40 name=eth1-tx-0
            other-1 [004] ..s1. 10.002100: softirq_entry: vec=3 [action=NET_RX]
            other-1 [004] ..s1. 10.002200: softirq_exit: vec=3 [action=NET_RX]";
        let lines = text.lines().map(|line| Ok(line.trim().to_owned()));
        let besides = Besides {
            overhead: Overhead {
                short: 1e-6,
                event: 3e-6,
                way: 0.0,
            },
            handler: 50e-6,
        };
        let Polls { rows, leaves } = polled(lines, "eth0", besides).expect("a trace");
        let us: Vec<_> = leaves.iter().map(|time| (time * 1e6).round()).collect();
        assert_eq!(us, [19.0], "the other woke nobody");
        let us: Vec<_> = rows
            .iter()
            .map(|(causes, time)| (causes.map(whole), (time * 1e6).round()))
            .collect();
        // Of the second, one short event and three others; of the third, three short ones, two others and a handler.
        let wanted = [
            ([1, 0, 0, 0], 99.0),
            ([0, 1, 1, 1], 290.0),
            ([1, 1, 2, 0], 741.0),
        ];
        assert_eq!(us, wanted);
        let means: Vec<_> = by_packets(&rows)
            .into_iter()
            .map(|(packets, polls, mean)| (packets, polls, (mean * 1e6).round()))
            .collect();
        assert_eq!(means, [(0, 1, 99.0), (1, 1, 290.0), (2, 1, 741.0)]);
    }
}
