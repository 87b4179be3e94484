//! The schedule: when each request is due.
//!
//! An open-loop generator is its schedule. Arrivals of a large population of independent clients form a Poisson process, so gaps are
//! exponential; a run is a sequence of [`Step`]s of constant rate, and because the exponential is memoryless a gap that crosses the
//! border of two steps may simply be drawn anew at the border. Nothing here looks at a clock or at the server: the same seed gives
//! the same instants on every machine, and a server cannot slow its clients down by being slow (coordinated omission).
//!
//! Each step is cut into *windows* of one second. A request belongs to the window of its **intended** time, for good: when a server
//! stalls for three seconds, the three windows in which requests were due show it, not the one in which the replies came.

use rand::Rng;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::error::LoadError;

/// Nanoseconds in a second.
pub const SECOND_NS: u64 = 1_000_000_000;

/// No plan has more windows than this (more than eleven days); it bounds the plan's memory.
pub const WINDOWS_MAX: usize = 1_000_000;

/// A stretch of time with one rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// Mean arrivals per second; zero is a pause.
    pub rate_per_s: f64,
    /// How long.
    pub duration_ns: u64,
}

/// One line of results: at most a second of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowSpan {
    /// Index of the step it is part of.
    pub step: u32,
    /// Index within that step.
    pub index: u32,
    /// Start, counted from the start of the run.
    pub start_ns: u64,
    /// End (exclusive), counted from the start of the run.
    pub end_ns: u64,
}

/// The steps of a run and the windows they are cut into.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    steps: Vec<Step>,
    windows: Vec<WindowSpan>,
}

impl Plan {
    /// Checks the steps and cuts them into windows.
    pub fn new(steps: Vec<Step>) -> Result<Self, LoadError> {
        let refuse = |step: &Step, why| {
            let seconds = step.duration_ns as f64 / SECOND_NS as f64;
            Err(LoadError::Step {
                text: format!("{}x{seconds}", step.rate_per_s),
                why,
            })
        };
        if steps.is_empty() {
            return Err(LoadError::Step {
                text: String::new(),
                why: "no step given",
            });
        }
        let mut windows = Vec::new();
        let mut at_ns = 0_u64;
        for (index, step) in (0_u32..).zip(&steps) {
            if !(step.rate_per_s.is_finite() && (0.0..=1e8).contains(&step.rate_per_s)) {
                return refuse(step, "the rate must lie between 0 and 100000000 per second");
            }
            if step.duration_ns == 0 {
                return refuse(step, "a step must last longer than nothing");
            }
            let count = step.duration_ns.div_ceil(SECOND_NS);
            if count > (WINDOWS_MAX - windows.len()) as u64 {
                return refuse(step, "the run would be longer than 1000000 seconds");
            }
            let step_end_ns = at_ns + step.duration_ns;
            for (window, start_ns) in (0_u32..).zip((0..count).map(|i| at_ns + i * SECOND_NS)) {
                let end_ns = (start_ns + SECOND_NS).min(step_end_ns);
                windows.push(WindowSpan {
                    step: index,
                    index: window,
                    start_ns,
                    end_ns,
                });
            }
            at_ns = step_end_ns;
        }
        Ok(Self { steps, windows })
    }

    /// Reads `RATExSECONDS` pieces, separated by commas or lines; `#` starts a comment.
    pub fn parse(text: &str) -> Result<Self, LoadError> {
        let pieces = text
            .lines()
            .map(|line| line.split('#').next().unwrap_or_default())
            .flat_map(|line| line.split(','))
            .map(str::trim)
            .filter(|piece| !piece.is_empty());
        Self::new(pieces.map(parse_step).collect::<Result<_, _>>()?)
    }

    /// The steps.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The windows, in order of time.
    pub fn windows(&self) -> &[WindowSpan] {
        &self.windows
    }

    /// When the last step ends.
    pub fn end_ns(&self) -> u64 {
        self.windows.last().map_or(0, |w| w.end_ns)
    }

