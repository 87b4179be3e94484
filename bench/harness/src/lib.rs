//! What every folder in `bench/` shares: arguments, interleaved rounds, and the one line of JSON a case prints.
//!
//! A figure without its baseline says little, and a baseline taken a minute earlier on a shared machine says less. So a case
//! is a pair of closures, each of which performs one *run* and returns its figure, and [`compare`] takes the runs in
//! turn. The order within a round alternates (ours first, then the baseline first), so that a machine that
//! slows down steadily biases neither. The figure is the median, which one disturbed run can't move; the spread beside it
//! tells the reader how far to trust it.
//!
//! May depend on: clap, serde. Benches depend on it, nothing else does.

pub mod cpu;

use std::hint::black_box;
use std::process::Command;
use std::time::Instant;

use clap::Parser;
use serde::Serialize;

/// The arguments every bench takes.
#[derive(Debug, Clone, Parser)]
#[command(about = "Compares one claim with its baseline, both in the same run")]
pub struct Args {
    /// A tiny version that shows the bench still works; its figures mean little.
    #[arg(long)]
    pub quick: bool,
    /// One JSON object per case on standard output, instead of a line to read.
    #[arg(long)]
    pub json: bool,
}

impl Args {
    /// Reads the command line; prints the usage and exits where it is wrong.
    #[must_use]
    pub fn parse() -> Self {
        <Self as Parser>::parse()
    }

    /// The number of runs for this invocation.
    #[must_use]
    pub fn runs(&self, full: usize, quick: usize) -> usize {
        if self.quick { quick } else { full }
    }
}

/// The result of one case.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Line {
    /// The folder under `bench/`.
    pub bench: String,
    /// What was measured.
    pub case: String,
    /// Median of our runs.
    pub ours: f64,
    /// Median of the baseline's runs.
    pub baseline: f64,
    /// `ours / baseline`; absent where the baseline is zero.
    pub ratio: Option<f64>,
    /// What a paper has for that ratio, or where it tells no ratio, for ours; absent where no paper does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paper: Option<f64>,
    /// The unit of `ours` and `baseline`.
    pub unit: String,
    /// How many runs each side had.
    pub runs: usize,
    /// `(max - min) / median` over our runs; absent where the median is zero.
    pub spread: Option<f64>,
    /// The revision measured; absent outside a checkout when `OSTLER_REV` isn't set.
    pub rev: Option<String>,
}

impl Line {
    /// The result of runs that were made already, in `unit`.
    ///
    /// # Panics
    /// When a side has none: a case without a baseline is no result.
    pub fn of(
        bench: &str,
        case: &str,
        unit: &str,
        mut ours: Vec<f64>,
        mut baseline: Vec<f64>,
    ) -> Line {
        assert!(
            !ours.is_empty() && !baseline.is_empty(),
            "{bench}/{case} was measured on one side only"
        );
        let (our_median, baseline_median) = (median(&mut ours), median(&mut baseline));
        // `median` left the figures sorted.
        let range = ours[ours.len() - 1] - ours[0];
        Line {
            bench: bench.into(),
            case: case.into(),
            ours: our_median,
            baseline: baseline_median,
            ratio: quotient(our_median, baseline_median),
            paper: None,
            unit: unit.into(),
            runs: ours.len(),
            spread: quotient(range, our_median),
            rev: revision(),
        }
    }

    /// Prints the case on standard output, as `args` ask.
    ///
    /// # Panics
    /// When a figure isn't finite: a bench that divides by zero must not look like a result.
    #[allow(clippy::print_stdout)]
    pub fn print(&self, args: &Args) {
        assert!(
            self.ours.is_finite() && self.baseline.is_finite(),
            "{}/{}: a figure isn't finite",
            self.bench,
            self.case
        );
        if args.json {
            println!(
                "{}",
                serde_json::to_string(self).expect("finite figures and strings always serialise")
            );
        } else {
            println!("{}", self.to_text());
        }
    }

    fn to_text(&self) -> String {
        let ratio = self.ratio.map_or("-".into(), |r| format!("{r:.3}"));
        let spread = self
            .spread
            .map_or("-".into(), |s| format!("{:.1} %", s * 100.0));
        format!(
            "{}/{}: {:.3} {unit} (baseline {:.3} {unit}, ratio {ratio}; {} runs, spread {spread})",
            self.bench,
            self.case,
            self.ours,
            self.baseline,
            self.runs,
            unit = self.unit,
        )
    }
}

