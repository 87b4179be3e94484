//! What a vCPU does with its core.

use ostler_model::{CpuId, Nanos};

use super::tasks::By;
use super::ways::scaled;
use super::{BOOT, DISK, TIMER, Tenants};
use crate::guest::place::set;
use crate::guest::{Activity, Program, Segment, Then, Told};
use crate::net::Stage;
use crate::net::nic::TURN;
use crate::net::vhost::Word;
use crate::round::nanos;
use crate::work::{Effect, Effects, IoEvent, Next};

/// How long a guest's softirqs go on while tasks wait; then these have as long.
const SOFT_MAX: Nanos = Nanos::from_millis(2);

impl Tenants {
    pub(super) fn vcpu_next(
        &mut self,
        g: u32,
        v: u32,
        cpu: CpuId,
        now: Nanos,
        out: &mut Effects,
    ) -> Next {
        let wake = self.costs.vcpu_wake;
        let guest = &mut self.guests[g as usize];
        let vcpu = &mut guest.vcpus[v as usize];
        let slept = vcpu.told == Told::Sleep;
        vcpu.on = Some(cpu);
        let comes_up = std::mem::replace(&mut vcpu.cpu, cpu).0 == u32::MAX;
        set(&mut guest.placing.sets.preempted, v, false);
        if guest.dead {
            return Next::Sleep;
        }
        if guest.vcpus[v as usize].halted {
            return Next::Sleep;
        }
        if slept {
            let vcpu = &mut guest.vcpus[v as usize];
            if wake > Nanos::ZERO {
                vcpu.exits.push_front((wake, Then::Nothing));
            }
            vcpu.settled = self.costs.vcpu_sleep == Nanos::ZERO;
        }
        if comes_up && let Some(down) = &mut guest.down {
            *down -= 1;
            if *down == 0 {
                // Not before all have gone idle: on a guest's vCPUs and on cores, whoever has nothing yet takes what waits for others.
                out.alarm(now.saturating_add(self.costs.start), BOOT | u64::from(g));
            }
        }
        let next = loop {
            let vcpu = &mut self.guests[g as usize].vcpus[v as usize];
            if vcpu.halted {
                break (Told::Sleep, Next::Sleep);
            }
            if let Some((segment, left)) = &vcpu.segment {
                if *segment == Segment::Spin && vcpu.locked_by.is_none() {
                    vcpu.segment = None;
                } else if *left > Nanos::ZERO {
                    break (Told::Segment, Next::Run(*left));
                } else {
                    self.finish(g, v, cpu, now, out);
                }
            } else if !self.begin_segment(g, v, cpu, now, out)
                && let Some(next) = self.task_next(g, v, cpu, now, out)
            {
                break next;
            }
        };
        self.guests[g as usize].vcpus[v as usize].told = next.0;
        next.1
    }

