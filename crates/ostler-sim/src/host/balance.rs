//! Who is moved from a core with more to do to one with less.
//!
//! A core that runs out of threads takes one at once from the most loaded core near it, unless that one is still warm there. And each core looks at ticks, more seldom
//! the wider it looks and while it is busy itself: within its cache group core against core, within its node cache group against cache group, over the
//! host node against node (`sched_balance_domains`). Where a thread waits and a core sleeps that could have it, that core looks (`nohz` balancing).
//!
//! Groups of which both have more threads than cores are balanced by load, and a thread is moved only if that is no more than half of what they are apart,
//! unless it has failed often. A load counts for more where interrupts leave less of a core ([`super::capacity`]). So three threads stay two and one on two cores, most of the time: that is Linux's fairness between threads that float, and what docs/anubis.md measured.

use ostler_model::{CpuId, CpuSet, Nanos};

use super::capacity::WHOLE;
use super::fair::NONE;
use super::group::{GROUP, Why};
use super::map::LEVELS;
use super::thread::State;
use super::{Host, Scene};
use crate::work::Work;

/// What a group of cores has to do.
#[derive(Clone, Copy, Debug, Default)]
struct Busy {
    cores: u64,
    threads: u64,
    load: u64,
    idle: u64,
    /// What interrupts leave of its cores, parts of [`WHOLE`] of one.
    capacity: u64,
}

impl Busy {
    fn overloaded(&self) -> bool {
        self.threads > self.cores
    }

    fn average(&self) -> u64 {
        self.load * WHOLE / self.capacity.max(1)
    }
}

/// What is to be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Amount {
    Threads(u64),
    Load(u64),
}

impl Host {
    /// A core that has run out of threads takes one from another; whether it did.
    pub(super) fn pull(&mut self, cpu: u32, now: Nanos) -> bool {
        if self.overloaded.is_empty() {
            return false;
        }
        for level in 0..LEVELS {
            let there = self.overloaded.intersection(self.map.span(cpu, level));
            let busiest = there
                .iter()
                .max_by_key(|other| (self.cores[other.0 as usize].fair, u32::MAX - other.0));
            if let Some(busiest) = busiest
                && self.move_some(busiest.0, cpu, Amount::Threads(1), 0, now) > 0
            {
                return true;
            }
        }
        false
    }

    /// What a core does of this at a tick.
    pub(super) fn balance<W: Work>(&mut self, cpu: u32, scene: &mut Scene<'_, W>) {
        let now = scene.now();
        self.relieve(cpu, scene);
        if self.overloaded.is_empty() {
            return;
        }
        for level in 0..LEVELS {
            if now < self.cores[cpu as usize].balance_at[level] {
                continue;
            }
            let wide = u64::from(self.map.span(cpu, level).len()) * 1_000_000;
            let after = wide * self.costs.busy_factor;
            self.cores[cpu as usize].balance_at[level] = Nanos(now.0 + after);
            self.rebalance(cpu, level, scene);
        }
        if self.cores[cpu as usize].fair > 1 {
            self.offer(cpu, scene);
        }
    }

    /// A core that sleeps and could have one of those that wait here looks.
    fn offer<W: Work>(&mut self, cpu: u32, scene: &mut Scene<'_, W>) {
        if self.idle.is_empty() {
            return;
        }
        for at in 0.. {
            let Some(thread) = self.waiting(cpu, at) else {
                return;
            };
            let able = self.idle.intersection(&self.allowed[thread as usize]);
            let near = (0..LEVELS)
                .map(|level| able.intersection(self.map.span(cpu, level)))
                .find(|near| !near.is_empty());
            let Some(to) = near.and_then(|near| near.first()) else {
                continue;
            };
            let failed = self.cores[to.0 as usize].balance_failed;
            if self.move_some(cpu, to.0, Amount::Threads(1), failed, scene.now()) > 0 {
                self.cores[to.0 as usize].balance_failed = 0;
                self.kick(to.0, scene);
            } else {
                self.cores[to.0 as usize].balance_failed = failed + 1;
            }
            return;
        }
    }

