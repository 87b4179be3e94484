//! Worlds in which operators have opted in to more layers, and what these see and are told: the odd things included.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::{World, world};
use crate::{
    Bytes, CoreIntent, CpuId, Facts, FilesView, FilesWish, FlowView, GuestMemory, GuestTerms,
    GuestWishes, HintsIntent, HintsVcpu, Hop, Intent, MemoryFacts, MemoryNode, MemoryRange, Nanos,
    NodeBytes, NodeId, NodeView, PartitionPolicy, PlacementPolicy, PlacementSettings, RangeView,
    RunnableView, ServiceTime, SharedCores, SizingParts, SizingSettings, Snapshot, SocketView,
    StageSettings, TenantFloor, TierSettings,
};

/// Any world with so many snapshots and any layers on. Most hosts are such that layers have something to do: all cores and NICs are the steward's, and
/// groups are isolated.
pub fn layered(snapshots: usize) -> impl Strategy<Value = World> {
    (
        world(snapshots),
        memory(),
        layers(),
        vec(views(), snapshots),
        option::weighted(0.75, isolating()),
    )
        .prop_map(|(mut world, memory, layers, views, isolating)| {
            if let Some(policy) = isolating {
                world.intent.partition.policy = policy;
                // That scheduler knows no weights.
                if policy.weighs() && world.intent.partition.best_effort != SharedCores::Equal {
                    world.intent.boost = None;
                }
                world.intent.cores = CoreIntent::default();
                world.intent.nics = vec!["eth0".into(), "eth1".into()];
            }
            world.facts.memory = memory_of(&world.facts, memory);
            layers.opt_in(&mut world.intent);
            for (snapshot, views) in world.snapshots.iter_mut().zip(views) {
                views.show(&world.facts, snapshot);
            }
            world
        })
}

fn isolating() -> impl Strategy<Value = PartitionPolicy> {
    select(vec![
        PartitionPolicy::Performance,
        PartitionPolicy::Energy,
        PartitionPolicy::Resource,
        PartitionPolicy::Static { vcpu: 3, nq: 3 },
    ])
}

/// Up to five nodes' memory; hosts have up to three nodes with cores.
type AnyMemory = (Vec<(u64, bool)>, Vec<u32>);

fn memory() -> impl Strategy<Value = AnyMemory> {
    // Few hosts have so many nodes with cores that none is left to be far.
    let node = (0..64_u64, proptest::bool::weighted(0.8));
    let nodes = prop_oneof![vec(node.clone(), 0..=5), vec(node, 4..=5)];
    (nodes, vec(select(vec![10_u32, 17, 21, 31, 255]), 25))
}

fn memory_of(facts: &Facts, (nodes, distances): AnyMemory) -> MemoryFacts {
    let count = nodes.len();
    let nodes = nodes.into_iter().zip(0_u32..);
    let nodes = nodes.map(|((gib, far), node)| MemoryNode {
        node: NodeId(node),
        bytes: Bytes(gib << 30),
        far: far && !facts.has_cores(NodeId(node)),
        latency: None,
        bytes_per_s: None,
    });
    MemoryFacts {
        nodes: nodes.collect(),
        distances: distances.into_iter().take(count * count).collect(),
    }
}

/// What an operator opts in to.
#[derive(Clone, Debug)]
struct Layers {
    placement: Option<PlacementSettings>,
    hints: Option<HintsIntent>,
    sizing: Option<SizingSettings>,
    tier: Option<TierSettings>,
    terms: Vec<GuestTerms>,
}

impl Layers {
    fn opt_in(self, intent: &mut Intent) {
        intent.placement = self.placement;
        intent.hints = self.hints;
        intent.sizing = self.sizing;
        intent.tier = self.tier;
        for (rule, terms) in intent.guests.iter_mut().zip(self.terms) {
            rule.terms = terms;
        }
    }
}

fn layers() -> impl Strategy<Value = Layers> {
    (
        option::weighted(0.8, placement_settings()),
        option::weighted(0.8, hints_intent()),
        option::weighted(0.8, sizing_settings()),
        option::weighted(0.8, tier_settings()),
        vec(terms(), 2),
    )
        .prop_map(|(placement, hints, sizing, tier, terms)| Layers {
            placement,
            hints,
            sizing,
            tier,
            terms,
        })
}

