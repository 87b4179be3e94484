//! The steps of tasks' programs, and how tasks wake each other.

use ostler_model::{CpuId, Nanos};

use super::Tenants;
use crate::guest::{Activity, Phase, Program, Then, Told};
use crate::net::vhost::{QDISC, VRING};
use crate::net::{Loss, Stage};
use crate::work::Effects;

/// Who wakes a task.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// Another one.
    Task(u32),
    /// What came for it on a socket.
    Socket,
    /// A disk's interrupt, or a timer's.
    Interrupt,
}

impl Tenants {
    /// A task begins.
    pub(super) fn start_task(&mut self, g: u32, task: u32, out: &mut Effects) {
        let guest = &mut self.guests[g as usize];
        let program = &guest.programs[guest.tasks[task as usize].program as usize].program;
        let alone = matches!(program, Program::Compute { .. } | Program::Disk { .. });
        let activity = match program {
            Program::Serve { .. } | Program::Files { .. } => return,
            Program::Compute { .. } | Program::Disk { .. } if guest.resting && alone => return,
            Program::Compute { .. } => Activity::Endless,
            Program::Disk { .. } => Activity::Work(self.costs.block),
            Program::Upkeep { work, .. } | Program::Agent { work, .. } => {
                Activity::Work((*work).max(Nanos(1)))
            }
            Program::Barrier { part, .. } => Activity::Work(part.draw(&mut guest.stream)),
            Program::Lock { think, .. } => Activity::Work(think.draw(&mut guest.stream)),
        };
        let entry = &mut guest.tasks[task as usize];
        entry.activity = activity;
        entry.phase = Phase::Think;
        let v = entry.vcpu % guest.vcpus_active;
        guest.enqueue(task, v);
        guest.note_idle(v);
        out.notify(guest.vcpus[v as usize].thread);
    }

    /// A task on its vCPU has done what it had to, or has spun for as long as it may.
    pub(super) fn advance(
        &mut self,
        g: u32,
        task: u32,
        v: u32,
        cpu: CpuId,
        now: Nanos,
        out: &mut Effects,
    ) {
        let guest = &mut self.guests[g as usize];
        let entry = &guest.tasks[task as usize];
        let running = &guest.programs[entry.program as usize];
        match (&running.program, entry.phase) {
            (Program::Serve { .. } | Program::Files { .. }, _) => {
                self.serve(g, task, v, cpu, now, out);
            }
            (Program::Compute { .. }, _) => {
                self.guests[g as usize].tasks[task as usize].activity = Activity::Endless;
            }
            (Program::Upkeep { .. } | Program::Agent { .. }, _) => self.keep_up(g, task, v, now),
            (Program::Disk { .. }, Phase::Think) => {
                let work = Nanos(self.costs.exit.0);
                guest.vcpus[v as usize]
                    .exits
                    .push_back((work, Then::Disk(task)));
                guest.tasks[task as usize].phase = Phase::Wait;
                self.block(g, task, v);
            }
            (Program::Disk { .. }, _) => {
                guest.done += 1;
                let entry = &mut guest.tasks[task as usize];
                entry.phase = Phase::Think;
                entry.activity = Activity::Work(self.costs.block);
                if guest.resting {
                    self.block(g, task, v);
                }
            }
            (Program::Barrier { .. } | Program::Lock { .. }, Phase::Wait) => {
                self.block(g, task, v);
            }
            (Program::Barrier { .. }, _) => self.arrive_at_barrier(g, task, v, cpu, out),
            (Program::Lock { .. }, Phase::Hold) => self.unlock(g, task, v, cpu, out),
            (Program::Lock { .. }, _) => self.lock(g, task, v, cpu),
        }
    }

    /// A task on its vCPU sleeps.
    pub(super) fn block(&mut self, g: u32, task: u32, v: u32) {
        let guest = &mut self.guests[g as usize];
        guest.tasks[task as usize].activity = Activity::Blocked;
        guest.vcpus[v as usize].current = None;
    }

