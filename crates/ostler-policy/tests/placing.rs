//! Placement within a decision, on a host small enough to reason about.

mod support;

use std::sync::Arc;

use ostler_check::check;
use ostler_model::{
    CpuId, CpuSet, Facts, FlowView, Hop, Intent, Nanos, NodeId, PartitionPolicy, PlacementPlan,
    PlacementSettings, Reason, Ring, Snapshot, SocketView, State,
};
use ostler_policy::Decision;
use support::{busy, decide_now, guest, intent, nanos, sends, set, snapshot};

/// Two nodes of four cores; cores of a node share a cache. The NIC is near node 1, whose back the queues' cores are taken from.
fn host() -> Facts {
    let mut facts = support::facts(8);
    for cpu in &mut facts.topology.cpus {
        cpu.node = NodeId(cpu.id.0 / 4);
        cpu.cache_group = CpuId(cpu.id.0 / 4 * 4);
    }
    facts.nics[0].node = Some(NodeId(1));
    facts.nics[0].queues_max = 6;
    facts
}

fn placing(policy: PartitionPolicy) -> Intent {
    let mut intent = intent(policy);
    intent.placement = Some(PlacementSettings::default());
    intent
}

fn socket(node: u32, l3_hit: f64) -> SocketView {
    SocketView {
        node: NodeId(node),
        l3_hit,
        cycle_loss: 0.1,
        ipc: 1.0,
        age: Nanos::ZERO,
    }
}

fn flow(queue: u32, guest: &str, packets_per_s: f64) -> FlowView {
    FlowView {
        nic: "eth0".into(),
        queue,
        hops: vec![Hop {
            guest: guest.into(),
            queue: Some(queue),
            vcpu: None,
            packets_per_s: None,
        }],
        packets_per_s,
        age: Nanos::ZERO,
    }
}

/// One guest of four workers and two vCPUs, and packets by two queues.
fn seen(facts: &Facts) -> Snapshot {
    let mut snapshot = snapshot(facts, vec![guest("lc0", 2, 4)]);
    snapshot.sockets = vec![socket(0, 0.9), socket(1, 0.9)];
    snapshot.flows = vec![flow(0, "lc0", 5e5), flow(1, "lc0", 4e5)];
    snapshot
}

/// Six cores for queues: two of node 0 and all of node 1.
const SPLIT: PartitionPolicy = PartitionPolicy::Static { vcpu: 2, nq: 6 };

fn decided(facts: &Facts, snapshot: &Snapshot, intent: &Intent, state: &State) -> Decision {
    let decision = decide_now(facts, snapshot, intent, state);
    let violations = check(facts, snapshot, intent, None, &decision.plan);
    assert_eq!(violations, []);
    decision
}

fn placement(decision: &Decision) -> &Arc<PlacementPlan> {
    decision.plan.placement.as_ref().expect("it is placed")
}

fn cores(placement: &PlacementPlan) -> Vec<u32> {
    let softirqs = placement.softirqs.iter().map(|queue| queue.cpu.0);
    let workers = placement.workers.iter().map(|thread| thread.cpu.0);
    softirqs.chain(workers).collect()
}

#[test]
fn queues_and_their_workers_go_where_packets_are_slowed_down_least() {
    let facts = host();
    let mut intent = placing(SPLIT);
    let alike = decided(&facts, &seen(&facts), &intent, &State::default());
    assert_eq!(alike.plan.groups.nq, set("2-7"));
    let four = cores(placement(&alike));
    // Half a core's work each: one to a core, on the NIC's node.
    let distinct: CpuSet = four.iter().map(|&cpu| CpuId(cpu)).collect();
    assert_eq!(distinct, set("4-7"), "{four:?}");

    // Where that node's cache serves nobody, the other's two cores have to do.
    let mut crowded = seen(&facts);
    crowded.sockets[1] = socket(1, 0.01);
    crowded.flows = vec![flow(0, "lc0", 4e5), flow(1, "lc0", 3e5)];
    sends(&mut crowded);
    let placed = decided(&facts, &crowded, &intent, &State::default());
    let distinct: CpuSet = cores(placement(&placed)).into_iter().map(CpuId).collect();
    assert_eq!(distinct, set("2-3"));
    // What the plan of NICs and guests says is the same, and threads that no packet comes by stay partition's.
    let nic = &placed.plan.nics[0];
    for queue in &placement(&placed).softirqs {
        let irq = nic.irqs[queue.queue as usize];
        let own = nic.irqs.iter().filter(|irq| irq.queue == queue.queue);
        let rings: Vec<_> = own.map(|irq| (irq.ring, irq.cpus)).collect();
        let there = CpuSet::single(queue.cpu);
        assert_eq!(
            rings,
            [(Ring::Receive, there), (Ring::Transmit, there)],
            "both rings'"
        );
        // Who sends from there does by that queue, or by another whose interrupt is there.
        let by = nic.xps.iter().position(|cpus| cpus.contains(queue.cpu));
        assert_eq!(nic.irqs[by.unwrap()].cpus, irq.cpus);
    }
    intent.placement = None;
    let turns = decided(&facts, &crowded, &intent, &State::default());
    let pins = |decision: &Decision| decision.plan.guests[0].vhost_pins.clone();
    assert_eq!(pins(&placed)[2..], pins(&turns)[2..]);
    assert_ne!(pins(&placed)[..2], pins(&turns)[..2]);
}

