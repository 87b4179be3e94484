//! How many cores, by demand: Algorithms 1 and 2 with what the groups' demand was within the hold, and what is done without a measurement.

use ostler_model::{Average, Group, Leftovers, Nanos, PartitionPolicy, Peak, Reason};

use super::allocate::{self, Ask, Split};
use super::{PerGroup, Scene, average, baselines, demand, explain, peaks};

/// By how much less of a core's time vCPUs may use where best-effort guests have the rest.
const SPREAD: f64 = 0.5;

impl Scene<'_> {
    /// Algorithms 1 and 2, and what they leave open. The demand that they go by is the highest within the hold.
    pub(super) fn follow_demand(&self, reasons: &mut Vec<Reason>) -> (Split, PerGroup, PerGroup) {
        let demand = demand::measure(
            self.seen,
            self.cores,
            self.previous,
            self.leftovers,
            reasons,
        );
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
                    self.spread(energy.next, vcpu, reasons)
                }
            }
            (true, false) => {
                reasons.push(Reason::Unneeded { group: Group::Nq });
                explain::demand(Group::Vcpu, vcpu, reasons);
                if performance {
                    Split { vcpu: total, nq: 0 }
                } else {
                    let vcpus = baselines::alone(total, vcpu, margin);
                    self.spread(Split { vcpu: vcpus, nq: 0 }, vcpu, reasons)
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

    /// While best-effort guests have what vCPUs leave of their cores, more cores for vCPUs take nothing from anybody, and vCPUs wait less for each
    /// other: as many as half of the threshold asks for, no more than there are vCPUs, and best-effort guests keep one core of their own, as they
    /// would be suspended without.
    ///
    /// That holds where best-effort guests have a vCPU for each core. With `s` fewer than cores, their vCPUs are on all cores but `s`, the idlest; a core of
    /// their own that becomes the group's puts one more of them beside latency-critical vCPUs, each of which takes load / cores of its core: from two cores to
    /// three, under a load of 1.2 cores and with two to spare, 0.4 cores in all, where the group's idlest core is idle for nobody.
    fn spread(&self, next: Split, vcpu: Ask, reasons: &mut Vec<Reason>) -> Split {
        let best_effort = self.seen.roster.best_effort();
        let sharers: usize = best_effort.map(|member| member.view.vcpus.len()).sum();
        let everywhere = u32::try_from(sharers).is_ok_and(|all| all >= self.cores.cpu_count());
        if self.lent() == Leftovers::Nothing || !everywhere {
            return next;
        }
        let wider = Ask {
            threshold: vcpu.threshold * SPREAD,
            ..vcpu
        };
        let critical = self.seen.roster.latency_critical();
        let vcpus: usize = critical.map(|member| member.view.vcpus.len()).sum();
        let most = self.cores.total().saturating_sub(next.nq + 1);
        let to = wider
            .with_margin(self.seen.intent.partition.margin)
            .min(u32::try_from(vcpus).unwrap_or(u32::MAX))
            .min(most);
        if to <= next.vcpu {
            return next;
        }
        reasons.push(Reason::Ample {
            from: next.vcpu,
            to,
        });
        Split { vcpu: to, ..next }
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
    pub(super) fn average(&self, demand: (f64, f64)) -> Average {
        let hold = self.seen.intent.partition.hold;
        average::after(
            self.memory.average,
            self.seen.snapshot.interval,
            hold,
            demand,
        )
    }

    /// A group's demand, or a higher one within the hold.
    pub(super) fn peak(&self, peaks: &[Peak], busy: f64) -> f64 {
        let hold = self.seen.intent.partition.hold;
        peaks::highest(peaks, self.seen.snapshot.at, hold).map_or(busy, |peak| peak.max(busy))
    }

    /// Peaks to remember. A period without a measurement adds none.
    pub(super) fn remembered(&self, peaks: &[Peak], busy: Option<f64>) -> Vec<Peak> {
        let hold = self.seen.intent.partition.hold;
        peaks::after(peaks, self.seen.snapshot.at, hold, busy)
    }

    /// The split without a measurement: that of before, as far as the groups are still needed and the cores still there.
    pub(super) fn hold(&self) -> Split {
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
}

pub(super) fn ask(busy: f64, threshold: f64, previous: u32) -> Ask {
    Ask {
        busy,
        threshold,
        previous,
    }
}