    /// Interrupts, exits, softirqs, in this order. Says whether there was one.
    fn begin_segment(&mut self, g: u32, v: u32, cpu: CpuId, now: Nanos, out: &mut Effects) -> bool {
        let guest = &mut self.guests[g as usize];
        let vcpu = &mut guest.vcpus[v as usize];
        let told = vcpu.pending != 0
            || vcpu.rescheduled
            || vcpu.completed
            || !vcpu.blocks.is_empty()
            || !vcpu.due.is_empty();
        if told || vcpu.ticked {
            // Until a task runs.
            vcpu.ticks &= !vcpu.ticked;
            let tick = u64::from(vcpu.ticked) * self.costs.tick.0;
            let blocks = self.costs.block.0 * vcpu.blocks.len() as u64;
            let out = u64::from(std::mem::take(&mut vcpu.brought_out)) * self.costs.kick.0;
            let work = self.costs.interrupt.0 + tick + blocks + out;
            vcpu.segment = Some((Segment::Interrupt, Nanos(work)));
            return true;
        }
        if let Some((work, then)) = vcpu.exits.pop_front() {
            vcpu.segment = Some((Segment::Exit(then), work));
            return true;
        }
        if vcpu.load() == 0 {
            vcpu.tasks_turn = Nanos::ZERO;
        }
        if vcpu.polling != 0 && vcpu.tasks_turn == Nanos::ZERO {
            let queue = vcpu.polling.trailing_zeros();
            let number = guest.workers[queue as usize];
            let worker = &mut self.workers[number as usize];
            worker.sends.poll();
            let count = worker.vring.len().min(TURN);
            if count == 0 {
                vcpu.polling &= !(1 << queue);
                worker.interrupt_off = false;
                return true;
            }
            let mut batch = std::mem::take(&mut vcpu.batch);
            batch.extend(worker.vring.drain(..count));
            let kernel = guest.programs.iter().find(|p| p.program.serves());
            let kernel = kernel.and_then(|running| running.program.in_kernel().copied());
            let mut work = 0;
            for message in &batch {
                self.net.enter(now, *message, Stage::GuestSoftirq, g);
                let packets = self.net.message(*message).packets;
                let handoff = self.handoff(*message, cpu);
                let far = Nanos(scaled(handoff, packets));
                let far = self.is_far(*message, cpu).then_some(far);
                self.takes(*message, cpu, far, now);
                let mut cost = self.costs.guest_rx.0 + handoff.0;
                if let Some(service) = kernel {
                    let stream = &mut self.guests[g as usize].stream;
                    cost += self.costs.guest_tx.0 + service.draw(stream).0;
                }
                work += scaled(Nanos(cost), packets);
            }
            let vcpu = &mut self.guests[g as usize].vcpus[v as usize];
            vcpu.batch = batch;
            vcpu.segment = Some((Segment::Softirq(number), Nanos(work)));
            if !self.workers[number as usize].tap.is_empty() {
                self.rouse(number, Some(cpu), out);
            }
            return true;
        }
        false
    }

    /// The task to run, or nothing to do; `None` where something has come up meanwhile.
    fn task_next(
        &mut self,
        g: u32,
        v: u32,
        cpu: CpuId,
        now: Nanos,
        out: &mut Effects,
    ) -> Option<(Told, Next)> {
        let guest = &mut self.guests[g as usize];
        if let Some(task) = guest.vcpus[v as usize].current {
            // Where it goes is found now: whoever went before has left its vCPU.
            let goes =
                std::mem::take(&mut guest.tasks[task as usize].go) || v >= guest.vcpus_active;
            let to = if goes { guest.choose(task) } else { v };
            if to != v {
                guest.vcpus[v as usize].current = None;
                guest.enqueue(task, to);
                guest.note_idle(v);
                guest.note_idle(to);
                out.notify_from(guest.vcpus[to as usize].thread, cpu);
                return None;
            }
            if guest.tasks[task as usize].slice == Nanos::ZERO {
                if guest.vcpus[v as usize].queue.is_empty() {
                    guest.tasks[task as usize].slice = guest.slice;
                } else {
                    guest.requeue(v);
                }
            }
        }
        let current = guest.vcpus[v as usize].current.or_else(|| guest.pick(v));
        let current = match current {
            None if guest.pull(v) => guest.pick(v),
            current => current,
        };
        guest.note_idle(v);
        if current.is_some()
            && let Some(idle) = guest.relieves(v, now)
        {
            let exits = &mut guest.vcpus[v as usize].exits;
            exits.push_back((self.costs.ipi, Then::Ipi(idle, false)));
        }
        if self.costs.balances > Nanos::ZERO
            && current.is_some()
            && let Some(idle) = guest.kicks(v, now, self.costs.guest_tick)
        {
            let exits = &mut guest.vcpus[v as usize].exits;
            exits.push_back((self.costs.ipi, Then::Ipi(idle, false)));
            let balances = (self.costs.balances, Then::Nothing);
            guest.vcpus[idle as usize].exits.push_back(balances);
        }
        let Some(task) = current else {
            let settled = &mut guest.vcpus[v as usize].settled;
            if !std::mem::replace(settled, true) {
                let exit = (self.costs.vcpu_sleep, Then::Nothing);
                guest.vcpus[v as usize].exits.push_back(exit);
                return None;
            }
            let poll = guest.vcpus[v as usize].poll;
            if poll > Nanos::ZERO {
                return Some((Told::Poll, Next::Run(poll)));
            }
            self.keeps_tick(g, v, now, out);
            return Some((Told::Sleep, Next::Sleep));
        };
        guest.vcpus[v as usize].ticks = true;
        if self.spins(g, v) {
            return None;
        }
        let guest = &mut self.guests[g as usize];
        let entry = &guest.tasks[task as usize];
        let vcpu = &guest.vcpus[v as usize];
        let mut most = Nanos(u64::MAX);
        if !vcpu.queue.is_empty() {
            most = entry.slice;
        }
        if vcpu.polling != 0 {
            most = most.min(vcpu.tasks_turn);
        }
        match entry.activity {
            Activity::Work(Nanos(0)) | Activity::Blocked => {
                self.advance(g, task, v, cpu, now, out);
                None
            }
            Activity::Work(left) => Some((Told::Task(task, false), Next::Run(left.min(most)))),
            Activity::Spin(left) if left.min(most).0 < u64::MAX => {
                Some((Told::Task(task, true), Next::Run(left.min(most))))
            }
            Activity::Endless if most.0 < u64::MAX => {
                Some((Told::Task(task, false), Next::Run(most)))
            }
            Activity::Spin(_) => Some((Told::Task(task, true), Next::Spin)),
            Activity::Endless => Some((Told::Task(task, false), Next::Spin)),
        }
    }

