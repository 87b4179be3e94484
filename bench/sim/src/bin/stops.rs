//! Where the time of a vCPU that computes goes while it has a core, counted in runs of the lab that were traced: a source of `crates/ostler-sim/src/costs/emulated.rs`.
//!
//! `ostler lab run SCENARIO --trace kvm:kvm_exit,kvm:kvm_entry,sched_switch`, then `cargo run --release -p bench-sim --bin stops -- RUN...`.
//!
//! A vCPU is in its guest from an entry to an exit. From an exit to the next entry it is outside for what the exit was for, if it keeps its core. If an interrupt brings it out and another
//! thread has the core before it is back, it was *stopped*: that took what is between the exit and the switch to the other, less what an interrupt's exit takes that stops nobody, and what is between the switch back to
//! it and its entry. A guest's tick that came is handled from an entry on, until the exit by which the guest sets the next: that is told as well, as a core looks there. What the trace itself takes is in all of these, a few hundred instructions an event.
//!
//! With `sched_waking` among the events it also tells what woke each vCPU, and how long it was on cores for that until it slept again: a worker of its queues (`vhost-`), or something else, which for a guest of
//! one vCPU is its own timer. Whoever is woken by one and then by the other before it sleeps counts with the first.

#[path = "../runs.rs"]
mod runs;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Parser;
use ostler_outcome::events::{Event, Stamped};
use ostler_record::{Reader, Wall};

#[derive(Parser)]
struct Args {
    /// Folders of runs of the lab.
    #[arg(required = true)]
    runs: Vec<PathBuf>,
    /// Only of these policies' cells.
    #[arg(long, value_delimiter = ',')]
    policies: Vec<String>,
}

/// The reason of an exit that an interrupt of the host's makes.
const INTERRUPT: &str = "interrupt";

/// The reason of one that writes a register: a guest without other duties writes that of its next tick.
const REGISTER: &str = "msr";

/// How often, and how long in all, s.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sum {
    times: u32,
    seconds: f64,
}

impl Sum {
    fn add(&mut self, seconds: f64) {
        self.times += 1;
        self.seconds += seconds;
    }

    fn each(self) -> f64 {
        self.seconds / f64::from(self.times.max(1))
    }
}

/// What a vCPU did.
#[derive(Clone, Debug, Default, PartialEq)]
struct Did {
    /// In its guest.
    inside: Sum,
    /// Of that, from an entry to an exit that sets the next tick.
    ticks: Sum,
    /// Outside, by the exit's reason, its core kept.
    outside: BTreeMap<String, Sum>,
    /// From an interrupt's exit to the switch to another thread, though it would go on.
    stopped: Sum,
    /// From the switch to it to its entry, after that.
    resumed: Sum,
    /// From any other exit to the switch to another, and from the switch to it to its entry after that.
    slept: Sum,
    woken: Sum,
    /// From being woken by a worker, or by something else, until it slept again: on cores.
    by_workers: Sum,
    by_others: Sum,
}

impl Did {
    /// All of its time on cores, s.
    fn all(&self) -> f64 {
        let sums = [
            self.inside,
            self.stopped,
            self.resumed,
            self.slept,
            self.woken,
        ];
        let outside: f64 = self.outside.values().map(|sum| sum.seconds).sum();
        sums.iter().map(|sum| sum.seconds).sum::<f64>() + outside
    }

    /// What a stop takes beyond an interrupt's exit, s.
    fn a_stop(&self) -> f64 {
        let exit = self.outside.get(INTERRUPT).copied().unwrap_or_default();
        self.stopped.each() - exit.each() + self.resumed.each()
    }
}

/// Where a vCPU is, and since when.
#[derive(Clone, Debug)]
enum Place {
    Inside,
    Outside(String),
    /// On no core: whether it was stopped.
    Off(bool),
    /// It has a core again.
    Back(bool),
}

/// Since when a thread is awake, and on a core.
#[derive(Clone, Copy, Debug, Default)]
struct Awake {
    /// Whether a worker woke it; none: it is asleep, or nobody was seen to wake it.
    by_worker: Option<bool>,
    since: Option<f64>,
    ran: f64,
}

/// An event: when, of which thread, and what.
#[derive(Debug, PartialEq)]
enum Seen<'a> {
    Entry,
    Exit(&'a str),
    /// From the thread, which would go on or not, to another.
    Switch(bool, u32),
    /// Of another by the thread, which is a worker or not.
    Wakes(u32, bool),
}

