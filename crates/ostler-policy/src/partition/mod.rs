//! How many cores, and which, for vCPUs, for network queues and for best-effort guests: vSPACE, section 4.
//!
//! **The idea.** On a virtualised host a packet passes the NIC's interrupt, a softirq, a vhost worker and a vCPU. Where all of them
//! compete for the same cores, each preempts the other, and tail latency goes up long before the cores are full. vSPACE splits the
//! cores into two groups, one for vCPUs and one for network queues (NQs: interrupts, softirqs and vhost workers), and lets the
//! numbers of vCPUs and of queues follow the sizes of the groups. Every period (100 ms) it measures how busy each group's
//! cores were, and moves cores.
//!
//! **Modes.** *P* (performance) gives all cores away, in proportion to demand. *E* (energy) gives as many as demand asks for and leaves the
//! rest idle. *R* (resources) is E, with the idle cores given to best-effort guests, which are suspended while there are none.
//!
//! # Where the paper's symbols are
//!
//! | paper | here |
//! |---|---|
//! | `TotalCore` | [`cores::Cores::total`] |
//! | `TotalUtil_g` | [`demand::Demand`], [`allocate::Ask::busy`] |
//! | `Th_g` | `Thresholds`, [`allocate::Ask::threshold`] |
//! | `ReqCore_g` (Algorithm 1, a real number) | [`allocate::Ask::required`] |
//! | `ReqCore_g` (Algorithm 2, whole cores) | [`allocate::Ask::bare`] |
//! | `PrevCore_g` | [`allocate::Ask::previous`], from `PartitionState::previous` |
//! | `NextCore_g` | [`allocate::Split`] |
//! | `MARGIN` | `PartitionIntent::margin`, [`allocate::Ask::with_margin`] |
//! | Algorithm 1 | [`allocate::performance`] |
//! | Algorithm 2 | [`allocate::energy`] |
//! | `S`, `s` | `PartitionState::samples`, `Sample` |
//! | `S_vio`, `allowVioCount`, `decCount`, `TH'` | [`explore::algorithm_3`] |
//! | `AllowVio`, `Weight`, `Reward` | `Exploration` |
//! | Algorithm 3 | [`explore::algorithm_3`], called by [`explore::explore`] |
//! | pNQs and vNQs follow NQ cores | [`nics::plan`], [`guests::plan`] |
//! | vCPUs follow vCPU cores | [`guests::plan`] |
//! | the comparisons of section 5.1 | [`baselines`] |
//!
//! # What is beyond the paper
//!
//! The paper has one latency-critical guest, at most one best-effort guest, and a host of twenty equal cores that is all
//! theirs. Here there are any number of either, reserved and unmanaged cores, SMT ([`cores`]), NICs with few queues or none to set
//! ([`nics`]), and guests with no agent or one that can't be trusted ([`guests`]). In short:
//!
//! - All latency-critical guests share one vCPU group and one NQ group. The worst of them, P95 over objective, is the sample that thresholds are
//!   explored by.
//! - A group exists when something needs it: the vCPU group when there is a latency-critical guest, the NQ group when there is a NIC in the
//!   steward's care or a vhost worker of a latency-critical guest. One that exists has at least a core. If there is one core and
//!   both are needed, they share it.
//! - With one group alone, P gives it all cores when it is that of the vCPUs. Queues alone follow E in every mode, and leave a
//!   core to best-effort guests, whose traffic they carry.
//! - Best-effort guests that share cores with latency-critical ones yield to them there ([`weights`]). Under R they have what is left of the
//!   groups' cores besides cores of their own ([`weights::leftovers`]), while response times have room for it ([`room`]). vCPUs' cores are ample then
//!   (`follow::SPREAD`).
//! - Demand is held: a group grows at once, and gives cores up when its demand has been lower for a while ([`peaks`]). P, which always
//!   gives all, divides by averages ([`average`], [`allocate::steady_performance`]).
//! - When nothing could be measured (the first snapshot, or one too old), the cores stay as they were; when there is no before,
//!   they are split evenly, and nobody is suspended on no evidence.
//! - Cores that came or went (hotplug, a changed intent) are left out of the previous groups and counted anew.
//!
//! What was changed in the algorithms themselves stands at their heads: [`allocate`], [`explore`], [`demand`].

