//! One figure of all policies beside each other, as it is or relative to one of them: a bar each, with whiskers from the lowest to the highest round.

use crate::frame::{Drawing, Panel, hit, line, rect};
use crate::look::Look;
use crate::node::{Node, el};
use crate::say::{short, times};
use crate::scale::Scale;
use crate::spread::Spread;

const ROW: f64 = 26.0;
const WIDTH: f64 = 520.0;
const TICKS: usize = 6;

/// A figure as multiples of the baseline's median.
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

/// What a chart's bars are multiples of.
#[derive(Debug, Clone, Copy)]
pub enum Unit<'a> {
    /// A policy's median, if it has one.
    Times {
        /// That policy's figure.
        of: Option<Spread>,
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
#[derive(Debug)]
pub struct Chart<'a> {
    /// Unique in the page.
    pub id: String,
    /// What stands above it.
    pub name: &'a str,
    /// What it shows, for those who can't see it.
    pub title: String,
    /// How a figure is said, with its unit.
    pub say: fn(f64) -> String,
    /// What bars are multiples of.
    pub unit: Unit<'a>,
}

/// One policy's part of a chart.
#[derive(Debug, Clone)]
pub struct Bar<'a> {
    /// The policy.
    pub name: &'a str,
    /// What stands beside its bar.
    pub label: String,
    /// How it is drawn.
    pub look: Look,
    /// Its figure.
    pub figure: Option<Spread>,
}

impl Chart<'_> {
    /// The drawing.
    pub fn svg(&self, bars: &[Bar<'_>]) -> Node {
        let rows: Vec<Row<'_>> = bars.iter().map(|bar| self.row(bar)).collect();
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
            .filter_map(|r| r.length)
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

    fn row<'b>(&self, bar: &'b Bar<'b>) -> Row<'b> {
        let absolute = bar.figure.and_then(Spread::finite);
        let said = absolute.map(|absolute| (self.say)(absolute.median));
        let (length, value, said) = match (self.unit, said) {
            (Unit::Times { of, name }, Some(said)) => {
                if let Some(ratio) = relative(absolute, of) {
                    let times = times(ratio.median);
                    let said = format!("{said}, {times} of {name}");
                    (Some(ratio), times, said)
                } else {
                    let said = format!("{said}, no baseline");
                    (None, said.clone(), said)
                }
            }
            (Unit::Own { .. }, Some(said)) => (absolute, said.clone(), said),
            _ => {
                let missing = "not measured".to_owned();
                (None, missing.clone(), missing)
            }
        };
        Row {
            bar,
            length,
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

/// A bar, and what is said of it.
struct Row<'a> {
    bar: &'a Bar<'a>,
    /// None: there is nothing to draw.
    length: Option<Spread>,
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
        let mut g = el("g").class(self.bar.look.class()).child(
            text("name", zero - 10.0)
                .attr("text-anchor", "end")
                .text(self.bar.label.clone()),
        );
        if let Some(length) = self.length {
            let at = |value| x.at(value).unwrap_or(zero);
            let (low, end, high) = (at(length.min), at(length.median), at(length.max));
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
        let said = format!("{}: {}", self.bar.name, self.said);
        g.child(hit(0.0, top, WIDTH, ROW, said))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