fn seen(line: &str) -> Option<(f64, u32, Seen<'_>)> {
    let (head, event) = line.split_once("] ")?;
    let (name, _) = head.rsplit_once('[')?;
    let thread = name.trim_end().rsplit_once('-')?.1.parse().ok()?;
    let (at, event) = event.trim_start().split_once(": ")?;
    let at = at.split_whitespace().next_back()?.parse().ok()?;
    let (event, what) = event.split_once(": ")?;
    let after = |key: &str| {
        let (_, rest) = what.split_once(key)?;
        rest.split_whitespace().next()
    };
    let seen = match event {
        "kvm_entry" => Seen::Entry,
        "kvm_exit" => Seen::Exit(after("reason ")?),
        "sched_switch" => Seen::Switch(
            after("prev_state=")?.starts_with('R'),
            after("next_pid=")?.parse().ok()?,
        ),
        "sched_waking" => Seen::Wakes(
            after(" pid=")?.parse().ok()?,
            name.trim_start().starts_with("vhost-"),
        ),
        _ => return None,
    };
    Some((at, thread, seen))
}

/// What each vCPU did, by thread.
fn did(lines: impl Iterator<Item = std::io::Result<String>>) -> Result<BTreeMap<u32, Did>> {
    let mut all: BTreeMap<u32, Did> = BTreeMap::new();
    let mut places: BTreeMap<u32, (Place, f64)> = BTreeMap::new();
    let mut awake: BTreeMap<u32, Awake> = BTreeMap::new();
    for line in lines {
        let line = line?;
        let Some((at, thread, seen)) = seen(&line) else {
            continue;
        };
        match seen {
            Seen::Wakes(whom, by_worker) => {
                awake
                    .entry(whom)
                    .or_default()
                    .by_worker
                    .get_or_insert(by_worker);
                continue;
            }
            Seen::Switch(goes_on, to) => {
                awake.entry(to).or_default().since = Some(at);
                let from = awake.entry(thread).or_default();
                from.ran += from.since.take().map_or(0.0, |since| at - since);
                if !goes_on {
                    let slept = std::mem::take(from);
                    // Only vCPUs leave guests.
                    if let (Some(did), Some(by_worker)) = (all.get_mut(&thread), slept.by_worker) {
                        let sum = if by_worker {
                            &mut did.by_workers
                        } else {
                            &mut did.by_others
                        };
                        sum.add(slept.ran);
                    }
                }
            }
            Seen::Entry | Seen::Exit(_) => {}
        }
        let place = places.get(&thread).cloned();
        let past = place.as_ref().map_or(0.0, |(_, since)| at - since);
        let place = place.map(|(place, _)| place);
        let next = match seen {
            Seen::Entry => {
                let did = all.entry(thread).or_default();
                match place {
                    Some(Place::Outside(why)) => did.outside.entry(why).or_default().add(past),
                    Some(Place::Back(true)) => did.resumed.add(past),
                    Some(Place::Back(false)) => did.woken.add(past),
                    _ => {}
                }
                Place::Inside
            }
            Seen::Exit(why) => {
                if let Some(Place::Inside) = place {
                    let did = all.entry(thread).or_default();
                    did.inside.add(past);
                    if why == REGISTER {
                        did.ticks.add(past);
                    }
                }
                Place::Outside(why.to_owned())
            }
            Seen::Switch(goes_on, to) => {
                if let Some((place, since)) = places.get_mut(&to)
                    && let Place::Off(stopped) = *place
                {
                    (*place, *since) = (Place::Back(stopped), at);
                }
                // Only vCPUs leave guests.
                let Some(did) = all.get_mut(&thread) else {
                    continue;
                };
                let stopped = match place {
                    Some(Place::Outside(why)) => {
                        let stopped = goes_on && why == INTERRUPT;
                        let sum = if stopped {
                            &mut did.stopped
                        } else {
                            &mut did.slept
                        };
                        sum.add(past);
                        stopped
                    }
                    // Before it was in its guest again.
                    Some(Place::Back(stopped)) => {
                        did.woken.add(past);
                        stopped
                    }
                    _ => false,
                };
                Place::Off(stopped)
            }
            Seen::Wakes(..) => continue,
        };
        places.insert(thread, (next, at));
    }
    Ok(all)
}

