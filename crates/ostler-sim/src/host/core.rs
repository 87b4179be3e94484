//! A core: what it does, how fast, and where its time went.

use std::collections::VecDeque;
use std::mem::offset_of;

use ostler_model::Nanos;

use super::capacity::{Taken, WHOLE};
use super::costs::IDLE_STATES;
use super::fair::{Average, NONE};
use super::map::LEVELS;
use crate::work::{FULL_SPEED, Interrupt};

/// What a core does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// It sleeps, in an idle state.
    Idle(u8),
    /// It leaves an idle state.
    Waking(u8),
    /// It leaves its idle loop for a thread that has come while it was interrupted.
    Rising,
    /// A hard interrupt.
    Hard,
    /// A softirq, before all threads.
    Soft,
    /// Its thread.
    Thread,
}

/// Where a core's time went, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreTime {
    /// In threads.
    pub threads: u64,
    /// Of it, in those that yield to all others.
    pub yielding: u64,
    /// In hard interrupts.
    pub hard: u64,
    /// In softirqs before threads; what ksoftirqd does is a thread's.
    pub soft: u64,
    /// In each idle state, with what leaving it takes.
    pub idle: [u64; IDLE_STATES],
}

impl CoreTime {
    pub(super) fn add(&mut self, doing: Doing, yields: bool, past: u64) {
        if yields && doing == Doing::Thread {
            self.yielding += past;
        }
        let account = match doing {
            Doing::Idle(state) | Doing::Waking(state) => &mut self.idle[usize::from(state)],
            Doing::Rising => &mut self.idle[0],
            Doing::Hard => &mut self.hard,
            Doing::Soft => &mut self.soft,
            Doing::Thread => &mut self.threads,
        };
        *account += past;
    }

    /// All but idle.
    pub fn busy(&self) -> u64 {
        self.threads + self.hard + self.soft
    }

    /// All.
    pub fn total(&self) -> u64 {
        self.busy() + self.idle.iter().sum::<u64>()
    }
}

/// In what a core's interrupts differ to who counts them by their handlers, as the steward does, from what they take, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handled {
    /// Counts as idle: the way there and back of a device's that came into the idle loop.
    pub unseen: u64,
    /// Counts as an interrupt: what of waking up is in the handler by which another core's thread has somebody woken here.
    pub woken: u64,
}

impl Handled {
    /// What who counts handlers has of so much in interrupts, or of all that is not idle.
    pub fn seen(self, took: u64) -> u64 {
        (took + self.woken).saturating_sub(self.unseen)
    }
}

/// A core. What each event of its asks for is in the first two cache lines of seven, in this order.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(super) struct Core {
    pub doing: Doing,
    /// The thread is about to go to sleep.
    pub leaving: bool,
    /// It is to be looked who runs.
    pub resched: bool,
    /// Likewise, when the thread next leaves its guest or the kernel, or at a tick ([`super::preempt`]).
    pub lazy: bool,
    /// The thread is to be asked again when it goes on.
    pub ask: bool,
    pub ticking: bool,
    /// The rest of its softirqs is ksoftirqd's.
    pub deferred: bool,
    /// The thread that has the core, perhaps beneath interrupts.
    pub running: u32,
    /// How long its work takes, parts of [`FULL_SPEED`].
    pub slow: u32,
    /// Of its siblings, those that don't sleep.
    pub busy_siblings: u32,
    /// Threads of the fair class that would run, the one that does among them.
    pub fair: u32,
    /// Since when what it does isn't in the accounts.
    pub since: Nanos,
    /// What comes before the thread's work: a switch, cold caches; ns.
    pub overhead: u64,
    /// What the thread has yet to do, ns of work; `u64::MAX`: it spins.
    pub left: u64,
    /// What it has done and its owner wasn't told of.
    pub done: u64,
    /// When the thread's slice is over, where a timer is set for that; zero: none is.
    pub slice_ends: Nanos,
    // The second line.
    /// When the thread leaves its guest for a timer, and that is looked at; zero: nobody waits for it.
    pub looks_at: Nanos,
    /// When the thread, which is on its way out of its guest to make room, is out; zero: it isn't on it.
    pub out_at: Nanos,
    /// When the thread, which came back to its guest's tick, has handled that and leaves its guest to set the next; zero: none came.
    pub tick_ends: Nanos,
    /// How often the thread had left its guest when that was last asked.
    pub exits: u64,
    /// What its thread had run when it came.
    pub ran_before: u64,
    /// What interrupts took of threads that are charged for it, ns.
    pub held: u64,
    pub time: CoreTime,
    pub handled: Handled,
    /// What waits, the first of each with what is left of it.
    pub hard: VecDeque<Interrupt>,
    pub soft: VecDeque<Interrupt>,
    /// Softirqs before threads: since when, how many are left of this round, and how many rounds.
    pub soft_since: Nanos,
    pub round: usize,
    pub rounds: u32,
    /// What of its time interrupts took of late.
    pub taken: Taken,
    /// And threads.
    pub used: Taken,
    /// How many threads of the fair class there were of late, each as [`WHOLE`].
    wanted: Average,
    /// When each level is balanced next, and how often that has failed (`nr_balance_failed`, a domain's own): what fails at one says nothing of others.
    pub balance_at: [Nanos; LEVELS],
    pub balance_failed: [u32; LEVELS],
    /// How long it slept the last times, ns; the next to be replaced.
    slept: [u32; 8],
    slept_at: usize,
    pub idle_since: Nanos,
}