fn terms() -> impl Strategy<Value = GuestTerms> {
    let service = vec(1..3000_u64, 1..4);
    let files =
        (1..3000_u64, 0..8_u64, 0..40_u64, service).prop_map(|(response, least, more, service)| {
            FilesWish {
                response: Nanos::from_millis(response),
                least: Bytes(least << 28),
                most: Bytes((least + more) << 28),
                service: service
                    .into_iter()
                    .zip(1..)
                    .map(|(time, size)| ServiceTime {
                        bytes: Bytes(size << 29),
                        time: Nanos::from_millis(time),
                    })
                    .collect(),
            }
        });
    (
        any::<bool>(),
        proptest::bool::weighted(0.7),
        option::weighted(0.7, files),
        option::weighted(0.7, select(vec!["a", "b"])),
        prop_oneof![Just(0), 0..12_u64],
    )
        .prop_map(|(priority, hints, files, tenant, local_min)| GuestTerms {
            tenant: tenant.map(str::to_owned),
            local_min: Bytes(local_min << 28),
            priority,
            hints,
            cpus: None,
            files,
        })
}

/// Any way to share local memory out among guests.
pub fn tier_settings() -> impl Strategy<Value = TierSettings> {
    let floor = || option::weighted(0.4, 0..16_u64);
    (
        (1..4_u64, 0..5_u64),
        (
            prop_oneof![1 => Just(0), 9 => 0..64_u64],
            0..8_u64,
            prop_oneof![Just(0), 0..32_u64],
        ),
        (floor(), floor()),
    )
        .prop_map(
            |((interval, hold), (moved, step, reserve), (a, b))| TierSettings {
                interval: Nanos::from_millis(interval * 100),
                hold: Nanos::from_millis(hold * 100),
                bytes_per_s: Bytes(moved << 28),
                step: Bytes(step << 24),
                reserve: Bytes(reserve << 28),
                tenants: [("a", a), ("b", b)]
                    .into_iter()
                    .filter_map(|(tenant, floor)| {
                        Some(TenantFloor {
                            tenant: tenant.to_owned(),
                            local_min: Bytes(floor? << 28),
                        })
                    })
                    .collect(),
                ..TierSettings::default()
            },
        )
}

/// Any way to size files.
pub fn sizing_settings() -> impl Strategy<Value = SizingSettings> {
    let parts = select(vec![
        SizingParts::Corrected,
        SizingParts::Both,
        SizingParts::Queue,
        SizingParts::Adaptive,
    ]);
    (
        1..64_u64,
        parts,
        0..500_u64,
        1..10_u64,
        (1..4_u64, 0..4_u64),
        0.5..=1.0_f64,
    )
        .prop_map(
            |(budget, parts, response, step, (interval, more), memory)| SizingSettings {
                budget: Bytes(budget << 29),
                parts,
                response_step: Nanos::from_millis(response),
                size_step: Bytes(step << 26),
                interval_min: Nanos::from_millis(interval * 100),
                interval_max: Nanos::from_millis((interval + more) * 100),
                memory,
            },
        )
}

/// Any bounds of hints.
pub fn hints_intent() -> impl Strategy<Value = HintsIntent> {
    (0..4_u64, 0..4_u32, 0..3_u32).prop_map(|(interval, grants_max, pins_per_core_max)| {
        HintsIntent {
            interval: Nanos::from_millis(interval * 100),
            grants_max,
            pins_per_core_max,
        }
    })
}

/// Any way to place threads.
pub fn placement_settings() -> impl Strategy<Value = PlacementSettings> {
    let policy = select(vec![
        PlacementPolicy::Chains,
        PlacementPolicy::NumaAware,
        PlacementPolicy::ContentionAware,
    ]);
    let stage = || {
        (1..3000_u64, proptest::array::uniform7(0.0..3.0_f64)).prop_map(
            |(packet, [cache, memory, interconnect, remote, crossing, load, base])| StageSettings {
                packet: Nanos(packet),
                cache,
                memory,
                interconnect,
                remote,
                crossing,
                load,
                base,
            },
        )
    };
    (
        policy,
        0..4_u64,
        0.0..0.3_f64,
        any::<bool>(),
        option::weighted(0.3, 1..5_u32),
        (stage(), stage(), stage()),
    )
        .prop_map(
            |(policy, interval, margin, vcpus, cores_max, (softirq, vhost, vcpu))| {
                PlacementSettings {
                    policy,
                    interval: Nanos::from_millis(interval * 100),
                    margin,
                    vcpus,
                    cores_max,
                    softirq,
                    vhost,
                    vcpu,
                }
            },
        )
}

