//! Who is moved from a core with more to do to one with less.
//!
//! A core that runs out of threads looks for one at once, as often as that has been worth it ([`super::newly`]). And each core looks at ticks, more seldom the wider it looks and while it is
//! busy itself: within its cache group core against core, within its node cache group against cache group, over the host node against node
//! (`sched_balance_domains`). Where a thread waits, those that sleep look too (`nohz` balancing).
//!
//! What is moved then goes by how busy groups are ([`super::busy`]): threads that wait on a core which isn't used much stay, while others are full. Groups of which both have more
//! threads than cores are balanced by load, and a thread is moved only if that is no more than half of what they are apart, unless it has failed often. A load counts
//! for more where interrupts leave less of a core ([`super::capacity`]). So three threads stay two and one on two cores, most of the time: that is Linux's fairness between threads that float, and what docs/anubis.md measured.
//! A thread that had a core within the last half millisecond is hot and stays, until balancing has failed.

use ostler_model::{CpuId, CpuSet, Nanos};

use super::busy::{Amount, Busy, Looker, Pair};
use super::capacity::WHOLE;
use super::fair::NONE;
use super::group::{GROUP, Why};
use super::map::{LEVELS, next_from};
use super::thread::State;
use super::{Host, Scene};
use crate::work::Work;

impl Host {
    /// A core that has run out of threads takes one from another; whether it did.
    pub(super) fn pull<W: Work>(&mut self, cpu: u32, scene: &mut Scene<'_, W>) -> bool {
        if !self.newly.is_due() {
            return false;
        }
        let now = scene.now();
        for level in 0..LEVELS {
            if self.is_alone(cpu, level) || !self.newly.throws(cpu, level, now) {
                continue;
            }
            let pulled = self.rebalance(cpu, level, Looker::Newly, scene);
            self.newly.has_looked(cpu, level, pulled, now);
            if pulled {
                return true;
            }
        }
        if self.overloaded.is_empty() {
            self.newly.none_waits();
        }
        false
    }

    /// What a core does of this at a tick.
    pub(super) fn balance<W: Work>(&mut self, cpu: u32, scene: &mut Scene<'_, W>) {
        self.relieve(cpu, scene);
        if self.overloaded.is_empty() {
            return;
        }
        self.look_around(cpu, Looker::Busy, scene);
        if self.cores[cpu as usize].fair > 1 {
            self.offer(scene);
        }
    }

    /// A core looks at the levels that it is due to look at; whether it took any thread.
    fn look_around<W: Work>(&mut self, cpu: u32, looker: Looker, scene: &mut Scene<'_, W>) -> bool {
        let now = scene.now();
        let mut took = false;
        for level in 0..LEVELS {
            if now < self.cores[cpu as usize].balance_at[level] {
                continue;
            }
            let wide = u64::from(self.map.span(cpu, level).len()) * 1_000_000;
            let seldom = match looker {
                Looker::Busy => self.costs.busy_factor,
                _ => 1,
            };
            self.cores[cpu as usize].balance_at[level] = Nanos(now.0 + wide * seldom);
            took |= self.rebalance(cpu, level, looker, scene);
        }
        took
    }

    /// All cores that sleep look, as one on which a thread waits has had its tick (`nohz_balancer_kick`, `nohz_idle_balance`): the first of them last, which does it
    /// for all.
    fn offer<W: Work>(&mut self, scene: &mut Scene<'_, W>) {
        let asleep = self.idle;
        let Some(first) = asleep.first() else {
            return;
        };
        let others = asleep.iter().filter(|other| *other != first);
        for CpuId(cpu) in others.chain([first]) {
            if self.look_around(cpu, Looker::Asleep, scene) {
                self.kick(cpu, scene);
            }
        }
    }

    /// Whether nobody shares a level with a core that didn't share the one below.
    fn is_alone(&self, cpu: u32, level: usize) -> bool {
        self.map.span(cpu, level) == &self.own(cpu, level)
    }

    /// A core's group of those of a level.
    fn own(&self, cpu: u32, level: usize) -> CpuSet {
        match level {
            0 => CpuSet::single(CpuId(cpu)),
            _ => *self.map.span(cpu, level - 1),
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
            let (capacity, used) = (self.capacity(cpu, now), self.used(cpu, now));
            let core = &mut self.cores[cpu as usize];
            busy = busy.with(Busy {
                cores: 1,
                threads: u64::from(core.fair),
                idle: u64::from(core.fair == 0),
                load: u64::from(self.accounts[cpu as usize].load.get()),
                capacity,
                used,
                wanted: core.wanted(now),
            });
        }
        busy
    }

