//! What a placement is found from, laid out of a snapshot and of the partition layer's plan.

use std::cmp::Ordering;

use ostler_model::{
    CpuId, CpuSet, FlowView, GuestId, GuestView, Hop, IrqView, MAX_CPUS, Nanos, NodeId, QueueCore,
    Reason, Ring, RunState, ThreadCore,
};

use super::enter::{irqs, places_vcpus, places_worker, receive};
use super::{
    LaidFlow, LaidQueue, Layered, NONE, QUEUE_POOL, SOFTIRQ, Scene, VCPU, VCPU_POOL, VHOST, Whose,
};
use crate::Seen;
use crate::decide::count;
use crate::partition::cores::Usage;
use crate::partition::demand::old_after;
use crate::placement::{Core, Index, STAGES_MAX, Socket, Stage, Thread};

/// The least hit rate of a last-level cache that counts. `1 / hit` stands for what an access there takes, and none takes longer than one to memory, which is six to twelve times as long on
/// processors whose latencies are known (machine/memory/parts). Where a cache had nothing of the little that it was asked for, `1 / hit` without end would hide all that differs elsewhere: no
/// other placement would be better by the margin than a present one with such a stage, whatever it gains.
const L3_HIT_MIN: f64 = 1.0 / 12.0;

/// So many packets in an interval come with an interrupt, or are polled without.
const POLLED_MIN: f64 = 100.0;

impl Layered {
    pub(super) fn lay_cores(&mut self, scene: &Scene<'_>) {
        let seen = scene.seen;
        let cpus = &seen.facts.topology.cpus;
        let usage = Usage::new(&seen.snapshot.cpus, seen.snapshot.interval);
        self.nodes.clear();
        self.nodes.extend(cpus.iter().map(|cpu| cpu.node));
        self.nodes.sort_unstable();
        self.nodes.dedup();
        self.core_of.clear();
        self.core_of.resize(MAX_CPUS as usize, NONE);
        self.cores.clear();
        for cpu in cpus {
            let socket = self.nodes.binary_search(&cpu.node).unwrap_or(0);
            if let Some(place) = self.core_of.get_mut(cpu.id.0 as usize) {
                *place = count(self.cores.len());
            }
            self.cores.push(Core {
                id: cpu.id,
                socket: count(socket),
                cache: cpu.cache_group.0,
                utilisation: usage.share(cpu.id).clamp(0.0, 1.0),
            });
        }
        self.softirq_time.clear();
        self.softirq_time.resize(self.cores.len(), None);
        for usage in &seen.snapshot.cpus {
            if let Some(core) = self.core(usage.cpu) {
                let time = &mut self.softirq_time[core as usize];
                time.get_or_insert(usage.softirq);
            }
        }
    }

    pub(super) fn lay_sockets(&mut self, scene: &Scene<'_>, limit: Nanos) -> Result<(), NodeId> {
        self.sockets.clear();
        self.distances.clear();
        let views = &scene.seen.snapshot.sockets;
        let memory = &scene.seen.facts.memory;
        for &node in &self.nodes {
            let view = views.iter().find(|view| view.node == node);
            let view = view.filter(|view| view.age <= limit).ok_or(node)?;
            self.sockets.push(Socket {
                l3_hit: view.l3_hit.clamp(L3_HIT_MIN, 1.0),
                cycle_loss: view.cycle_loss.clamp(0.0, 1.0),
                ipc: view.ipc.max(1e-6),
            });
            // One link further for each eleven, as most firmware says 21 for a neighbour.
            self.distances.extend(
                self.nodes
                    .iter()
                    .map(|&to| match memory.distance(node, to) {
                        _ if to == node => 0.0,
                        Some(distance) => (f64::from(distance) - 10.0).max(0.0) / 11.0,
                        None => 1.0,
                    }),
            );
        }
        Ok(())
    }

    /// The flows of queues in use, in order of queue.
    pub(super) fn find_flows(&mut self, scene: &Scene<'_>, limit: Nanos) {
        self.seen.clear();
        let nics = &scene.partition.nics;
        for (at, flow) in scene.seen.snapshot.flows.iter().enumerate() {
            let fine = flow.packets_per_s > 0.0 && flow.packets_per_s <= 1e12;
            let nic = nics.binary_search_by(|nic| nic.name.as_str().cmp(&flow.nic));
            if let Ok(nic) = nic
                && fine
                && flow.age <= limit
                && flow.queue < nics[nic].queues
            {
                self.seen.push((nic, flow.queue, at));
            }
        }
        self.seen.sort_unstable();
    }

