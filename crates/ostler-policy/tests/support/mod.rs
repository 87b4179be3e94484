//! A host small enough to reason about, and a fluid model of load on it.
//!
//! Work flows into the two groups at given rates, in cores' time per time; what a group's cores can't do stays as backlog. Cores of a
//! group share its work evenly. Best-effort guests use whatever cores they run on to the full, on shared cores what
//! is left over. There are no threads, queues or packets in it: it is there to close the loop around decide().

#![allow(dead_code, reason = "not every test uses all of it")]

use ostler_check::check;
use ostler_model::testing::rules;
use ostler_model::{
    ActMode, AgentHealth, AgentState, AgentView, Cpu, CpuId, CpuSet, CpuUsage, CpuWeight, Facts,
    GuestSource, GuestView, Intent, IrqId, IrqView, LatencyView, Nanos, NicFacts, NicView, NodeId,
    PartitionPolicy, Pid, Plan, Reason, Ring, RunState, Snapshot, State, ThreadUsage, Tid,
    Topology, VcpuView, VhostView,
};
use ostler_policy::decide;

pub const PERIOD: Nanos = Nanos::from_millis(100);

pub fn set(text: &str) -> CpuSet {
    text.parse().unwrap()
}

/// So many equal cores on one node, and one NIC with eight queues.
pub fn facts(cores: u32) -> Facts {
    Facts {
        topology: Topology {
            cpus: (0..cores)
                .map(|id| Cpu {
                    id: CpuId(id),
                    node: NodeId(0),
                    core: CpuId(id),
                    cache_group: CpuId(0),
                })
                .collect(),
        },
        nics: vec![NicFacts {
            name: "eth0".into(),
            queues_max: 8,
            rss_settable: true,
            node: Some(NodeId(0)),
        }],
        ..Facts::default()
    }
}

pub fn intent(policy: PartitionPolicy) -> Intent {
    let mut intent = Intent {
        guests: rules(),
        nics: vec!["eth0".into()],
        ..Intent::default()
    };
    intent.act.mode = ActMode::Act;
    intent.partition.policy = policy;
    intent.partition.exploration = None;
    intent
}

/// A guest with a healthy agent. `lc*` is latency-critical, `be*` best-effort.
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
                queues_max: workers.max(1),
            }),
            age: Nanos::ZERO,
        }),
        age: Nanos::ZERO,
    }
}

/// A snapshot over one period in which nothing ran.
pub fn snapshot(facts: &Facts, guests: Vec<GuestView>) -> Snapshot {
    Snapshot {
        seq: 1,
        at: PERIOD,
        interval: PERIOD,
        cpus: facts
            .topology
            .cpus
            .iter()
            .map(|cpu| CpuUsage {
                cpu: cpu.id,
                busy: Nanos::ZERO,
                irq: Nanos::ZERO,
                softirq: Nanos::ZERO,
                yielding: Some(Nanos::ZERO),
            })
            .collect(),
        guests,
        nics: facts
            .nics
            .iter()
            .map(|nic| NicView {
                name: nic.name.clone(),
                queues: 1,
                irqs: (0..nic.queues_max)
                    .map(|queue| IrqView {
                        irq: IrqId(40 + queue),
                        queue,
                        ring: Ring::Receive,
                        affinity: CpuSet::EMPTY,
                        count: 100,
                    })
                    .collect(),
            })
            .collect(),
        ..Snapshot::default()
    }
}

/// Has NICs' transmit rings have vectors of their own, as many as there are others, numbered in turn with these.
pub fn sends(snapshot: &mut Snapshot) {
    for nic in &mut snapshot.nics {
        let both = nic.irqs.iter().flat_map(|irq| {
            [Ring::Receive, Ring::Transmit].map(|ring| IrqView {
                irq: IrqId(2 * irq.irq.0 + ring as u32),
                ring,
                ..irq.clone()
            })
        });
        nic.irqs = both.collect();
        nic.irqs.sort_by_key(|irq| (irq.ring, irq.queue));
    }
}

/// Sets how busy these CPUs were, 0..=1.
pub fn busy(snapshot: &mut Snapshot, cpus: &CpuSet, share: f64) {
    for usage in &mut snapshot.cpus {
        if cpus.contains(usage.cpu) {
            usage.busy = nanos(share);
        }
    }
}

/// A share of the period.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
pub fn nanos(share: f64) -> Nanos {
    Nanos((share.max(0.0) * PERIOD.0 as f64).round() as u64)
}

/// Decides without randomness, right after the snapshot.
pub fn decide_now(
    facts: &Facts,
    snapshot: &Snapshot,
    intent: &Intent,
    state: &State,
) -> ostler_policy::Decision {
    let mut none = || 0;
    decide(facts, snapshot, intent, state, snapshot.at, &mut none)
}

/// The closed loop.
pub struct Fluid {
    pub facts: Facts,
    pub intent: Intent,
    pub state: State,
    pub plan: Plan,
    pub reasons: Vec<Reason>,
    /// Whether the host counts what yields.
    pub counts_yielding: bool,
    /// How many answers the latency-critical guest gives in a period, where it is seen to.
    pub responses: u64,
    /// How many vCPUs the latency-critical guest has.
    pub critical_vcpus: u32,
    /// How many the best-effort guest has.
    pub best_effort_vcpus: u32,
    backlog: [f64; 2],
    seq: u64,
}

