//! Which thresholds: Algorithm 3 of the paper.
//!
//! A threshold too high saturates cores before they are added, and the objective is missed; one too low wastes cores. So
//! thresholds follow the evidence: each period adds a [`Sample`] to `S`, and when `S` is full, thresholds are lowered to where
//! the violating samples begin, or raised a little when there was none.
//!
//! [`algorithm_3`] is the paper's, line by line. Two guards stand around it, in [`explore`]:
//!
//! - **Bounds.** Thresholds stay within [`LOWEST`] and [`HIGHEST`]. Below the first, a core's background noise of a percent or
//!   two would claim cores by itself. The second is below 1 because a saturated group of `n` cores measures `n`: at a threshold
//!   of 1 its demand would be `n` for ever, and it would never grow again. Rewards alone lead there (0.7 reaches 1
//!   after 13 quiet explorations), and the paper's experiments stop exploring before they do.
//! - **A violation never raises a threshold.** Lines 14 to 23 choose the smaller of two distances, which is negative where a
//!   sample's utilisation lies above the threshold (a group that had not grown yet, or could not). The temporary
//!   threshold is then *raised* to a utilisation at which the objective was missed. Whatever missed it there was not a low
//!   threshold, so in the end no threshold is above what it was.

use ostler_model::{Exploration, Sample, Thresholds};

/// The lowest threshold in use.
pub const LOWEST: f64 = 0.05;

/// The highest threshold in use.
pub const HIGHEST: f64 = 0.95;

/// The most samples that are kept, whatever the intent says: a quarter of a MiB.
pub const MOST_SAMPLES: u32 = 10_000;

/// What an exploration came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Explored {
    /// The thresholds from now on.
    pub after: Thresholds,
    /// Samples that violated the objective (`count(S_vio)`).
    pub violations: u32,
    /// How many may (`allowVioCount`).
    pub allowed: u32,
}

/// Explores, within the guards that the module's head tells of.
pub fn explore(samples: &[Sample], before: Thresholds, exploration: &Exploration) -> Explored {
    let explored = algorithm_3(samples, before, exploration);
    let mut after = explored.after;
    if explored.violations > explored.allowed {
        after.vcpu = after.vcpu.min(before.vcpu);
        after.nq = after.nq.min(before.nq);
    }
    Explored {
        after: bounded(after),
        ..explored
    }
}

/// Thresholds within the bounds; one that is no number is the highest.
pub fn bounded(thresholds: Thresholds) -> Thresholds {
    let bound = |threshold: f64| {
        if threshold.is_nan() {
            HIGHEST
        } else {
            threshold.clamp(LOWEST, HIGHEST)
        }
    };
    Thresholds {
        vcpu: bound(thresholds.vcpu),
        nq: bound(thresholds.nq),
    }
}

/// How many samples one exploration takes.
pub fn samples_wanted(exploration: &Exploration) -> usize {
    exploration.samples.clamp(1, MOST_SAMPLES) as usize
}

/// Algorithm 3. The line numbers are the paper's.
pub fn algorithm_3(samples: &[Sample], before: Thresholds, exploration: &Exploration) -> Explored {
    // Lines 8 to 10.
    let violating: Vec<Sample> = samples
        .iter()
        .filter(|sample| sample.p95_over_slo > 1.0)
        .copied()
        .collect();
    let allowed = super::allocate::ceil(samples.len() as f64 * exploration.allow_violation);
    let violations = u32::try_from(violating.len()).unwrap_or(u32::MAX);
    let mut after = before;
    if violations > allowed {
        let lowered = lower(&violating, before, violations - allowed);
        // Lines 26 and 27.
        let weight = exploration.weight;
        after.vcpu = (1.0 - weight) * before.vcpu + weight * lowered.vcpu;
        after.nq = (1.0 - weight) * before.nq + weight * lowered.nq;
    } else if violations == 0 {
        // Lines 28 to 30.
        after.vcpu = exploration.reward * before.vcpu;
        after.nq = exploration.reward * before.nq;
    }
    Explored {
        after,
        violations,
        allowed,
    }
}

/// Lines 12 to 25: the temporary thresholds after `count` violating samples were taken away.
///
/// A sample is in both sorted lists; instead of removing it from the other list, it is marked, and marked ones are skipped at that
/// list's head. So the whole takes a sort and one pass over each list.
fn lower(violating: &[Sample], before: Thresholds, count: u32) -> Thresholds {
    // In order of age where two are alike. Each key travels with its sample's number, so that comparing them looks nothing up.
    let descending = |key: fn(&Sample) -> f64| {
        let mut order: Vec<(f64, usize)> = violating.iter().map(key).zip(0..).collect();
        order.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        order
    };
    let by_vcpu = descending(|sample| sample.vcpu);
    let by_nq = descending(|sample| sample.nq);
    let mut taken = vec![false; violating.len()];
    let (mut vcpu_head, mut nq_head) = (0, 0);
    let mut lowered = before;
    for _ in 0..count {
        let skip = |head: &mut usize, order: &[(f64, usize)], taken: &[bool]| {
            while order.get(*head).is_some_and(|&(_, at)| taken[at]) {
                *head += 1;
            }
            order.get(*head).copied()
        };
        let (Some((vcpu, top_vcpu)), Some((nq, top_nq))) = (
            skip(&mut vcpu_head, &by_vcpu, &taken),
            skip(&mut nq_head, &by_nq, &taken),
        ) else {
            break;
        };
        if lowered.vcpu - vcpu <= lowered.nq - nq {
            lowered.vcpu = vcpu;
            taken[top_vcpu] = true;
        } else {
            lowered.nq = nq;
            taken[top_nq] = true;
        }
    }
    lowered
}
