//! What a worker takes to have its guest receive: from a trace of stretches in which it sends nothing.
//!
//! From the switch to it until it sleeps a worker copies all that its queue of the tap has, and interrupts its guest for it, or doesn't where that polls its queue; a vCPU that sleeps is woken by that, one that runs is brought out
//! of its guest. A stretch takes something once, for each packet, for each interrupt of the guest, and for each vCPU that is woken: least squares. Interrupts of its core are told by how many came: what is
//! between a handler's beginning and its softirq's end is left out, so it is the way into them and back.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use anyhow::Result;

use super::fit::Row;
use super::overhead::Overhead;
use super::tails::{Kind, Seen, seen};

/// A stretch of a worker's, until now.
#[derive(Clone, Copy)]
struct Stretch {
    worker: u32,
    began: f64,
    /// What is none of it, s.
    besides: f64,
    sent: bool,
    told: u32,
    woke: u32,
    interrupts: u32,
    depth: u32,
    /// Since when its core is in an interrupt.
    since: f64,
}

/// Which worker each queue of the tap has: the one that is woken where a packet has come for it, most often.
fn workers(lines: &[(f64, u32, Seen)], threads: &HashMap<u32, Kind>) -> BTreeMap<u32, u32> {
    let mut came: HashMap<u32, u32> = HashMap::new();
    let mut votes: BTreeMap<u32, BTreeMap<u32, u32>> = BTreeMap::new();
    for (_, cpu, seen) in lines {
        match seen {
            Seen::Transmit { dev, queue, .. } if dev.starts_with("tap") => {
                came.insert(*cpu, *queue);
            }
            Seen::Waking {
                pid, by_irq: true, ..
            } if threads.get(pid) == Some(&Kind::Worker) => {
                if let Some(queue) = came.remove(cpu) {
                    *votes.entry(queue).or_default().entry(*pid).or_default() += 1;
                }
            }
            _ => {}
        }
    }
    votes
        .into_iter()
        .filter_map(|(queue, votes)| Some((queue, *votes.iter().max_by_key(|vote| vote.1)?.0)))
        .collect()
}

