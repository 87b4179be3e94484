//! Random worlds for property tests: hosts, snapshots and intents as a steward might meet them, the odd ones included.
//!
//! A [`World`] is consistent as far as sensing guarantees it (guests in order, one usage per CPU, busy time within the interval),
//! and no further: guests come without vCPUs, agents lie, NICs vanish, CPUs go offline, and an intent may
//! reserve every core.

mod layers;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use crate::{
    ActIntent, ActMode, AgentHealth, AgentState, AgentView, BoostSettings, Class, Conflict,
    CoreIntent, Cpu, CpuId, CpuSet, CpuUsage, Degradation, Exploration, Facts, GuestMatch,
    GuestRule, GuestSource, GuestView, Intent, IrqId, IrqView, LatencyView, Nanos, NicFacts,
    NicView, NodeId, PartitionIntent, PartitionPolicy, Pid, QueueCount, Ring, SharedCores,
    Snapshot, ThreadUsage, Thresholds, Tid, Topology, VcpuView, VhostView,
};

pub use layers::{hints_intent, layered, placement_settings, sizing_settings};

/// The interval of a generated snapshot that covers any time.
pub const INTERVAL: Nanos = Nanos::from_millis(100);

/// A host, what its operator wants, and what is seen on it in some periods.
#[derive(Clone, Debug)]
pub struct World {
    /// The host.
    pub facts: Facts,
    /// The operator's wishes.
    pub intent: Intent,
    /// Snapshots, 100 ms apart. The first covers no time.
    pub snapshots: Vec<Snapshot>,
}

/// Any world with so many snapshots.
pub fn world(snapshots: usize) -> impl Strategy<Value = World> {
    facts().prop_flat_map(move |facts| {
        let intent = intent(&facts);
        let snapshots = vec(snapshot(&facts), snapshots);
        (Just(facts), intent, snapshots).prop_map(|(facts, intent, mut snapshots)| {
            for (at, snapshot) in snapshots.iter_mut().enumerate() {
                number(snapshot, at as u64);
            }
            World {
                facts,
                intent,
                snapshots,
            }
        })
    })
}

fn number(snapshot: &mut Snapshot, at: u64) {
    snapshot.seq = at + 1;
    snapshot.at = Nanos(INTERVAL.0 * (at + 1));
    if at == 0 {
        snapshot.interval = Nanos::ZERO;
        for usage in &mut snapshot.cpus {
            usage.busy = Nanos::ZERO;
            usage.irq = Nanos::ZERO;
            usage.softirq = Nanos::ZERO;
        }
    }
}

/// Any host of up to 36 CPUs, with and without SMT, in up to three nodes.
pub fn facts() -> impl Strategy<Value = Facts> {
    let nics = vec((0..9_u32, any::<bool>(), option::of(0..3_u32)), 0..=2_usize).prop_map(|nics| {
        nics.into_iter()
            .enumerate()
            .map(|(at, (queues_max, rss_settable, node))| NicFacts {
                name: format!("eth{at}"),
                queues_max,
                rss_settable,
                node: node.map(NodeId),
            })
            .collect()
    });
    (topology(), nics).prop_map(|(topology, nics)| Facts {
        kernel: "6.12.0".into(),
        topology,
        nics,
        ..Facts::default()
    })
}

/// Any topology. SMT siblings are numbered as Linux does: all first threads, then all second ones. Some hosts mix cores with and
/// without siblings.
pub fn topology() -> impl Strategy<Value = Topology> {
    (1..=3_u32, 1..=6_u32, 0..=2_u32).prop_map(|(nodes, per_node, smt)| {
        let cores = nodes * per_node;
        let cpu = |id: u32, core: u32| Cpu {
            id: CpuId(id),
            node: NodeId(core / per_node),
            core: CpuId(core),
            cache_group: CpuId(core - core % per_node.min(3)),
        };
        let mut cpus: Vec<Cpu> = (0..cores).map(|core| cpu(core, core)).collect();
        // 1: every core has a sibling; 2: every other one.
        let with_sibling = (0..cores).filter(|core| smt == 1 || (smt == 2 && core % 2 == 0));
        cpus.extend(with_sibling.zip(cores..).map(|(core, id)| cpu(id, core)));
        Topology { cpus }
    })
}

/// Any partition policy.
pub fn policy() -> impl Strategy<Value = PartitionPolicy> {
    let queues = || select(vec![QueueCount::One, QueueCount::Max]);
    prop_oneof![
        Just(PartitionPolicy::Performance),
        Just(PartitionPolicy::Energy),
        Just(PartitionPolicy::Resource),
        Just(PartitionPolicy::CoreNap),
        queues().prop_map(|queues| PartitionPolicy::TimeSharing { queues }),
        queues().prop_map(|queues| PartitionPolicy::Demeter { queues }),
        (0..20_u32, 0..20_u32).prop_map(|(vcpu, nq)| PartitionPolicy::Static { vcpu, nq }),
    ]
}

/// Any way for best-effort guests to compete on shared cores.
pub fn shared_cores() -> impl Strategy<Value = SharedCores> {
    prop_oneof![
        Just(SharedCores::Idle),
        Just(SharedCores::Equal),
        (1..100_u32).prop_map(SharedCores::Weight),
    ]
}