/// Whose vCPU each thread is.
fn guests(record: &Path) -> Result<BTreeMap<u32, String>> {
    let mut all = BTreeMap::new();
    for period in Reader::open(record)?.range(Wall::MIN, Wall::MAX) {
        for guest in &period?.snapshot.guests {
            all.extend(guest.vcpus.iter().map(|v| (v.tid.0, guest.name.clone())));
        }
    }
    Ok(all)
}

fn main() -> Result<()> {
    let args = Args::parse();
    for run in &args.runs {
        let ns = runs::Host::of(run)?.instruction_ns;
        let file = run.join("events.jsonl");
        let events = std::fs::read_to_string(&file)
            .with_context(|| format!("could not read {}", file.display()))?;
        for line in events.lines() {
            // A newer or older version may say more.
            let Ok(Stamped {
                event: Event::CellStart { cell, .. },
                ..
            }) = serde_json::from_str(line)
            else {
                continue;
            };
            if !args.policies.is_empty() && !args.policies.contains(&cell.policy) {
                continue;
            }
            let folder = run.join(format!("results/cell-{}", cell.index));
            let guests = guests(&folder.join("record.db"))?;
            let trace = folder.join("trace.txt");
            let file = File::open(&trace)
                .with_context(|| format!("could not read {}", trace.display()))?;
            println!("{} / {} / {}", run.display(), cell.index, cell.policy);
            for (thread, did) in did(BufReader::new(file).lines())? {
                let Some(guest) = guests.get(&thread) else {
                    continue;
                };
                println!("{}", say(guest, &did, ns));
            }
        }
    }
    Ok(())
}

