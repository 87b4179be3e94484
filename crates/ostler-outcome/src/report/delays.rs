//! How soon vCPUs ran after their events (seed figure 3.5), as the share of events that had been answered by a time: the scheduler counts by powers
//! of two, so what is known is the share at each of these, and nothing between.

use ostler_model::delay_bound;
use ostler_report::frame::{Drawing, Panel, broken_line, folded_table, hit};
use ostler_report::lines::{LEGEND_ROW, legend};
use ostler_report::say::{MISSING, micros, percent, short};
use ostler_report::scale::Scale;
use ostler_report::{Look, Node, el};

use super::summary::{PolicySummary, RunSummary};

const WIDTH: f64 = 1040.0;
/// Bins that are drawn: more than there are, and few enough for a shift.
const BINS_MAX: usize = 40;

fn delays(policy: &PolicySummary) -> Option<&[u64]> {
    let delays = &policy.sharing.as_ref()?.delays;
    delays.iter().any(|count| *count > 0).then_some(delays)
}

/// The bounds of bins and the share of events below each, from the first that isn't nothing to where all are, or to the last that has a bound.
fn cumulative(delays: &[u64]) -> Vec<(f64, f64)> {
    // As floats, since whatever is in a record may be added here.
    let all: f64 = delays.iter().map(|count| *count as f64).sum();
    let bounded = delays.len().saturating_sub(1).min(BINS_MAX);
    let mut below = 0.0;
    let mut points = Vec::new();
    for (bin, count) in delays[..bounded].iter().enumerate() {
        let from_us = (1_u64 << bin) as f64;
        if *count > 0 && points.is_empty() {
            points.push((from_us, 0.0));
        }
        below += *count as f64;
        if !points.is_empty() {
            points.push((from_us * 2.0, below / all));
        }
        if below >= all {
            break;
        }
    }
    points
}

/// The figure; `None` where nobody counted.
pub fn figure(run: &RunSummary) -> Option<Node> {
    let counted: Vec<_> = run
        .policies
        .iter()
        .zip(run.looks())
        .filter_map(|(policy, look)| Some((policy, look, delays(policy)?)))
        .collect();
    if counted.is_empty() {
        return None;
    }
    let panel = Panel {
        left: 70.0,
        top: 34.0,
        width: 740.0,
        height: (20.0 + counted.len() as f64 * LEGEND_ROW).max(280.0),
    };
    let curves: Vec<_> = counted
        .iter()
        .map(|(.., delays)| cumulative(delays))
        .collect();
    let x = Scale::log(curves.iter().flatten().map(|(us, _)| *us), panel.xs());
    let y = Scale::linear(Some((0.0, 1.0)), panel.ys());
    let mut marks = vec![
        panel.y_axis(&y, 5, "Share of events whose vCPU ran by then", percent),
        panel.x_axis(
            &x,
            12,
            "from an event to its vCPU running (log scale)",
            micros,
        ),
    ];
    let series = counted.iter().zip(&curves);
    marks.extend(series.map(|((policy, look, _), points)| curve(policy, *look, points, &x, &y)));
    marks.push(legend(
        counted
            .iter()
            .map(|(policy, look, _)| (policy.policy.as_str(), *look)),
        panel.right() + 30.0,
        panel.top,
    ));
    let drawing = Drawing {
        id: "sharing-delays".to_owned(),
        title: "From an event to its vCPU running",
        description: "One line per policy: the share of events by whose vCPU had run, at each power of two. A line that ends below 100 % has events \
                      that took longer than can be told. The table below holds the same figures.",
        width: WIDTH,
        height: panel.bottom() + 48.0,
    };
    let rows = counted.iter().map(|(policy, _, delays)| {
        let bound = |share| {
            delay_bound(delays, share).map_or(MISSING.to_owned(), |bound| {
                format!("\u{2264} {}", micros(bound.as_micros_f64()))
            })
        };
        let events = delays.iter().map(|count| *count as f64).sum();
        vec![
            policy.policy.clone(),
            short(events),
            bound(0.5),
            bound(0.95),
            bound(0.99),
        ]
    });
    let table = folded_table(
        "The same as a table".to_owned(),
        &["policy", "events", "P50", "P95", "P99"],
        rows,
    );
    Some(
        el("figure")
            .class("chart")
            .child(el("p").class("quiet").text(
                "How soon vCPUs of the loaded guest ran after interrupts and IPIs that came while they didn\u{2019}t, over all rounds, as the \
                 steward\u{2019}s scheduler counted them; the kernel\u{2019}s own counts none.",
            ))
            .child(el("div").class("scroll").child(drawing.svg(marks)))
            .child(table),
    )
}

fn curve(policy: &PolicySummary, look: Look, points: &[(f64, f64)], x: &Scale, y: &Scale) -> Node {
    let place = |(us, share): (f64, f64)| Some((x.at(us)?, y.at(share)?));
    let line = broken_line(points.iter().map(|point| place(*point)));
    let mut g = el("g").class(look.class()).child(line.node().class("line"));
    for (us, share) in points.iter().skip(1) {
        let Some((px, py)) = place((*us, *share)) else {
            continue;
        };
        let tip = format!(
            "{}\n{} within {}",
            policy.policy,
            percent(*share),
            micros(*us)
        );
        g = g
            .child(look.mark(px, py))
            .child(hit(px - 7.0, py - 7.0, 14.0, 14.0, tip));
    }
    g
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_begins_where_events_do_and_ends_where_nothing_is_known() {
        assert_eq!(
            cumulative(&[0, 1, 2, 1, 0, 0]),
            [(2.0, 0.0), (4.0, 0.25), (8.0, 0.75), (16.0, 1.0)]
        );
        assert_eq!(
            cumulative(&[3, 1]),
            [(1.0, 0.0), (2.0, 0.75)],
            "the last bin has no bound"
        );
        assert_eq!(cumulative(&[0, 0, 5]), []);
        assert_eq!(cumulative(&[]), []);
    }
}