/// The guest's vCPU stays where it is, on a node whose cache had nothing of the few things that it was asked for. That is a stage as slow as memory, whatever is done; it doesn't
/// hide what another core for the others is worth.
#[test]
fn a_cache_that_had_nothing_hides_no_gain_elsewhere() {
    let facts = host();
    let intent = placing(SPLIT);
    let mut seen = seen(&facts);
    seen.guests[0].vcpus[0].allowed = set("0");
    seen.flows.truncate(1);
    seen.flows[0].hops[0].vcpu = Some(0);
    seen.sockets[0] = socket(0, 0.0);
    let first = decided(&facts, &seen, &intent, &State::default());
    let before = cores(placement(&first));
    // Others have these cores by now.
    let mut later = seen.clone();
    later.at = Nanos::from_secs(5);
    let theirs: CpuSet = before.iter().map(|&cpu| CpuId(cpu)).collect();
    busy(&mut later, &theirs, 0.95);
    let second = decided(&facts, &later, &intent, &first.state);
    let after = cores(placement(&second));
    assert!(
        after.iter().all(|cpu| !before.contains(cpu)),
        "{before:?} {after:?}"
    );
}

/// Others come to whatever cores its threads go to: it says that it moves them for nothing, and goes on from there after a restart.
#[test]
fn what_moves_promised_is_held_against_what_has_come() {
    let facts = host();
    let intent = placing(SPLIT);
    let mut seen = seen(&facts);
    let mut decision = decided(&facts, &seen, &intent, &State::default());
    let mut wary = Vec::new();
    for second in 1..8 {
        let theirs: CpuSet = cores(placement(&decision)).into_iter().map(CpuId).collect();
        for usage in &mut seen.cpus {
            usage.busy = Nanos::ZERO;
        }
        busy(&mut seen, &theirs, 0.95);
        seen.at = Nanos::from_secs(5 * second);
        let text = serde_json::to_string(&decision.state).unwrap();
        let state: State = serde_json::from_str(&text).unwrap();
        decision = decided(&facts, &seen, &intent, &state);
        wary.extend(decision.reasons.iter().filter_map(|reason| match reason {
            Reason::Placed { wary, .. } => Some(wary.unwrap_or(1.0)),
            _ => None,
        }));
        let told = decision.reasons.iter().map(ToString::to_string);
        let told = told.filter(|text| text.contains("must gain 2.0 times the margin"));
        assert_eq!(told.count(), usize::from(second == 2), "{wary:?}");
    }
    // The first is of threads that were nowhere.
    assert_eq!(wary, [1.0, 2.0, 4.0, 8.0, 16.0, 16.0, 16.0]);
}

