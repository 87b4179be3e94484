//! Several machines that are one: each a QEMU of its own instruction set, in lockstep, and interrupting each other.
//!
//! They share one block of memory ([`Page`]), in which each shows what the others must know: its cores' seats
//! ([`crate::lockstep`]), when its next timer is due, and the doorbells that were rung for it. From this each sees for itself
//! how far it may go:
//!
//! - **A core** waits while a core of another machine is more than a quantum behind, as it does for its own machine's.
//! - **A timer** of a halted machine counts like a core that stands at the timer's time: nobody runs away from it, and so it is fired
//!   before anybody can have seen that it wasn't. The halted machine in turn skips to it only when no other is more than a quantum
//!   behind. So idle time is skipped when all machines are idle, and then the nearest timer of all comes first.
//! - **A doorbell** rung at `t` is delivered at `t + latency`. From the moment it is rung it counts like such a timer.
//!
//! ## Why a doorbell is never late
//!
//! Be `Q` the quantum and `L` the latency. A core looks at the clock at the start of the first block of code at which half a quantum
//! or more has passed since its last look, or at which something that it knows of is due. At a look it delivers what is due, and waits. Be `T` the
//! time of a look, and `p` how far another machine's core has come when the wait ends: `p >= T - Q`. What that one rings from then on is due
//! at `p + L` or later, and so at `T + Q / 2` or later if `L >= 1.5 Q`; what it rang before is known.
//!
//! - Whatever is due before `T + Q / 2` is known at `T`, so the next look is at the start of the first block at or after it.
//! - The next look, at `T'`, may come long after `T + Q / 2`: by one block of code, whose every access may miss its caches and wait in a
//!   memory device's queue. There is no useful bound for that. So what is due is looked for *again after the wait*: then `p >= T' - Q`, and all that is
//!   due up to `T'` is known and delivered, before the core executes anything that comes after `T'`. It was due after the block before began, or that
//!   block's start would have been the look.
//!
//! So a doorbell is heard at the end of the block of code in which its time falls, however much accesses cost ([`fits`] asks for a block of
//! instructions beyond that, so that counted instructions alone never bring a core to a time for which another may still ring).
//!
//! ## How far apart machines are
//!
//! With instructions that all cost the same, no core is further ahead of another than `1.5 Q` and a block's instructions. With
//! caches, a core also waits within a block, behind an access ([`crate::machine::Machine::hold`]): so it is `1.5 Q` and one access, or the
//! instructions of one block, whichever takes longer. Each machine has its own clock, since one that both read would have each see the
//! other's jumps. What two machines read at once differs by no more than that bound.
//!
//! Who sleeps here says up to where it waits for the others before it looks at them again; who comes that far looks for
//! sleepers after it has shown itself. Both in one total order: either the sleeper sees the time, or the other the sleeper.

use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::clock::Cost;
use crate::futex;
use crate::lockstep::{Seat, State};

/// Machines at most.
pub const MACHINES: usize = 2;
/// Cores of a machine at most.
pub const CORES: usize = 64;
/// Doorbells on their way to one core. Rung faster than that, they are delivered together.
const BELLS: usize = 62;
/// Instructions in a block of code at most (`TCG_MAX_INSNS`).
pub const BLOCK: u64 = 512;
/// What the block of memory begins with: that it is one, and its layout's version.
const MAGIC: u64 = u64::from_le_bytes(*b"ostler\0\x01");
/// No time.
const NEVER: i64 = i64::MAX;
/// Looks at the others before a waiting thread offers its real core to them, and before it sleeps.
const SPINS: u32 = 200;
const YIELDS: u32 = 50;
/// Who got its real core back only after this long gave it to a stranger, and is served sooner when it is woken from sleep; so
/// many waits in a row then do without giving way.
const STRANGER: Duration = Duration::from_micros(300);
const SHY: u32 = 64;
/// How long a sleeper trusts in being told.
const NAP: Duration = Duration::from_millis(50);

/// How far a machine has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Hasn't executed anything yet: the others wait for it at time 0.
    Starting,
    Running,
    /// Has ended in order, and holds nobody back.
    Ended,
}

/// What all machines see. All zeros are machines that haven't started.
#[derive(Debug, Default)]
#[repr(C, align(4096))]
pub struct Page {
    magic: AtomicU64,
    machines: [Shown; MACHINES],
}

