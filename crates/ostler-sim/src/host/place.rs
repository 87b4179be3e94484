//! Where a thread that wakes goes.
//!
//! Near to who wakes it or to where it was, whichever is less loaded (`wake_affine`), and from there to a core of that cache group that
//! sleeps, if there is one among those that are looked at ([`super::scan`]; `select_idle_sibling`). Left out: `wake_wide` (one that wakes very many).

use ostler_model::{CpuId, CpuSet, Nanos};

use super::Host;

impl Host {
    /// The core for a thread that wakes, by the core that caused it.
    pub(super) fn place(&mut self, thread: u32, from: Option<u32>, now: Nanos) -> u32 {
        let known = &self.threads[thread as usize];
        let (prev, recent, new) = (known.cpu, known.recent, known.switches == 0);
        // It is there yet, to wait off what it is ahead.
        let queue = self.queue_of(thread, prev);
        if self.queues[queue as usize].has(thread) {
            return prev;
        }
        let allowed = self.allowed[thread as usize];
        if new {
            return self.idlest(&allowed);
        }
        if !allowed.contains(CpuId(prev)) {
            return self.anywhere(&allowed);
        }
        let target = match from {
            Some(from) if from != prev && allowed.contains(CpuId(from)) => {
                self.affine(thread, from, prev, now)
            }
            _ => prev,
        };
        if self.without_threads(target) {
            return target;
        }
        if prev != target && self.map.shares_cache(prev, target) && self.without_threads(prev) {
            return prev;
        }
        if (recent as usize) < self.map.len
            && recent != target
            && self.map.shares_cache(recent, target)
            && allowed.contains(CpuId(recent))
            && self.without_threads(recent)
        {
            return recent;
        }
        self.asleep_near(target, &allowed, now).unwrap_or(target)
    }

    /// Whether it goes near to who wakes it, or near to where it was.
    fn affine(&mut self, thread: u32, from: u32, prev: u32, now: Nanos) -> u32 {
        // wake_affine_idle()
        let prev_idle = self.without_threads(prev);
        if self.without_threads(from) && self.map.shares_cache(from, prev) {
            return if prev_idle { prev } else { from };
        }
        if prev_idle {
            return prev;
        }
        // wake_affine_weight(), with its leaning towards where it was.
        self.pass(from, now);
        self.pass(prev, now);
        let own = u64::from(self.threads[thread as usize].load.get());
        let load = |cpu: u32| u64::from(self.accounts[cpu as usize].load.get());
        let here = (load(from) + own) * 100;
        let there = load(prev).saturating_sub(own)
            * (100 + (self.costs.imbalance_percent.saturating_sub(100)) / 2);
        // Each as a part of what interrupts leave there.
        if here * self.capacity(prev, now) < there * self.capacity(from, now) {
            from
        } else {
            prev
        }
    }

    /// The core with the least to do of all (`find_idlest_cpu`), for one that is new.
    fn idlest(&self, allowed: &CpuSet) -> u32 {
        let rate = |cpu: &CpuId| {
            let busy_siblings = self.map.siblings[cpu.0 as usize]
                .iter()
                .filter(|other| !self.without_threads(**other))
                .count();
            (self.cores[cpu.0 as usize].fair, busy_siblings, cpu.0)
        };
        allowed.iter().min_by_key(rate).map_or(0, |cpu| cpu.0)
    }
}
