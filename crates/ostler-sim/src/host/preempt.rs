//! When one that is to have a core of the fair class has it.
//!
//! Linux 6.12, preempting voluntarily, interrupts the core at once: whoever has it is taken off when that interrupt is over. Linux 7.3 preempts lazily, as all since 7.0
//! do that don't preempt fully (kernel/Kconfig.preempt). One of the fair class that is to have a core only *marks* whoever has it (`resched_curr_lazy`, kernel/sched/core.c), and nobody is interrupted
//! for that. The mark is seen
//!
//! - where whoever has the core is about to go back to its guest (`xfer_to_guest_mode_handle_work`, kernel/entry/virt.c; `_TIF_NEED_RESCHED_LAZY`) or to user mode: at the end of each interrupt of that core, whose ever it is,
//!   at each exit of its own, at its guest's next tick, which is a timer of the host's ([`Work::leaves_at`]), and when the guest has handled that and sets the next, which is an exit, too. One that its own tick stopped
//!   has that yet to do, so it gives up the core again soon after it is back;
//! - where it sleeps;
//! - at the core's next tick, for all: that makes a real one of the mark (`sched_tick`).
//!
//! So a vCPU that computes keeps its core until any of these comes, and a vhost worker, which stays in the kernel ([`Work::in_kernel`]), until it has nothing to do or the tick comes: `cond_resched` does
//! nothing there. Who is woken by whoever has that very core doesn't wait for an interrupt, as that one is on its way back to its guest; nor who is woken by an interrupt there. A core that
//! shares no cache with the waker's is interrupted to queue the one that is woken (`ttwu_queue_wakelist`), and looks at the end of that.
//!
//! All else takes a core at once, as before: a core that sleeps, a thread of a lower class (`wakeup_preempt`), and the boost scheduler's kicks (`SCX_KICK_PREEMPT`).
//!
//! And a slice ends on time: where others wait, a timer is set for it (`hrtick_start_fair`; on by default on x86-64 there, `CONFIG_HRTIMER_REARM_DEFERRED`), which takes the core at once, whatever its thread is in. 6.12 ends
//! slices at ticks. A core sets its timers itself: whoever is woken by another core and comes to one whose thread has been alone interrupts it for that, by which a mark is seen.
//!
//! A vCPU that is to make room is out of its guest first: it has its core for that time, and does nothing there. Whoever comes by another core's interrupt waits until that has come, too.
//!
//! Left out: `rcu` and other interrupts of the host's own, the steward's time and QEMU's, by which cores of the lab's hosts look now and then, too.

use ostler_model::Nanos;

use super::core::Doing;
use super::fair::NONE;
use super::{Event, Host, Scene};
use crate::work::{ThreadId, Work};

/// No timer of a slice is shorter, ns (`hrtick_start`).
const SLICE_MIN: u64 = 10_000;

impl Host {
    /// Somebody of the fair class is to have a core that another has.
    pub(super) fn mark(&mut self, cpu: u32) {
        let core = &mut self.cores[cpu as usize];
        if self.costs.kernel.is_lazy() {
            core.lazy = true;
        } else {
            core.resched = true;
        }
    }

    /// Whether a core looks at a mark once an interrupt is over, or an exit.
    pub(super) fn looks<W: Work>(&self, cpu: u32, scene: &Scene<'_, W>) -> bool {
        let core = &self.cores[cpu as usize];
        if core.resched || core.running == NONE {
            return !self.holds_softirqs(cpu, scene);
        }
        core.lazy && core.running >= self.own_threads() && {
            let thread = ThreadId(core.running);
            !scene.work.in_kernel(thread)
        }
    }

    /// Whether the thread that has a core has left its guest since this was asked last, and a mark was seen by that.
    pub(super) fn has_exited<W: Work>(&mut self, cpu: u32, scene: &Scene<'_, W>) -> bool {
        if !self.costs.kernel.is_lazy() {
            return false;
        }
        let core = &mut self.cores[cpu as usize];
        let exits = scene.work.exits(ThreadId(core.running));
        let before = std::mem::replace(&mut core.exits, exits);
        core.lazy && exits != before
    }

    /// Whether a core is interrupted so that one that is woken gets there, or is in an interrupt or an exit by which that is: `from` is where it was caused.
    pub(super) fn is_interrupted(&self, cpu: u32, from: u32) -> bool {
        !self.costs.kernel.is_lazy() || from == cpu || !self.map.shares_cache(from, cpu)
    }

    /// Has a core with a mark look when the thread that has it leaves its guest for a timer.
    pub(super) fn await_exit<W: Work>(&mut self, cpu: u32, scene: &mut Scene<'_, W>) {
        let core = &self.cores[cpu as usize];
        if !core.lazy || core.looks_at != Nanos::ZERO || core.doing != Doing::Thread {
            return;
        }
        let (thread, now) = (ThreadId(core.running), scene.now());
        let long = Nanos(self.costs.tick_exit);
        let exit = if core.tick_ends > now {
            let next = scene.work.leaves_at(thread, now);
            next.map(|tick| tick.min(core.tick_ends))
        } else {
            let tick = scene.work.leaves_at(thread, now.saturating_sub(long));
            tick.map(|tick| {
                if tick > now {
                    tick
                } else {
                    tick.saturating_add(long)
                }
            })
        };
        let stay = scene.work.stays(thread).0;
        let leaves = now.0.checked_div(stay).map(|past| Nanos((past + 1) * stay));
        if let Some(at) = exit.into_iter().chain(leaves).min() {
            self.cores[cpu as usize].looks_at = at;
            scene.queue.at(at, Event::Look { cpu });
        }
    }

