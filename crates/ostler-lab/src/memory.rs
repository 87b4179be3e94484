//! What accesses to the emulated host's memory cost, where its scenario names a part: the host as `machine/memory` describes
//! machines, which the plugin is given as a file.

use ostler_machine_memory::{Catalogue, Cores, Node, Range, System, Topology, TopologyError};

use crate::scenario::{Caches, Host};

/// QEMU's q35 keeps addresses below 4 GiB for devices: where memory reaches 2.75 GiB, it goes on at 4 GiB after the first two.
const HOLE_FROM: u64 = 0xb000_0000;
const SPLIT_AT: u64 = 0x8000_0000;
const HIGH: u64 = 0x1_0000_0000;

/// The host's cores, caches and memory.
pub fn topology(host: &Host, caches: &Caches) -> Topology {
    let count = host.cpus.count() as usize;
    let node_of = |cpu: usize| {
        let holds = |node: &crate::scenario::Node| node.cpus.iter().any(|c| c.0 as usize == cpu);
        host.nodes.iter().position(holds).unwrap_or(0)
    };
    // A block for each node, so that groups begin anew in each.
    let mut cores: Vec<Cores> = Vec::new();
    for cpu in 0..count {
        let node = node_of(cpu);
        match cores.last_mut() {
            Some(block) if block.node == node => block.last = cpu,
            _ => cores.push(Cores {
                first: cpu,
                last: cpu,
                part: caches.part.clone(),
                node,
                group_cores: host.cache_group_cores.map(|n| n as usize),
                group_of: None,
            }),
        }
    }
    let total: u64 = host.nodes.iter().map(|node| node.memory_mib << 20).sum();
    let low = if total >= HOLE_FROM { SPLIT_AT } else { total };
    let mut start = 0;
    let nodes = host.nodes.iter().map(|node| {
        let end = start + (node.memory_mib << 20);
        let ranges = ranges(start, end, low);
        start = end;
        let far = node.cpus.is_empty();
        Node {
            ranges,
            // Near memory is the part's own; far memory is what the scenario says of it.
            latency_ns: far.then_some(u64::from(node.latency_ns)),
            mb_per_s: far.then_some(u64::from(node.bandwidth_mib_per_s) * (1 << 20) / 1_000_000),
            ..Node::default()
        }
    });
    Topology {
        nodes: nodes.collect(),
        cores,
        ..Topology::default()
    }
}

/// Physical addresses of the memory from `start` to `end`, counted from the first byte of it.
fn ranges(start: u64, end: u64, low: u64) -> Vec<Range> {
    let below = (start < low).then(|| Range {
        start,
        bytes: end.min(low) - start,
    });
    let above = (end > low).then(|| {
        let from = start.max(low);
        Range {
            start: HIGH + from - low,
            bytes: end - from,
        }
    });
    below.into_iter().chain(above).collect()
}

/// What an instruction of a part costs without its memory, ns: a cycle. `None` for a part that isn't known.
pub fn cycle_ns(part: &str) -> Option<f64> {
    let catalogue = Catalogue::built_in();
    let part = catalogue.part(part)?;
    // The plugin takes whole picoseconds.
    Some((1e6 / f64::from(part.clock_mhz)).round() / 1000.0)
}

/// Whether the host can be modelled so.
pub fn check(host: &Host, caches: &Caches) -> Result<(), TopologyError> {
    System::new(&topology(host, caches), &Catalogue::built_in()).map(|_| ())
}

#[cfg(test)]
mod tests {
    use ostler_model::{CpuId, CpuSet};

    use super::*;
    use crate::scenario::{Cpus, Node as LabNode};

    fn host(nodes: Vec<LabNode>) -> Host {
        Host {
            cpus: Cpus {
                sockets: 2,
                cores: 2,
                threads: 1,
            },
            nodes,
            under_test: CpuSet::range(0, 3),
            client: CpuSet::single(CpuId(3)),
            pnic_queues: 1,
            instruction_ns: 0.294,
            caches: None,
            cache_group_cores: Some(1),
        }
    }

    fn node(memory_mib: u64, cpus: CpuSet) -> LabNode {
        LabNode {
            memory_mib,
            cpus,
            latency_ns: 250,
            bandwidth_mib_per_s: 1000,
        }
    }

    fn caches() -> Caches {
        Caches {
            part: "epyc-7742".into(),
        }
    }

    #[test]
    fn memory_goes_on_behind_the_devices() {
        let host = host(vec![
            node(1024, CpuSet::range(0, 2)),
            node(2048, CpuSet::range(2, 4)),
            node(512, CpuSet::EMPTY),
        ]);
        let topology = topology(&host, &caches());
        let ranges: Vec<Vec<(u64, u64)>> = topology
            .nodes
            .iter()
            .map(|node| node.ranges.iter().map(|r| (r.start, r.bytes)).collect())
            .collect();
        let gib = 1 << 30;
        assert_eq!(
            ranges,
            [
                vec![(0, gib)],
                vec![(gib, gib), (4 * gib, gib)],
                vec![(5 * gib, gib / 2)]
            ]
        );
        assert_eq!(topology.nodes[0].latency_ns, None);
        assert_eq!(
            (topology.nodes[2].latency_ns, topology.nodes[2].mb_per_s),
            (Some(250), Some(1048))
        );
        assert_eq!(topology.cores.len(), 2);
        assert_eq!(check(&host, &caches()), Ok(()));
        // As the plugin reads it.
        let text = toml::to_string(&topology).expect("plain data");
        assert_eq!(Topology::parse(&text), Ok(topology));
    }

    #[test]
    fn less_than_the_hole_is_in_one_piece() {
        let host = host(vec![node(2048, CpuSet::range(0, 4))]);
        let topology = topology(&host, &caches());
        assert_eq!(topology.nodes[0].ranges.len(), 1);
        assert_eq!(topology.nodes[0].ranges[0].bytes, 2 << 30);
    }

    #[test]
    fn a_cycle_is_the_clocks() {
        assert_eq!(cycle_ns("epyc-7742"), Some(0.294));
        assert_eq!(cycle_ns("z80"), None);
    }
}
