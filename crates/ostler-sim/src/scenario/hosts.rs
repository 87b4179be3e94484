//! The host: which cores are where.

use ostler_machine_memory::Catalogue;
use ostler_model::{Cpu, CpuId, NodeId, Topology};
use ostler_scenario::Host;

use crate::memory::Node;

/// The host's cores. CPUs are numbered as QEMU numbers them: threads of a core are neighbours, and cores of a socket. Those that share a last-level
/// cache are counted anew in each node: as many as the scenario says, else as its part has, else all of a socket.
pub fn topology(host: &Host) -> Topology {
    let count = host.cpus.count();
    let of_socket = host.cpus.cores * host.cpus.threads;
    let part = host.caches.as_ref();
    let part = part.and_then(|caches| {
        let catalogue = Catalogue::built_in();
        // A part without an L3 shares none.
        let l3 = catalogue.part(&caches.part)?.l3;
        Some(l3.map_or(host.cpus.threads, |l3| {
            u32::try_from(l3.cores).unwrap_or(u32::MAX) * host.cpus.threads
        }))
    });
    let group = host
        .cache_group_cores
        .or(part)
        .unwrap_or(of_socket)
        .clamp(1, of_socket.max(1));
    let node_of = |cpu: CpuId| {
        let node = host.nodes.iter().position(|node| node.cpus.contains(cpu));
        node.unwrap_or(0)
    };
    // In each node and socket, groups are counted from its first CPU on.
    let mut firsts = std::collections::BTreeMap::new();
    let cpus = (0..count).map(|id| {
        let node = node_of(CpuId(id));
        let (first, seen) = firsts.entry((node, id / of_socket)).or_insert((id, 0));
        if *seen == group {
            (*first, *seen) = (id, 0);
        }
        *seen += 1;
        Cpu {
            id: CpuId(id),
            node: NodeId(u32::try_from(node).unwrap_or(0)),
            core: CpuId(id / host.cpus.threads * host.cpus.threads),
            cache_group: CpuId(*first),
        }
    });
    Topology {
        cpus: cpus.collect(),
    }
}

/// The host's memory nodes, in order.
pub fn nodes(host: &Host) -> Vec<Node> {
    let nodes = host.nodes.iter().map(|node| Node {
        bytes: node.memory_mib << 20,
        local: !node.cpus.is_empty(),
        latency_ns: f64::from(node.latency_ns),
        bytes_per_s: f64::from(node.bandwidth_mib_per_s) * f64::from(1 << 20),
    });
    nodes.collect()
}

#[cfg(test)]
mod tests {
    use ostler_model::CpuSet;
    use ostler_scenario::{Caches, Cpus, Node as HostNode};

    use super::*;

    fn host(cpus: (u32, u32, u32), nodes: &[CpuSet], group: Option<u32>) -> Host {
        let all = cpus.0 * cpus.1 * cpus.2;
        Host {
            cpus: Cpus {
                sockets: cpus.0,
                cores: cpus.1,
                threads: cpus.2,
            },
            nodes: nodes
                .iter()
                .map(|cpus| HostNode {
                    memory_mib: 1024,
                    cpus: *cpus,
                    latency_ns: 80,
                    bandwidth_mib_per_s: 1000,
                })
                .collect(),
            under_test: CpuSet::range(0, all),
            client: CpuSet::EMPTY,
            pnic_queues: 1,
            instruction_ns: 1.0,
            caches: None,
            cache_group_cores: group,
        }
    }

    #[test]
    fn siblings_nodes_and_cache_groups_are_where_the_scenario_has_them() {
        let nodes = [CpuSet::range(0, 6), CpuSet::range(6, 12), CpuSet::EMPTY];
        let topology = topology(&host((2, 3, 2), &nodes, Some(4)));
        let groups: Vec<u32> = topology.cpus.iter().map(|c| c.cache_group.0).collect();
        assert_eq!(groups, [0, 0, 0, 0, 4, 4, 6, 6, 6, 6, 10, 10]);
        assert_eq!(topology.cpus[7].core, CpuId(6));
        assert_eq!(topology.cpus[7].node, NodeId(1));
        assert_eq!(topology.siblings(CpuId(11)).to_string(), "10-11");
    }

    #[test]
    fn without_a_word_a_socket_shares_its_cache_and_a_part_has_its_own() {
        let all = [CpuSet::range(0, 16)];
        let mut host = host((2, 8, 1), &all, None);
        let groups = |host: &Host| {
            let mut groups: Vec<u32> = topology(host)
                .cpus
                .iter()
                .map(|c| c.cache_group.0)
                .collect();
            groups.dedup();
            groups
        };
        assert_eq!(groups(&host), [0, 8]);
        host.caches = Some(Caches {
            part: "epyc-7742".into(),
        });
        assert_eq!(groups(&host), [0, 4, 8, 12], "four cores to an L3");
    }
}
