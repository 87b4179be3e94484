//! What plans ask of tenants, what is sensed of them, and what goes wrong with them.

use std::collections::BTreeMap;

use ostler_model::{AgentHealth, AgentState, Bytes, CpuId, GuestHints, LatencyView, Nanos, Ring};

use ostler_scenario::PageTiering;

use super::Tenants;
use crate::guest::{Activity, FilesView, Program};
use crate::net::Loss;
use crate::random::Stream;
use crate::work::{Effect, Effects};

/// How a guest's agent misbehaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Agent {
    /// It does what it is asked and says what is so.
    #[default]
    Honest,
    /// It says nothing, and does nothing.
    Silent,
    /// It says what can't be, and does nothing.
    Lying,
}

/// What goes wrong.
#[derive(Debug)]
pub struct Faults {
    /// A NIC's interrupt is lost, with this probability.
    pub nic_interrupt: f64,
    /// A guest's, likewise: any guest's.
    pub guest_interrupt: f64,
    /// Those of these guests.
    pub guest_interrupts: BTreeMap<u32, f64>,
    /// Agents that misbehave, by guest.
    pub agents: BTreeMap<u32, Agent>,
    stream: Stream,
}

impl Faults {
    /// None.
    pub fn new(seed: u64) -> Faults {
        Faults {
            nic_interrupt: 0.0,
            guest_interrupt: 0.0,
            guest_interrupts: BTreeMap::new(),
            agents: BTreeMap::new(),
            stream: Stream::new(seed, "faults", 0),
        }
    }

    pub(super) fn loses_nic_interrupt(&mut self) -> bool {
        self.nic_interrupt > 0.0 && self.stream.chance(self.nic_interrupt)
    }

    pub(super) fn loses_guest_interrupt(&mut self, guest: u32) -> bool {
        let own = self.guest_interrupts.get(&guest).copied();
        let chance = own.unwrap_or(self.guest_interrupt);
        chance > 0.0 && self.stream.chance(chance)
    }
}

impl Tenants {
    /// The NIC spreads packets over its first so many queues.
    pub fn set_nic_queues(&mut self, queues: u32) {
        self.nic.queues = queues.clamp(1, self.nic.queue_count());
    }

    /// The interrupt of a queue's ring goes to this core, from the next one on. A core that isn't there is none's.
    pub fn set_irq(&mut self, ring: Ring, queue: u32, cpu: CpuId) {
        let at = queue as usize;
        let irq = match ring {
            Ring::Receive => self.nic.steering.get_mut(at).map(|queue| &mut queue.irq),
            Ring::Transmit => self.nic.senders.get_mut(at).map(|sender| &mut sender.irq),
        };
        if let Some(irq) = irq.filter(|_| self.ground.has(cpu)) {
            *irq = cpu;
        }
    }

    /// These cores share a queue's work (RPS); none: the interrupt's does it.
    pub fn set_rps(&mut self, queue: u32, cpus: impl IntoIterator<Item = CpuId>) {
        let cpus = cpus
            .into_iter()
            .filter(|cpu| self.ground.has(*cpu))
            .collect();
        if let Some(steering) = self.nic.steering.get_mut(queue as usize) {
            steering.rps = cpus;
        }
    }

    /// The agent of a guest is asked to use so many queue pairs. Says whether it did.
    pub fn ask_queues(&mut self, g: u32, queues: u32) -> bool {
        let honest = self.agent(g) == Agent::Honest;
        let guest = &mut self.guests[g as usize];
        if honest && !guest.dead {
            guest.queues_active = queues.clamp(1, guest.workers.len() as u32);
        }
        honest && !guest.dead
    }

