//! How often a core that has run out of threads looks for one elsewhere.
//!
//! To look takes time that often finds nothing. So from 6.19 on (and 6.18.5) Linux throws a die of 1024 sides for each level, and looks as often as that has been worth it of the last thousand times
//! (`NI_RANDOM`; one that was thrown for and found counts for all that weren't), and from 7.1 on so much more often the more seldom cores run out (`NI_RATE`): one
//! that does so 1024 times a second by an eighth, 256 times by a half. Nobody looks while no thread has waited anywhere since somebody last looked in vain
//! (`get_rd_overloaded`).
//!
//! Left out: that a core doesn't look which sleeps for less than looking takes in the mean (`avg_idle`, `max_newidle_lb_cost`). Papers' hosts always look.
//!
//! After `sched_balance_newidle` and `update_newidle_stats`, kernel/sched/fair.c.

use ostler_model::Nanos;

use super::map::LEVELS;
use crate::random::Stream;

/// Sides of the die.
const SIDES: u32 = 1024;

/// How a core's looks at a level went.
#[derive(Clone, Copy, Debug)]
struct Luck {
    looks: u32,
    /// Those that were worth it, by what they stand for.
    worth: u32,
    /// It looks so many of [`SIDES`] times.
    ratio: u32,
    /// Since when that holds.
    since: Nanos,
}

impl Luck {
    const FIRST: Luck = Luck {
        looks: SIDES / 2,
        worth: SIDES / 4,
        ratio: SIDES / 2,
        since: Nanos::ZERO,
    };

    /// What one look stands for.
    fn weight(&self) -> u32 {
        if self.ratio >= SIDES {
            return 1;
        }
        let chance = 1 + self.ratio;
        (SIDES + chance / 2) / chance
    }

    fn count(&mut self, worth: u32, now: Nanos) {
        self.looks += 1;
        self.worth += worth;
        if self.looks >= SIDES {
            let rate = ((now.0 - self.since.0) >> 22).min(u64::from(SIDES)) as u32;
            self.since = now;
            self.ratio = (rate + self.worth).min(SIDES);
            self.looks /= 2;
            self.worth /= 2;
        }
    }
}

/// Whether and how often cores look.
#[derive(Clone, Debug)]
pub(super) struct Newly {
    /// A thread has waited since somebody last found that none does.
    waits: bool,
    /// By core; none where all look always.
    lucks: Vec<[Luck; LEVELS]>,
    die: Stream,
}

impl Newly {
    /// Of so many cores, that throw for it or don't.
    pub fn new(cores: usize, throws: bool) -> Newly {
        Newly {
            waits: false,
            lucks: vec![[Luck::FIRST; LEVELS]; if throws { cores } else { 0 }],
            die: Stream::new(0, "newly idle", 0),
        }
    }

    /// Whether anybody is to look.
    pub fn is_due(&self) -> bool {
        self.waits
    }

    /// A core has a thread that waits.
    pub fn some_wait(&mut self) {
        self.waits = true;
    }

    /// One that looked everywhere found that no core has.
    pub fn none_waits(&mut self) {
        self.waits = false;
    }

    /// Whether a core looks at a level this time.
    pub fn throws(&mut self, cpu: u32, level: usize, now: Nanos) -> bool {
        let Some(luck) = self.lucks.get_mut(cpu as usize) else {
            return true;
        };
        let luck = &mut luck[level];
        if luck.ratio >= SIDES || self.die.below(u64::from(SIDES)) <= u64::from(1 + luck.ratio) {
            return true;
        }
        luck.count(0, now);
        false
    }

    /// It has looked.
    pub fn has_looked(&mut self, cpu: u32, level: usize, pulled: bool, now: Nanos) {
        if let Some(luck) = self.lucks.get_mut(cpu as usize) {
            let luck = &mut luck[level];
            luck.count(if pulled { luck.weight() } else { 0 }, now);
        }
    }
}
