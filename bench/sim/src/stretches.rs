//! What threads do at a stretch: from the switch to one until it sleeps, by what woke it and what it does meanwhile; from a trace of wake-ups, switches and transmissions.
//!
//! Stretches of the same kind have the same steps in the same order, so what lies between two of them can be compared. One that is taken off its core between isn't told. An event takes time of whoever is traced:
//! what a trace's events take is known ([`Overhead`]), and left out. Medians are of stretches in which nothing else happened; means have what did, a tick or a message that came meanwhile.
//!
//! Where a core's interrupts and softirqs are traced, too, what they take is none of the stretch in which they come, nor is the way into them and back: a kernel that doesn't tell their time apart has threads' time with it.
//!
//! Where a guest's interrupts are traced, too, those that a worker sends are told apart: for what it has sent since the one before, or for what it has received.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use anyhow::Result;

use super::overhead::Overhead;
use super::tails::{Kind, Seen, seen};

/// What a thread does, or has done to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// A vCPU wakes it, or it a vCPU.
    Vcpu,
    /// Likewise a worker.
    Worker,
    /// A worker wakes it for what was sent.
    Sent,
    /// A worker wakes it for what was received.
    Received,
    /// An interrupt or a softirq wakes it.
    Interrupt,
    /// It hands something to a NIC.
    Transmits,
    /// It sleeps.
    Sleeps,
}

/// Stretches of a kind: whose, woken by what, and what they do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pattern {
    worker: bool,
    woken: Step,
    steps: Vec<Step>,
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = |step: &Step| match step {
            Step::Vcpu => "a vCPU",
            Step::Worker => "a worker",
            Step::Sent => "a worker for what was sent",
            Step::Received => "a worker for what was received",
            _ => "an interrupt",
        };
        let whose = if self.worker { "worker" } else { "vCPU" };
        write!(f, "{whose} woken by {}", who(&self.woken))?;
        for step in &self.steps {
            match step {
                Step::Transmits => f.write_str(", transmits")?,
                Step::Sleeps => f.write_str(", sleeps")?,
                other => write!(f, ", tells {}", who(other))?,
            }
        }
        Ok(())
    }
}

/// What lies before each step of stretches of a kind, s: one for each stretch, by step.
pub type Before = Vec<Vec<f64>>;

/// One of them, once it is over.
pub struct Stretch {
    pub worker: bool,
    pub woken: Step,
    /// When it was woken, s.
    pub woken_at: f64,
    began: f64,
    /// With what lies before each, s.
    pub steps: Vec<(Step, f64)>,
    /// What workers of the guest handed to the NIC from when it began until the next of a vCPU's.
    pub answers: u32,
    /// How often they interrupted the guest until it ended, from when the one before ended: for what was received, and for what was sent.
    pub rings: (u32, u32),
    /// When the last one was, or the beginning.
    last: f64,
    /// What was traced since.
    events: u32,
    /// What interrupts took since.
    interrupts: f64,
}

impl Stretch {
    fn new(kind: Kind, (woken, woken_at): (Step, f64), began: f64, rings: (u32, u32)) -> Stretch {
        Stretch {
            worker: kind == Kind::Worker,
            woken,
            woken_at,
            began,
            steps: Vec::new(),
            answers: 0,
            rings,
            last: began,
            events: 1,
            interrupts: 0.0,
        }
    }

    fn step(&mut self, step: Step, at: f64, event: f64) {
        let before = at - self.last - f64::from(self.events) * event - self.interrupts;
        self.steps.push((step, before));
        self.last = at;
        self.events = 1;
        self.interrupts = 0.0;
    }
}

/// By core: how many handlers and softirqs are within each other, and since when the first is.
#[derive(Default)]
struct Interrupts(HashMap<u32, (u32, f64)>);

impl Interrupts {
    fn within(&self, cpu: u32) -> bool {
        self.0.get(&cpu).is_some_and(|(depth, _)| *depth > 0)
    }

    fn enter(&mut self, cpu: u32, at: f64) {
        let (depth, since) = self.0.entry(cpu).or_default();
        if *depth == 0 {
            *since = at;
        }
        *depth += 1;
    }