#[test]
fn what_a_packet_takes_is_measured() {
    let facts = host();
    let intent = placing(SPLIT);
    let mut light = seen(&facts);
    // 10 ns a packet of workers; softirqs are taken to need a microsecond, half a core.
    for (worker, packets) in light.guests[0].vhost.iter_mut().zip([5e5, 4e5]) {
        worker.usage.run = nanos(packets * 1e-8);
    }
    let first = decided(&facts, &light, &intent, &State::default());
    // Now softirqs are seen on the cores that they were placed on.
    let mut again = light.clone();
    again.at = Nanos::from_secs(5);
    for usage in &mut again.cpus {
        usage.softirq = nanos(0.001);
    }
    let second = decided(&facts, &again, &intent, &first.state);
    // Without an interrupt ksoftirqd polls, and perhaps elsewhere.
    let mut polled = again.clone();
    polled.nics[0].irqs[0].count = 0;
    let one = decided(&facts, &polled, &intent, &first.state);
    for irq in &mut polled.nics[0].irqs {
        irq.count = 0;
    }
    let polled = decided(&facts, &polled, &intent, &first.state);
    let slowdown = |decision: &Decision| {
        decision.reasons.iter().find_map(|reason| match reason {
            Reason::Placed { slowdown, .. } => Some(*slowdown),
            _ => None,
        })
    };
    // If a thousandth of them had come as far, these took a thousand times as much.
    for flow in &mut again.flows {
        flow.hops[0].packets_per_s = Some(flow.packets_per_s / 1000.0);
    }
    for worker in &mut again.guests[0].vhost {
        worker.usage.run.0 /= 1000;
    }
    let few = decided(&facts, &again, &intent, &first.state);
    let (first, second) = (slowdown(&first).unwrap(), slowdown(&second).unwrap());
    assert!(second + 0.5 < first, "{second} after {first}");
    // It takes as much as the other does, if that tells.
    let one = slowdown(&one).unwrap();
    assert!((one - second).abs() < 0.01, "{one} for {second}");
    let polled = slowdown(&polled).unwrap();
    assert!((polled - first).abs() < 1e-9, "{polled} for {first}");
    let few = slowdown(&few).unwrap();
    assert!(few > second + 0.5, "{few} for {second}");
    // Of a packet that a worker had, a tenth came as far: it takes ten times as much, a whole core of what the queue brings.
    let mut lossy = light;
    for flow in &mut lossy.flows {
        flow.packets_per_s *= 10.0;
        flow.hops[0].packets_per_s = Some(flow.packets_per_s / 100.0);
    }
    let all = decided(&facts, &lossy, &intent, &State::default());
    lossy
        .flows
        .iter_mut()
        .for_each(|flow| flow.hops[0].packets_per_s = None);
    let none = decided(&facts, &lossy, &intent, &State::default());
    let (all, none) = (slowdown(&all).unwrap(), slowdown(&none).unwrap());
    assert!(all > none + 0.5, "{all} for {none}");
}

#[test]
fn what_a_packet_takes_of_a_vcpu_is_of_those_that_came_to_it() {
    let facts = host();
    let mut intent = placing(SPLIT);
    intent.placement.as_mut().unwrap().vcpus = true;
    let mut lossy = seen(&facts);
    for (at, flow) in (0..).zip(&mut lossy.flows) {
        flow.hops[0].vcpu = Some(at);
        flow.hops[0].packets_per_s = Some(flow.packets_per_s / 100.0);
    }
    for worker in &mut lossy.guests[0].vhost {
        worker.usage.run = Nanos(1);
    }
    for vcpu in &mut lossy.guests[0].vcpus {
        vcpu.usage.run = nanos(0.01);
    }
    let slowdown = |snapshot: &Snapshot| {
        let decision = decided(&facts, snapshot, &intent, &State::default());
        let mut reasons = decision.reasons.iter();
        let found = reasons.find_map(|reason| match reason {
            Reason::Placed { slowdown, .. } => Some(*slowdown),
            _ => None,
        });
        found.unwrap()
    };
    let few = slowdown(&lossy);
    lossy
        .flows
        .iter_mut()
        .for_each(|flow| flow.hops[0].packets_per_s = None);
    let all = slowdown(&lossy);
    assert!(few > all + 0.5, "{few} for {all}");
}

#[test]
fn a_spread_queue_is_placed_only_if_one_core_can_do_it() {
    let mut facts = host();
    facts.nics[0].queues_max = 2;
    let intent = placing(SPLIT);
    let mut seen = seen(&facts);
    // A microsecond a packet: more than the threshold of 0.7, and less.
    seen.flows[0].packets_per_s = 8e5;
    let placed = decided(&facts, &seen, &intent, &State::default());
    let queues: Vec<u32> = placement(&placed)
        .softirqs
        .iter()
        .map(|q| q.queue)
        .collect();
    assert_eq!(queues, [1]);
    let nic = &placed.plan.nics[0];
    assert!(nic.rps[0].len() > 1 && nic.rps[1].is_empty());
    let said = |reason: &Reason| matches!(reason, Reason::Spread { queue: 0, .. });
    assert!(placed.reasons.iter().any(said));
    // Its worker is placed all the same.
    assert_eq!(placement(&placed).workers.len(), 2);
}

#[test]
fn a_placement_stays_until_it_is_due_unless_a_core_goes() {
    let facts = host();
    let intent = placing(SPLIT);
    let first = decided(&facts, &seen(&facts), &intent, &State::default());
    let mut later = seen(&facts);
    later.sockets[1] = socket(1, 0.01);
    later.at = Nanos(later.at.0 + 900_000_000);
    let before = decided(&facts, &later, &intent, &first.state);
    assert!(Arc::ptr_eq(placement(&first), placement(&before)));
    assert!(
        before
            .reasons
            .iter()
            .any(|reason| matches!(reason, Reason::Stays { .. }))
    );
    later.at = Nanos(later.at.0 + 100_000_000);
    let after = decided(&facts, &later, &intent, &before.state);
    assert_ne!(cores(placement(&first)), cores(placement(&after)));
    // A core that goes offline takes its part of the placement with it, at once.
    let gone = placement(&after).softirqs[0].cpu;
    let mut next = later.clone();
    next.at = Nanos(next.at.0 + 100_000_000);
    next.cpus.retain(|usage| usage.cpu != gone);
    let moved = decided(&facts, &next, &intent, &after.state);
    assert!(!cores(placement(&moved)).contains(&gone.0));
}

