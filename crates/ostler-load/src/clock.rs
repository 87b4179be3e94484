//! The monotonic clock and a timer on it that wakes a poll to the microsecond (poll itself only counts milliseconds).

use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};

use crate::error::LoadError;

fn to_ns(time: Timespec) -> u64 {
    let part = |n: i64| u64::try_from(n).unwrap_or(0);
    part(time.tv_sec) * 1_000_000_000 + part(time.tv_nsec)
}

/// The monotonic clock.
pub fn monotonic_ns() -> u64 {
    to_ns(clock_gettime(ClockId::Monotonic))
}

/// The wall clock, for labels only.
pub fn unix_ms() -> u64 {
    to_ns(clock_gettime(ClockId::Realtime)) / 1_000_000
}

/// A timer that becomes readable at an instant of the monotonic clock.
#[derive(Debug)]
pub struct Timer {
    fd: OwnedFd,
    armed_for_ns: u64,
}

impl Timer {
    /// A timer that isn't armed.
    pub fn new() -> Result<Self, LoadError> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = timerfd_create(TimerfdClockId::Monotonic, flags).map_err(|e| LoadError::Loop {
            what: "timerfd_create",
            source: e.into(),
        })?;
        Ok(Self {
            fd,
            armed_for_ns: 0,
        })
    }

    /// Its file descriptor, for poll.
    pub fn raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Arms it; an instant that has passed fires at once.
    pub fn arm(&mut self, at_ns: u64) -> Result<(), LoadError> {
        let at_ns = at_ns.max(1);
        if at_ns == self.armed_for_ns {
            return Ok(());
        }
        let part = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let at = Timespec {
            tv_sec: part(at_ns / 1_000_000_000),
            tv_nsec: part(at_ns % 1_000_000_000),
        };
        let never = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let spec = Itimerspec {
            it_interval: never,
            it_value: at,
        };
        timerfd_settime(&self.fd, TimerfdTimerFlags::ABSTIME, &spec).map_err(|e| {
            LoadError::Loop {
                what: "timerfd_settime",
                source: e.into(),
            }
        })?;
        self.armed_for_ns = at_ns;
        Ok(())
    }

    /// Takes note that it fired.
    pub fn fired(&mut self) {
        // Non-blocking, and how often it fired doesn't matter: an error only means that it hasn't.
        let _ = rustix::io::read(&self.fd, &mut [0_u8; 8]);
        self.armed_for_ns = 0;
    }
}
