//! What vhost workers do for their guests ([`crate::net::vhost`]): what a tap holds into the guest's ring, what the guest sends to the tap, and telling either.

use ostler_model::{CpuId, Nanos};

use super::Tenants;
use super::ways::scaled;
use crate::ftrace::Seen;
use crate::net::Stage;
use crate::net::vhost::{Doing, Word};
use crate::work::{Effect, Effects, Next};

impl Tenants {
    /// A worker has something to do. Whether that wakes it.
    pub(super) fn rouse(&mut self, worker: u32, cpu: Option<CpuId>, out: &mut Effects) -> bool {
        let worker = &mut self.workers[worker as usize];
        let wakes = !std::mem::replace(&mut worker.awake, true);
        if wakes {
            worker.settling = self.costs.vhost_sleep;
            out.0.push(Effect::Notify {
                thread: worker.thread,
                from: cpu,
            });
        }
        wakes
    }

    pub(super) fn vhost_next(&mut self, number: u32, cpu: CpuId, now: Nanos) -> Next {
        let one_at_a_time = self.costs.one_at_a_time();
        let worker = &mut self.workers[number as usize];
        worker.cpu = cpu;
        if worker.doing == Doing::Nothing {
            match worker.take(one_at_a_time) {
                Doing::Nothing => {
                    worker.kick_off = false;
                    worker.left = std::mem::take(&mut worker.settling);
                    if worker.left > Nanos::ZERO {
                        worker.doing = Doing::Settle;
                        return Next::Run(worker.left);
                    }
                    worker.awake = false;
                    return Next::Sleep;
                }
                Doing::Transmit => worker.kick_off = true,
                _ => {}
            }
            self.vhost_begin(number, 0, cpu, now);
        }
        Next::Run(self.workers[number as usize].left)
    }

    /// A worker turns to what it has taken, but for the first so many, which it has seen to.
    fn vhost_begin(&mut self, number: u32, seen: usize, cpu: CpuId, now: Nanos) {
        let worker = &mut self.workers[number as usize];
        let (cost, stage) = match worker.doing {
            Doing::Receive => (self.costs.vhost_rx, Stage::VhostRx),
            _ if self.costs.one_at_a_time() => (self.costs.vhost_take, Stage::VhostTx),
            _ => (self.costs.vhost_tx, Stage::VhostTx),
        };
        let batch = std::mem::take(&mut worker.batch);
        let mut work = 0;
        for message in batch.iter().skip(seen) {
            self.net.enter(now, *message, stage, number);
            let packets = self.net.message(*message).packets;
            let penalty = scaled(self.handoff(*message, cpu), packets);
            let far = self.is_far(*message, cpu).then_some(Nanos(penalty));
            self.takes(*message, cpu, far, now);
            work += scaled(cost, packets) + penalty;
        }
        let worker = &mut self.workers[number as usize];
        worker.batch = batch;
        // Work of nothing is no work that a host could do.
        worker.left = Nanos(work.max(1));
    }

    /// Takes another message of the direction that a worker is at, if it takes them one at a time and there is one.
    fn vhost_goes_on(&mut self, number: u32, cpu: CpuId, now: Nanos) -> bool {
        let worker = &mut self.workers[number as usize];
        let seen = worker.batch.len();
        let goes_on = self.costs.one_at_a_time() && worker.take_one().is_some();
        if goes_on {
            self.vhost_begin(number, seen, cpu, now);
        }
        goes_on
    }

    /// A worker turns to what comes before the first that it has taken leaves, or after that.
    fn vhost_turns(&mut self, number: u32, doing: Doing) {
        let worker = &mut self.workers[number as usize];
        let cost = match doing {
            Doing::Send => self.costs.vhost_tx,
            _ => self.costs.vhost_sent,
        };
        let packets = worker
            .batch
            .front()
            .map_or(0, |message| self.net.message(*message).packets);
        worker.doing = doing;
        worker.left = Nanos(scaled(cost, packets).max(1));
    }

    pub(super) fn vhost_ran(
        &mut self,
        number: u32,
        cpu: CpuId,
        work: Nanos,
        now: Nanos,
        out: &mut Effects,
    ) {
        let worker = &mut self.workers[number as usize];
        worker.ran = worker.ran.saturating_add(work);
        worker.left = worker.left.saturating_sub(work);
        if worker.left > Nanos::ZERO {
            return;
        }
        let (doing, more) = (worker.doing, !worker.batch.is_empty());
        match doing {
            Doing::Nothing => {}
            Doing::Settle => worker.doing = Doing::Nothing,
            Doing::Done => self.vhost_sent(number, cpu, now, out),
            Doing::Receive => {
                if !self.vhost_goes_on(number, cpu, now) {
                    self.vhost_received(number, cpu, now, out);
                }
            }
            Doing::Transmit => {
                if !self.vhost_goes_on(number, cpu, now) {
                    self.vhost_has_taken(number, cpu, now, out);
                }
            }
            Doing::Send => {
                self.vhost_turns(number, Doing::Sent);
                self.vhost_sends(number, cpu, now, out);
            }
            Doing::Sent if more => self.vhost_turns(number, Doing::Send),
            Doing::Sent => self.vhost_flushes(number, cpu, now, out),
        }
    }