/// What a machine shows of itself.
#[derive(Debug)]
#[repr(C, align(128))]
struct Shown {
    phase: AtomicU32,
    process: AtomicU32,
    cores: AtomicU32,
    /// When its next timer is due; meant for when all its cores are halted.
    timer_ns: AtomicI64,
    sleep: Sleep,
    seats: [Seat; CORES],
    bells: [Bell; CORES],
}

/// Where a machine's threads sleep while they wait for another.
#[derive(Debug, Default)]
#[repr(C, align(128))]
struct Sleep {
    word: AtomicU32,
    sleepers: AtomicU32,
    /// The nearest time that any of them waits for; 0 if nobody sleeps.
    until_ns: AtomicI64,
}

/// Doorbells on their way to a core.
#[derive(Debug)]
#[repr(C, align(128))]
struct Bell {
    /// When the first of them is to be delivered.
    first_ns: AtomicI64,
    /// When each is to be; 0 where there is none.
    each_ns: [AtomicI64; BELLS],
}

impl Default for Bell {
    fn default() -> Bell {
        Bell {
            first_ns: AtomicI64::new(0),
            each_ns: std::array::from_fn(|_| AtomicI64::new(0)),
        }
    }
}

impl Default for Shown {
    fn default() -> Shown {
        Shown {
            phase: AtomicU32::new(0),
            process: AtomicU32::new(0),
            cores: AtomicU32::new(0),
            timer_ns: AtomicI64::new(0),
            sleep: Sleep::default(),
            seats: std::array::from_fn(|_| Seat::default()),
            bells: std::array::from_fn(|_| Bell::default()),
        }
    }
}

impl Shown {
    fn phase(&self) -> Phase {
        match self.phase.load(Ordering::SeqCst) {
            0 => Phase::Starting,
            1 => Phase::Running,
            _ => Phase::Ended,
        }
    }

    fn cores(&self) -> usize {
        (self.cores.load(Ordering::Relaxed) as usize).min(CORES)
    }

    /// The cores that run or were woken: how far each has come.
    fn busy(&self) -> impl Iterator<Item = i64> {
        let seats = self.seats[..self.cores()].iter();
        seats.filter_map(|seat| match seat.look() {
            (State::Running | State::Kicked, time) => Some(time),
            (State::Idle | State::Absent, _) => None,
        })
    }

    /// The first thing that happens in it even if all its cores are halted.
    fn event(&self) -> i64 {
        let bells = self.bells[..self.cores()].iter();
        let bells = bells.map(|bell| &bell.first_ns);
        bells
            .chain([&self.timer_ns])
            .map(|time| time.load(Ordering::SeqCst))
            .min()
            .unwrap_or(NEVER)
    }
}

/// How often what happened to a machine's doorbells.
#[derive(Debug, Default)]
pub struct Rings {
    /// Delivered.
    pub delivered: AtomicU64,
    /// Of those, later than in the block of code of their time.
    pub late: AtomicU64,
    /// The most that any was delivered after its time, ns.
    pub most_late_ns: AtomicI64,
    /// Rung, but with too many on their way: delivered together with another.
    pub merged: AtomicU64,
}

/// What is still to be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behind {
    /// The machine.
    pub machine: usize,
    /// How far it has come, ns.
    pub time: i64,
}

/// One of several machines, among the others.
#[derive(Debug)]
pub struct Fused {
    page: &'static Page,
    me: usize,
    quantum_ns: i64,
    latency_ns: i64,
    /// So many waits to come do without giving way.
    shy: AtomicU32,
    /// Of this machine's doorbells.
    pub rings: Rings,
}

/// Whether a quantum is small enough for a latency between machines to be exact; if not, the largest that is, ns.
pub fn fits(quantum_ns: i64, latency_ns: i64, cost: Cost) -> Result<(), i64> {
    let largest = (latency_ns - cost.ns(BLOCK)) * 2 / 3;
    if quantum_ns <= largest {
        Ok(())
    } else {
        Err(largest)
    }
}

impl Fused {
    /// Takes machine `me`'s place on the page, for so many cores. `None` if somebody else has it, if there is none, if it is too
    /// small, or if the page is another version's.
    pub fn join(
        page: &'static Page,
        me: usize,
        cores: usize,
        quantum_ns: i64,
        latency_ns: i64,
    ) -> Option<Fused> {
        let found = page
            .magic
            .compare_exchange(0, MAGIC, Ordering::SeqCst, Ordering::SeqCst);
        let shown = page.machines.get(me)?;
        if found.is_err_and(|found| found != MAGIC)
            || cores > CORES
            || shown
                .process
                .compare_exchange(0, std::process::id(), Ordering::SeqCst, Ordering::SeqCst)
                .is_err()
        {
            return None;
        }
        // `cores` is at most 64 here.
        shown
            .cores
            .store(u32::try_from(cores).unwrap_or(0), Ordering::SeqCst);
        shown.timer_ns.store(NEVER, Ordering::SeqCst);
        for bell in &shown.bells {
            bell.first_ns.store(NEVER, Ordering::SeqCst);
        }
        Some(Fused {
            page,
            me,
            quantum_ns,
            latency_ns,
            shy: AtomicU32::new(0),
            rings: Rings::default(),
        })
    }

