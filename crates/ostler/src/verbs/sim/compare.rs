//! `ostler sim compare`: two runs of the same scenario side by side: of the lab and the simulator, of two programs, of two seeds.
//!
//! Two worlds needn't agree about a figure to be of the same mind about a policy. So each figure is told twice: one run's beside the other's, and what a
//! policy does to it in each, against the policy that comes first. **Directions agree** where both runs say that it makes the figure more, or both less; a
//! change below [`SAME`] in a run is none, and contradicts nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use ostler_report::say::{short, times};
use serde::Serialize;
use serde_json::Value;

use crate::output::{self, Paint, Table};

/// A policy that changes a figure by less than this doesn't.
const SAME: f64 = 0.05;

/// The figures that are compared, where both runs have them.
const FIGURES: [&str; 16] = [
    "max_rate_under_slo",
    "slo_met_share",
    "core_seconds",
    "be_core_seconds",
    "p50_us",
    "p95_us",
    "p99_us",
    "ops_per_s",
    "ctx_switches_per_s",
    "migrations_per_s",
    "irqs_per_s",
    "irq_to_run_p99_us",
    "neighbour_throughput",
    "energy_j",
    "local_unused",
    "moved_mib",
];

/// Show two runs of a scenario side by side: the lab's and the simulator's, say
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Each file has the JSON lines of a run: of `ostler lab run --json FILE` or `ostler sim --json`. Policies are compared with the first of them, \
    in each run.\n\n\
    Examples:\n  ostler sim scenarios/vspace-ramp.toml --json > sim.jsonl\n  ostler sim compare lab.jsonl sim.jsonl --json\n\n\
    Exit codes: 0 shown; 1 a file can't be read, or with --agree, a policy does one thing in one run and another in the other."
)]
pub struct Args {
    /// The JSON lines of one run
    one: PathBuf,
    /// And of the other
    other: PathBuf,
    /// Fail where directions don't agree
    #[arg(long)]
    agree: bool,
    /// Print JSON lines
    #[arg(long)]
    json: bool,
}

/// A figure of a policy in two runs.
#[derive(Debug, PartialEq, Serialize)]
struct Pair {
    workload: String,
    policy: String,
    figure: &'static str,
    one: f64,
    other: f64,
    /// The other's by the one's; `None` where that is zero.
    ratio: Option<f64>,
    /// By the first policy's, in each run; `None` for that itself, and where its figure is zero.
    one_by_first: Option<f64>,
    other_by_first: Option<f64>,
    /// Whether both say that the policy makes it more, or less; `None` where there is nothing to agree about.
    agree: Option<bool>,
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let pairs = pairs(&lines(&args.one)?, &lines(&args.other)?);
    ensure!(
        !pairs.is_empty(),
        "{} and {} have no policy under the same load in common",
        args.one.display(),
        args.other.display()
    );
    let against: Vec<_> = pairs.iter().filter(|p| p.agree == Some(false)).collect();
    if args.json {
        for pair in &pairs {
            output::print(&format!(
                "{}\n",
                serde_json::to_string(pair).context("a pair is always JSON")?
            ))?;
        }
    } else {
        output::print(&text(&pairs, Paint(output::colours())))?;
        let told = pairs.iter().filter(|pair| pair.agree.is_some()).count();
        eprintln!("sim: {} of {told} directions agree", told - against.len());
    }
    Ok(if args.agree && !against.is_empty() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// A policy's line under a load.
struct Line {
    workload: String,
    policy: String,
    value: Value,
}

fn lines(path: &Path) -> anyhow::Result<Vec<Line>> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("could not read {}", path.display()))?;
    let mut lines = Vec::new();
    for (number, line) in text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
    {
        let place = || format!("{}:{}", path.display(), number + 1);
        let value: Value = serde_json::from_str(line)
            .with_context(|| format!("{}: no JSON; give it the lines of `--json`", place()))?;
        // Cells have lines of their own.
        if value.get("cell").is_some() {
            continue;
        }
        let text = |key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
        let (Some(workload), Some(policy)) = (text("workload"), text("policy")) else {
            anyhow::bail!(
                "{}: no line of a policy under a load; give it the lines of `--json`",
                place()
            );
        };
        lines.push(Line {
            workload,
            policy,
            value,
        });
    }
    Ok(lines)
}

