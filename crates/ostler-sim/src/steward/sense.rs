//! What the steward sees.

use std::collections::BTreeMap;

use ostler_model::{
    AgentView, CpuId, CpuSet, CpuUsage, GuestId, GuestSource, GuestView, GuestWishes, HintsVcpu,
    HostCounters, IrqId, IrqView, LatencyView, Nanos, NicView, Pid, Ring, RunnableView, Snapshot,
    ThreadUsage, Tid, VcpuView, VhostView,
};

use super::{Steered, Steward};
use crate::host::{State, ThreadTime, View};
use crate::work::ThreadId;
use crate::world::World;

/// Interrupt lines of NICs' queues begin here, with so many for each NIC's rings of a kind.
const IRQ_FIRST: u32 = 100;
const IRQS: u32 = 1024;

/// The line of a ring of a NIC's queue.
fn line(nic: usize, ring: Ring, queue: u32) -> IrqId {
    IrqId(IRQ_FIRST + IRQS * (2 * nic as u32 + ring as u32) + queue)
}

impl Steward {
    /// What happened since the last time, as a host would tell.
    pub(super) fn sense<W: Steered>(&mut self, world: &mut World<W>) -> Snapshot {
        let now = world.now();
        let first = self.seq == 0;
        self.seq += 1;
        let view = world.host.view(now);
        let mut snapshot = Snapshot {
            seq: self.seq,
            at: now,
            interval: if first {
                Nanos::ZERO
            } else {
                now.saturating_sub(self.at)
            },
            ..Snapshot::default()
        };
        self.at = now;
        snapshot.cpus = self.cores_since(view, first);
        let counters = view.counters();
        let count = |new: u64, old: u64| Some(if first { 0 } else { new - old });
        snapshot.counters = HostCounters {
            ctx_switches: count(counters.switches, self.counters.switches),
            migrations: count(counters.migrations, self.counters.migrations),
            irqs: count(counters.interrupts, self.counters.interrupts),
            kvm_exits: None,
        };
        self.counters = counters;
        self.threads
            .resize(view.threads() as usize, ThreadTime::default());
        for at in 0..self.guests.len() {
            let number = self.guests[at].number;
            if !world.work.lives(number) {
                continue;
            }
            let mut guest = self.guest_since(at, world.host.view(now), first);
            guest.latency = self.latency_of(at, world.work.latency(number), now);
            guest.agent = world.work.agent(number).map(|(health, state)| AgentView {
                health,
                state,
                age: Nanos::ZERO,
            });
            snapshot.guests.push(guest);
        }
        for (at, nic) in self.facts.nics.iter().enumerate() {
            if !self.intent.nics.contains(&nic.name) {
                continue;
            }
            let rings = [Ring::Receive, Ring::Transmit];
            let rings = rings
                .iter()
                .flat_map(|ring| (0..nic.queues_max).map(|queue| (*ring, queue)));
            let irqs = rings.filter_map(|(ring, queue)| {
                let (cpu, count) = world.work.nic_irq(at as u32, ring, queue)?;
                let known = &mut self.irqs[at][ring as usize][queue as usize];
                let since = if first { 0 } else { count - *known };
                *known = count;
                Some(IrqView {
                    irq: line(at, ring, queue),
                    queue,
                    ring,
                    affinity: CpuSet::single(cpu),
                    count: since,
                })
            });
            let irqs = irqs.collect();
            snapshot.nics.push(NicView {
                name: nic.name.clone(),
                queues: world.work.nic_queues(at as u32),
                irqs,
            });
        }
        snapshot
            .nics
            .sort_by(|one, other| one.name.cmp(&other.name));
        if self.intent.hints.is_some() {
            self.wishes(world, &mut snapshot);
        }
        world.work.fill(&mut snapshot);
        snapshot
    }

