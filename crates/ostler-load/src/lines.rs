//! The result lines: one JSON object per line, streamed as they become final.

use serde::{Deserialize, Serialize};

use crate::ledger::Window;
use crate::schedule::SECOND_NS;

/// One line of output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Line {
    /// First: what is about to run.
    Start(Start),
    /// At most one second of one step.
    Window(WindowLine),
    /// A whole step, after its last window.
    Step(StepLine),
}

/// What is about to run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// `memcached`, `redis`, `http`, `echo` or `ping`.
    pub protocol: String,
    /// Address and port; the port of a `ping` means nothing.
    pub target: String,
    /// Same seed, same requests at the same intended times.
    pub seed: u64,
    /// Connections in all.
    pub connections: usize,
    /// Outstanding requests per connection.
    pub depth: usize,
    /// Client threads.
    pub threads: usize,
    /// How many steps follow.
    pub steps: usize,
    /// Wall clock at the start of the schedule, so that results can be laid beside the host's records.
    pub start_unix_ms: u64,
    /// The monotonic clock at the same instant.
    pub start_monotonic_ns: u64,
    /// The objective for P95, if one was given.
    pub slo_us: Option<f64>,
}

/// Counts and latencies, of a window or a step. Latencies run from the intended send time, and cover every request that was due.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Requests that fell due: `completed + errors + timeouts + dropped`.
    pub due: u64,
    /// Of those, sent.
    pub sent: u64,
    /// Answered correctly.
    pub completed: u64,
    /// Answered wrongly, or lost with their connection.
    pub errors: u64,
    /// Not answered by the deadline.
    pub timeouts: u64,
    /// Never sent: the client's queue was full.
    pub dropped: u64,
    /// Sent later than intended by more than the tolerance, because all connections were busy or the client was.
    pub late: u64,
    /// Latency above the objective; absent without one.
    pub over_slo: Option<u64>,
    /// Mean latency; absent when nothing was due, as are the others.
    pub mean_us: Option<f64>,
    /// Median latency.
    pub p50_us: Option<f64>,
    /// 95th percentile of latency.
    pub p95_us: Option<f64>,
    /// 99th percentile of latency.
    pub p99_us: Option<f64>,
    /// Largest latency.
    pub max_us: Option<f64>,
    /// Share of gets that found their value; absent without gets.
    pub hit_rate: Option<f64>,
    /// The client's own worst lag behind its schedule. Large values mean the client, not the server, was short of CPU.
    pub lag_max_us: f64,
}

impl Figures {
    /// The figures of a settled window, or of several merged.
    pub fn new(window: &Window, slo_us: Option<f64>) -> Self {
        let latency = &window.latency_ns;
        let some = |ns: f64| (!latency.is_empty()).then_some(tidy(ns / 1e3));
        let quantile = |q| some(latency.value_at_quantile(q) as f64);
        let gets = window.hits + window.misses;
        Self {
            due: window.due,
            sent: window.sent,
            completed: window.completed,
            errors: window.errors,
            timeouts: window.timeouts,
            dropped: window.dropped,
            late: window.late,
            over_slo: slo_us.map(|_| window.over_slo),
            mean_us: some(latency.mean()),
            p50_us: quantile(0.50),
            p95_us: quantile(0.95),
            p99_us: quantile(0.99),
            max_us: some(latency.max() as f64),
            hit_rate: (gets > 0).then(|| tidy(window.hits as f64 / gets as f64)),
            lag_max_us: window.lag_max_ns as f64 / 1e3,
        }
    }
}

/// At most one second of one step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WindowLine {
    /// Index of the step.
    pub step: u32,
    /// Index within the step.
    pub window: u32,
    /// Start, from the start of the run.
    pub start_s: f64,
    /// Length.
    pub seconds: f64,
    /// Scheduled mean rate.
    pub rate_per_s: f64,
    /// Its figures.
    #[serde(flatten)]
    pub figures: Figures,
}

/// A whole step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepLine {
    /// Index of the step.
    pub step: u32,
    /// Start, from the start of the run.
    pub start_s: f64,
    /// Length.
    pub seconds: f64,
    /// Scheduled mean rate.
    pub rate_per_s: f64,
    /// Correct replies per second.
    pub completed_per_s: f64,
    /// Windows, and how many of them had a P95 within the objective.
    pub windows: u32,
    /// Share of the windows with requests whose P95 was within the objective; absent without an objective or requests.
    pub slo_met_share: Option<f64>,
    /// Its figures.
    #[serde(flatten)]
    pub figures: Figures,
}

/// Gathers settled windows into lines.
#[derive(Debug)]
pub struct Writer {
    rates_per_s: Vec<f64>,
    windows_left: Vec<u32>,
    slo_us: Option<f64>,
    step: Option<StepSoFar>,
}

#[derive(Debug)]
struct StepSoFar {
    merged: Window,
    windows: u32,
    judged: u32,
    met: u32,
}

impl Writer {
    /// A writer for a plan.
    pub fn new(plan: &crate::schedule::Plan, slo_us: Option<f64>) -> Self {
        let mut windows_left = vec![0; plan.steps().len()];
        for span in plan.windows() {
            windows_left[span.step as usize] += 1;
        }
        Self {
            rates_per_s: plan.steps().iter().map(|s| s.rate_per_s).collect(),
            windows_left,
            slo_us,
            step: None,
        }
    }

    /// Takes the next window, in order, and says its line, and its step's line after the last.
    pub fn window(&mut self, window: &Window) -> (WindowLine, Option<StepLine>) {
        let span = window.span;
        let rate_per_s = self.rates_per_s[span.step as usize];
        let figures = Figures::new(window, self.slo_us);
        let met = self.slo_us.zip(figures.p95_us).map(|(slo, p95)| p95 <= slo);
        let so_far = match &mut self.step {
            Some(so_far) => {
                so_far.merged.merge(window);
                so_far
            }
            none => none.insert(StepSoFar {
                merged: window.clone(),
                windows: 0,
                judged: 0,
                met: 0,
            }),
        };
        so_far.windows += 1;
        so_far.judged += u32::from(met.is_some());
        so_far.met += u32::from(met == Some(true));
        let line = WindowLine {
            step: span.step,
            window: span.index,
            start_s: seconds(span.start_ns),
            seconds: seconds(span.end_ns - span.start_ns),
            rate_per_s,
            figures,
        };
        let left = &mut self.windows_left[span.step as usize];
        *left -= 1;
        let done = if *left == 0 { self.step.take() } else { None };
        (line, done.map(|so_far| self.step_line(&so_far, rate_per_s)))
    }

    fn step_line(&self, so_far: &StepSoFar, rate_per_s: f64) -> StepLine {
        let span = so_far.merged.span;
        let length_s = seconds(span.end_ns - span.start_ns);
        StepLine {
            step: span.step,
            start_s: seconds(span.start_ns),
            seconds: length_s,
            rate_per_s,
            completed_per_s: tidy(so_far.merged.completed as f64 / length_s),
            windows: so_far.windows,
            slo_met_share: (so_far.judged > 0)
                .then(|| tidy(f64::from(so_far.met) / f64::from(so_far.judged))),
            figures: Figures::new(&so_far.merged, self.slo_us),
        }
    }
}

/// Rounds to six decimals: more would be noise, and short decimals survive JSON exactly.
fn tidy(x: f64) -> f64 {
    (x * 1e6).round() / 1e6
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / SECOND_NS as f64
}