    pub(super) fn lay_pools(&mut self, scene: &Scene<'_>) {
        self.pool_cores.clear();
        self.pools.clear();
        let core_of = &self.core_of;
        for set in [&scene.groups.nq, &scene.groups.vcpu] {
            let start = self.pool_cores.len();
            let cores = set.iter().map(|cpu| core_of[cpu.0 as usize]);
            self.pool_cores.extend(cores.filter(|core| *core != NONE));
            let most = scene.settings.cores_max;
            self.pools.push((start, self.pool_cores.len(), most));
        }
        self.alone.clear();
        self.alone.resize(self.cores.len(), NONE);
        self.threads.clear();
        self.whose.clear();
        self.starts.clear();
        let mut all = 0;
        for member in scene.seen.roster.members() {
            self.starts.push(all);
            all += member.view.vhost.len() + member.view.vcpus.len();
        }
        // Few of them are on packets' ways: those that were are forgotten, and not all.
        for place in self.touched.drain(..) {
            self.thread_of[place] = NONE;
            self.packets[place] = 0.0;
        }
        self.thread_of.resize(all, NONE);
        self.packets.resize(all, 0.0);
    }

    /// The pool of a core alone.
    fn pool_of(&mut self, core: Index) -> Index {
        let pool = &mut self.alone[core as usize];
        if *pool == NONE {
            *pool = count(self.pools.len());
            self.pool_cores.push(core);
            let end = self.pool_cores.len();
            self.pools.push((end - 1, end, None));
        }
        *pool
    }

    fn core(&self, cpu: CpuId) -> Option<Index> {
        let core = self.core_of.get(cpu.0 as usize).copied();
        core.filter(|core| *core != NONE)
    }

    /// Packets that each thread had, which their time is divided by.
    pub(super) fn count_packets(&mut self, scene: &Scene<'_>) {
        self.softirq_packets.clear();
        self.softirq_packets.resize(self.cores.len(), 0.0);
        self.softirqs.clear();
        self.hops.clear();
        let mut placed = scene.before.map_or(&[][..], |plan| &plan.softirqs);
        for at in 0..self.seen.len() {
            let (nic, queue, flow) = self.seen[at];
            let same = at > 0 && (self.seen[at - 1].0, self.seen[at - 1].1) == (nic, queue);
            let now = if same {
                self.softirqs[at - 1]
            } else {
                self.softirq_now(scene, nic, queue, &mut placed)
            };
            self.softirqs.push(now);
            let flow = &scene.seen.snapshot.flows[flow];
            // What was lost on the way took nothing of those after; of a softirq nobody knows what it lost itself.
            let came = |hop: &Hop| {
                let came = hop.packets_per_s.filter(|came| (0.0..=1e12).contains(came));
                came.unwrap_or(flow.packets_per_s)
            };
            if let Some(core) = now {
                let came = flow.hops.first().map_or(flow.packets_per_s, came);
                self.softirq_packets[core as usize] += came;
            }
            for hop in &flow.hops {
                let guest = member_of(scene.seen, hop);
                self.hops.push(guest);
                let Some(guest) = guest else { continue };
                let view = scene.seen.roster.members()[guest].view;
                let worker = worker_of(view, hop.queue);
                let vcpu = vcpu_of(view, hop.vcpu).map(|at| view.vhost.len() + at);
                for at in [worker, vcpu].into_iter().flatten() {
                    let place = self.starts[guest] + at;
                    self.packets[place] += came(hop);
                    self.touched.push(place);
                }
            }
        }
        self.forget_polled(scene);
    }

