//! Messages from stage to stage: NIC, softirq, tap, vhost worker, and out again.

use ostler_model::{CpuId, Nanos};

use super::{ACK, AGAIN, END, HARD, MODERATION, ROOM, SOFT, Tenants};
use crate::ftrace::Seen;
use crate::load::PACKETS;
use crate::load::connections::{Connections, Lost};
use crate::load::end::Request;
use crate::net::nic::{Napi, NicSpec, TURN, WATCHDOG};
use crate::net::vhost::TAP;
use crate::net::{Loss, Stage};
use crate::path::Distance;
use crate::work::Effects;

/// A cost for so many 1024ths of a packet.
pub(super) fn scaled(cost: Nanos, packets: u32) -> u64 {
    (u128::from(cost.0) * u128::from(packets) / 1024) as u64
}

impl Tenants {
    /// A client's request is due: what it sends by then is at the NIC now.
    pub(super) fn arrive(&mut self, client: usize, now: Nanos, out: &mut Effects) {
        let due = now.saturating_sub(self.costs.wire);
        let entry = &mut self.clients[client];
        let record = entry.record.map(|record| record as usize);
        if let Some(record) = record {
            self.records[record].due(due);
        }
        let deadline = entry.deadline();
        let Some(connections) = &mut entry.connections else {
            let flow = entry.flow();
            self.next_arrival(client, out);
            self.send(client, flow, due, 1, now, out);
            return;
        };
        if !connections.due(due, deadline)
            && let Some(record) = record
        {
            self.records[record].dropped(due);
        }
        self.next_arrival(client, out);
        self.send_waiting(client, now, out);
    }

    /// Room for a request has come back to a client.
    pub(super) fn comes_free(&mut self, client: usize, now: Nanos, out: &mut Effects) {
        if let Some(connections) = &mut self.clients[client].connections {
            connections.came();
        }
        self.send_waiting(client, now, out);
    }

    /// A client sends what its connections have room for, or has its thread see to that.
    fn send_waiting(&mut self, client: usize, now: Nanos, out: &mut Effects) {
        if self.costs.end.there() {
            self.wake_client(client, now, out);
            return;
        }
        let wire = self.costs.wire;
        while let Some(connections) = &mut self.clients[client].connections {
            let Some((due, flow)) = connections.take(now.saturating_sub(wire)) else {
                if let Some(at) = connections.wake() {
                    out.alarm(at.saturating_add(wire), ROOM | client as u64);
                }
                return;
            };
            self.send(client, flow, due, 1, now, out);
        }
    }

    /// Answers that no request has acknowledged by now are, by packets of their own.
    pub(super) fn acknowledge(&mut self, client: usize, now: Nanos, out: &mut Effects) {
        let wire = self.costs.wire;
        let Some(acks) = &mut self.clients[client].acks else {
            return;
        };
        let (flows, next) = acks.look(now.saturating_sub(wire));
        if let Some(at) = next {
            out.alarm(at.saturating_add(wire), ACK | client as u64);
        }
        for flow in flows {
            let message = self.net.send(now, client as u32, flow, now, PACKETS);
            self.net.message_mut(message).acknowledges = true;
            self.comes_in(message, now, out);
        }
    }

    /// What a client has lost goes again.
    pub(super) fn send_again(&mut self, client: usize, now: Nanos, out: &mut Effects) {
        let connections = self.clients[client].connections.as_mut();
        if let Some(lost) = connections.and_then(|connections| connections.again(now)) {
            self.send(client, lost.flow, lost.due, lost.sent + 1, now, out);
        }
    }

    /// A request arrives at the NIC, or its client's thread is to send it; `times`: how often it has been sent, with this.
    fn send(
        &mut self,
        client: usize,
        flow: u32,
        due: Nanos,
        times: u32,
        now: Nanos,
        out: &mut Effects,
    ) {
        if self.costs.end.there() {
            let request = Request { due, flow, times };
            self.clients[client].end.requests.push_back(request);
            self.wake_client(client, now, out);
        } else {
            let sent = now.saturating_sub(self.costs.wire);
            let message = self.sets_out(client, Request { due, flow, times }, sent, now);
            self.comes_in(message, now, out);
        }
    }

