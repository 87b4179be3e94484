//! A good plan, and how it is shown that something wrong with it is found.

#![allow(dead_code, reason = "not every test uses all of it")]

use ostler_check::{Violation, check};
use ostler_model::testing::rules;
use ostler_model::{
    AgentHealth, AgentState, AgentView, Class, Cpu, CpuId, CpuSet, CpuUsage, CpuWeight, Facts,
    Groups, GuestId, GuestPlan, GuestSource, GuestView, Intent, IrqId, IrqPlan, IrqView, Nanos,
    NicFacts, NicPlan, NicView, NodeId, PartitionPolicy, Pid, Plan, Ring, RunState, Snapshot,
    ThreadUsage, Tid, Topology, VcpuView, VhostView,
};

/// A plan and all that it is judged by.
#[derive(Clone)]
pub struct Case {
    pub facts: Facts,
    pub snapshot: Snapshot,
    pub intent: Intent,
    pub previous: Option<Plan>,
    pub plan: Plan,
}

impl Case {
    pub fn check(&self) -> Vec<Violation> {
        check(
            &self.facts,
            &self.snapshot,
            &self.intent,
            self.previous.as_ref(),
            &self.plan,
        )
    }
}

pub fn set(text: &str) -> CpuSet {
    text.parse().unwrap()
}

pub fn guest(name: &str, vcpus: u32, workers: u32) -> GuestView {
    GuestView {
        id: name.into(),
        name: name.into(),
        uuid: None,
        metadata: Vec::new(),
        source: GuestSource::Qmp,
        pid: Pid(100),
        cgroup: None,
        frozen: false,
        vcpus: (0..vcpus)
            .map(|index| VcpuView {
                index,
                tid: Tid(200 + index),
                allowed: CpuSet::EMPTY,
                usage: ThreadUsage::default(),
            })
            .collect(),
        vhost: (0..workers)
            .map(|queue| VhostView {
                tid: Tid(300 + queue),
                queue: Some(queue),
                allowed: CpuSet::EMPTY,
                usage: ThreadUsage::default(),
            })
            .collect(),
        emulator: Vec::new(),
        taps: Vec::new(),
        vsock_cid: None,
        latency: None,
        agent: Some(AgentView {
            health: AgentHealth::Healthy,
            state: Some(AgentState {
                vcpus_online: (0..vcpus).collect(),
                vcpus_active: (0..vcpus).collect(),
                queues: 1,
                queues_max: 2,
            }),
            age: Nanos::ZERO,
        }),
        age: Nanos::ZERO,
    }
}

