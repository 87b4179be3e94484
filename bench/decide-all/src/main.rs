//! What a decision of all layers costs at 256 cores and 512 guests, beside a copy of the snapshot it rests on.

use std::hint::black_box;

use bench_decide::{CORES, GUESTS, LATENCY_CRITICAL, QUEUES, facts, intent, keep_freed, snapshot};
use bench_harness::{Args, compare, ns_per_call};
use clap::Parser;
use clap::builder::PossibleValuesParser;
use ostler_model::{
    BoostSettings, Bytes, CpuId, Facts, FilesView, FilesWish, FlowView, GuestMemory, GuestWishes,
    HintsIntent, HintsVcpu, Hop, Intent, MemoryNode, Nanos, NodeBytes, NodeId, NodeView,
    PartitionPolicy, PlacementSettings, RunnableView, ServiceTime, SharedCores, SizingSettings,
    Snapshot, SocketView, State, TierSettings,
};
use ostler_policy::{Decider, Decision};

const GIB: u64 = 1 << 30;

/// All layers; two sockets with 1 TiB near and 1 TiB far each.
fn opt_in(facts: &mut Facts, intent: &mut Intent) {
    facts.memory.nodes = (0..4)
        .map(|node| MemoryNode {
            node: NodeId(node),
            bytes: Bytes(1024 * GIB),
            far: node >= 2,
            latency: None,
            bytes_per_s: None,
        })
        .collect();
    intent.boost = Some(BoostSettings::default());
    // That scheduler knows no weights.
    intent.partition.best_effort = SharedCores::Equal;
    intent.placement = Some(PlacementSettings::default());
    intent.tier = Some(TierSettings::default());
    intent.hints = Some(HintsIntent::default());
    intent.sizing = Some(SizingSettings {
        budget: Bytes(256 * GIB),
        ..SizingSettings::default()
    });
    for rule in intent.guests.iter_mut().filter(|rule| rule.slo.is_some()) {
        rule.terms.hints = true;
        rule.terms.files = Some(FilesWish {
            response: Nanos::from_millis(500),
            least: Bytes(GIB),
            most: Bytes(4 * GIB),
            service: [(1, 1000), (2, 400), (4, 100)]
                .map(|(gib, ms)| ServiceTime {
                    bytes: Bytes(gib * GIB),
                    time: Nanos::from_millis(ms),
                })
                .to_vec(),
        });
    }
}

/// What they go by of sockets, nodes and queues.
fn see_host(snapshot: &mut Snapshot) {
    let age = Nanos::ZERO;
    snapshot.sockets = (0..2)
        .map(|node| SocketView {
            node: NodeId(node),
            l3_hit: 0.8,
            cycle_loss: 0.1,
            ipc: 1.2,
            age,
        })
        .collect();
    snapshot.runnable = (0..CORES)
        .map(|cpu| RunnableView {
            cpu: CpuId(cpu),
            vcpus: cpu % 3,
        })
        .collect();
    snapshot.nodes = (0..4)
        .map(|node| NodeView {
            node: NodeId(node),
            free: Bytes(if node < 2 { 40 * GIB } else { 700 * GIB }),
            age,
        })
        .collect();
    // Each of the queues in use has packets for a guest.
    let critical = LATENCY_CRITICAL as usize;
    let queues = QUEUES / 2;
    snapshot.flows = (0..2)
        .flat_map(|nic| (0..queues).map(move |queue| (nic, queue)))
        .map(|(nic, queue)| {
            let guest = (nic * queues + queue) as usize % critical;
            FlowView {
                nic: format!("eth{nic}"),
                queue,
                hops: vec![Hop {
                    guest: snapshot.guests[guest].id.clone(),
                    queue: Some(0),
                    vcpu: Some(0),
                    packets_per_s: None,
                }],
                packets_per_s: 20_000.0,
                age,
            }
        })
        .collect();
}

