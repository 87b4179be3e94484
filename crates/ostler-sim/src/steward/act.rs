//! What the steward does: the difference of a plan to the one in force.

use std::collections::BTreeMap;

use ostler_model::{AgentHealth, CpuSet, CpuWeight, GuestPlan, NicPlan, Plan, RunState, Snapshot};

use super::{Steered, Steward};
use crate::work::ThreadId;
use crate::world::{World, WorldError};

impl Steward {
    /// Carries a plan out.
    pub(super) fn act<W: Steered>(
        &mut self,
        plan: &Plan,
        snapshot: &Snapshot,
        world: &mut World<W>,
    ) -> Result<(), WorldError> {
        let old = self.plan.clone();
        // vCPUs leave the boost scheduler before they are told anything, and enter it last, as they do on a host.
        if old.as_ref().is_some_and(|old| old.boost.is_some()) && plan.boost.is_none() {
            world.act(|host, scene| host.set_boost(None, &[], scene))?;
        }
        for guest in &plan.guests {
            let same = old.as_ref().is_some_and(|old| {
                let homes = plan.vcpu_homes(guest);
                old.guest(&guest.guest)
                    .is_some_and(|before| before == guest && old.vcpu_homes(before).eq(homes))
            });
            let changed = (!same).then(|| plan.vcpu_homes(guest).collect());
            self.guest_to(guest, changed.as_ref(), snapshot, world)?;
        }
        for nic in &plan.nics {
            let before = old
                .as_ref()
                .and_then(|old| old.nics.iter().find(|known| known.name == nic.name));
            if before != Some(nic) {
                self.nic_to(nic, world)?;
            }
        }
        if let Some(boost) = &plan.boost {
            let mut members: Vec<(ThreadId, bool)> = Vec::new();
            for id in &boost.guests {
                let Some(guest) = self.guest(id) else {
                    continue;
                };
                members.extend(guest.vcpus.iter().map(|thread| (*thread, false)));
                if boost.workers {
                    members.extend(guest.vhost.iter().map(|thread| (*thread, true)));
                }
            }
            if old
                .as_ref()
                .is_none_or(|old| old.boost.as_ref() != Some(boost))
            {
                world.act(|host, scene| host.set_boost(Some(boost), &members, scene))?;
            }
        }
        world.act(|_, scene| {
            let now = scene.queue.now();
            scene.work.carry(plan, now, scene.out);
        })
    }

    /// `changed`: where its vCPUs may run that don't float, if that or anything else has changed.
    fn guest_to<W: Steered>(
        &self,
        plan: &GuestPlan,
        changed: Option<&BTreeMap<usize, CpuSet>>,
        snapshot: &Snapshot,
        world: &mut World<W>,
    ) -> Result<(), WorldError> {
        let Some(guest) = self.guest(&plan.guest) else {
            return Ok(());
        };
        if plan.run == RunState::Suspended {
            return world.act(|host, scene| host.set_frozen(guest.group, true, scene));
        }
        if let Some(homes) = changed {
            let all = plan
                .vcpu_cpus
                .union(&plan.vhost_cpus)
                .union(&plan.emulator_cpus);
            let (weight, idle) = match plan.weight {
                CpuWeight::Untouched | CpuWeight::AsFound => (guest.weight, false),
                CpuWeight::Weight(weight) => (weight, false),
                CpuWeight::Idle => (guest.weight, true),
            };
            world.act(|host, scene| {
                let now = scene.queue.now();
                if !all.is_empty() {
                    host.set_cpuset(guest.group, all, scene);
                }
                let vcpus = guest.vcpus.iter().enumerate();
                let vcpus = vcpus.map(|(at, thread)| {
                    (thread, homes.get(&at).copied().unwrap_or(plan.vcpu_cpus))
                });
                let vhost = guest.vhost.iter().enumerate();
                let vhost = vhost.map(|(at, thread)| {
                    let pin = plan.vhost_pins.get(at);
                    (
                        thread,
                        pin.map_or(plan.vhost_cpus, |cpu| CpuSet::single(*cpu)),
                    )
                });
                for (thread, own) in vcpus.chain(vhost) {
                    if !own.is_empty() {
                        host.set_affinity(*thread, own, scene);
                    }
                }
                host.set_weight(guest.group, weight, idle, now);
                host.set_frozen(guest.group, false, scene);
            })?;
        }
        let agent = snapshot
            .guest(&plan.guest)
            .and_then(|guest| guest.agent.as_ref());
        let Some(state) = agent
            .filter(|agent| agent.health == AgentHealth::Healthy)
            .and_then(|agent| agent.state.as_ref())
        else {
            return Ok(());
        };
        let vcpus = plan
            .vcpus_active
            .filter(|wanted| *wanted != state.vcpus_active.len() as u32);
        let queues = plan.queues.filter(|wanted| *wanted != state.queues);
        world.act(|_, scene| {
            if let Some(vcpus) = vcpus {
                scene.work.ask_vcpus(guest.number, vcpus, scene.out);
            }
            if let Some(queues) = queues {
                scene.work.ask_queues(guest.number, queues);
            }
        })
    }

    fn nic_to<W: Steered>(&self, plan: &NicPlan, world: &mut World<W>) -> Result<(), WorldError> {
        let Some(nic) = self.facts.nics.iter().position(|nic| nic.name == plan.name) else {
            return Ok(());
        };
        world.act(|_, scene| {
            let nic = nic as u32;
            scene.work.set_nic_queues(nic, plan.queues);
            for irq in &plan.irqs {
                // A line that may go to several goes to the first, as most controllers have it.
                if let Some(cpu) = irq.cpus.first() {
                    scene.work.set_nic_irq(nic, irq.ring, irq.queue, cpu);
                }
            }
            for (queue, cpus) in plan.rps.iter().enumerate() {
                scene.work.set_nic_rps(nic, queue as u32, cpus);
            }
            if !plan.xps.is_empty() {
                scene.work.set_nic_xps(nic, &plan.xps);
            }
        })
    }
}