/// Six physical cores with two threads each: core 0 is reserved, 1 and 2 are for vCPUs, 3 is best-effort, 4 is idle and 5 for queues.
#[expect(clippy::too_many_lines, reason = "a whole plan, spelt out")]
pub fn good() -> Case {
    let facts = Facts {
        topology: Topology {
            cpus: (0..12)
                .map(|id| Cpu {
                    id: CpuId(id),
                    node: NodeId(0),
                    core: CpuId(id % 6),
                    cache_group: CpuId(0),
                })
                .collect(),
        },
        nics: vec![NicFacts {
            name: "eth0".into(),
            queues_max: 4,
            rss_settable: true,
            node: None,
        }],
        ..Facts::default()
    };
    let snapshot = Snapshot {
        seq: 8,
        at: Nanos::from_millis(800),
        interval: Nanos::from_millis(100),
        cpus: (0..12)
            .map(|cpu| CpuUsage {
                cpu: CpuId(cpu),
                busy: Nanos::ZERO,
                irq: Nanos::ZERO,
                softirq: Nanos::ZERO,
                yielding: Some(Nanos::ZERO),
            })
            .collect(),
        guests: vec![
            guest("be0", 2, 1),
            guest("lc0", 4, 2),
            guest("other0", 1, 1),
        ],
        nics: vec![NicView {
            name: "eth0".into(),
            queues: 1,
            irqs: (0..2)
                .map(|queue| IrqView {
                    irq: IrqId(40 + queue),
                    queue,
                    ring: Ring::Receive,
                    affinity: CpuSet::EMPTY,
                    count: 0,
                })
                .collect(),
        }],
        ..Snapshot::default()
    };
    let mut intent = Intent {
        guests: rules(),
        nics: vec!["eth0".into()],
        ..Intent::default()
    };
    intent.cores.reserved = set("0,6");
    intent.partition.policy = PartitionPolicy::Resource;
    let plan = Plan {
        generation: 8,
        parent: Some(7),
        at: snapshot.at,
        groups: Groups {
            vcpu: set("1-2,7-8"),
            nq: set("5,11"),
            best_effort: set("3,9"),
            idle: set("4,10"),
            reserved: set("0,6"),
            shared: false,
        },
        guests: vec![
            GuestPlan {
                guest: "be0".into(),
                class: Class::BestEffort,
                run: RunState::Running,
                vcpu_cpus: set("3,9"),
                vcpu_pins: Vec::new(),
                vhost_cpus: set("3,9"),
                vhost_pins: Vec::new(),
                emulator_cpus: set("3,9"),
                weight: CpuWeight::AsFound,
                vcpus_active: None,
                queues: None,
            },
            GuestPlan {
                guest: "lc0".into(),
                class: Class::LatencyCritical,
                run: RunState::Running,
                vcpu_cpus: set("1-2,7-8"),
                vcpu_pins: [1, 7, 2, 8].map(CpuId).to_vec(),
                vhost_cpus: set("5,11"),
                vhost_pins: [5, 11].map(CpuId).to_vec(),
                emulator_cpus: set("1-2,7-8"),
                weight: CpuWeight::Untouched,
                vcpus_active: Some(4),
                queues: Some(2),
            },
        ],
        nics: vec![NicPlan {
            name: "eth0".into(),
            queues: 2,
            irqs: vec![
                IrqPlan {
                    irq: IrqId(40),
                    queue: 0,
                    ring: Ring::Receive,
                    cpus: set("5"),
                },
                IrqPlan {
                    irq: IrqId(41),
                    queue: 1,
                    ring: Ring::Receive,
                    cpus: set("11"),
                },
            ],
            xps: vec![set("0-5"), set("6-11")],
            rps: vec![CpuSet::EMPTY, CpuSet::EMPTY],
        }],
        ..Plan::default()
    };
    let previous = Plan {
        generation: 7,
        parent: Some(6),
        ..plan.clone()
    };
    Case {
        facts,
        snapshot,
        intent,
        previous: Some(previous),
        plan,
    }
}

/// Makes one thing wrong and expects exactly this violation, whose text names what it is about.
#[track_caller]
pub fn rejects(expected: &Violation, mutate: impl FnOnce(&mut Case)) {
    let mut case = good();
    mutate(&mut case);
    let found = case.check();
    assert!(
        found.iter().any(|violation| violation == expected),
        "expected {expected:?}, found {found:?}"
    );
    assert!(!expected.to_string().is_empty());
}

pub fn lc(case: &mut Case) -> &mut GuestPlan {
    &mut case.plan.guests[1]
}

pub fn be(case: &mut Case) -> &mut GuestPlan {
    &mut case.plan.guests[0]
}

pub fn lc0() -> GuestId {
    "lc0".into()
}

pub fn be0() -> GuestId {
    "be0".into()
}

pub fn eth0() -> String {
    "eth0".into()
}

/// Has the NIC's transmit rings have vectors of their own, planned as those of the same queue are.
pub fn sends(case: &mut Case) {
    let nic = &mut case.plan.nics[0];
    let more: Vec<_> = nic
        .irqs
        .iter()
        .map(|irq| IrqPlan {
            irq: IrqId(irq.irq.0 + 2),
            ring: Ring::Transmit,
            ..*irq
        })
        .collect();
    case.snapshot.nics[0]
        .irqs
        .extend(more.iter().map(|irq| IrqView {
            irq: irq.irq,
            queue: irq.queue,
            ring: irq.ring,
            affinity: CpuSet::EMPTY,
            count: 0,
        }));
    nic.irqs.extend(more);
}