/// Runs both sides `runs` times, interleaved, and returns the medians. Each closure performs one run and returns its
/// figure in `unit`. One run of each side goes before, uncounted, to warm caches and page in code.
///
/// # Panics
/// When `runs` is zero.
pub fn compare(
    bench: &str,
    case: &str,
    unit: &str,
    runs: usize,
    mut ours: impl FnMut() -> f64,
    mut baseline: impl FnMut() -> f64,
) -> Line {
    assert!(runs > 0, "{bench}/{case}: no runs asked for");
    ours();
    baseline();
    let mut our_figures = Vec::with_capacity(runs);
    let mut baseline_figures = Vec::with_capacity(runs);
    for round in 0..runs {
        if round % 2 == 0 {
            our_figures.push(ours());
            baseline_figures.push(baseline());
        } else {
            baseline_figures.push(baseline());
            our_figures.push(ours());
        }
    }
    Line::of(bench, case, unit, our_figures, baseline_figures)
}

/// The mean time of one of `iterations` calls of `work`, in nanoseconds: the usual body of a closure for [`compare`].
///
/// # Panics
/// When `iterations` is zero.
pub fn ns_per_call<T>(iterations: usize, mut work: impl FnMut() -> T) -> f64 {
    assert!(iterations > 0, "no iterations asked for");
    let start = Instant::now();
    for _ in 0..iterations {
        black_box(work());
    }
    start.elapsed().as_nanos() as f64 / iterations as f64
}

/// The median; sorts `figures`. Of an even number, the mean of the middle two.
///
/// # Panics
/// When `figures` is empty.
pub fn median(figures: &mut [f64]) -> f64 {
    assert!(!figures.is_empty(), "the median of nothing");
    figures.sort_by(f64::total_cmp);
    let middle = figures.len() / 2;
    if figures.len() % 2 == 1 {
        figures[middle]
    } else {
        f64::midpoint(figures[middle - 1], figures[middle])
    }
}

fn quotient(a: f64, b: f64) -> Option<f64> {
    (b != 0.0).then(|| a / b)
}

/// `OSTLER_REV` where it is set (a build elsewhere than its checkout), the checkout's revision otherwise.
pub fn revision() -> Option<String> {
    if let Ok(rev) = std::env::var("OSTLER_REV")
        && !rev.is_empty()
    {
        return Some(rev);
    }
    let output = Command::new("git")
        .args(["rev-parse", "--short=12", "HEAD"])
        .output()
        .ok()?;
    let rev = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !rev.trim().is_empty()).then(|| rev.trim().into())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn median_of_odd_and_even() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]).to_bits(), 2.0_f64.to_bits());
        assert_eq!(
            median(&mut [4.0, 1.0, 2.0, 3.0]).to_bits(),
            2.5_f64.to_bits()
        );
    }

    #[test]
    fn rounds_interleave_and_alternate_after_one_warm_up() {
        let order = RefCell::new(String::new());
        let line = compare(
            "b",
            "c",
            "ns",
            3,
            || {
                order.borrow_mut().push('o');
                order.borrow().len() as f64
            },
            || {
                order.borrow_mut().push('b');
                4.0
            },
        );
        assert_eq!(order.into_inner(), "obobboob");
        // Ours ran as calls 1 (warm-up), 3, 6 and 7: the median is 6, the range 4.
        assert_eq!(line.ratio, Some(6.0 / 4.0));
        assert_eq!(line.spread, Some(4.0 / 6.0));
        assert_eq!(line.runs, 3);
    }

    #[test]
    fn the_spread_is_over_all_of_our_runs() {
        let line = Line::of("b", "c", "ms", vec![100.0, 101.0, 99.0], vec![50.0]);
        assert_eq!(
            (line.runs, line.ratio, line.spread),
            (3, Some(2.0), Some(0.02))
        );
    }

    #[test]
    #[should_panic(expected = "b/c was measured on one side only")]
    fn a_case_without_a_baseline_is_no_result() {
        Line::of("b", "c", "ms", vec![1.0], Vec::new());
    }

    #[test]
    fn a_line_has_exactly_the_agreed_keys() {
        let line = compare("b", "c", "ns", 1, || 2.0, || 0.0);
        let value = serde_json::to_value(&line).unwrap();
        let mut keys: Vec<_> = value.as_object().unwrap().keys().cloned().collect();
        keys.sort();
        assert_eq!(
            keys,
            [
                "baseline", "bench", "case", "ours", "ratio", "rev", "runs", "spread", "unit"
            ]
        );
        assert!(value["ratio"].is_null());
    }
}
