//! P95 against offered load, all policies in one plot: who meets the objective, and up to where.

use ostler_report::frame::folded_table;
use ostler_report::lines::{Axis, Chart, Objective, Series};
use ostler_report::say::{micros, short};
use ostler_report::{Node, Spread};

use super::summary::RunSummary;

/// The figure.
pub fn figure(run: &RunSummary) -> Node {
    let chart = Chart {
        id: "latency-load".to_owned(),
        title: "P95 latency against offered load",
        description: "One line per policy; medians of the rounds with whiskers from the lowest to the highest. A line that ends or \
                      breaks was not measured further. The table below holds the same figures.",
        x: Axis {
            caption: "offered load, requests/s",
            say: short,
            log: false,
        },
        y: Axis {
            caption: "P95 latency (log scale)",
            say: micros,
            log: true,
        },
        objective: Some(Objective {
            at: run.slo_us,
            label: format!("SLO {}", micros(run.slo_us)),
        }),
        tip: |series, rate, spread| {
            format!(
                "{} at {}/s\nP95 {} ({} to {})",
                series.name,
                short(rate),
                micros(spread.median),
                micros(spread.min),
                micros(spread.max)
            )
        },
    };
    let policies = run.policies.iter().zip(run.looks());
    let series: Vec<_> = policies
        .map(|(policy, look)| Series {
            name: &policy.policy,
            look,
            points: policy
                .curve
                .iter()
                .map(|point| (point.rate_per_s, point.p95_us))
                .collect(),
        })
        .collect();
    let plot = chart.svg(&series);
    let rows = run.policies.iter().flat_map(|policy| {
        policy.curve.iter().map(|point| {
            let cell = |f: fn(Spread) -> f64| {
                point
                    .p95_us
                    .and_then(Spread::finite)
                    .map_or("not measured".to_owned(), |s| micros(f(s)))
            };
            vec![
                policy.policy.clone(),
                short(point.rate_per_s),
                cell(|s| s.median),
                cell(|s| s.min),
                cell(|s| s.max),
            ]
        })
    });
    let table = folded_table(
        "The same as a table".to_owned(),
        &[
            "policy",
            "offered, requests/s",
            "P95 median",
            "lowest round",
            "highest round",
        ],
        rows,
    );
    ostler_report::chart(plot).child(table)
}
