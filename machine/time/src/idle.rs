//! What happens to time while every core is halted: it is skipped to the next timer, by a thread of ours.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Emulator, HAPPENS_AT, Machine, NAP};
use crate::options::Idle;

/// How often the thread that skips idle time looks around unasked: a core that was woken for nothing rests without telling.
const GLANCE: Duration = Duration::from_millis(2);
/// How often an idle machine is looked at that waits for a disk or for the outside.
const LOOK: Duration = Duration::from_micros(200);
/// A disk that hasn't answered for this long is worth naming.
const SLOW: Duration = Duration::from_secs(2);

/// What became of an attempt to skip idle time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skip {
    /// Time was moved on and timers were fired.
    Moved,
    /// Some core has something to do.
    Busy,
    /// A disk request is on its way.
    Disk,
    /// Another machine isn't there yet.
    Peer {
        /// The time that it must come near to, ns.
        to: i64,
    },
    /// No timer is set: only the outside can wake the machine.
    NoTimer,
    /// Real time isn't there yet.
    TooSoon(Duration),
}

impl<E: Emulator> Machine<E> {
    /// Skips to the next timer if every core is halted and no disk is at work. `idle_since` is when the machine was first seen
    /// idle, in both times; only pacing looks at it.
    pub fn skip(&self, idle_since: Option<(Instant, i64)>) -> Skip {
        if !self.rests() {
            return Skip::Busy;
        }
        let mut outcome = Skip::Busy;
        self.emulator.locked(&mut || {
            // Again, under the lock: nothing that wakes a core can happen now.
            if !self.rests() {
                return;
            }
            let now = self.lockstep.now();
            if self.emulator.disk_is_busy() {
                self.counts.disk_waits.fetch_add(1, Ordering::Relaxed);
                if let Some(fused) = &self.fused {
                    // The others' time stands still with ours.
                    fused.timer(Some(now));
                }
                outcome = Skip::Disk;
                return;
            }
            let timer = self.due_in().map(|ns| now + ns);
            if let Some(fused) = &self.fused {
                fused.timer(timer);
            }
            let to = match self.next_event(timer) {
                Ok(Some(to)) => to,
                Ok(None) => {
                    outcome = Skip::NoTimer;
                    return;
                }
                Err(to) => {
                    outcome = Skip::Peer { to };
                    return;
                }
            };
            if let Some((real, then)) = idle_since {
                let wait = Duration::from_nanos((to - then).max(0).unsigned_abs())
                    .saturating_sub(real.elapsed());
                if !wait.is_zero() {
                    outcome = Skip::TooSoon(wait);
                    return;
                }
            }
            if self
                .lockstep
                .forget_kicks(|core| self.emulator.has_work(core))
            {
                return;
            }
            self.counts.skips.fetch_add(1, Ordering::Relaxed);
            self.lockstep.advance(to);
            HAPPENS_AT.set(Some(to));
            self.fire_locked(None, to);
            HAPPENS_AT.set(None);
            if let Some(fused) = &self.fused {
                // A timer that fired is past; the next is known, unless it is the main loop's.
                let next = self.due_in().map(|ns| to + ns);
                fused.timer(next);
            }
            outcome = Skip::Moved;
        });
        outcome
    }

    /// What happens first while all cores are halted, if anything: a timer, or a doorbell. `Err` if another machine must come nearer
    /// to it before.
    fn next_event(&self, timer: Option<i64>) -> Result<Option<i64>, i64> {
        loop {
            let first = timer.into_iter().chain(self.first_bell()).min();
            let (Some(to), Some(fused)) = (first, &self.fused) else {
                return Ok(first);
            };
            if fused.behind(to).is_some() {
                return Err(to);
            }
            // Another machine may have rung and halted since: it holds nobody back any more, but what it rang for comes first.
            if self.first_bell().is_none_or(|at| at >= to) {
                return Ok(Some(to));
            }
        }
    }

    /// Skips idle time until the machine ends. The body of a thread.
    pub fn skip_idle_time(&self) {
        let mut idle_since = None;
        let mut disk_since = None;
        while !self.ending.load(Ordering::SeqCst) {
            let outcome = self.skip(idle_since);
            self.note_disks(outcome, &mut disk_since);
            let pause = match outcome {
                Skip::Busy => {
                    idle_since = None;
                    self.bell.wait_while(GLANCE, || {
                        !self.ending.load(Ordering::SeqCst) && !self.rests()
                    });
                    if self.options.idle == Idle::Pace {
                        idle_since = Some((Instant::now(), self.lockstep.now()));
                    }
                    continue;
                }
                // A timer that wasn't ours to fire is still due: let the main loop have it.
                Skip::Moved if self.due_in() == Some(0) => LOOK,
                Skip::Moved => continue,
                Skip::Disk | Skip::NoTimer => LOOK,
                Skip::TooSoon(wait) => wait.min(NAP),
                Skip::Peer { to } => {
                    self.wait_idle(to);
                    continue;
                }
            };
            let idle = || !self.ending.load(Ordering::SeqCst) && self.rests();
            match &self.fused {
                // A doorbell is heard here, and nowhere else.
                Some(fused) => {
                    fused.sleep(pause, i64::MAX, || idle() && self.first_bell().is_none());
                }
                None => {
                    self.bell.wait_while(pause, idle);
                }
            }
        }
    }

    /// Waits, while all cores are halted, until the other machines have come near to `to` or there is something sooner to do.
    fn wait_idle(&self, to: i64) {
        if let Some(fused) = &self.fused {
            fused.wait(to, || {
                self.ending.load(Ordering::SeqCst)
                    || !self.rests()
                    || self.first_bell().is_some_and(|at| at < to)
            });
        }
    }

    /// The first doorbell that was rung for any core.
    fn first_bell(&self) -> Option<i64> {
        let fused = self.fused.as_ref()?;
        (0..self.lockstep.cores())
            .filter_map(|core| fused.bell(core))
            .min()
    }

    /// Keeps the names of disks that don't answer, for the watchdog: it must not ask itself, for the lock that it needs to
    /// may be what everything waits for.
    fn note_disks(&self, outcome: Skip, since: &mut Option<Instant>) {
        let slow = || {
            self.slow_disks
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        };
        if outcome != Skip::Disk {
            if since.take().is_some_and(|since| since.elapsed() > SLOW) {
                slow().clear();
            }
        } else if since.get_or_insert_with(Instant::now).elapsed() > SLOW && slow().is_empty() {
            let mut names = Vec::new();
            self.emulator
                .locked(&mut || names = self.emulator.busy_disks());
            *slow() = names;
        }
    }
}
