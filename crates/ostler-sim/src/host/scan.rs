//! How many cores a waker looks at for one that sleeps.
//!
//! The busier a cache group is, the fewer: with `x` the share of its cores that threads have of late and `p` what counts as an imbalance there, 1.17,
//! `(1 - (p x)^2)` of them, and none at all from 85 % on (`SIS_UTIL`: `update_idle_cpu_scan` and `select_idle_cpu`, kernel/sched/fair.c, Linux 6.0 and later).
//! So where guests compute on many of the cores, one that wakes for a packet waits behind them though another core sleeps, unless that is the one where it was, or
//! who wakes it: two thirds of a group that are busy have it look at two of six.
//!
//! How busy each core is forgets half in 32 ms, as there; the number is told anew once in the group's balancing interval. Changed: it is told as somebody wakes, and not by
//! a balancing core; what sleeping threads had when they last ran (`util_est`) isn't counted, and what those of the boost scheduler have is.

use ostler_model::{CpuId, Nanos};

use super::Host;
use super::capacity::WHOLE;
use super::core::Doing;
use super::map::next_from;

/// What holds in a cache group.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scan {
    /// Until when.
    until: Nanos,
    /// So many cores are looked at.
    cores: u64,
}

impl Host {
    /// What threads have of a core of late, parts of [`WHOLE`].
    pub(super) fn used(&mut self, cpu: u32, now: Nanos) -> u64 {
        let core = &mut self.cores[cpu as usize];
        let running_now = match core.doing {
            Doing::Thread => now.0 - core.since.0,
            _ => 0,
        };
        let had = core.time.threads + core.held + running_now;
        core.used.pass(now.0, had)
    }

    /// How many of the cores that share a cache with this one are looked at.
    fn scan(&mut self, cpu: u32, now: Nanos) -> u64 {
        let group = self.map.spans[cpu as usize][0] as usize;
        if now < self.scans[group].until {
            return self.scans[group].cores;
        }
        let span = self.map.sets[0][group];
        let many = u64::from(span.len());
        let sum: u64 = span.iter().map(|core| self.used(core.0, now)).sum();
        let (busy, percent) = (sum / many.max(1), self.costs.imbalance_percent);
        let less = busy * busy * percent * percent / (10_000 * WHOLE);
        let cores = (WHOLE - less.min(WHOLE)) * many / WHOLE;
        let until = Nanos(now.0 + many * 1_000_000);
        self.scans[group] = Scan { until, cores };
        cores
    }

    /// A core that is free for a thread, of those that share a cache with this one and that it may run on: with SMT one whose siblings sleep too, if there is one
    /// of those, wherever in the group; else the first of as many as are looked at, in order from behind this core.
    pub(super) fn free_near(&mut self, thread: u32, cpu: u32, now: Nanos) -> Option<u32> {
        let looks = self.scan(cpu, now);
        if looks == 0 {
            return None;
        }
        let allowed = &self.allowed[thread as usize];
        let span = self.map.span(cpu, 0).intersection(allowed);
        let asleep = self.idle.intersection(&span);
        if asleep.is_empty() && !self.some_yield {
            return None;
        }
        if !self.map.siblings[cpu as usize].is_empty() {
            let whole = asleep.intersection(&self.alone);
            if let Some(whole) = next_from(&whole, cpu + 1) {
                return Some(whole);
            }
        }
        let behind = |CpuId(other): &CpuId| *other > cpu;
        let ahead = span.iter().filter(|other| !behind(other));
        let order = span.iter().filter(behind).chain(ahead);
        let mut seen = order.take(usize::try_from(looks).unwrap_or(usize::MAX));
        seen.find(|other| asleep.contains(*other) || self.is_free_for(thread, other.0))
            .map(|other| other.0)
    }
}
