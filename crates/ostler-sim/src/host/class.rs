//! What the kernel's sched_ext does around the boost scheduler: who is of its class, and when it is asked.
//!
//! Its threads go behind all of the fair class. One that has a core keeps it for its slice; then, and when it sleeps, whoever is in the core's own queue comes next, and
//! the scheduler is asked only if nobody is. One that a higher class stops in its slice stays at the head of its core's queue. Kicks are carried out once whatever
//! caused them is over, so nothing is entered twice.

use ostler_model::{BoostPlan, CpuId, CpuSet, Nanos};

use super::boost::{Boost, Kick, Sight, config};
use super::fair::NONE;
use super::run::Told;
use super::thread::State;
use super::{Event, Host, Scene};
use crate::work::{ThreadId, Work};

impl Host {
    /// The scheduler, and what it sees.
    fn boost_at(&mut self, now: Nanos) -> Option<(&mut Boost, Sight<'_>)> {
        let sight = Sight {
            now: now.0,
            allowed: &self.allowed,
            idle: &self.idle,
        };
        Some((self.boost.as_deref_mut()?, sight))
    }

    /// Has the boost scheduler have these threads, each a vCPU or, where so said, a worker that waits with its guest's; `None`: the kernel's own has all.
    pub fn set_boost<W: Work>(
        &mut self,
        plan: Option<&BoostPlan>,
        members: &[(ThreadId, bool)],
        scene: &mut Scene<'_, W>,
    ) {
        let config = |plan: &BoostPlan| config(&plan.settings).in_ticks(self.costs.tick);
        let wanted = plan.map(|plan| (config(plan), &plan.domains));
        let same = match (&wanted, &self.boost, &self.boost_domains) {
            (Some((config, domains)), Some(boost), known) => {
                *config == boost.config && *domains == known
            }
            (None, None, _) => return,
            _ => false,
        };
        for thread in 0..self.threads.len() as u32 {
            let wants = wanted.is_some() && members.iter().any(|(id, _)| id.0 == thread);
            if self.threads[thread as usize].boost && !(same && wants) {
                self.set_class(thread, None, scene);
            }
        }
        if !same {
            self.boost = None;
            if let Some((config, domains)) = wanted {
                self.boost = Some(Box::new(Boost::new(
                    config,
                    self.costs.tick,
                    domains,
                    self.map.len,
                )));
                self.boost_domains.clone_from(domains);
            }
        }
        if self.boost.is_some() {
            for (thread, works) in members {
                if !self.threads[thread.0 as usize].boost {
                    self.set_class(thread.0, Some(*works), scene);
                }
            }
        }
        self.kicks(scene);
    }

    /// Gives a thread to the boost scheduler, or takes it back.
    fn set_class<W: Work>(&mut self, thread: u32, works: Option<bool>, scene: &mut Scene<'_, W>) {
        let state = self.threads[thread as usize].state;
        if state == State::Gone {
            return;
        }
        let left = self.remove(thread, scene);
        let known = &mut self.threads[thread as usize];
        known.boost = works.is_some();
        let (cpu, group, time) = (known.cpu, known.group, known.time);
        let ran = self.charged(time);
        if let Some(boost) = self.boost.as_deref_mut() {
            match works {
                Some(works) => {
                    let asleep = state == State::Asleep;
                    boost.enable(thread, group, (works, asleep), cpu, ran);
                }
                None => boost.disable(thread),
            }
        }
        if matches!(state, State::Waits | State::Runs) {
            self.come(thread, cpu, scene.now());
        }
        if let Some(cpu) = left {
            self.without(cpu, scene);
        }
        if matches!(state, State::Waits | State::Runs) {
            self.cores[cpu as usize].resched = true;
            self.act(cpu, Told::Interrupted, scene);
        }
    }

    /// The boost scheduler's thread that is to have a core.
    pub(super) fn pick_boost(&mut self, cpu: u32, now: Nanos) -> Option<u32> {
        self.boost.as_ref()?;
        let running = self.cores[cpu as usize].running;
        let prev = (running != NONE && self.threads[running as usize].boost).then_some(running);
        let ran = prev.map_or(0, |prev| self.charged(self.threads[prev as usize].time));
        let (boost, sight) = self.boost_at(now)?;
        if let Some(prev) = prev.filter(|prev| boost.slice_left(*prev) > 0) {
            return Some(prev);
        }
        if let Some(first) = boost.local(cpu) {
            return Some(first);
        }
        boost.dispatch(cpu, prev.map(|prev| (prev, ran)), &sight);
        if let Some(prev) = prev.filter(|prev| boost.slice_left(*prev) > 0) {
            return Some(prev);
        }
        let first = boost.local(cpu);
        if first.is_none()
            && let Some(prev) = prev
        {
            boost.refill(prev);
            return Some(prev);
        }
        first
    }

    /// One of the class gives up its core, and waits.
    pub(super) fn put_boost(&mut self, thread: u32, cpu: u32, now: Nanos) {
        let ran = self.charged(self.threads[thread as usize].time);
        if let Some((boost, sight)) = self.boost_at(now) {
            boost.stopping(thread, cpu, true, ran, &sight);
            if boost.slice_left(thread) > 0 {
                boost.keep_local(thread, cpu);
            } else {
                boost.enqueue(thread, cpu, false, &sight);
            }
        }
    }

    /// It goes to sleep.
    pub(super) fn block_boost(&mut self, thread: u32, cpu: u32, now: Nanos) {
        let ran = self.charged(self.threads[thread as usize].time);
        if let Some((boost, sight)) = self.boost_at(now) {
            boost.stopping(thread, cpu, false, ran, &sight);
        }
    }

