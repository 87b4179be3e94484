//! Placement, wired into a decision: from what was seen of packets and sockets to the cores of softirqs, vhost workers and vCPUs.
//!
//! The partition layer says which cores there are for queues and for vCPUs, and has its own places for interrupts and threads, in turn. Where this
//! layer has a better one it owns that interrupt or thread from then on, and the plans of NICs and guests say what it says. It never leaves the group.
//!
//! Where cores are shared by time ([`PartitionPolicy::TimeSharing`]) all of them are one pool, as in the paper: partition ties nothing to a core, and this layer
//! what it places.
//!
//! - **A queue whose softirq work is spread** over several cores (RPS) is placed on one only if one can do it: otherwise it stays spread, and its
//!   chain begins with the vhost worker.
//! - **A queue that shares its interrupt line** with another stays where partition has both.
//! - **Threads that aren't the layer's** are part of a chain where it is known which core they are on: workers that float, vCPUs unless they are to be
//!   placed too.
//! - **What a packet takes** of a stage is measured: the thread's run time over the packets that it had. A softirq that wasn't seen takes what others take. The settings' figure is
//!   for what nobody was seen to take.
//! - Between two decisions the last one stays, unless the groups or the guests have changed so that something of it can't.

mod calibration;
mod enter;
mod lay;

use std::borrow::Cow;
use std::sync::Arc;

use ostler_model::{
    Alternative, CpuId, Groups, IrqId, Layer, Nanos, NodeId, PartitionPolicy, PlacementPlan,
    PlacementPolicy, PlacementSettings, PlacementState, QueueCore, Reason, StageSettings,
    ThreadCore, Trust,
};

use super::{Due, count, due, not_seen};
use crate::Seen;
use crate::partition::demand::old_after;
use crate::partition::{Partition, nics};
use crate::placement::{
    Core, Flow, Index, Placer, Policy, Pool, Problem, Queue, Settings, Socket, Stage, Thread,
    Weights,
};
pub use calibration::{Calibration, StageCalibrated, StageKind};
use enter::{enter, fits};

/// Kinds of stages, in the order in which the problem has them.
const SOFTIRQ: Index = 0;
const VHOST: Index = 1;
const VCPU: Index = 2;
/// The pool of queues and vhost workers, and that of vCPUs.
const QUEUE_POOL: Index = 0;
const VCPU_POOL: Index = 1;
const NONE: u32 = u32::MAX;

/// Whose thread it is.
#[derive(Clone, Copy, Debug)]
enum Whose {
    /// A queue's softirq: by place in the plan's NICs.
    Softirq { nic: usize, queue: u32 },
    /// A vhost worker: by place in the roster and in the guest.
    Worker { guest: usize, at: u32 },
    /// A vCPU, likewise.
    Vcpu { guest: usize, at: u32 },
}

/// A queue as it is laid out: its flows are a range of flows.
#[derive(Clone, Copy, Debug)]
struct LaidQueue {
    socket: Index,
    flows: (usize, usize),
}

/// A flow as it is laid out: its stages are a range of stages.
#[derive(Clone, Copy, Debug)]
struct LaidFlow {
    packets: f64,
    priority: bool,
    stages: (usize, usize),
}

/// The layer's buffers. What is in them between decisions is of no consequence.
#[derive(Debug, Default)]
pub(super) struct Layered {
    placer: Placer,
    nodes: Vec<NodeId>,
    cores: Vec<Core>,
    /// By CPU number: its place in `cores`.
    core_of: Vec<u32>,
    sockets: Vec<Socket>,
    distances: Vec<f64>,
    /// All pools' cores one after another, and each pool's range and limit.
    pool_cores: Vec<Index>,
    pools: Vec<(usize, usize, Option<u32>)>,
    /// By core: the pool of it alone.
    alone: Vec<u32>,
    threads: Vec<Thread>,
    whose: Vec<Whose>,
    /// By guest: where its workers and vCPUs begin in `thread_of`.
    starts: Vec<usize>,
    thread_of: Vec<u32>,
    stages: Vec<Stage>,
    flows: Vec<LaidFlow>,
    queues: Vec<LaidQueue>,
    /// Flows that count, by NIC, queue and place in the snapshot.
    seen: Vec<(usize, u32, usize)>,
    /// Interrupt lines that several queues share, in order.
    shared: Vec<IrqId>,
    /// Packets a second of each worker and vCPU, as in `thread_of`, and of softirqs by core.
    packets: Vec<f64>,
    softirq_packets: Vec<f64>,
    /// Time in softirqs by core, where it was seen.
    softirq_time: Vec<Option<Nanos>>,
    /// What a packet took of all softirqs of which that is known, ns.
    softirq_packet: Option<f64>,
    /// By flow, as in `seen`: where its queue's interrupt goes now.
    softirqs: Vec<Option<Index>>,
    /// Places in the roster of the guests of all hops, flow after flow.
    hops: Vec<Option<usize>>,
    found: Found,
    /// Places in `thread_of` and `packets` that say something.
    touched: Vec<usize>,
}

