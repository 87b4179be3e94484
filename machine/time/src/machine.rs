//! The clock of a machine: what happens when a core counts, halts, is woken, and when nobody has anything to do.
//!
//! QEMU is behind [`Emulator`], so that all of this runs in tests too, with threads that stand for cores.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::clock::Cost;
use crate::fused::Fused;
use crate::gate::Gate;
use crate::lockstep::{Lockstep, State};
use crate::options::{Options, Timing};
use crate::threads::{Role, role};
use crate::wanting::Wanting;

#[path = "idle.rs"]
mod idle;
#[path = "stuck.rs"]
mod stuck;
#[path = "wait.rs"]
mod wait;
pub use idle::Skip;

/// Looks at another core's seat before a waiting thread goes to sleep. On two real cores most waits end sooner.
const SPINS: u32 = 300;
/// Times that a waiting thread then offers its real core to others before it goes to sleep. With more emulated cores than real
/// ones, whom it waits for is often one of those; and giving way costs a tenth of sleeping and being woken.
const YIELDS: u32 = 100;
/// Who got the real core back only after this long gave it to somebody other than a core of ours, and who is woken from sleep
/// waits less for such a one. See [`Machine::wait_for_others`].
const STRANGER: Duration = Duration::from_micros(500);
/// So many waits in a row then do without giving way.
const SHY: u64 = 64;
/// A wait ends when what it waits for happens; this is how long it trusts in having been told.
const NAP: Duration = Duration::from_millis(50);
/// See [`Machine::patience`].
const PATIENCE: Duration = Duration::from_secs(5);
/// Waits of a fifth of that, after it, in each of which a thread of the emulator may have been kept from the real cores: as long as one was, nobody is
/// taken to be stuck. A machine so busy for a minute isn't waited for.
const STARVED: u32 = 60;
/// A timer that is due no sooner is none: AArch64's, when it is never to go off, is set to the end of time.
const FAR: i64 = i64::MAX / 2;
/// No core: nobody is waited for.
const NOBODY: usize = usize::MAX;
/// No core of this machine: another machine is waited for.
const PEERS: usize = usize::MAX - 1;

/// What the clock needs of QEMU. Cores are known by their numbers.
pub trait Emulator: Sync {
    /// What a core has executed since [`Emulator::restart_count`], in the machine's units. Asked by the core's own thread.
    fn counted(&self, core: usize) -> u64;
    /// Begins to count anew, as if so much had been counted already: the next look at the clock comes that much sooner. Asked by the
    /// core's own thread.
    fn restart_count(&self, core: usize, from: u64);
    /// What a core has counted since it could last be interrupted, or at most: a block of code. Asked by the core's own thread.
    fn uninterrupted(&self, core: usize) -> u64;
    /// Whether a core has anything to do: an interrupt, queued work, instructions.
    fn has_work(&self, core: usize) -> bool;
    /// Whether somebody wants a core to leave its guest's code.
    fn asked_to_leave(&self, core: usize) -> bool;
    /// The same, but not if it is only to take an interrupt that its own thread has brought: that can wait as long as the core does.
    fn called_away(&self, core: usize) -> bool;
    /// Whether waiting would be wrong: all other cores are stopped for this one, or it holds QEMU's big lock.
    fn must_not_wait(&self, core: usize) -> bool;
    /// Runs something under QEMU's big lock.
    fn locked(&self, body: &mut dyn FnMut());
    /// Time until the next timer is due, ns; 0 if one is due already.
    fn due_in(&self) -> Option<i64>;
    /// Fires the main loop's timers that are due. Under the big lock.
    fn run_timers(&self);
    /// Makes the main loop look at its timers again.
    fn wake_main_loop(&self);
    /// Whether any disk has a request on its way. Under the big lock.
    fn disk_is_busy(&self) -> bool;
    /// Disks with a request on its way, in words. Under the big lock.
    fn busy_disks(&self) -> Vec<String>;
    /// Interrupts a core, as its doorbell does. Under the big lock.
    fn ring(&self, core: usize);
    /// What QEMU knows of a core, for the watchdog.
    fn describe(&self, core: usize) -> String;
    /// Tells whoever reads QEMU's words. Not in ordinary life.
    fn say(&self, text: &str);
    /// Which of its threads want a real core.
    fn wanting(&self) -> Wanting;
    /// Shows whoever wants to know what a core has done so far. Called by its own thread, each quantum and when it halts.
    fn show(&self, core: usize, so_far: SoFar);
}