pub mod allocate;
mod average;
pub mod baselines;
pub mod cores;
pub mod demand;
mod explain;
pub mod explore;
mod follow;
pub mod guests;
mod memory;
pub mod nics;
mod peaks;
mod room;
pub mod weights;

use ostler_model::{
    Group, Groups, GuestPlan, Leftovers, NicPlan, NodeId, PartitionPolicy, PartitionState,
    QueueCount, Reason, Room, Thresholds,
};

use crate::{Ledger, Seen};
use allocate::Split;
use baselines::Pool;
use cores::{Assignment, Cores, Lined};
use guests::{BestEffort, Terms};
use memory::Latency;

/// The layer's part of a decision. The cores are in the ledger.
#[derive(Clone, Debug, PartialEq)]
pub struct Partition {
    /// What guests are given.
    pub guests: Vec<GuestPlan>,
    /// What NICs are given.
    pub nics: Vec<NicPlan>,
    /// What to remember.
    pub memory: PartitionState,
}

/// How many queues devices are to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queues {
    /// One for each network queue CPU.
    PerCore,
    /// A baseline's fixed number.
    Fixed(QueueCount),
}

/// Which groups something needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Needs {
    vcpu: bool,
    nq: bool,
}

impl Needs {
    /// There are NICs, or there aren't.
    fn of(seen: &Seen<'_>, nics: bool) -> Needs {
        let mut critical = seen.roster.latency_critical();
        Needs {
            vcpu: seen.roster.latency_critical_count() > 0,
            nq: nics || critical.any(|member| !member.view.vhost.is_empty()),
        }
    }
}

/// Everything that the policies of this layer look at.
struct Scene<'a> {
    seen: &'a Seen<'a>,
    cores: &'a Cores,
    needs: Needs,
    /// The last plan's groups.
    previous: Option<&'a Groups>,
    /// Their sizes, in units that are still there. Groups that shared cores had none of their own.
    before: Split,
    thresholds: Thresholds,
    /// Whether this period's measurements count.
    measured: bool,
    /// What best-effort guests may have besides their own cores.
    leftovers: Leftovers,
    /// What was remembered.
    memory: &'a PartitionState,
}

/// A figure for vCPUs and one for queues, where there was something to measure.
type PerGroup = Option<(f64, f64)>;

/// What a policy decided.
struct Division {
    assignment: Assignment,
    queues: Queues,
    /// Whether threads may be tied to cores, and guests confined to as many vCPUs as they have cores.
    isolated: bool,
    confine: bool,
    /// What thresholds are explored by, where it was measured on the groups' own cores.
    evidence: PerGroup,
    /// Demand of vCPUs and queues in this period, where the policy went by it.
    demand: PerGroup,
}