    /// The same plan with every rate divided by `parts`: a Poisson process split evenly is that many independent ones.
    #[must_use]
    pub fn share(&self, parts: usize) -> Self {
        let mut plan = self.clone();
        for step in &mut plan.steps {
            step.rate_per_s /= parts as f64;
        }
        plan
    }
}

fn parse_step(piece: &str) -> Result<Step, LoadError> {
    let refuse = |why| LoadError::Step {
        text: piece.to_owned(),
        why,
    };
    let (rate, seconds) = piece
        .split_once('x')
        .ok_or_else(|| refuse("no 'x' between rate and seconds"))?;
    let number = |text: &str| text.trim().parse::<f64>().ok().filter(|n| n.is_finite());
    let rate_per_s = number(rate).ok_or_else(|| refuse("the rate is not a number"))?;
    let seconds = number(seconds).ok_or_else(|| refuse("the seconds are not a number"))?;
    Ok(Step {
        rate_per_s,
        duration_ns: seconds_to_ns(seconds)
            .ok_or_else(|| refuse("the seconds are out of range"))?,
    })
}

/// Seconds as whole nanoseconds, where that is possible.
pub fn seconds_to_ns(seconds: f64) -> Option<u64> {
    // Truncation and sign are settled by the range test.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    (0.0..=1e9)
        .contains(&seconds)
        .then(|| (seconds * 1e9).round() as u64)
}

