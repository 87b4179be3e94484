//! What the benches said, as a page: each case beside its baseline.
//!
//! A case is a point on a scale of ratios, ours to the baseline's, with 1 in its middle: equal steps to either side are equal
//! factors, so that half and twice look alike. Which way is better depends on the case, and is not told by colour.

use serde::{Deserialize, Serialize};

use crate::frame::{Drawing, Panel, folded_table, hit, line, rect};
use crate::node::{Node, el};
use crate::say::{MISSING, clipped, percent, short, times};
use crate::{chart as framed, page, section};

/// A case's result, as every bench prints it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BenchLine {
    /// Its folder in `bench/`.
    pub bench: String,
    /// What was measured.
    pub case: String,
    /// Median of our runs.
    pub ours: f64,
    /// Median of the baseline's.
    pub baseline: f64,
    /// Ours by the baseline's; `None` where that is zero.
    pub ratio: Option<f64>,
    /// What a paper has for that ratio, or where it tells none, for ours.
    #[serde(default)]
    pub paper: Option<f64>,
    /// Of both.
    pub unit: String,
    /// Of each side.
    pub runs: u32,
    /// `(max - min) / median` of our runs; `None` where the median is zero.
    pub spread: Option<f64>,
    /// What was measured: a revision.
    pub rev: Option<String>,
}

const ROW: f64 = 24.0;
const WIDTH: f64 = 1100.0;
/// Half of the scale, as a factor, at least.
const FACTOR_MIN: f64 = 2.0;

/// The whole page.
pub fn render_benches(lines: &[BenchLine]) -> String {
    let mut names: Vec<&str> = lines.iter().map(|line| line.bench.as_str()).collect();
    names.dedup();
    let mut revisions: Vec<&str> = lines
        .iter()
        .filter_map(|line| line.rev.as_deref())
        .collect();
    revisions.sort_unstable();
    revisions.dedup();
    let contents = names.iter().map(|name| {
        let link = el("a").attr("href", format!("#bench-{}", id(name)));
        el("li").child(link.text((*name).to_owned()))
    });
    let header = el("header")
        .child(el("p").class("kicker").text("ostler benches"))
        .child(el("h1").text("Each claim beside its baseline"))
        .child(el("p").class("lead").text(format!(
            "Ours to the baseline\u{2019}s, median of interleaved runs of the same work. Revision {}.",
            if revisions.is_empty() { "unknown".to_owned() } else { revisions.join(", ") }
        )))
        .child(
            el("nav")
                .attr("aria-label", "benches")
                .child(el("ul").class("contents").children(contents)),
        );
    let sections = names.iter().map(|name| {
        let mine: Vec<_> = lines.iter().filter(|line| line.bench == *name).collect();
        section(&format!("bench-{}", id(name)), name)
            .child(framed(chart(name, &mine)).child(table(&mine)))
    });
    let footer = el("footer")
        .child(el("h2").text("How to read this"))
        .child(el("p").text(
            "A point is the ratio of the medians, on a scale on which equal distances are equal factors; the dashed line is 1. Costs are better to the \
             left, rates to the right, and where the baseline is what ought to be (a table, another simulator), on the line. The spread is that of our \
             runs, from the least to the most, by their median: what is smaller than it means nothing.",
        ));
    let body = el("body")
        .child(header)
        .child(el("main").children(sections))
        .child(footer);
    page("benches \u{b7} ostler lab".to_owned(), body)
}

/// A name as part of an id.
fn id(name: &str) -> String {
    name.chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect()
}

fn ratio(line: &BenchLine) -> Option<f64> {
    line.ratio.filter(|ratio| ratio.is_finite() && *ratio > 0.0)
}

fn chart(name: &str, lines: &[&BenchLine]) -> Node {
    let panel = Panel {
        left: 330.0,
        top: 12.0,
        width: 420.0,
        height: ROW * lines.len().max(1) as f64,
    };
    let most = lines
        .iter()
        .filter_map(|line| ratio(line))
        .map(|ratio| ratio.max(1.0 / ratio))
        .fold(FACTOR_MIN, f64::max)
        // A little beyond the outermost point; and no point is so far out that the scale has no end.
        .min(1e12)
        .powf(1.08);
    let x = |ratio: f64| {
        let along = ratio.ln() / most.ln();
        panel.left + panel.width * (along.clamp(-1.0, 1.0) + 1.0) / 2.0
    };
    let mut marks = vec![axis(&panel, most, x)];
    for (row, case) in lines.iter().enumerate() {
        let top = panel.top + row as f64 * ROW;
        marks.push(mark(case, x, top));
    }
    let title = format!("{name}: ours to the baseline");
    let drawing = Drawing {
        id: format!("plot-{}", id(name)),
        title: &title,
        description: "One point per case, as a ratio on a logarithmic scale with 1 in the middle.",
        width: WIDTH,
        height: panel.bottom() + 30.0,
    };
    drawing.svg(marks)
}

