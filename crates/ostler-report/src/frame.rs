//! Axes, panels and figures: what all charts have in common.

use crate::node::{Node, Path, coordinate, el};
use crate::scale::Scale;

/// The least from one label of a horizontal axis to the next, so that they can be told apart.
const LABEL: f64 = 40.0;

/// Where a panel lies within its drawing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Panel {
    /// Left edge.
    pub left: f64,
    /// Upper edge.
    pub top: f64,
    /// Width.
    pub width: f64,
    /// Height.
    pub height: f64,
}

impl Panel {
    /// Right edge.
    pub fn right(&self) -> f64 {
        self.left + self.width
    }

    /// Lower edge.
    pub fn bottom(&self) -> f64 {
        self.top + self.height
    }

    /// From left to right.
    pub fn xs(&self) -> (f64, f64) {
        (self.left, self.right())
    }

    /// From bottom to top.
    pub fn ys(&self) -> (f64, f64) {
        (self.bottom(), self.top)
    }

    /// Horizontal grid lines with their labels to the left, and a heading above.
    pub fn y_axis(
        &self,
        scale: &Scale,
        count: usize,
        heading: &str,
        label: fn(f64) -> String,
    ) -> Node {
        let mut g = el("g").class("axis");
        for tick in scale.ticks(count) {
            let Some(y) = scale.at(tick) else { continue };
            g = g
                .child(line(self.left, y, self.right(), y).class("grid"))
                .child(
                    el("text")
                        .num("x", self.left - 8.0)
                        .num("y", y + 4.0)
                        .attr("text-anchor", "end")
                        .text(label(tick)),
                );
        }
        g.child(
            el("text")
                .class("heading")
                .num("x", self.left)
                .num("y", self.top - 8.0)
                .text(heading),
        )
    }

    /// The lower edge with ticks and labels under it.
    pub fn x_axis(
        &self,
        scale: &Scale,
        count: usize,
        caption: &str,
        label: fn(f64) -> String,
    ) -> Node {
        let mut g = el("g").class("axis");
        g = g.child(line(self.left, self.bottom(), self.right(), self.bottom()).class("edge"));
        let mut labelled = f64::NEG_INFINITY;
        for tick in scale.ticks(count) {
            let Some(x) = scale.at(tick) else { continue };
            g = g.child(line(x, self.bottom(), x, self.bottom() + 5.0).class("edge"));
            // A tick of a log scale may be too near the one before it.
            if x - labelled < LABEL {
                continue;
            }
            labelled = x;
            g = g.child(
                el("text")
                    .num("x", x)
                    .num("y", self.bottom() + 19.0)
                    .attr("text-anchor", "middle")
                    .text(label(tick)),
            );
        }
        let middle = self.left + self.width / 2.0;
        g.child(
            el("text")
                .class("caption")
                .num("x", middle)
                .num("y", self.bottom() + 37.0)
                .attr("text-anchor", "middle")
                .text(caption),
        )
    }
}

/// A straight line.
pub fn line(x1: f64, y1: f64, x2: f64, y2: f64) -> Node {
    el("line")
        .num("x1", x1)
        .num("y1", y1)
        .num("x2", x2)
        .num("y2", y2)
}

/// A rectangle; a negative extent is drawn as none.
pub fn rect(x: f64, y: f64, width: f64, height: f64) -> Node {
    el("rect")
        .num("x", x)
        .num("y", y)
        .num("width", width.max(0.0))
        .num("height", height.max(0.0))
}

/// A line through points, broken where there is none.
pub fn broken_line(points: impl IntoIterator<Item = Option<(f64, f64)>>) -> Path {
    let mut path = Path::default();
    let mut pen_down = false;
    for point in points {
        match point {
            Some((x, y)) if pen_down => path.line_to(x, y),
            Some((x, y)) => path.move_to(x, y),
            None => {}
        }
        pen_down = point.is_some();
    }
    path
}

/// A drawing with its title and description for those who can't see it.
#[derive(Debug)]
pub struct Drawing<'a> {
    /// Unique in the page; made by us, not by guests.
    pub id: String,
    /// What it shows.
    pub title: &'a str,
    /// How to read it.
    pub description: &'a str,
    /// In its own units.
    pub width: f64,
    /// In its own units.
    pub height: f64,
}

impl Drawing<'_> {
    /// The `svg` element with its contents.
    pub fn svg(&self, contents: impl IntoIterator<Item = Node>) -> Node {
        let (title_id, desc_id) = (format!("{}-t", self.id), format!("{}-d", self.id));
        el("svg")
            .attr("id", self.id.clone())
            .attr(
                "viewBox",
                format!("0 0 {} {}", coordinate(self.width), coordinate(self.height)),
            )
            .attr("role", "img")
            .attr("aria-labelledby", format!("{title_id} {desc_id}"))
            .child(el("title").attr("id", title_id).text(self.title))
            .child(el("desc").attr("id", desc_id).text(self.description))
            .children(contents)
    }
}

/// A rectangle that answers to the pointer with text; its title serves where there is no script.
pub fn hit(x: f64, y: f64, width: f64, height: f64, tip: String) -> Node {
    rect(x, y, width, height)
        .class("hit")
        .child(el("title").text(tip))
}

/// A table behind a fold.
pub fn folded_table(
    summary: String,
    head: &[&str],
    rows: impl IntoIterator<Item = Vec<String>>,
) -> Node {
    let head = head.iter().map(|h| el("th").attr("scope", "col").text(*h));
    let rows = rows
        .into_iter()
        .map(|row| el("tr").children(row.into_iter().map(|cell| el("td").text(cell))));
    el("details")
        .class("data")
        .child(el("summary").text(summary))
        .child(
            el("div").class("scroll").child(
                el("table")
                    .child(el("thead").child(el("tr").children(head)))
                    .child(el("tbody").children(rows)),
            ),
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_points_break_the_line_and_are_not_zero() {
        let points = [
            Some((0.0, 1.0)),
            Some((1.0, 2.0)),
            None,
            Some((3.0, 4.0)),
            Some((4.0, 5.0)),
        ];
        let mut out = String::new();
        broken_line(points).node().write(&mut out);
        insta::assert_snapshot!(out, @r#"<path d="M0 1L1 2M3 4L4 5"></path>"#);
    }

    #[test]
    fn an_axis_is_drawn_with_round_ticks() {
        let panel = Panel {
            left: 50.0,
            top: 20.0,
            width: 100.0,
            height: 40.0,
        };
        let scale = Scale::from_zero(Some(4.0), 2, panel.ys());
        let mut out = String::new();
        panel
            .y_axis(&scale, 2, "Cores", crate::say::short)
            .write(&mut out);
        insta::assert_snapshot!(out.replace("><", ">\n<"));
    }
}
