//! How busy groups of cores are, and what is to be moved between two of them.
//!
//! Linux goes by kinds of groups before it goes by loads (`update_sd_pick_busiest`, `sched_balance_find_src_group` and `calculate_imbalance`, kernel/sched/fair.c,
//! since 5.5). A group with more threads than cores is *overloaded* only where these have used 100 of 117 parts of it of late, or would have run for more than 117
//! of 100; where its cores are used to that measure by no more threads than they are it is *full*; else it has cores *to spare*, however many wait there at this
//! moment. A core that looks takes from a group of the busiest kind alone. So while guests compute on other cores, which are full and have nobody to give, threads that
//! have been woken on one core together stay there and take turns, though another sleeps.
//!
//! Left out: groups that are out of balance as threads are pinned (`group_imbalanced`), SMT siblings as groups of their own (each counts as a core), and what
//! sleeping threads used when they last ran (`util_est`).

use super::capacity::WHOLE;

/// Who looks (`enum cpu_idle_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Looker {
    /// A core that has just run out of threads.
    Newly,
    /// One that sleeps.
    Asleep,
    /// One that has a thread.
    Busy,
}

/// How a group is off, by rising need (`enum group_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Spare,
    Full,
    Overloaded,
}

/// What a group of cores has to do.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Busy {
    pub cores: u64,
    /// Those that would run.
    pub threads: u64,
    /// Cores that have none of these.
    pub idle: u64,
    pub load: u64,
    /// What interrupts leave of its cores, parts of [`WHOLE`] of one.
    pub capacity: u64,
    /// What threads had of its cores of late, and what they would have had with a core each.
    pub used: u64,
    pub wanted: u64,
}

impl Busy {
    /// Both together.
    pub fn with(self, other: Busy) -> Busy {
        Busy {
            cores: self.cores + other.cores,
            threads: self.threads + other.threads,
            idle: self.idle + other.idle,
            load: self.load + other.load,
            capacity: self.capacity + other.capacity,
            used: self.used + other.used,
            wanted: self.wanted + other.wanted,
        }
    }

    /// `percent` is what counts as an imbalance.
    pub fn kind(&self, percent: u64) -> Kind {
        let pressed = self.capacity * percent < self.wanted * 100;
        if self.threads > self.cores && (pressed || self.capacity * 100 < self.used * percent) {
            Kind::Overloaded
        } else if self.threads < self.cores || !pressed && self.capacity * 100 > self.used * percent
        {
            Kind::Spare
        } else {
            Kind::Full
        }
    }

    /// Load, by what is there to bear it.
    pub fn average(&self) -> u64 {
        self.load * WHOLE / self.capacity.max(1)
    }

    /// Whether a core that looks takes from this group rather than from another that it came by before.
    pub fn is_busier(&self, than: &Busy, percent: u64) -> bool {
        let kind = self.kind(percent);
        match kind.cmp(&than.kind(percent)) {
            std::cmp::Ordering::Equal => {}
            other => return other.is_gt(),
        }
        match kind {
            Kind::Overloaded => self.average() > than.average(),
            // Loads aren't looked at there.
            Kind::Full => true,
            Kind::Spare => {
                self.idle < than.idle || self.idle == than.idle && self.threads > than.threads
            }
        }
    }
}

/// What is to be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Amount {
    Threads(u64),
    Load(u64),
    /// What threads use of a core.
    Used(u64),
}

/// What two groups are, of a level of which all groups together are `all`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    pub local: Busy,
    pub busiest: Busy,
    pub all: Busy,
    pub looker: Looker,
    /// They share a last-level cache.
    pub near: bool,
    /// So many threads may be on a node before another without any has some (`imb_numa_nr`); `None`: these aren't nodes.
    pub node: Option<u64>,
    pub percent: u64,
}

impl Pair {
    /// By how many threads the busiest has more, by cores (`sibling_imbalance`).
    fn apart(&self) -> u64 {
        let (local, busiest) = (&self.local, &self.busiest);
        if self.looker == Looker::Busy {
            return 0;
        }
        if local.cores == busiest.cores {
            return busiest.threads.saturating_sub(local.threads);
        }
        let cores = local.cores + busiest.cores;
        let more = (local.cores * busiest.threads).saturating_sub(busiest.cores * local.threads);
        let apart = (2 * more + cores) / cores;
        if apart <= 1 && local.threads == 0 && busiest.threads > 1 {
            return 2;
        }
        apart
    }

    /// What the core that looks is to take from the busiest group.
    pub fn amount(&self) -> Option<Amount> {
        let (local, busiest) = (&self.local, &self.busiest);
        let (mine, theirs) = (local.kind(self.percent), busiest.kind(self.percent));
        if mine > theirs {
            return None;
        }
        let (here, there, mean) = (local.average(), busiest.average(), self.all.average());
        if mine == Kind::Overloaded
            && (here >= there || here >= mean || 100 * there <= self.percent * here)
        {
            return None;
        }
        // Above a cache group threads are to be spread, whatever kinds groups are.
        let spread = !self.near && mine == Kind::Spare && self.apart() > 1;
        if theirs != Kind::Overloaded
            && !spread
            && (self.looker == Looker::Busy
                || busiest.cores > 1 && local.idle <= busiest.idle + 1
                || busiest.threads == 1)
        {
            return None;
        }
        if mine == Kind::Spare {
            return self.fill(theirs);
        }
        // One that is full becomes overloaded by what it takes.
        if here >= there || here >= mean {
            return None;
        }
        // The busiest by kind need not have more than the mean.
        let more = there.saturating_sub(mean) * busiest.capacity;
        Some(Amount::Load(
            more.min((mean - here) * local.capacity) / WHOLE,
        ))
    }

    /// What a group with cores to spare takes.
    fn fill(&self, theirs: Kind) -> Option<Amount> {
        let local = &self.local;
        if theirs == Kind::Overloaded && !self.near {
            let left = local.capacity.saturating_sub(local.used);
            if left == 0 && self.looker != Looker::Busy {
                return Some(Amount::Threads(1));
            }
            return (left > 0).then_some(Amount::Used(left));
        }
        let mut apart = if self.busiest.cores == 1 || !self.near {
            self.apart()
        } else {
            local.idle.saturating_sub(self.busiest.idle)
        };
        if let Some(allowed) = self.node
            && local.threads < allowed
            && apart <= 2
        {
            apart = 0;
        }
        (apart > 1).then_some(Amount::Threads(apart / 2))
    }
}