    /// The `at`th thread of those that are in a core's queues and don't have it.
    fn waiting(&self, cpu: u32, at: usize) -> Option<u32> {
        let running = self.cores[cpu as usize].running;
        let outer = self.queues[cpu as usize].entities.iter();
        outer
            .flat_map(|entity| {
                let inner = (entity.who & GROUP != 0)
                    .then(|| &self.queues[(entity.who & !GROUP) as usize].entities[..]);
                inner.unwrap_or(std::slice::from_ref(entity))
            })
            .filter(|entity| !entity.delayed && entity.who != running && entity.who & GROUP == 0)
            .map(|entity| entity.who)
            .nth(at)
    }

    fn busy(&mut self, cores: &CpuSet, now: Nanos) -> Busy {
        let mut busy = Busy::default();
        for CpuId(cpu) in cores {
            self.pass(cpu, now);
            busy.capacity += self.capacity(cpu, now);
            let core = &self.cores[cpu as usize];
            busy.cores += 1;
            busy.threads += u64::from(core.fair);
            busy.load += u64::from(self.accounts[cpu as usize].load.get());
            busy.idle += u64::from(core.fair == 0);
        }
        busy
    }

    /// Balances one level for a core.
    fn rebalance<W: Work>(&mut self, cpu: u32, level: usize, scene: &mut Scene<'_, W>) {
        let now = scene.now();
        let span = *self.map.span(cpu, level);
        let group = |host: &Host, of: u32| match level {
            0 => CpuSet::single(CpuId(of)),
            _ => *host.map.span(of, level - 1),
        };
        let own = group(self, cpu);
        if own == span {
            return;
        }
        // should_we_balance(): one of each group does, one that sleeps before all others.
        if own.intersection(&self.idle).first().or(own.first()) != Some(CpuId(cpu)) {
            return;
        }
        let local = self.busy(&own, now);
        let mut all = local;
        let mut busiest: Option<(CpuSet, Busy)> = None;
        let mut rest = span.difference(&own);
        while let Some(first) = rest.first() {
            let other = group(self, first.0);
            rest = rest.difference(&other);
            let busy = self.busy(&other, now);
            all.cores += busy.cores;
            all.load += busy.load;
            all.capacity += busy.capacity;
            let key = |busy: &Busy| (busy.overloaded(), busy.average());
            if busiest
                .as_ref()
                .is_none_or(|(_, most)| key(&busy) > key(most))
            {
                busiest = Some((other, busy));
            }
        }
        let Some((from, busiest)) = busiest else {
            return;
        };
        let Some(amount) = self.imbalance(&local, &busiest, &all) else {
            self.cores[cpu as usize].balance_failed = 0;
            return;
        };
        let mut source: Option<(u64, CpuId)> = None;
        for other in &from.intersection(&self.overloaded) {
            let most = if matches!(amount, Amount::Load(_)) {
                let load = u64::from(self.accounts[other.0 as usize].load.get());
                load * WHOLE / self.capacity(other.0, now)
            } else {
                u64::from(self.cores[other.0 as usize].fair)
            };
            if source.is_none_or(|(known, _)| most > known) {
                source = Some((most, other));
            }
        }
        let Some((_, source)) = source else {
            return;
        };
        let failed = self.cores[cpu as usize].balance_failed;
        if self.move_some(source.0, cpu, amount, failed, now) > 0 {
            self.cores[cpu as usize].balance_failed = 0;
            self.look_again(cpu);
        } else if failed > self.costs.cache_nice_tries + 2 {
            self.cores[cpu as usize].balance_failed = self.costs.cache_nice_tries + 1;
            self.push_running(source.0, cpu, scene);
        } else {
            self.cores[cpu as usize].balance_failed = failed + 1;
        }
    }

    /// calculate_imbalance(), for what is there: threads, cores, loads.
    fn imbalance(&self, local: &Busy, busiest: &Busy, all: &Busy) -> Option<Amount> {
        if !busiest.overloaded() {
            // Both have cores to spare: where one has two threads more, one goes over.
            let apart = busiest.threads.saturating_sub(local.threads);
            return (local.cores == busiest.cores && apart > 1 && local.idle > 0)
                .then_some(Amount::Threads(apart / 2));
        }
        if !local.overloaded() && local.idle > 0 {
            return Some(Amount::Threads(1));
        }
        let (mine, theirs) = (local.average(), busiest.average());
        let mean = all.average();
        if mine >= theirs
            || mine >= mean
            // The busiest by kind, an overloaded one, need not have the most load for each core.
            || theirs <= mean
            || theirs * 100 <= self.costs.imbalance_percent * mine
        {
            return None;
        }
        Some(Amount::Load(
            ((theirs - mean) * busiest.capacity).min((mean - mine) * local.capacity) / WHOLE,
        ))
    }