const _: () = {
    assert!(offset_of!(Core, looks_at) == 64);
    assert!(size_of::<Core>() == 448);
};

impl Core {
    pub fn new() -> Core {
        Core {
            // A host at rest.
            doing: Doing::Idle((IDLE_STATES - 1) as u8),
            since: Nanos::ZERO,
            time: CoreTime::default(),
            handled: Handled::default(),
            taken: Taken::default(),
            used: Taken::default(),
            running: NONE,
            leaving: false,
            resched: false,
            lazy: false,
            looks_at: Nanos::ZERO,
            tick_ends: Nanos::ZERO,
            slice_ends: Nanos::ZERO,
            out_at: Nanos::ZERO,
            exits: 0,
            ask: false,
            overhead: 0,
            left: 0,
            done: 0,
            slow: FULL_SPEED,
            busy_siblings: 0,
            hard: VecDeque::new(),
            soft: VecDeque::new(),
            soft_since: Nanos::ZERO,
            round: 0,
            rounds: 0,
            deferred: false,
            ticking: false,
            ran_before: 0,
            held: 0,
            fair: 0,
            wanted: Average::default(),
            balance_at: [Nanos::ZERO; LEVELS],
            balance_failed: [0; LEVELS],
            slept: [0; 8],
            slept_at: 0,
            idle_since: Nanos::ZERO,
        }
    }

    /// How much its threads would have had of late with a core each, parts of [`WHOLE`]; before their number changes.
    pub fn wanted(&mut self, now: Nanos) -> u64 {
        self.wanted.pass(now.0, self.fair * WHOLE as u32);
        u64::from(self.wanted.get())
    }

    pub fn is_busy(&self) -> bool {
        !matches!(self.doing, Doing::Idle(_))
    }

    /// How long work takes on it now, parts of [`FULL_SPEED`]; `smt` beside a busy sibling.
    pub fn factor(&self, smt: u32) -> u32 {
        let slow = if self.doing == Doing::Thread {
            self.slow
        } else {
            FULL_SPEED
        };
        if self.busy_siblings > 0 {
            (u64::from(slow) * u64::from(smt) / u64::from(FULL_SPEED)) as u32
        } else {
            slow
        }
    }

    /// Puts the time until now into the accounts, of a thread that yields or doesn't, if one has it; returns how much it was.
    pub fn account(&mut self, yields: bool, now: Nanos) -> u64 {
        let past = now.0 - self.since.0;
        self.time.add(self.doing, yields, past);
        self.since = now;
        past
    }

    /// It has slept until now.
    pub fn note_sleep(&mut self, now: Nanos) {
        self.slept[self.slept_at] = (now.0 - self.idle_since.0).min(u64::from(u32::MAX)) as u32;
        self.slept_at = (self.slept_at + 1) % self.slept.len();
    }

    /// The idle state to go into: the deepest that would have been worth it at least half of the last times (as `teo` and `menu` go by what
    /// recent sleeps were).
    pub fn choose_idle(&self, stays: &[u64; IDLE_STATES]) -> u8 {
        let mut chosen = 0;
        for (state, stay) in stays.iter().enumerate() {
            let worth = self
                .slept
                .iter()
                .filter(|slept| u64::from(**slept) >= *stay);
            if 2 * worth.count() >= self.slept.len() {
                chosen = state as u8;
            }
        }
        chosen
    }
}

/// How long so much work takes.
pub(super) fn wall(work: u64, factor: u32) -> u64 {
    if factor == FULL_SPEED {
        return work;
    }
    match work.checked_mul(u64::from(factor)) {
        Some(product) => product.div_ceil(u64::from(FULL_SPEED)),
        None => (u128::from(work) * u128::from(factor)).div_ceil(u128::from(FULL_SPEED)) as u64,
    }
}

/// How much work is done in a time.
pub(super) fn progress(time: u64, factor: u32) -> u64 {
    if factor == FULL_SPEED {
        return time;
    }
    let factor = factor.max(1);
    match time.checked_mul(u64::from(FULL_SPEED)) {
        Some(product) => product / u64::from(factor),
        None => (u128::from(time) * u128::from(FULL_SPEED) / u128::from(factor)) as u64,
    }
}