    /// What a worker has copied is its guest's.
    fn vhost_received(&mut self, number: u32, cpu: CpuId, now: Nanos, out: &mut Effects) {
        let worker = &mut self.workers[number as usize];
        worker.doing = Doing::Nothing;
        for message in worker.batch.drain(..) {
            self.net.message_mut(message).cpu = cpu;
            self.net.enter(now, message, Stage::Vring, number);
            worker.vring.push_back(message);
        }
        if !worker.interrupt_off {
            self.ring(number, cpu, now, out);
        }
    }

    /// A worker has taken what it is to send: all of it leaves at once, or one after the other.
    fn vhost_has_taken(&mut self, number: u32, cpu: CpuId, now: Nanos, out: &mut Effects) {
        if self.costs.one_at_a_time() {
            self.vhost_turns(number, Doing::Send);
            return;
        }
        while self.vhost_sends(number, cpu, now, out) {}
        self.vhost_flushes(number, cpu, now, out);
    }

    /// All that a worker had taken has left: its guest is to see that, and to be told if it wants to be.
    fn vhost_flushes(&mut self, number: u32, cpu: CpuId, now: Nanos, out: &mut Effects) {
        let worker = &mut self.workers[number as usize];
        let gone = std::mem::take(&mut worker.gone);
        worker.left = self.costs.vhost_flush;
        if self.costs.driver.completes && worker.sends.used(gone) {
            worker.left.0 += self.costs.vhost_done.0;
            worker.word = Word::Owed;
        }
        worker.doing = Doing::Done;
        if worker.left == Nanos::ZERO {
            self.vhost_sent(number, cpu, now, out);
        }
    }

    /// And does.
    fn vhost_sent(&mut self, number: u32, cpu: CpuId, now: Nanos, out: &mut Effects) {
        let worker = &mut self.workers[number as usize];
        worker.doing = Doing::Nothing;
        worker.kick_off = !worker.tx.is_empty();
        if worker.word == Word::Owed {
            worker.word = Word::Kept;
            self.completed(number, cpu, now, out);
        }
    }

    /// The first message that a worker has taken leaves its hands, for the tap; false: there is none.
    fn vhost_sends(&mut self, number: u32, cpu: CpuId, now: Nanos, out: &mut Effects) -> bool {
        let worker = &mut self.workers[number as usize];
        let Some(message) = worker.batch.pop_front() else {
            return false;
        };
        worker.gone += 1;
        let queue = worker.queue;
        self.net.message_mut(message).cpu = cpu;
        let sent = *self.net.message(message);
        self.learned.sent(sent.flow, sent.hop, queue, now);
        self.transmit(message, queue, cpu, now, out);
        true
    }

    /// A guest is told that of what it had to send on a queue as much is sent as it wants to be told of (`napi_tx` of drivers/net/virtio_net.c; the interrupt is the queue's, as that of what it receives).
    fn completed(&mut self, number: u32, cpu: CpuId, now: Nanos, out: &mut Effects) {
        let worker = &self.workers[number as usize];
        let (g, queue) = (worker.guest, worker.queue);
        if self.faults.loses_guest_interrupt(g) {
            return;
        }
        let guest = &mut self.guests[g as usize];
        let v = queue % guest.vcpus_active;
        let vcpu = &mut guest.vcpus[v as usize];
        if guest.dead {
            return;
        }
        let worker = &mut self.workers[number as usize];
        worker.word = Word::Given;
        if std::mem::replace(&mut vcpu.completed, true) {
            return;
        }
        worker.interrupts += 1;
        worker.tells(
            self.costs.vhost_tell,
            vcpu.sleeps(),
            self.costs.vhost_tell_wakes,
        );
        if let Some(tracer) = out.tracer() {
            tracer.see(now, cpu, Seen::Rings);
        }
        let task = vcpu.current.map_or(0, |task| u64::from(task) + 1);
        vcpu.interrupt(task, cpu, out);
    }

    /// A guest is told that its queue has something.
    fn ring(&mut self, number: u32, cpu: CpuId, now: Nanos, out: &mut Effects) {
        if self
            .faults
            .loses_guest_interrupt(self.workers[number as usize].guest)
        {
            // The queue isn't masked: the next message brings the next interrupt.
            return;
        }
        let worker = &mut self.workers[number as usize];
        worker.interrupt_off = true;
        worker.interrupts += 1;
        let guest = &mut self.guests[worker.guest as usize];
        let v = worker.queue % guest.vcpus_active;
        let vcpu = &mut guest.vcpus[v as usize];
        vcpu.pending |= 1 << worker.queue;
        worker.tells(
            self.costs.vhost_tell,
            vcpu.sleeps(),
            self.costs.vhost_tell_wakes,
        );
        if let Some(tracer) = out.tracer() {
            tracer.see(now, cpu, Seen::Rings);
        }
        let task = vcpu.current.map_or(0, |task| u64::from(task) + 1);
        vcpu.interrupt(task, cpu, out);
    }
}