/// What more is seen in a period.
#[derive(Clone, Debug)]
struct Views {
    sockets: Vec<Option<SocketView>>,
    flows: Vec<FlowView>,
    /// By CPU; one that is absent isn't known.
    runnable: Vec<Option<u32>>,
    /// By guest.
    wishes: Vec<Option<AnyWishes>>,
    /// By node, in GiB, and how old.
    free: Vec<Option<(u64, Nanos)>>,
    /// By guest.
    files: Vec<Option<FilesView>>,
    /// By guest.
    memory: Vec<Option<AnyUse>>,
}

/// How a guest uses its memory: 64 MiB by node, what of it is hot, misses and IO, ranges in pages of 4 KiB, and how old that is.
type AnyUse = (
    Vec<u64>,
    Option<u64>,
    (Option<f64>, Option<f64>),
    Vec<(u64, u64, u32, bool)>,
    Nanos,
);

/// How old they are, whether they are of as many vCPUs as there are, and each vCPU's CPU and wish.
type AnyWishes = (Nanos, bool, Vec<(Option<usize>, bool)>);

impl Views {
    fn show(self, facts: &Facts, snapshot: &mut Snapshot) {
        let sockets = self.sockets.into_iter().flatten();
        let there = |socket: &SocketView| facts.has_cores(socket.node);
        snapshot.sockets = sockets.filter(there).collect();
        snapshot.flows = self.flows;
        let key = |flow: &FlowView| (flow.nic.clone(), flow.queue);
        snapshot.flows.sort_by_key(key);
        let cpus = &facts.topology.cpus;
        let runnable = cpus.iter().zip(self.runnable);
        let runnable = runnable.filter_map(|(cpu, vcpus)| Some((cpu.id, vcpus?)));
        snapshot.runnable = runnable
            .map(|(cpu, vcpus)| RunnableView { cpu, vcpus })
            .collect();
        let nodes = facts.memory.nodes.iter().zip(self.free);
        let free = nodes.filter_map(|(node, free)| Some((node, free?)));
        snapshot.nodes = free
            .map(|(node, (gib, age))| NodeView {
                node: node.node,
                free: Bytes(node.bytes.0.min(gib << 30)),
                age,
            })
            .collect();
        let files = snapshot.guests.iter().zip(self.files);
        snapshot.files = files
            .filter_map(|(guest, files)| {
                Some(FilesView {
                    guest: guest.id.clone(),
                    ..files?
                })
            })
            .collect();
        let memory = snapshot.guests.iter().zip(self.memory);
        snapshot.memory = memory
            .filter_map(|(guest, memory)| {
                let (nodes, hot, (llc_misses_per_s, io_interrupts_per_s), ranges, age) = memory?;
                let nodes = (0..).map(NodeId).zip(nodes);
                Some(GuestMemory {
                    guest: guest.id.clone(),
                    nodes: nodes
                        .map(|(node, units)| NodeBytes {
                            node,
                            bytes: Bytes(units << 26),
                        })
                        .collect(),
                    hot: hot.map(|units| Bytes(units << 26)),
                    llc_misses_per_s,
                    io_interrupts_per_s,
                    ranges: ranges_of(ranges),
                    age,
                })
            })
            .collect();
        let guests = snapshot.guests.iter().zip(self.wishes);
        let wishes = guests.filter_map(|(guest, wishes)| Some((guest, wishes?)));
        snapshot.wishes = wishes
            .map(|(guest, (age, whole, vcpus))| {
                let told = if whole { guest.vcpus.len() } else { 1 };
                let vcpus = vcpus.into_iter().take(told);
                GuestWishes {
                    guest: guest.id.clone(),
                    vcpus: vcpus
                        .map(|(cpu, pin)| HintsVcpu {
                            // Seldom, one that isn't there.
                            cpu: cpu.map(|at| cpus.get(at).map_or(CpuId(999), |cpu| cpu.id)),
                            pin,
                            runnable: pin != cpu.is_some(),
                        })
                        .collect(),
                    age,
                }
            })
            .collect();
    }
}

/// Ranges one after the other; some overlap the one before.
fn ranges_of(ranges: Vec<(u64, u64, u32, bool)>) -> Vec<RangeView> {
    let mut at = 0_u64;
    let ranges = ranges.into_iter().map(|(gap, pages, node, hot)| {
        let start = (at + gap).saturating_sub(100) << 12;
        at += gap + pages;
        RangeView {
            range: MemoryRange {
                start,
                bytes: Bytes(pages << 12),
            },
            node: NodeId(node),
            hot,
        }
    });
    ranges.collect()
}

