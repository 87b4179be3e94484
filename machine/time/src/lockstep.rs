//! Who has come how far, and who must wait for whom.
//!
//! Each core publishes its time. The machine's time is the furthest that was ever published; it never goes back. A core
//! may go on while no core that matters is more than a quantum behind it. Which ones matter is told by their state:
//!
//! | state | it is | holds others back |
//! |---|---|---|
//! | idle | halted, with nothing to do | no |
//! | kicked | halted, but somebody has given it work; its thread hasn't got a real core yet | from the time of the kick on |
//! | running | executing, or inside QEMU on behalf of an instruction | from the last time it published |
//! | absent | was running, but hasn't been seen for seconds of real time | no |
//!
//! Without *kicked*, the time between an interrupt and the target's first instruction would be as long as the real
//! machine took to schedule a thread, told in the others' instructions. The time of a kick is that of whoever kicks, not of whoever has
//! come furthest: how far that is, within a quantum, is the real machine's choice. Nobody can have run away from it by then, since the
//! kicker itself holds all others back. *Absent* is a way out, not a part of ordinary
//! life: whatever a core waits for inside QEMU, the rest of the machine doesn't wait with it for ever.
//!
//! Two cores of which one has interrupted the other keep *closer* than a quantum, for as long as what follows from it may take: a fifth of a
//! quantum, for two. What passes to and fro between them takes about as long as a quantum, and whether the waker is on its
//! way to sleep by then, or asleep, would otherwise be the real machine's choice; it makes a wake-up half as dear, or twice. Kept so close
//! always, cores that only compute would wait for each other several times as often.
//! (Quanta as short as there is something to be told: Falcon, Faraboschi and Ortega, ISPASS 2008, adapt one for a whole cluster.)
//!
//! All of it is atomics without a lock: each core writes its own seat; others write it only to move *idle* to *kicked*, a
//! *kicked* that turned out to have no work back to *idle*, and *running* or *kicked* to *absent*.

use std::sync::atomic::{AtomicI64, AtomicU8, Ordering};

/// What a core is doing, as far as time is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Halted; holds nobody back.
    Idle,
    /// Halted, but woken; holds others back from the time of the kick.
    Kicked,
    /// Executing.
    Running,
    /// Not seen for long; holds nobody back until it is seen again.
    Absent,
}

impl State {
    fn of(value: u8) -> State {
        match value {
            0 => State::Idle,
            1 => State::Kicked,
            2 => State::Running,
            _ => State::Absent,
        }
    }

    /// In a word, for the watchdog.
    pub fn word(self) -> &'static str {
        match self {
            State::Idle => "halted",
            State::Kicked => "woken but not yet running",
            State::Running => "running",
            State::Absent => "not seen for long",
        }
    }
}

/// What a core shows of itself. On cache lines of its own: every core reads all of them, many times in a millisecond.
/// All zeros are a halted core at time 0.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct Seat {
    time: AtomicI64,
    state: AtomicU8,
}

impl Seat {
    /// What its core is doing, and how far it has come. The time is read last: it may belong to a later state, but never to an
    /// earlier one, so nobody is taken to be further behind than it is.
    pub fn look(&self) -> (State, i64) {
        let state = State::of(self.state.load(Ordering::SeqCst));
        (state, self.time.load(Ordering::SeqCst))
    }
}

/// Where the seats are.
#[derive(Debug)]
enum Seats {
    /// In this process alone.
    Own(Box<[Seat]>),
    /// Where other processes see them too.
    Shown(&'static [Seat]),
}

impl std::ops::Deref for Seats {
    type Target = [Seat];

    #[inline]
    fn deref(&self) -> &[Seat] {
        match self {
            Seats::Own(seats) => seats,
            Seats::Shown(seats) => seats,
        }
    }
}

/// A core that another one waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its number.
    pub core: usize,
    /// How far it has come, ns.
    pub time: i64,
    /// How far it must come to hold that one back no longer.
    pub until: i64,
}

/// The machine's time, and all cores'.
#[derive(Debug)]
pub struct Lockstep {
    quantum_ns: i64,
    now: AtomicI64,
    seats: Seats,
    /// By core: until when it keeps close to others that do.
    close_until: Box<[AtomicI64]>,
}

/// A quantum is so many times as long as what close cores may be apart, and close cores are close for so many quanta.
const CLOSER: i64 = 5;
const CLOSE_QUANTA: i64 = 2;

impl Lockstep {
    /// A machine at time 0 with all its cores halted.
    pub fn new(cores: usize, quantum_ns: i64) -> Lockstep {
        let seats = (0..cores).map(|_| Seat::default()).collect();
        Lockstep {
            quantum_ns,
            now: AtomicI64::new(0),
            seats: Seats::Own(seats),
            close_until: never(cores),
        }
    }

    /// The same, with seats that others see too; all are as they were made.
    pub fn shown(seats: &'static [Seat], quantum_ns: i64) -> Lockstep {
        Lockstep {
            quantum_ns,
            now: AtomicI64::new(0),
            seats: Seats::Shown(seats),
            close_until: never(seats.len()),
        }
    }

    /// How many cores there are.
    pub fn cores(&self) -> usize {
        self.seats.len()
    }

    /// The machine's time, ns.
    pub fn now(&self) -> i64 {
        self.now.load(Ordering::SeqCst)
    }

    /// Moves the machine's time on to `time` if it isn't there yet. Returns where it is now.
    pub fn advance(&self, time: i64) -> i64 {
        self.now.fetch_max(time, Ordering::SeqCst).max(time)
    }

    /// What a core is doing, and how far it has come.
    pub fn seat(&self, core: usize) -> (State, i64) {
        self.seats[core].look()
    }

