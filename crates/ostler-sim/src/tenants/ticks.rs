//! Ticks that wake a guest's vCPUs while they sleep.
//!
//! A CPU without a driver for idle states, as a guest's is, keeps its tick when it goes idle, and stops it when that has woken it and found nothing to do (kernel/sched/idle.c, `cpuidle_idle_call`). So a vCPU
//! that has worked sleeps until the next tick at the longest, and after that until something comes. What ticks take of one that is busy is in what it does.
//!
//! Where a guest's kernel does so is for the costs to say ([`crate::path::Costs::guest_tick`]): older ones stop it at once.

use ostler_model::{CpuId, Nanos};

use super::{TICK, Tenants};
use crate::guest::Told;
use crate::work::Effects;

impl Tenants {
    /// A guest's next tick; they go by when it booted, and are those of all its vCPUs that are busy.
    pub(super) fn next_tick(&self, g: u32, now: Nanos) -> Option<Nanos> {
        let tick = self.costs.guest_tick.0;
        if tick == 0 {
            return None;
        }
        let from = self.guests[g as usize].ticks_from.0;
        let past = (now.0 + tick - from) % tick;
        Some(now.saturating_add(Nanos(tick - past)))
    }

    /// A vCPU goes to sleep, or is stopped.
    pub(super) fn keeps_tick(&mut self, g: u32, v: u32, now: Nanos, out: &mut Effects) {
        let next = self.next_tick(g, now);
        let vcpu = &mut self.guests[g as usize].vcpus[v as usize];
        let Some(at) = next.filter(|_| vcpu.ticks && vcpu.tick_at.is_none()) else {
            return;
        };
        vcpu.tick_at = Some(at);
        out.alarm(at, TICK | u64::from(g) << 24 | u64::from(v));
    }

    /// A tick that a vCPU has kept is due: its timer interrupts the core that it had last, whether it still sleeps or waits for one (KVM's timer is on the core
    /// where the vCPU was loaded until it is loaded elsewhere). One that runs has taken the timer along.
    pub(super) fn tick(&mut self, g: u32, v: u32, out: &mut Effects) {
        let guest = &mut self.guests[g as usize];
        let vcpu = &mut guest.vcpus[v as usize];
        vcpu.tick_at = None;
        let runs = vcpu.on.is_some();
        if guest.dead || runs || !vcpu.ticks {
            return;
        }
        out.timer(
            vcpu.cpu,
            TICK | u64::from(g) << 24 | u64::from(v),
            self.costs.hardirq,
        );
    }

    /// The timer's interrupt is over.
    pub(super) fn ticked(&mut self, g: u32, v: u32, cpu: CpuId, out: &mut Effects) {
        let guest = &mut self.guests[g as usize];
        let vcpu = &mut guest.vcpus[v as usize];
        if guest.dead || vcpu.told != Told::Sleep || !vcpu.ticks {
            return;
        }
        vcpu.ticked = true;
        vcpu.interrupts += 1;
        out.notify_from(vcpu.thread, cpu);
    }
}