/// Any way to schedule vCPUs by who does IO.
pub fn boost_settings() -> impl Strategy<Value = BoostSettings> {
    let span = |most: u64| (100..=most).prop_map(Nanos::from_micros);
    let degradation = select(vec![
        Degradation::Halve,
        Degradation::Decrement,
        Degradation::Forget,
    ]);
    let conflict = select(vec![
        Conflict::Confidence,
        Conflict::Balance,
        Conflict::Neither,
    ]);
    (
        any::<bool>(),
        span(100_000),
        span(1_000_000),
        span(3_600_000_000),
        (1..1000_u32, 1..1000_u32),
        degradation,
        conflict,
        any::<bool>(),
    )
        .prop_map(
            |(io, slice, most, limit, (a, b), degradation, conflict, workers)| BoostSettings {
                io,
                slice,
                slice_max: slice.max(most),
                limit,
                threshold: a.min(b),
                confidence_max: a.max(b),
                degradation,
                conflict,
                workers,
            },
        )
}

/// Any intent for this host. Guests are classified by their names: `lc*`, `be*`, and others are unmanaged.
pub fn intent(facts: &Facts) -> impl Strategy<Value = Intent> + use<> {
    let cpus: Vec<CpuId> = facts.topology.cpus.iter().map(|cpu| cpu.id).collect();
    let most = cpus.len();
    let some = subsequence(cpus, 0..=most).prop_map(|cpus| cpus.into_iter().collect::<CpuSet>());
    let few = some
        .clone()
        .prop_map(|set| set.iter().take(3).collect::<CpuSet>());
    let partition = (
        policy(),
        (0.01..1.2_f64, 0.01..1.2_f64),
        1.0..1.5_f64,
        0..4_u64,
        option::of(1..4_u32),
        shared_cores(),
        any::<bool>(),
    )
        .prop_map(
            |(policy, (vcpu, nq), margin, hold, samples, best_effort, leftovers)| PartitionIntent {
                policy,
                thresholds: Thresholds { vcpu, nq },
                margin,
                hold: Nanos::from_millis(hold * 100),
                best_effort,
                leftovers,
                exploration: samples.map(|samples| Exploration {
                    samples,
                    ..Exploration::default()
                }),
            },
        );
    let nics = subsequence(vec!["eth0", "eth1", "gone0"], 0..=3);
    (
        option::weighted(0.3, some),
        few,
        partition,
        nics,
        any::<bool>(),
        option::of((boost_settings(), any::<bool>())),
    )
        .prop_map(|(managed, reserved, partition, nics, act, boost)| Intent {
            cores: CoreIntent { managed, reserved },
            boost: boost.map(|(settings, _)| settings).filter(|_| {
                !partition.policy.weighs() || partition.best_effort == SharedCores::Equal
            }),
            partition,
            guests: rules()
                .into_iter()
                .map(|rule| GuestRule {
                    boost: boost.is_none_or(|(_, all)| all || rule.slo.is_some()),
                    ..rule
                })
                .collect(),
            nics: nics.into_iter().map(str::to_owned).collect(),
            act: ActIntent {
                mode: if act { ActMode::Act } else { ActMode::Observe },
                ..ActIntent::default()
            },
            ..Intent::default()
        })
}

/// `lc*` is latency-critical with an objective of 1 ms, `be*` best-effort.
pub fn rules() -> Vec<GuestRule> {
    vec![
        GuestRule::new(
            GuestMatch::Name("lc*".into()),
            Class::LatencyCritical,
            Some(Nanos::from_millis(1)),
        ),
        GuestRule::new(GuestMatch::Name("be*".into()), Class::BestEffort, None),
    ]
}

