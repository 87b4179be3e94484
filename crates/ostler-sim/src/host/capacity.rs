//! What of a core is left to threads: interrupts take the rest.
//!
//! As Linux has it where it is built to count the time of interrupts by itself (`CONFIG_IRQ_TIME_ACCOUNTING`): elsewhere threads are charged for what interrupts take of their cores
//! ([`super::costs::Kernel::tells_interrupts_apart`]), and all cores are whole. It is an average of that time that forgets half of it in 32 ms (`update_irq_load_avg`, kernel/sched/pelt.c), and a core's capacity is what it leaves
//! (`scale_rt_capacity`, kernel/sched/fair.c; there are no threads of other classes that would take of it). A core on which less than 100 of 117 parts
//! is left (`check_cpu_capacity`) has its only thread be taken by a core that sleeps and has enough more left (`nohz_balancer_kick`,
//! `sched_reduced_capacity`, `need_active_balance`); where more threads wait, loads are weighed by it ([`super::balance`]). Which core a thread wakes
//! on isn't: `select_idle_sibling` asks for what fits only where cores differ by design.

use ostler_model::{CpuId, Nanos};

use super::core::Doing;
use super::fair::{Average, NONE};
use super::map::LEVELS;
use super::{Host, Scene};
use crate::work::Work;

/// A whole core (`SCHED_CAPACITY_SCALE`).
pub(super) const WHOLE: u64 = 1024;

/// What interrupts, or threads, take of a core.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Taken {
    /// As parts of [`WHOLE`].
    average: Average,
    /// Until when that is, and what they had taken by then, ns.
    at: u64,
    took: u64,
}

impl Taken {
    /// They have taken so much until now; what that is of late. Between two looks they are taken to come evenly.
    pub fn pass(&mut self, now: u64, took: u64) -> u64 {
        let span = now - self.at;
        if let Some(part) = ((took - self.took) * WHOLE).checked_div(span) {
            self.average.pass(now, part.min(WHOLE) as u32);
            (self.at, self.took) = (now, took);
        }
        u64::from(self.average.get())
    }
}

impl Host {
    /// What of a core is left to threads, parts of [`WHOLE`].
    pub(super) fn capacity(&mut self, cpu: u32, now: Nanos) -> u64 {
        if !self.costs.kernel.tells_interrupts_apart() {
            return WHOLE;
        }
        let core = &mut self.cores[cpu as usize];
        let running_now = match core.doing {
            Doing::Hard | Doing::Soft => now.0 - core.since.0,
            _ => 0,
        };
        let took = core.time.hard + core.time.soft + running_now;
        WHOLE.saturating_sub(core.taken.pass(now.0, took)).max(1)
    }

    /// Whether one is so much less than another that it counts.
    fn is_less(&self, one: u64, other: u64) -> bool {
        one * self.costs.imbalance_percent < other * 100
    }

    /// A core of which interrupts take much gives its only thread to one that sleeps, the nearest that is due to look and has enough left.
    pub(super) fn relieve<W: Work>(&mut self, cpu: u32, scene: &mut Scene<'_, W>) {
        let now = scene.now();
        let own = self.capacity(cpu, now);
        let running = self.cores[cpu as usize].running;
        if !self.is_less(own, WHOLE) || running == NONE || self.cores[cpu as usize].fair != 1 {
            return;
        }
        if self.threads[running as usize].boost {
            return;
        }
        let able = self.idle.intersection(&self.allowed[running as usize]);
        for level in 0..LEVELS {
            let span = *self.map.span(cpu, level);
            let interval = u64::from(span.len()) * 1_000_000;
            let mut to = None;
            for CpuId(other) in &able.intersection(&span) {
                let due = &mut self.cores[other as usize].balance_at[level];
                if now < *due {
                    continue;
                }
                // All that are due look, and the first that is fit has it.
                *due = Nanos(now.0 + interval);
                let left = self.capacity(other, now);
                if to.is_none() && self.is_less(own, left) {
                    to = Some(other);
                }
            }
            if let Some(to) = to {
                self.push_running(cpu, to, scene);
                return;
            }
        }
    }
}