    /// A client turns to a request at a time, and sends it.
    pub(super) fn sets_out(
        &mut self,
        client: usize,
        request: Request,
        turns: Nanos,
        now: Nanos,
    ) -> u32 {
        let Request { due, flow, times } = request;
        let entry = &mut self.clients[client];
        if let Some(acks) = &mut entry.acks {
            acks.sends(turns, flow);
        }
        if times == 1 {
            entry.books.sent += 1;
            if let Some(record) = entry.record {
                let delay = turns.saturating_sub(due);
                self.records[record as usize].sent(due, delay);
            }
        }
        let packets = entry.spec.packets;
        let message = self.net.send(now, client as u32, flow, due, packets);
        self.net.message_mut(message).times = times;
        message
    }

    /// A message comes over the wire.
    pub(super) fn comes_in(&mut self, message: u32, now: Nanos, out: &mut Effects) {
        let (load, hash) = {
            let message = self.net.message(message);
            (message.load, message.hash)
        };
        let queue = self.nic.queue(hash);
        self.flows.count(queue, load, hash, None);
        self.offer(queue, message, Loss::Ring, None, now, out);
    }

    /// A message is lost. Who has it on a connection sends the request again.
    pub(super) fn lose(&mut self, message: u32, loss: Loss, now: Nanos, out: &mut Effects) {
        let known = *self.net.message(message);
        if known.acknowledges {
            // The next packet acknowledges all before it.
            self.net.lose(now, message, loss);
            return;
        }
        let client = &mut self.clients[known.load as usize];
        if let Some(connections) = &mut client.connections {
            let request = Lost {
                flow: known.flow,
                due: known.due,
                sent: known.times,
            };
            let at = connections.lose(now, request);
            out.alarm(at, AGAIN | u64::from(known.load));
        } else {
            client.books.lost += 1;
            client.unanswered(known.due);
            if let Some(record) = client.record {
                self.records[record as usize].ended(known.due, None);
            }
        }
        self.net.lose(now, message, loss);
    }

    /// A message for a poller; `from` is the core that hands it over, `None` for the wire.
    fn offer(
        &mut self,
        poller: u32,
        message: u32,
        loss: Loss,
        from: Option<CpuId>,
        now: Nanos,
        out: &mut Effects,
    ) {
        let entry = &mut self.nic.pollers[poller as usize];
        if entry.ring.len() >= entry.limit {
            self.lose(message, loss, now, out);
            return;
        }
        entry.ring.push_back(message);
        let masked =
            entry.napi != Napi::Idle && !(self.nic.spec.echoes && poller < self.nic.queue_count());
        let entry = &self.nic.pollers[poller as usize];
        let idle = !masked && !entry.alarm;
        self.net.enter(now, message, Stage::Ring, poller);
        if idle && from == Some(self.nic.pollers[poller as usize].cpu) {
            // The same core: a softirq, and nobody to interrupt.
            self.begin_poll(poller, now, out);
        } else if idle {
            self.raise(poller, false, now, out);
        }
    }

    /// A poller's interrupt, as soon as the moderation lets it; where it is the echo of the one before none follows.
    fn raise(&mut self, poller: u32, echo: bool, now: Nanos, out: &mut Effects) {
        let queues = self.nic.queue_count();
        let NicSpec {
            moderation, echoes, ..
        } = self.nic.spec;
        let entry = &mut self.nic.pollers[poller as usize];
        if poller < queues {
            let earliest = entry.raised.map(|at| at.saturating_add(moderation));
            if let Some(at) = earliest.filter(|at| *at > now) {
                entry.alarm = true;
                out.alarm(at, MODERATION | u64::from(poller));
                return;
            }
            entry.cpu = self.nic.steering[poller as usize].irq;
            if self.faults.loses_nic_interrupt() {
                entry.alarm = true;
                out.alarm(now.saturating_add(WATCHDOG), MODERATION | u64::from(poller));
                return;
            }
        }
        entry.napi.raise();
        // Where there are echoes the alarm is what lets no other come: once it is over, the next one may at once.
        if poller >= queues || !echoes {
            entry.raised = Some(now);
        } else if !echo {
            entry.alarm = true;
            let over = now.saturating_add(moderation);
            out.alarm(over, MODERATION | u64::from(poller));
        }
        entry.interrupts += 1;
        out.interrupt(entry.cpu, HARD | u64::from(poller), self.costs.hardirq);
    }

    /// The moderation time, or the watchdog's, is over.
    pub(super) fn alarmed(&mut self, poller: u32, now: Nanos, out: &mut Effects) {
        let echo = self.nic.spec.echoes;
        let entry = &mut self.nic.pollers[poller as usize];
        entry.alarm = false;
        if echo || (entry.napi == Napi::Idle && !entry.ring.is_empty()) {
            self.raise(poller, echo, now, out);
        }
    }