/// Grid lines at round factors to either side of 1.
fn axis(panel: &Panel, most: f64, x: impl Fn(f64) -> f64) -> Node {
    let step: f64 = if most <= 20.0 { 2.0 } else { 10.0 };
    let factors = (0..)
        .map(|power| step.powi(power))
        .take_while(|f| *f < most);
    let mut ticks: Vec<f64> = factors.flat_map(|f| [f, 1.0 / f]).collect();
    ticks.sort_by(f64::total_cmp);
    ticks.dedup();
    let mut g = el("g").class("axis");
    for tick in ticks {
        let at = x(tick);
        let class = if (tick - 1.0).abs() < 1e-9 {
            "reference"
        } else {
            "grid"
        };
        let label = el("text")
            .num("x", at)
            .num("y", panel.bottom() + 18.0)
            .attr("text-anchor", "middle");
        g = g
            .child(line(at, panel.top, at, panel.bottom()).class(class))
            .child(label.text(format!("{}\u{d7}", short(tick))));
    }
    g
}

fn mark(case: &BenchLine, x: impl Fn(f64) -> f64, top: f64) -> Node {
    let middle = top + ROW / 2.0;
    let text = |class: &str, at: f64| el("text").class(class).num("x", at).num("y", middle + 4.0);
    let said = format!(
        "{} {unit}, baseline {} {unit}",
        short(case.ours),
        short(case.baseline),
        unit = case.unit
    );
    let mut g = el("g").class("b0").child(
        text("name", 320.0)
            .attr("text-anchor", "end")
            .text(clipped(&case.case, 46)),
    );
    let shown = match ratio(case) {
        Some(ratio) => {
            let at = x(ratio);
            g = g
                .child(line(x(1.0), middle, at, middle).class("whisker"))
                .child(
                    rect(at - 4.0, middle - 4.0, 8.0, 8.0)
                        .attr("rx", "4")
                        .class("bar"),
                );
            format!("{} \u{b7} {said}", times(ratio))
        }
        None => said.clone(),
    };
    g.child(text("value", 765.0).text(shown)).child(hit(
        0.0,
        top,
        WIDTH,
        ROW,
        format!("{}: {said}, {}", case.case, trust(case)),
    ))
}

/// How far to trust it.
fn trust(case: &BenchLine) -> String {
    let spread = case.spread.map_or_else(
        || "no spread".to_owned(),
        |s| format!("spread {}", percent(s)),
    );
    format!("{} runs, {spread}", case.runs)
}

fn table(lines: &[&BenchLine]) -> Node {
    let rows = lines.iter().map(|line| {
        vec![
            line.case.clone(),
            short(line.ours),
            short(line.baseline),
            line.unit.clone(),
            line.ratio.map_or_else(|| MISSING.to_owned(), times),
            line.paper.map_or_else(|| MISSING.to_owned(), short),
            line.runs.to_string(),
            line.spread.map_or_else(|| MISSING.to_owned(), percent),
        ]
    });
    let head = [
        "case", "ours", "baseline", "unit", "ratio", "paper", "runs", "spread",
    ];
    folded_table("The same as a table".to_owned(), &head, rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(case: &str, ours: f64, baseline: f64) -> BenchLine {
        BenchLine {
            bench: "agent".to_owned(),
            case: case.to_owned(),
            ours,
            baseline,
            ratio: (baseline != 0.0).then(|| ours / baseline),
            paper: None,
            unit: "us".to_owned(),
            runs: 5,
            spread: Some(0.25),
            rev: Some("abc".to_owned()),
        }
    }

    /// Where each case's point is.
    fn points(page: &str) -> Vec<f64> {
        let bars = page.match_indices("rx=\"4\" class=\"bar\"");
        bars.map(|(at, _)| {
            let from = page[..at].rfind(" x=\"").expect("a place") + 4;
            let to = page[from..].find('"').expect("its end") + from;
            page[from..to].parse().expect("a number")
        })
        .collect()
    }

    #[test]
    fn half_and_twice_are_equally_far_from_one() {
        let page = render_benches(&[
            case("half", 1.0, 2.0),
            case("same", 3.0, 3.0),
            case("twice", 4.0, 2.0),
            case("of nothing", 4.0, 0.0),
        ]);
        let [half, same, twice] = points(&page)[..] else {
            panic!("three have a ratio")
        };
        assert!(
            (half + twice - 2.0 * same).abs() < 0.02,
            "{half} {same} {twice}"
        );
        assert!(half < same);
        assert!(
            page.contains("4 us, baseline 0 us"),
            "it is told without a point"
        );
        assert!(page.contains("spread 25 %"));
    }

    #[test]
    fn names_are_text_and_wild_figures_stay_on_the_page() {
        let mut wild = vec![
            case("<script>alert(1)</script>", 1e300, 1e-300),
            case("b", f64::MIN_POSITIVE, 1.0),
            case("c", -1.0, 1.0),
        ];
        wild[1].bench = "other \"bench\"".to_owned();
        let page = render_benches(&wild);
        assert!(!page.contains("<script>alert"));
        assert!(!page.contains("NaN") && !page.contains("inf"));
        for point in points(&page) {
            assert!((320.0..=760.0).contains(&point), "{point}");
        }
        crate::testing::well_formed(&page).expect("well-formed");
    }
}