    pub(super) fn vcpu_ran(
        &mut self,
        g: u32,
        v: u32,
        cpu: CpuId,
        work: Nanos,
        now: Nanos,
        out: &mut Effects,
    ) {
        let guest = &mut self.guests[g as usize];
        if guest.memory_waits > 0.0 {
            let waits = nanos(work.0 as f64 * guest.memory_waits);
            self.sockets.wait(self.ground.node(cpu), waits);
        }
        let halt_poll = guest.halt_poll;
        let vcpu = &mut guest.vcpus[v as usize];
        let accounts = &mut vcpu.accounts;
        match vcpu.told {
            Told::Sleep => {}
            Told::Poll => {
                accounts.polls.0 += work.0;
                vcpu.poll = vcpu.poll.saturating_sub(work);
            }
            Told::Segment => {
                vcpu.poll = halt_poll;
                let Some((segment, left)) = &mut vcpu.segment else {
                    // The guest has died in the middle of it.
                    accounts.interrupts.0 += work.0;
                    return;
                };
                *left = left.saturating_sub(work);
                let done = *left == Nanos::ZERO;
                match segment {
                    Segment::Exit(_) => accounts.exits.0 += work.0,
                    Segment::Interrupt => accounts.interrupts.0 += work.0,
                    Segment::Spin => accounts.locks.0 += work.0,
                    Segment::Softirq(_) => {
                        accounts.interrupts.0 += work.0;
                        vcpu.soft_spent.0 += work.0;
                        if vcpu.soft_spent >= SOFT_MAX {
                            vcpu.tasks_turn = std::mem::take(&mut vcpu.soft_spent);
                        }
                    }
                }
                if done {
                    self.finish(g, v, cpu, now, out);
                }
            }
            Told::Task(task, spins) => {
                vcpu.poll = halt_poll;
                vcpu.tasks_turn = vcpu.tasks_turn.saturating_sub(work);
                vcpu.soft_spent = vcpu.soft_spent.saturating_sub(work);
                if spins {
                    accounts.spins.0 += work.0;
                } else {
                    accounts.tasks.0 += work.0;
                }
                guest.charge(task, work);
                // What it spun before it was released isn't what it has to do since.
                let entry = &mut guest.tasks[task as usize];
                let over = match &mut entry.activity {
                    Activity::Work(left) if !spins => {
                        *left = left.saturating_sub(work);
                        *left == Nanos::ZERO
                    }
                    Activity::Spin(left) if left.0 < u64::MAX => {
                        *left = left.saturating_sub(work);
                        *left == Nanos::ZERO
                    }
                    _ => false,
                };
                if over {
                    self.advance(g, task, v, cpu, now, out);
                }
            }
        }
    }

