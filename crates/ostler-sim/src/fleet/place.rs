//! Which host a VM comes to: of those that have room for what it asks for, the first, the fullest or the emptiest.
//!
//! Room is a host's vCPUs (cores times oversubscription) and its memory, which is never oversubscribed. VMs are placed when they come, by what is there then, and stay. One
//! that fits nowhere is turned away.

use ostler_model::Nanos;
use ostler_scenario::FleetPlacement;

use super::Demand;

/// What a host has room for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Room {
    /// vCPUs.
    pub vcpus: f64,
    /// Memory.
    pub bytes: u64,
}

/// Where VMs are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placed {
    /// For each host, its VMs by their place in the demand, in order of coming.
    pub hosts: Vec<Vec<usize>>,
    /// The most vCPUs that each had at a time.
    pub peaks: Vec<u32>,
    /// Who fitted nowhere.
    pub turned_away: Vec<usize>,
}

/// Places all VMs.
pub fn place(demand: &Demand, hosts: u32, room: Room, by: FleetPlacement) -> Placed {
    let count = hosts as usize;
    let mut placed = Placed {
        hosts: vec![Vec::new(); count],
        peaks: vec![0; count],
        turned_away: Vec::new(),
    };
    let mut had = vec![(0_u32, 0_u64); count];
    // Who goes at a time makes room for who comes then.
    let mut leaving: std::collections::BTreeSet<(Nanos, usize, usize)> =
        std::collections::BTreeSet::new();
    for (at, vm) in demand.vms.iter().enumerate() {
        while let Some((until, other, host)) = leaving.first().copied()
            && until <= vm.from
        {
            leaving.pop_first();
            had[host].0 -= demand.vms[other].vm.cores;
            had[host].1 -= demand.vms[other].vm.memory;
        }
        let fits = |host: &usize| {
            let (vcpus, bytes) = had[*host];
            f64::from(vcpus.saturating_add(vm.vm.cores)) <= room.vcpus
                && bytes.saturating_add(vm.vm.memory) <= room.bytes
        };
        let mut able = (0..count).filter(fits);
        let host = match by {
            FleetPlacement::FirstFit => able.next(),
            // Of several as full, the first.
            FleetPlacement::BestFit => able.max_by_key(|host| (had[*host].0, count - host)),
            FleetPlacement::WorstFit => able.min_by_key(|host| (had[*host].0, *host)),
        };
        let Some(host) = host else {
            placed.turned_away.push(at);
            continue;
        };
        had[host].0 += vm.vm.cores;
        had[host].1 += vm.vm.memory;
        placed.peaks[host] = placed.peaks[host].max(had[host].0);
        placed.hosts[host].push(at);
        leaving.insert((vm.until, at, host));
    }
    placed
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::VmDemand;
    use super::*;
    use crate::trace::{Category, Vm, VmId};

    fn demand(vms: &[(u64, u64, u32, u64)]) -> Demand {
        let vms = vms.iter().zip(0..).map(|((from, lasts, cores, gb), id)| {
            let vm = Vm {
                id: VmId(id),
                subscription: VmId(0),
                deployment: VmId(0),
                created: *from,
                deleted: from + lasts,
                cpu_max: 90.0,
                cpu_mean: 20.0,
                cpu_p95: 50.0,
                category: Category::Unknown,
                cores: *cores,
                memory: gb << 30,
            };
            VmDemand {
                vm,
                from: Nanos::from_secs(*from),
                until: Nanos::from_secs(from + lasts),
                busy: vec![(Nanos::from_secs(*from), 0.2)],
            }
        });
        let mut vms: Vec<_> = vms.collect();
        vms.sort_by_key(|vm| vm.from);
        Demand {
            lasts: Nanos::from_secs(1000),
            vms,
        }
    }

    const ROOM: Room = Room {
        vcpus: 8.0,
        bytes: 16 << 30,
    };

    #[test]
    fn each_rule_chooses_among_those_that_have_room() {
        let vms = [
            (0, 100, 4, 1),
            (1, 100, 2, 1),
            (2, 100, 2, 1),
            (3, 100, 4, 1),
            (4, 1, 9, 1),
        ];
        let hosts = |by| place(&demand(&vms), 2, ROOM, by);
        let first = hosts(FleetPlacement::FirstFit);
        assert_eq!(first.hosts, [vec![0, 1, 2], vec![3]]);
        assert_eq!((first.peaks, first.turned_away), (vec![8, 4], vec![4]));
        assert_eq!(
            hosts(FleetPlacement::BestFit).hosts,
            [vec![0, 1, 2], vec![3]]
        );
        assert_eq!(
            hosts(FleetPlacement::WorstFit).hosts,
            [vec![0, 3], vec![1, 2]]
        );
    }

    proptest! {
        /// At no time does a host have more than it has room for, each VM is somewhere or turned away, and nobody is turned away who would have fitted.
        #[test]
        fn no_host_is_ever_too_full(
            vms in proptest::collection::vec((0_u64..200, 1_u64..100, 1_u32..7, 1_u64..9), 0..60),
            hosts in 1_u32..5,
            by in 0..3_usize,
        ) {
            let by = [FleetPlacement::FirstFit, FleetPlacement::BestFit, FleetPlacement::WorstFit][by];
            let demand = demand(&vms);
            let placed = place(&demand, hosts, ROOM, by);
            let mut all: Vec<usize> = placed.hosts.iter().flatten().copied().chain(placed.turned_away.iter().copied()).collect();
            all.sort_unstable();
            prop_assert_eq!(all, (0..demand.vms.len()).collect::<Vec<_>>());
            // At each coming, counted anew.
            for (at, vm) in demand.vms.iter().enumerate() {
                for host in &placed.hosts {
                    let there = || host.iter().filter(|other| {
                        let other_vm = &demand.vms[**other];
                        **other <= at && other_vm.from <= vm.from && vm.from < other_vm.until
                    });
                    let vcpus: u32 = there().map(|other| demand.vms[*other].vm.cores).sum();
                    let bytes: u64 = there().map(|other| demand.vms[*other].vm.memory).sum();
                    prop_assert!(f64::from(vcpus) <= ROOM.vcpus && bytes <= ROOM.bytes);
                    if placed.turned_away.contains(&at) {
                        let fits = f64::from(vcpus + vm.vm.cores) <= ROOM.vcpus && bytes + vm.vm.memory <= ROOM.bytes;
                        prop_assert!(!fits, "VM {at} would have fitted");
                    }
                }
            }
        }
    }
}