/// A number of (0, 1], from the upper 53 bits. Ours, so that a seed's meaning can't change with a dependency.
pub(crate) fn unit(rng: &mut impl Rng) -> f64 {
    ((rng.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64
}

/// One request that falls due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// When, counted from the start of the run.
    pub intended_ns: u64,
    /// Index of its window in [`Plan::windows`].
    pub window: u32,
}

/// The arrivals of a plan, drawn lazily from one seed.
#[derive(Debug, Clone)]
pub struct Schedule {
    plan: Plan,
    rng: ChaCha8Rng,
    /// Position within the current step; fractional so that rounding doesn't add up.
    at_ns: f64,
    step: usize,
    step_start_ns: u64,
    window: u32,
}

impl Schedule {
    /// The schedule of `plan`; `stream` separates threads that share a seed.
    pub fn new(plan: Plan, seed: u64, stream: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(stream);
        Self {
            plan,
            rng,
            at_ns: 0.0,
            step: 0,
            step_start_ns: 0,
            window: 0,
        }
    }

    /// The plan this is the schedule of.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }
}

impl Iterator for Schedule {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        while let Some(step) = self.plan.steps.get(self.step) {
            if step.rate_per_s > 0.0 {
                self.at_ns += -unit(&mut self.rng).ln() / step.rate_per_s * 1e9;
                if self.at_ns < step.duration_ns as f64 {
                    // Positive and below the step's length, so it fits.
                    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
                    let within_ns = (self.at_ns as u64).min(step.duration_ns - 1);
                    let intended_ns = self.step_start_ns + within_ns;
                    while self.plan.windows[self.window as usize].end_ns <= intended_ns {
                        self.window += 1;
                    }
                    return Some(Arrival {
                        intended_ns,
                        window: self.window,
                    });
                }
            }
            self.step_start_ns += step.duration_ns;
            self.step += 1;
            self.at_ns = 0.0;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn plan(rate_per_s: f64, seconds: u64) -> Plan {
        Plan::new(vec![Step {
            rate_per_s,
            duration_ns: seconds * SECOND_NS,
        }])
        .unwrap()
    }

    /// Kolmogorov-Smirnov distance between `samples` and a closed form.
    fn ks_distance(mut samples: Vec<f64>, cdf: impl Fn(f64) -> f64) -> f64 {
        samples.sort_by(f64::total_cmp);
        let n = samples.len() as f64;
        samples.iter().enumerate().fold(0.0, |worst: f64, (i, &x)| {
            let f = cdf(x);
            worst
                .max((f - i as f64 / n).abs())
                .max(((i + 1) as f64 / n - f).abs())
        })
    }

    #[test]
    fn gaps_are_exponential() {
        for seed in 0..8 {
            let arrivals: Vec<_> = Schedule::new(plan(2000.0, 20), seed, 0).collect();
            let gaps: Vec<f64> = arrivals
                .windows(2)
                .map(|w| (w[1].intended_ns - w[0].intended_ns) as f64 / 1e9)
                .collect();
            let n = gaps.len() as f64;
            let distance = ks_distance(gaps, |x| 1.0 - (-2000.0 * x).exp());
            // 1.95/sqrt(n) is the one-in-a-thousand bound; the seeds are fixed, so this can't flicker.
            assert!(
                distance < 1.95 / n.sqrt(),
                "seed {seed}: distance {distance}, n {n}"
            );
        }
    }

    #[test]
    fn counts_per_window_have_the_variance_of_their_mean() {
        let plan = plan(500.0, 400);
        let mut counts = vec![0.0; plan.windows().len()];
        for arrival in Schedule::new(plan, 7, 0) {
            counts[arrival.window as usize] += 1.0;
        }
        let n = counts.len() as f64;
        let mean = counts.iter().sum::<f64>() / n;
        let variance = counts.iter().map(|c| (c - mean) * (c - mean)).sum::<f64>() / (n - 1.0);
        assert!((mean - 500.0).abs() < 5.0, "mean {mean}");
        // A paced generator would be near 0 here, a bursty one well above 1.
        assert!(
            (0.8..1.25).contains(&(variance / mean)),
            "index of dispersion {}",
            variance / mean
        );
    }

    proptest! {
        #[test]
        fn arrivals_are_ordered_and_lie_in_their_windows(
            steps in prop::collection::vec((0.0..3000.0_f64, 1..2_500_000_000_u64), 1..6), seed: u64
        ) {
            let steps = steps.into_iter().map(|(rate_per_s, duration_ns)| Step { rate_per_s, duration_ns }).collect();
            let plan = Plan::new(steps).unwrap();
            let mut last = 0;
            for arrival in Schedule::new(plan.clone(), seed, 0) {
                let window = plan.windows()[arrival.window as usize];
                prop_assert!(arrival.intended_ns >= last);
                prop_assert!((window.start_ns..window.end_ns).contains(&arrival.intended_ns));
                last = arrival.intended_ns;
            }
            prop_assert_eq!(Schedule::new(plan.clone(), seed, 3).take(50).collect::<Vec<_>>(),
                Schedule::new(plan, seed, 3).take(50).collect::<Vec<_>>());
        }

        #[test]
        fn windows_tile_the_run(durations in prop::collection::vec(1..5_000_000_000_u64, 1..8)) {
            let steps = durations.iter().map(|&duration_ns| Step { rate_per_s: 1.0, duration_ns }).collect();
            let plan = Plan::new(steps).unwrap();
            let mut at = 0;
            for window in plan.windows() {
                prop_assert_eq!(window.start_ns, at);
                prop_assert!(window.end_ns > at && window.end_ns - at <= SECOND_NS);
                at = window.end_ns;
            }
            prop_assert_eq!(at, durations.iter().sum::<u64>());
            prop_assert_eq!(plan.end_ns(), at);
        }

        #[test]
        fn parsing_never_panics(text in ".{0,40}") {
            let _ = Plan::parse(&text);
        }
    }

    #[test]
    fn steps_are_read_from_commas_lines_and_comments() {
        let plan = Plan::parse("500x5, 1000x2.5\n# up and down\n250x1 # end\n").unwrap();
        let rates: Vec<_> = plan
            .steps()
            .iter()
            .map(|s| (s.rate_per_s, s.duration_ns))
            .collect();
        assert_eq!(
            rates,
            [
                (500.0, 5_000_000_000),
                (1000.0, 2_500_000_000),
                (250.0, 1_000_000_000)
            ]
        );
        for bad in [
            "", "500", "x5", "500x", "-1x5", "nanx5", "5xinf", "500x0", "1e9x1", "5x1e10",
        ] {
            let error = Plan::parse(bad).unwrap_err();
            assert!(error.to_string().contains("RATExSECONDS"), "{bad}: {error}");
        }
    }
}
