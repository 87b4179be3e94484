//! What goes before threads on a core, and what doesn't any longer.
//!
//! Softirqs run when the last hard interrupt is over, in rounds: what is there when one begins, then what has come meanwhile. One that isn't over goes on before the next ([`Work::interrupted`]), for 8 ms at the most (`net_rx_action`).
//! (A thread may hold them off for a while, [`Work::holds_softirqs`]: then they run at its end.)
//! After 2 ms, or ten rounds, or once a thread is to be switched to, the rest is left to ksoftirqd, a thread as any other (`handle_softirqs`).
//! The next interrupt has softirqs run at its end again, whether or not ksoftirqd has come to run: since 6.4 it isn't waited for.

use ostler_model::{CpuId, Nanos};

use super::core::Doing;
use super::fair::NONE;
use super::thread::State;
use super::{Host, Scene};
use crate::work::{Interrupt, Kind, Next, ThreadId, Work};

impl Host {
    /// An interrupt comes to a core.
    pub(super) fn interrupt<W: Work>(
        &mut self,
        cpu: u32,
        interrupt: Interrupt,
        scene: &mut Scene<'_, W>,
    ) {
        let softirq = interrupt.kind == Kind::Softirq;
        self.counters.interrupts += u64::from(!softirq);
        self.counters.device_irqs += u64::from(interrupt.kind == Kind::Device);
        let own = cpu;
        let core = &mut self.cores[cpu as usize];
        if softirq {
            core.soft.push_back(interrupt);
            // ksoftirqd is at it, and takes this too.
            if core.running == own && core.doing == Doing::Thread {
                return;
            }
            core.deferred = false;
        } else {
            core.hard.push_back(interrupt);
        }
        match core.doing {
            Doing::Idle(_) => self.kick(cpu, scene),
            Doing::Thread => {
                self.reckon(cpu, scene.now());
                let thread = self.cores[cpu as usize].running;
                if !softirq
                    && thread >= self.own_threads()
                    && !scene.work.in_kernel(ThreadId(thread))
                {
                    self.cores[cpu as usize].overhead += self.costs.interrupt_exit;
                }
                self.proceed(cpu, scene);
            }
            Doing::Soft if !softirq => {
                self.reckon(cpu, scene.now());
                self.turn_to(cpu, Doing::Hard, scene);
            }
            Doing::Soft | Doing::Hard | Doing::Waking(_) | Doing::Rising => {}
        }
    }

    /// Has a core do interrupts, if there are any that go before threads.
    pub(super) fn begin_interrupts<W: Work>(&mut self, cpu: u32, scene: &mut Scene<'_, W>) -> bool {
        let core = &mut self.cores[cpu as usize];
        if !core.hard.is_empty() {
            self.turn_to(cpu, Doing::Hard, scene);
            return true;
        }
        let at_it = core.running == cpu && core.left > 0;
        if core.soft.is_empty() || core.deferred || at_it || self.holds_softirqs(cpu, scene) {
            return false;
        }
        let core = &mut self.cores[cpu as usize];
        if core.round == 0 {
            core.soft_since = scene.now();
            core.rounds = 0;
            core.round = core.soft.len();
        }
        self.turn_to(cpu, Doing::Soft, scene);
        true
    }

    /// Whether the thread that has a core holds softirqs off there, and whoever else wants the core.
    pub(super) fn holds_softirqs<W: Work>(&self, cpu: u32, scene: &Scene<'_, W>) -> bool {
        let thread = self.cores[cpu as usize].running;
        thread != NONE
            && thread >= self.own_threads()
            && scene.work.holds_softirqs(ThreadId(thread))
    }

    /// Has a core do what was held off there until now, if it is no longer. What ksoftirqd is at never was.
    #[inline]
    pub(super) fn begin_held<W: Work>(&mut self, cpu: u32, scene: &mut Scene<'_, W>) -> bool {
        let core = &self.cores[cpu as usize];
        !core.soft.is_empty() && core.running != cpu && self.begin_interrupts(cpu, scene)
    }