/// What a core has done since the machine began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoFar {
    /// The core's own clock, ns.
    pub time_ns: i64,
    /// Of it, halted.
    pub halted_ns: i64,
    /// What it has executed, in the machine's units.
    pub executed: u64,
}

/// What a core's own thread keeps of it. Others only read, for reports.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Own {
    /// What it has executed up to the last quantum, in the machine's units.
    pub executed: AtomicU64,
    /// What the count began at.
    head_start: AtomicU64,
    /// What its clock was moved on by while it was halted, ns.
    pub offset_ns: AtomicI64,
    /// How often it waited for another core, gave way or slept over it, and left off waiting because it was wanted elsewhere.
    pub waits: AtomicU64,
    /// See `waits`.
    pub yields: AtomicU64,
    /// See `waits`.
    pub sleeps: AtomicU64,
    /// See `waits`.
    pub left: AtomicU64,
    /// The number of waits from which on it gives way again.
    shy_until: AtomicU64,
    /// Where it waits for another core; for which one; and how far that one must come.
    gate: Gate,
    waits_for: AtomicUsize,
    waits_until_ns: AtomicI64,
}

/// How often what happened.
#[derive(Debug, Default)]
pub struct Counts {
    /// Timers were fired by a core.
    pub fires: AtomicU64,
    /// Time skipped on while all cores were halted.
    pub skips: AtomicU64,
    /// An idle machine waited for a disk.
    pub disk_waits: AtomicU64,
    /// A core was excused from the lockstep. Not in ordinary life.
    pub excused: AtomicU64,
}

thread_local! {
    /// The time of what this thread makes happen just now, where that isn't its own: an interrupt that is due wakes its core at its
    /// own time, however late this thread came to it.
    static HAPPENS_AT: Cell<Option<i64>> = const { Cell::new(None) };
    /// Whether it is we that ask for the time, and not the guest.
    static ASKING: Cell<bool> = const { Cell::new(false) };
}

/// A machine and its clock.
#[derive(Debug)]
pub struct Machine<E> {
    /// What runs the instructions.
    pub emulator: E,
    /// As the user wants it.
    pub options: Options,
    /// What one unit of what the emulator counts takes: an instruction, or a picosecond that it has reckoned itself.
    unit: Cost,
    /// Units after which a core's counting is looked at: half a quantum's.
    step: u64,
    /// All cores' times.
    pub lockstep: Lockstep,
    /// The other machines that this one is fused with.
    pub fused: Option<Fused>,
    /// What happened how often.
    pub counts: Counts,
    /// A core that holds others back without having moved for this long is waiting inside QEMU; time goes on without it. See [`stuck`].
    patience: Duration,
    own: Box<[Own]>,
    /// The furthest time that anybody was told.
    told: AtomicI64,
    /// The time up to which all of the main loop's timers have been fired.
    fired_until: AtomicI64,
    /// The disks that an idle machine has been waiting for, if it has for long.
    slow_disks: Mutex<Vec<String>>,
    /// Where the thread that skips idle time waits for idleness.
    bell: Gate,
    /// Where our threads wait for the machine's end.
    farewell: Gate,
    ending: AtomicBool,
}

impl<E: Emulator> Machine<E> {
    /// A machine whose cores are all halted, at time 0.
    pub fn new(emulator: E, cores: usize, options: Options) -> Machine<E> {
        let own = |_| Own {
            waits_for: AtomicUsize::new(NOBODY),
            ..Own::default()
        };
        Machine {
            emulator,
            unit: match options.timing {
                Timing::Instructions => options.cost,
                Timing::Caches => Cost::from_ps(1),
            },
            step: match options.timing {
                Timing::Instructions => options.step(),
                Timing::Caches => options.quantum_ns.unsigned_abs() * 1000 / 2,
            },
            lockstep: Lockstep::new(cores, options.quantum_ns),
            fused: None,
            options,
            counts: Counts::default(),
            patience: PATIENCE,
            own: (0..cores).map(own).collect(),
            told: AtomicI64::new(0),
            fired_until: AtomicI64::new(0),
            slow_disks: Mutex::default(),
            bell: Gate::default(),
            farewell: Gate::default(),
            ending: AtomicBool::new(false),
        }
    }

