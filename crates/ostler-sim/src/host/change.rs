//! Threads that are moved, frozen and ended by others.

use ostler_model::{CpuId, Nanos};

use super::core::Doing;
use super::fair::NONE;
use super::group::Why;
use super::run::Told;
use super::thread::State;
use super::{Host, Scene};
use crate::work::{ThreadId, Work};

impl Host {
    /// A thread that has a core leaves it; the core looks for another.
    fn leave_core<W: Work>(&mut self, thread: u32, cpu: u32, scene: &mut Scene<'_, W>) {
        let now = scene.now();
        self.reckon(cpu, now);
        self.put(thread, cpu, false, scene);
        self.drop_out(thread, Why::Moves, now);
    }

    /// And the core goes on, unless an interrupt has it.
    pub(super) fn without<W: Work>(&mut self, cpu: u32, scene: &mut Scene<'_, W>) {
        if self.cores[cpu as usize].doing == Doing::Thread {
            self.schedule(cpu, scene);
        } else {
            self.trace_switch(NONE, cpu, scene);
        }
    }

    /// Takes a thread off wherever it waits or runs; the core that has to look for another.
    pub(super) fn remove<W: Work>(&mut self, thread: u32, scene: &mut Scene<'_, W>) -> Option<u32> {
        let cpu = self.threads[thread as usize].cpu;
        match self.threads[thread as usize].state {
            State::Runs => {
                self.leave_core(thread, cpu, scene);
                Some(cpu)
            }
            State::Waits => {
                self.threads[thread as usize].account(scene.now());
                self.drop_out(thread, Why::Moves, scene.now());
                None
            }
            State::Asleep | State::Gone => {
                // It may be waiting off what it is ahead.
                self.drop_out(thread, Why::Even, scene.now());
                None
            }
        }
    }

    fn drop_out(&mut self, thread: u32, why: Why, now: Nanos) {
        if !self.threads[thread as usize].boost {
            self.dequeue(thread, why, now);
        } else if let Some(boost) = self.boost.as_deref_mut() {
            boost.remove(thread);
        }
    }

    pub(super) fn exit<W: Work>(&mut self, thread: u32, scene: &mut Scene<'_, W>) {
        if self.threads[thread as usize].state == State::Gone {
            return;
        }
        self.threads[thread as usize].account(scene.now());
        let left = self.remove(thread, scene);
        self.threads[thread as usize].state = State::Gone;
        if let Some(cpu) = left {
            self.without(cpu, scene);
        }
    }

    pub(super) fn freeze<W: Work>(&mut self, thread: u32, frozen: bool, scene: &mut Scene<'_, W>) {
        let known = &mut self.threads[thread as usize];
        if known.frozen == frozen || known.state == State::Gone {
            return;
        }
        known.frozen = frozen;
        if frozen {
            let would = known.state != State::Asleep;
            let left = self.remove(thread, scene);
            let known = &mut self.threads[thread as usize];
            if would {
                known.since = scene.now();
            }
            known.state = State::Asleep;
            known.wants = would;
            if let Some(cpu) = left {
                self.without(cpu, scene);
            }
        } else if known.wants {
            let (cpu, told) = self.wake(thread, None, scene.now());
            let now = scene.now();
            if let Some(tracer) = scene.out.tracer() {
                tracer.wakes(now, None, ThreadId(thread), CpuId(cpu));
            }
            self.act(cpu, told, scene);
        }
    }

    /// Where a thread may run has changed.
    pub(super) fn confine<W: Work>(&mut self, thread: u32, scene: &mut Scene<'_, W>) {
        let before = self.allowed[thread as usize];
        self.narrow(thread);
        let (cpu, allowed) = (
            self.threads[thread as usize].cpu,
            self.allowed[thread as usize],
        );
        if before == allowed {
            return;
        }
        if let Some(boost) = self.boost.as_deref_mut() {
            boost.confined(thread, &allowed);
        }
        if allowed.contains(CpuId(cpu)) {
            return;
        }
        if matches!(
            self.threads[thread as usize].state,
            State::Waits | State::Runs
        ) {
            let to = self.anywhere(&allowed);
            self.go_to(thread, to, scene);
        } else {
            self.remove(thread, scene);
        }
    }

    /// A thread that waits or runs goes to another core.
    pub(super) fn go_to<W: Work>(&mut self, thread: u32, to: u32, scene: &mut Scene<'_, W>) {
        let left = self.remove(thread, scene);
        self.come(thread, to, scene.now());
        let running = self.cores[to as usize].running;
        if running != NONE && !self.threads[thread as usize].boost {
            if self.threads[running as usize].boost {
                self.cores[to as usize].resched = true;
            } else if self.preempts(thread, running, to, scene.now()) {
                self.mark(to);
            }
        }
        if let Some(cpu) = left {
            self.without(cpu, scene);
        }
        self.act(to, Told::Not, scene);
    }
}
