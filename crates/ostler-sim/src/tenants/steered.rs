//! Tenants as a steward sees them, and as it asks things of them.
//!
//! Nothing here tells more than a host could know: response times on taps, interrupts' affinities and counts, packets by queue, what an agent says of its
//! guest, and what a guest asks for through its Refer-Table.

use std::collections::BTreeMap;

use ostler_model::{
    AgentHealth, AgentState, CpuId, CpuSet, FilesView, FlowView, Hop, LatencyView, Nanos, Plan,
    Ring, Snapshot,
};

use super::Tenants;
use crate::load::ROUTE_MAX;
use crate::steward::Steered;
use crate::work::Effects;

/// A NIC queue, and for each guest on a packet's way its queue pair and vCPU.
type Way = (u32, Vec<(u32, u32, u32)>);

/// How many messages came by the NIC, and then to each guest of a route.
type Counts = [u64; ROUTE_MAX + 1];

/// Packets by where they came in and went, since that was last told.
#[derive(Clone, Debug, Default)]
pub(super) struct Flows {
    /// By NIC queue, client, and the hash's part that guests choose queue pairs by: how many came, and then to each guest of the route.
    counts: BTreeMap<(u32, u32, u16), Counts>,
    /// Nobody asks, so nobody counts.
    on: bool,
}

impl Flows {
    /// A message comes, for the guest of this number on its route from zero on; without one, by the NIC.
    pub(super) fn count(&mut self, queue: u32, client: u32, hash: u32, hop: Option<u32>) {
        if self.on {
            let key = (queue, client, (hash >> 16) as u16);
            let place = hop.map_or(0, |hop| hop as usize + 1);
            self.counts.entry(key).or_default()[place] += 1;
        }
    }
}

impl Tenants {
    /// Has packets counted by queue and guest, and what sockets' counters say, from now on, as placement asks for.
    pub fn count_flows(&mut self) {
        self.flows.on = true;
        self.sockets.start(&self.ground);
    }

    fn flows_since(&mut self, seconds: f64) -> Vec<FlowView> {
        let counts = std::mem::take(&mut self.flows.counts);
        // Those of the same queue that take the same queue pairs are one.
        let mut ways: BTreeMap<Way, Counts> = BTreeMap::new();
        for ((queue, client, hash), counts) in counts {
            let route = &self.clients[client as usize].spec.route;
            let hops = route.iter().map(|g| {
                let guest = &self.guests[*g as usize];
                let pair = u32::from(hash) % guest.queues_active.max(1);
                (*g, pair, pair % guest.vcpus_active.max(1))
            });
            let sum = ways.entry((queue, hops.collect())).or_default();
            sum.iter_mut()
                .zip(counts)
                .for_each(|(sum, more)| *sum += more);
        }
        let flows = ways.into_iter().map(|((queue, hops), counts)| FlowView {
            nic: NIC.to_owned(),
            queue,
            hops: hops
                .into_iter()
                .zip(&counts[1..])
                .map(|((g, pair, vcpu), came)| Hop {
                    guest: self.guests[g as usize].id.clone(),
                    queue: Some(pair),
                    vcpu: Some(vcpu),
                    packets_per_s: Some(*came as f64 / seconds),
                })
                .collect(),
            packets_per_s: counts[0] as f64 / seconds,
            age: Nanos::ZERO,
        });
        flows.collect()
    }

    fn files_since(&self, seconds: f64) -> Vec<FilesView> {
        let mut views: Vec<_> = (0..self.guests.len() as u32)
            .filter(|g| self.lives(*g))
            .filter_map(|g| {
                let seen = self.told_of.get(g as usize).copied().unwrap_or_default();
                Some(FilesView {
                    guest: self.guests[g as usize].id.clone(),
                    bytes: self.files(g)?.capacity,
                    response: (seen.0 > 0).then_some(seen.1),
                    arrivals_per_s: seen.0 as f64 / seconds,
                    age: Nanos::ZERO,
                })
            })
            .collect();
        views.sort_by(|one, other| one.guest.cmp(&other.guest));
        views
    }
}