    /// What softirqs took of a core tells nothing where a queue whose interrupts go there had none: it is polled without end, by ksoftirqd, whose time is a task's, and on the core where its
    /// last interrupt came: some drivers leave that when the affinity says so (`i40e_napi_poll`), others only once their ring is empty (`igb_poll`, `ixgbe_poll`).
    fn forget_polled(&mut self, scene: &Scene<'_>) {
        let snapshot = scene.seen.snapshot;
        let (mut at, mut from) = (0, 0);
        for flows in self.seen.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
            let core = self.softirqs[at];
            at += flows.len();
            let traffic = flows
                .iter()
                .map(|flow| snapshot.flows[flow.2].packets_per_s);
            let packets = traffic.sum::<f64>() * snapshot.interval.as_secs_f64();
            let (nic, queue, _) = flows[0];
            let name = &scene.partition.nics[nic].name;
            let nic = snapshot.nics.iter().find(|nic| nic.name == *name);
            let (Some(core), Some(nic)) = (core.filter(|_| packets >= POLLED_MIN), nic) else {
                continue;
            };
            let of_queue = |irq: &IrqView| irq.ring == Ring::Receive && irq.queue == queue;
            // Most are in the order of queues: it is the next.
            let (earlier, later) = nic.irqs.split_at(from.min(nic.irqs.len()));
            let place = later.iter().position(of_queue).map(|place| from + place);
            let place = place.or_else(|| earlier.iter().position(of_queue));
            let Some(place) = place else { continue };
            from = place + 1;
            if nic.irqs[place].count == 0 {
                self.softirq_time[core as usize] = None;
            }
        }
        // Those take as much as others do.
        let cores = self.softirq_time.iter().zip(&self.softirq_packets);
        let mut sum = (0.0, 0.0);
        for (time, packets_per_s) in cores.filter(|(_, packets)| **packets > 0.0) {
            let packets = packets_per_s * snapshot.interval.as_secs_f64();
            if let Some(took) =
                time.and_then(|time| per_packet(time, *packets_per_s, snapshot.interval))
            {
                sum = (sum.0 + took * packets, sum.1 + packets);
            }
        }
        self.softirq_packet = (sum.1 > 0.0).then(|| sum.0 / sum.1);
    }

    /// Where a queue's interrupt goes now. Queues are asked for in the order in which those that were placed stand; these are what is left of them.
    fn softirq_now(
        &self,
        scene: &Scene<'_>,
        nic: usize,
        queue: u32,
        placed: &mut &[QueueCore],
    ) -> Option<Index> {
        let name = &scene.partition.nics[nic].name;
        let mut kept = None;
        while let [first, rest @ ..] = *placed {
            match (&first.nic, first.queue).cmp(&(name, queue)) {
                Ordering::Less => *placed = rest,
                Ordering::Equal => {
                    kept = Some(first.cpu);
                    break;
                }
                Ordering::Greater => break,
            }
        }
        let found = || {
            let mut nics = scene.seen.snapshot.nics.iter();
            let irqs = &nics.find(|nic| nic.name == *name)?.irqs;
            let of_queue = |irq: &&IrqView| irq.ring == Ring::Receive && irq.queue == queue;
            let irq = irqs.iter().find(of_queue)?;
            only(&irq.affinity)
        };
        self.core(kept.or_else(found)?)
    }

    pub(super) fn lay_queues(&mut self, scene: &Scene<'_>, reasons: &mut Vec<Reason>) {
        self.stages.clear();
        self.flows.clear();
        self.queues.clear();
        let (mut at, mut hops) = (0, 0);
        while at < self.seen.len() {
            let (nic, queue, _) = self.seen[at];
            let of_queue = self.seen[at..]
                .iter()
                .take_while(|next| (next.0, next.1) == (nic, queue));
            let end = at + of_queue.count();
            let first = self.flows.len();
            let traffic = self.seen[at..end].iter();
            let traffic = traffic
                .map(|found| scene.seen.snapshot.flows[found.2].packets_per_s)
                .sum::<f64>();
            let now = self.softirqs[at];
            let softirq = self.softirq(scene, (nic, queue), now, traffic, reasons);
            for place in at..end {
                let flow = &scene.seen.snapshot.flows[self.seen[place].2];
                self.lay_flow(scene, flow, hops, softirq);
                hops += flow.hops.len();
            }
            let facts = &scene.seen.facts.nics;
            let name = &scene.partition.nics[nic].name;
            let node = facts.iter().find(|facts| facts.name == *name);
            let socket = node
                .and_then(|facts| self.nodes.binary_search(&facts.node?).ok())
                .unwrap_or(0);
            self.queues.push(LaidQueue {
                socket: count(socket),
                flows: (first, self.flows.len()),
            });
            at = end;
        }
    }

    /// The softirq of a queue as a thread to be placed; nothing where it is spread and is to be, or has no interrupt to place.
    fn softirq(
        &mut self,
        scene: &Scene<'_>,
        (nic, queue): (usize, u32),
        now: Option<Index>,
        traffic: f64,
        reasons: &mut Vec<Reason>,
    ) -> Option<Index> {
        let plan = &scene.partition.nics[nic];
        if receive(plan, queue).is_empty() {
            return None;
        }
        let mut lines = irqs(plan, queue).map(|at| plan.irqs[at].irq);
        if lines.any(|line| self.shared.binary_search(&line).is_ok()) {
            return None;
        }
        let measured = now.and_then(|core| {
            let time = self.softirq_time[core as usize]?;
            let all = self.softirq_packets[core as usize];
            per_packet(time, all, scene.seen.snapshot.interval)
        });
        let measured = measured.or(self.softirq_packet);
        let demand = measured.unwrap_or(scene.settings.softirq.packet.0 as f64) / 1e3;
        let cores = demand * traffic / 1e6;
        let spread = plan.rps.get(queue as usize);
        if spread.is_some_and(|set| !set.is_empty())
            && cores > scene.seen.intent.partition.thresholds.nq
        {
            reasons.push(Reason::Spread {
                nic: plan.name.clone(),
                queue,
                cores,
            });
            return None;
        }
        self.threads.push(Thread {
            pool: QUEUE_POOL,
            demand,
            now,
        });
        self.whose.push(Whose::Softirq { nic, queue });
        Some(count(self.threads.len() - 1))
    }

    /// A flow, whose hops begin at a place among all.
    fn lay_flow(
        &mut self,
        scene: &Scene<'_>,
        flow: &FlowView,
        hops: usize,
        softirq: Option<Index>,
    ) {
        let first = self.stages.len();
        let mut priority = false;
        self.stages.extend(softirq.map(|thread| Stage {
            kind: SOFTIRQ,
            thread,
        }));
        for (hop, at) in flow.hops.iter().zip(hops..) {
            let Some(guest) = self.hops[at] else { continue };
            let member = &scene.seen.roster.members()[guest];
            priority |= member.rule.is_some_and(|rule| rule.terms.priority);
            let worker = worker_of(member.view, hop.queue);
            let worker = worker.and_then(|at| self.worker(scene, guest, at));
            let vcpu = vcpu_of(member.view, hop.vcpu);
            let vcpu = vcpu.and_then(|at| self.vcpu(scene, guest, at));
            for (kind, thread) in [(VHOST, worker), (VCPU, vcpu)] {
                let Some(thread) = thread else { continue };
                let laid = &self.stages[first..];
                // A packet that comes by the same thread again finds it where it is.
                if laid.len() < STAGES_MAX && laid.iter().all(|stage| stage.thread != thread) {
                    self.stages.push(Stage { kind, thread });
                }
            }
        }
        self.flows.push(LaidFlow {
            packets: flow.packets_per_s,
            priority,
            stages: (first, self.stages.len()),
        });
    }

    /// A vhost worker as a thread; nothing where nobody knows its core.
    fn worker(&mut self, scene: &Scene<'_>, guest: usize, at: usize) -> Option<Index> {
        let place = self.starts[guest] + at;
        if self.thread_of[place] != NONE {
            return Some(self.thread_of[place]);
        }
        let member = &scene.seen.roster.members()[guest];
        let worker = &member.view.vhost[at];
        let given = &scene.partition.guests[guest];
        let kept = scene.before.map(|plan| &plan.workers);
        let kept = kept.and_then(|placed| core_of_thread(placed, &given.guest, at));
        let now = kept.or_else(|| only(&worker.allowed));
        let ours = given.run == RunState::Running
            && places_worker(scene.seen, scene.groups, scene.partition, guest, at);
        let measured = per_packet(
            worker.usage.run,
            self.packets[place],
            scene.seen.snapshot.interval,
        );
        self.add(
            place,
            Whose::Worker {
                guest,
                at: count(at),
            },
            ours.then_some(QUEUE_POOL),
            now,
            measured.unwrap_or(scene.settings.vhost.packet.0 as f64) / 1e3,
        )
    }

    /// A vCPU as a thread; nothing where nobody knows its core.
    fn vcpu(&mut self, scene: &Scene<'_>, guest: usize, at: usize) -> Option<Index> {
        let member = &scene.seen.roster.members()[guest];
        let place = self.starts[guest] + member.view.vhost.len() + at;
        if self.thread_of[place] != NONE {
            return Some(self.thread_of[place]);
        }
        let vcpu = &member.view.vcpus[at];
        let given = &scene.partition.guests[guest];
        let kept = scene.before.map(|plan| &plan.vcpus);
        let kept = kept.and_then(|placed| core_of_thread(placed, &given.guest, at));
        let pinned = given.vcpu_pins.get(at).copied();
        let now = kept
            .or(pinned)
            .or_else(|| vcpu_now(scene.seen, guest, at))
            .or_else(|| only(&vcpu.allowed));
        let ours =
            scene.settings.vcpus && places_vcpus(scene.seen, scene.groups, scene.partition, guest);
        let measured = per_packet(
            vcpu.usage.run,
            self.packets[place],
            scene.seen.snapshot.interval,
        );
        self.add(
            place,
            Whose::Vcpu {
                guest,
                at: count(at),
            },
            ours.then_some(VCPU_POOL),
            now,
            measured.unwrap_or(scene.settings.vcpu.packet.0 as f64) / 1e3,
        )
    }

    fn add(
        &mut self,
        place: usize,
        whose: Whose,
        pool: Option<Index>,
        now: Option<CpuId>,
        demand: f64,
    ) -> Option<Index> {
        let now = now.and_then(|cpu| self.core(cpu));
        let pool = match pool {
            Some(pool) => pool,
            None => self.pool_of(now?),
        };
        self.threads.push(Thread { pool, demand, now });
        self.whose.push(whose);
        let thread = count(self.threads.len() - 1);
        self.thread_of[place] = thread;
        Some(thread)
    }
}