    /// One ends; since when the core was in interrupts, if it is in none any more.
    fn leave(&mut self, cpu: u32) -> Option<f64> {
        let (depth, since) = self.0.entry(cpu).or_default();
        *depth = depth.checked_sub(1)?;
        (*depth == 0).then_some(*since)
    }
}

/// The stretches of threads that begin within a time, by kind, as [`each`] has them.
pub fn stretches(
    lines: impl Iterator<Item = std::io::Result<String>>,
    threads: &HashMap<u32, Kind>,
    nic: &str,
    within: &std::ops::Range<f64>,
    overhead: Overhead,
) -> Result<BTreeMap<Pattern, Before>> {
    let mut all: BTreeMap<Pattern, Before> = BTreeMap::new();
    each(lines, threads, nic, within, overhead, |stretch| {
        let pattern = Pattern {
            worker: stretch.worker,
            woken: stretch.woken,
            steps: stretch.steps.iter().map(|(step, _)| *step).collect(),
        };
        let each = all.entry(pattern).or_default();
        each.resize(stretch.steps.len(), Vec::new());
        for (times, (_, before)) in each.iter_mut().zip(stretch.steps) {
            times.push(before);
        }
    })?;
    Ok(all)
}

/// A worker has interrupted its guest: in the stretches of the vCPUs that run, or while they wait.
fn rung(running: &mut HashMap<u32, Stretch>, waiting: &mut (u32, u32), step: Step) {
    let count = |rings: &mut (u32, u32)| match step {
        Step::Sent => rings.1 += 1,
        _ => rings.0 += 1,
    };
    let mut some = false;
    for vcpu in running.values_mut().filter(|stretch| !stretch.worker) {
        count(&mut vcpu.rings);
        some = true;
    }
    if !some {
        count(waiting);
    }
}