    /// Its number.
    pub fn me(&self) -> usize {
        self.me
    }

    /// From a ring to its interrupt, ns.
    pub fn latency_ns(&self) -> i64 {
        self.latency_ns
    }

    fn mine(&self) -> &'static Shown {
        &self.page.machines[self.me]
    }

    fn others(&self) -> impl Iterator<Item = (usize, &'static Shown)> {
        let machines = self.page.machines.iter().enumerate();
        let me = self.me;
        machines.filter(move |&(number, _)| number != me)
    }

    /// The seats of its cores.
    pub fn seats(&self) -> &'static [Seat] {
        &self.mine().seats[..self.mine().cores()]
    }

    /// Its first core runs.
    pub fn started(&self) {
        let phase = &self.mine().phase;
        if phase.load(Ordering::SeqCst) == 0 {
            phase.store(1, Ordering::SeqCst);
        }
    }

    /// It ends: nobody need wait for it any more.
    pub fn ended(&self) {
        self.mine().phase.store(2, Ordering::SeqCst);
        self.reached(NEVER);
        futex::wake(&self.mine().sleep.word);
    }

    /// Its next timer is due then, if any is set. Before its last core halts, and whenever that changes afterwards.
    pub fn timer(&self, at: Option<i64>) {
        let at = at.unwrap_or(NEVER);
        if self.mine().timer_ns.swap(at, Ordering::SeqCst) != at {
            self.reached(NEVER);
        }
    }

    /// Wakes those of other machines who wait for this one to come to `time`. After it was shown.
    pub fn reached(&self, time: i64) {
        for (_, other) in self.others() {
            let until = other.sleep.until_ns.load(Ordering::SeqCst);
            if until != 0 && until <= time {
                other.sleep.until_ns.store(0, Ordering::SeqCst);
                futex::wake(&other.sleep.word);
            }
        }
    }

    /// Another machine that is more than a quantum behind `time`.
    pub fn behind(&self, time: i64) -> Option<Behind> {
        self.others().find_map(|(machine, other)| {
            let behind =
                |its: i64| (time - its > self.quantum_ns).then_some(Behind { machine, time: its });
            match other.phase() {
                Phase::Ended => return None,
                Phase::Starting => return behind(0),
                Phase::Running => {}
            }
            // A machine that halts shows its next event before its cores are idle, and one that wakes shows its cores as running
            // before the event is over: looked at in this order, one of the two is always seen.
            let before = other.event();
            let seats = other.busy().find_map(behind);
            seats
                .or_else(|| behind(before))
                .or_else(|| behind(other.event()))
        })
    }

    /// Whether anything is due in this machine that the others wait for: a doorbell, or a timer that it has shown.
    pub fn is_due(&self, time: i64) -> bool {
        self.mine().event() <= time
    }

    /// How far the others have come, as far as they run: what comes from outside to a halted machine comes at this time.
    pub fn front(&self) -> Option<i64> {
        self.others()
            .filter(|(_, other)| other.phase() == Phase::Running)
            .flat_map(|(_, other)| other.busy())
            .min()
    }

    /// Waits until no other machine is more than a quantum behind `time`. Returns `false` if `leave` came true before.
    pub fn wait(&self, time: i64, leave: impl Fn() -> bool) -> bool {
        let shy = self.shy.load(Ordering::Relaxed);
        let yields = if shy == 0 { YIELDS } else { 0 };
        for look in 0..SPINS + yields {
            if self.behind(time).is_none() {
                return true;
            }
            if leave() {
                return false;
            }
            if look < SPINS {
                std::hint::spin_loop();
                continue;
            }
            let began = Instant::now();
            std::thread::yield_now();
            if began.elapsed() > STRANGER {
                self.shy.store(SHY, Ordering::Relaxed);
                break;
            }
        }
        if shy > 0 {
            // Counts that are lost between threads are no matter.
            self.shy.store(shy - 1, Ordering::Relaxed);
        }
        loop {
            self.sleep(NAP, time - self.quantum_ns, || {
                self.behind(time).is_some() && !leave()
            });
            if self.behind(time).is_none() {
                return true;
            }
            if leave() {
                return false;
            }
        }
    }

    /// Sleeps once, at most so long, if the condition holds: until another machine has come to `until`, rings, changes its next
    /// event, or ends; or until [`Fused::disturb`].
    pub fn sleep(&self, patience: Duration, until: i64, condition: impl Fn() -> bool) {
        let sleep = &self.mine().sleep;
        let word = sleep.word.load(Ordering::SeqCst);
        sleep.sleepers.fetch_add(1, Ordering::SeqCst);
        // 0 stands for nobody; a nanosecond more or less is nothing to a sleeper.
        let until = until.max(1);
        let nearer = |old: i64| (old == 0 || old > until).then_some(until);
        let _ = sleep
            .until_ns
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, nearer);
        if condition() {
            futex::sleep(&sleep.word, word, patience);
        }
        sleep.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Has this machine's own sleepers look at their conditions again.
    pub fn disturb(&self) {
        let sleep = &self.mine().sleep;
        if sleep.sleepers.load(Ordering::SeqCst) > 0 {
            futex::wake(&sleep.word);
        }
    }

    /// Rings a core's doorbell, at a time of this machine's. Returns whether there is such a core.
    pub fn ring(&self, machine: usize, core: usize, time: i64) -> bool {
        let target = self.page.machines.get(machine);
        let bell = |its: &'static Shown| its.bells[..its.cores()].get(core);
        let Some((target, bell)) = target.and_then(|its| Some((its, bell(its)?))) else {
            return false;
        };
        let at = time + self.latency_ns;
        let free = |slot: &AtomicI64| {
            slot.compare_exchange(0, at, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok()
        };
        if !bell.each_ns.iter().any(free) {
            self.rings.merged.fetch_add(1, Ordering::Relaxed);
        }
        bell.first_ns.fetch_min(at, Ordering::SeqCst);
        if target.sleep.sleepers.load(Ordering::SeqCst) > 0 {
            futex::wake(&target.sleep.word);
        }
        true
    }

    /// When the first doorbell that was rung for a core is to be delivered.
    pub fn bell(&self, core: usize) -> Option<i64> {
        let at = self.mine().bells[core].first_ns.load(Ordering::SeqCst);
        (at != NEVER).then_some(at)
    }

    /// Delivers what was rung for a core and is due at `time`, by `deliver`, which is told when the first was. It is on time if it was due
    /// within the last `block_ns`: before that, the core could have been interrupted. Only one thread of a machine may do so at a time.
    pub fn deliver(&self, core: usize, time: i64, block_ns: i64, deliver: impl FnOnce(i64)) {
        let bell = &self.mine().bells[core];
        let first = bell.first_ns.load(Ordering::SeqCst);
        if first > time {
            return;
        }
        for slot in &bell.each_ns {
            let at = slot.load(Ordering::SeqCst);
            if at != 0 && at <= time {
                slot.store(0, Ordering::SeqCst);
                self.rings.delivered.fetch_add(1, Ordering::Relaxed);
                let late = time - at;
                self.rings.most_late_ns.fetch_max(late, Ordering::Relaxed);
                if late > block_ns {
                    self.rings.late.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        deliver(first);
        // Only now, when its core is known to be awake, may the others forget it. What is rung meanwhile is in its place before
        // this word is lowered for it, so one of the two is seen.
        bell.first_ns.store(NEVER, Ordering::SeqCst);
        for slot in &bell.each_ns {
            let at = slot.load(Ordering::SeqCst);
            if at != 0 {
                bell.first_ns.fetch_min(at, Ordering::SeqCst);
            }
        }
        self.reached(NEVER);
    }

    /// Another machine whose process is gone although it hasn't ended: its number, and its process's.
    pub fn lost(&self) -> Option<(usize, u32)> {
        self.others().find_map(|(number, other)| {
            let process = other.process.load(Ordering::SeqCst);
            let gone = process != 0 && other.phase() != Phase::Ended && !lives(process);
            gone.then_some((number, process))
        })
    }
}

/// Whether a process is there and can still do anything.
fn lives(process: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{process}/stat")) else {
        return false;
    };
    // Its name, in parentheses, may have anything in it; its state comes after.
    let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
    !state.is_some_and(|state| state.starts_with(['Z', 'X']))
}

#[cfg(test)]
#[path = "fused_tests.rs"]
mod tests;