/// Divides the cores of the ledger.
pub fn decide(
    seen: &Seen<'_>,
    ledger: &mut Ledger,
    before: &PartitionState,
    lined: &mut Lined,
    reasons: &mut Vec<Reason>,
) -> Partition {
    let thresholds = memory::thresholds_in_force(seen, before);
    nics::name_absent(seen, reasons);
    if ledger.available().is_empty() {
        reasons.push(Reason::Nothing {
            why: "no core is managed, online and unreserved".into(),
        });
        return Partition {
            guests: Vec::new(),
            nics: Vec::new(),
            memory: PartitionState {
                previous: None,
                ..memory::remember(
                    seen,
                    before,
                    thresholds,
                    None,
                    memory::latency(seen, reasons),
                    reasons,
                )
            },
        };
    }
    let cores = lined.up(seen.facts, ledger.available());
    if cores.are_whole() {
        reasons.push(Reason::WholeCores {
            cores: cores.total(),
            cpus: cores.cpu_count(),
        });
    }
    let present = nics::present(seen);
    let previous = before.previous.as_ref();
    let measured = demand::measurable(seen, previous.is_some())
        .map_err(|why| reasons.push(Reason::Unmeasured(why)))
        .is_ok();
    let leftovers = weights::leftovers(seen, reasons);
    let scene = Scene {
        needs: Needs::of(seen, !present.is_empty()),
        before: previous
            .filter(|groups| !groups.shared)
            .map_or(Split::default(), |groups| Split {
                vcpu: cores.within(&groups.vcpu),
                nq: cores.within(&groups.nq),
            }),
        seen,
        cores,
        previous,
        thresholds,
        measured,
        leftovers,
        memory: before,
    };
    let near: Vec<NodeId> = present
        .iter()
        .filter_map(|(_, facts)| facts.and_then(|facts| facts.node))
        .collect();
    let division = scene.divide(&near, ledger, reasons);

    let groups = *ledger.groups();
    let latency = memory::latency(seen, reasons);
    let room = scene.room(latency, &division);
    let leftovers = weights::lend(leftovers, room, reasons);
    let terms = Terms {
        groups: &groups,
        assignment: &division.assignment,
        queues: division.queues,
        pin: division.isolated,
        best_effort: scene.best_effort(&groups, leftovers),
        confine: division.confine,
    };
    let mut guests = guests::plan(seen, &terms, reasons);
    weights::give(seen, &mut guests, reasons);
    Partition {
        guests,
        nics: nics::plan(
            seen,
            &present,
            division.queues,
            &division.assignment.nq,
            reasons,
        ),
        memory: PartitionState {
            previous: Some(groups),
            vcpu_peaks: scene.remembered(&before.vcpu_peaks, division.demand.map(|(vcpu, _)| vcpu)),
            nq_peaks: scene.remembered(&before.nq_peaks, division.demand.map(|(_, nq)| nq)),
            average: division
                .demand
                .map(|demand| scene.average(demand))
                .or(before.average),
            room,
            ..memory::remember(
                seen,
                before,
                thresholds,
                division.evidence,
                latency,
                reasons,
            )
        },
    }
}

