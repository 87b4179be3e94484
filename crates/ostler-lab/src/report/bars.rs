//! One figure of all policies beside each other, as it is or relative to one of them; and, of such charts, system events relative to the baseline
//! (seed figures 9 and 10): context switches, migrations, interrupts, exits.

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

/// What a chart's bars are multiples of.
#[derive(Clone, Copy)]
pub enum Unit<'a> {
    /// A policy's median, if it has one.
    Times {
        /// That policy.
        of: Option<&'a PolicySummary>,
        /// Its name.
        name: &'a str,
    },
    /// Nothing.
    Own {
        /// Where to draw a line to compare with.
        reference: Option<f64>,
    },
}

/// A figure of all policies beside each other.
pub struct Chart<'a> {
    /// Unique in the page.
    pub id: String,
    /// What stands above it.
    pub name: &'a str,
    /// What it shows, for those who can't see it.
    pub title: String,
    /// What stands beside a policy's bar.
    pub label: fn(&PolicySummary) -> String,
    /// How a figure is said, with its unit.
    pub say: fn(f64) -> String,
    /// Where to find it.
    pub read: fn(&Figures) -> Option<Spread>,
    /// What bars are multiples of.
    pub unit: Unit<'a>,
}

/// The four figures.
pub fn figure(run: &RunSummary) -> Node {
    let baseline = run.policies.iter().find(|p| p.policy == run.baseline);
    let charts = EVENTS.iter().map(|&(id, name, read)| {
        let chart = Chart {
            id: format!("events-{id}"),
            name,
            title: format!("{name} per second relative to the baseline"),
            label: |policy| clipped(&policy.policy, 18),
            say: |count| format!("{}/s", short(count)),
            read,
            unit: Unit::Times {
                of: baseline,
                name: &run.baseline,
            },
        };
        chart.svg(run)
    });
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

impl Chart<'_> {
    /// The drawing.
    pub fn svg(&self, run: &RunSummary) -> Node {
        let rows: Vec<Row> = run
            .policies
            .iter()
            .zip(looks(&run.policies))
            .map(|(policy, look)| self.row(policy, look))
            .collect();
        let panel = Panel {
            left: 140.0,
            top: 34.0,
            width: 300.0,
            height: ROW * rows.len().max(1) as f64,
        };
        let (reference, description) = match self.unit {
            Unit::Times { .. } => (
                Some(1.0),
                "One bar per policy, as multiples of the baseline's median, with whiskers from the lowest to the \
                 highest round.",
            ),
            Unit::Own { reference } => (
                reference,
                "One bar per policy, with whiskers from the lowest to the highest round.",
            ),
        };
        let most = rows
            .iter()
            .filter_map(|r| r.bar)
            .map(|s| s.max)
            .fold(reference.unwrap_or(0.0), f64::max);
        let x = Scale::from_zero(Some(most), TICKS, panel.xs());

        let mut marks = vec![self.axis(&panel, &x)];
        for (i, row) in rows.iter().enumerate() {
            marks.push(row.node(&x, panel.left, panel.top + i as f64 * ROW));
        }
        if let Some(at) = reference.and_then(|reference| x.at(reference)) {
            marks.insert(
                1,
                line(at, panel.top - 4.0, at, panel.bottom()).class("reference"),
            );
        }
        let drawing = Drawing {
            id: self.id.clone(),
            title: &self.title,
            description,
            width: WIDTH,
            height: panel.bottom() + 28.0,
        };
        drawing.svg(marks)
    }

    fn row<'p>(&self, policy: &'p PolicySummary, look: Look) -> Row<'p> {
        let absolute = (self.read)(&policy.figures).and_then(Spread::finite);
        let said = absolute.map(|absolute| (self.say)(absolute.median));
        let (bar, value, said) = match (self.unit, absolute, said) {
            (Unit::Times { of, name }, _, Some(said)) => {
                let base = of.and_then(|of| (self.read)(&of.figures));
                if let Some(ratio) = relative(absolute, base) {
                    let times = times(ratio.median);
                    let said = format!("{said}, {times} of {name}");
                    (Some(ratio), times, said)
                } else {
                    let said = format!("{said}, no baseline");
                    (None, said.clone(), said)
                }
            }
            (Unit::Own { .. }, _, Some(said)) => (absolute, said.clone(), said),
            _ => {
                let missing = "not measured".to_owned();
                (None, missing.clone(), missing)
            }
        };
        Row {
            name: &policy.policy,
            label: (self.label)(policy),
            look,
            bar,
            value,
            said,
        }
    }

    fn axis(&self, panel: &Panel, x: &Scale) -> Node {
        let mut g = el("g").class("axis");
        for tick in x.ticks(TICKS) {
            let Some(at) = x.at(tick) else { continue };
            let label = el("text")
                .num("x", at)
                .num("y", panel.bottom() + 17.0)
                .attr("text-anchor", "middle");
            let said = match self.unit {
                Unit::Times { .. } => format!("{}\u{d7}", short(tick)),
                Unit::Own { .. } => (self.say)(tick),
            };
            g = g
                .child(line(at, panel.top, at, panel.bottom()).class("grid"))
                .child(label.text(said));
        }
        g.child(
            el("text")
                .class("heading")
                .num("x", 0.0)
                .num("y", 16.0)
                .text(self.name),
        )
    }
}

/// One policy's part of a chart.
struct Row<'a> {
    name: &'a str,
    label: String,
    look: Look,
    /// None: there is nothing to draw.
    bar: Option<Spread>,
    /// What stands at the bar's end, or instead of it.
    value: String,
    /// What the pointer shows.
    said: String,
}

impl Row<'_> {
    fn node(&self, x: &Scale, zero: f64, top: f64) -> Node {
        let middle = top + ROW / 2.0;
        let text =
            |class: &str, at: f64| el("text").class(class).num("x", at).num("y", middle + 4.0);
        let mut g = el("g").class(self.look.class()).child(
            text("name", zero - 10.0)
                .attr("text-anchor", "end")
                .text(self.label.clone()),
        );
        if let Some(bar) = self.bar {
            let at = |value| x.at(value).unwrap_or(zero);
            let (low, end, high) = (at(bar.min), at(bar.median), at(bar.max));
            g = g.child(
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
            g = g.child(text("value", high.max(end) + 8.0).text(self.value.clone()));
        } else {
            g = g.child(text("missing", zero + 6.0).text(self.value.clone()));
        }
        let said = format!("{}: {}", self.name, self.said);
        g.child(hit(0.0, top, WIDTH, ROW, said))
    }
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
