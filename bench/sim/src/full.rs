//! A busy host with all that a packet passes: clients, a NIC of sixteen queues, softirqs, vhost workers, guests with kernels and tasks of their own.
//!
//! Of four guests one computes on both of its vCPUs without end, one is nginx beside such loops, two are memcached, which answer 2500 requests a second each.

use ostler_model::{CpuSet, Nanos};
use ostler_sim::guest::GuestSpec;
use ostler_sim::guest::spec::Workload;
use ostler_sim::host::{HostCosts, Spawn};
use ostler_sim::load::{Arrivals, LoadSpec, PACKETS, PACKETS_NGINX, Step};
use ostler_sim::net::nic::NicSpec;
use ostler_sim::path::Costs;
use ostler_sim::tenants::{Owner, Tenants, TenantsSpec};
use ostler_sim::world::World;

use super::{CORES, boost, topology};

fn load(guest: u32, rate: f64, packets: u32) -> LoadSpec {
    LoadSpec {
        route: vec![guest],
        connections: 16,
        depth: None,
        acknowledged: false,
        start: Nanos::ZERO,
        steps: vec![Step { rate, seconds: 1e6 }],
        arrivals: Arrivals::Poisson,
        packets,
        slo: Some(Nanos::from_millis(1)),
    }
}

/// So many guests of two vCPUs and a queue pair.
pub fn world(guests: u32, boosted: bool) -> World<Tenants> {
    let costs = Costs::default();
    let mut specs = Vec::new();
    let mut loads = Vec::new();
    for number in 0..guests {
        let workload = match number % 4 {
            0 => Workload::Spin,
            1 => Workload::Mixed,
            _ => Workload::Memcached,
        };
        specs.push(GuestSpec::new(
            &format!("g{number}"),
            2,
            1,
            workload,
            &costs,
        ));
        match workload {
            Workload::Spin => {}
            Workload::Mixed => loads.push(load(number, 1000.0, PACKETS_NGINX)),
            _ => loads.push(load(number, 2500.0, PACKETS)),
        }
    }
    let topology = topology();
    let spec = TenantsSpec {
        guests: specs,
        nic: NicSpec {
            queues: 16,
            ..NicSpec::default()
        },
        irq_cores: CpuSet::range(0, 16),
        loads,
        costs,
        seed: 1,
        first_thread: CORES,
        tiers: None,
    };
    let tenants = Tenants::new(spec, &topology).expect("tenants that can be");
    let owners = tenants.owners().to_vec();
    let mut world = World::new(&topology, HostCosts::of(CORES), tenants);
    let mut groups = Vec::new();
    let mut members = Vec::new();
    for owner in owners {
        let (guest, works) = match owner {
            Owner::Vcpu { guest, .. } => (guest, false),
            Owner::Vhost { guest, .. } => (guest, true),
        };
        if guest as usize == groups.len() {
            groups.push(world.host.add_group());
        }
        let spawn = Spawn {
            group: Some(groups[guest as usize]),
            ..Spawn::default()
        };
        members.push((world.host.spawn(spawn, Nanos::ZERO), works));
    }
    if boosted {
        boost(&mut world, &members);
    }
    world
        .act(|_, scene| scene.work.begin(scene.out))
        .expect("time goes on");
    world
}
