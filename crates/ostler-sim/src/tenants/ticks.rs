//! Ticks that wake a guest's vCPUs while they sleep.
//!
//! A CPU without a driver for idle states, as a guest's is, keeps its tick when it goes idle, and stops it when that has woken it and found nothing to do (kernel/sched/idle.c, `cpuidle_idle_call`). So a vCPU
//! that has worked sleeps until the next tick at the longest. Once the tick is stopped it stays so until a task runs there: interrupts that wake none leave it (`idle_call_stop_or_retain_tick`). What ticks take of one that is
//! busy is in what it does.
//!
//! The last of a guest's vCPUs to stop its tick wakes for the first timer of its connections ([`crate::guest::acks`]), at a tick as well.
//!
//! Where a guest's kernel does so is for the costs to say ([`crate::path::Costs::guest_tick`]): older ones stop it at once.

use ostler_model::{CpuId, Nanos};

use super::{TICK, Tenants};
use crate::guest::{Told, Vcpu};
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

    /// A message has come to a connection.
    pub(super) fn will_acknowledge(&mut self, g: u32, message: u32, now: Nanos) {
        let wait = self.costs.delayed_ack;
        let Some(next) = self.next_tick(g, now).filter(|_| wait > Nanos::ZERO) else {
            return;
        };
        let ticks = wait.0.div_ceil(self.costs.guest_tick.0);
        let due = next.saturating_add(Nanos(ticks * self.costs.guest_tick.0));
        let flow = self.net.message(message).flow;
        self.guests[g as usize].acks.set(flow, due);
    }

    /// When the timer is due that a vCPU has when it sleeps from now on.
    fn wakes_at(&mut self, g: u32, v: u32, now: Nanos) -> Option<Nanos> {
        let next = self.next_tick(g, now)?;
        let guest = &mut self.guests[g as usize];
        if guest.vcpus[v as usize].ticks {
            return Some(next);
        }
        let first = guest.acks.next(now)?;
        let sees_to_it = |vcpu: &Vcpu| vcpu.told != Told::Sleep || vcpu.ticks;
        let mut others = (0..).zip(&guest.vcpus).filter(|(other, _)| *other != v);
        (!others.any(|(_, vcpu)| sees_to_it(vcpu))).then_some(first)
    }

    /// A vCPU goes to sleep, or is stopped.
    pub(super) fn keeps_tick(&mut self, g: u32, v: u32, now: Nanos, out: &mut Effects) {
        let at = self.wakes_at(g, v, now);
        let vcpu = &mut self.guests[g as usize].vcpus[v as usize];
        // The alarm for one that was to come later finds that it isn't that any more.
        if std::mem::replace(&mut vcpu.tick_at, at) != at
            && let Some(at) = at
        {
            out.alarm(at, TICK | u64::from(g) << 24 | u64::from(v));
        }
    }

    /// A tick that a vCPU has kept is due: its timer interrupts the core that it had last, whether it still sleeps or waits for one (KVM's timer is on the core
    /// where the vCPU was loaded until it is loaded elsewhere). One that runs has taken the timer along.
    pub(super) fn tick(&mut self, g: u32, v: u32, now: Nanos, out: &mut Effects) {
        let guest = &mut self.guests[g as usize];
        let vcpu = &mut guest.vcpus[v as usize];
        if vcpu.tick_at != Some(now) {
            return;
        }
        vcpu.tick_at = None;
        if guest.dead || vcpu.on.is_some() {
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
        if guest.dead || vcpu.told != Told::Sleep || vcpu.tick_at.is_some() {
            return;
        }
        vcpu.ticked = true;
        vcpu.interrupts += 1;
        out.notify_from(vcpu.thread, cpu);
    }
}