    /// The agent of a guest is asked to use so many vCPUs. Says whether it did.
    pub fn ask_vcpus(&mut self, g: u32, vcpus: u32, out: &mut Effects) -> bool {
        if self.agent(g) != Agent::Honest || self.guests[g as usize].dead {
            return false;
        }
        let guest = &mut self.guests[g as usize];
        let before = guest.vcpus_active;
        guest.allow(vcpus);
        let active = guest.vcpus_active;
        // Those that come are idle, and an idle one looks for tasks that wait elsewhere: the guest's kernel kicks it (`nohz_balancer_kick`).
        for v in before..active {
            out.notify(guest.vcpus[v as usize].thread);
        }
        for v in active..guest.vcpus.len() as u32 {
            for task in std::mem::take(&mut guest.vcpus[v as usize].queue) {
                guest.waiting -= 1;
                guest.enqueue(task, v % active);
                guest.note_idle(v % active);
                out.notify(guest.vcpus[(v % active) as usize].thread);
            }
            // What runs there goes when its vCPU is asked.
            out.notify(guest.vcpus[v as usize].thread);
        }
        true
    }

    fn agent(&self, g: u32) -> Agent {
        self.faults.agents.get(&g).copied().unwrap_or_default()
    }

    /// What a guest's agent says, and how it is; its word is `None` where there is none.
    pub fn agent_says(&self, g: u32) -> (AgentHealth, Option<AgentState>) {
        let guest = &self.guests[g as usize];
        let state = |online: u32, active: u32| AgentState {
            vcpus_online: (0..online).collect(),
            vcpus_active: (0..active).collect(),
            queues: guest.queues_active,
            queues_max: guest.workers.len() as u32,
        };
        let vcpus = guest.vcpus.len() as u32;
        match self.agent(g) {
            _ if guest.dead => (AgentHealth::Silent, None),
            Agent::Silent => (AgentHealth::Silent, None),
            Agent::Honest => (AgentHealth::Healthy, Some(state(vcpus, guest.vcpus_active))),
            Agent::Lying => {
                let what = format!("vCPU {vcpus} is online, of {vcpus}");
                (AgentHealth::Lying(what), Some(state(vcpus + 1, 1)))
            }
        }
    }

    /// What a plan lets a guest know.
    pub fn tell(&mut self, hints: &GuestHints, now: Nanos, out: &mut Effects) {
        let mut guests = self.guests.iter_mut();
        if let Some(guest) = guests.find(|guest| guest.id == hints.guest && !guest.dead) {
            for v in guest.told(hints, now) {
                out.notify(guest.vcpus[v as usize].thread);
            }
        }
    }

    /// What files in a guest's memory may take.
    pub fn set_files(&mut self, g: u32, memory: Bytes) {
        for running in &mut self.guests[g as usize].programs {
            if matches!(running.program, Program::Files { .. }) {
                running.cache.resize(memory);
            }
        }
        self.hold_files();
    }

    /// What files in memory may take is nobody else's.
    pub(super) fn hold_files(&mut self) {
        let guests = 0..self.guests.len() as u32;
        let files = guests.filter_map(|g| self.files(g));
        let bytes = files.map(|files| files.capacity.0).sum();
        if let Some(tiers) = &mut self.tiers {
            tiers.hold(bytes);
        }
    }

    /// Memory that is to move moves at so many bytes a second.
    pub fn set_mover(&mut self, rate: Bytes) {
        if let Some(tiers) = &mut self.tiers {
            tiers.set_rate(rate);
        }
    }

    /// The host's kernel moves pages by their heat.
    pub fn set_pages(&mut self, by: PageTiering) {
        if let Some(tiers) = &mut self.tiers {
            tiers.set_pages(by);
        }
    }

    /// What has come of memory so far; `None` where all of it is near.
    pub fn memory_told(&self) -> Option<super::MemoryTold> {
        self.tiers.as_ref().map(super::tiers::Tiers::told)
    }

    /// What a guest's files in memory do; `None` for guests without.
    pub fn files(&self, g: u32) -> Option<FilesView> {
        let mut programs = self.guests[g as usize].programs.iter();
        let files = programs.find(|running| matches!(running.program, Program::Files { .. }))?;
        Some(files.cache.view())
    }