fn say(guest: &str, did: &Did, ns: f64) -> String {
    let all = did.all().max(f64::MIN_POSITIVE);
    let instructions = |seconds: f64| seconds * 1e9 / ns;
    let mut lines = vec![format!(
        "  {guest}: {all:.2} s on cores, {:.1} % of it in the guest",
        100.0 * did.inside.seconds / all
    )];
    lines.push(format!(
        "    it leaves its guest {} times, each {:.0} instructions on cores",
        did.inside.times,
        instructions(all) / f64::from(did.inside.times.max(1))
    ));
    let outside = did.outside.iter();
    let outside = outside.map(|(why, sum)| (format!("outside, {why}"), *sum));
    let others = [
        ("to be stopped", did.stopped),
        ("to go on after that", did.resumed),
        ("to sleep, or be stopped outside", did.slept),
        ("to be back after that", did.woken),
    ];
    let others = others.map(|(what, sum)| (what.to_owned(), sum));
    for (what, sum) in outside.chain(others).filter(|(_, sum)| sum.times > 0) {
        lines.push(format!(
            "    {what}: {} times, {:.0} instructions each, {:.2} %",
            sum.times,
            instructions(sum.each()),
            100.0 * sum.seconds / all
        ));
    }
    if did.ticks.times > 0 {
        lines.push(format!(
            "    from an entry to the exit that sets the next tick: {} times, {:.0} instructions each",
            did.ticks.times,
            instructions(did.ticks.each())
        ));
    }
    if did.stopped.times > 0 && did.outside.contains_key(INTERRUPT) {
        lines.push(format!(
            "    a stop takes {:.0} instructions beyond an interrupt's exit",
            instructions(did.a_stop())
        ));
    }
    for (what, sum) in [("workers", did.by_workers), ("others", did.by_others)] {
        if sum.times > 0 {
            lines.push(format!(
                "    woken by {what} {} times, {:.0} instructions on cores each",
                sum.times,
                instructions(sum.each())
            ));
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vcpus_time_is_told_apart() {
        // In its guest for 1 ms, out for 0.1, in for 1, of which it sets its next tick after 0.2 for 0.05, stopped for 2 after 0.3, and in again after 0.2; then it halts, and sleeps after 0.05.
        let text = "\
            # tracer: nop\n\
            CPU 0/KVM-7 [001] d..1. 5.000000: kvm_entry: vcpu 0, rip 0x1\n\
            CPU 0/KVM-7 [001] d..1. 5.001000: kvm_exit: vcpu 0 reason interrupt rip 0x1 info1 0x0\n\
            CPU 0/KVM-7 [001] d..1. 5.001100: kvm_entry: vcpu 0, rip 0x1\n\
            CPU 0/KVM-7 [001] d..1. 5.001300: kvm_exit: vcpu 0 reason msr rip 0x1 info1 0x1\n\
            CPU 0/KVM-7 [001] d..1. 5.001350: kvm_entry: vcpu 0, rip 0x1\n\
            CPU 0/KVM-7 [001] d..1. 5.002100: kvm_exit: vcpu 0 reason interrupt rip 0x1 info1 0x0\n\
            CPU 0/KVM-7 [001] d..2. 5.002400: sched_switch: prev_comm=CPU 0/KVM prev_pid=7 prev_prio=120 prev_state=R+ ==> next_comm=w-1 next_pid=8 next_prio=120\n\
            w-1-8 [001] d..2. 5.004400: sched_switch: prev_comm=w-1 prev_pid=8 prev_prio=120 prev_state=S ==> next_comm=CPU 0/KVM next_pid=7 next_prio=120\n\
            CPU 0/KVM-7 [001] d..1. 5.004600: kvm_entry: vcpu 0, rip 0x1\n\
            CPU 0/KVM-7 [001] d..1. 5.005600: kvm_exit: vcpu 0 reason hlt rip 0x1 info1 0x0\n\
            CPU 0/KVM-7 [001] d..2. 5.005650: sched_switch: prev_comm=CPU 0/KVM prev_pid=7 prev_prio=120 prev_state=S ==> next_comm=swapper/1 next_pid=0 next_prio=120\n";
        let all = did(text.lines().map(|line| Ok(line.to_owned()))).expect("a trace");
        assert_eq!(all.len(), 1, "who enters no guest is no vCPU");
        let did = &all[&7];
        let us = |seconds: f64| format!("{:.0}", seconds * 1e6);
        let told = |sum: Sum| (sum.times, us(sum.seconds));
        let is = |times: u32, us: &str| (times, us.to_owned());
        assert_eq!(told(did.inside), is(4, "2950"));
        assert_eq!(told(did.ticks), is(1, "200"));
        assert_eq!(told(did.outside[REGISTER]), is(1, "50"));
        assert_eq!(told(did.outside[INTERRUPT]), is(1, "100"));
        assert_eq!(told(did.stopped), is(1, "300"));
        assert_eq!(told(did.resumed), is(1, "200"));
        assert_eq!(told(did.slept), is(1, "50"));
        assert_eq!(did.woken, Sum::default());
        assert_eq!(
            (did.by_workers.times, did.by_others.times),
            (0, 0),
            "nobody was seen to wake it"
        );
        // Off its core it is nowhere.
        assert_eq!(us(did.all()), "3650");
        assert_eq!(us(did.a_stop()), "400");
    }

    #[test]
    fn what_woke_a_vcpu_is_told() {
        // Its worker wakes it for 1 ms of which another has the core for 0.4; its timer does, in another's context, for 0.2, and the worker once more before it sleeps.
        let switch = |at: &str, from: &str, state: &str, to: &str| {
            format!(
                "{from} [001] d..2. {at}: sched_switch: prev_comm=a prev_pid=1 prev_prio=120 prev_state={state} ==> next_comm=b next_pid={to} next_prio=120"
            )
        };
        let wakes = |at: &str, by: &str| {
            format!(
                "{by} [001] d..2. {at}: sched_waking: comm=CPU 0/KVM pid=7 prio=120 target_cpu=001"
            )
        };
        let enters = "CPU 0/KVM-7 [001] d..1. 5.000000: kvm_entry: vcpu 0, rip 0x1".to_owned();
        let lines = [
            enters,
            switch("5.000500", "CPU 0/KVM-7", "S", "9"),
            wakes("5.001000", "vhost-5-9"),
            switch("5.001000", "vhost-5-9", "S", "7"),
            switch("5.001500", "CPU 0/KVM-7", "R", "8"),
            switch("5.001900", "CPU 1/KVM-8", "R", "7"),
            switch("5.002400", "CPU 0/KVM-7", "S", "8"),
            wakes("5.003000", "CPU 1/KVM-8"),
            switch("5.003000", "CPU 1/KVM-8", "R", "7"),
            wakes("5.003100", "vhost-5-9"),
            switch("5.003200", "CPU 0/KVM-7", "S", "8"),
        ];
        let all = did(lines.into_iter().map(Ok)).expect("a trace");
        let us = |sum: Sum| (sum.times, format!("{:.0}", sum.seconds * 1e6));
        assert_eq!(us(all[&7].by_workers), (1, "1000".to_owned()));
        assert_eq!(us(all[&7].by_others), (1, "200".to_owned()));
    }
}