    /// The same machine as one of several.
    #[must_use]
    pub fn among(self, fused: Fused) -> Machine<E> {
        Machine {
            lockstep: Lockstep::shown(fused.seats(), self.options.quantum_ns),
            fused: Some(fused),
            ..self
        }
    }

    /// What a core's thread keeps of it.
    pub fn own(&self, core: usize) -> &Own {
        &self.own[core]
    }

    /// The core that another one waits for just now.
    pub fn waits_for(&self, core: usize) -> Option<usize> {
        let other = self.own[core].waits_for.load(Ordering::Relaxed);
        (other != NOBODY && other != PEERS).then_some(other)
    }

    /// Whether a core waits for another machine just now.
    pub fn waits_for_peers(&self, core: usize) -> bool {
        self.own[core].waits_for.load(Ordering::Relaxed) == PEERS
    }

    /// A core's own clock, ns. By its own thread.
    pub fn local(&self, core: usize) -> i64 {
        let own = &self.own[core];
        let counted = own.executed.load(Ordering::Relaxed) + self.emulator.counted(core);
        let executed = counted - own.head_start.load(Ordering::Relaxed);
        self.unit.ns(executed) + own.offset_ns.load(Ordering::Relaxed)
    }

    /// Moves a core's own clock on to `time`. By its own thread.
    fn catch_up(&self, core: usize, time: i64) {
        let behind = time - self.local(core);
        if behind > 0 {
            self.own[core]
                .offset_ns
                .fetch_add(behind, Ordering::Relaxed);
        }
    }

    /// The time, for whoever asks: QEMU's virtual clock, and the guest's time stamp counter. Nobody is told less than anybody was told before, on
    /// whatever core. But what a core has come to without having asked is no matter of others': how far those are that only compute, within
    /// a quantum, is the real machine's choice.
    pub fn read(&self) -> i64 {
        let time = match role() {
            Role::Core(core) => {
                let local = self.local(core);
                self.lockstep.advance(local);
                local
            }
            Role::Ours => self.lockstep.now(),
            // All timers up to then have been fired, and others may have been told less.
            Role::Other => self.fired_until.load(Ordering::SeqCst),
        };
        if ASKING.get() {
            self.told.load(Ordering::SeqCst).max(time)
        } else {
            let told = self.told.fetch_max(time, Ordering::SeqCst).max(time);
            // The main loop has told its own, and doesn't see beyond.
            if role() == Role::Other { time } else { told }
        }
    }

    /// The same, for our own ends: nobody hears of it.
    fn look(&self) -> i64 {
        let before = ASKING.replace(true);
        let time = self.read();
        ASKING.set(before);
        time
    }

    /// Shows how far a core has come. By its own thread. Returns the time.
    fn come_to(&self, core: usize) -> i64 {
        let mut time = self.local(core);
        if self.lockstep.publish(core, time) == State::Absent {
            self.catch_up(core, self.lockstep.now());
            time = self.local(core);
            self.lockstep.publish(core, time);
        }
        self.let_go(core, time);
        time
    }

    /// A core of fused machines has counted half a quantum or more, and is in the middle of a block of code: it waits for the others as
    /// it would at the block's end, and does nothing else. It keeps its count. Comes from its thread.
    ///
    /// What is due is seen to at the block's end, and others may wait for that: so it doesn't wait for them if anything is.
    pub fn hold(&self, core: usize) {
        if !self.emulator.must_not_wait(core) {
            let time = self.come_to(core);
            let due = || self.fused.as_ref().is_some_and(|fused| fused.is_due(time));
            let _ = self.wait_for_others(core, time, &due) && self.wait_for_peers(core, time, &due);
        }
    }