    /// Whether a guest's own work rests: what computes without end and what reads its disk.
    pub fn rest(&mut self, g: u32, rests: bool, out: &mut Effects) {
        let guest = &mut self.guests[g as usize];
        // Tasks that haven't begun yet find out when they do.
        if std::mem::replace(&mut guest.resting, rests) == rests
            || guest.dead
            || guest.down.is_some()
        {
            return;
        }
        for task in 0..guest.tasks.len() as u32 {
            let guest = &mut self.guests[g as usize];
            let entry = &guest.tasks[task as usize];
            let kind = &guest.programs[entry.program as usize].program;
            let v = entry.vcpu as usize;
            match kind {
                Program::Compute { .. } if rests => {
                    // One that runs is taken away: the core's time until now is still reckoned as its.
                    guest.tasks[task as usize].activity = Activity::Blocked;
                    if guest.vcpus[v].current == Some(task) {
                        guest.vcpus[v].current = None;
                    } else {
                        guest.vcpus[v].queue.retain(|other| *other != task);
                        guest.waiting -= 1;
                    }
                    guest.note_idle(v as u32);
                    out.notify(guest.vcpus[v].thread);
                }
                Program::Compute { .. } => self.start_task(g, task, out),
                // One whose block is on its way finds out when it comes.
                Program::Disk { .. }
                    if !rests
                        && entry.activity == Activity::Blocked
                        && entry.phase == crate::guest::Phase::Think =>
                {
                    self.start_task(g, task, out);
                }
                _ => {}
            }
        }
    }

    /// A guest hasn't come yet, and its host knows nothing of it; or it has. Nobody asks anything of one that is away.
    pub fn set_away(&mut self, g: u32, away: bool) {
        self.guests[g as usize].away = away;
    }

    /// A guest dies, with all that it had in hand.
    pub fn kill(&mut self, g: u32, now: Nanos, out: &mut Effects) {
        let guest = &mut self.guests[g as usize];
        if std::mem::replace(&mut guest.dead, true) {
            return;
        }
        let mut all = Vec::new();
        for vcpu in &mut guest.vcpus {
            all.append(&mut vcpu.batch);
            vcpu.segment = None;
            vcpu.exits.clear();
            vcpu.queue.clear();
            vcpu.current = None;
            out.0.push(Effect::Exit(vcpu.thread));
        }
        for task in &mut guest.tasks {
            all.extend(task.inbox.drain(..).chain(task.message.take()));
        }
        for running in &mut guest.programs {
            all.extend(running.service.inbox.drain(..));
        }
        for number in &guest.workers {
            let worker = &mut self.workers[*number as usize];
            all.extend(worker.tap.drain(..).chain(worker.vring.drain(..)));
            all.extend(worker.tx.drain(..).chain(worker.batch.drain(..)));
            worker.doing = crate::net::vhost::Doing::Nothing;
            out.0.push(Effect::Exit(worker.thread));
        }
        if let Some(tiers) = &mut self.tiers {
            tiers.take_away(&self.guests[g as usize].id);
        }
        for message in all {
            self.lose(message, Loss::Dead, now, out);
        }
    }

    /// Response times on a guest's tap since this was last asked, as its host senses them; `None` where there were none.
    pub fn take_latency(&mut self, g: u32) -> Option<LatencyView> {
        let tap = &mut self.taps[g as usize];
        let view = (tap.count() > 0).then(|| LatencyView {
            responses: tap.count(),
            p50: tap.quantile(500),
            p95: tap.quantile(950),
            p99: tap.quantile(990),
            age: Nanos::ZERO,
        });
        tap.clear();
        view
    }

    /// Units of work that a guest has counted by itself: rounds, blocks, operations.
    pub fn done(&self, g: u32) -> f64 {
        let guest = &self.guests[g as usize];
        let rounds = guest.tasks.iter().filter_map(|task| {
            let program = &guest.programs[task.program as usize].program;
            match program {
                Program::Compute { round, .. } => Some(task.ran.0 as f64 / round.0.max(1) as f64),
                _ => None,
            }
        });
        guest.done as f64 + rounds.sum::<f64>()
    }
}
