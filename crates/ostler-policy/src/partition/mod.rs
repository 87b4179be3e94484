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
//! - Best-effort guests that share cores with latency-critical ones yield to them there ([`weights`]).
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
pub mod guests;
mod memory;
pub mod nics;
mod peaks;
pub mod weights;

use ostler_model::{
    Average, Group, Groups, GuestPlan, Nanos, NicPlan, NodeId, PartitionPolicy, PartitionState,
    Peak, QueueCount, Reason, Thresholds,
};

use crate::{Ledger, Seen};
use allocate::{Ask, Split};
use baselines::Pool;
use cores::{Assignment, Cores};
use guests::Terms;

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

/// Everything that the policies of this layer look at.
struct Scene<'a> {
    seen: &'a Seen<'a>,
    cores: Cores,
    needs: Needs,
    /// The last plan's groups.
    previous: Option<&'a Groups>,
    /// Their sizes, in units that are still there. Groups that shared cores had none of their own.
    before: Split,
    thresholds: Thresholds,
    /// Whether this period's measurements count.
    measured: bool,
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
                ..memory::remember(seen, before, thresholds, None, reasons)
            },
        };
    }
    let cores = Cores::new(seen.facts, ledger.available());
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
    let scene = Scene {
        needs: Needs {
            vcpu: seen.roster.latency_critical_count() > 0,
            nq: !present.is_empty()
                || seen
                    .roster
                    .latency_critical()
                    .any(|member| !member.view.vhost.is_empty()),
        },
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
        memory: before,
    };
    let near: Vec<NodeId> = present
        .iter()
        .filter_map(|(_, facts)| facts.and_then(|facts| facts.node))
        .collect();
    let division = scene.divide(&near, ledger, reasons);

    let groups = *ledger.groups();
    let promises_cores = matches!(
        seen.intent.partition.policy,
        PartitionPolicy::Resource | PartitionPolicy::Demeter { .. }
    );
    let terms = Terms {
        groups: &groups,
        assignment: &division.assignment,
        queues: division.queues,
        pin: division.isolated,
        suspend: promises_cores
            && groups.best_effort.is_empty()
            && (measured || previous.is_some()),
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
            ..memory::remember(seen, before, thresholds, division.evidence, reasons)
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
                (baselines::fixed(&self.cores, vcpu, nq, reasons), None, None)
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

    /// Algorithms 1 and 2, and what they leave open. The demand that they go by is the highest within the hold.
    fn follow_demand(&self, reasons: &mut Vec<Reason>) -> (Split, PerGroup, PerGroup) {
        let demand = demand::measure(self.seen, &self.cores, self.previous, reasons);
        let mut held = |group, peaks: &[Peak], busy: f64| {
            let peak = self.peak(peaks, busy);
            if peak > busy {
                reasons.push(Reason::Held { group, busy, peak });
            }
            peak
        };
        let vcpu = held(Group::Vcpu, &self.memory.vcpu_peaks, demand.vcpu);
        let nq = held(Group::Nq, &self.memory.nq_peaks, demand.nq);
        let vcpu = ask(vcpu, self.thresholds.vcpu, self.before.vcpu);
        let nq = ask(nq, self.thresholds.nq, self.before.nq);
        let evidence = demand.confined.then(|| {
            (
                demand.vcpu / f64::from(self.before.vcpu.max(1)),
                demand.nq / f64::from(self.before.nq.max(1)),
            )
        });
        let total = self.cores.total();
        let margin = self.seen.intent.partition.margin;
        let performance = self.seen.intent.partition.policy == PartitionPolicy::Performance;
        let split = match (self.needs.vcpu, self.needs.nq) {
            (true, true) => {
                explain::demand(Group::Vcpu, vcpu, reasons);
                explain::demand(Group::Nq, nq, reasons);
                if performance {
                    self.proportions((demand.vcpu, demand.nq), (vcpu, nq), reasons)
                } else {
                    let energy = allocate::energy(total, vcpu, nq, margin);
                    explain::energy(&energy, total, margin, reasons);
                    energy.next
                }
            }
            (true, false) => {
                reasons.push(Reason::Unneeded { group: Group::Nq });
                explain::demand(Group::Vcpu, vcpu, reasons);
                Split {
                    vcpu: if performance {
                        total
                    } else {
                        baselines::alone(total, vcpu, margin)
                    },
                    nq: 0,
                }
            }
            (false, true) => {
                reasons.push(Reason::Unneeded { group: Group::Vcpu });
                explain::demand(Group::Nq, nq, reasons);
                Split {
                    vcpu: 0,
                    nq: baselines::alone(self.most_for_queues_alone(), nq, margin),
                }
            }
            (false, false) => {
                reasons.push(Reason::Unneeded { group: Group::Vcpu });
                reasons.push(Reason::Unneeded { group: Group::Nq });
                Split::default()
            }
        };
        (split, evidence, Some((demand.vcpu, demand.nq)))
    }

    /// P: all cores, in proportion to demand. Without a hold, to this period's, as the paper has it.
    fn proportions(
        &self,
        demand: (f64, f64),
        peak: (Ask, Ask),
        reasons: &mut Vec<Reason>,
    ) -> Split {
        let total = self.cores.total();
        let average = self.average(demand);
        let mean = (
            Ask {
                busy: average.vcpu,
                ..peak.0
            },
            Ask {
                busy: average.nq,
                ..peak.1
            },
        );
        let split = if self.seen.intent.partition.hold == Nanos::ZERO {
            allocate::performance(total, peak.0, peak.1)
        } else {
            reasons.push(Reason::Averaged {
                vcpu: mean.0.required(),
                nq: mean.1.required(),
            });
            allocate::steady_performance(total, mean, peak)
        };
        split.unwrap_or_else(|quiet| {
            reasons.push(Reason::Quiet {
                required: mean.0.required() + mean.1.required(),
            });
            quiet
        })
    }

    /// Average demand with this period's in it.
    fn average(&self, demand: (f64, f64)) -> Average {
        let hold = self.seen.intent.partition.hold;
        average::after(
            self.memory.average,
            self.seen.snapshot.interval,
            hold,
            demand,
        )
    }

    /// A group's demand, or a higher one within the hold.
    fn peak(&self, peaks: &[Peak], busy: f64) -> f64 {
        let hold = self.seen.intent.partition.hold;
        peaks::highest(peaks, self.seen.snapshot.at, hold).map_or(busy, |peak| peak.max(busy))
    }

    /// Peaks to remember. A period without a measurement adds none.
    fn remembered(&self, peaks: &[Peak], busy: Option<f64>) -> Vec<Peak> {
        let hold = self.seen.intent.partition.hold;
        peaks::after(peaks, self.seen.snapshot.at, hold, busy)
    }

    /// The split without a measurement: that of before, as far as the groups are still needed and the cores still there.
    fn hold(&self) -> Split {
        let total = self.cores.total();
        let begin = self.previous.is_none();
        let all = self.seen.intent.partition.policy == PartitionPolicy::Performance;
        let keep = |needed: bool, before: u32| if needed { before.max(1) } else { 0 };
        match (self.needs.vcpu, self.needs.nq) {
            (true, true) => {
                let wish = Split {
                    vcpu: keep(true, self.before.vcpu),
                    nq: keep(true, self.before.nq),
                };
                if begin || wish.sum() > total || (all && wish.sum() < total) {
                    allocate::proportional(total, f64::from(wish.vcpu), f64::from(wish.nq))
                } else {
                    wish
                }
            }
            (true, false) if begin || all => Split { vcpu: total, nq: 0 },
            (vcpu, nq) => Split {
                vcpu: keep(vcpu, self.before.vcpu).min(total),
                nq: keep(nq, self.before.nq).min(self.most_for_queues_alone()),
            },
        }
    }

    /// Without latency-critical guests, queues serve the best-effort ones, which need a core to be served on.
    fn most_for_queues_alone(&self) -> u32 {
        let total = self.cores.total();
        if self.seen.roster.best_effort_count() > 0 {
            total.saturating_sub(1).max(1)
        } else {
            total
        }
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
        let pool = measure(self.seen, &self.cores, self.previous, reasons);
        // The hold is the steward's, not the policy's: what is compared is how cores are divided.
        let held = self.peak(&self.memory.vcpu_peaks, pool.busy);
        let ask = ask(held, self.thresholds.vcpu, before);
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

fn ask(busy: f64, threshold: f64, previous: u32) -> Ask {
    Ask {
        busy,
        threshold,
        previous,
    }
}