/// How a guest uses its memory, if that is known.
fn memory_use() -> impl Strategy<Value = AnyUse> {
    let rate = || {
        prop_oneof![
            4 => 0.0..2e6_f64,
            1 => select(vec![f64::NAN, f64::INFINITY, -1.0]),
        ]
    };
    let range = (0..300_u64, 0..200_000_u64, 0..5_u32, any::<bool>());
    (
        vec(prop_oneof![Just(0), 0..300_u64], 5),
        option::weighted(0.8, 0..100_u64),
        (
            option::weighted(0.6, rate()),
            option::weighted(0.8, 0.0..2000.0_f64),
        ),
        prop_oneof![Just(Vec::new()), vec(range, 0..8)],
        mostly_fresh(),
    )
}

fn views() -> impl Strategy<Value = Views> {
    let socket = (-0.1..1.1_f64, -0.1..1.1_f64, 0.0..3.0_f64, age());
    let sockets = vec(option::weighted(0.95, socket), 3).prop_map(|sockets| {
        let sockets = sockets.into_iter().zip(0_u32..);
        let view = sockets.map(|(socket, node)| {
            let (l3_hit, cycle_loss, ipc, age) = socket?;
            Some(SocketView {
                node: NodeId(node),
                l3_hit,
                cycle_loss,
                ipc,
                age,
            })
        });
        view.collect()
    });
    let vcpu = (option::weighted(0.9, 0..20_usize), any::<bool>());
    let wishes = (age(), proptest::bool::weighted(0.9), vec(vcpu, 8));
    (
        sockets,
        vec(flow(), 0..16),
        vec(option::weighted(0.95, 0..4_u32), 36),
        vec(option::weighted(0.9, wishes), 6),
        vec(
            option::weighted(
                0.98,
                (prop_oneof![2 => 0..3_u64, 1 => 0..20_u64], mostly_fresh()),
            ),
            5,
        ),
        vec(option::weighted(0.9, files()), 6),
        vec(option::weighted(0.9, memory_use()), 6),
    )
        .prop_map(
            |(sockets, flows, runnable, wishes, free, files, memory)| Views {
                sockets,
                flows,
                runnable,
                wishes,
                free,
                files,
                memory,
            },
        )
}

fn files() -> impl Strategy<Value = FilesView> {
    let response = option::weighted(0.9, (1..10_000_u64).prop_map(Nanos::from_millis));
    (0..20_u64, response, 0.0..10.0_f64, age()).prop_map(
        |(bytes, response, arrivals_per_s, age)| FilesView {
            guest: "".into(),
            bytes: Bytes(bytes << 28),
            response,
            arrivals_per_s,
            age,
        },
    )
}

/// How old a view is that is of little use without others of its kind.
fn mostly_fresh() -> impl Strategy<Value = Nanos> {
    prop_oneof![9 => Just(Nanos::ZERO), 1 => age()]
}

/// How old a view is: mostly fresh.
fn age() -> impl Strategy<Value = Nanos> {
    select(vec![0_u64, 0, 0, 0, 0, 300, 50_000]).prop_map(Nanos::from_millis)
}

fn packets() -> impl Strategy<Value = f64> {
    prop_oneof![
        9 => 1.0..2e6_f64,
        1 => select(vec![0.0, -1.0, 1e30]),
    ]
}

fn flow() -> impl Strategy<Value = FlowView> {
    let few = |most: u32| option::weighted(0.9, prop_oneof![0..2_u32, 0..most]);
    let hop = (
        prop_oneof![0..3_u32, 0..8_u32],
        few(5),
        few(9),
        option::weighted(0.3, packets()),
    )
        .prop_map(|(guest, queue, vcpu, packets_per_s)| Hop {
            guest: format!("g{guest:02}").as_str().into(),
            queue,
            vcpu,
            packets_per_s,
        });
    (
        select(vec!["eth0", "eth0", "eth1", "eth1", "gone0"]),
        prop_oneof![0..2_u32, 0..8_u32],
        vec(hop, 0..=5),
        packets(),
        age(),
    )
        .prop_map(|(nic, queue, hops, packets_per_s, age)| FlowView {
            nic: nic.to_owned(),
            queue,
            hops,
            packets_per_s,
            age,
        })
}