    /// It has a core.
    pub(super) fn run_boost(&mut self, thread: u32, cpu: u32, now: Nanos) {
        let ran = self.charged(self.threads[thread as usize].time);
        let Some((boost, _)) = self.boost_at(now) else {
            return;
        };
        if let Some(delay) = boost.running(thread, cpu, ran, now.0) {
            let group = self.threads[thread as usize].group;
            if let Some(group) = group.and_then(|group| self.groups.get_mut(group as usize)) {
                let us = delay / 1000;
                let bin = us.checked_ilog2().unwrap_or(0) as usize;
                group.delays[bin.min(ostler_boost::BINS - 1)] += 1;
            }
        }
    }

    /// One of the class that sleeps is woken; on which core it waits.
    pub(super) fn wake_boost(&mut self, thread: u32, now: Nanos) -> u32 {
        let allowed = &self.allowed[thread as usize];
        let prev = self.threads[thread as usize].cpu;
        let mine = allowed.contains(CpuId(prev));
        let found = if mine && self.idle.contains(CpuId(prev)) {
            Some(prev)
        } else if self.idle.is_disjoint(allowed) {
            None
        } else {
            let idle = self.idle.intersection(allowed);
            let near = (0..super::map::LEVELS)
                .map(|level| idle.intersection(self.map.span(prev, level)))
                .find(|near| !near.is_empty());
            near.and_then(|near| self.whole(&near, prev))
        };
        let cpu = match found {
            Some(cpu) => cpu,
            None if mine => prev,
            None => {
                let allowed = self.allowed[thread as usize];
                self.anywhere(&allowed)
            }
        };
        self.arrive(thread, cpu, now);
        if let Some((boost, sight)) = self.boost_at(now) {
            if found.is_some() {
                boost.insert_local(thread, cpu);
            } else {
                boost.enqueue(thread, cpu, true, &sight);
            }
        }
        cpu
    }

    /// One of the class comes from another core, or another class.
    pub(super) fn come_boost(&mut self, thread: u32, cpu: u32, now: Nanos) {
        if let Some((boost, sight)) = self.boost_at(now) {
            boost.moved(thread);
            boost.enqueue(thread, cpu, false, &sight);
        }
    }

    /// An event of IO.
    pub(super) fn io<W: Work>(
        &mut self,
        thread: u32,
        event: crate::work::IoEvent,
        scene: &mut Scene<'_, W>,
    ) {
        let known = &self.threads[thread as usize];
        // It is in its guest on another core than whoever tells it, and is brought out of it.
        self.counters.ipis += u64::from(event.arrives && known.state == State::Runs);
        if !known.boost {
            return;
        }
        // What it has run until now counts for who may take its core.
        if known.state == State::Runs {
            self.reckon(known.cpu, scene.now());
        }
        if let Some((boost, sight)) = self.boost_at(scene.now()) {
            boost.event(thread, event.task, !event.arrives, &sight);
        }
    }

    /// A core's tick, for the thread there.
    pub(super) fn tick_boost<W: Work>(&mut self, cpu: u32, scene: &mut Scene<'_, W>) {
        let running = self.cores[cpu as usize].running;
        if running == NONE || !self.threads[running as usize].boost {
            return;
        }
        let task = scene.work.task(ThreadId(running));
        if let Some(boost) = self.boost.as_deref_mut() {
            boost.tick(running, task);
            if boost.is_over(running) {
                boost.spend(running, u64::MAX);
                self.cores[cpu as usize].resched = true;
            }
        }
    }

    /// Carries out what the scheduler wants of cores: nothing, after most of what happens.
    #[inline]
    pub(super) fn kicks<W: Work>(&mut self, scene: &mut Scene<'_, W>) {
        let boost = self.boost.as_deref();
        if boost.is_some_and(|boost| !boost.kicks.is_empty()) {
            self.kick_all(scene);
        }
    }

    fn kick_all<W: Work>(&mut self, scene: &mut Scene<'_, W>) {
        let mut at = 0;
        while let Some(boost) = self.boost.as_deref_mut() {
            let Some(kick) = boost.kicks.get(at).copied() else {
                boost.kicks.clear();
                return;
            };
            at += 1;
            match kick {
                Kick::Turn(cpu, when) => scene.queue.at(Nanos(when), Event::Turn { cpu }),
                Kick::Idle(cpu) => {
                    self.counters.ipis += 1;
                    self.kick(cpu, scene);
                }
                Kick::Preempt(cpu) | Kick::Over(cpu) => {
                    self.counters.ipis += u64::from(matches!(kick, Kick::Preempt(_)));
                    let running = self.cores[cpu as usize].running;
                    if running != NONE && self.threads[running as usize].boost {
                        self.reckon(cpu, scene.now());
                        if let Some(boost) = self.boost.as_deref_mut() {
                            boost.spend(running, u64::MAX);
                        }
                        self.cores[cpu as usize].resched = true;
                    }
                    let told = match kick {
                        Kick::Preempt(_) => Told::Interrupted,
                        _ => Told::Itself,
                    };
                    self.act(cpu, told, scene);
                }
            }
        }
    }

    /// A core's turn is over, by its timer.
    pub(super) fn turn<W: Work>(&mut self, cpu: u32, scene: &mut Scene<'_, W>) {
        if let Some(boost) = self.boost.as_deref_mut() {
            boost.turn_over(cpu, scene.now().0);
        }
    }

    /// Of cores that sleep, one whose siblings sleep too, if there is one; in order from after `from` on.
    pub(super) fn whole(&self, near: &CpuSet, from: u32) -> Option<u32> {
        let whole = near.intersection(&self.alone);
        let among = if whole.is_empty() { near } else { &whole };
        super::map::next_from(among, from + 1)
    }
}
