//! Guests come to a host: each in a cgroup of its own, with a thread for each vCPU and vhost worker.

use ostler_model::{CpuSet, Nanos};
use ostler_scenario::Weights;

use super::StewardGuest;
use crate::host::Spawn;
use crate::tenants::{Housed, Owner};
use crate::world::{World, WorldError};

/// Has all tenants come, in order of their numbers; their cgroups may use these cores, and weigh so much.
pub fn house<W: Housed>(
    world: &mut World<W>,
    cpus: CpuSet,
    weights: Weights,
) -> Result<Vec<StewardGuest>, WorldError> {
    world.host.nest_groups(cpus);
    let mut guests = Vec::new();
    for (number, guest) in (0..).zip(&world.work.tenants().guests) {
        guests.push(StewardGuest {
            id: guest.id.clone(),
            name: guest.id.as_str().to_owned(),
            number,
            group: world.host.add_group(),
            weight: weights.of(guest.vcpus.len() as u32),
            vcpus: Vec::new(),
            vhost: Vec::new(),
        });
    }
    for owner in world.work.tenants().owners().to_vec() {
        let (Owner::Vcpu { guest, .. } | Owner::Vhost { guest, .. }) = owner;
        let guest = &mut guests[guest as usize];
        let spawn = Spawn {
            group: Some(guest.group),
            ..Spawn::default()
        };
        let thread = world.host.spawn(spawn, Nanos::ZERO);
        match owner {
            Owner::Vcpu { .. } => guest.vcpus.push(thread),
            Owner::Vhost { .. } => guest.vhost.push(thread),
        }
    }
    for guest in &guests {
        world.act(|host, scene| {
            host.set_weight(guest.group, guest.weight, false, scene.queue.now());
            host.set_cpuset(guest.group, cpus, scene);
        })?;
    }
    Ok(guests)
}