    /// A task of a kind that answers: sends the answer, if it has one, and takes the next request.
    fn serve(&mut self, g: u32, task: u32, v: u32, cpu: CpuId, now: Nanos, out: &mut Effects) {
        let guest = &mut self.guests[g as usize];
        let entry = &mut guest.tasks[task as usize];
        let running = &mut guest.programs[entry.program as usize];
        if entry.phase == Phase::Wait {
            // Its file has come from the disk.
            let Program::Files { service, .. } = &running.program else {
                return;
            };
            entry.phase = Phase::Hold;
            let work = service.draw(&mut guest.stream).0 + self.costs.guest_tx.0;
            entry.begin(Nanos(work), self.costs.answered);
            return;
        }
        let number = entry.program as usize;
        if let Some(message) = entry.message.take() {
            self.respond(g, v, message, cpu, now, out);
            let entry = &mut self.guests[g as usize].tasks[task as usize];
            let then = std::mem::take(&mut entry.then);
            if then > Nanos::ZERO {
                entry.activity = Activity::Work(then);
                return;
            }
        }
        let guest = &mut self.guests[g as usize];
        let entry = &mut guest.tasks[task as usize];
        let running = &mut guest.programs[number];
        let next = entry.inbox.pop_front();
        let Some(message) = next.or_else(|| running.service.inbox.pop_front()) else {
            if self.costs.rest > Nanos::ZERO && !std::mem::replace(&mut entry.rests, true) {
                entry.activity = Activity::Work(self.costs.rest);
                return;
            }
            if !running.program.by_connection() {
                running.service.free.push(task);
            }
            entry.phase = Phase::Start;
            self.block(g, task, v);
            return;
        };
        entry.rests = false;
        entry.message = Some(message);
        entry.phase = Phase::Hold;
        if let Some(upkeep) = &mut guest.upkeep {
            upkeep.asked();
        }
        let mut wait = false;
        let service = match &running.program {
            Program::Files { files, service, .. } => {
                let file = guest.stream.below(*files);
                wait = !running.cache.ask(file, now);
                service.draw(&mut guest.stream)
            }
            Program::Serve { service, .. } => service.draw(&mut guest.stream),
            _ => Nanos::ZERO,
        };
        let packets = self.net.message(message).packets;
        let sending = super::ways::scaled(self.costs.guest_tx, packets);
        self.net.enter(now, message, Stage::Service, g);
        if wait {
            entry.phase = Phase::Wait;
            let work = Nanos(self.costs.block.0 + self.costs.exit.0);
            guest.vcpus[v as usize]
                .exits
                .push_back((work, Then::Disk(task)));
            self.block(g, task, v);
        } else {
            entry.begin(Nanos(service.0 + sending), self.costs.answered);
        }
    }

    /// A message comes out of a guest's softirq on a vCPU.
    pub(super) fn deliver(
        &mut self,
        g: u32,
        v: u32,
        message: u32,
        cpu: CpuId,
        now: Nanos,
        out: &mut Effects,
    ) {
        if self.net.message(message).acknowledges {
            self.net.take(now, message);
            return;
        }
        let guest = &mut self.guests[g as usize];
        let programs = &mut guest.programs;
        let Some(running) = programs.iter_mut().find(|r| r.program.serves()) else {
            // Routes lead to guests that answer.
            self.lose(message, Loss::Dead, now, out);
            return;
        };
        if running.program.in_kernel().is_some() {
            self.net.enter(now, message, Stage::Service, g);
            self.respond(g, v, message, cpu, now, out);
            return;
        }
        self.net.enter(now, message, Stage::Socket, g);
        let woken = if running.program.by_connection() {
            let task = running.first + self.net.message(message).flow % running.count.max(1);
            let entry = &mut guest.tasks[task as usize];
            entry.inbox.push_back(message);
            (entry.activity == Activity::Blocked).then_some(task)
        } else {
            running.service.inbox.push_back(message);
            running.service.free.pop()
        };
        self.will_acknowledge(g, message, now);
        if let Some(task) = woken {
            self.wake(g, task, Activity::Work(Nanos::ZERO), v, By::Socket, out);
        }
    }

