//! Threads, and the cgroups of guests.

use std::mem::offset_of;

use ostler_model::{CpuSet, Nanos};

use super::fair::{Average, Away, WEIGHT};

/// A guest's cgroup, for [`super::Host`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u32);

/// Where a thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It has nothing to do, or is frozen.
    Asleep,
    /// It waits for a core.
    Waits,
    /// It has one.
    Runs,
    /// It is no more.
    Gone,
}

/// Where a thread's time went, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadTime {
    /// On a core.
    pub ran: u64,
    /// Waiting for one.
    pub waited: u64,
    /// It had a core, and interrupts took that.
    pub held: u64,
    /// Asleep, or frozen.
    pub slept: u64,
}

impl ThreadTime {
    /// All.
    pub fn total(&self) -> u64 {
        self.ran + self.waited + self.held + self.slept
    }
}

/// What a new thread is to be like.
#[derive(Clone, Copy, Debug)]
pub struct Spawn {
    /// Its cgroup; `None`: the host's own.
    pub group: Option<GroupId>,
    /// The cores that it may run on by itself.
    pub allowed: CpuSet,
    /// Its weight, 1024 for nice 0.
    pub weight: u32,
    /// `SCHED_IDLE`.
    pub idle: bool,
}

impl Default for Spawn {
    fn default() -> Spawn {
        Spawn {
            group: None,
            allowed: CpuSet::range(0, ostler_model::MAX_CPUS),
            weight: WEIGHT,
            idle: false,
        }
    }
}

/// A thread. What each switch to it asks for is in the first two cache lines of three.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(super) struct Thread {
    pub state: State,
    pub idle: bool,
    /// It would run, were it not frozen.
    pub wants: bool,
    pub frozen: bool,
    /// The boost scheduler has it.
    pub boost: bool,
    /// It was stopped in its guest and has paid for that, on its way out.
    pub paid: bool,
    /// Where it is, or was last.
    pub cpu: u32,
    /// Its queue there; [`super::fair::NONE`]: not looked up since it came.
    pub queue: u32,
    pub since: Nanos,
    /// When it last had a core.
    pub ran_at: Nanos,
    pub time: ThreadTime,
    // The second line.
    /// When it was stopped in its guest, if it hasn't had a core since.
    pub stopped: Option<Nanos>,
    /// What its next run costs because it has moved, ns.
    pub moved: u64,
    pub switches: u64,
    pub migrations: u64,
    pub group: Option<u32>,
    pub weight: u32,
    /// Where it was when it last woke and neither its core nor who woke it had been free (`recent_used_cpu`).
    pub recent: u32,
    pub born: Nanos,
    pub away: Away,
    /// How much of late it would run.
    pub load: Average,
}

const _: () = {
    assert!(offset_of!(Thread, stopped) == 64);
    assert!(size_of::<Thread>() == 192);
};

impl Thread {
    /// Puts the time until now where it belongs; not for one that runs, whose core does that.
    pub fn account(&mut self, now: Nanos) {
        let past = now.0 - self.since.0;
        self.since = now;
        match self.state {
            State::Asleep => self.time.slept += past,
            State::Waits => self.time.waited += past,
            State::Runs | State::Gone => {}
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Group {
    /// Its weight, 1024 as it begins.
    pub weight: u32,
    pub idle: bool,
    pub frozen: bool,
    pub threads: Vec<u32>,
    /// The cores that its threads may run on.
    pub cpuset: CpuSet,
    /// Its queue on each core; [`super::fair::NONE`]: none yet.
    pub queues: Vec<u32>,
    /// The loads of its queues together.
    pub load: u64,
    /// Its threads that would run, likewise, each as 1024.
    pub tasks: u64,
    /// From an event to its vCPU running, as the boost scheduler counts it.
    pub delays: ostler_boost::Delays,
}
