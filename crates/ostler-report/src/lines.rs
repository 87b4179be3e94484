//! Curves of several policies in one plot: a figure against something that was varied, medians as points, whiskers from the lowest to the highest
//! round, and the objective where there is one.

use crate::frame::{Drawing, Panel, broken_line, hit, line, rect};
use crate::look::Look;
use crate::node::{Node, el};
use crate::say::clipped;
use crate::scale::{Scale, extent};
use crate::spread::Spread;

const WIDTH: f64 = 1040.0;
const TICKS_ACROSS: usize = 10;
const TICKS_UP: usize = 6;
/// A policy's line in a legend.
pub const LEGEND_ROW: f64 = 24.0;

/// One direction of a plot.
#[derive(Debug, Clone, Copy)]
pub struct Axis<'a> {
    /// What it shows, with its unit.
    pub caption: &'a str,
    /// How a value is said at a tick.
    pub say: fn(f64) -> String,
    /// Equal distances are equal factors; else equal differences, from zero on.
    pub log: bool,
}

impl Axis<'_> {
    fn scale(&self, values: impl Iterator<Item = f64>, ticks: usize, range: (f64, f64)) -> Scale {
        if self.log {
            Scale::log(values, range)
        } else {
            Scale::from_zero(extent(values).map(|e| e.1), ticks, range)
        }
    }
}

/// A policy's curve.
#[derive(Debug, Clone)]
pub struct Series<'a> {
    /// The policy.
    pub name: &'a str,
    /// How it is drawn.
    pub look: Look,
    /// Where it was measured, by rising place, and what was; a point that wasn't breaks the line.
    pub points: Vec<(f64, Option<Spread>)>,
}

impl Series<'_> {
    fn measured(&self) -> impl Iterator<Item = (f64, Spread)> + '_ {
        self.points
            .iter()
            .filter_map(|(at, spread)| Some((*at, spread.and_then(Spread::finite)?)))
    }
}

/// A line that shouldn't be crossed.
#[derive(Debug, Clone)]
pub struct Objective {
    /// Where.
    pub at: f64,
    /// What it is called.
    pub label: String,
}

/// Curves of several policies.
#[derive(Debug)]
pub struct Chart<'a> {
    /// Unique in the page.
    pub id: String,
    /// What it shows.
    pub title: &'a str,
    /// How to read it, for those who can't see it.
    pub description: &'a str,
    /// From left to right.
    pub x: Axis<'a>,
    /// From bottom to top.
    pub y: Axis<'a>,
    /// What a curve should stay below.
    pub objective: Option<Objective>,
    /// What the pointer shows at a point.
    pub tip: fn(&Series<'_>, f64, Spread) -> String,
}

impl Chart<'_> {
    /// The drawing.
    pub fn svg(&self, series: &[Series<'_>]) -> Node {
        let legend_height = 60.0 + series.len() as f64 * LEGEND_ROW;
        let panel = Panel {
            left: 70.0,
            top: 34.0,
            width: 740.0,
            height: legend_height.max(360.0),
        };
        let across = series.iter().flat_map(|s| &s.points).map(|(at, _)| *at);
        let x = self.x.scale(across, TICKS_ACROSS, panel.xs());
        let up = series
            .iter()
            .flat_map(Series::measured)
            .flat_map(|(_, s)| [s.min, s.median, s.max]);
        let up = up.chain(self.objective.as_ref().map(|objective| objective.at));
        let y = self.y.scale(up, TICKS_UP, panel.ys());

        let mut marks = vec![
            panel.y_axis(&y, TICKS_UP, self.y.caption, self.y.say),
            panel.x_axis(&x, TICKS_ACROSS, self.x.caption, self.x.say),
        ];
        if let Some(objective) = &self.objective
            && let Some(at) = y.at(objective.at)
        {
            marks.push(rect(panel.left, panel.top, panel.width, at - panel.top).class("over"));
            marks.push(line(panel.left, at, panel.right(), at).class("slo"));
            marks.push(
                el("text")
                    .class("slo-label")
                    .num("x", panel.left + 6.0)
                    .num("y", at - 6.0)
                    .text(objective.label.clone()),
            );
        }
        // Baselines first, so that ours lie on top.
        let mut order: Vec<&Series<'_>> = series.iter().collect();
        order.sort_by_key(|series| series.look.is_ours());
        marks.extend(order.into_iter().map(|series| self.curve(series, &x, &y)));
        marks.push(legend(
            series.iter().map(|series| (series.name, series.look)),
            panel.right() + 30.0,
            panel.top,
        ));
        let drawing = Drawing {
            id: self.id.clone(),
            title: self.title,
            description: self.description,
            width: WIDTH,
            height: panel.bottom() + 48.0,
        };
        drawing.svg(marks)
    }

    fn curve(&self, series: &Series<'_>, x: &Scale, y: &Scale) -> Node {
        let place = |at: f64, value: f64| Some((x.at(at)?, y.at(value)?));
        let points = series
            .points
            .iter()
            .map(|(at, spread)| place(*at, spread.and_then(Spread::finite)?.median));
        let mut g = el("g")
            .class(series.look.class())
            .child(broken_line(points).node().class("line"));
        for (at, spread) in series.measured() {
            let Some((px, py)) = place(at, spread.median) else {
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
            let tip = (self.tip)(series, at, spread);
            g = g
                .child(series.look.mark(px, py))
                .child(hit(px - 9.0, py - 9.0, 18.0, 18.0, tip));
        }
        g
    }
}

/// The policies of a plot, below each other.
pub fn legend<'a>(policies: impl Iterator<Item = (&'a str, Look)>, left: f64, top: f64) -> Node {
    let mut g = el("g").class("legend");
    for (i, (name, look)) in policies.enumerate() {
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
                        .text(clipped(name, 20)),
                ),
        );
    }
    g
}
