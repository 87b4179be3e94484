//! Which responses a percentile is of.
//!
//! The P95 of three responses is the slowest of three: noise. So the window reaches back from now, period by period,
//! until it holds [`Window::responses_min`] responses, but never further than [`Window::span_max`]. A busy guest is
//! thus judged by the last period alone and a quiet one by the last second. When there was no response in all that
//! time, the last view stays, and says how old it is.

use std::collections::VecDeque;

use ostler_abi::bpf::HIST_BUCKETS;
use ostler_model::{LatencyView, Nanos};

use super::hist::percentile_ns;

/// Periods that are remembered at the most, however short they are.
const PERIODS_MAX: usize = 64;

/// How far a percentile looks back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// With so many responses it need not look further back.
    pub responses_min: u64,
    /// Never further than this.
    pub span_max: Nanos,
}

impl Default for Window {
    fn default() -> Window {
        Window {
            responses_min: 50,
            span_max: Nanos::from_secs(1),
        }
    }
}

/// The responses of one period: the buckets that grew, and by how much.
#[derive(Debug)]
struct Period {
    began: Nanos,
    ended: Nanos,
    grew: Vec<(u16, u32)>,
}

/// One guest's recent responses.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    periods: VecDeque<Period>,
    last: Option<(Nanos, LatencyView)>,
}

impl Recent {
    /// Adds the responses of a period; those of several taps may be added one after another for the same period.
    pub(crate) fn add(&mut self, began: Nanos, ended: Nanos, grew: Vec<(u16, u32)>) {
        if grew.is_empty() {
            return;
        }
        if self.periods.len() == PERIODS_MAX {
            self.periods.pop_front();
        }
        self.periods.push_back(Period { began, ended, grew });
    }

    /// The view at `now`.
    pub(crate) fn view(&mut self, window: Window, now: Nanos) -> Option<LatencyView> {
        let oldest = now.saturating_sub(window.span_max);
        while self.periods.front().is_some_and(|p| p.began < oldest) {
            self.periods.pop_front();
        }
        // Unchanged since the last call: nothing to compute.
        let newest = self.periods.back().map(|period| period.ended);
        if newest.is_some_and(|newest| self.last.is_none_or(|(at, _)| newest > at))
            && let Some(view) = self.compute(window)
        {
            self.last = newest.map(|at| (at, view));
        }
        self.last.map(|(at, view)| LatencyView {
            age: now.saturating_sub(at),
            ..view
        })
    }

    fn compute(&self, window: Window) -> Option<LatencyView> {
        let mut counts = [0u32; HIST_BUCKETS];
        let mut responses = 0;
        let mut ended = None;
        for period in self.periods.iter().rev() {
            // Several taps' shares of one period count as one.
            if responses >= window.responses_min && ended != Some(period.ended) {
                break;
            }
            ended = Some(period.ended);
            for &(bucket, by) in &period.grew {
                if let Some(count) = counts.get_mut(usize::from(bucket)) {
                    *count = count.saturating_add(by);
                    responses += u64::from(by);
                }
            }
        }
        let percentile = |permille| percentile_ns(&counts, responses, permille).map(Nanos);
        Some(LatencyView {
            responses,
            p50: percentile(500)?,
            p95: percentile(950)?,
            p99: percentile(990)?,
            age: Nanos::ZERO,
        })
    }
}

/// What a tap's histogram gained between two readings. Counts wrap, so a difference is right across a wrap; a total
/// that went back means another histogram, which begins anew.
#[derive(Debug)]
pub(crate) struct HistMeter {
    samples: u64,
    counts: Box<[u32; HIST_BUCKETS]>,
}

impl HistMeter {
    pub(crate) fn new() -> HistMeter {
        HistMeter {
            samples: 0,
            counts: Box::new([0; HIST_BUCKETS]),
        }
    }

    /// Whether anything came since the last call to [`HistMeter::advance`].
    pub(crate) fn is_new(&self, samples: u64) -> bool {
        samples != self.samples
    }

    pub(crate) fn advance(
        &mut self,
        samples: u64,
        counts: &[u32; HIST_BUCKETS],
    ) -> Vec<(u16, u32)> {
        if samples < self.samples {
            self.counts.fill(0);
        }
        let grew = self
            .counts
            .iter()
            .zip(counts)
            .zip(0u16..)
            .map(|((before, after), bucket)| (bucket, after.wrapping_sub(*before)))
            .filter(|&(_, by)| by > 0)
            .collect();
        self.samples = samples;
        self.counts.copy_from_slice(counts);
        grew
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PERIOD: Nanos = Nanos::from_millis(100);
    /// Of which the percentiles lie between 8 and 9 ms, and 16 and 17 ms.
    const MS8: u16 = 16 + 10 * 16 + 15;

    fn at(period: u64) -> Nanos {
        Nanos(PERIOD.0 * period)
    }

    #[test]
    fn a_busy_guest_is_judged_by_its_last_period() {
        let mut recent = Recent::default();
        recent.add(at(0), at(1), vec![(200, 500)]);
        recent.add(at(1), at(2), vec![(100, 50)]);
        let view = recent.view(Window::default(), at(2)).unwrap();
        assert_eq!((view.responses, view.age), (50, Nanos::ZERO));
    }

    #[test]
    fn a_quiet_guest_is_judged_by_its_last_second() {
        let mut recent = Recent::default();
        for period in 0..20 {
            recent.add(at(period), at(period + 1), vec![(MS8, 2)]);
        }
        let view = recent.view(Window::default(), at(20)).unwrap();
        assert_eq!(view.responses, 20, "ten periods of two");
    }

    #[test]
    fn several_taps_of_a_period_count_together() {
        let mut recent = Recent::default();
        recent.add(at(0), at(1), vec![(1, 60)]);
        recent.add(at(0), at(1), vec![(2, 60)]);
        assert_eq!(
            recent.view(Window::default(), at(1)).unwrap().responses,
            120
        );
    }

    #[test]
    fn the_last_view_stays_and_grows_old() {
        let mut recent = Recent::default();
        assert_eq!(recent.view(Window::default(), at(1)), None);
        recent.add(at(0), at(1), vec![(MS8, 1)]);
        let first = recent.view(Window::default(), at(1)).unwrap();
        let later = recent.view(Window::default(), at(100)).unwrap();
        assert_eq!(later.age, Nanos(PERIOD.0 * 99));
        assert_eq!(
            LatencyView {
                age: Nanos::ZERO,
                ..later
            },
            first
        );
    }

    proptest! {
        /// Counts wrap; differences don't. What was added is what comes out.
        #[test]
        fn growth_is_told_across_a_wrap(start in any::<u32>(), steps in prop::collection::vec(1u32..1_000_000, 1..20)) {
            let mut counts = [start; HIST_BUCKETS];
            let mut meter = HistMeter::new();
            let mut samples = 1;
            meter.advance(samples, &counts);
            for by in steps {
                counts[7] = counts[7].wrapping_add(by);
                samples += u64::from(by);
                prop_assert!(meter.is_new(samples));
                prop_assert_eq!(meter.advance(samples, &counts), vec![(7, by)]);
                prop_assert!(!meter.is_new(samples));
            }
        }
    }
}
