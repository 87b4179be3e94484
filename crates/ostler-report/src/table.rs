//! A table of policies and their figures, best and worst of each column marked.

use crate::look::Family;
use crate::node::{Node, el};
use crate::say::{MISSING, clipped};
use crate::spread::Spread;

/// Which way is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    /// The more the better.
    More,
    /// The less the better.
    Less,
}

/// A column: a figure of each policy.
#[derive(Debug)]
pub struct Column<F> {
    /// The field of the result line, shown on hover so that people find it in the JSON.
    pub field: &'static str,
    /// What is above it.
    pub head: &'static str,
    /// Which way is better.
    pub better: Better,
    /// How a figure is said, with its unit.
    pub say: fn(f64) -> String,
    /// Where to find it.
    pub read: fn(&F) -> Option<Spread>,
}

/// A row: a policy.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a, F> {
    /// Its name.
    pub name: &'a str,
    /// What it does, in a few words.
    pub about: &'a str,
    /// Ours or not.
    pub family: Family,
    /// Whether others are compared with it.
    pub baseline: bool,
    /// Its figures.
    pub figures: &'a F,
}

/// The best and the worst of a column, each unless most policies share it: what everybody has distinguishes nobody.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Ends {
    best: Option<f64>,
    worst: Option<f64>,
}

fn ends<F>(column: &Column<F>, rows: &[Row<'_, F>]) -> Ends {
    let medians: Vec<f64> = rows
        .iter()
        .filter_map(|row| (column.read)(row.figures).and_then(Spread::finite))
        .map(|s| s.median)
        .collect();
    let least = medians.iter().copied().reduce(f64::min);
    let most = medians.iter().copied().reduce(f64::max);
    let told_apart =
        |end: &f64| medians.iter().filter(|m| same(**m, *end)).count() * 2 <= medians.len();
    let (best, worst) = match column.better {
        Better::More => (most, least),
        Better::Less => (least, most),
    };
    Ends {
        best: best.filter(told_apart),
        worst: worst.filter(told_apart),
    }
}

fn same(a: f64, b: f64) -> bool {
    (a - b).abs() <= a.abs().max(b.abs()) * 1e-9
}

/// The table, with a note under it; `rounds` are those that its medians are of.
pub fn table<F>(id: &'static str, columns: &[Column<F>], rows: &[Row<'_, F>], rounds: u32) -> Node {
    let head = columns.iter().map(|column| {
        let (arrow, words) = match column.better {
            Better::More => ("\u{2191}", "more is better"),
            Better::Less => ("\u{2193}", "less is better"),
        };
        el("th")
            .attr("scope", "col")
            .attr("title", format!("{}: {words}", column.field))
            .text(format!("{} ", column.head))
            .child(
                el("span")
                    .class("arrow")
                    .attr("aria-label", words)
                    .text(arrow),
            )
    });
    let ends: Vec<_> = columns.iter().map(|column| ends(column, rows)).collect();
    let body = rows.iter().map(|row| {
        let class = match row.family {
            Family::Ostler => "ours",
            Family::Baseline => "base",
        };
        let cells = columns
            .iter()
            .zip(&ends)
            .map(|(column, ends)| cell(column, *ends, row));
        let shown = el("span")
            .class("name")
            .attr("title", row.name)
            .text(clipped(row.name, 28));
        let mut name = el("th").attr("scope", "row").child(shown);
        if row.baseline {
            name = name.child(el("span").class("tag").text("baseline"));
        }
        el("tr")
            .class(class)
            .child(name.child(el("small").text(row.about)))
            .children(cells)
    });
    let note = if rounds > 1 {
        format!(
            "Medians of {rounds} interleaved rounds, with the lowest and highest round under them. "
        )
    } else {
        "One round: there is no spread to show. ".to_owned()
    };
    el("figure")
        .class("summary")
        .child(
            el("div").class("scroll").child(
                el("table")
                    .attr("id", id)
                    .child(
                        el("thead").child(
                            el("tr")
                                .child(el("th").attr("scope", "col").text("policy"))
                                .children(head),
                        ),
                    )
                    .child(el("tbody").children(body)),
            ),
        )
        .child(
            el("figcaption")
                .text(note)
                .child(el("span").class("best").text("\u{2605} best"))
                .text(" and ")
                .child(el("span").class("worst").text("\u{25bd} worst"))
                .text(" of each column; arrows tell which way is better. A dash was not measured."),
        )
}