/// What goes into a placement besides the buffers.
#[derive(Clone, Copy)]
struct Scene<'a> {
    seen: &'a Seen<'a>,
    settings: &'a PlacementSettings,
    groups: &'a Groups,
    partition: &'a Partition,
    before: Option<&'a PlacementPlan>,
    trust: Trust,
}

impl Layered {
    /// Decides, or has the last decision stay, and enters it into the plans of NICs and guests.
    pub(super) fn decide(
        &mut self,
        seen: &Seen<'_>,
        groups: &Groups,
        partition: &mut Partition,
        state: &PlacementState,
        reasons: &mut Vec<Reason>,
    ) -> PlacementState {
        let Some(settings) = &seen.intent.placement else {
            return PlacementState::default();
        };
        if let Err(why) = possible(seen, groups) {
            reasons.push(turned_down(why.into()));
            return PlacementState::default();
        }
        nics::shared_lines(&partition.nics, &mut self.shared);
        let before = state
            .plan
            .as_ref()
            .filter(|plan| fits(seen, groups, partition, &self.shared, plan));
        let due = match before {
            Some(_) => due(state.decided, settings.interval, seen.snapshot.at),
            None => Due::Now,
        };
        let next = match due {
            Due::In(left) => {
                reasons.push(Reason::Stays {
                    layer: Layer::Placement,
                    left,
                });
                state.clone()
            }
            Due::Now => {
                let scene = Scene {
                    seen,
                    settings,
                    groups,
                    partition,
                    before: before.map(|plan| &**plan),
                    trust: state.trust,
                };
                match self.place(&scene, reasons) {
                    Some(trust) => PlacementState {
                        decided: Some(seen.snapshot.at),
                        plan: Some(match before {
                            Some(plan) if self.found.is(partition, plan) => Arc::clone(plan),
                            _ => Arc::new(self.found.plan(partition, seen.snapshot.at)),
                        }),
                        trust,
                    },
                    None => PlacementState {
                        decided: before.and(state.decided),
                        plan: before.cloned(),
                        trust: before.map_or_else(Trust::default, |_| state.trust),
                    },
                }
            }
        };
        if let Some(plan) = &next.plan {
            enter(seen, partition, plan);
        }
        next
    }

    /// Finds out where all goes now, into `found`; nothing where too little was seen, with the reason.
    fn place(&mut self, scene: &Scene<'_>, reasons: &mut Vec<Reason>) -> Option<Trust> {
        let seen = scene.seen;
        if seen.now.saturating_sub(seen.snapshot.at) > old_after(seen) {
            reasons.push(not_seen(Layer::Placement, "recent snapshot"));
            return None;
        }
        if let Err(what) = self.lay(scene, limit(seen, scene.settings), reasons) {
            reasons.push(not_seen(Layer::Placement, what));
            return None;
        }
        self.solve(scene, reasons)
    }

    /// Lays out what a placement is found from, of what is no older than a limit; what wasn't seen, if anything.
    fn lay(
        &mut self,
        scene: &Scene<'_>,
        limit: Nanos,
        reasons: &mut Vec<Reason>,
    ) -> Result<(), Cow<'static, str>> {
        self.lay_cores(scene);
        self.lay_sockets(scene, limit)
            .map_err(|node| format!("counters of node {node}'s socket"))?;
        self.find_flows(scene, limit);
        if self.seen.is_empty() {
            return Err("packets by queue and guest".into());
        }
        self.lay_pools(scene);
        self.count_packets(scene);
        self.lay_queues(scene, reasons);
        Ok(())
    }

    fn solve(&mut self, scene: &Scene<'_>, reasons: &mut Vec<Reason>) -> Option<Trust> {
        let settings = scene.settings;
        // Of lists that borrow from each other none can be kept from decision to decision.
        let pools: Vec<Pool<'_>> = self
            .pools
            .iter()
            .map(|&(start, end, most)| Pool {
                cores: &self.pool_cores[start..end],
                most,
            })
            .collect();
        let flows: Vec<Flow<'_>> = self
            .flows
            .iter()
            .map(|flow| Flow {
                packets: flow.packets,
                priority: flow.priority,
                stages: &self.stages[flow.stages.0..flow.stages.1],
            })
            .collect();
        let queues: Vec<Queue<'_>> = self
            .queues
            .iter()
            .map(|queue| Queue {
                socket: queue.socket,
                flows: &flows[queue.flows.0..queue.flows.1],
            })
            .collect();
        // A group without cores is nobody's, and no pool.
        let used = |pool: &Pool<'_>| !pool.cores.is_empty();
        let first = pools.first().filter(|pool| used(pool))?;
        let pools: Vec<Pool<'_>> = pools
            .iter()
            .map(|pool| if used(pool) { *pool } else { *first })
            .collect();
        let problem = Problem {
            cores: &self.cores,
            sockets: &self.sockets,
            distances: &self.distances,
            kinds: &[settings.softirq, settings.vhost, settings.vcpu].map(|kind| weights(&kind)),
            pools: &pools,
            threads: &self.threads,
            queues: &queues,
        };
        let by = Settings {
            policy: match settings.policy {
                PlacementPolicy::Chains => Policy::Chains,
                PlacementPolicy::NumaAware => Policy::NumaAware,
                PlacementPolicy::ContentionAware => Policy::ContentionAware,
            },
            margin: settings.margin,
            trust: scene.trust,
        };
        let placed = match self.placer.place(&problem, by) {
            Ok(placed) => placed,
            Err(refusal) => {
                reasons.push(turned_down(refusal.to_string().into()));
                return None;
            }
        };
        reasons.push(Reason::Placed {
            queues: count(self.queues.len()),
            slowdown: placed.slowdown,
            present: placed.present,
            kept: placed.kept,
            wary: Some(placed.trust.wary).filter(|wary| *wary > 1.0),
        });
        let trust = placed.trust;
        let Found {
            softirqs,
            workers,
            vcpus,
        } = &mut self.found;
        for places in [&mut *softirqs, &mut *workers, &mut *vcpus] {
            places.clear();
        }
        for ((whose, thread), cpu) in self.whose.iter().zip(&self.threads).zip(&placed.cores) {
            let &Some(cpu) = cpu else { continue };
            if thread.pool > VCPU_POOL {
                continue;
            }
            match *whose {
                Whose::Softirq { nic, queue } => softirqs.push((nic, queue, cpu)),
                Whose::Worker { guest, at } => workers.push((guest, at, cpu)),
                Whose::Vcpu { guest, at } => vcpus.push((guest, at, cpu)),
            }
        }
        for places in [softirqs, workers, vcpus] {
            places.sort_unstable();
        }
        Some(trust)
    }
}

