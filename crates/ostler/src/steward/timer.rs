//! Waits for the next period, a signal, or a word from the API, whichever comes first.

use std::io::{ErrorKind, Read as _};
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
    period: Nanos,
    /// When the last period was due.
    due: Nanos,
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
        let mut waiter = Waiter {
            timer,
            wake,
            waker,
            stop,
            hup,
            period,
            due: Nanos::ZERO,
        };
        waiter.set_period(period)?;
        Ok(waiter)
    }

    /// Sets the period; the next one begins a whole period from now.
    pub fn set_period(&mut self, period: Nanos) -> anyhow::Result<()> {
        let spec = Itimerspec {
            it_interval: timespec(period),
            it_value: timespec(period),
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &spec)
            .context("could not set the period's timer")?;
        self.period = period;
        self.due = monotonic();
        Ok(())
    }

    /// Something that wakes the loop from another thread: any byte written to it.
    pub fn waker(&self) -> anyhow::Result<UnixStream> {
        self.waker
            .try_clone()
            .context("could not duplicate a socket")
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
                        let passed = Nanos(self.period.0.saturating_mul(expirations));
                        self.due = self.due.saturating_add(passed);
                        return Ok(Event::Tick {
                            missed: expirations.saturating_sub(1),
                            lateness: monotonic().saturating_sub(self.due),
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
