//! Waits for the next period, a signal, or a word from the API, whichever comes first.
//!
//! A guest that came or changed needn't wait for the period to end: word of it ([`Waiter::hasten`]) has the next period begin
//! at once, but not before half of the current one, and those after it follow from there. So whatever happens to guests, the loop turns at
//! most twice as often as it is meant to, and nothing is measured over less than half a period.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use ostler_model::Nanos;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// What ended the wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A period began; so many before it were missed.
    Tick {
        /// Periods skipped.
        missed: u64,
        /// How long after it was due the wait ended.
        lateness: Nanos,
    },
    /// The configuration is to be read again.
    Reload,
    /// Somebody left a request in the control queue.
    Control,
    /// The steward is to end.
    Stop,
}

/// The loop's timer and its ears.
pub struct Waiter {
    timer: OwnedFd,
    wake: UnixStream,
    waker: UnixStream,
    stop: Arc<AtomicBool>,
    hup: Arc<AtomicBool>,
    haste: Arc<AtomicBool>,
    schedule: Schedule,
}

/// When periods begin.
#[derive(Clone, Copy, Debug)]
struct Schedule {
    period: Nanos,
    /// When the current one began.
    began: Nanos,
    /// When the next is due.
    next: Nanos,
}

impl Schedule {
    fn new(period: Nanos, now: Nanos) -> Schedule {
        Schedule {
            period,
            began: now,
            next: now.saturating_add(period),
        }
    }

    /// The timer ran out so many times. Says how late it is noticed.
    fn tick(&mut self, expirations: u64, now: Nanos) -> Nanos {
        let skipped = self.period.0.saturating_mul(expirations.saturating_sub(1));
        let due = self.next.saturating_add(Nanos(skipped));
        self.began = now;
        self.next = due.saturating_add(self.period);
        now.saturating_sub(due)
    }

    /// Has the next begin once half of this one is over, or now where it is. Says whether that is earlier than it was.
    fn hasten(&mut self, now: Nanos) -> bool {
        let early = now.max(self.began.saturating_add(Nanos(self.period.0 / 2)));
        let sooner = early < self.next;
        self.next = self.next.min(early);
        sooner
    }
}

/// The monotonic clock.
pub fn monotonic() -> Nanos {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let part = |n: i64| u64::try_from(n).unwrap_or(0);
    Nanos(part(now.tv_sec) * 1_000_000_000 + part(now.tv_nsec))
}

fn timespec(span: Nanos) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(span.0 / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(span.0 % 1_000_000_000).unwrap_or(0),
    }
}