/// What was found, without names: NICs and guests by their places in the plan, which are in order of name and of id.
#[derive(Debug, Default)]
struct Found {
    softirqs: Vec<(usize, u32, CpuId)>,
    workers: Vec<(usize, u32, CpuId)>,
    vcpus: Vec<(usize, u32, CpuId)>,
}

impl Found {
    /// Whether a plan says the same. Most of the time it does, and nothing needs to be named.
    fn is(&self, partition: &Partition, plan: &PlacementPlan) -> bool {
        let queues = self.softirqs.iter().map(|&(nic, queue, cpu)| {
            let nic = &partition.nics[nic].name;
            (nic, queue, cpu)
        });
        let threads = |found: &[(usize, u32, CpuId)], placed: &[ThreadCore]| {
            let found = found.iter().map(|&(guest, at, cpu)| {
                let guest = &partition.guests[guest].guest;
                (guest, at, cpu)
            });
            found.eq(placed
                .iter()
                .map(|thread| (&thread.guest, thread.at, thread.cpu)))
        };
        let placed = plan.softirqs.iter();
        queues.eq(placed.map(|queue| (&queue.nic, queue.queue, queue.cpu)))
            && threads(&self.workers, &plan.workers)
            && threads(&self.vcpus, &plan.vcpus)
    }

    /// It as a plan.
    fn plan(&self, partition: &Partition, since: Nanos) -> PlacementPlan {
        let threads = |found: &[(usize, u32, CpuId)]| {
            let found = found.iter().map(|&(guest, at, cpu)| ThreadCore {
                guest: partition.guests[guest].guest.clone(),
                at,
                cpu,
            });
            found.collect()
        };
        let queues = self.softirqs.iter().map(|&(nic, queue, cpu)| QueueCore {
            nic: partition.nics[nic].name.clone(),
            queue,
            cpu,
        });
        PlacementPlan {
            since,
            softirqs: queues.collect(),
            workers: threads(&self.workers),
            vcpus: threads(&self.vcpus),
        }
    }
}

/// As old as counters of sockets and packets may be.
fn limit(seen: &Seen<'_>, settings: &PlacementSettings) -> Nanos {
    let rounds = settings.interval.0.saturating_mul(3);
    Nanos(old_after(seen).0.max(rounds))
}

/// Whether the partition layer has anything to place within: its groups are isolated, or one pool for all.
fn possible(seen: &Seen<'_>, groups: &Groups) -> Result<(), &'static str> {
    let policy = seen.intent.partition.policy;
    let shares = matches!(policy, PartitionPolicy::TimeSharing { .. });
    if !policy.weighs() && !shares && !matches!(policy, PartitionPolicy::Static { .. }) {
        return Err("the policy in force is one to compare with, whose threads float");
    }
    if groups.shared && !shares {
        return Err("vCPUs and queues share their cores");
    }
    if groups.nq.is_empty() {
        return Err("there are no cores for queues");
    }
    Ok(())
}

fn turned_down(why: Cow<'static, str>) -> Reason {
    Reason::TurnedDown {
        layer: Layer::Placement,
        alternative: Alternative {
            what: "a core for each thread on packets' ways by its slowdown".into(),
            why,
        },
    }
}

fn weights(stage: &StageSettings) -> Weights {
    Weights {
        cache: stage.cache,
        memory: stage.memory,
        interconnect: stage.interconnect,
        remote: stage.remote,
        crossing: stage.crossing,
        base: stage.base,
        load: stage.load,
    }
}
