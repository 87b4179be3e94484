//! The watchdog: tells what each core was waiting for when the machine doesn't get on.
//!
//! It looks once in a second of real time. A machine is stuck when its time stands still although some core isn't halted, or
//! when timers that are due aren't fired although time goes on. Either is told once, with all that is known of each core,
//! and its end is told too. It only tells: nothing in the machine depends on it. And it takes none of QEMU's big locks, or it
//! might wait for the very thing that it is to report.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::lockstep::State;
use crate::machine::{Emulator, Machine};

/// How often it looks.
pub const PERIOD: Duration = Duration::from_secs(1);

/// What it sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The machine's time, ns.
    pub now_ns: i64,
    /// Whether every core is halted and has nothing to do.
    pub idle: bool,
    /// Whether an idle machine waits for a disk, and has for long.
    pub disk: bool,
    /// Whether a timer is due.
    pub due: bool,
    /// How often timers were fired so far.
    pub fired: u64,
}

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stall {
    /// Time stands still, and some core isn't halted.
    Still,
    /// Time stands still because a disk doesn't answer.
    Disk,
    /// Time goes on, and timers that are due aren't fired.
    Timers,
}

/// What there is to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// The machine is stuck.
    Stuck(Stall),
    /// It was, for so many looks, and goes on.
    GoesOn(u32),
}

/// Remembers what it saw.
#[derive(Clone, Debug)]
pub struct Watch {
    patience: u32,
    last: Option<Sample>,
    still: u32,
    overdue: u32,
    told: bool,
}

impl Watch {
    /// Speaks after `patience` looks without progress.
    pub fn new(patience: u32) -> Watch {
        Watch {
            patience,
            last: None,
            still: 0,
            overdue: 0,
            told: false,
        }
    }

    /// Takes a look; returns what is to be said about it.
    pub fn look(&mut self, sample: Sample) -> Option<Word> {
        let last = self.last.replace(sample)?;
        let (still, overdue) = (self.still, self.overdue);
        // A machine that waits for the outside may do so for ever.
        let waits = sample.idle && !sample.disk && !sample.due;
        self.still = if sample.now_ns == last.now_ns && !waits {
            still + 1
        } else {
            0
        };
        self.overdue = if sample.due && last.due && sample.fired == last.fired {
            overdue + 1
        } else {
            0
        };
        if self.still < self.patience && self.overdue < self.patience {
            let over = self.still == 0 && self.overdue == 0;
            return (over && std::mem::take(&mut self.told))
                .then(|| Word::GoesOn(still.max(overdue)));
        }
        if std::mem::replace(&mut self.told, true) {
            return None;
        }
        Some(Word::Stuck(if self.still < self.patience {
            Stall::Timers
        } else if sample.idle && sample.disk {
            Stall::Disk
        } else {
            Stall::Still
        }))
    }
}

/// Looks at a machine.
fn sample<E: Emulator>(machine: &Machine<E>) -> Sample {
    let emulator = &machine.emulator;
    Sample {
        now_ns: machine.lockstep.now(),
        idle: machine
            .lockstep
            .everyone_rests(|core| emulator.has_work(core)),
        disk: !machine.slow_disks().is_empty(),
        due: emulator.due_in() == Some(0),
        fired: machine.counts.fires.load(Ordering::Relaxed)
            + machine.counts.skips.load(Ordering::Relaxed),
    }
}

/// Watches a machine until it ends. The body of a thread.
pub fn watch<E: Emulator>(machine: &Machine<E>, say: impl Fn(&str)) {
    let mut watch = Watch::new(machine.options.stall_s);
    while !machine.ends_within(PERIOD) {
        match watch.look(sample(machine)) {
            Some(Word::Stuck(stall)) => say(&report(machine, stall)),
            Some(Word::GoesOn(seconds)) => {
                say(&format!("time goes on, after {seconds} s"));
            }
            None => {}
        }
    }
}

/// Nanoseconds as seconds, for people.
pub fn seconds(ns: i64) -> String {
    let sign = if ns < 0 { "-" } else { "" };
    let ns = ns.unsigned_abs();
    format!("{sign}{}.{:09} s", ns / 1_000_000_000, ns % 1_000_000_000)
}

