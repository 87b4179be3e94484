use ostler_model::{CpuId, CpuUsage, FlowView, NodeId, Snapshot};

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
        yielding: None,
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

/// So many guests' messages, two in a moment, come to the first node from the NIC's, for a second; and again the first one's, two seconds later. Beside them is one
/// that works on much memory there, or not.
fn crowded(asked: u32, works: bool) -> Driver {
    let costs = Costs::bulk();
    let mut guests = Vec::new();
    if works {
        guests.push(GuestSpec {
            memory_waits: 0.5,
            ..GuestSpec::new("works", 1, 1, Workload::Spin, &costs)
        });
    }
    let first = guests.len() as u32;
    for number in 0..asked {
        let name = format!("g{number}");
        guests.push(GuestSpec::new(&name, 1, 1, Workload::Forward, &costs));
    }
    let each = |number: u32| load(&[first + number], 2000.0, 1.0, Arrivals::Even);
    let mut loads: Vec<_> = (0..asked).map(each).collect();
    loads.push(LoadSpec {
        start: secs(3),
        ..each(0)
    });
    let mut world = Driver::new(TenantsSpec {
        guests,
        nic: NicSpec {
            moderation: Nanos::ZERO,
            node: NodeId(1),
            ..NicSpec::default()
        },
        irq_cores: CpuSet::single(CpuId(0)),
        loads,
        costs,
        seed: 1,
        first_thread: 0,
        tiers: None,
    });
    world.work.inner.count_flows();
    world
}

/// What penalties are times on the first node.
fn times(world: &Driver) -> f64 {
    let pressure = world.work.inner.crowds.pressure(NodeId(0));
    f64::from(pressure) / f64::from(crate::work::FULL_SPEED)
}

#[test]
fn guests_at_a_node_have_each_other_wait_longer() {
    let loss = |guests: u32| {
        let mut world = crowded(guests, false);
        world.run(secs(1));
        let mut snapshot = Snapshot {
            interval: secs(1),
            ..Snapshot::default()
        };
        snapshot.cpus.push(CpuUsage {
            cpu: CpuId(0),
            busy: secs(1),
            irq: Nanos::ZERO,
            softirq: Nanos::ZERO,
            yielding: None,
        });
        world.work.inner.fill(&mut snapshot);
        (
            times(&world),
            snapshot.sockets[0].cycle_loss / f64::from(guests),
        )
    };
    let (alone, waits) = loss(1);
    assert!((alone - 1.0).abs() < 0.001, "{alone}");
    let (five, each) = loss(5);
    assert!((five - 3.8).abs() < 0.001, "{five}");
    assert!((each / waits - 3.8).abs() < 0.1, "{each} for {waits}");
}

#[test]
fn who_works_on_much_memory_of_a_node_is_there_too() {
    let mut world = crowded(1, true);
    world.run(secs(1));
    assert!((times(&world) - 1.7).abs() < 0.001, "{}", times(&world));
}

#[test]
fn who_was_at_a_node_a_while_ago_is_there_no_longer() {
    let mut world = crowded(2, false);
    world.run(secs(1));
    assert!((times(&world) - 1.7).abs() < 0.001, "{}", times(&world));
    // The first message in two seconds.
    world.run(Nanos(secs(3).0 + 900_000));
    assert!((times(&world) - 1.0).abs() < 0.001, "{}", times(&world));
}

#[test]
fn hops_say_how_many_came_as_far() {
    let mut world = crowded(1, false);
    // From half of the time on nobody answers, and nothing comes out of its queue.
    world.run(Nanos::from_millis(500));
    world.act(|tenants, now, out| tenants.kill(0, now, out));
    world.run(secs(1));
    let mut snapshot = Snapshot {
        interval: secs(1),
        ..Snapshot::default()
    };
    world.work.inner.fill(&mut snapshot);
    let sum = |of: &dyn Fn(&FlowView) -> f64| snapshot.flows.iter().map(of).sum::<f64>();
    let by_nic = sum(&|flow| flow.packets_per_s);
    let came = sum(&|flow| flow.hops[0].packets_per_s.unwrap_or(-1.0));
    assert!((by_nic - 2000.0).abs() < 10.0, "{by_nic}");
    assert!((came - 1000.0).abs() < 10.0, "{came}");
}