/// What they go by of guests.
fn see_guests(snapshot: &mut Snapshot) {
    let age = Nanos::ZERO;
    let critical = LATENCY_CRITICAL as usize;
    for (at, guest) in snapshot.guests.iter().enumerate() {
        // A third presses, half of those do IO.
        let node = u32::try_from(at % 2).unwrap_or(0);
        snapshot.memory.push(GuestMemory {
            guest: guest.id.clone(),
            nodes: [(node, 3), (node + 2, 1)]
                .map(|(node, gib)| NodeBytes {
                    node: NodeId(node),
                    bytes: Bytes(gib * GIB),
                })
                .to_vec(),
            hot: None,
            llc_misses_per_s: Some(if at % 3 == 0 { 3e6 } else { 1e5 }),
            io_interrupts_per_s: Some(if at % 2 == 0 { 3000.0 } else { 10.0 }),
            ranges: Vec::new(),
            age,
        });
        if at >= critical {
            continue;
        }
        let vcpus = guest.vcpus.iter();
        snapshot.wishes.push(GuestWishes {
            guest: guest.id.clone(),
            vcpus: vcpus
                .map(|vcpu| HintsVcpu {
                    cpu: Some(CpuId(
                        (4 * u32::try_from(at).unwrap_or(0) + vcpu.index) % CORES,
                    )),
                    pin: at % 8 == 0 && vcpu.index == 0,
                    runnable: vcpu.index % 2 == 0,
                })
                .collect(),
            age,
        });
        snapshot.files.push(FilesView {
            guest: guest.id.clone(),
            bytes: Bytes(GIB),
            response: Some(Nanos::from_millis(600)),
            arrivals_per_s: 0.7,
            age,
        });
    }
}

/// Decisions one after the other, each judged.
struct Run {
    facts: Facts,
    intent: Intent,
    decider: Decider,
}

impl Run {
    fn decide(&mut self, seen: &Snapshot, state: &State) -> Decision {
        let mut drawn = 7;
        let mut random = || {
            drawn += 1;
            drawn
        };
        let (facts, intent) = (&self.facts, &self.intent);
        self.decider
            .decide(facts, seen, intent, state, seen.at, &mut random)
    }
}

/// What this takes beside what every bench takes.
#[derive(Debug, Parser)]
#[command(about = "What a decision of all layers costs, beside a copy of its snapshot")]
struct Options {
    #[command(flatten)]
    args: Args,
    /// Only decides for this case, and measures nothing: for those who count instructions.
    #[arg(long, value_name = "CASE", value_parser = PossibleValuesParser::new(ALL.into_iter().chain(LAYERS)))]
    only: Option<String>,
    /// How often it decides for that.
    #[arg(long, default_value_t = 1, requires = "only")]
    times: u32,
}

/// The cases of all layers, by name.
const ALL: [&str; 3] = [
    "all layers",
    "all layers, tier and placement due",
    "all layers, everything due",
];
/// The layers that are measured by themselves, beside partition; and partition alone.
const LAYERS: [&str; 6] = ["placement", "tier", "sizing", "hints", "boost", "none"];

/// An intent with this layer beside partition, and no other.
fn only(all: &Intent, layer: &str) -> Intent {
    let mut intent = all.clone();
    let keep = |name: &str| layer == name;
    intent.placement = intent.placement.take().filter(|_| keep("placement"));
    intent.tier = intent.tier.take().filter(|_| keep("tier"));
    intent.sizing = intent.sizing.take().filter(|_| keep("sizing"));
    intent.hints = intent.hints.take().filter(|_| keep("hints"));
    intent.boost = intent.boost.take().filter(|_| keep("boost"));
    intent
}

/// Decides so often: what is between its beginning and its end is what the README's counts are of.
#[inline(never)]
fn counted(run: &mut Run, seen: &Snapshot, state: &State, times: u32) {
    for _ in 0..times {
        black_box(run.decide(seen, state));
    }
}

