//! The table of all policies and figures, best and worst marked.

use super::curves::clipped;
use super::node::{Node, el};
use super::scale::{micros, percent, short};
use super::summary::{Family, Figures, PolicySummary, RunSummary, Spread};

/// Which way is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Better {
    More,
    Less,
}

struct Column {
    /// The field of the result line, shown on hover so that people find it in the JSON.
    field: &'static str,
    head: &'static str,
    better: Better,
    say: fn(f64) -> String,
    read: fn(&Figures) -> Option<Spread>,
}

const COLUMNS: [Column; 11] = [
    Column {
        field: "max_rate_under_slo",
        head: "highest load within SLO, /s",
        better: Better::More,
        say: short,
        read: |f| f.max_rate_under_slo,
    },
    Column {
        field: "slo_met_share",
        head: "time within SLO",
        better: Better::More,
        say: percent,
        read: |f| f.slo_met_share,
    },
    Column {
        field: "core_seconds",
        head: "core-seconds",
        better: Better::Less,
        say: short,
        read: |f| f.core_seconds,
    },
    Column {
        field: "p50_us",
        head: "P50",
        better: Better::Less,
        say: micros,
        read: |f| f.p50_us,
    },
    Column {
        field: "p95_us",
        head: "P95",
        better: Better::Less,
        say: micros,
        read: |f| f.p95_us,
    },
    Column {
        field: "p99_us",
        head: "P99",
        better: Better::Less,
        say: micros,
        read: |f| f.p99_us,
    },
    Column {
        field: "ctx_switches_per_s",
        head: "context switches, /s",
        better: Better::Less,
        say: short,
        read: |f| f.ctx_switches_per_s,
    },
    Column {
        field: "migrations_per_s",
        head: "migra\u{ad}tions, /s",
        better: Better::Less,
        say: short,
        read: |f| f.migrations_per_s,
    },
    Column {
        field: "irqs_per_s",
        head: "IRQs, /s",
        better: Better::Less,
        say: short,
        read: |f| f.irqs_per_s,
    },
    Column {
        field: "kvm_exits_per_s",
        head: "KVM exits, /s",
        better: Better::Less,
        say: short,
        read: |f| f.kvm_exits_per_s,
    },
    Column {
        field: "be_core_seconds",
        head: "BE core-seconds",
        better: Better::More,
        say: short,
        read: |f| f.be_core_seconds,
    },
];

/// The best and the worst of a column, each unless most policies share it: what everybody has distinguishes nobody.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Ends {
    best: Option<f64>,
    worst: Option<f64>,
}

fn ends(column: &Column, policies: &[PolicySummary]) -> Ends {
    let medians: Vec<f64> = policies
        .iter()
        .filter_map(|p| (column.read)(&p.figures).and_then(Spread::finite))
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

/// The table.
pub fn table(run: &RunSummary) -> Node {
    let head = COLUMNS.iter().map(|column| {
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
    let ends: Vec<_> = COLUMNS
        .iter()
        .map(|column| ends(column, &run.policies))
        .collect();
    let rows = run.policies.iter().map(|policy| {
        let class = if policy.family == Family::Ostler {
            "ours"
        } else {
            "base"
        };
        let cells = COLUMNS
            .iter()
            .zip(&ends)
            .map(|(column, ends)| cell(column, *ends, policy));
        let shown = el("span")
            .class("name")
            .attr("title", policy.policy.clone())
            .text(clipped(&policy.policy, 28));
        let mut name = el("th").attr("scope", "row").child(shown);
        if policy.policy == run.baseline {
            name = name.child(el("span").class("tag").text("baseline"));
        }
        el("tr")
            .class(class)
            .child(name.child(el("small").text(policy.about.clone())))
            .children(cells)
    });
    let note = if run.rounds > 1 {
        format!(
            "Medians of {} interleaved rounds, with the lowest and highest round under them. ",
            run.rounds
        )
    } else {
        "One round: there is no spread to show. ".to_owned()
    };
    el("figure")
        .class("summary")
        .child(
            el("div").class("scroll").child(
                el("table")
                    .attr("id", "summary-table")
                    .child(
                        el("thead").child(
                            el("tr")
                                .child(el("th").attr("scope", "col").text("policy"))
                                .children(head),
                        ),
                    )
                    .child(el("tbody").children(rows)),
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

fn cell(column: &Column, ends: Ends, policy: &PolicySummary) -> Node {
    let Some(spread) = (column.read)(&policy.figures).and_then(Spread::finite) else {
        return el("td")
            .class("missing")
            .attr("aria-label", "not measured")
            .text("\u{2013}");
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

    fn policy(name: &str, p95: Option<f64>) -> PolicySummary {
        let figures = Figures {
            p95_us: Spread::of([p95]),
            ..Figures::default()
        };
        PolicySummary {
            policy: name.to_owned(),
            about: String::new(),
            family: Family::Ostler,
            figures,
            curve: Vec::new(),
            timeline: None,
            machine: None,
            sharing: None,
        }
    }

    fn p95_cell(policies: &[PolicySummary], index: usize) -> String {
        let column = COLUMNS.iter().find(|c| c.field == "p95_us").unwrap();
        let mut out = String::new();
        cell(column, ends(column, policies), &policies[index]).write(&mut out);
        out
    }

    #[test]
    fn best_worst_and_missing_are_marked() {
        let policies = [
            policy("a", Some(900.0)),
            policy("b", Some(1_500.0)),
            policy("c", None),
            policy("d", Some(1_000.0)),
        ];
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
        let policies = [policy("a", Some(5.0)), policy("b", Some(5.0))];
        assert!(!p95_cell(&policies, 0).contains('\u{2605}'));
    }

    #[test]
    fn columns_are_the_fields_of_the_result_line() {
        let line = serde_json::to_value(Figures::default().line("x")).unwrap();
        let mut fields: Vec<&str> = line
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .filter(|f| *f != "policy")
            .collect();
        let here = COLUMNS.iter().map(|c| c.field);
        let elsewhere = super::super::sharing::COLUMNS.iter().map(|c| c.0);
        let mut columns: Vec<&str> = here.chain(elsewhere).collect();
        fields.sort_unstable();
        columns.sort_unstable();
        columns.dedup();
        assert_eq!(fields, columns);
    }
}