/// The stretches of a guest's workers that send nothing, within a time: once, packets, interrupts of the guest, vCPUs woken, interrupts of the core; and what each took, s.
pub fn received(
    lines: impl Iterator<Item = std::io::Result<String>>,
    threads: &HashMap<u32, Kind>,
    within: &Range<f64>,
    overhead: Overhead,
) -> Result<Vec<Row<5>>> {
    let mut all = Vec::new();
    for line in lines {
        all.extend(seen(&line?).filter(|(at, ..)| within.contains(at)));
    }
    let workers = workers(&all, threads);
    let mut rows = Vec::new();
    // Packets by worker, since it slept; of one that wasn't seen to sleep it isn't known.
    let mut packets: HashMap<u32, u32> = HashMap::new();
    let mut cores: HashMap<u32, Stretch> = HashMap::new();
    for (at, cpu, seen) in all {
        if let Seen::Transmit { dev, queue, .. } = &seen
            && dev.starts_with("tap")
            && let Some(count) = workers.get(queue).and_then(|pid| packets.get_mut(pid))
        {
            *count += 1;
        }
        if let Some(stretch) = cores.get_mut(&cpu) {
            let out = stretch.depth == 0;
            match &seen {
                Seen::Enters => {
                    if out {
                        stretch.since = at;
                        stretch.interrupts += 1;
                    }
                    stretch.depth += 1;
                }
                Seen::Leaves => {
                    stretch.depth = stretch.depth.saturating_sub(1);
                    if stretch.depth == 0 {
                        // What is written as it ends takes its time after that.
                        stretch.besides += at - stretch.since + overhead.short;
                    }
                }
                Seen::Transmit { .. } if out => stretch.sent = true,
                Seen::Msi if out => {
                    stretch.told += 1;
                    stretch.besides += overhead.event;
                }
                Seen::Waking { .. } if out => {
                    stretch.woke += 1;
                    stretch.besides += overhead.event;
                }
                _ => {}
            }
        }
        let Seen::Switch { sleeps, next } = seen else {
            continue;
        };
        if let Some(stretch) = cores.remove(&cpu).filter(|_| sleeps) {
            let came = packets.insert(stretch.worker, 0);
            if let Some(came) = came.filter(|came| *came > 0 && !stretch.sent) {
                let causes = [1, came, stretch.told, stretch.woke, stretch.interrupts];
                rows.push((causes.map(f64::from), at - stretch.began - stretch.besides));
            }
        }
        if threads.get(&next) == Some(&Kind::Worker) {
            let stretch = Stretch {
                worker: next,
                began: at,
                besides: overhead.event,
                sent: false,
                told: 0,
                woke: 0,
                interrupts: 0,
                depth: 0,
                since: at,
            };
            cores.insert(cpu, stretch);
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::super::cells::whole;
    use super::*;

    #[test]
    fn stretches_are_told_by_what_came_and_whom_they_told() {
        let text = "\
            <idle>-0 [005] d..2. 10.000000: sched_switch: prev_comm=swapper/5 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=vhost-1 next_pid=9 next_prio=120
            vhost-1-9 [005] d..2. 10.000000: sched_switch: prev_comm=vhost-1 prev_pid=9 prev_prio=120 prev_state=S ==> next_comm=swapper/5 next_pid=0 next_prio=120
            <idle>-0 [005] ..s1. 10.001000: softirq_entry: vec=3 [action=NET_RX]
            <idle>-0 [005] b.s1. 10.001050: net_dev_start_xmit: dev=tap-lc queue_mapping=2 len=99
            <idle>-0 [005] D.s4. 10.001050: sched_waking: comm=vhost-1 pid=9 prio=120 target_cpu=005
            <idle>-0 [005] b.s1. 10.001060: net_dev_start_xmit: dev=tap-lc queue_mapping=2 len=66
            <idle>-0 [005] ..s1. 10.001070: softirq_exit: vec=3 [action=NET_RX]
            <idle>-0 [005] d..2. 10.001100: sched_switch: prev_comm=swapper/5 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=vhost-1 next_pid=9 next_prio=120
            vhost-1-9 [005] d.h1. 10.001120: irq_handler_entry: irq=28 name=eth0-rx-0
            vhost-1-9 [005] d.h1. 10.001130: irq_handler_exit: irq=28 ret=handled
            vhost-1-9 [005] ..s1. 10.001135: softirq_entry: vec=3 [action=NET_RX]
            vhost-1-9 [005] b.s1. 10.001140: net_dev_start_xmit: dev=tap-lc queue_mapping=2 len=99
            vhost-1-9 [005] ..s1. 10.001155: softirq_exit: vec=3 [action=NET_RX]
            vhost-1-9 [005] d..1. 10.001160: kvm_msi_set_irq: dst 3 vec 33 (Fixed|physical|edge)
            vhost-1-9 [005] d..3. 10.001161: sched_waking: comm=CPU 0/KVM pid=7 prio=120 target_cpu=000
            vhost-1-9 [005] d..2. 10.001200: sched_switch: prev_comm=vhost-1 prev_pid=9 prev_prio=120 prev_state=S ==> next_comm=swapper/5 next_pid=0 next_prio=120
            <idle>-0 [005] b.s1. 10.002050: net_dev_start_xmit: dev=tap-lc queue_mapping=2 len=99
            <idle>-0 [005] d..2. 10.002100: sched_switch: prev_comm=swapper/5 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=vhost-1 next_pid=9 next_prio=120
            vhost-1-9 [005] b..1. 10.002150: net_dev_start_xmit: dev=eth0 queue_mapping=2 len=99
            vhost-1-9 [005] d..2. 10.002200: sched_switch: prev_comm=vhost-1 prev_pid=9 prev_prio=120 prev_state=S ==> next_comm=swapper/5 next_pid=0 next_prio=120";
        let lines = text.lines().map(|line| Ok(line.trim().to_owned()));
        let threads = HashMap::from([(9, Kind::Worker), (7, Kind::Vcpu)]);
        let overhead = Overhead {
            short: 1e-6,
            event: 2e-6,
            way: 0.0,
        };
        let rows = received(lines, &threads, &(10.0..11.0), overhead).expect("a trace");
        // 100 us, less 10 and 20 in interrupts, two short events after these and three others. Of the second something is sent.
        let told: Vec<_> = rows
            .iter()
            .map(|(causes, took)| (causes.map(whole), (took * 1e6).round()))
            .collect();
        assert_eq!(told, [([1, 3, 1, 1, 2], 62.0)]);
    }
}