    /// What a thread counts in its core's load (`task_h_load`).
    fn load_of(&mut self, thread: u32, now: Nanos) -> u64 {
        let cpu = self.threads[thread as usize].cpu;
        let queue = self.queue_of(thread, cpu);
        let weight = self.threads[thread as usize].weight;
        let known = &mut self.threads[thread as usize];
        known.load.pass(now.0, weight);
        let own = u64::from(known.load.get());
        if queue == cpu {
            return own;
        }
        let root = &self.queues[cpu as usize];
        let entity = match root.find(queue | GROUP) {
            Some(at) => root.entities[at].weight,
            None if self.costs.kernel.is_flat() => self.weight_of(queue).0,
            None => 0,
        };
        let inside = u64::from(self.queues[queue as usize].weight().max(1));
        own * u64::from(entity) / inside
    }

    /// Moves threads that wait on a core to another (`detach_tasks`); how many.
    fn move_some(&mut self, from: u32, to: u32, amount: Amount, failed: u32, now: Nanos) -> u32 {
        let mut left = amount;
        let mut moved = 0;
        let mut at = 0;
        while let Some(thread) = self.waiting(from, at) {
            if moved >= self.costs.balance_batch {
                break;
            }
            let known = &self.threads[thread as usize];
            let hot = now.0 - known.ran_at.0 < self.costs.hot && known.switches > 0;
            if !self.allowed[thread as usize].contains(CpuId(to))
                || (hot && failed <= self.costs.cache_nice_tries)
            {
                at += 1;
                continue;
            }
            match &mut left {
                Amount::Threads(threads) => *threads -= 1,
                Amount::Load(most) => {
                    let load = self.load_of(thread, now).max(1);
                    // shr_bound(): the more often it has failed, the larger may what is moved be.
                    if load >> failed.min(63) > *most {
                        at += 1;
                        continue;
                    }
                    *most = most.saturating_sub(load);
                }
            }
            self.shift(thread, to, now);
            moved += 1;
            if matches!(left, Amount::Threads(0) | Amount::Load(0)) {
                break;
            }
        }
        moved
    }

    /// A thread that waits waits elsewhere.
    fn shift(&mut self, thread: u32, to: u32, now: Nanos) {
        let from = self.threads[thread as usize].cpu;
        if self.cores[from as usize].running != NONE {
            self.reckon(from, now);
        }
        self.dequeue(thread, Why::Moves, now);
        self.come(thread, to, now);
    }

    /// Whether one that has come is to have the core.
    fn look_again(&mut self, cpu: u32) {
        let running = self.cores[cpu as usize].running;
        if running == NONE {
            return;
        }
        if self.pick_now(cpu).is_some_and(|who| who != running) {
            if self.threads[running as usize].boost {
                self.cores[cpu as usize].resched = true;
            } else {
                self.mark(cpu);
            }
        }
    }

    /// The entity's thread that a core's queues have first, without changing anything.
    fn pick_now(&self, cpu: u32) -> Option<u32> {
        let who = self.queues[cpu as usize].pick()?;
        if who & GROUP == 0 {
            return Some(who);
        }
        self.queues[(who & !GROUP) as usize].pick()
    }

    /// The thread that has a core is moved while it runs (`active_load_balance_cpu_stop`).
    pub(super) fn push_running<W: Work>(&mut self, from: u32, to: u32, scene: &mut Scene<'_, W>) {
        let thread = self.cores[from as usize].running;
        if thread == NONE
            || !self.allowed[thread as usize].contains(CpuId(to))
            || self.threads[thread as usize].state != State::Runs
        {
            return;
        }
        self.go_to(thread, to, scene);
    }
}
