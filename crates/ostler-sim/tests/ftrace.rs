//! A host's trace, held against the host's own accounts: whoever reads one and whoever asks the host must come to the same, to the nanosecond.

#[allow(
    dead_code,
    reason = "what is told of worlds in one number is others' tests' to hold"
)]
mod worlds;

use std::collections::{BTreeMap, BTreeSet};

use ostler_model::{CpuId, Nanos};
use ostler_sim::ftrace::{Line, Seen};
use ostler_sim::work::ThreadId;
use worlds::{Class, crowded, digest, disturb};

const CLASSES: [Class; 4] = [Class::Fair, Class::Lazy, Class::Boost, Class::BoostWorkers];

/// What a trace tells of a host, and nobody else.
#[derive(Default)]
struct Read {
    /// Who has a core, and since when.
    on: BTreeMap<CpuId, (Option<ThreadId>, Nanos)>,
    ran: BTreeMap<ThreadId, u64>,
    asleep: BTreeSet<ThreadId>,
    /// Since when a core is in a handler, and in softirqs; and for how long it was.
    hard: BTreeMap<CpuId, Nanos>,
    soft: BTreeMap<CpuId, Nanos>,
    took: BTreeMap<CpuId, (u64, u64)>,
    asked: u64,
    sent: u64,
}

impl Read {
    fn line(&mut self, line: &Line) {
        let Line { at, cpu, .. } = *line;
        let (had, since) = self.on.get(&cpu).copied().unwrap_or_default();
        assert_eq!(line.on, had, "{line:?}");
        match line.seen {
            Seen::Switch { from, sleeps, to } => {
                assert_eq!(from, had, "{line:?}");
                assert_ne!(from, to, "{line:?}");
                if let Some(from) = from {
                    *self.ran.entry(from).or_default() += at.0 - since.0;
                    if sleeps {
                        assert!(self.asleep.insert(from), "{line:?}");
                    }
                }
                if let Some(to) = to {
                    assert!(!self.asleep.contains(&to), "nobody woke it: {line:?}");
                    let others = self.on.iter().filter(|(other, _)| **other != cpu);
                    assert!(
                        others.into_iter().all(|(_, (on, _))| *on != Some(to)),
                        "it has two cores: {line:?}"
                    );
                }
                self.on.insert(cpu, (to, at));
            }
            Seen::Waking { thread, .. } => {
                // One that was frozen as it waited for a core was seen by nobody to sleep.
                self.asleep.remove(&thread);
                assert!(
                    self.on.values().all(|(on, _)| *on != Some(thread)),
                    "it is awake: {line:?}"
                );
            }
            Seen::Enters => {
                assert_eq!(self.hard.insert(cpu, at), None, "{line:?}");
                // It is no softirq that goes on meanwhile.
                if let Some(since) = self.soft.get_mut(&cpu) {
                    self.took.entry(cpu).or_default().1 += at.0 - since.0;
                    *since = at;
                }
            }
            Seen::Leaves => {
                let since = self.hard.remove(&cpu).expect("it was entered");
                self.took.entry(cpu).or_default().0 += at.0 - since.0;
                if let Some(since) = self.soft.get_mut(&cpu) {
                    *since = at;
                }
            }
            Seen::EntersSoft => assert_eq!(self.soft.insert(cpu, at), None, "{line:?}"),
            Seen::LeavesSoft => {
                let since = self.soft.remove(&cpu).expect("they were begun");
                self.took.entry(cpu).or_default().1 += at.0 - since.0;
            }
            Seen::Taps { asks, .. } => self.asked += u64::from(asks),
            Seen::Transmits { .. } => {
                self.sent += 1;
                assert!(self.sent <= self.asked, "nothing asked for it: {line:?}");
            }
            Seen::Rings => {}
        }
    }
}

#[test]
fn a_trace_tells_what_the_host_tells_of_itself() {
    for class in CLASSES {
        let (mut world, guests) = crowded(1, class);
        world.trace();
        disturb(&mut world, &guests, class);
        let now = world.now();
        let mut read = Read::default();
        let lines = world.traced();
        assert!(lines.is_sorted_by_key(|line| line.at));
        for line in &lines {
            read.line(line);
        }
        // What is under way is told by its beginning.
        for (on, since) in read.on.values() {
            if let Some(thread) = on {
                *read.ran.entry(*thread).or_default() += now.0 - since.0;
            }
        }
        for (cpu, since) in &read.hard {
            read.took.entry(*cpu).or_default().0 += now.0 - since.0;
        }
        for (cpu, since) in &read.soft {
            let took = read.took.entry(*cpu).or_default();
            took.1 += if read.hard.contains_key(cpu) {
                0
            } else {
                now.0 - since.0
            };
        }
        let view = world.host.view(now);
        let mut woken = 0;
        for number in 0..view.threads() {
            let thread = ThreadId(number);
            let time = view.thread_time(thread);
            let ran = read.ran.get(&thread).copied().unwrap_or(0);
            assert_eq!(ran, time.ran + time.held, "{class:?}, {thread:?}");
            woken += u32::from(ran > 0);
        }
        assert!(woken > 40, "{woken}");
        for cpu in &view.online() {
            let time = view.core_time(cpu);
            let took = read.took.get(&cpu).copied().unwrap_or_default();
            assert_eq!(took, (time.hard, time.soft), "{class:?}, core {cpu}");
        }
        let (_, answered, _) = world.work.net.totals();
        assert_eq!(read.sent, answered, "{class:?}");
        assert!(answered > 5000);
    }
}

#[test]
fn who_traces_changes_nothing() {
    for class in CLASSES {
        let came = |traces: bool| {
            let (mut world, guests) = crowded(2, class);
            if traces {
                world.trace();
            }
            disturb(&mut world, &guests, class);
            assert_eq!(world.traced().is_empty(), !traces);
            digest(&mut world, &guests)
        };
        assert_eq!(came(true), came(false), "{class:?}");
    }
}