    /// A vCPU has finished what it was in the middle of.
    fn finish(&mut self, g: u32, v: u32, cpu: CpuId, now: Nanos, out: &mut Effects) {
        let vcpu = &mut self.guests[g as usize].vcpus[v as usize];
        match vcpu.segment.take() {
            None => {}
            Some((Segment::Interrupt, _)) => {
                vcpu.polling |= std::mem::take(&mut vcpu.pending);
                vcpu.rescheduled = false;
                vcpu.ticked = false;
                if std::mem::take(&mut vcpu.completed) {
                    self.sees_sent_off(g, v);
                }
                let vcpu = &mut self.guests[g as usize].vcpus[v as usize];
                let mut blocks = std::mem::take(&mut vcpu.blocks);
                for task in blocks.drain(..) {
                    self.wake(g, task, Activity::Work(Nanos::ZERO), v, By::Interrupt, out);
                }
                self.guests[g as usize].vcpus[v as usize].blocks = blocks;
                self.run_due(g, v, out);
            }
            Some((Segment::Softirq(_), _)) => {
                let mut batch = std::mem::take(&mut vcpu.batch);
                for message in batch.drain(..) {
                    self.net.message_mut(message).cpu = cpu;
                    self.deliver(g, v, message, cpu, now, out);
                }
                self.guests[g as usize].vcpus[v as usize].batch = batch;
            }
            Some((Segment::Exit(then), _)) => self.exited(g, v, then, cpu, now, out),
            // Unless the lock has just been given back.
            Some((Segment::Spin, _)) => vcpu.halted = vcpu.locked_by.is_some(),
        }
    }

    /// A vCPU that was told so frees what its queues have sent.
    fn sees_sent_off(&mut self, g: u32, v: u32) {
        let guest = &self.guests[g as usize];
        let queues = guest.workers.iter().skip(v as usize);
        for number in queues.step_by(guest.vcpus_active as usize) {
            let worker = &mut self.workers[*number as usize];
            if worker.word == Word::Given {
                worker.word = Word::Kept;
                worker.sends.free();
            }
        }
    }

    fn exited(&mut self, g: u32, v: u32, then: Then, cpu: CpuId, now: Nanos, out: &mut Effects) {
        let guest = &mut self.guests[g as usize];
        let vcpu = &mut guest.vcpus[v as usize];
        vcpu.exit_count += u64::from(!matches!(then, Then::Nothing | Then::Unlock(_)));
        let task = vcpu.current.map_or(0, |task| u64::from(task) + 1);
        let io = |thread, arrives| Effect::Io {
            thread,
            event: IoEvent { task, arrives },
        };
        match then {
            Then::Nothing => {}
            Then::Unlock(target) => self.gives_back(g, v, target, cpu, out),
            Then::Kick(worker) => {
                out.0.push(io(vcpu.thread, false));
                self.workers[worker as usize].kicks += 1;
                self.rouse(worker, Some(cpu), out);
            }
            Then::Disk(number) => {
                out.0.push(io(vcpu.thread, false));
                let program = guest.tasks[number as usize].program as usize;
                let takes = match guest.programs[program].program {
                    Program::Files { disk, .. } => disk,
                    _ => self.costs.disk,
                };
                let token = DISK | u64::from(g) << 24 | u64::from(number);
                out.alarm(now.saturating_add(takes), token);
            }
            Then::Timer(task, after) => {
                let token = TIMER | u64::from(g) << 24 | u64::from(task);
                out.alarm(now.saturating_add(after), token);
            }
            Then::Ipi(to, holding) => {
                let target = &mut guest.vcpus[to as usize];
                target.rescheduled = true;
                let task = target.queue.first().map_or(0, |task| u64::from(*task) + 1);
                target.interrupt(task, cpu, out);
                if holding {
                    self.holds(g, v, to);
                }
            }
        }
    }

    /// A block of a task's disk has come.
    pub(super) fn block_came(&mut self, g: u32, task: u32, _now: Nanos, out: &mut Effects) {
        let guest = &mut self.guests[g as usize];
        if guest.dead {
            return;
        }
        // The queue's interrupt goes to the vCPU that asked.
        let v = guest.tasks[task as usize].vcpu % guest.vcpus_active;
        let vcpu = &mut guest.vcpus[v as usize];
        vcpu.blocks.push(task);
        vcpu.interrupts += 1;
        out.0.push(Effect::Io {
            thread: vcpu.thread,
            event: IoEvent {
                task: u64::from(task) + 1,
                arrives: true,
            },
        });
        out.notify(vcpu.thread);
    }
}
