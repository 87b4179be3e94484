//! Which cores: from counts to sets, with as few cores changing hands as can be.
//!
//! **Units.** Cores are given in units. A unit is a physical core with those of its SMT siblings that are available: siblings share
//! execution ports and the first two levels of cache, so a softirq on one slows the vCPU on the other, and splitting them
//! between groups would undo the isolation that the groups are for. Where there are fewer than two physical cores, a unit is a
//! single logical CPU, as otherwise there would be nothing to divide. Without SMT both are the same. All counts of the
//! partition layer are in units; a unit's utilisation is the mean of its siblings', so that a group of `n` units can be
//! busy for `n` cores at the most, and thresholds mean the same with and without SMT. Counts turn into logical CPUs only
//! at the end, where queues and vCPUs are counted: one for each logical CPU of the group.
//!
//! **Order.** Units are lined up by node, cache group and number. vCPUs take them from the front and network queues from the
//! back, beginning with the nodes that the NICs are attached to; each group gives up last what it took first. So each group
//! stays contiguous, in few cache groups, and what is idle lies between them, where either can grow into it.
//!
//! **Stability.** A group keeps as many of its units as it may. One that grows takes what was idle or best-effort before
//! what the other group has just given up, and the last only for want of others. This is a function of the previous
//! groups and the counts alone: the same counts again move nothing (`assignment_is_stable`).

use std::ops::Range;

use ostler_model::{Cpu, CpuId, CpuSet, CpuUsage, Facts, Groups, MAX_CPUS, Nanos, NodeId};

use super::allocate::Split;

/// The available cores, in units.
#[derive(Clone, Debug)]
pub struct Cores {
    /// In order of physical core and number, so that siblings are neighbours.
    cpus: Vec<Cpu>,
    /// Each a range of `cpus`; in order of node, cache group and number.
    units: Vec<Range<usize>>,
    whole: bool,
}

/// Cores as they were lined up last: those of a host are the same most of the time.
#[derive(Debug, Default)]
pub struct Lined {
    cores: Option<Cores>,
    /// What they are of.
    cpus: Vec<Cpu>,
    available: CpuSet,
}

impl Lined {
    /// The available cores, lined up.
    pub fn up(&mut self, facts: &Facts, available: &CpuSet) -> &Cores {
        let cpus = &facts.topology.cpus;
        if self.available != *available || self.cpus != *cpus {
            self.cores = None;
            self.cpus.clone_from(cpus);
            self.available = *available;
        }
        self.cores
            .get_or_insert_with(|| Cores::new(facts, available))
    }
}

/// Which CPUs each group is given, in the group's own order of preference: the i-th queue goes with the i-th CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assignment {
    /// For vCPUs.
    pub vcpu: Vec<CpuId>,
    /// For network queues.
    pub nq: Vec<CpuId>,
}

/// Who has a unit while cores are being assigned.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holder {
    Vcpu,
    Nq,
    /// Nobody, or best-effort guests.
    Free,
    /// Nobody any more: one of the groups has just given it up.
    Released,
}

impl Cores {
    /// Lines up the available cores.
    pub fn new(facts: &Facts, available: &CpuSet) -> Cores {
        let mut cpus: Vec<Cpu> = facts
            .topology
            .cpus
            .iter()
            .filter(|cpu| available.contains(cpu.id))
            .copied()
            .collect();
        cpus.sort_by_key(|cpu| (cpu.core, cpu.id));
        cpus.dedup_by_key(|cpu| cpu.id);
        let siblings = |a: &Cpu, b: &Cpu| a.core == b.core;
        let physical = cpus.chunk_by(siblings).count();
        let whole = (2..cpus.len()).contains(&physical);
        let mut units: Vec<Range<usize>> = Vec::with_capacity(physical);
        for (at, cpu) in cpus.iter().enumerate() {
            match units.last_mut() {
                Some(unit) if whole && siblings(&cpus[unit.start], cpu) => unit.end = at + 1,
                _ => units.push(at..at + 1),
            }
        }
        // A unit is where its first CPU is, even if firmware should put its siblings elsewhere.
        units.sort_by_key(|unit| {
            let first = &cpus[unit.start];
            (first.node, first.cache_group, first.core, first.id)
        });
        Cores { cpus, units, whole }
    }

    /// How many units there are (`TotalCore`).
    pub fn total(&self) -> u32 {
        count(self.units.len())
    }

    /// How many logical CPUs there are.
    pub fn cpu_count(&self) -> u32 {
        count(self.cpus.len())
    }

    /// Whether a unit is more than a logical CPU somewhere.
    pub fn are_whole(&self) -> bool {
        self.whole
    }

    /// How many logical CPUs a unit has on average; 1 where there are none.
    pub fn width(&self) -> f64 {
        if self.units.is_empty() {
            1.0
        } else {
            self.cpus.len() as f64 / self.units.len() as f64
        }
    }

    /// So many logical CPUs, in units, rounded up.
    pub fn units_for(&self, cpus: u32) -> u32 {
        super::allocate::ceil(f64::from(cpus) / self.width())
    }

    /// How many units lie wholly in the set.
    pub fn within(&self, set: &CpuSet) -> u32 {
        count(
            self.units
                .iter()
                .filter(|unit| self.owns(set, unit))
                .count(),
        )
    }

    /// The summed utilisation of the units that lie wholly in the set (`TotalUtil`), in cores.
    pub fn busy(&self, set: &CpuSet, usage: &Usage) -> f64 {
        self.units
            .iter()
            .filter(|unit| self.owns(set, unit))
            .map(|unit| {
                let busy: f64 = self.cpus[unit.start..unit.end]
                    .iter()
                    .map(|cpu| usage.share(cpu.id))
                    .sum();
                busy / unit.len() as f64
            })
            .sum()
    }