/// Has each stretch of threads told that begins within a time; `nic` is the host's, and `overhead` what events take: one is written when it happens, and takes its time before the next.
pub fn each(
    lines: impl Iterator<Item = std::io::Result<String>>,
    threads: &HashMap<u32, Kind>,
    nic: &str,
    within: &std::ops::Range<f64>,
    overhead: Overhead,
    mut tell: impl FnMut(Stretch),
) -> Result<()> {
    let event = overhead.event;
    let mut cores: HashMap<u32, u32> = HashMap::new();
    let mut woken: HashMap<u32, (Step, f64)> = HashMap::new();
    let mut running: HashMap<u32, Stretch> = HashMap::new();
    // While none of the vCPUs runs.
    let mut waiting = (0, 0);
    // Workers that have sent something since they last interrupted their guest, and for what that was.
    let mut sent: HashMap<u32, bool> = HashMap::new();
    let mut rings: HashMap<u32, Step> = HashMap::new();
    let mut interrupts = Interrupts::default();
    // The vCPUs' last, which waits for what its workers still send.
    let mut over: Option<Stretch> = None;
    for line in lines {
        let line = line?;
        let Some((at, cpu, seen)) = seen(&line) else {
            continue;
        };
        let own = cores.get(&cpu).copied().unwrap_or(0);
        let kind = threads.get(&own);
        // What is traced there is of the time that is left out.
        let interrupted = interrupts.within(cpu);
        match seen {
            Seen::Waking { pid, by_irq, .. } => {
                let by = match kind.filter(|_| !by_irq) {
                    None => Step::Interrupt,
                    Some(Kind::Vcpu) => Step::Vcpu,
                    Some(Kind::Worker) => rings.get(&own).copied().unwrap_or(Step::Worker),
                };
                woken.insert(pid, (by, at));
                if let Some(stretch) = running.get_mut(&own) {
                    match threads.get(&pid).filter(|_| !by_irq) {
                        Some(Kind::Vcpu) => stretch.step(Step::Vcpu, at, event),
                        Some(Kind::Worker) => stretch.step(Step::Worker, at, event),
                        None => stretch.events += u32::from(!interrupted),
                    }
                }
            }
            Seen::Transmit { dev, by_irq, .. } => {
                let own_nic = dev == nic && !by_irq;
                if own_nic {
                    sent.insert(own, true);
                    if kind == Some(&Kind::Worker) {
                        let vcpus = running.values_mut().filter(|stretch| !stretch.worker);
                        vcpus
                            .chain(&mut over)
                            .for_each(|stretch| stretch.answers += 1);
                    }
                }
                match running.get_mut(&own) {
                    Some(stretch) if own_nic => stretch.step(Step::Transmits, at, event),
                    Some(stretch) => stretch.events += u32::from(!interrupted),
                    None => {}
                }
            }
            Seen::Msi => {
                let step = match sent.insert(own, false) {
                    Some(true) => Step::Sent,
                    _ => Step::Received,
                };
                rings.insert(own, step);
                if let Some(stretch) = running.get_mut(&own) {
                    stretch.events += 1;
                }
                if kind == Some(&Kind::Worker) {
                    rung(&mut running, &mut waiting, step);
                }
            }
            Seen::Enters => interrupts.enter(cpu, at),
            Seen::Leaves => {
                if let Some(since) = interrupts.leave(cpu)
                    && let Some(stretch) = running.get_mut(&own)
                {
                    // What is written as it ends takes its time after that.
                    stretch.interrupts +=
                        at - since.max(stretch.last) + overhead.short + overhead.way;
                }
            }
            Seen::Switch { sleeps, next } => {
                cores.insert(cpu, next);
                if let Some(mut stretch) = running.remove(&own)
                    && sleeps
                    && within.contains(&stretch.began)
                {
                    stretch.step(Step::Sleeps, at, event);
                    if stretch.worker {
                        tell(stretch);
                    } else {
                        over.replace(stretch).into_iter().for_each(&mut tell);
                    }
                }
                if let (Some(kind), Some(by)) = (threads.get(&next), woken.remove(&next)) {
                    let mut rings = (0, 0);
                    if *kind == Kind::Vcpu {
                        over.take().into_iter().for_each(&mut tell);
                        rings = std::mem::take(&mut waiting);
                    }
                    let stretch = Stretch::new(*kind, by, at, rings);
                    running.insert(next, stretch);
                }
            }
        }
    }
    over.into_iter().for_each(tell);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACED: Overhead = Overhead {
        short: 1e-6,
        event: 1e-6,
        way: 0.0,
    };

    const TEXT: &str = "\
            <idle>-0 [000] d.s3. 1.000000: sched_waking: comm=vhost-4 pid=7 prio=120 target_cpu=000
            <idle>-0 [000] d..2. 1.000100: sched_switch: prev_comm=swapper/0 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=vhost-4 next_pid=7 next_prio=120
            vhost-4-7 [000] d..1. 1.000140: kvm_msi_set_irq: dst 2 vec 35 (Fixed|physical|edge)
            vhost-4-7 [000] d..3. 1.000150: sched_waking: comm=CPU 0/KVM pid=5 prio=120 target_cpu=001
            <idle>-0 [001] d..2. 1.000160: sched_switch: prev_comm=swapper/1 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=CPU 0/KVM next_pid=5 next_prio=120
            vhost-4-7 [000] d..2. 1.000200: sched_switch: prev_comm=vhost-4 prev_pid=7 prev_prio=120 prev_state=S ==> next_comm=swapper/0 next_pid=0 next_prio=120
            CPU 0/KVM-5 [001] d..3. 1.000300: sched_waking: comm=vhost-4 pid=7 prio=120 target_cpu=000
            <idle>-0 [000] d..2. 1.000400: sched_switch: prev_comm=swapper/0 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=vhost-4 next_pid=7 next_prio=120
            CPU 0/KVM-5 [001] d..2. 1.000450: sched_switch: prev_comm=CPU 0/KVM prev_pid=5 prev_prio=120 prev_state=S ==> next_comm=x next_pid=9 next_prio=120
            vhost-4-7 [000] b..1. 1.000460: net_dev_start_xmit: dev=tap0 queue_mapping=0
            vhost-4-7 [000] b..1. 1.000470: net_dev_start_xmit: dev=eth0 queue_mapping=0
            vhost-4-7 [000] d..1. 1.000540: kvm_msi_set_irq: dst 2 vec 36 (Fixed|physical|edge)
            vhost-4-7 [000] d..3. 1.000550: sched_waking: comm=CPU 0/KVM pid=5 prio=120 target_cpu=001
            x-9 [001] d..2. 1.000560: sched_switch: prev_comm=x prev_pid=9 prev_prio=120 prev_state=S ==> next_comm=CPU 0/KVM next_pid=5 next_prio=120
            vhost-4-7 [000] d..2. 1.000600: sched_switch: prev_comm=vhost-4 prev_pid=7 prev_prio=120 prev_state=R ==> next_comm=swapper/0 next_pid=0 next_prio=120
            CPU 0/KVM-5 [001] d..2. 1.000700: sched_switch: prev_comm=CPU 0/KVM prev_pid=5 prev_prio=120 prev_state=S ==> next_comm=x next_pid=9 next_prio=120";

    fn told(within: std::ops::Range<f64>) -> Vec<(String, Vec<Vec<f64>>)> {
        let threads = HashMap::from([(5, Kind::Vcpu), (7, Kind::Worker)]);
        let lines = TEXT.lines().map(|line| Ok(line.trim().to_owned()));
        let all = stretches(lines, &threads, "eth0", &within, TRACED).expect("a trace");
        let us = |times: Vec<f64>| times.iter().map(|s| (s * 1e6).round()).collect();
        let each = all.into_iter();
        each.map(|(pattern, before)| (pattern.to_string(), before.into_iter().map(us).collect()))
            .collect()
    }

    #[test]
    fn stretches_are_told_by_their_steps_without_what_was_traced_of_them() {
        let all = told(0.0..2.0);
        // The worker's second one was taken off its core.
        let wanted = [
            (
                "vCPU woken by a worker for what was sent, sleeps",
                vec![vec![139.0]],
            ),
            (
                "vCPU woken by a worker for what was received, tells a worker, sleeps",
                vec![vec![139.0], vec![149.0]],
            ),
            (
                "worker woken by an interrupt, tells a vCPU, sleeps",
                vec![vec![48.0], vec![49.0]],
            ),
        ];
        assert_eq!(all, wanted.map(|(what, before)| (what.to_owned(), before)));
    }

    /// A handler of 20 us and a softirq of 60 after it, in which another is interrupted and somebody is woken, come into the first stretch.
    #[test]
    fn what_interrupts_take_is_none_of_a_stretch() {
        let text = "\
            <idle>-0 [000] d.s3. 1.000000: sched_waking: comm=vhost-4 pid=7 prio=120 target_cpu=000
            <idle>-0 [000] d..2. 1.000100: sched_switch: prev_comm=swapper/0 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=vhost-4 next_pid=7 next_prio=120
            vhost-4-7 [000] d.h.. 1.000110: irq_handler_entry: irq=24 name=eth0-rx-0
            vhost-4-7 [000] d.h.. 1.000130: irq_handler_exit: irq=24 ret=handled
            vhost-4-7 [000] ..s.. 1.000140: softirq_entry: vec=3 [action=NET_RX]
            vhost-4-7 [000] d.H1. 1.000150: irq_handler_entry: irq=25 name=eth0-tx-0
            vhost-4-7 [000] d.H1. 1.000160: irq_handler_exit: irq=25 ret=handled
            vhost-4-7 [000] d.s3. 1.000170: sched_waking: comm=vhost-4 pid=8 prio=120 target_cpu=001
            vhost-4-7 [000] ..s.. 1.000200: softirq_exit: vec=3 [action=NET_RX]
            vhost-4-7 [000] d..2. 1.000300: sched_switch: prev_comm=vhost-4 prev_pid=7 prev_prio=120 prev_state=S ==> next_comm=swapper/0 next_pid=0 next_prio=120";
        let threads = HashMap::from([(7, Kind::Worker)]);
        let lines = text.lines().map(|line| Ok(line.trim().to_owned()));
        let all = stretches(lines, &threads, "eth0", &(0.0..2.0), TRACED).expect("a trace");
        let times = all.into_values().next().expect("one");
        // 200 us, less 20 and 60, and less what the switch and two ends take that are written.
        let us: Vec<f64> = times[0].iter().map(|s| (s * 1e6).round()).collect();
        assert_eq!(us, [200.0 - 80.0 - 3.0]);
    }

    #[test]
    fn others_than_those_that_begin_within_the_time_are_left_out() {
        assert_eq!(told(1.0005..2.0).len(), 1);
        assert_eq!(told(2.0..3.0), []);
    }
}