    /// A core runs and has come to `time`. Returns what it was taken to be doing until now: one that was absent has to
    /// catch up before it holds others back again.
    pub fn publish(&self, core: usize, time: i64) -> State {
        let seat = &self.seats[core];
        seat.time.store(time, Ordering::SeqCst);
        self.advance(time);
        if seat.state.load(Ordering::SeqCst) == State::Running as u8 {
            return State::Running;
        }
        State::of(seat.state.swap(State::Running as u8, Ordering::SeqCst))
    }

    /// A core halts; its own clock says `local`. Work may have come while it was about to: it asks `has_work` after it has shown
    /// itself idle, so that either it sees the work or whoever brings it sees it idle. Then it goes on from where it is.
    pub fn rest(&self, core: usize, local: i64, has_work: impl FnOnce() -> bool) {
        self.set(core, State::Idle);
        if has_work() {
            self.kick(core, local);
        }
    }

    /// Somebody whose time is `at` has given a core work. Of several, the first counts.
    pub fn kick(&self, core: usize, at: i64) {
        let seat = &self.seats[core];
        if seat.state.load(Ordering::SeqCst) == State::Idle as u8 {
            // First the time, then the state: nobody may see it kicked at the time when it halted.
            seat.time.fetch_max(at, Ordering::SeqCst);
            self.change(core, State::Idle, State::Kicked);
        }
    }

    /// A halted core goes on; its own clock says `local`. Returns the time from which it does: that of the kick, or the
    /// machine's if there was none.
    pub fn resume(&self, core: usize, local: i64) -> i64 {
        let seat = &self.seats[core];
        let from = match self.seat(core) {
            (State::Kicked, time) => time,
            _ => self.now(),
        };
        let start = from.max(local);
        seat.time.store(start, Ordering::SeqCst);
        self.set(core, State::Running);
        start
    }

    /// Two cores keep close to each other from `at` on, when one has interrupted the other.
    pub fn bring_close(&self, one: usize, other: usize, at: i64) {
        let until = at + CLOSE_QUANTA * self.quantum_ns;
        for core in [one, other] {
            self.close_until[core].fetch_max(until, Ordering::SeqCst);
        }
    }

    /// How far a core that has come to `time` may be ahead of others that are close, if it is one of these.
    pub fn close_ns(&self, core: usize, time: i64) -> Option<i64> {
        (time < self.close_until[core].load(Ordering::SeqCst)).then_some(self.quantum_ns / CLOSER)
    }

    /// The first core that is more than a quantum behind `core`, which is at `time`. A kicked one for which `has_work`
    /// denies any work was woken for nothing, and is idle again.
    /// Where both are close, it is less than a quantum.
    pub fn holder(
        &self,
        core: usize,
        time: i64,
        has_work: impl Fn(usize) -> bool,
    ) -> Option<Holder> {
        let close_ns = self.close_ns(core, time);
        (0..self.cores())
            .filter(|&other| other != core)
            .find_map(|other| {
                let (state, its) = self.seat(other);
                let apart = close_ns
                    .filter(|_| self.close_ns(other, its).is_some())
                    .unwrap_or(self.quantum_ns);
                let until = time - apart;
                let holder = Holder {
                    core: other,
                    time: its,
                    until,
                };
                match state {
                    State::Running if its < until => Some(holder),
                    State::Kicked if its < until => (has_work(other)
                        || self.forget_kick(other, its, &has_work))
                    .then_some(holder),
                    _ => None,
                }
            })
    }

    /// A core that was kicked at `at` had no work, and is idle again. Work that came between the look and this found it kicked, and left it so: then it
    /// is kicked as it was. Returns whether there was any.
    fn forget_kick(&self, core: usize, at: i64, has_work: impl Fn(usize) -> bool) -> bool {
        self.change(core, State::Kicked, State::Idle);
        let came = has_work(core);
        if came {
            self.kick(core, at);
        }
        came
    }

    /// No core has anything to do, and time is about to skip: those that were woken for nothing are idle again, or what wakes them next would do so at
    /// the time of the kick for nothing, before the skip. Returns whether work came to any meanwhile.
    pub fn forget_kicks(&self, has_work: impl Fn(usize) -> bool) -> bool {
        (0..self.cores()).any(|core| match self.seat(core) {
            (State::Kicked, at) => self.forget_kick(core, at, &has_work),
            _ => false,
        })
    }

    /// Stops waiting for a core that hasn't moved since it was seen at `seen`. Returns whether it hadn't.
    pub fn excuse(&self, seen: Holder) -> bool {
        let (state, time) = self.seat(seen.core);
        time == seen.time
            && matches!(state, State::Running | State::Kicked)
            && self.change(seen.core, state, State::Absent)
    }

    /// Whether no core has anything to do.
    pub fn everyone_rests(&self, has_work: impl Fn(usize) -> bool) -> bool {
        (0..self.cores()).all(|core| match self.seat(core).0 {
            State::Idle | State::Kicked => !has_work(core),
            State::Absent => true,
            State::Running => false,
        })
    }

    fn set(&self, core: usize, state: State) {
        self.seats[core].state.store(state as u8, Ordering::SeqCst);
    }

    fn change(&self, core: usize, from: State, to: State) -> bool {
        self.seats[core]
            .state
            .compare_exchange(from as u8, to as u8, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }
}

fn never(cores: usize) -> Box<[AtomicI64]> {
    (0..cores).map(|_| AtomicI64::new(i64::MIN)).collect()
}

#[cfg(test)]
#[path = "lockstep_tests.rs"]
mod tests;