    /// A guest's answer, or a packet that it sends on, goes to the transmit queue of the vCPU.
    fn respond(&mut self, g: u32, v: u32, message: u32, cpu: CpuId, now: Nanos, out: &mut Effects) {
        let guest = &mut self.guests[g as usize];
        let queue = if self.costs.driver.spreads {
            guest.sends_on(v, self.net.message(message).hash)
        } else {
            v % guest.queues_active
        };
        let number = guest.workers[queue as usize];
        let worker = &mut self.workers[number as usize];
        if worker.tx.len() >= VRING + QDISC {
            self.lose(message, Loss::Transmit, now, out);
            return;
        }
        self.net.message_mut(message).cpu = cpu;
        self.net.enter(now, message, Stage::TxRing, number);
        worker.tx.push_back(message);
        worker.sends.send();
        if !std::mem::replace(&mut worker.kick_off, true) {
            let exit = (self.costs.exit, Then::Kick(number));
            guest.vcpus[v as usize].exits.push_back(exit);
        }
    }

    /// A task is woken on a vCPU, by another task or by an interrupt.
    pub(super) fn wake(
        &mut self,
        g: u32,
        task: u32,
        activity: Activity,
        v: u32,
        by: By,
        out: &mut Effects,
    ) {
        let guest = &mut self.guests[g as usize];
        let entry = &mut guest.tasks[task as usize];
        entry.activity = activity;
        entry.woken += 1;
        if let By::Task(waker) = by {
            guest.placing.woke(waker, task);
        }
        let to = guest.choose(task);
        let mut work = self.costs.choose[guest.placing.rule as usize];
        let was_idle = guest.vcpus[to as usize].load() == 0;
        guest.enqueue(task, to);
        guest.note_idle(to);
        let target = &guest.vcpus[to as usize];
        let thread = target.thread;
        let mut then = Then::Nothing;
        if to != v {
            // One that spins with nothing to do sees it by itself; one that is busy sees it when the slice is over.
            let polls = target.on.is_some() && target.told == Told::Poll;
            if was_idle && !polls {
                work.0 += self.costs.ipi.0;
                then = Then::Ipi(to, by == By::Socket);
            } else if target.on.is_some() {
                out.notify(thread);
            }
        }
        let exits = &mut guest.vcpus[v as usize].exits;
        match exits.back_mut() {
            Some((before, Then::Nothing)) => {
                before.0 += work.0;
                if then != Then::Nothing {
                    exits.back_mut().into_iter().for_each(|last| last.1 = then);
                }
            }
            _ => exits.push_back((work, then)),
        }
    }

    /// A task that waits is to go on, with so much work: it spins, or it sleeps.
    fn release(
        &mut self,
        g: u32,
        task: u32,
        work: Nanos,
        phase: Phase,
        by: (u32, u32),
        out: &mut Effects,
    ) {
        let guest = &mut self.guests[g as usize];
        let entry = &mut guest.tasks[task as usize];
        entry.phase = phase;
        let activity = Activity::Work(Nanos(work.0.max(1)));
        if entry.activity == Activity::Blocked {
            self.wake(g, task, activity, by.0, By::Task(by.1), out);
            return;
        }
        entry.activity = activity;
        let vcpu = &guest.vcpus[entry.vcpu as usize];
        if vcpu.on.is_some() && vcpu.current == Some(task) {
            out.notify(vcpu.thread);
        }
    }

    /// A task on its vCPU waits for others: it spins for a while, or sleeps at once.
    fn wait(&mut self, g: u32, task: u32, v: u32, spin: Nanos) {
        let entry = &mut self.guests[g as usize].tasks[task as usize];
        entry.phase = Phase::Wait;
        if spin == Nanos::ZERO {
            self.block(g, task, v);
        } else {
            entry.activity = Activity::Spin(spin);
        }
    }

