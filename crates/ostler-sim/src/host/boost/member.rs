//! A thread that is let in: `struct boost_thread` of `bpf/boost/state.h`.
//!
//! Who comes to wait is compared with a dozen others that wait and with all that have a core of its domain, so a member is two cache lines, and
//! the first is all that is asked of the others.

use ostler_boost::Vcpu;

use crate::host::fair::NONE;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::host) enum At {
    Asleep,
    Waits,
    Runs,
}

/// Which of its guest's pools one is in, by number, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::host) enum Pooled {
    Not,
    Awake(u8),
    Asleep(u8),
}

impl Pooled {
    pub fn number(self) -> u32 {
        match self {
            Pooled::Not => 0,
            Pooled::Awake(number) | Pooled::Asleep(number) => number.into(),
        }
    }

    /// The same one, asleep.
    pub fn rests(self) -> Pooled {
        match self {
            Pooled::Not => Pooled::Not,
            Pooled::Awake(number) | Pooled::Asleep(number) => Pooled::Asleep(number),
        }
    }

    /// The same one, awake.
    pub fn rises(self) -> Pooled {
        match self {
            Pooled::Not => Pooled::Not,
            Pooled::Awake(number) | Pooled::Asleep(number) => Pooled::Awake(number),
        }
    }
}

/// A time that may not have come yet, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::host) struct Moment(u64);

impl Moment {
    pub const NEVER: Moment = Moment(u64::MAX);

    pub fn at(now: u64) -> Moment {
        Moment(now)
    }

    pub fn get(self) -> Option<u64> {
        (self != Moment::NEVER).then_some(self.0)
    }
}

/// A thread that is let in, `struct boost_thread`.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
#[allow(clippy::struct_excessive_bools)] // Each is a word of the C struct's.
pub(in crate::host) struct Member {
    pub vcpu: Vcpu,
    pub runs_since: u64,
    /// [`NONE`]: it isn't let in.
    pub guest: u32,
    /// An event came that it hasn't run since.
    pub has_event: bool,
    pub boosted: bool,
    pub works: bool,
    pub at: At,
    // The other line.
    pub domain: u32,
    pub cpu: u32,
    pub waits_since: u64,
    /// Its run time when it was last charged.
    pub charged_at: u64,
    /// When the event came, if there is one.
    event_at: u64,
    /// When the last interrupt came as it ran, or it last came to its core with an event.
    pub served_at: Moment,
    pub followed: u64,
    /// What is left of its slice; the kernel's.
    pub slice: u64,
    pub pooled: Pooled,
    /// It waits at the head of its queue.
    pub ahead: bool,
    pub moved: bool,
}

const _: () = assert!(size_of::<Member>() == 128);

impl Member {
    /// One that isn't let in.
    pub fn nobody() -> Member {
        Member::new(NONE, false, (0, 0), 0, 0)
    }

    pub fn is_in(&self) -> bool {
        self.guest != NONE
    }

    /// One of a guest that comes to a domain as told, and has run for a time.
    pub fn new(guest: u32, works: bool, (domain, cpu): (u32, u32), vtime: u64, ran: u64) -> Member {
        Member {
            vcpu: Vcpu {
                vtime,
                ..Vcpu::default()
            },
            runs_since: 0,
            guest,
            has_event: false,
            boosted: false,
            works,
            at: At::Asleep,
            domain,
            cpu,
            waits_since: 0,
            charged_at: ran,
            event_at: 0,
            served_at: Moment::NEVER,
            followed: vtime,
            slice: 0,
            pooled: Pooled::Not,
            ahead: false,
            moved: true,
        }
    }

    /// An event comes. One that it hasn't run since stands for all that follow.
    pub fn note_event(&mut self, now: u64) {
        if !self.has_event {
            self.has_event = true;
            self.event_at = now;
        }
    }

    /// It runs, and has no event any longer; when the one came that it had.
    pub fn take_event(&mut self) -> Option<u64> {
        std::mem::take(&mut self.has_event).then_some(self.event_at)
    }

    /// `event_age`: how long ago the last event came that it runs with.
    pub fn event_age(&self, now: u64) -> Option<u64> {
        Some(now - self.served_at.get()?)
    }

    pub fn rests(&self) -> bool {
        matches!(self.pooled, Pooled::Asleep(_))
    }
}