fn pairs(one: &[Line], other: &[Line]) -> Vec<Pair> {
    let others: BTreeMap<_, _> = other
        .iter()
        .map(|line| ((&line.workload, &line.policy), line))
        .collect();
    let both: Vec<_> = one
        .iter()
        .filter_map(|line| Some((line, *others.get(&(&line.workload, &line.policy))?)))
        .collect();
    let mut pairs = Vec::new();
    for (one, other) in &both {
        let first = both.iter().find(|(line, _)| line.workload == one.workload);
        for figure in FIGURES {
            let of = |line: &Line| line.value.get(figure).and_then(Value::as_f64);
            let (Some(mine), Some(theirs)) = (of(one), of(other)) else {
                continue;
            };
            let by = |value: f64, unit: Option<f64>| {
                unit.filter(|unit| *unit != 0.0).map(|unit| value / unit)
            };
            let first = first.filter(|(first, _)| first.policy != one.policy);
            let one_by_first = first.and_then(|(first, _)| by(mine, of(first)));
            let other_by_first = first.and_then(|(_, first)| by(theirs, of(first)));
            pairs.push(Pair {
                workload: one.workload.clone(),
                policy: one.policy.clone(),
                figure,
                one: mine,
                other: theirs,
                ratio: by(theirs, Some(mine)),
                one_by_first,
                other_by_first,
                agree: one_by_first
                    .zip(other_by_first)
                    .map(|(one, other)| agree(one, other)),
            });
        }
    }
    pairs
}

/// Whether two changes go the same way, or one of them nowhere.
fn agree(one: f64, other: f64) -> bool {
    let way = |change: f64| {
        if (change - 1.0).abs() < SAME {
            0
        } else if change > 1.0 {
            1
        } else {
            -1
        }
    };
    way(one) * way(other) >= 0
}

fn text(pairs: &[Pair], paint: Paint) -> String {
    let mut text = String::new();
    let mut workloads: Vec<&str> = pairs.iter().map(|pair| pair.workload.as_str()).collect();
    workloads.dedup();
    for workload in workloads {
        text.push_str(&paint.bold(workload));
        text.push('\n');
        let mut table = Table::new(&[
            "POLICY",
            "FIGURE",
            "ONE",
            "OTHER",
            "RATIO",
            "ONE BY FIRST",
            "OTHER BY FIRST",
            "AGREE",
        ]);
        let said = |ratio: Option<f64>| ratio.map_or_else(|| "-".to_owned(), times);
        for pair in pairs.iter().filter(|pair| pair.workload == workload) {
            table.row(vec![
                pair.policy.clone(),
                pair.figure.to_owned(),
                short(pair.one),
                short(pair.other),
                said(pair.ratio),
                said(pair.one_by_first),
                said(pair.other_by_first),
                match pair.agree {
                    Some(true) => paint.good("yes"),
                    Some(false) => paint.bad("NO"),
                    None => "-".to_owned(),
                },
            ]);
        }
        text.push_str(&table.render(paint));
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(policy: &str, p95_us: f64, cores: Option<f64>) -> Line {
        Line {
            workload: "w".to_owned(),
            policy: policy.to_owned(),
            value: serde_json::json!({"p95_us": p95_us, "core_seconds": cores}),
        }
    }

    #[test]
    fn policies_are_held_against_the_first_in_each_run() {
        let lab = [
            line("a", 100.0, Some(10.0)),
            line("b", 50.0, None),
            line("c", 130.0, Some(9.8)),
        ];
        let sim = [
            line("c", 90.0, Some(20.0)),
            line("a", 100.0, Some(10.0)),
            line("b", 70.0, Some(5.0)),
            line("d", 1.0, None),
        ];
        let pairs = pairs(&lab, &sim);
        let of = |policy: &str, figure: &str| {
            pairs
                .iter()
                .find(|pair| pair.policy == policy && pair.figure == figure)
        };
        assert_eq!(of("a", "p95_us").unwrap().agree, None);
        let b = of("b", "p95_us").unwrap();
        assert_eq!(
            (b.ratio, b.one_by_first, b.other_by_first),
            (Some(1.4), Some(0.5), Some(0.7))
        );
        assert_eq!(b.agree, Some(true));
        assert_eq!(of("c", "p95_us").unwrap().agree, Some(false));
        // 2 % is no direction.
        assert_eq!(of("c", "core_seconds").unwrap().agree, Some(true));
        assert_eq!(of("b", "core_seconds"), None, "the lab didn't measure it");
        assert!(of("d", "p95_us").is_none());
    }

    #[test]
    fn what_is_no_result_is_refused_with_its_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.jsonl");
        for (text, why) in [
            (
                "{\"workload\":\"w\",\"policy\":\"p\"}\nnonsense",
                ":2: no JSON",
            ),
            ("{\"policy\":\"p\"}", ":1: no line of a policy"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = lines(&path).err().unwrap().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