impl Waiter {
    /// Starts the timer and listens for signals: SIGTERM and SIGINT stop, SIGHUP reloads.
    pub fn new(period: Nanos) -> anyhow::Result<Waiter> {
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )
        .context("could not make the period's timer")?;
        let (wake, waker) = UnixStream::pair().context("could not make a socket pair")?;
        wake.set_nonblocking(true)
            .and_then(|()| waker.set_nonblocking(true))
            .context("could not make a socket pair non-blocking")?;
        let stop = Arc::new(AtomicBool::new(false));
        let hup = Arc::new(AtomicBool::new(false));
        for (signal, flag) in [(SIGTERM, &stop), (SIGINT, &stop), (SIGHUP, &hup)] {
            // The flag first, so that it is up when the byte arrives.
            signal_hook::flag::register(signal, Arc::clone(flag))
                .and_then(|_| signal_hook::low_level::pipe::register(signal, waker.try_clone()?))
                .with_context(|| format!("could not listen for signal {signal}"))?;
        }
        let waiter = Waiter {
            timer,
            wake,
            waker,
            stop,
            hup,
            haste: Arc::default(),
            schedule: Schedule::new(period, monotonic()),
        };
        waiter.arm()?;
        Ok(waiter)
    }

    /// Sets the period; the next one begins a whole period from now.
    pub fn set_period(&mut self, period: Nanos) -> anyhow::Result<()> {
        self.schedule = Schedule::new(period, monotonic());
        self.arm()
    }

    fn arm(&self) -> anyhow::Result<()> {
        let spec = Itimerspec {
            it_interval: timespec(self.schedule.period),
            it_value: timespec(self.schedule.next),
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &spec)
            .context("could not set the period's timer")?;
        Ok(())
    }

    /// Something that wakes the loop from another thread: any byte written to it.
    pub fn waker(&self) -> anyhow::Result<UnixStream> {
        self.waker
            .try_clone()
            .context("could not duplicate a socket")
    }

    /// Something that has the next period begin early, to be called from any thread; it never blocks.
    pub fn hasten(&self) -> anyhow::Result<impl Fn() + Send + Sync + 'static> {
        let waker = self.waker()?;
        let haste = Arc::clone(&self.haste);
        Ok(move || {
            // The flag first, so that it is up when the byte arrives. A full pipe will wake the loop by what is in it.
            haste.store(true, Ordering::Release);
            let _ = (&waker).write(&[0]);
        })
    }

    /// Waits.
    pub fn wait(&mut self) -> anyhow::Result<Event> {
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Ok(Event::Stop);
            }
            if self.hup.swap(false, Ordering::Relaxed) {
                return Ok(Event::Reload);
            }
            let mut fds = [
                PollFd::new(&self.wake, PollFlags::IN),
                PollFd::new(&self.timer, PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error).context("could not wait for the next period"),
            }
            let woken = !fds[0].revents().is_empty();
            let ticked = !fds[1].revents().is_empty();
            if woken {
                let mut bytes = [0; 64];
                let mut wake = &self.wake;
                while matches!(wake.read(&mut bytes), Ok(n) if n > 0) {}
                // A period that has begun meanwhile sees what there is to see.
                if self.haste.swap(false, Ordering::Acquire)
                    && !ticked
                    && self.schedule.hasten(monotonic())
                {
                    self.arm()?;
                }
                // A signal's flag is up by now; without one it was the API.
                if self.stop.load(Ordering::Relaxed) || self.hup.load(Ordering::Relaxed) {
                    continue;
                }
                return Ok(Event::Control);
            }
            if ticked {
                let mut count = [0_u8; 8];
                match rustix::io::read(&self.timer, &mut count) {
                    Ok(8) => {
                        let expirations = u64::from_ne_bytes(count);
                        let lateness = self.schedule.tick(expirations, monotonic());
                        return Ok(Event::Tick {
                            missed: expirations.saturating_sub(1),
                            lateness,
                        });
                    }
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => {
                        return Err(error).context("could not read the period's timer");
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whenever word of guests comes, and however late the loop is: a period that it has begin early lasts half of one at least, one
        /// that it doesn't is as long as ever, and without word the beat is kept.
        #[test]
        fn a_period_lasts_at_least_half_and_at_most_a_whole_one(
            period in 2_u64..1_000_000,
            steps in prop::collection::vec((0_u64..3_000_000, prop::collection::vec(0_u64..1_000_000, 0..3)), 1..50),
        ) {
            let mut now = Nanos(1_000);
            let mut schedule = Schedule::new(Nanos(period), now);
            for (late, words) in steps {
                let regular = schedule.next;
                for word in &words {
                    now = Nanos(now.0 + word % period).min(schedule.next);
                    let sooner = schedule.hasten(now);
                    prop_assert!(schedule.next >= now, "not in the past");
                    prop_assert!(!sooner || schedule.next.0 - schedule.began.0 >= period / 2);
                    prop_assert!(schedule.next.0 <= now.0.max(schedule.began.0 + period / 2), "word is heeded");
                }
                prop_assert!(schedule.next <= regular, "never put off");
                if words.is_empty() {
                    prop_assert_eq!(schedule.next, regular);
                }
                let due = schedule.next;
                now = Nanos(now.0.max(due.0 + late));
                let expirations = 1 + (now.0 - due.0) / period;
                let lateness = schedule.tick(expirations, now);
                prop_assert!(lateness.0 < period);
                prop_assert_eq!((schedule.next.0 - due.0) % period, 0, "the beat is kept");
                prop_assert!(schedule.next > now && schedule.next.0 - now.0 <= period);
            }
        }
    }

    #[test]
    fn word_from_another_thread_has_the_timer_run_out_early() {
        // No test waits for a period of an hour, nor for half of it; the third word comes when the period is long since half over.
        let hour = Nanos::from_secs(3600);
        let mut waiter = Waiter::new(hour).unwrap();
        let hasten = waiter.hasten().unwrap();
        let before = waiter.schedule.next;
        for expected in [hour.0 / 2, hour.0 / 2] {
            std::thread::scope(|scope| scope.spawn(&hasten).join()).unwrap();
            assert_eq!(waiter.wait().unwrap(), Event::Control);
            assert_eq!(before.0 - waiter.schedule.next.0, expected);
        }
        waiter.schedule = Schedule {
            period: hour,
            began: Nanos::ZERO,
            next: monotonic().saturating_add(hour),
        };
        waiter.schedule.began = Nanos(monotonic().0.saturating_sub(hour.0));
        waiter.arm().unwrap();
        hasten();
        assert_eq!(waiter.wait().unwrap(), Event::Control);
        assert!(matches!(
            waiter.wait().unwrap(),
            Event::Tick { missed: 0, .. }
        ));
    }
}