/// More than a minute of decisions, so that every loop has been round, and none is due.
fn settled() -> (Run, Snapshot, State) {
    let mut facts = facts();
    let mut intent = intent(PartitionPolicy::Resource);
    let mut seen = snapshot(&facts);
    opt_in(&mut facts, &mut intent);
    see_host(&mut seen);
    see_guests(&mut seen);
    let mut run = Run {
        facts,
        intent,
        decider: Decider::default(),
    };
    let mut state = bench_decide::steady();
    let mut before = None;
    for period in 0..650 {
        let decision = run.decide(&seen, &state);
        let plan = decision.plan;
        if period % 10 == 0 {
            assert_eq!(
                ostler_check::check(&run.facts, &seen, &run.intent, before.as_ref(), &plan),
                []
            );
        }
        state = decision.state;
        before = Some(plan);
        seen.at = Nanos(seen.at.0 + bench_decide::PERIOD.0);
    }
    let plan = before.unwrap_or_default();
    assert!(
        plan.boost.is_some()
            && plan.placement.is_some()
            && plan.tier.is_some()
            && plan.files.is_some()
            && plan.hints.is_some(),
        "all layers are on"
    );
    (run, seen, state)
}

fn main() {
    let options = Options::parse();
    let args = &options.args;
    keep_freed();
    let (mut run, seen, state) = settled();
    // A period in which no layer is due but partition and hints; one in which placement and tier are; and one in which each guest's files are looked at, too.
    let later = |millis: u64| Snapshot {
        at: Nanos(seen.at.0 + millis * 1_000_000),
        ..seen.clone()
    };
    let mut just = state.clone();
    for decided in [&mut just.placement.decided, &mut just.tier.decided] {
        *decided = Some(seen.at);
    }
    let cases = [
        (later(100), &just),
        (later(1000), &just),
        (later(300_000), &state),
    ];
    let due = later(300_000);
    if let Some(case) = &options.only {
        let (seen, state) = match ALL.iter().position(|name| name == case) {
            Some(at) => (&cases[at].0, cases[at].1),
            None => (&due, &state),
        };
        if LAYERS.contains(&case.as_str()) {
            run.intent = only(&run.intent, case);
        }
        // Buffers grow in the first one.
        run.decide(seen, state);
        counted(&mut run, seen, state, options.times);
        return;
    }
    let runs = args.runs(1001, 3);
    let calls = if args.quick { 2 } else { 4 };
    for (name, (seen, state)) in ALL.iter().zip(&cases) {
        let copy = || ns_per_call(calls, || seen.clone()) / 1e3;
        compare(
            "decide-all",
            &format!("{name}, {CORES} cores, {GUESTS} guests"),
            "us",
            runs,
            || ns_per_call(calls, || run.decide(seen, state)) / 1e3,
            copy,
        )
        .print(args);
    }
    // No more than so many loops go on in a period: with those that it takes for all.
    let periods: Vec<_> = (0..4).map(|period| later(300_000 + 100 * period)).collect();
    let mut turns = || {
        let mut last: Option<Decision> = None;
        for seen in &periods {
            let state = last.as_ref().map_or(&state, |last| &last.state);
            last = Some(run.decide(seen, state));
        }
        last
    };
    let ours = |turns: &mut dyn FnMut() -> Option<Decision>| ns_per_call(1, turns) / 1e3;
    compare(
        "decide-all",
        &format!("all layers, everything due, and the three periods after, {CORES} cores, {GUESTS} guests"),
        "us",
        args.runs(301, 3),
        || ours(&mut turns),
        || 4.0 * ns_per_call(calls, || due.clone()) / 1e3,
    )
    .print(args);
    // Each layer by itself, with all of its own due.
    let all = run.intent.clone();
    for layer in LAYERS {
        run.intent = only(&all, layer);
        let copy = || ns_per_call(calls, || due.clone()) / 1e3;
        compare(
            "decide-all",
            &format!("partition and {layer}, due, {CORES} cores, {GUESTS} guests"),
            "us",
            args.runs(301, 3),
            || ns_per_call(calls, || run.decide(&due, &state)) / 1e3,
            copy,
        )
        .print(args);
    }
}
