//! Timers of a guest's tasks, by which they sleep.
//!
//! Each is a timer of the host's, on the core that the vCPU had when it was set, or has had since: it interrupts whoever has that core when it is due (KVM's stays there until the vCPU is loaded
//! elsewhere), wakes a vCPU that sleeps, and has one that runs leave its guest. memcached's thread that sees to its lists sleeps so ([`crate::guest::upkeep`]), up to a thousand times a second.
//!
//! The steward's agent is taken for one that wakes by itself whenever the steward asks it: what a worker takes to hand the question on is left out, as is what it takes to have others go to other vCPUs, or
//! a NIC use other queues.

use ostler_model::{CpuId, Nanos};

use super::tasks::By;
use super::{TIMER, Tenants};
use crate::guest::upkeep::Upkeep;
use crate::guest::{Activity, Phase, Program, Then};
use crate::work::Effects;

impl Tenants {
    /// A thread that sees to what its guest keeps has looked, and sleeps; or it has slept, and looks. So does an agent that answers.
    pub(super) fn keep_up(&mut self, g: u32, task: u32, v: u32, now: Nanos) {
        let guest = &mut self.guests[g as usize];
        let entry = &mut guest.tasks[task as usize];
        let sleeps = entry.phase != Phase::Wait;
        let (work, sleeps) = match guest.programs[entry.program as usize].program {
            Program::Upkeep { work, .. } => {
                let upkeep = guest.upkeep.as_mut().filter(|_| sleeps);
                let sleeps = upkeep.map_or(Nanos::ZERO, Upkeep::looks);
                let late = u64::from(sleeps > Nanos::ZERO) * self.costs.timer_slack.0;
                (work, Nanos(sleeps.0 + late))
            }
            // All are asked at the same times, however long they take to answer.
            Program::Agent { work, every } if sleeps => {
                (work, Nanos(every.0 - now.0 % every.0.max(1)))
            }
            Program::Agent { work, .. } => (work, Nanos::ZERO),
            _ => return,
        };
        if sleeps == Nanos::ZERO {
            entry.phase = Phase::Think;
            entry.activity = Activity::Work(work.max(Nanos(1)));
            return;
        }
        entry.phase = Phase::Wait;
        let exit = (self.costs.set_timer, Then::Timer(task, sleeps));
        guest.vcpus[v as usize].exits.push_back(exit);
        self.block(g, task, v);
    }

    /// A task's timer is due.
    pub(super) fn timer(&mut self, g: u32, task: u32, out: &mut Effects) {
        let guest = &self.guests[g as usize];
        if guest.dead {
            return;
        }
        let v = guest.tasks[task as usize].vcpu;
        let cpu = guest.vcpus[v as usize].cpu;
        let token = TIMER | u64::from(g) << 24 | u64::from(task);
        out.timer(cpu, token, self.costs.hardirq);
    }

    /// The host's part of it is over.
    pub(super) fn timed(&mut self, g: u32, task: u32, cpu: CpuId, out: &mut Effects) {
        let guest = &mut self.guests[g as usize];
        if guest.dead {
            return;
        }
        let v = guest.tasks[task as usize].vcpu;
        let vcpu = &mut guest.vcpus[v as usize];
        vcpu.due.push(task);
        vcpu.interrupts += 1;
        out.notify_from(vcpu.thread, cpu);
    }

    /// A vCPU has seen which timers are due.
    pub(super) fn run_due(&mut self, g: u32, v: u32, out: &mut Effects) {
        let mut due = std::mem::take(&mut self.guests[g as usize].vcpus[v as usize].due);
        for task in due.drain(..) {
            self.wake(g, task, Activity::Work(Nanos::ZERO), v, By::Interrupt, out);
        }
        self.guests[g as usize].vcpus[v as usize].due = due;
    }
}