    /// A hard interrupt is over.
    pub(super) fn end_hard<W: Work>(&mut self, cpu: u32, scene: &mut Scene<'_, W>) {
        let core = &mut self.cores[cpu as usize];
        core.deferred = false;
        if let Some(done) = core.hard.pop_front() {
            if done.kind == Kind::Device && core.running == NONE && core.round == 0 {
                core.handled.unseen += self.costs.unseen;
            }
            was_interrupted(cpu, done.token, scene);
        }
        self.proceed(cpu, scene);
    }

    /// A softirq is over.
    pub(super) fn end_soft<W: Work>(&mut self, cpu: u32, scene: &mut Scene<'_, W>) {
        let now = scene.now();
        if let Some(done) = self.cores[cpu as usize].soft.pop_front()
            && let Some(work) = was_interrupted(cpu, done.token, scene)
        {
            let core = &mut self.cores[cpu as usize];
            core.soft.push_front(Interrupt { work, ..done });
            if now.0 - core.soft_since.0 >= self.costs.softirq_budget {
                self.defer(cpu, scene);
            }
            self.proceed(cpu, scene);
            return;
        }
        let core = &mut self.cores[cpu as usize];
        core.round = core.round.saturating_sub(1);
        if core.round == 0 && !core.soft.is_empty() {
            core.rounds += 1;
            let long = now.0 - core.soft_since.0 >= self.costs.softirq_time;
            if long || core.rounds >= self.costs.softirq_restart || core.resched {
                self.defer(cpu, scene);
            } else {
                core.round = core.soft.len();
            }
        }
        self.proceed(cpu, scene);
    }

    /// Leaves softirqs to ksoftirqd.
    fn defer<W: Work>(&mut self, cpu: u32, scene: &mut Scene<'_, W>) {
        let now = scene.now();
        let core = &mut self.cores[cpu as usize];
        (core.deferred, core.round) = (true, 0);
        self.counters.ksoftirqd += 1;
        if self.threads[cpu as usize].state == State::Asleep {
            self.wake(cpu, Some(cpu), now);
            if let Some(tracer) = scene.out.tracer() {
                tracer.wakes(now, Some(CpuId(cpu)), ThreadId(cpu), CpuId(cpu));
            }
        }
    }

    /// What ksoftirqd has to do.
    pub(super) fn next_softirq(&self, cpu: u32) -> Next {
        match self.cores[cpu as usize].soft.front() {
            Some(first) => Next::Run(first.work),
            None => Next::Sleep,
        }
    }

    /// Whether a core's ksoftirqd has it, and more to do: what it did last may have brought that, after it was asked what comes next.
    pub(super) fn has_softirqs(&self, cpu: u32) -> bool {
        let core = &self.cores[cpu as usize];
        core.running == cpu && !core.soft.is_empty()
    }

    /// ksoftirqd has done so much.
    pub(super) fn did_softirq<W: Work>(&mut self, cpu: u32, done: Nanos, scene: &mut Scene<'_, W>) {
        let core = &mut self.cores[cpu as usize];
        let Some(first) = core.soft.front_mut() else {
            return;
        };
        first.work = first.work.saturating_sub(done);
        if core.left == 0 && first.work == Nanos::ZERO {
            let done = *first;
            core.soft.pop_front();
            if let Some(work) = was_interrupted(cpu, done.token, scene) {
                let more = Interrupt { work, ..done };
                self.cores[cpu as usize].soft.push_front(more);
            }
        }
    }

    /// Interrupts that wait or are being worked on.
    pub fn interrupts_pending(&self, cpu: CpuId) -> usize {
        let core = &self.cores[cpu.0 as usize];
        core.hard.len() + core.soft.len()
    }

    /// Whether a core has nothing to do for threads, as Linux's `idle_cpu` tells: it may be in an interrupt.
    pub(super) fn without_threads(&self, cpu: u32) -> bool {
        let core = &self.cores[cpu as usize];
        core.running == NONE
            && core.fair == 0
            && self.boost.as_ref().is_none_or(|boost| boost.is_clear(cpu))
    }
}

/// What an interrupt was for is seen to. How much more a softirq does before it is over.
fn was_interrupted<W: Work>(cpu: u32, token: u64, scene: &mut Scene<'_, W>) -> Option<Nanos> {
    let (now, before) = (scene.now(), scene.out.0.len());
    let more = scene.work.interrupted(CpuId(cpu), token, now, scene.out);
    scene.out.of_interrupt(before);
    more
}