    /// A poller's interrupt is over, and its softirq follows; where that is at it already it looks once more.
    pub(super) fn begin_poll(&mut self, poller: u32, now: Nanos, out: &mut Effects) {
        let queues = self.nic.queue_count();
        let entry = &mut self.nic.pollers[poller as usize];
        entry.fresh = poller < queues;
        if entry.napi.polls() {
            return;
        }
        if let Some(work) = self.poll(poller, Nanos::ZERO, now) {
            let cpu = self.nic.pollers[poller as usize].cpu;
            out.softirq(cpu, SOFT | u64::from(poller), work);
        }
    }

    /// A softirq begins a turn, and has so much to do besides. How much it does; `None`: it is over.
    fn poll(&mut self, poller: u32, besides: Nanos, now: Nanos) -> Option<Nanos> {
        let queue = (poller < self.nic.queue_count()).then_some(poller as usize);
        let steered = queue.is_some_and(|queue| !self.nic.steering[queue].rps.is_empty());
        let one_at_a_time = self.costs.one_at_a_time();
        let entry = &mut self.nic.pollers[poller as usize];
        let cpu = entry.cpu;
        let mut batch = std::mem::take(&mut entry.batch);
        let turn = if one_at_a_time { 1 } else { TURN };
        let count = entry.ring.len().min(turn);
        batch.extend(entry.ring.drain(..count));
        let fresh = std::mem::take(&mut entry.fresh);
        // Where packets go up one by one, a poll that finds none takes next to nothing, and what it takes beside them comes after the last.
        let mut work = besides.0;
        if one_at_a_time {
            entry.ends |= fresh && !batch.is_empty();
        } else if fresh {
            work += self.costs.poll.0;
        }
        for message in &batch {
            self.net.enter(now, *message, Stage::Softirq, poller);
            let (packets, asks) = {
                let message = self.net.message(*message);
                (message.packets, !message.acknowledges)
            };
            let (cost, penalty, far) = if queue.is_some() {
                let far = self.ground.node(cpu) != self.nic.spec.node;
                let penalty = if far { self.costs.nic_far } else { Nanos::ZERO };
                let penalty = self.crowded(penalty, cpu);
                let cost = if steered {
                    self.costs.steer
                } else if asks {
                    self.costs.softirq
                } else {
                    self.costs.softirq_alone()
                };
                (cost, penalty, far)
            } else {
                let rest = self.costs.softirq.saturating_sub(self.costs.steer);
                (
                    rest,
                    self.handoff(*message, cpu),
                    self.is_far(*message, cpu),
                )
            };
            let penalty = scaled(penalty, packets);
            self.takes(*message, cpu, far.then_some(Nanos(penalty)), now);
            work += scaled(cost, packets) + penalty;
        }
        let entry = &mut self.nic.pollers[poller as usize];
        // To find nothing takes its time, too.
        let goes_on = fresh || !batch.is_empty() || besides > Nanos::ZERO;
        if !goes_on {
            entry.napi = Napi::Idle;
        }
        entry.batch = batch;
        goes_on.then_some(Nanos(work))
    }

    /// A softirq has finished a turn on a core. How much it does in its next, where that is of the same poll.
    pub(super) fn polled(
        &mut self,
        poller: u32,
        cpu: CpuId,
        now: Nanos,
        out: &mut Effects,
    ) -> Option<Nanos> {
        let mut batch = std::mem::take(&mut self.nic.pollers[poller as usize].batch);
        let queue = (poller < self.nic.queue_count()).then_some(poller as usize);
        let mut woken = 0;
        for message in batch.drain(..) {
            let hash = {
                let message = self.net.message_mut(message);
                message.cpu = cpu;
                message.hash
            };
            let rps = queue.map_or(&[][..], |queue| &self.nic.steering[queue].rps);
            // Not by the digits that have chosen the queue.
            let target = rps.get((hash >> 8) as usize % rps.len().max(1)).copied();
            match target {
                Some(target) => {
                    let backlog = self.nic.backlog(target);
                    self.offer(backlog, message, Loss::Backlog, Some(cpu), now, out);
                }
                None => woken += u64::from(self.tap(message, cpu, now, out)),
            }
        }
        let mut besides = Nanos(self.costs.tap_wake.0 * woken);
        let entry = &mut self.nic.pollers[poller as usize];
        entry.batch = batch;
        if entry.ring.is_empty() && std::mem::take(&mut entry.ends) {
            besides.0 += self.costs.poll.0;
        }
        let work = self.poll(poller, besides, now)?;
        if self.costs.one_at_a_time() {
            return Some(work);
        }
        let cpu = self.nic.pollers[poller as usize].cpu;
        out.softirq(cpu, SOFT | u64::from(poller), work);
        None
    }