    /// Where vCPUs run or wait, how many there are on each core, and what guests ask for theirs.
    fn wishes<W: Steered>(&self, world: &World<W>, snapshot: &mut Snapshot) {
        let view = world.host.view(world.now());
        let mut counts: BTreeMap<CpuId, u32> = view.online().iter().map(|cpu| (cpu, 0)).collect();
        for guest in self.guests.iter().filter(|g| world.work.lives(g.number)) {
            let pins = world.work.pins(guest.number);
            let vcpus = guest.vcpus.iter().enumerate().map(|(at, thread)| {
                let wants = matches!(view.state(*thread), State::Runs | State::Waits);
                let cpu = view.cpu(*thread);
                if let Some(count) = counts.get_mut(&cpu).filter(|_| wants) {
                    *count += 1;
                }
                // A vCPU that sleeps wakes where it was, if it can. One that never ran is nowhere yet.
                let there = wants || view.moves(*thread).0 > 0;
                HintsVcpu {
                    cpu: there.then_some(cpu),
                    pin: pins.get(at).copied().unwrap_or(false),
                    runnable: wants,
                }
            });
            let vcpus = vcpus.collect();
            snapshot.wishes.push(GuestWishes {
                guest: guest.id.clone(),
                vcpus,
                age: Nanos::ZERO,
            });
        }
        let runnable = counts.into_iter();
        snapshot.runnable = runnable
            .map(|(cpu, vcpus)| RunnableView { cpu, vcpus })
            .collect();
    }

    fn cores_since(&mut self, view: View<'_>, first: bool) -> Vec<CpuUsage> {
        let online = view.online();
        let last = online.iter().last().map_or(0, |cpu| cpu.0 as usize + 1);
        self.cores.resize_with(last, Default::default);
        let usage = online.iter().map(|cpu| {
            let now = (view.core_time(cpu), view.handled(cpu));
            let before = std::mem::replace(&mut self.cores[cpu.0 as usize], now);
            let ((time, handled), (known, handled_before)) = (now, before);
            // An interrupt that is going on is known to be unseen in part only when it is over.
            let since = |new: u64, old: u64| Nanos(if first { 0 } else { new.saturating_sub(old) });
            let seen = |new: u64, old: u64| since(handled.seen(new), handled_before.seen(old));
            CpuUsage {
                cpu,
                busy: seen(time.busy(), known.busy()),
                irq: seen(time.hard, known.hard),
                softirq: since(time.soft, known.soft),
                yielding: Some(since(time.yielding, known.yielding)),
            }
        });
        usage.collect()
    }

    fn guest_since(&mut self, at: usize, view: View<'_>, first: bool) -> GuestView {
        let guest = &self.guests[at];
        let threads = &mut self.threads;
        let mut usage = |thread: ThreadId| {
            let time = view.thread_time(thread);
            let known = std::mem::replace(&mut threads[thread.0 as usize], time);
            let since = |new: u64, old: u64| Nanos(if first { 0 } else { new - old });
            ThreadUsage {
                run: since(view.charged(time), view.charged(known)),
                wait: since(time.waited, known.waited),
            }
        };
        let vcpus = guest
            .vcpus
            .iter()
            .enumerate()
            .map(|(index, thread)| VcpuView {
                index: index as u32,
                tid: Tid(thread.0),
                allowed: view.allowed(*thread),
                usage: usage(*thread),
            });
        let vcpus = vcpus.collect();
        let vhost = guest
            .vhost
            .iter()
            .enumerate()
            .map(|(queue, thread)| VhostView {
                tid: Tid(thread.0),
                queue: Some(queue as u32),
                allowed: view.allowed(*thread),
                usage: usage(*thread),
            });
        let vhost = vhost.collect();
        GuestView {
            id: guest.id.clone(),
            name: guest.name.clone(),
            uuid: None,
            metadata: Vec::new(),
            source: GuestSource::Qmp,
            pid: Pid(1000 + guest.number),
            cgroup: Some(format!("/machine.slice/{}", guest.name)),
            frozen: view.frozen(guest.group),
            vcpus,
            vhost,
            emulator: Vec::new(),
            taps: Vec::new(),
            vsock_cid: None,
            latency: None,
            agent: None,
            age: Nanos::ZERO,
        }
    }

    /// The most recent window that saw any, with its age.
    fn latency_of(
        &mut self,
        at: usize,
        new: Option<LatencyView>,
        now: Nanos,
    ) -> Option<LatencyView> {
        if let Some(new) = new {
            self.latency[at] = Some((new, now));
        }
        self.latency[at].map(|(window, ended)| LatencyView {
            age: now.saturating_sub(ended),
            ..window
        })
    }

    /// The guest of an id.
    pub(super) fn guest(&self, id: &GuestId) -> Option<&super::StewardGuest> {
        let at = self
            .guests
            .binary_search_by(|guest| guest.id.cmp(id))
            .ok()?;
        Some(&self.guests[at])
    }
}