    fn arrive_at_barrier(&mut self, g: u32, task: u32, v: u32, cpu: CpuId, out: &mut Effects) {
        let guest = &mut self.guests[g as usize];
        let number = guest.tasks[task as usize].program as usize;
        let running = &mut guest.programs[number];
        let Program::Barrier { part, spin, .. } = &running.program else {
            return;
        };
        let (part, spin) = (*part, *spin);
        if running.barrier.waiting.len() as u32 + 1 < running.count {
            running.barrier.waiting.push(task);
            self.wait(g, task, v, spin);
            return;
        }
        guest.done += 1;
        let mut waiting = std::mem::take(&mut running.barrier.waiting);
        for other in waiting.drain(..) {
            let guest = &mut self.guests[g as usize];
            let at = guest.tasks[other as usize].vcpu as usize;
            let there = guest_cpu(guest, at);
            let work = part.draw(&mut guest.stream).0 + self.line(cpu, there).0;
            self.release(g, other, Nanos(work), Phase::Think, (v, task), out);
        }
        let guest = &mut self.guests[g as usize];
        guest.programs[number].barrier.waiting = waiting;
        let work = part.draw(&mut guest.stream).0.max(1);
        guest.tasks[task as usize].activity = Activity::Work(Nanos(work));
        guest.tasks[task as usize].phase = Phase::Think;
    }

    /// What a cache line takes from one core to another.
    fn line(&self, from: CpuId, to: CpuId) -> Nanos {
        self.costs.line[self.ground.distance(from, to) as usize]
    }

    fn lock(&mut self, g: u32, task: u32, v: u32, cpu: CpuId) {
        let guest = &mut self.guests[g as usize];
        let entry = &mut guest.tasks[task as usize];
        let running = &mut guest.programs[entry.program as usize];
        let Program::Lock {
            hold, lines, spin, ..
        } = &running.program
        else {
            return;
        };
        let (hold, lines, spin) = (*hold, u64::from(*lines), *spin);
        let at = entry.number as usize % running.locks.len();
        let lock = &mut running.locks[at];
        if lock.holder.is_some() {
            lock.waiters.push_back(task);
            self.wait(g, task, v, spin);
            return;
        }
        lock.holder = Some(task);
        entry.phase = Phase::Hold;
        let from = std::mem::replace(&mut lock.cpu, cpu);
        let hold = hold.draw(&mut guest.stream).0;
        // Nobody had it before.
        let line = if from.0 == u32::MAX {
            0
        } else {
            self.line(from, cpu).0
        };
        let work = (hold + lines * line).max(1);
        self.guests[g as usize].tasks[task as usize].activity = Activity::Work(Nanos(work));
    }

    fn unlock(&mut self, g: u32, task: u32, v: u32, cpu: CpuId, out: &mut Effects) {
        let guest = &mut self.guests[g as usize];
        guest.done += 1;
        let entry = &mut guest.tasks[task as usize];
        let running = &mut guest.programs[entry.program as usize];
        let Program::Lock {
            hold, think, lines, ..
        } = &running.program
        else {
            return;
        };
        let (hold, lines) = (*hold, u64::from(*lines));
        entry.phase = Phase::Think;
        entry.activity = Activity::Work(Nanos(think.draw(&mut guest.stream).0.max(1)));
        let at = entry.number as usize % running.locks.len();
        let lock = &mut running.locks[at];
        lock.cpu = cpu;
        lock.holder = lock.waiters.pop_front();
        let Some(next) = lock.holder else {
            return;
        };
        let to = guest_cpu(guest, guest.tasks[next as usize].vcpu as usize);
        let guest = &mut self.guests[g as usize];
        let hold = hold.draw(&mut guest.stream).0;
        let work = Nanos(hold + lines * self.line(cpu, to).0);
        self.release(g, next, work, Phase::Hold, (v, task), out);
        let guest = &mut self.guests[g as usize];
        let to = guest_cpu(guest, guest.tasks[next as usize].vcpu as usize);
        let program = guest.tasks[next as usize].program as usize;
        guest.programs[program].locks[at].cpu = to;
    }
}

/// The core that a vCPU has, or had last.
fn guest_cpu(guest: &crate::guest::Guest, v: usize) -> CpuId {
    guest.vcpus[v].cpu
}
