//! Threshold exploration, against the paper's Algorithm 3 written down as it stands.

use ostler_model::{Exploration, Sample, Thresholds};
use ostler_policy::partition::explore::{HIGHEST, LOWEST, algorithm_3, bounded, explore};
use proptest::collection::vec;
use proptest::prelude::*;

/// Algorithm 3, word for word: lists that are sorted, and samples that are removed from both.
fn transcription(s: &[Sample], last: Thresholds, e: &Exploration) -> Thresholds {
    let (mut th_vcpu, mut th_nq) = (last.vcpu, last.nq); // 6
    let (mut temporary_vcpu, mut temporary_nq) = (th_vcpu, th_nq); // 7
    let s_vio: Vec<(usize, &Sample)> = s
        .iter()
        .enumerate()
        .filter(|(_, s)| s.p95_over_slo > 1.0)
        .collect(); // 8
    #[expect(clippy::cast_possible_truncation)]
    let allow_vio_count = (s.len() as f64 * e.allow_violation).ceil() as i64; // 9
    let mut dec_count = i64::try_from(s_vio.len()).unwrap() - allow_vio_count; // 10
    if dec_count > 0 {
        let mut s_vcpu = s_vio.clone(); // 12
        s_vcpu.sort_by(|a, b| b.1.vcpu.partial_cmp(&a.1.vcpu).unwrap());
        let mut s_nq = s_vio;
        s_nq.sort_by(|a, b| b.1.nq.partial_cmp(&a.1.nq).unwrap());
        while dec_count > 0 {
            let (top_vcpu, top_nq) = (s_vcpu[0], s_nq[0]); // 14
            let diff_vcpu = temporary_vcpu - top_vcpu.1.vcpu; // 15
            let diff_nq = temporary_nq - top_nq.1.nq; // 16
            let gone = if diff_vcpu <= diff_nq {
                temporary_vcpu = top_vcpu.1.vcpu; // 18
                top_vcpu.0
            } else {
                temporary_nq = top_nq.1.nq; // 21
                top_nq.0
            };
            s_vcpu.retain(|(at, _)| *at != gone); // 19, 22
            s_nq.retain(|(at, _)| *at != gone);
            dec_count -= 1; // 24
        }
        th_vcpu = (1.0 - e.weight) * th_vcpu + e.weight * temporary_vcpu; // 26
        th_nq = (1.0 - e.weight) * th_nq + e.weight * temporary_nq; // 27
    } else if s_vio.is_empty() {
        th_vcpu *= e.reward; // 29
        th_nq *= e.reward;
    }
    Thresholds {
        vcpu: th_vcpu,
        nq: th_nq,
    }
}

/// Coarse utilisations, so that ties are common.
fn samples(violations: bool) -> impl Strategy<Value = Vec<Sample>> {
    let least = if violations { 0 } else { 11 };
    vec((least..=20_u32, 0..=16_u32, 0..=16_u32), 0..120).prop_map(move |samples| {
        samples
            .into_iter()
            .map(|(p95, vcpu, nq)| Sample {
                p95_over_slo: f64::from(if violations { p95 } else { 20 - p95 }) / 10.0,
                vcpu: f64::from(vcpu) / 16.0,
                nq: f64::from(nq) / 16.0,
            })
            .collect()
    })
}

fn thresholds() -> impl Strategy<Value = Thresholds> {
    (LOWEST..HIGHEST, LOWEST..HIGHEST).prop_map(|(vcpu, nq)| Thresholds { vcpu, nq })
}

/// The share that may violate is a dyadic fraction, so that its product with a count is exact on both sides.
fn exploration() -> impl Strategy<Value = Exploration> {
    (0..=256_u32, 0.0..=1.0_f64, 1.0..1.2_f64).prop_map(|(allow, weight, reward)| Exploration {
        samples: 1000,
        allow_violation: f64::from(allow) / 1024.0,
        weight,
        reward,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn exploration_equals_algorithm_3(samples in samples(true), before in thresholds(), e in exploration()) {
        let ours = algorithm_3(&samples, before, &e);
        prop_assert_eq!(ours.after, transcription(&samples, before, &e));
    }

    #[test]
    fn violations_never_raise_a_threshold(samples in samples(true), before in thresholds(), e in exploration()) {
        let explored = explore(&samples, before, &e);
        if explored.violations > explored.allowed {
            prop_assert!(explored.after.vcpu <= before.vcpu && explored.after.nq <= before.nq);
        }
    }

    #[test]
    fn thresholds_stay_within_bounds(samples in samples(true), before in thresholds(), e in exploration()) {
        let after = explore(&samples, before, &e).after;
        prop_assert!((LOWEST..=HIGHEST).contains(&after.vcpu));
        prop_assert!((LOWEST..=HIGHEST).contains(&after.nq));
    }

    #[test]
    fn no_violation_is_rewarded(samples in samples(false), before in thresholds(), e in exploration()) {
        let explored = explore(&samples, before, &e);
        prop_assert_eq!(explored.violations, 0);
        let rewarded = Thresholds { vcpu: before.vcpu * e.reward, nq: before.nq * e.reward };
        prop_assert_eq!(explored.after, bounded(rewarded));
    }
}

#[test]
fn few_enough_violations_change_nothing() {
    let before = Thresholds { vcpu: 0.6, nq: 0.5 };
    let met = Sample {
        p95_over_slo: 0.5,
        vcpu: 0.5,
        nq: 0.4,
    };
    let mut samples = vec![met; 1000];
    for sample in &mut samples[..10] {
        sample.p95_over_slo = 1.5;
    }
    let e = Exploration::default();
    assert_eq!(explore(&samples, before, &e).after, before);
    // One more than allowed takes away one sample, by the smaller of two drops of 0.1: that of the vCPUs.
    samples[10].p95_over_slo = 1.5;
    let after = explore(&samples, before, &e).after;
    assert!((after.vcpu - (0.3 * 0.6 + 0.7 * 0.5)).abs() < 1e-12);
    assert!((after.nq - 0.5).abs() < 1e-12);
}