    /// A penalty on a core whose node's memory is crowded.
    fn crowded(&self, penalty: Nanos, cpu: CpuId) -> Nanos {
        Nanos(scaled(penalty, self.crowds.pressure(self.ground.node(cpu))))
    }

    /// A stage takes up a message on a core, and waits for it so long where it comes from another node.
    pub(super) fn takes(&mut self, message: u32, cpu: CpuId, far: Option<Nanos>, now: Nanos) {
        let node = self.ground.node(cpu);
        self.sockets.take(node, far);
        if far.is_some() {
            let message = self.net.message(message);
            let guest = self.clients[message.load as usize].spec.route[message.hop as usize];
            self.crowds
                .take(node, guest, now, &self.guests, &self.ground);
        }
    }

    /// What a message costs on a core for having been on another before.
    pub(super) fn handoff(&self, message: u32, cpu: CpuId) -> Nanos {
        let distance = self.ground.distance(self.net.message(message).cpu, cpu);
        let penalty = self.costs.handoff[distance as usize];
        if distance == Distance::Far {
            self.crowded(penalty, cpu)
        } else {
            penalty
        }
    }

    /// Whether a message was on another node before.
    pub(super) fn is_far(&self, message: u32, cpu: CpuId) -> bool {
        self.ground.distance(self.net.message(message).cpu, cpu) == Distance::Far
    }

    /// A message passes the tap of the guest that it is for. Whether that wakes its worker.
    pub(super) fn tap(&mut self, message: u32, cpu: CpuId, now: Nanos, out: &mut Effects) -> bool {
        let (load, hop, hash, flow) = {
            let message = self.net.message(message);
            (message.load, message.hop, message.hash, message.flow)
        };
        let number = self.clients[load as usize].spec.route[hop as usize];
        let guest = &self.guests[number as usize];
        if guest.dead {
            self.lose(message, Loss::Dead, now, out);
            return false;
        }
        let queues = guest.queues_active.max(1);
        let known = self.learned.queue(flow, hop, queues, now);
        let queue = known.unwrap_or((hash >> 16) % queues);
        let worker = guest.workers[queue as usize];
        if self.workers[worker as usize].tap.len() >= TAP {
            self.lose(message, Loss::Tap, now, out);
            return false;
        }
        self.flows
            .count(self.nic.queue(hash), load, hash, Some(hop));
        self.net.message_mut(message).tapped = now;
        if let Some(tracer) = out.tracer() {
            let asks = !self.net.message(message).acknowledges;
            let guest = number;
            tracer.see(now, cpu, Seen::Taps { guest, queue, asks });
        }
        self.net.enter(now, message, Stage::Tap, worker);
        self.workers[worker as usize].tap.push_back(message);
        self.rouse(worker, Some(cpu), out)
    }

    /// A message leaves a queue of a guest's tap: for the next guest of its route, or for its client.
    pub(super) fn transmit(
        &mut self,
        message: u32,
        queue: u32,
        cpu: CpuId,
        now: Nanos,
        out: &mut Effects,
    ) {
        let (load, hop, due, tapped, flow) = {
            let message = self.net.message(message);
            let (due, tapped) = (message.due, message.tapped);
            (message.load, message.hop, due, tapped, message.flow)
        };
        let client = &mut self.clients[load as usize];
        let guest = client.spec.route[hop as usize];
        self.taps[guest as usize].record(now.saturating_sub(tapped));
        if hop as usize + 1 < client.spec.route.len() {
            self.net.message_mut(message).hop += 1;
            self.tap(message, cpu, now, out);
            return;
        }
        if let Some(tracer) = out.tracer() {
            tracer.see(now, cpu, Seen::Transmits { queue });
        }
        self.sends(cpu, queue, now, out);
        if self.costs.end.there() {
            let end = &mut self.clients[load as usize].end;
            if let Some(at) = end.hears(now, due, flow, &self.costs.end) {
                out.alarm(at, END | u64::from(load));
            }
        } else {
            let there = now.saturating_add(self.costs.wire);
            self.answered(load as usize, due, flow, there, out);
            let connections = self.clients[load as usize].connections.as_mut();
            if let Some(at) = connections.and_then(Connections::wake) {
                out.alarm(at.saturating_add(self.costs.wire), ROOM | u64::from(load));
            }
        }
        self.net.answer(now, message);
    }
}