    /// Whether somebody who comes to a core from another has that one set the timer of its slice: of a core that has one thread none is set, and it sets its timers itself, so it is interrupted for it
    /// (`hrtick_update`, `hrtick_start`: `smp_call_function_single_async`). Where one is set already, be it of a thread that is gone, it isn't (`hrtick_active`).
    pub(super) fn sets_slice(&self, cpu: u32, from: u32) -> bool {
        let core = &self.cores[cpu as usize];
        let fair = |thread: u32| !self.threads[thread as usize].boost;
        self.costs.kernel.times_slices()
            && from != cpu
            && core.slice_ends == Nanos::ZERO
            && core.running != NONE
            && fair(core.running)
    }

    /// A core goes on with another thread, or with the same: its timer is set anew where others wait. Where none does it stays as it is, and comes for nothing (`hrtick_schedule_exit`).
    pub(super) fn clear_slice(&mut self, cpu: u32) {
        let core = &mut self.cores[cpu as usize];
        let fair = core.running != NONE && !self.threads[core.running as usize].boost;
        if !fair || self.queues[cpu as usize].slice_left().is_some() {
            core.slice_ends = Nanos::ZERO;
        }
    }

    /// Sets the timer of the slice of the thread that has a core, where others wait and none is set.
    pub(super) fn time_slice<W>(&mut self, cpu: u32, scene: &mut Scene<'_, W>) {
        let core = &self.cores[cpu as usize];
        if !self.costs.kernel.times_slices() || core.slice_ends != Nanos::ZERO {
            return;
        }
        if let Some(left) = self.queues[cpu as usize].slice_left() {
            let ahead = scene.now().0 - core.since.0;
            let at = Nanos(scene.now().0 + left.saturating_sub(ahead).max(SLICE_MIN));
            self.cores[cpu as usize].slice_ends = at;
            scene.queue.at(at, Event::Slice { cpu });
        }
    }

    /// A slice is over, if the thread is still the one that was meant and interrupts have taken nothing of it.
    pub(super) fn slice_over<W: Work>(&mut self, cpu: u32, scene: &mut Scene<'_, W>) {
        let now = scene.now();
        if self.cores[cpu as usize].slice_ends != now {
            return;
        }
        self.reckon(cpu, now);
        let core = &mut self.cores[cpu as usize];
        core.slice_ends = Nanos::ZERO;
        core.resched |= core.lazy;
        if !core.resched {
            self.time_slice(cpu, scene);
        } else if core.doing == Doing::Thread && self.looks(cpu, scene) {
            self.stop(cpu, self.costs.stop, scene);
        }
    }

    /// Has a core look who is to have it, which takes it so long where that brings a vCPU out of its guest; accounts are up to now.
    pub(super) fn stop<W: Work>(&mut self, cpu: u32, takes: u64, scene: &mut Scene<'_, W>) {
        let now = scene.now();
        if self.cores[cpu as usize].out_at <= now {
            if !self.leaves_guest(cpu, takes, scene) {
                return self.schedule(cpu, scene);
            }
            let core = &mut self.cores[cpu as usize];
            core.overhead += self.costs.stop;
            core.out_at = now.saturating_add(Nanos(takes));
            scene.queue.at(core.out_at, Event::Out { cpu });
        }
        self.turn_to(cpu, Doing::Thread, scene);
    }

    /// Whether a core's thread is in its guest, and another is to have the core. Of one that the boost scheduler has that isn't known before that is asked, unless another core wants it stopped: it pays when it comes back.
    fn leaves_guest<W: Work>(&self, cpu: u32, takes: u64, scene: &Scene<'_, W>) -> bool {
        let core = &self.cores[cpu as usize];
        let thread = core.running;
        if self.costs.stop == 0
            || core.out_at > Nanos::ZERO
            || core.leaving
            || thread == NONE
            || thread < self.own_threads()
            || scene.work.in_kernel(ThreadId(thread))
        {
            return false;
        }
        if self.threads[thread as usize].boost {
            core.fair > 0 || takes == self.costs.stop_woken
        } else {
            self.queues[cpu as usize].pick() != Some(self.queues[cpu as usize].curr)
        }
    }

    /// The thread that has a core is out of its guest.
    pub(super) fn out<W: Work>(&mut self, cpu: u32, scene: &mut Scene<'_, W>) {
        let now = scene.now();
        let core = &self.cores[cpu as usize];
        if core.out_at == now && core.doing == Doing::Thread && !core.leaving {
            self.reckon(cpu, now);
            self.schedule(cpu, scene);
        }
    }

    /// The thread that has a core leaves its guest for a timer, if it is still the one that was meant.
    pub(super) fn look<W: Work>(&mut self, cpu: u32, scene: &mut Scene<'_, W>) {
        let now = scene.now();
        let core = &mut self.cores[cpu as usize];
        if core.looks_at != now {
            return;
        }
        core.looks_at = Nanos::ZERO;
        if core.doing == Doing::Thread && self.looks(cpu, scene) {
            self.reckon(cpu, now);
            self.stop(cpu, self.costs.stop, scene);
        }
    }
}