/// The guest of a hop, by place in the roster.
fn member_of(seen: &Seen<'_>, hop: &Hop) -> Option<usize> {
    let members = seen.roster.members();
    let key = |member: &crate::Member<'_>| member.view.id.cmp(&hop.guest);
    members.binary_search_by(key).ok()
}

/// The worker of a queue pair, by place; where there is but one, it has all.
fn worker_of(view: &GuestView, queue: Option<u32>) -> Option<usize> {
    let Some(queue) = queue else {
        return (view.vhost.len() == 1).then_some(0);
    };
    let known = |worker: &ostler_model::VhostView| worker.queue == Some(queue);
    let untold = |at: usize| view.vhost.get(at).filter(|worker| worker.queue.is_none());
    let at = view.vhost.iter().position(known);
    at.or_else(|| untold(queue as usize).map(|_| queue as usize))
}

/// A vCPU by its index, by place; where there is but one, it has all.
fn vcpu_of(view: &GuestView, index: Option<u32>) -> Option<usize> {
    let Some(index) = index else {
        return (view.vcpus.len() == 1).then_some(0);
    };
    view.vcpus.iter().position(|vcpu| vcpu.index == index)
}

/// Where a vCPU was seen.
fn vcpu_now(seen: &Seen<'_>, guest: usize, at: usize) -> Option<CpuId> {
    let id = &seen.roster.members()[guest].view.id;
    let wishes = &seen.snapshot.wishes;
    let key = |wishes: &ostler_model::GuestWishes| wishes.guest.cmp(id);
    let wishes = &wishes[wishes.binary_search_by(key).ok()?];
    let fresh = wishes.age <= old_after(seen);
    wishes.vcpus.get(at).filter(|_| fresh)?.cpu
}

/// The CPU of a set of one.
fn only(set: &CpuSet) -> Option<CpuId> {
    set.first().filter(|_| set.len() == 1)
}

/// Where a placement has a guest's thread.
fn core_of_thread(placed: &[ThreadCore], guest: &GuestId, at: usize) -> Option<CpuId> {
    let key = |thread: &ThreadCore| thread.guest.cmp(guest).then((thread.at as usize).cmp(&at));
    let found = placed.binary_search_by(key).ok()?;
    Some(placed[found].cpu)
}

/// What a packet took of a thread, ns, that had so many a second; nothing where it had none, or wasn't seen to run.
pub(super) fn per_packet(run: Nanos, packets_per_s: f64, interval: Nanos) -> Option<f64> {
    let packets = packets_per_s * interval.as_secs_f64();
    (packets >= 1.0 && run > Nanos::ZERO).then(|| run.0.min(interval.0) as f64 / packets)
}
