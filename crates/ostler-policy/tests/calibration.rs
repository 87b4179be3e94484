//! Weights found from what a host has seen, where it is known what they are.

mod support;

use std::sync::Arc;

use ostler_model::{
    CpuId, CpuSet, FlowView, Hop, Intent, Nanos, NodeId, PartitionPolicy, PlacementPlan,
    PlacementSettings, Plan, QueueCore, Snapshot, SocketView, State, ThreadCore, ThreadUsage,
};
use ostler_policy::{Calibration, StageKind};
use proptest::prelude::*;
use support::{decide_now, guest, intent, nanos, snapshot};

/// What a worker takes for a packet by the index's measure, ns.
const PACKET_NS: f64 = 50.0;
const PACKETS_PER_S: f64 = 2e5;
/// How long each placement stays.
const PERIODS: u64 = 40;
/// As long as nothing is to be learned after a move.
const SETTLES: u64 = 9;
const PLACES: [(u32, u32); 6] = [(2, 3), (2, 4), (4, 2), (4, 5), (5, 3), (3, 2)];

/// A plan that says so; where threads are, snapshots tell.
fn placed(plan: &Plan, softirq: u32, worker: u32) -> Arc<Plan> {
    Arc::new(Plan {
        placement: Some(Arc::new(PlacementPlan {
            since: Nanos::ZERO,
            softirqs: vec![QueueCore {
                nic: "eth0".into(),
                queue: 0,
                cpu: CpuId(softirq),
            }],
            workers: vec![ThreadCore {
                guest: "lc0".into(),
                at: 0,
                cpu: CpuId(worker),
            }],
            vcpus: Vec::new(),
        })),
        ..plan.clone()
    })
}

/// Has a snapshot show it.
fn shows(snapshot: &mut Snapshot, softirq: u32, worker: u32) {
    for irq in &mut snapshot.nics[0].irqs {
        irq.affinity = CpuSet::single(CpuId(softirq));
    }
    snapshot.guests[0].vhost[0].allowed = CpuSet::single(CpuId(worker));
}

