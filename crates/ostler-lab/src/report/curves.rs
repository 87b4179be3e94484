//! P95 against offered load, all policies in one plot: who meets the objective, and up to where.

use super::frame::{Drawing, Panel, broken_line, folded_table, hit, line, rect};
use super::node::{Node, el};
use super::palette::{Look, looks};
use super::scale::{Scale, extent, micros, short};
use super::summary::{PolicySummary, RunSummary, Spread};

const WIDTH: f64 = 1040.0;
/// A policy's line in a legend.
pub const LEGEND_ROW: f64 = 24.0;

fn p95s(policy: &PolicySummary) -> impl Iterator<Item = (f64, Spread)> + '_ {
    policy
        .curve
        .iter()
        .filter_map(|p| Some((p.rate_per_s, p.p95_us.and_then(Spread::finite)?)))
}

/// The figure.
pub fn figure(run: &RunSummary) -> Node {
    let looks = looks(&run.policies);
    let legend_height = 60.0 + run.policies.len() as f64 * LEGEND_ROW;
    let panel = Panel {
        left: 70.0,
        top: 34.0,
        width: 740.0,
        height: legend_height.max(360.0),
    };
    let rates = run
        .policies
        .iter()
        .flat_map(|p| &p.curve)
        .map(|p| p.rate_per_s);
    let x = Scale::from_zero(extent(rates).map(|e| e.1), 10, panel.xs());
    let latencies = run
        .policies
        .iter()
        .flat_map(p95s)
        .flat_map(|(_, s)| [s.min, s.median, s.max]);
    let y = Scale::log(latencies.chain([run.slo_us]), panel.ys());

    let mut marks = vec![
        panel.y_axis(&y, 6, "P95 latency (log scale)", micros),
        panel.x_axis(&x, 10, "offered load, requests/s", short),
    ];
    if let Some(slo_y) = y.at(run.slo_us) {
        marks.push(rect(panel.left, panel.top, panel.width, slo_y - panel.top).class("over"));
        marks.push(line(panel.left, slo_y, panel.right(), slo_y).class("slo"));
        let label = format!("SLO {}", micros(run.slo_us));
        marks.push(
            el("text")
                .class("slo-label")
                .num("x", panel.left + 6.0)
                .num("y", slo_y - 6.0)
                .text(label),
        );
    }
    // Baselines first, so that ours lie on top.
    let mut order: Vec<usize> = (0..run.policies.len()).collect();
    order.sort_by_key(|&i| run.policies[i].family == super::summary::Family::Ostler);
    marks.extend(
        order
            .into_iter()
            .map(|i| series(&run.policies[i], looks[i], &x, &y)),
    );
    marks.push(legend(
        run.policies.iter().zip(looks.iter().copied()),
        panel.right() + 30.0,
        panel.top,
    ));

    let drawing = Drawing {
        id: "latency-load".to_owned(),
        title: "P95 latency against offered load",
        description: "One line per policy; medians of the rounds with whiskers from the lowest to the highest. A line that ends or \
                      breaks was not measured further. The table below holds the same figures.",
        width: WIDTH,
        height: panel.bottom() + 48.0,
    };
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
    el("figure")
        .class("chart")
        .child(el("div").class("scroll").child(drawing.svg(marks)))
        .child(table)
}

fn series(policy: &PolicySummary, look: Look, x: &Scale, y: &Scale) -> Node {
    let place = |rate: f64, us: f64| Some((x.at(rate)?, y.at(us)?));
    let points = policy
        .curve
        .iter()
        .map(|p| place(p.rate_per_s, p.p95_us.and_then(Spread::finite)?.median));
    let mut g = el("g")
        .class(look.class())
        .child(broken_line(points).node().class("line"));
    for (rate, spread) in p95s(policy) {
        let Some((px, py)) = place(rate, spread.median) else {
            continue;
        };
        if let (Some(low), Some(high)) = (y.at(spread.min), y.at(spread.max))
            && (low - high).abs() > 1.0
        {
            g = g
                .child(line(px, low, px, high).class("whisker"))
                .child(line(px - 3.0, low, px + 3.0, low).class("whisker"))
                .child(line(px - 3.0, high, px + 3.0, high).class("whisker"));
        }
        let tip = format!(
            "{} at {}/s\nP95 {} ({} to {})",
            policy.policy,
            short(rate),
            micros(spread.median),
            micros(spread.min),
            micros(spread.max)
        );
        g = g
            .child(look.mark(px, py))
            .child(hit(px - 9.0, py - 9.0, 18.0, 18.0, tip));
    }
    g
}

/// The policies of a plot, below each other.
pub fn legend<'a>(
    policies: impl Iterator<Item = (&'a PolicySummary, Look)>,
    left: f64,
    top: f64,
) -> Node {
    let mut g = el("g").class("legend");
    for (i, (policy, look)) in policies.enumerate() {
        let y = top + 10.0 + i as f64 * LEGEND_ROW;
        g = g.child(
            el("g")
                .class(look.class())
                .child(line(left, y, left + 34.0, y).class("line"))
                .child(look.mark(left + 17.0, y))
                .child(
                    el("text")
                        .num("x", left + 44.0)
                        .num("y", y + 4.0)
                        .text(clipped(&policy.policy, 20)),
                ),
        );
    }
    g
}

/// At most `max` characters, said to be cut where it is.
pub fn clipped(text: &str, max: usize) -> String {
    if text.chars().count() <= max {
        return text.to_owned();
    }
    text.chars().take(max - 1).chain(['\u{2026}']).collect()
}