    /// A core has counted half a quantum or more. Comes from its thread, between two blocks of the guest's code.
    pub fn quantum(&self, core: usize) {
        let time = self.come_to(core);
        let rung = || self.bell_for(core).is_some_and(|at| at <= time);
        let mut timer = None;
        if self.emulator.must_not_wait(core) {
            if self.fused.is_some() {
                // As below: other machines rely on its having waited before it goes on for long.
                return;
            }
        } else {
            loop {
                timer = self.due_in();
                if timer == Some(0) || rung() {
                    self.fire(core, time);
                    // What is still due is the main loop's.
                    timer = self.due_in().filter(|&ns| ns > 0);
                } else {
                    // No timer is due at what anybody was told, so none is at this core's time, which isn't later.
                    self.fired_until.fetch_max(time, Ordering::SeqCst);
                }
                if let Some(fused) = &self.fused {
                    fused.timer(timer.map(|ns| time + ns));
                }
                let free = self.wait_for_others(core, time, &rung)
                    && self.wait_for_peers(core, time, &rung);
                // Whom it waited for may have rung for a time that it has come to: it may be any time ahead by one block of code
                // whose accesses miss. They wait in turn until that is delivered. What is rung from now on is for later
                // ([`crate::fused`]).
                if rung() {
                    continue;
                }
                if !free {
                    // It keeps its count: the next block of code brings it back here.
                    return;
                }
                break;
            }
        }
        let bell = self.bell_for(core).map(|at| at - time);
        let own = &self.own[core];
        let counted = self.emulator.counted(core);
        let executed = counted - own.head_start.load(Ordering::Relaxed);
        own.executed.fetch_add(executed, Ordering::Relaxed);
        // The next look comes after a step, or when something is due: then it is found in time, to the block of code.
        let close = self.lockstep.close_ns(core, time).map(|ns| ns / 2);
        let next = timer.into_iter().chain(bell).chain(close).min();
        let until = next.map_or(self.step, |ns| self.unit.instructions(ns).max(1));
        let head_start = self.step.saturating_sub(until);
        own.head_start.store(head_start, Ordering::Relaxed);
        self.emulator.restart_count(core, head_start);
        self.show(core);
    }

    /// Has a core look at the clock at the start of its next block of code. By its own thread.
    fn look_soon(&self, core: usize) {
        let own = &self.own[core];
        let counted = self.emulator.counted(core);
        own.head_start.fetch_add(self.step, Ordering::Relaxed);
        self.emulator.restart_count(core, counted + self.step);
    }

    fn show(&self, core: usize) {
        let own = &self.own[core];
        let counted = self.emulator.counted(core) - own.head_start.load(Ordering::Relaxed);
        let executed = own.executed.load(Ordering::Relaxed) + counted;
        let halted_ns = own.offset_ns.load(Ordering::Relaxed);
        let so_far = SoFar {
            time_ns: self.unit.ns(executed) + halted_ns,
            halted_ns,
            executed,
        };
        self.emulator.show(core, so_far);
    }

    /// Time until the next timer is due, ns, if one ever is.
    fn due_in(&self) -> Option<i64> {
        let before = ASKING.replace(true);
        let due = self.emulator.due_in().filter(|&ns| ns < FAR);
        ASKING.set(before);
        due
    }

    /// The first doorbell that a running core is to deliver: its own, or that of one that is halted and can't.
    fn bell_for(&self, core: usize) -> Option<i64> {
        let fused = self.fused.as_ref()?;
        (0..self.lockstep.cores())
            .filter(|&other| other == core || self.is_halted(other))
            .filter_map(|other| fused.bell(other))
            .min()
    }

    fn is_halted(&self, core: usize) -> bool {
        matches!(self.lockstep.seat(core).0, State::Idle | State::Kicked)
    }

    /// Wakes those who wait for a core, which has come to `time`.
    fn let_go(&self, core: usize, time: i64) {
        for own in &self.own {
            if own.waits_for.load(Ordering::SeqCst) == core
                && own.waits_until_ns.load(Ordering::SeqCst) <= time
            {
                own.gate.wake();
            }
        }
        if let Some(fused) = &self.fused {
            fused.reached(time);
        }
    }

    /// Fires all timers that are due. Right here, in the thread of the core whose time has come to them: work that is queued for
    /// later may be looked at late, or never.
    fn fire(&self, core: usize, time: i64) {
        self.counts.fires.fetch_add(1, Ordering::Relaxed);
        self.emulator
            .locked(&mut || self.fire_locked(Some(core), time));
    }