    /// Balances one level for a core; whether it took any thread.
    fn rebalance<W: Work>(
        &mut self,
        cpu: u32,
        level: usize,
        looker: Looker,
        scene: &mut Scene<'_, W>,
    ) -> bool {
        let now = scene.now();
        let own = self.own(cpu, level);
        // should_we_balance(): one of each group does, one that sleeps before all others.
        if self.is_alone(cpu, level)
            || looker != Looker::Newly
                && own.intersection(&self.idle).first().or(own.first()) != Some(CpuId(cpu))
        {
            return false;
        }
        let there = self.map.span(cpu, level).difference(&own);
        if looker == Looker::Newly && self.overloaded.intersection(&there).is_empty() {
            return false;
        }
        let failed = self.cores[cpu as usize].balance_failed[level];
        // A core of which all that wait are pinned is out of it, and another is asked.
        let mut asked = there;
        while let Some((from, pair)) = self.busiest(cpu, level, &asked, looker, now)
            && let Some(amount) = pair.amount()
            && let Some(source) = self.source(&from, amount, now)
        {
            if self.move_some(source, cpu, amount, looker, failed, now) > 0 {
                self.cores[cpu as usize].balance_failed[level] = 0;
                if looker != Looker::Newly {
                    self.look_again(cpu);
                }
                return true;
            }
            if self.is_pinned(source, cpu) {
                asked.remove(CpuId(source));
                continue;
            }
            if looker == Looker::Newly {
                return false;
            }
            if matches!(amount, Amount::Threads(_)) && failed > self.costs.cache_nice_tries + 2 {
                self.cores[cpu as usize].balance_failed[level] = self.costs.cache_nice_tries + 1;
                self.push_running(source, cpu, scene);
            } else {
                self.cores[cpu as usize].balance_failed[level] = failed + 1;
            }
            return false;
        }
        if looker != Looker::Newly {
            self.cores[cpu as usize].balance_failed[level] = 0;
        }
        false
    }

    /// The group that a core asks, of the cores that may be asked, with what both are.
    fn busiest(
        &mut self,
        cpu: u32,
        level: usize,
        asked: &CpuSet,
        looker: Looker,
        now: Nanos,
    ) -> Option<(CpuSet, Pair)> {
        let percent = self.costs.imbalance_percent;
        let own = self.own(cpu, level);
        let local = self.busy(&own, now);
        let mut all = local;
        let mut busiest: Option<(CpuSet, Busy)> = None;
        let mut rest = *asked;
        // In a ring, from behind this core's group.
        while let Some(next) = next_from(&rest, cpu) {
            let other = self.own(next, level).intersection(&rest);
            rest = rest.difference(&other);
            let busy = self.busy(&other, now);
            all = all.with(busy);
            if busy.threads > 0
                && busiest
                    .as_ref()
                    .is_none_or(|(_, most)| busy.is_busier(most, percent))
            {
                busiest = Some((other, busy));
            }
        }
        let (from, busiest) = busiest?;
        let node = (level == LEVELS - 1).then(|| {
            // An eighth of a node's cores where they are one cache group, else one for each of its groups (`imb_numa_nr`).
            let caches = u64::from(own.len()) / u64::from(self.map.span(cpu, 0).len()).max(1);
            if caches > 1 {
                caches
            } else {
                (local.cores / 8).max(1)
            }
        });
        Some((
            from,
            Pair {
                local,
                busiest,
                all,
                looker,
                near: level == 0,
                node,
                percent,
            },
        ))
    }

    /// Of a group's cores on which threads wait, the one from which so much is taken (`sched_balance_find_src_rq`).
    fn source(&mut self, from: &CpuSet, amount: Amount, now: Nanos) -> Option<u32> {
        let mut source: Option<(u64, u32)> = None;
        for CpuId(other) in &from.intersection(&self.overloaded) {
            let most = match amount {
                Amount::Threads(_) => u64::from(self.cores[other as usize].fair),
                Amount::Load(_) => {
                    let load = u64::from(self.accounts[other as usize].load.get());
                    load * WHOLE / self.capacity(other, now)
                }
                Amount::Used(_) => self.used(other, now),
            };
            if source.is_none_or(|(known, _)| most > known) {
                source = Some((most, other));
            }
        }
        source.map(|(_, source)| source)
    }

    /// Whether none of those that wait on a core may run on another.
    fn is_pinned(&self, from: u32, to: u32) -> bool {
        (0..)
            .map_while(|at| self.waiting(from, at))
            .all(|thread| !self.allowed[thread as usize].contains(CpuId(to)))
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
        if self.costs.kernel.is_flat() {
            return self.of_core(own as u32, queue);
        }
        let root = &self.queues[cpu as usize];
        let entity = root.find(queue | GROUP).map(|at| root.entities[at].weight);
        let entity = entity.unwrap_or(0);
        let inside = u64::from(self.queues[queue as usize].weight().max(1));
        own * u64::from(entity) / inside
    }

    /// What of a core a thread would have of late, parts of [`WHOLE`]: it stands for what it has had (`task_util_est`).
    fn would(&mut self, thread: u32, now: Nanos) -> u64 {
        let known = &mut self.threads[thread as usize];
        known.load.pass(now.0, known.weight);
        u64::from(known.load.get()) * WHOLE / u64::from(known.weight)
    }

    /// Moves threads that wait on a core to another (`detach_tasks`); how many.
    fn move_some(
        &mut self,
        from: u32,
        to: u32,
        amount: Amount,
        looker: Looker,
        failed: u32,
        now: Nanos,
    ) -> u32 {
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
                Amount::Used(most) => {
                    let used = self.would(thread, now).max(1);
                    if used >> failed.min(63) > *most {
                        at += 1;
                        continue;
                    }
                    *most = most.saturating_sub(used);
                }
            }
            self.shift(thread, to, now);
            moved += 1;
            if looker == Looker::Newly
                || matches!(left, Amount::Threads(0) | Amount::Load(0) | Amount::Used(0))
            {
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