/// Tenants that a steward looks after, whoever watches them meanwhile.
pub trait Housed: Steered {
    /// Them.
    fn tenants(&self) -> &Tenants;

    /// Them, to do something to.
    fn tenants_mut(&mut self) -> &mut Tenants;
}

impl Housed for Tenants {
    fn tenants(&self) -> &Tenants {
        self
    }

    fn tenants_mut(&mut self) -> &mut Tenants {
        self
    }
}

/// The name of the host's NIC.
pub const NIC: &str = "eth0";

impl Steered for Tenants {
    fn lives(&self, guest: u32) -> bool {
        let guest = &self.guests[guest as usize];
        !guest.dead && !guest.away
    }

    fn latency(&mut self, guest: u32) -> Option<LatencyView> {
        let tap = &self.taps[guest as usize];
        self.told_of[guest as usize] = (tap.count(), tap.mean());
        self.take_latency(guest)
    }

    fn agent(&self, guest: u32) -> Option<(AgentHealth, Option<AgentState>)> {
        Some(self.agent_says(guest))
    }

    fn ask_vcpus(&mut self, guest: u32, vcpus: u32, out: &mut Effects) {
        Tenants::ask_vcpus(self, guest, vcpus, out);
    }

    fn ask_queues(&mut self, guest: u32, queues: u32) {
        Tenants::ask_queues(self, guest, queues);
    }

    fn nic_queues(&self, _nic: u32) -> u32 {
        self.nic.queues
    }

    fn nic_irq(&self, _nic: u32, ring: Ring, queue: u32) -> Option<(CpuId, u64)> {
        let at = queue as usize;
        match ring {
            Ring::Receive => {
                let cpu = self.nic.steering.get(at)?.irq;
                Some((cpu, self.nic.pollers[at].interrupts))
            }
            Ring::Transmit => {
                let sender = self.nic.senders.get(at)?;
                Some((sender.irq, sender.interrupts))
            }
        }
    }

    fn set_nic_queues(&mut self, _nic: u32, queues: u32) {
        Tenants::set_nic_queues(self, queues);
    }

    fn set_nic_irq(&mut self, _nic: u32, ring: Ring, queue: u32, cpu: CpuId) {
        self.set_irq(ring, queue, cpu);
    }

    fn set_nic_xps(&mut self, _nic: u32, sets: &[CpuSet]) {
        self.nic.send_by(sets);
    }

    fn set_nic_rps(&mut self, _nic: u32, queue: u32, cpus: &CpuSet) {
        self.set_rps(queue, cpus.iter());
    }

    fn pins(&self, guest: u32) -> Vec<bool> {
        self.guests[guest as usize].pins()
    }

    fn fill(&mut self, snapshot: &mut Snapshot) {
        let seconds = snapshot.interval.as_secs_f64();
        if seconds <= 0.0 {
            return;
        }
        snapshot.files = self.files_since(seconds);
        if let Some(tiers) = &mut self.tiers {
            tiers.fill(&self.guests, snapshot);
        }
        if self.flows.on {
            snapshot.flows = self.flows_since(seconds);
            snapshot.sockets = self.sockets.tell(&self.ground, snapshot);
        }
    }

    fn carry(&mut self, plan: &Plan, now: Nanos, out: &mut Effects) {
        if let Some(hints) = &plan.hints {
            for guest in &hints.guests {
                self.tell(guest, now, out);
            }
        }
        // A plan that stands moves nothing anew.
        if let Some(tiers) = &mut self.tiers
            && let Some(moves) = plan.tier.as_ref().filter(|tier| tier.since == now)
        {
            tiers.carry(moves);
        }
        if let Some(files) = &plan.files {
            for wanted in &files.guests {
                let number = self.guests.iter().position(|g| g.id == wanted.guest);
                if let Some(number) = number {
                    self.set_files(number as u32, wanted.bytes);
                }
            }
        }
    }
}