impl Scene<'_> {
    /// Lets the policy divide the cores, and enters the result in the ledger, to the last core.
    fn divide(&self, near: &[NodeId], ledger: &mut Ledger, reasons: &mut Vec<Reason>) -> Division {
        match self.seen.intent.partition.policy {
            PartitionPolicy::TimeSharing { queues } => self.share_all(queues, ledger),
            PartitionPolicy::CoreNap => self.share_pool(near, ledger, reasons),
            PartitionPolicy::Demeter { queues } => self.float_queues(queues, near, ledger, reasons),
            PartitionPolicy::Performance
            | PartitionPolicy::Energy
            | PartitionPolicy::Resource
            | PartitionPolicy::Static { .. } => self.isolate(near, ledger, reasons),
        }
    }

    /// Groups of their own: P, E, R and the static isolation.
    fn isolate(&self, near: &[NodeId], ledger: &mut Ledger, reasons: &mut Vec<Reason>) -> Division {
        let policy = self.seen.intent.partition.policy;
        let total = self.cores.total();
        if self.needs.vcpu && self.needs.nq && total < 2 {
            reasons.push(Reason::TooFewCores { available: total });
            let all = self.cores.all();
            ledger.claim(Group::Vcpu, &all.iter().copied().collect());
            ledger.share_with_queues(&all.iter().copied().collect());
            return Division {
                assignment: Assignment {
                    vcpu: all.clone(),
                    nq: all,
                },
                queues: Queues::PerCore,
                isolated: false,
                confine: true,
                evidence: None,
                demand: None,
            };
        }
        let (split, evidence, demand) = match policy {
            PartitionPolicy::Static { .. } if total < 2 => (self.hold(), None, None),
            PartitionPolicy::Static { vcpu, nq } => {
                (baselines::fixed(self.cores, vcpu, nq, reasons), None, None)
            }
            _ if self.measured => self.follow_demand(reasons),
            _ => (self.hold(), None, None),
        };
        for (group, from, to) in [
            (Group::Vcpu, self.before.vcpu, split.vcpu),
            (Group::Nq, self.before.nq, split.nq),
        ] {
            explain::change(group, from, to, reasons);
        }
        let assignment = self.cores.assign(self.previous, split, near);
        ledger.claim(Group::Vcpu, &assignment.vcpu.iter().copied().collect());
        ledger.claim(Group::Nq, &assignment.nq.iter().copied().collect());
        self.give_rest(ledger, policy == PartitionPolicy::Resource);
        Division {
            assignment,
            queues: Queues::PerCore,
            isolated: true,
            confine: true,
            evidence,
            demand,
        }
    }

    /// What best-effort guests may do: policies that promise cores to them suspend them when there are none, unless that is for want of a measurement.
    fn best_effort(&self, groups: &Groups, leftovers: Leftovers) -> BestEffort {
        let promises_cores = matches!(
            self.seen.intent.partition.policy,
            PartitionPolicy::Resource | PartitionPolicy::Demeter { .. }
        );
        let known = self.measured || self.previous.is_some();
        if promises_cores && groups.best_effort.is_empty() && known {
            BestEffort::Suspended
        } else {
            BestEffort::Running(leftovers)
        }
    }

    /// What of its leftovers a group lent in the period that was measured.
    fn lent(&self) -> Leftovers {
        room::lent(self.memory.room).min(self.leftovers)
    }

    /// How near objectives are, where cores could be lent; not otherwise, so that it is looked at anew when they can.
    fn room(&self, latency: Latency, division: &Division) -> Option<Room> {
        if self.leftovers == Leftovers::Nothing {
            return None;
        }
        let Some((vcpu, _)) = division.demand else {
            return self.memory.room;
        };
        let nq = self
            .cores
            .within(&division.assignment.nq.iter().copied().collect());
        // vCPUs that had ample cores before had enough, whatever they have now.
        let vcpu = follow::ask(
            self.peak(&self.memory.vcpu_peaks, vcpu),
            self.thresholds.vcpu,
            self.before.vcpu,
        );
        let grew = vcpu.bare() > self.before.vcpu || nq > self.before.nq;
        let period = room::Period {
            p95_over_slo: latency.worst.or(latency.known.then_some(0.0)),
            responses: latency.responses,
            grew,
            interval: self.seen.snapshot.interval,
        };
        room::after(self.memory.room, period, self.seen.now)
    }

    /// Time-sharing: everything floats over everything.
    fn share_all(&self, queues: QueueCount, ledger: &mut Ledger) -> Division {
        let all = self.cores.all();
        ledger.claim(Group::Vcpu, &all.iter().copied().collect());
        ledger.share_with_queues(&all.iter().copied().collect());
        Division {
            assignment: Assignment {
                vcpu: all.clone(),
                nq: all,
            },
            queues: Queues::Fixed(queues),
            isolated: false,
            confine: false,
            evidence: None,
            demand: None,
        }
    }

    /// CoreNap-like: one pool, by demand.
    fn share_pool(
        &self,
        near: &[NodeId],
        ledger: &mut Ledger,
        reasons: &mut Vec<Reason>,
    ) -> Division {
        // The pool is a vCPU group that queues share; its size of before is not in `before`, which leaves shared groups out.
        let pool_before = self.previous.map(|groups| Groups {
            vcpu: groups.vcpu.union(&groups.nq),
            ..Groups::default()
        });
        let before = pool_before
            .as_ref()
            .map_or(0, |groups| self.cores.within(&groups.vcpu));
        let (size, evidence, demand) = if self.needs.vcpu || self.needs.nq {
            self.size(before, reasons, baselines::corenap)
        } else {
            reasons.push(Reason::Unneeded { group: Group::Vcpu });
            (0, None, None)
        };
        explain::change(Group::Vcpu, before, size, reasons);
        let split = Split { vcpu: size, nq: 0 };
        let pool = self.cores.assign(pool_before.as_ref(), split, near).vcpu;
        ledger.claim(Group::Vcpu, &pool.iter().copied().collect());
        ledger.share_with_queues(&pool.iter().copied().collect());
        self.give_rest(ledger, false);
        Division {
            assignment: Assignment {
                vcpu: pool.clone(),
                nq: pool,
            },
            queues: Queues::PerCore,
            isolated: false,
            confine: true,
            evidence: evidence.map(|share| (share, share)),
            demand: demand.map(|busy| (busy, 0.0)),
        }
    }

    /// Demeter-like: vCPU cores by run time, queues over everything, the rest to best-effort guests.
    fn float_queues(
        &self,
        queues: QueueCount,
        near: &[NodeId],
        ledger: &mut Ledger,
        reasons: &mut Vec<Reason>,
    ) -> Division {
        // Shared or not, the vCPU group is disjoint from all but the queues, so its cores can be kept.
        let vcpu_before = self.previous.map(|groups| Groups {
            vcpu: groups.vcpu,
            ..Groups::default()
        });
        let before = vcpu_before
            .as_ref()
            .map_or(0, |groups| self.cores.within(&groups.vcpu));
        let (size, evidence, demand) = if self.needs.vcpu {
            self.size(before, reasons, |seen, cores, _, reasons| {
                baselines::demeter(seen, cores, reasons)
            })
        } else {
            reasons.push(Reason::Unneeded { group: Group::Vcpu });
            (0, None, None)
        };
        explain::change(Group::Vcpu, before, size, reasons);
        let split = Split { vcpu: size, nq: 0 };
        let vcpu = self.cores.assign(vcpu_before.as_ref(), split, near).vcpu;
        ledger.claim(Group::Vcpu, &vcpu.iter().copied().collect());
        let nq = if self.needs.nq {
            // Queues float over idle cores too, which are then not idle.
            if self.seen.roster.best_effort_count() > 0 {
                self.give_rest(ledger, true);
            }
            self.cores.all()
        } else {
            self.give_rest(ledger, true);
            Vec::new()
        };
        ledger.share_with_queues(&nq.iter().copied().collect());
        Division {
            assignment: Assignment { vcpu, nq },
            queues: Queues::Fixed(queues),
            isolated: false,
            confine: true,
            // Queues have no cores of their own whose utilisation could tell anything.
            evidence: evidence.map(|share| (share, 0.0)),
            demand: demand.map(|busy| (busy, 0.0)),
        }
    }

    /// The size of a baseline's one group, and its utilisation.
    fn size(
        &self,
        before: u32,
        reasons: &mut Vec<Reason>,
        measure: impl FnOnce(&Seen<'_>, &Cores, Option<&Groups>, &mut Vec<Reason>) -> Pool,
    ) -> (u32, Option<f64>, Option<f64>) {
        let total = self.cores.total();
        if !self.measured {
            let size = if self.previous.is_none() {
                total
            } else {
                before.clamp(1, total)
            };
            return (size, None, None);
        }
        let pool = measure(self.seen, self.cores, self.previous, reasons);
        // The hold is the steward's, not the policy's: what is compared is how cores are divided.
        let held = self.peak(&self.memory.vcpu_peaks, pool.busy);
        let ask = follow::ask(held, self.thresholds.vcpu, before);
        explain::demand(Group::Vcpu, ask, reasons);
        let margin = self.seen.intent.partition.margin;
        let size = baselines::alone(total, ask, margin);
        if ask.bare() > total {
            reasons.push(Reason::Contended {
                required: ask.required(),
                available: total,
            });
        }
        explain::kept(Group::Vcpu, ask.bare(), size, margin, reasons);
        let evidence = (pool.confined && before > 0).then(|| pool.busy / f64::from(before));
        (size, evidence, Some(pool.busy))
    }

    /// What no group of the policy's took: to best-effort guests where the policy gives them cores and there are any, else to nobody.
    fn give_rest(&self, ledger: &mut Ledger, to_best_effort: bool) {
        let rest = *ledger.free();
        let group = if to_best_effort && self.seen.roster.best_effort_count() > 0 {
            Group::BestEffort
        } else {
            Group::Idle
        };
        ledger.claim(group, &rest);
    }
}
