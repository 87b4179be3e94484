//! Figures of in-memory files' control over an hour: how far off each control is at first, and afterwards.

use ostler_policy::sizing::{Parts, Settings};
use ostler_sim::files::{By, aggregated, hylics, hylics_settings, pooled};

use crate::figure::{Case, Run};

/// The paper's hundred runs (section 6.1), so many times.
const HOURS: u64 = 100;
const TIMES: u64 = 5;
/// The windows of the beginning, of four minutes each: by then the longest interval has passed twice.
const FIRST: usize = 2;

/// By time: the error a window at first, afterwards, and over all.
type Errors = [Vec<f64>; 3];

/// The cases of a workload: ours beside each of the paper's three controls, and the paper's best beside its other two where tasks take longer than was measured, as the paper's did.
pub fn cases(workload: u32, run: Run) -> Vec<Case> {
    let others = [
        ("adaptive only", Parts::Adaptive),
        ("queueing prediction", Parts::Queue),
        ("the paper's combination", Parts::Both),
    ];
    let of = |slower| {
        let errors = |parts| errors(workload, slower, parts, run);
        (
            errors(Parts::Corrected),
            others.map(|(_, parts)| errors(parts)),
        )
    };
    let mut cases = Vec::new();
    let mut case = |name: String, ours: &[f64], baseline: &[f64]| {
        cases.push(Case {
            name,
            ours: ours.to_vec(),
            baseline: baseline.to_vec(),
        });
    };
    let (ours, theirs) = of(1.0);
    for (at, when) in [(0, "the first eight minutes"), (1, "afterwards")] {
        for ((beside, _), errors) in others.iter().zip(&theirs) {
            case(format!("{when}, beside {beside}"), &ours[at], &errors[at]);
        }
    }
    let longer = "tasks 15 % longer than measured";
    let (ours, theirs) = of(1.15);
    for ((beside, _), errors) in others.iter().zip(&theirs) {
        case(format!("{longer}, beside {beside}"), &ours[2], &errors[2]);
    }
    for ((beside, _), errors) in others.iter().zip(&theirs).take(2) {
        let name = format!("{longer}, the paper's combination beside {beside}");
        case(name, &theirs[2][2], &errors[2]);
    }
    cases
}

/// How far off a control is, by time of a hundred hours.
fn errors(workload: u32, slower: f64, parts: Parts, run: Run) -> Errors {
    let (hours, times) = if run.quick { (2, 1) } else { (HOURS, TIMES) };
    let world = hylics(workload, slower);
    let by = By::Policy(Settings {
        parts,
        ..hylics_settings()
    });
    let mut errors = Errors::default();
    for time in 0..times {
        let runs: Vec<_> = (0..hours)
            .map(|hour| world.run(&by, time * hours + hour))
            .collect();
        let means = pooled(&runs);
        let (first, rest) = means.split_at(FIRST.min(means.len()));
        for (errors, means) in errors.iter_mut().zip([first, rest, &means]) {
            let windows = means.len().max(1) as f64;
            errors.push(aggregated(means, hylics_settings().wanted) / windows);
        }
    }
    errors
}
