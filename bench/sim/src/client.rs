//! What the load generator's thread takes: of each of some spans of time, how long it ran, how many answers left for it and how often it was woken; from a trace of switches, wake-ups and transmissions.

use std::collections::HashMap;

use anyhow::Result;

use super::tails::{Kind, Seen, seen};

/// The load generator's threads are called so.
pub const NAME: &str = "ostler-load";

/// A span of time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Span {
    /// Messages that the guest's workers handed to the host's NIC.
    pub answers: f64,
    /// How often the thread slept.
    pub wakes: f64,
    /// What it ran, s, without what was traced of it.
    pub ran: f64,
}

/// Spans of so many seconds in a time, of whichever of the generator's threads runs most; an instruction takes `ns`.
pub fn spans(
    lines: impl Iterator<Item = std::io::Result<String>>,
    threads: &HashMap<u32, Kind>,
    nic: &str,
    within: &std::ops::Range<f64>,
    each: f64,
    event: f64,
) -> Result<Vec<Span>> {
    // What a sum is rounded by costs none of them.
    let end = within.end + each / 1e3;
    let next = |from: &f64| Some(from + each).filter(|next| next + each <= end);
    let begins: Vec<f64> = std::iter::successors(Some(within.start), next).collect();
    let at_of = |at: f64| {
        let nth = begins.partition_point(|from| *from <= at).checked_sub(1);
        nth.filter(|nth| at < begins[*nth] + each)
    };
    let mut answers = vec![0.0; begins.len()];
    let mut clients: HashMap<u32, Vec<Span>> = HashMap::new();
    let mut cores: HashMap<u32, (u32, f64)> = HashMap::new();
    for line in lines {
        let line = line?;
        let Some((at, cpu, seen)) = seen(&line) else {
            continue;
        };
        let (own, since) = cores.get(&cpu).copied().unwrap_or_default();
        if let (Some(spans), Some(nth)) = (clients.get_mut(&own), at_of(at)) {
            spans[nth].ran -= event;
        }
        match seen {
            Seen::Transmit { dev, by_irq, .. } => {
                if dev == nic
                    && !by_irq
                    && threads.get(&own) == Some(&Kind::Worker)
                    && let Some(nth) = at_of(at)
                {
                    answers[nth] += 1.0;
                }
            }
            Seen::Waking { .. } | Seen::Msi | Seen::Enters | Seen::Leaves => {}
            Seen::Switch { sleeps, next } => {
                cores.insert(cpu, (next, at));
                if let Some(spans) = clients.get_mut(&own) {
                    for (span, from) in spans.iter_mut().zip(&begins) {
                        span.ran += (at.min(from + each) - since.max(*from)).max(0.0);
                    }
                    if let Some(nth) = at_of(at).filter(|_| sleeps) {
                        spans[nth].wakes += 1.0;
                    }
                }
                if line.contains(&format!("next_comm={NAME} ")) {
                    clients
                        .entry(next)
                        .or_insert_with(|| vec![Span::default(); begins.len()]);
                }
            }
        }
    }
    let ran = |spans: &[Span]| spans.iter().map(|span| span.ran).sum::<f64>();
    let most = clients
        .into_values()
        .max_by(|one, other| ran(one).total_cmp(&ran(other)));
    let mut spans = most.unwrap_or_default();
    for (span, answers) in spans.iter_mut().zip(answers) {
        span.answers = answers;
    }
    Ok(spans)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_that_runs_most_is_told_by_spans() {
        let text = "\
            <idle>-0 [007] d..2. 1.000000: sched_switch: prev_comm=swapper/7 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=ostler-load next_pid=30 next_prio=120
            ostler-load-30 [007] d..3. 1.010000: sched_waking: comm=exe pid=9 prio=120 target_cpu=006
            ostler-load-30 [007] d..2. 1.030000: sched_switch: prev_comm=ostler-load prev_pid=30 prev_prio=120 prev_state=S ==> next_comm=ostler-load next_pid=31 next_prio=120
            vhost-4-7 [000] b..1. 1.030100: net_dev_start_xmit: dev=eth0 queue_mapping=0
            ostler-load-31 [007] d..2. 1.031000: sched_switch: prev_comm=ostler-load prev_pid=31 prev_prio=120 prev_state=S ==> next_comm=ostler-load next_pid=30 next_prio=120
            <idle>-0 [000] d..2. 1.032000: sched_switch: prev_comm=swapper/0 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=vhost-4 next_pid=7 next_prio=120
            vhost-4-7 [000] b..1. 1.033000: net_dev_start_xmit: dev=eth0 queue_mapping=0
            vhost-4-7 [000] b..1. 1.034000: net_dev_start_xmit: dev=tap0 queue_mapping=0
            ostler-load-30 [007] d..2. 1.120000: sched_switch: prev_comm=ostler-load prev_pid=30 prev_prio=120 prev_state=R ==> next_comm=swapper/7 next_pid=0 next_prio=120";
        let threads = HashMap::from([(7, Kind::Worker)]);
        let lines = text.lines().map(|line| Ok(line.trim().to_owned()));
        let spans = spans(lines, &threads, "eth0", &(1.0..1.25), 0.1, 9e-6).expect("a trace");
        let us = |s: f64| (s * 1e6).round();
        let told: Vec<_> = spans
            .iter()
            .map(|span| (span.answers, span.wakes, us(span.ran)))
            .collect();
        // Two events were traced of it in the first, one in the second; what a thread that isn't known as a worker sends is no answer.
        assert_eq!(told, [(1.0, 1.0, 98_982.0), (0.0, 0.0, 19_991.0)]);
    }
}
