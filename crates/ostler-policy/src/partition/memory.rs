//! What the partition layer remembers: thresholds, and the samples that they are explored by.

use ostler_model::{PartitionState, Reason, Sample, Thresholds};

use super::explore;
use crate::Seen;

/// The thresholds to decide by: those explored so far, unless the operator has set others since.
pub fn thresholds_in_force(seen: &Seen<'_>, memory: &PartitionState) -> Thresholds {
    let configured = seen.intent.partition.thresholds;
    let current = memory
        .thresholds
        .filter(|_| memory.configured == Some(configured));
    explore::bounded(current.unwrap_or(configured))
}

/// Adds this period's sample and explores when there are enough. The previous groups, the peaks, the average and the room are the caller's.
pub fn remember(
    seen: &Seen<'_>,
    memory: &PartitionState,
    thresholds: Thresholds,
    evidence: Option<(f64, f64)>,
    latency: Latency,
    reasons: &mut Vec<Reason>,
) -> PartitionState {
    let configured = Some(seen.intent.partition.thresholds);
    let mut next = PartitionState {
        thresholds: Some(thresholds),
        configured,
        previous: None,
        vcpu_peaks: Vec::new(),
        nq_peaks: Vec::new(),
        average: None,
        room: None,
        samples: Vec::new(),
        explorations: memory.explorations,
    };
    let Some(exploration) = &seen.intent.partition.exploration else {
        return next;
    };
    // Samples taken under thresholds that the operator has replaced are evidence of nothing.
    if memory.configured == configured {
        next.samples.reserve_exact(memory.samples.len() + 1);
        next.samples.extend_from_slice(&memory.samples);
    }
    if let (Some(p95_over_slo), Some((vcpu, nq))) = (latency.worst, evidence) {
        next.samples.push(Sample {
            p95_over_slo,
            vcpu: vcpu.clamp(0.0, 1.0),
            nq: nq.clamp(0.0, 1.0),
        });
    }
    if next.samples.len() >= explore::samples_wanted(exploration) {
        let explored = explore::explore(&next.samples, thresholds, exploration);
        reasons.push(Reason::Explored {
            samples: u32::try_from(next.samples.len()).unwrap_or(u32::MAX),
            violations: explored.violations,
            allowed: explored.allowed,
            before: thresholds,
            after: explored.after,
        });
        next.thresholds = Some(explored.after);
        next.samples.clear();
        next.explorations += 1;
    }
    next
}

/// How guests with an objective fare.
#[derive(Clone, Copy, Debug, Default)]
pub struct Latency {
    /// P95 over objective of the one that fares worst, among those whose response times are of this period.
    pub worst: Option<f64>,
    /// Whether any was ever seen to answer.
    pub known: bool,
    /// How many answers all of them gave in this period.
    pub responses: u64,
}

/// How they fared in this period.
pub fn latency(seen: &Seen<'_>, reasons: &mut Vec<Reason>) -> Latency {
    let mut found = Latency::default();
    for member in seen.roster.latency_critical() {
        let Some(slo) = member.slo.filter(|slo| slo.0 > 0) else {
            continue;
        };
        found.known |= member.view.latency.is_some();
        match member.view.latency {
            Some(latency) if latency.responses > 0 && latency.age < seen.snapshot.interval => {
                let ratio = latency.p95.0 as f64 / slo.0 as f64;
                found.worst = Some(found.worst.map_or(ratio, |worst| worst.max(ratio)));
                found.responses = found.responses.saturating_add(latency.responses);
            }
            latency => reasons.push(Reason::NoLatency {
                guest: member.view.id.clone(),
                age: latency.map(|latency| latency.age),
            }),
        }
    }
    found
}