#[test]
fn vcpus_are_placed_only_where_that_is_wanted() {
    let facts = host();
    let policy = PartitionPolicy::Static { vcpu: 4, nq: 4 };
    let mut intent = placing(policy);
    let mut seen = seen(&facts);
    seen.guests.push(guest("lc1", 2, 2));
    for (flow, vcpu) in seen.flows.iter_mut().zip(0..) {
        flow.hops[0].vcpu = Some(vcpu);
    }
    busy(&mut seen, &set("0-1"), 0.9);
    let floating = decided(&facts, &seen, &intent, &State::default());
    assert!(placement(&floating).vcpus.is_empty());
    assert!(
        floating
            .plan
            .guests
            .iter()
            .all(|guest| guest.vcpu_pins.is_empty())
    );
    intent.placement.as_mut().unwrap().vcpus = true;
    let placed = decided(&facts, &seen, &intent, &State::default());
    let vcpus: Vec<u32> = placement(&placed)
        .vcpus
        .iter()
        .map(|vcpu| vcpu.cpu.0)
        .collect();
    assert_eq!(vcpus, [2, 3], "the cores that are idle");
    assert_eq!(placed.plan.guests[0].vcpu_pins, [2, 3].map(CpuId));
    assert!(
        placed.plan.guests[1].vcpu_pins.is_empty(),
        "no packets for it"
    );
}

#[test]
fn nothing_is_placed_without_counters_or_packets_and_that_is_told() {
    let facts = host();
    let intent = placing(SPLIT);
    let not_seen = |decision: &Decision| {
        decision.plan.placement.is_none()
            && decision
                .reasons
                .iter()
                .any(|reason| matches!(reason, Reason::NotSeen { .. }))
    };
    let mut blind = seen(&facts);
    blind.sockets.pop();
    assert!(not_seen(&decided(
        &facts,
        &blind,
        &intent,
        &State::default()
    )));
    let mut quiet = seen(&facts);
    quiet.flows.clear();
    assert!(not_seen(&decided(
        &facts,
        &quiet,
        &intent,
        &State::default()
    )));
    // What was decided before stays.
    let first = decided(&facts, &seen(&facts), &intent, &State::default());
    quiet.at = Nanos::from_secs(60);
    let kept = decided(&facts, &quiet, &intent, &first.state);
    assert!(Arc::ptr_eq(placement(&first), placement(&kept)));
}

#[test]
fn cores_that_are_shared_by_time_are_one_pool() {
    let facts = host();
    let queues = ostler_model::QueueCount::Max;
    let mut intent = placing(PartitionPolicy::TimeSharing { queues });
    intent.guests[0].terms.cpus = Some(set("0-1"));
    let mut crowded = seen(&facts);
    crowded.sockets[1] = socket(1, 0.01);
    let decision = decided(&facts, &crowded, &intent, &State::default());
    assert!(decision.plan.groups.shared);
    let distinct: CpuSet = cores(placement(&decision)).into_iter().map(CpuId).collect();
    assert!(distinct.is_subset(&set("0-3")), "{distinct}");
    let given = &decision.plan.guests[0];
    assert_eq!(given.vhost_pins.len(), 4, "all or none");
    // The guest's vCPUs are where its rule has them, one each.
    assert_eq!(given.vcpu_cpus, set("0-1"));
    assert_eq!(given.vcpu_pins, [CpuId(0), CpuId(1)]);

    // Workers that aren't placed have cores in turn, and another guest's begin elsewhere.
    let mut two = snapshot(&facts, vec![guest("lc0", 2, 4), guest("lc1", 2, 4)]);
    two.sockets = crowded.sockets;
    two.flows = vec![flow(0, "lc0", 5e5), flow(0, "lc1", 4e5)];
    two.flows[1].queue = 1;
    let decision = decided(&facts, &two, &intent, &State::default());
    let others = |at: usize| &decision.plan.guests[at].vhost_pins[1..];
    assert_eq!(others(0), [1, 2, 3].map(CpuId));
    assert_eq!(others(1), [5, 6, 7].map(CpuId));
}

#[test]
fn policies_to_compare_with_place_nothing() {
    let facts = host();
    let intent = placing(PartitionPolicy::CoreNap);
    let decision = decided(&facts, &seen(&facts), &intent, &State::default());
    assert!(decision.plan.placement.is_none());
    let told = decision.reasons.iter().map(ToString::to_string);
    assert!(
        told.into_iter()
            .any(|text| text.contains("one to compare with"))
    );
}
