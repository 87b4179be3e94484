use ostler_model::{CpuId, CpuUsage, NodeId, Snapshot};

use super::*;
use crate::steward::Steered as _;

/// What the first node's counters say of a guest's packets there, by the node of the NIC.
fn seen(nic: u32) -> (f64, f64, f64) {
    let costs = Costs::bulk();
    let mut world = Driver::new(TenantsSpec {
        guests: vec![GuestSpec::new("g", 1, 1, Workload::Forward, &costs)],
        nic: NicSpec {
            moderation: Nanos::ZERO,
            node: NodeId(nic),
            ..NicSpec::default()
        },
        irq_cores: CpuSet::single(CpuId(0)),
        loads: vec![load(&[0], 1000.0, 1.0, Arrivals::Even)],
        costs,
        seed: 1,
        first_thread: 0,
        tiers: None,
    });
    world.work.inner.count_flows();
    world.run(secs(2));
    assert_eq!(world.work.inner.clients[0].books.answered, 999);
    let mut snapshot = Snapshot {
        interval: secs(1),
        ..Snapshot::default()
    };
    snapshot.cpus.push(CpuUsage {
        cpu: CpuId(0),
        busy: Nanos::from_millis(10),
        irq: Nanos::ZERO,
        softirq: Nanos::ZERO,
    });
    world.work.inner.fill(&mut snapshot);
    let first = snapshot.sockets[0];
    assert_eq!(first.node, NodeId(0));
    let again = snapshot.sockets.len();
    world.work.inner.fill(&mut snapshot);
    assert_eq!(snapshot.sockets.len(), again);
    assert_eq!(
        (snapshot.sockets[0].l3_hit, snapshot.sockets[0].cycle_loss),
        (1.0, 0.0),
        "told once"
    );
    (first.l3_hit, first.cycle_loss, first.ipc)
}

#[test]
fn a_socket_counts_what_its_stages_take_up_from_another() {
    assert_eq!(seen(0), (1.0, 0.0, 1.0));
    let (hit, loss, ipc) = seen(1);
    // Of four stages of each of 999 messages, the softirq finds its in the memory of the other node.
    assert!((hit - 3.0 / 4.0).abs() < 1e-9, "{hit}");
    let wanted = 999.0 * 248.0 / 1e7;
    assert!((loss - wanted).abs() < 1e-9, "{loss} for {wanted}");
    assert!((ipc - (1.0 - wanted)).abs() < 1e-9, "{ipc}");
}
