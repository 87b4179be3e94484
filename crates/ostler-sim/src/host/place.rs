//! Where a thread that wakes goes.
//!
//! Near to who wakes it or to where it was, whichever is less loaded (`wake_affine`), and from there to a core of that cache group that
//! sleeps or has only threads that yield to all others, if there is one among those that are looked at ([`super::scan`]; `select_idle_sibling`). Left out: `wake_wide` (one that wakes very many).

use ostler_model::{CpuId, CpuSet, Nanos};

use super::Host;
use super::group::GROUP;

impl Host {
    /// The core for a thread that wakes, by the core that caused it.
    pub(super) fn place(&mut self, thread: u32, from: Option<u32>, now: Nanos) -> u32 {
        let known = &self.threads[thread as usize];
        let (prev, new) = (known.cpu, known.switches == 0);
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
        if self.is_free_for(thread, target) {
            return target;
        }
        if prev != target && self.map.shares_cache(prev, target) && self.is_free_for(thread, prev) {
            return prev;
        }
        // Where it was when it last got as far as here, not where it last ran: one that wakes where it was for long goes back nowhere.
        let recent = std::mem::replace(&mut self.threads[thread as usize].recent, prev);
        if recent != prev
            && recent != target
            && self.map.shares_cache(recent, target)
            && allowed.contains(CpuId(recent))
            && self.is_free_for(thread, recent)
        {
            return recent;
        }
        self.free_near(thread, target, now).unwrap_or(target)
    }

    /// Whether a core has nobody, or none but those that yield to all others, and this thread doesn't (`choose_idle_cpu`).
    pub(super) fn is_free_for(&self, thread: u32, cpu: u32) -> bool {
        self.without_threads(cpu)
            || self.some_yield && !self.threads[thread as usize].idle && self.all_yield(cpu)
    }

    /// Whether all that a core has yield to all others (`sched_idle_rq`).
    fn all_yield(&self, cpu: u32) -> bool {
        let entities = &self.queues[cpu as usize].entities;
        !entities.is_empty()
            && entities.iter().all(|entity| {
                entity.idle
                    || if entity.who & GROUP == 0 {
                        self.yields(entity.who)
                    } else {
                        let inner = &self.queues[(entity.who & !GROUP) as usize].entities;
                        !inner.is_empty() && inner.iter().all(|inner| inner.idle)
                    }
            })
            && self.boost.as_ref().is_none_or(|boost| boost.is_clear(cpu))
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

    /// The core with the least to do of all (`find_idlest_cpu`), for one that is new: of several alike, any, where that is drawn ([`Host::draw`]).
    fn idlest(&mut self, allowed: &CpuSet) -> u32 {
        let rate = |cpu: CpuId| {
            let busy_siblings = self.map.siblings[cpu.0 as usize]
                .iter()
                .filter(|other| !self.without_threads(**other))
                .count();
            (self.cores[cpu.0 as usize].fair, busy_siblings)
        };
        let least = allowed.iter().map(rate).min();
        let mut equal = CpuSet::EMPTY;
        equal.extend(allowed.iter().filter(|cpu| Some(rate(*cpu)) == least));
        let nth = match &mut self.chance {
            Some(chance) if equal.len() > 1 => chance.below(u64::from(equal.len())) as usize,
            _ => 0,
        };
        equal.iter().nth(nth).map_or(0, |cpu| cpu.0)
    }
}