/// What a step came to.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Utilisation of the vCPU cores.
    pub vcpu: f64,
    /// Utilisation of the network queue cores.
    pub nq: f64,
    /// Work left undone, in cores' periods.
    pub backlog: f64,
}

impl Fluid {
    /// A host with one latency-critical and, if wanted, one best-effort guest. The first decision is made, on no measurement.
    pub fn new(cores: u32, intent: Intent, best_effort: bool) -> Fluid {
        let facts = facts(cores);
        let mut guests = vec![guest("lc0", cores, 8)];
        if best_effort {
            guests.insert(0, guest("be0", 2, 1));
        }
        let mut first = snapshot(&facts, guests);
        first.interval = Nanos::ZERO;
        let decision = decide_now(&facts, &first, &intent, &State::default());
        assert_eq!(check(&facts, &first, &intent, None, &decision.plan), []);
        Fluid {
            facts,
            intent,
            state: decision.state,
            plan: decision.plan,
            reasons: decision.reasons,
            counts_yielding: true,
            responses: 100,
            critical_vcpus: cores,
            best_effort_vcpus: 2,
            backlog: [0.0; 2],
            seq: 1,
        }
    }

    /// One period under a load, then a decision. `p95_over_slo` is what the guest's clients see, from the utilisations.
    pub fn step(&mut self, vcpu: f64, nq: f64, p95_over_slo: impl Fn(Step) -> Option<f64>) -> Step {
        self.seq += 1;
        let guests = self
            .plan
            .guests
            .iter()
            .map(|guest_plan| {
                let name = guest_plan.guest.as_str();
                let best_effort = name.starts_with("be");
                guest(
                    name,
                    if best_effort {
                        self.best_effort_vcpus
                    } else {
                        self.critical_vcpus
                    },
                    if best_effort { 1 } else { 8 },
                )
            })
            .collect();
        let mut next = snapshot(&self.facts, guests);
        next.seq = self.seq;
        next.at = Nanos(PERIOD.0 * self.seq);
        if !self.counts_yielding {
            for usage in &mut next.cpus {
                usage.yielding = None;
            }
        }
        let groups = self.plan.groups;
        let mut utilisation = [0.0; 2];
        // A shared pool does both kinds of work.
        let works = if groups.shared {
            vec![(groups.vcpu, vcpu + nq)]
        } else {
            vec![(groups.vcpu, vcpu), (groups.nq, nq)]
        };
        for (at, (set, load)) in works.into_iter().enumerate() {
            let cores = f64::from(set.len());
            let work = self.backlog[at] + load;
            let done = work.min(cores);
            self.backlog[at] = work - done;
            utilisation[at] = done / cores.max(1.0);
            busy(&mut next, &set, utilisation[at]);
        }
        let best_effort = self.plan.guests.iter().find(|g| g.guest.as_str() == "be0");
        if let Some(plan) = best_effort.filter(|plan| plan.run == RunState::Running) {
            // All of its own cores, and what is left of others'.
            let mut ran = 0.0;
            for usage in &mut next.cpus {
                if !plan.vcpu_cpus.contains(usage.cpu) {
                    continue;
                }
                let left = PERIOD.0 - usage.busy.0;
                usage.busy = PERIOD;
                if plan.weight == CpuWeight::Idle && self.counts_yielding {
                    usage.yielding = Some(Nanos(left));
                }
                ran += left as f64 / PERIOD.0 as f64;
            }
            next.guests[0].vcpus[0].usage.run = nanos(ran);
        } else if best_effort.is_some() {
            next.guests[0].frozen = true;
        }
        let step = Step {
            vcpu: utilisation[0],
            nq: utilisation[1],
            backlog: self.backlog.iter().sum(),
        };
        let lc = next.guests.len() - 1;
        next.guests[lc].latency = p95_over_slo(step).map(|ratio| LatencyView {
            responses: self.responses,
            p50: Nanos::from_micros(100),
            // The objective is 1 ms: a hundredth of the period.
            p95: nanos(ratio / 100.0),
            p99: Nanos::from_millis(2),
            age: Nanos::ZERO,
        });
        let decision = decide_now(&self.facts, &next, &self.intent, &self.state);
        let violations = check(
            &self.facts,
            &next,
            &self.intent,
            Some(&self.plan),
            &decision.plan,
        );
        assert_eq!(violations, []);
        self.plan = decision.plan;
        self.state = decision.state;
        self.reasons = decision.reasons;
        step
    }

    /// Cores for vCPUs, for network queues, for best-effort guests, and idle.
    pub fn sizes(&self) -> [u32; 4] {
        let groups = &self.plan.groups;
        [groups.vcpu, groups.nq, groups.best_effort, groups.idle].map(|set| set.len())
    }

    /// Whether the best-effort guest runs.
    pub fn best_effort_runs(&self) -> bool {
        self.plan
            .guest(&"be0".into())
            .is_some_and(|guest| guest.run == RunState::Running)
    }
}