    /// All CPUs, in order of their units.
    pub fn all(&self) -> Vec<CpuId> {
        self.units
            .iter()
            .flat_map(|unit| &self.cpus[unit.start..unit.end])
            .map(|cpu| cpu.id)
            .collect()
    }

    /// Gives each group its count of units, near what it had. `near` are the nodes that NICs are attached to.
    ///
    /// Where the counts exceed what there is, vCPUs get what queues leave.
    pub fn assign(&self, previous: Option<&Groups>, split: Split, near: &[NodeId]) -> Assignment {
        let total = self.units.len();
        let want_nq = (split.nq as usize).min(total);
        let want_vcpu = (split.vcpu as usize).min(total - want_nq);
        // Groups that shared cores had none of their own to keep.
        let previous = previous.filter(|groups| !groups.shared);
        let mut holders: Vec<Holder> = self
            .units
            .iter()
            .map(|unit| match previous {
                Some(groups) if self.owns(&groups.vcpu, unit) => Holder::Vcpu,
                Some(groups) if self.owns(&groups.nq, unit) => Holder::Nq,
                _ => Holder::Free,
            })
            .collect();
        // Network queues' order of preference; vCPUs' is that of the units.
        let is_near = |at: &usize| near.contains(&self.cpus[self.units[*at].start].node);
        let nq_order: Vec<usize> = (0..total)
            .rev()
            .filter(is_near)
            .chain((0..total).rev().filter(|at| !is_near(at)))
            .collect();

        // In a steady period nobody is short of anything, and nothing is looked through.
        let turn = |holders: &mut [Holder],
                    order: &mut dyn Iterator<Item = usize>,
                    (from, to): (Holder, Holder),
                    left: &mut usize| {
            while *left > 0
                && let Some(at) = order.next()
            {
                if holders[at] == from {
                    holders[at] = to;
                    *left -= 1;
                }
            }
        };
        let held = |holders: &[Holder], of| holders.iter().filter(|&&h| h == of).count();
        let mut surplus = held(&holders, Holder::Vcpu).saturating_sub(want_vcpu);
        let release = (Holder::Vcpu, Holder::Released);
        turn(&mut holders, &mut (0..total).rev(), release, &mut surplus);
        let mut surplus = held(&holders, Holder::Nq).saturating_sub(want_nq);
        let release = (Holder::Nq, Holder::Released);
        let mut last_first = nq_order.iter().rev().copied();
        turn(&mut holders, &mut last_first, release, &mut surplus);

        let mut missing = want_nq.saturating_sub(held(&holders, Holder::Nq));
        // Locality lasts longer than the move costs, so near units that were released come before far ones that are free.
        for nearby in [true, false] {
            for from in [Holder::Free, Holder::Released] {
                let mut order = nq_order.iter().copied().filter(|at| is_near(at) == nearby);
                turn(&mut holders, &mut order, (from, Holder::Nq), &mut missing);
            }
        }
        let mut missing = want_vcpu.saturating_sub(held(&holders, Holder::Vcpu));
        for from in [Holder::Free, Holder::Released] {
            turn(
                &mut holders,
                &mut (0..total),
                (from, Holder::Vcpu),
                &mut missing,
            );
        }

        let cpus_of = |order: &mut dyn Iterator<Item = usize>, of| {
            let mut cpus = Vec::with_capacity(self.cpus.len());
            for unit in order
                .filter(|&at| holders[at] == of)
                .map(|at| &self.units[at])
            {
                cpus.extend(self.cpus[unit.start..unit.end].iter().map(|cpu| cpu.id));
            }
            cpus
        };
        Assignment {
            vcpu: cpus_of(&mut (0..total), Holder::Vcpu),
            nq: cpus_of(&mut nq_order.iter().copied(), Holder::Nq),
        }
    }

    fn owns(&self, set: &CpuSet, unit: &Range<usize>) -> bool {
        self.cpus[unit.start..unit.end]
            .iter()
            .all(|cpu| set.contains(cpu.id))
    }
}

/// Each CPU's busy share in a period.
#[derive(Clone, Debug)]
pub struct Usage {
    share: Vec<f64>,
}

impl Usage {
    /// Indexes a snapshot's usages by CPU. Where no time passed, nothing was busy.
    pub fn new(cpus: &[CpuUsage], interval: Nanos) -> Usage {
        Usage::of(cpus, interval, |usage| usage.busy)
    }

    /// Of it, in tasks that yield; none where nobody counts them.
    pub fn yielding(cpus: &[CpuUsage], interval: Nanos) -> Usage {
        Usage::of(cpus, interval, |usage| usage.yielding.unwrap_or_default())
    }

    fn of(cpus: &[CpuUsage], interval: Nanos, time: impl Fn(&CpuUsage) -> Nanos) -> Usage {
        let len = cpus
            .iter()
            .filter(|usage| usage.cpu.0 < MAX_CPUS)
            .map(|usage| usage.cpu.0 as usize + 1)
            .max()
            .unwrap_or(0);
        let mut share = vec![0.0; len];
        if interval != Nanos::ZERO {
            for usage in cpus {
                if let Some(share) = share.get_mut(usage.cpu.0 as usize) {
                    *share = time(usage).0.min(interval.0) as f64 / interval.0 as f64;
                }
            }
        }
        Usage { share }
    }

    /// A CPU's busy share, 0..=1.
    pub fn share(&self, cpu: CpuId) -> f64 {
        self.share.get(cpu.0 as usize).copied().unwrap_or(0.0)
    }
}

/// Counts of CPUs fit: there are at most [`MAX_CPUS`].
fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(MAX_CPUS)
}
