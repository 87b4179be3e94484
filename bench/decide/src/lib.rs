//! The world of `decide` and `decide-all`: 256 cores, 512 guests.
//!
//! May depend on: model.

use ostler_model::{
    ActMode, AgentHealth, AgentState, AgentView, Class, Cpu, CpuId, CpuSet, CpuUsage, Facts,
    Groups, GuestMatch, GuestRule, GuestSource, GuestView, Intent, IrqId, IrqView, LatencyView,
    Nanos, NicFacts, NicView, NodeId, PartitionPolicy, Pid, Ring, Snapshot, State, ThreadUsage,
    Tid, Topology, VcpuView, VhostView,
};

/// CPUs of the host.
pub const CORES: u32 = 256;
/// Guests on it.
pub const GUESTS: u32 = 512;
/// One guest in four is latency-critical.
pub const LATENCY_CRITICAL: u32 = GUESTS / 4;
/// How long a snapshot is of.
pub const PERIOD: Nanos = Nanos::from_millis(100);
/// Queues of each of its two NICs.
pub const QUEUES: u32 = 64;

/// Two sockets of 64 physical cores with two threads each, eight cores to a cache.
pub fn facts() -> Facts {
    let physical = CORES / 2;
    Facts {
        kernel: "6.12.0".into(),
        topology: Topology {
            cpus: (0..CORES)
                .map(|id| {
                    let core = id % physical;
                    Cpu {
                        id: CpuId(id),
                        node: NodeId(core / (physical / 2)),
                        core: CpuId(core),
                        cache_group: CpuId(core - core % 8),
                    }
                })
                .collect(),
        },
        nics: (0..2)
            .map(|node| NicFacts {
                name: format!("eth{node}"),
                queues_max: QUEUES,
                rss_settable: true,
                node: Some(NodeId(node)),
            })
            .collect(),
        ..Facts::default()
    }
}

/// One rule for each kind of guest, two reserved cores.
pub fn intent(policy: PartitionPolicy) -> Intent {
    let rule = |name: &str, class, slo| GuestRule::new(GuestMatch::Name(name.into()), class, slo);
    let mut intent = Intent {
        guests: vec![
            rule(
                "web-*",
                Class::LatencyCritical,
                Some(Nanos::from_millis(10)),
            ),
            rule(
                "cache-*",
                Class::LatencyCritical,
                Some(Nanos::from_millis(1)),
            ),
            rule("batch-*", Class::BestEffort, None),
        ],
        nics: vec!["eth0".into(), "eth1".into()],
        ..Intent::default()
    };
    intent.act.mode = ActMode::Act;
    intent.partition.policy = policy;
    intent.cores.reserved = [0, CORES / 2].map(CpuId).into_iter().collect();
    intent
}

fn guest(at: u32) -> GuestView {
    let critical = at < LATENCY_CRITICAL;
    let usage = ThreadUsage {
        run: Nanos::from_millis(u64::from(10 + at % 30)),
        wait: Nanos::from_millis(1),
    };
    GuestView {
        id: format!("{at:08x}-0000-4000-8000-000000000000")
            .as_str()
            .into(),
        name: if critical {
            format!("cache-{at}")
        } else {
            format!("batch-{at}")
        },
        uuid: None,
        metadata: vec![("team".into(), "a".into())],
        source: GuestSource::Qmp,
        pid: Pid(10_000 + at),
        cgroup: Some(format!("/machine.slice/guest-{at}.scope")),
        frozen: false,
        vcpus: (0..4)
            .map(|index| VcpuView {
                index,
                tid: Tid(100_000 + 10 * at + index),
                allowed: CpuSet::range(0, CORES),
                usage,
            })
            .collect(),
        vhost: (0..2)
            .map(|queue| VhostView {
                tid: Tid(200_000 + 10 * at + queue),
                queue: Some(queue),
                allowed: CpuSet::range(0, CORES),
                usage,
            })
            .collect(),
        emulator: vec![Tid(300_000 + at)],
        taps: Vec::new(),
        vsock_cid: Some(100 + at),
        latency: critical.then_some(LatencyView {
            responses: 1000,
            p50: Nanos::from_micros(200),
            p95: Nanos::from_micros(700 + u64::from(at)),
            p99: Nanos::from_micros(1500),
            age: Nanos::ZERO,
        }),
        agent: critical.then(|| AgentView {
            health: AgentHealth::Healthy,
            state: Some(AgentState {
                vcpus_online: (0..4).collect(),
                vcpus_active: (0..1).collect(),
                queues: 2,
                queues_max: 2,
            }),
            age: Nanos::ZERO,
        }),
        age: Nanos::ZERO,
    }
}

/// A period in which every guest does a little.
pub fn snapshot(facts: &Facts) -> Snapshot {
    Snapshot {
        seq: 7,
        at: Nanos::from_secs(7),
        interval: PERIOD,
        cpus: (0..CORES)
            .map(|cpu| CpuUsage {
                cpu: CpuId(cpu),
                busy: Nanos::from_millis(u64::from(65 + cpu % 3)),
                irq: Nanos::from_millis(1),
                softirq: Nanos::from_millis(2),
                yielding: Some(Nanos::ZERO),
            })
            .collect(),
        guests: (0..GUESTS).map(guest).collect(),
        nics: (0..)
            .zip(&facts.nics)
            .map(|(at, nic)| NicView {
                name: nic.name.clone(),
                queues: QUEUES / 2,
                irqs: (0..QUEUES)
                    .map(|queue| IrqView {
                        // Message-signalled: each queue has a line of its own.
                        irq: IrqId(100 + at * QUEUES + queue),
                        queue,
                        ring: Ring::Receive,
                        affinity: CpuSet::single(CpuId(queue)),
                        count: 500,
                    })
                    .collect(),
            })
            .collect(),
        ..Snapshot::default()
    }
}

/// A state in which the groups have been what they are for a while: at a utilisation of two thirds they neither grow nor, for the margin, shrink.
pub fn steady() -> State {
    let physical = |cores: std::ops::Range<u32>| -> CpuSet {
        cores
            .flat_map(|core| [core, core + CORES / 2])
            .map(CpuId)
            .collect()
    };
    let mut steady = State {
        generation: 1,
        ..State::default()
    };
    steady.partition.previous = Some(Groups {
        vcpu: physical(1..80),
        best_effort: physical(80..112),
        nq: physical(112..128),
        reserved: physical(0..1),
        ..Groups::default()
    });
    steady
}

/// The heap keeps what is freed, as the steward's does (`crates/ostler/src/steward/heap.rs`).
///
/// # Panics
/// Where glibc doesn't take that.
#[allow(unsafe_code, reason = "mallopt is C's")]
pub fn keep_freed() {
    for parameter in [libc::M_TRIM_THRESHOLD, libc::M_MMAP_THRESHOLD] {
        // SAFETY: glibc's own call, before there are other threads.
        let kept = unsafe { libc::mallopt(parameter, 32 << 20) };
        assert_eq!(kept, 1, "glibc keeps it");
    }
}
