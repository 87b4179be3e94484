//! System events beside each other, relative to the baseline (seed figures 9 and 10): context switches, migrations, interrupts, exits.

use super::curves::clipped;
use super::frame::{Drawing, Panel, folded_table, hit, line, rect};
use super::node::{Node, el};
use super::palette::{Look, looks};
use super::scale::{Scale, short};
use super::summary::{Figures, PolicySummary, RunSummary, Spread};

const ROW: f64 = 26.0;
const WIDTH: f64 = 520.0;
const TICKS: usize = 6;

type Read = fn(&Figures) -> Option<Spread>;

/// Id, name, and where to find it.
const EVENTS: [(&str, &str, Read); 4] = [
    ("ctx", "Context switches", |f| f.ctx_switches_per_s),
    ("migrations", "Migrations", |f| f.migrations_per_s),
    ("irqs", "Interrupts", |f| f.irqs_per_s),
    ("exits", "KVM exits", |f| f.kvm_exits_per_s),
];

/// A policy's figure as multiples of the baseline's median.
fn relative(spread: Option<Spread>, baseline: Option<Spread>) -> Option<Spread> {
    let base = baseline.and_then(Spread::finite)?.median;
    let spread = spread.and_then(Spread::finite)?;
    Spread {
        median: spread.median / base,
        min: spread.min / base,
        max: spread.max / base,
    }
    .finite()
}

/// "0.25x", but never a zero for something that happened.
pub fn times(ratio: f64) -> String {
    match ratio {
        r if !r.is_finite() || r >= 1e6 => format!("{}\u{d7}", short(r)),
        r if r > 0.0 && r < 0.001 => "<0.001\u{d7}".to_owned(),
        r if r < 0.1 => format!(
            "{}\u{d7}",
            format!("{r:.3}")
                .trim_end_matches('0')
                .trim_end_matches('.')
        ),
        r => format!("{r:.2}\u{d7}"),
    }
}

/// The four figures.
pub fn figure(run: &RunSummary) -> Node {
    let baseline = run.policies.iter().find(|p| p.policy == run.baseline);
    let charts = EVENTS
        .iter()
        .map(|&(id, name, read)| chart(run, baseline, id, name, read));
    let rows = run.policies.iter().map(|policy| {
        let cell = |read: Read| {
            read(&policy.figures)
                .and_then(Spread::finite)
                .map_or("not measured".to_owned(), |s| short(s.median))
        };
        std::iter::once(policy.policy.clone())
            .chain(EVENTS.iter().map(|(_, _, read)| cell(*read)))
            .collect()
    });
    let head: Vec<String> = std::iter::once("policy".to_owned())
        .chain(EVENTS.iter().map(|(_, name, _)| format!("{name}/s")))
        .collect();
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    el("figure")
        .class("chart")
        .child(el("div").class("panels").children(charts))
        .child(folded_table("The same as a table".to_owned(), &head, rows))
}

fn chart(
    run: &RunSummary,
    baseline: Option<&PolicySummary>,
    id: &str,
    name: &str,
    read: Read,
) -> Node {
    let base = baseline.and_then(|b| read(&b.figures));
    let rows: Vec<Row> = run
        .policies
        .iter()
        .zip(looks(&run.policies))
        .map(|(policy, look)| {
            let absolute = read(&policy.figures).and_then(Spread::finite);
            Row {
                policy,
                look,
                absolute,
                ratio: relative(absolute, base),
            }
        })
        .collect();
    let panel = Panel {
        left: 140.0,
        top: 34.0,
        width: 300.0,
        height: ROW * rows.len().max(1) as f64,
    };
    let most = rows
        .iter()
        .filter_map(|r| r.ratio)
        .map(|s| s.max)
        .fold(1.0, f64::max);
    let x = Scale::from_zero(Some(most), TICKS, panel.xs());

    let mut marks = vec![axis(&panel, &x, name)];
    for (i, row) in rows.iter().enumerate() {
        marks.push(bar(
            row,
            &x,
            panel.left,
            panel.top + i as f64 * ROW,
            &run.baseline,
        ));
    }
    if let Some(one) = x.at(1.0) {
        marks.insert(
            1,
            line(one, panel.top - 4.0, one, panel.bottom()).class("reference"),
        );
    }
    let title = format!("{name} per second relative to the baseline");
    let drawing = Drawing {
        id: format!("events-{id}"),
        title: &title,
        description: "One bar per policy, as multiples of the baseline's median, with whiskers from the lowest to the \
                      highest round.",
        width: WIDTH,
        height: panel.bottom() + 28.0,
    };
    drawing.svg(marks)
}