/// All that is known of a machine that doesn't get on.
pub(crate) fn report<E: Emulator>(machine: &Machine<E>, stall: Stall) -> String {
    let now = seconds(machine.lockstep.now());
    let patience = machine.options.stall_s;
    let mut text = match stall {
        Stall::Still => format!(
            "STALLED: the machine's time has stood still at {now} for {patience} s, and not every core is halted"
        ),
        Stall::Disk => format!(
            "STALLED: every core is halted and waits, at {now}, for a disk that hasn't answered for {patience} s: {}",
            machine.slow_disks().join(", ")
        ),
        Stall::Timers => format!(
            "STALLED: a timer has been due for {patience} s and isn't fired; the machine's time is {now}"
        ),
    };
    for core in 0..machine.lockstep.cores() {
        let (state, time) = machine.lockstep.seat(core);
        let waits = match (state, machine.waits_for(core)) {
            _ if machine.waits_for_peers(core) => {
                "waits for another machine, which is a quantum behind".to_owned()
            }
            (_, Some(other)) => format!("waits for core {other}, which is a quantum behind"),
            (State::Running, None) => "holds the others back".to_owned(),
            (State::Kicked, None) => "holds the others back until it runs".to_owned(),
            (State::Idle | State::Absent, None) => "holds nobody back".to_owned(),
        };
        let executed = machine.own(core).executed.load(Ordering::Relaxed);
        // A String takes everything.
        let _ = write!(
            text,
            "\n  core {core}: {} at {}, {executed} instructions; {waits}; {}",
            state.word(),
            seconds(time),
            machine.emulator.describe(core)
        );
    }
    let due = match machine.emulator.due_in() {
        None => "no timer is set".to_owned(),
        Some(0) => "a timer is due".to_owned(),
        Some(ns) => format!("the next timer is due in {}", seconds(ns)),
    };
    let _ = write!(text, "\n  {due}");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(now_ns: i64) -> Sample {
        Sample {
            now_ns,
            idle: false,
            disk: false,
            due: false,
            fired: 0,
        }
    }

    fn words(samples: impl IntoIterator<Item = Sample>) -> Vec<Word> {
        let mut watch = Watch::new(3);
        samples.into_iter().filter_map(|s| watch.look(s)).collect()
    }

    #[test]
    fn a_machine_that_gets_on_is_left_alone() {
        assert_eq!(words((0..99).map(at)), []);
        // However slowly: a look without progress is nothing, nor are two.
        assert_eq!(words((0..99).map(|n| at(n / 3))), []);
    }

    #[test]
    fn a_stall_is_told_once_and_so_is_its_end() {
        let stuck = std::iter::repeat_n(at(7), 50);
        let samples = [at(5), at(6)].into_iter().chain(stuck).chain([at(8)]);
        assert_eq!(
            words(samples.clone()),
            [Word::Stuck(Stall::Still), Word::GoesOn(49)]
        );
        assert_eq!(
            words(samples.clone().chain(samples)).len(),
            4,
            "each stall anew"
        );
    }

    #[test]
    fn an_idle_machine_may_wait_for_ever_unless_for_a_disk() {
        let idle = |disk, due| Sample {
            idle: true,
            disk,
            due,
            ..at(7)
        };
        assert_eq!(words([idle(false, false); 50]), []);
        assert_eq!(words([idle(true, false); 50]), [Word::Stuck(Stall::Disk)]);
        assert_eq!(words([idle(false, true); 50]), [Word::Stuck(Stall::Still)]);
    }

    #[test]
    fn timers_that_arent_fired_are_noticed_while_time_goes_on() {
        let due = |now_ns, fired| Sample {
            due: true,
            fired,
            ..at(now_ns)
        };
        assert_eq!(words((0..50).map(|n| due(n, n.unsigned_abs()))), []);
        assert_eq!(
            words((0..50).map(|n| due(n, 7))),
            [Word::Stuck(Stall::Timers)]
        );
    }

    #[test]
    fn seconds_have_nine_decimals() {
        assert_eq!(seconds(1_500_000_001), "1.500000001 s");
        assert_eq!(seconds(-1), "-0.000000001 s");
    }
}