/// Any snapshot of this host over 100 ms.
pub fn snapshot(facts: &Facts) -> impl Strategy<Value = Snapshot> + use<> {
    let cpus: Vec<CpuId> = facts.topology.cpus.iter().map(|cpu| cpu.id).collect();
    let count = cpus.len();
    // Seldom, a CPU of the facts is gone.
    let gone = option::weighted(0.1, 0..count);
    let usages = vec((0..=100_u64, 0..=20_u64, 0..=20_u64), count);
    let guests = vec((0..=2_usize, guest()), 0..=6);
    // Some NICs have vectors of their own for as many transmit rings.
    let nic = (0..=8_u32, 0..=8_u32, 0..=8_u32, any::<bool>());
    let nics = vec(nic, facts.nics.len());
    // Seldom, NICs share interrupt lines.
    let shared = proptest::bool::weighted(0.1);
    // Counted of all CPUs or of none.
    let yielding = option::weighted(0.8, vec(0..=100_u64, count));
    let names: Vec<String> = facts.nics.iter().map(|nic| nic.name.clone()).collect();
    (usages, gone, guests, nics, shared, yielding).prop_map(
        move |(usages, gone, guests, nics, shared, yielding)| {
            Snapshot {
                seq: 1,
                at: INTERVAL,
                interval: INTERVAL,
                cpus: cpus
                    .iter()
                    .zip(&usages)
                    .enumerate()
                    .filter(|(at, _)| Some(*at) != gone)
                    .map(|(at, (&cpu, &(busy, irq, softirq)))| CpuUsage {
                        cpu,
                        busy: Nanos::from_millis(busy),
                        irq: Nanos::from_millis(irq.min(busy / 2)),
                        softirq: Nanos::from_millis(softirq.min(busy / 2)),
                        yielding: yielding
                            .as_ref()
                            .map(|all| Nanos::from_millis(all[at].min(busy / 2))),
                    })
                    .collect(),
                guests: name_guests(guests),
                nics: names
                    .iter()
                    .zip(nics)
                    .zip(0_u32..)
                    .filter(|((_, (.., there)), _)| *there)
                    .map(|((name, (queues, irqs, sends, _)), at)| NicView {
                        name: name.clone(),
                        queues,
                        irqs: (0..irqs)
                            .map(|queue| (Ring::Receive, queue))
                            .chain((0..sends).map(|queue| (Ring::Transmit, queue)))
                            .map(|(ring, queue)| IrqView {
                                // Another NIC's, but not its queue of this number.
                                irq: IrqId(
                                    40 + 10 * ring as u32
                                        + if shared { queue ^ at } else { 100 * at + queue },
                                ),
                                queue,
                                ring,
                                affinity: CpuSet::single(CpuId(0)),
                                count: u64::from((queue ^ at) % 3),
                            })
                            .collect(),
                    })
                    .collect(),
                ..Snapshot::default()
            }
        },
    )
}

/// Gives guests their ids, and names that say their class.
fn name_guests(guests: Vec<(usize, GuestView)>) -> Vec<GuestView> {
    guests
        .into_iter()
        .enumerate()
        .map(|(at, (class, guest))| GuestView {
            id: format!("g{at:02}").as_str().into(),
            name: format!("{}{at}", ["lc", "be", "other"][class]),
            ..guest
        })
        .collect()
}

/// Any guest, yet without a name.
pub fn guest() -> impl Strategy<Value = GuestView> {
    let usage = || {
        (0..=100_u64, 0..=100_u64).prop_map(|(run, wait)| ThreadUsage {
            run: Nanos::from_millis(run),
            wait: Nanos::from_millis(wait.min(100 - run)),
        })
    };
    let vhost = vec((any::<bool>(), usage()), 0..=4);
    (
        vec(usage(), 0..=8),
        vhost,
        option::of(agent()),
        option::of(latency()),
        proptest::bool::weighted(0.1),
        select(vec![0_u64, 0, 0, 50, 5_000]),
    )
        .prop_map(|(vcpus, vhost, agent, latency, frozen, age_ms)| GuestView {
            id: "".into(),
            name: String::new(),
            uuid: None,
            metadata: Vec::new(),
            source: GuestSource::Qmp,
            pid: Pid(1000),
            cgroup: None,
            frozen,
            vcpus: (0_u32..)
                .zip(vcpus)
                .map(|(index, usage)| VcpuView {
                    index,
                    tid: Tid(1001 + index),
                    allowed: CpuSet::EMPTY,
                    usage,
                })
                .collect(),
            vhost: (0_u32..)
                .zip(vhost)
                .map(|(queue, (known, usage))| VhostView {
                    tid: Tid(1101 + queue),
                    queue: known.then_some(queue),
                    allowed: CpuSet::EMPTY,
                    usage,
                })
                .collect(),
            emulator: vec![Tid(1000)],
            taps: Vec::new(),
            vsock_cid: None,
            latency,
            agent,
            age: Nanos::from_millis(age_ms),
        })
}

fn agent() -> impl Strategy<Value = AgentView> {
    let health = select(vec![
        AgentHealth::Healthy,
        AgentHealth::Healthy,
        AgentHealth::Healthy,
        AgentHealth::Silent,
        AgentHealth::Slow,
        AgentHealth::Lying("too many vCPUs".into()),
        AgentHealth::Refused("not now".into()),
    ]);
    let state = (0..=10_u32, 0..=10_u32, 0..=4_u32, 0..=4_u32).prop_map(
        |(online, active, queues, queues_max)| AgentState {
            vcpus_online: (0..online).collect(),
            vcpus_active: (0..active.min(online)).collect(),
            queues: queues.min(queues_max),
            queues_max,
        },
    );
    (
        health,
        option::weighted(0.9, state),
        select(vec![0_u64, 30, 5_000]),
    )
        .prop_map(|(health, state, age_ms)| AgentView {
            health,
            state,
            age: Nanos::from_millis(age_ms),
        })
}

fn latency() -> impl Strategy<Value = LatencyView> {
    (0..1000_u64, 10..4000_u64, select(vec![0_u64, 0, 0, 300])).prop_map(
        |(responses, p95_us, age_ms)| LatencyView {
            responses,
            p50: Nanos::from_micros(p95_us / 3),
            p95: Nanos::from_micros(p95_us),
            p99: Nanos::from_micros(p95_us * 2),
            age: Nanos::from_millis(age_ms),
        },
    )
}
