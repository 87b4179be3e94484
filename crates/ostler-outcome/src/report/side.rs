//! Two runs on one page: figure by figure, what each policy came to in both, and where they contradict each other.

use ostler_report::say::{micros, percent, short, times};
use ostler_report::{Node, el, page, section};

use crate::compare::{Compared, FIGURES, Pair};

/// A run, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Side {
    /// A short name: what stands above its figures.
    pub name: String,
    /// Where it is from.
    pub from: String,
}

/// The whole page.
pub fn render_compared(compared: &Compared, sides: &[Side; 2]) -> String {
    let fact = |name: String, value: String| {
        el("div")
            .child(el("dt").text(name))
            .child(el("dd").text(value))
    };
    let mut facts: Vec<Node> = sides
        .iter()
        .map(|side| fact(side.name.clone(), side.from.clone()))
        .collect();
    facts.push(fact(
        "directions that agree".to_owned(),
        format!("{} of {}", compared.agree, compared.told),
    ));
    let [one, other] = sides;
    let header = el("header")
        .child(el("p").class("kicker").text("ostler sim compare"))
        .child(el("h1").text(format!("{} beside {}", one.name, other.name)))
        .child(el("p").class("lead").text(
            "Each figure of each policy in two runs, and whether both say of every two policies that the same one has more of it.",
        ))
        .child(el("dl").class("facts").children(facts));
    let mut workloads: Vec<&str> = Vec::new();
    for pair in &compared.pairs {
        if !workloads.contains(&pair.workload.as_str()) {
            workloads.push(&pair.workload);
        }
    }
    let loads = workloads.iter().enumerate().map(|(at, workload)| {
        let of = |figure: &str| -> Vec<&Pair> {
            let pairs = compared.pairs.iter();
            pairs
                .filter(|pair| pair.workload == *workload && pair.figure == figure)
                .collect()
        };
        let tables = FIGURES.into_iter().filter_map(|figure| {
            let pairs = of(figure);
            (!pairs.is_empty()).then(|| table(figure, &pairs, sides))
        });
        section(&format!("load-{at}"), workload).children(tables)
    });
    let mut main = el("main").children(loads);
    let missing: Vec<Node> = compared
        .only
        .iter()
        .zip(sides)
        .flat_map(|(only, side)| {
            let told = only.iter();
            told.map(|(workload, policy)| {
                el("li").text(format!("{}: {policy}, {workload}", side.name))
            })
        })
        .collect();
    if !missing.is_empty() {
        main = main
            .child(section("only", "What one of them has alone").child(el("ul").children(missing)));
    }
    page(
        format!(
            "{} beside {} \u{b7} ostler sim compare",
            one.name, other.name
        ),
        el("body").child(header).child(main),
    )
}

fn table(figure: &str, pairs: &[&Pair], sides: &[Side; 2]) -> Node {
    let cell = |value: Option<String>| {
        value.map_or_else(ostler_report::table::missing, |text| el("td").text(text))
    };
    let heads = [
        figure.to_owned(),
        sides[0].name.clone(),
        sides[1].name.clone(),
        "ratio".to_owned(),
        format!("{}, by the first", sides[0].name),
        format!("{}, by the first", sides[1].name),
        "contradicts of".to_owned(),
    ];
    let heads = heads
        .into_iter()
        .map(|head| el("th").attr("scope", "col").text(head));
    let rows = pairs.iter().map(|pair| {
        let against = if pair.against.is_empty() {
            el("td").text("none")
        } else {
            el("td").class("worst").text(pair.against.join(", "))
        };
        el("tr")
            .child(el("th").attr("scope", "row").text(pair.policy.clone()))
            .children([
                cell(Some(say(figure, pair.one))),
                cell(Some(say(figure, pair.other))),
                cell(pair.ratio.map(times)),
                cell(pair.one_by_first.map(times)),
                cell(pair.other_by_first.map(times)),
                against,
            ])
    });
    let table = el("table")
        .child(el("thead").child(el("tr").children(heads)))
        .child(el("tbody").children(rows));
    el("figure")
        .class("summary")
        .child(el("div").class("scroll").child(table))
}

/// A figure with its unit.
fn say(figure: &str, value: f64) -> String {
    if figure.ends_with("_us") {
        micros(value)
    } else if figure.ends_with("_share") || ["local_unused", "busy"].contains(&figure) {
        percent(value)
    } else {
        short(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::{compare, lines};

    #[test]
    fn a_page_has_each_figure_twice_and_says_who_contradicts_whom() {
        let run = |p95: [f64; 2], more: &str| {
            let line = |policy: &str, p95: f64| {
                format!(
                    "{{\"workload\":\"web <1>\",\"policy\":\"{policy}\",\"p95_us\":{p95},\"core_seconds\":null,\"slo_met_share\":0.5}}\n"
                )
            };
            lines(&(line("a", p95[0]) + &line("b&b", p95[1]) + more)).expect("lines")
        };
        let extra = "{\"workload\":\"web <1>\",\"policy\":\"alone\",\"p95_us\":1}";
        let compared = compare(&run([1000.0, 2000.0], extra), &run([1500.0, 750.0], ""));
        let side = |name: &str| Side {
            name: name.to_owned(),
            from: format!("{name}.jsonl"),
        };
        let html = render_compared(&compared, &[side("lab"), side("sim")]);
        ostler_report::testing::well_formed(&html).expect("well-formed");
        for text in [
            "lab beside sim",
            "web &lt;1&gt;",
            "b&amp;b",
            "1.5 ms",
            "0.38\u{d7}",
            "0 of 1",
            "lab: alone, web",
        ] {
            assert!(html.contains(text), "{text} is missing:\n{html}");
        }
        assert_eq!(html.matches("class=\"worst\"").count(), 2);
        assert!(!html.contains("core_seconds"), "nobody measured it");
    }
}