/// Two nodes of four cores each, one cache each; a guest to whose first worker one queue's packets come.
fn world() -> (ostler_model::Facts, Intent, Snapshot, Plan) {
    let mut facts = support::facts(8);
    for cpu in &mut facts.topology.cpus {
        cpu.node = NodeId(cpu.id.0 / 4);
        cpu.cache_group = CpuId(cpu.id.0 / 4 * 4);
    }
    facts.nics[0].queues_max = 6;
    let mut intent = intent(PartitionPolicy::Static { vcpu: 2, nq: 6 });
    intent.placement = Some(PlacementSettings::default());
    let mut snapshot = snapshot(&facts, vec![guest("lc0", 2, 4)]);
    snapshot.flows = vec![FlowView {
        nic: "eth0".into(),
        queue: 0,
        hops: vec![Hop {
            guest: "lc0".into(),
            queue: Some(0),
            vcpu: None,
            packets_per_s: None,
        }],
        packets_per_s: PACKETS_PER_S,
        age: Nanos::ZERO,
    }];
    let plan = decide_now(&facts, &snapshot, &intent, &State::default()).plan;
    (facts, intent, snapshot, plan)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn weights_are_found_in_what_a_host_has_seen(
        planted in proptest::array::uniform6(0.1..3.0_f64),
        drawn in proptest::collection::vec((2..=20_u8, 0..=10_u8, 5..=20_u8, 0..=15_u8), 2 * 6 * 40),
    ) {
        let (facts, intent, mut snapshot, plan) = world();
        let [cache, memory, interconnect, remote, load, base] = planted;
        let mut calibration = Calibration::default();
        let mut least = f64::INFINITY;
        let mut drawn = drawn.chunks(2);
        let plans = PLACES.map(|(softirq, worker)| placed(&plan, softirq, worker));
        calibration.see(&facts, &snapshot, &intent, &plans[0], true);
        for (at, (softirq, worker)) in PLACES.into_iter().enumerate() {
            for period in 0..PERIODS {
                let two = drawn.next().expect("enough are drawn");
                shows(&mut snapshot, softirq, worker);
                snapshot.seq += 1;
                snapshot.at = snapshot.at.saturating_add(snapshot.interval);
                let view = |node: usize| SocketView {
                    node: NodeId(u32::try_from(node).expect("two")),
                    l3_hit: f64::from(two[node].0) / 20.0,
                    cycle_loss: f64::from(two[node].1) / 20.0,
                    ipc: f64::from(two[node].2) / 10.0,
                    age: Nanos::ZERO,
                };
                snapshot.sockets = vec![view(0), view(1)];
                let busy = f64::from(two[0].3) / 16.0;
                let core = snapshot.cpus.iter_mut().find(|usage| usage.cpu.0 == worker);
                core.expect("it is there").busy = nanos(busy);
                let (from, to) = (softirq / 4, worker / 4);
                let (there, here) = (view(from as usize), view(to as usize));
                let index = base + cache / here.l3_hit
                    + memory * there.cycle_loss
                    + interconnect * here.cycle_loss * f64::from(from.abs_diff(to))
                    + remote * there.ipc / here.ipc
                    + load * busy / (1.0 - busy);
                // What it took just after a move, or with no time left, is anything.
                let tells = period >= SETTLES && busy < 0.8;
                let took = if tells { PACKET_NS * index } else { 7.0 };
                if tells {
                    least = least.min(index);
                }
                let all = nanos(took * PACKETS_PER_S / 1e9).0;
                snapshot.guests[0].vhost[0].usage = ThreadUsage {
                    run: Nanos(all / 3),
                    wait: Nanos(all - all / 3),
                };
                // What is decided of this is in force from the next on.
                let next = at + usize::from(period + 1 == PERIODS);
                let plan = &plans[next.min(PLACES.len() - 1)];
                calibration.see(&facts, &snapshot, &intent, plan, true);
            }
        }
        let samples = calibration.samples(StageKind::Vhost);
        prop_assume!(samples.len() >= 100);
        let found = calibration.weights(StageKind::Vhost, &intent);
        let found = found.expect("so many differ");
        let weights = found.calibrated.weights;
        let all = [weights.cache, weights.memory, weights.interconnect, weights.remote, weights.load, weights.base];
        for (found, planted) in all.iter().zip(planted) {
            prop_assert!((found * least - planted).abs() < 0.02, "{all:?} {planted:?} {least}");
        }
        prop_assert!((weights.crossing - 1.0).abs() < 1e-12, "nothing tells of it");
        prop_assert!(found.calibrated.error < 1e-3);
        // Nobody has seen softirqs take any time.
        prop_assert!(calibration.weights(StageKind::Softirq, &intent).is_err());
    }
}

#[test]
fn a_gap_in_what_was_seen_is_no_time_in_a_place() {
    let (facts, intent, mut snapshot, plan) = world();
    let plan = placed(&plan, 2, 3);
    shows(&mut snapshot, 2, 3);
    let view = |node| SocketView {
        node: NodeId(node),
        l3_hit: 0.5,
        cycle_loss: 0.1,
        ipc: 1.0,
        age: Nanos::ZERO,
    };
    snapshot.sockets = vec![view(0), view(1)];
    snapshot.guests[0].vhost[0].usage.run = Nanos(10_000_000);
    let mut seen = |gap: u64, pause: bool| {
        let mut calibration = Calibration::default();
        for period in 0..16 {
            snapshot.seq += if period == 8 { 1 + gap } else { 1 };
            snapshot.at = snapshot.at.saturating_add(snapshot.interval);
            if period == 8 && pause {
                calibration.pause();
            }
            calibration.see(&facts, &snapshot, &intent, &plan, true);
        }
        let refused = calibration.weights(StageKind::Vhost, &intent);
        let why = refused.expect_err("they are few").to_string();
        assert!(why.contains("fewer than a hundred"), "{why}");
        calibration.samples(StageKind::Vhost).len()
    };
    assert_eq!(seen(0, false), 6);
    assert_eq!(seen(1, false), 0);
    assert_eq!(seen(0, true), 0);
}