/// A cell of what was not measured.
pub fn missing() -> Node {
    el("td")
        .class("missing")
        .attr("aria-label", "not measured")
        .text(MISSING)
}

fn cell<F>(column: &Column<F>, ends: Ends, row: &Row<'_, F>) -> Node {
    let Some(spread) = (column.read)(row.figures).and_then(Spread::finite) else {
        return missing();
    };
    let is = |end: Option<f64>| end.is_some_and(|e| same(e, spread.median));
    let (class, mark, words) = if is(ends.best) {
        ("best", "\u{2605} ", "best")
    } else if is(ends.worst) {
        ("worst", "\u{25bd} ", "worst")
    } else {
        ("", "", "")
    };
    let mut cell = el("td").class(class);
    if !mark.is_empty() {
        cell = cell.child(el("span").class("end").attr("aria-label", words).text(mark));
    }
    cell = cell.text((column.say)(spread.median));
    if (spread.max - spread.min).abs() > spread.median.abs() * 1e-9 {
        let range = range(&(column.say)(spread.min), &(column.say)(spread.max));
        cell = cell.child(el("small").text(range));
    }
    cell
}

/// "204 us" and "212 us" as "204-212 us": the unit is said once where it is the same.
fn range(low: &str, high: &str) -> String {
    let unit = |text: &str| text.split_once(' ').map(|(_, unit)| unit.to_owned());
    let low = match (unit(low), unit(high)) {
        (Some(a), Some(b)) if a == b => low.split(' ').next().unwrap_or(low),
        _ => low,
    };
    format!("{low}\u{2013}{high}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::say::micros;

    const P95: Column<Option<f64>> = Column {
        field: "p95_us",
        head: "P95",
        better: Better::Less,
        say: micros,
        read: |p95| Spread::of([*p95]),
    };

    fn p95_cell(p95s: &[Option<f64>], index: usize) -> String {
        let rows: Vec<_> = p95s
            .iter()
            .map(|figures| Row {
                name: "a",
                about: "",
                family: Family::Ostler,
                baseline: false,
                figures,
            })
            .collect();
        let mut out = String::new();
        cell(&P95, ends(&P95, &rows), &rows[index]).write(&mut out);
        out
    }

    #[test]
    fn best_worst_and_missing_are_marked() {
        let policies = [Some(900.0), Some(1_500.0), None, Some(1_000.0)];
        insta::assert_snapshot!(p95_cell(&policies, 0), @"<td class=\"best\"><span class=\"end\" aria-label=\"best\">★ </span>900 µs</td>");
        insta::assert_snapshot!(p95_cell(&policies, 1), @"<td class=\"worst\"><span class=\"end\" aria-label=\"worst\">▽ </span>1.5 ms</td>");
        insta::assert_snapshot!(p95_cell(&policies, 2), @"<td class=\"missing\" aria-label=\"not measured\">–</td>");
        insta::assert_snapshot!(p95_cell(&policies, 3), @"<td class=\"\">1 ms</td>");
    }

    #[test]
    fn ranges_say_a_common_unit_once() {
        assert_eq!(range("204 ms", "212 ms"), "204\u{2013}212 ms");
        assert_eq!(range("900 \u{b5}s", "1.1 ms"), "900 \u{b5}s\u{2013}1.1 ms");
        assert_eq!(range("3", "4"), "3\u{2013}4");
    }

    #[test]
    fn equals_are_not_told_apart() {
        let policies = [Some(5.0), Some(5.0)];
        assert!(!p95_cell(&policies, 0).contains('\u{2605}'));
    }
}