fn axis(panel: &Panel, x: &Scale, name: &str) -> Node {
    let mut g = el("g").class("axis");
    for tick in x.ticks(TICKS) {
        let Some(at) = x.at(tick) else { continue };
        let label = el("text")
            .num("x", at)
            .num("y", panel.bottom() + 17.0)
            .attr("text-anchor", "middle");
        g = g
            .child(line(at, panel.top, at, panel.bottom()).class("grid"))
            .child(label.text(format!("{}\u{d7}", short(tick))));
    }
    g.child(
        el("text")
            .class("heading")
            .num("x", 0.0)
            .num("y", 16.0)
            .text(name),
    )
}

/// One policy's share in a chart.
struct Row<'a> {
    policy: &'a PolicySummary,
    look: Look,
    absolute: Option<Spread>,
    ratio: Option<Spread>,
}

fn bar(row: &Row, x: &Scale, zero: f64, top: f64, baseline: &str) -> Node {
    let name = &row.policy.policy;
    let middle = top + ROW / 2.0;
    let text = |class: &str, at: f64| el("text").class(class).num("x", at).num("y", middle + 4.0);
    let g = el("g").class(row.look.class()).child(
        text("name", zero - 10.0)
            .attr("text-anchor", "end")
            .text(clipped(name, 18)),
    );
    let (g, said) = match (row.ratio, row.absolute) {
        (Some(ratio), Some(absolute)) => {
            let at = |value| x.at(value).unwrap_or(zero);
            let (low, end, high) = (at(ratio.min), at(ratio.median), at(ratio.max));
            let mut g = g.child(
                rect(zero, top + 5.0, (end - zero).max(1.0), ROW - 10.0)
                    .attr("rx", "2")
                    .class("bar"),
            );
            if high - low > 2.0 {
                g = g.child(line(low, middle, high, middle).class("whisker"));
                g = g.children(
                    [low, high].map(|at| line(at, middle - 4.0, at, middle + 4.0).class("whisker")),
                );
            }
            let said = format!(
                "{}/s, {} of {baseline}",
                short(absolute.median),
                times(ratio.median)
            );
            (
                g.child(text("value", high.max(end) + 8.0).text(times(ratio.median))),
                said,
            )
        }
        (None, Some(absolute)) => {
            let said = format!("{}/s, no baseline", short(absolute.median));
            (
                g.child(text("missing", zero + 6.0).text(said.clone())),
                said,
            )
        }
        _ => (
            g.child(text("missing", zero + 6.0).text("not measured")),
            "not measured".to_owned(),
        ),
    };
    g.child(hit(0.0, top, WIDTH, ROW, format!("{name}: {said}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_ratios_are_not_rounded_to_nothing() {
        assert_eq!(
            [0.0, 0.0002, 0.004, 0.05, 0.25, 1.0, 3.456].map(times),
            [
                "0\u{d7}",
                "<0.001\u{d7}",
                "0.004\u{d7}",
                "0.05\u{d7}",
                "0.25\u{d7}",
                "1.00\u{d7}",
                "3.46\u{d7}"
            ]
        );
    }

    #[test]
    fn without_a_baseline_nothing_is_relative() {
        let one = Some(Spread {
            median: 1.0,
            min: 1.0,
            max: 1.0,
        });
        let zero = Some(Spread {
            median: 0.0,
            min: 0.0,
            max: 0.0,
        });
        assert_eq!(relative(one, None), None);
        assert_eq!(relative(one, zero), None);
        assert_eq!(relative(one, one), one);
    }
}
