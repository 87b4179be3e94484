//! A core that has nothing to do: how deep it sleeps, and how it wakes.

use ostler_model::Nanos;

use super::core::Doing;
use super::costs::IDLE_STATES;
use super::fair::NONE;
use super::{Host, Scene};
use crate::work::Work;

impl Host {
    /// Nobody is there for a core.
    pub(super) fn sleep<W: Work>(&mut self, cpu: u32, scene: &mut Scene<'_, W>) {
        self.trace_switch(NONE, cpu, scene);
        let stays = self.costs.idle_stay;
        let core = &mut self.cores[cpu as usize];
        core.idle_since = scene.now();
        core.slice_ends = Nanos::ZERO;
        let state = core.choose_idle(&stays);
        self.counters.switches += 1;
        self.turn_to(cpu, Doing::Idle(state), scene);
    }

    /// Has a core that sleeps wake up.
    pub(super) fn kick<W: Work>(&mut self, cpu: u32, scene: &mut Scene<'_, W>) {
        if let Doing::Idle(state) = self.cores[cpu as usize].doing {
            self.reckon(cpu, scene.now());
            self.cores[cpu as usize].note_sleep(scene.now());
            self.turn_to(cpu, Doing::Waking(state), scene);
        }
    }

    /// Whether a core that was interrupted in its idle loop leaves that now, for a thread that has come meanwhile. It takes its time, and less than where the core slept.
    #[inline]
    pub(super) fn rises(&self, cpu: u32) -> bool {
        let core = &self.cores[cpu as usize];
        core.running == NONE
            && self.costs.idle_leave > 0
            && matches!(core.doing, Doing::Hard | Doing::Soft)
            && !self.without_threads(cpu)
    }

    /// A tick of a core that sleeps: the governor stops no tick for a sleep that it takes to be short, and so looks again (`kernel/sched/idle.c`,
    /// cpuidle_idle_call). A core that has nothing to do any more is in the deepest state a few ticks later, whatever its last sleeps were.
    pub(super) fn tick_asleep<W: Work>(&mut self, cpu: u32, scene: &mut Scene<'_, W>) {
        let now = scene.now();
        let core = &mut self.cores[cpu as usize];
        let Doing::Idle(state) = core.doing else {
            return;
        };
        if usize::from(state) + 1 == IDLE_STATES {
            return;
        }
        if now.0 - core.idle_since.0 >= self.costs.tick {
            core.note_sleep(now);
            let deeper = core.choose_idle(&self.costs.idle_stay).max(state);
            if deeper > state {
                self.reckon(cpu, now);
                self.turn_to(cpu, Doing::Idle(deeper), scene);
            }
        }
        self.tick_on(cpu, scene);
    }
}