    /// For a core, or for a machine whose cores are all halted, that has come to `time`.
    fn fire_locked(&self, core: Option<usize>, time: i64) {
        let now = self.read();
        // A timer isn't this core's doing: it goes off when the machine's time has come to it.
        let outer = HAPPENS_AT.get();
        HAPPENS_AT.set(outer.or(Some(now)));
        self.emulator.run_timers();
        HAPPENS_AT.set(outer);
        self.fired_until.fetch_max(now, Ordering::SeqCst);
        if let Some(fused) = &self.fused {
            let block = core.map_or(0, |core| self.emulator.uninterrupted(core));
            // A nanosecond more: times are rounded down.
            let block_ns = self.unit.ns(block) + 1;
            for other in 0..self.lockstep.cores() {
                if Some(other) == core || self.is_halted(other) {
                    fused.deliver(other, time, block_ns, |at| {
                        HAPPENS_AT.set(Some(at));
                        self.emulator.ring(other);
                        HAPPENS_AT.set(None);
                    });
                }
            }
        }
        if self.due_in() == Some(0) {
            // What is left belongs to the block layer, whose timers only the main loop may run.
            self.emulator.wake_main_loop();
        }
    }

    /// A core's thread has found nothing to do, and is about to sleep.
    pub fn rest(&self, core: usize) {
        self.show(core);
        let local = self.local(core);
        let time = self.look();
        if let Some(fused) = &self.fused {
            // Before it is halted: what happens next must be known by then. While a disk is at work, time stands still.
            let next = if self.emulator.disk_is_busy() {
                Some(0)
            } else {
                self.due_in()
            };
            fused.timer(next.map(|ns| time + ns));
        }
        self.lockstep
            .rest(core, local, || self.emulator.has_work(core));
        self.let_go(core, i64::MAX);
        self.bell.wake();
    }

    /// A core's thread has slept, and goes on.
    pub fn resume(&self, core: usize) {
        let start = self.lockstep.resume(core, self.local(core));
        self.catch_up(core, start);
        // Its next look was set before it halted; what has been rung since may be due sooner, and others may be close.
        if let Some(fused) = &self.fused {
            fused.started();
            self.look_soon(core);
        } else if self.lockstep.close_ns(core, start).is_some() {
            self.look_soon(core);
        }
        self.let_go(core, start);
    }

    /// A core is about to be interrupted. If another one does that, both keep close for a while. In its thread.
    pub fn interrupted(&self, core: usize) {
        // Fused machines are close always, and exact as they are.
        if self.fused.is_some() || HAPPENS_AT.get().is_some() {
            return;
        }
        if let Role::Core(by) = role()
            && by != core
            && self.lockstep.seat(by).0 == State::Running
        {
            self.lockstep.bring_close(by, core, self.local(by));
            self.look_soon(by);
        }
    }

    /// Somebody is about to wake a core's thread. From now on nobody runs away from it. What another core does happens at that
    /// core's own time, wherever the furthest one is.
    pub fn kicked(&self, core: usize) {
        let at = match (HAPPENS_AT.get(), role()) {
            (Some(at), _) => at,
            // One that others don't wait for may be far behind them: what it does happens when it is back.
            (None, Role::Core(waker)) if self.lockstep.seat(waker).0 == State::Running => {
                let at = self.local(waker);
                self.lockstep.advance(at);
                at
            }
            (None, Role::Core(_)) => self.read(),
            (None, Role::Ours | Role::Other) => self.outside(),
        };
        self.lockstep.kick(core, at);
    }

    /// The time at which something from outside happens: the machine's, or the others' if this one has slept while they ran.
    fn outside(&self) -> i64 {
        let now = self.lockstep.now();
        let front = self.fused.as_ref().and_then(Fused::front);
        match front {
            // By their seats: the core that is being woken has work already.
            Some(front) if (0..self.lockstep.cores()).all(|core| self.is_halted(core)) => {
                now.max(front)
            }
            _ => now,
        }
    }

    fn rests(&self) -> bool {
        self.lockstep
            .everyone_rests(|core| self.emulator.has_work(core))
    }

    /// A core was asked to leave its guest's code: if it waits here, it must see that.
    pub fn asked(&self, core: usize) {
        self.own[core].gate.wake();
        if let Some(fused) = &self.fused {
            fused.disturb();
        }
    }

    /// The disks that an idle machine has been waiting for, if it has for long.
    pub fn slow_disks(&self) -> Vec<String> {
        self.slow_disks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// QEMU ends: our threads are to leave it alone.
    pub fn end(&self) {
        self.ending.store(true, Ordering::SeqCst);
        if let Some(fused) = &self.fused {
            fused.ended();
        }
        self.bell.wake();
        self.farewell.wake();
    }

    /// Waits, in one of our own threads, until the machine ends or `time` has passed. Returns whether it ends.
    pub fn ends_within(&self, time: Duration) -> bool {
        !self
            .farewell
            .wait_while(time, || !self.ending.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
