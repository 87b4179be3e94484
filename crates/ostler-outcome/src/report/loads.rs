//! What several loads became under each scheduler of vCPUs, all beside each other (seed figures 3.6, 3.7, 3.9a and 3.10): a row per load and ratio, a
//! mark per policy. Of one run, as of `scenarios/anubis-workloads.toml`, or of several, as of guests with one, two and four vCPUs.
//!
//! Two things are compared with two others. What a guest does is a multiple of what it did on cores of its own, so that one sees what sharing costs. What
//! its neighbours do, and how often cores are switched, is a multiple of what the kernel's scheduler made of it at the same ratio, so that one sees what
//! its boost costs them.

use ostler_report::figures::Figures;
use ostler_report::frame::{Drawing, Panel, folded_table, hit, line};
use ostler_report::lines::{LEGEND_ROW, legend};
use ostler_report::say::{MISSING, clipped, percent, short, times};
use ostler_report::scale::Scale;
use ostler_report::{Look, Node, Spread, el, looks, section as part};

use super::sharing::undivided;
use super::summary::{PolicySummary, RunSummary};

const ROW: f64 = 26.0;
const WIDTH: f64 = 1040.0;
const TICKS: usize = 8;
/// Ratios are told apart to this.
const RATIO: f64 = 1e-6;

/// What a figure is a multiple of.
#[derive(Clone, Copy, PartialEq)]
enum Of {
    /// The same load's on cores of its own.
    OwnCores,
    /// The same load's under the kernel's scheduler, at the same ratio.
    Kernel,
    /// Nothing: it is a share.
    Nothing,
}

struct Chart {
    id: &'static str,
    title: &'static str,
    of: Of,
    read: fn(&Figures) -> Option<Spread>,
    /// Whether many times as much is to be seen beside a little more.
    log: bool,
}

const CHARTS: [Chart; 5] = [
    Chart {
        id: "loads-ops",
        title: "Throughput, relative to cores of one\u{2019}s own",
        of: Of::OwnCores,
        read: |f| f.ops_per_s,
        log: false,
    },
    Chart {
        id: "loads-p99",
        title: "P99 of response times, relative to cores of one\u{2019}s own (log scale)",
        of: Of::OwnCores,
        read: |f| f.cell_p99_us,
        log: true,
    },
    Chart {
        id: "loads-neighbours",
        title: "Neighbours\u{2019} work, relative to the kernel\u{2019}s scheduler at the same ratio",
        of: Of::Kernel,
        read: |f| f.neighbour_throughput,
        log: false,
    },
    Chart {
        id: "loads-switches",
        title: "Context switches, relative to the kernel\u{2019}s scheduler at the same ratio",
        of: Of::Kernel,
        read: |f| f.ctx_switches_per_s,
        log: false,
    },
    Chart {
        id: "loads-fairness",
        title: "Fairness error over 10 s",
        of: Of::Nothing,
        read: |f| f.fairness_error_10s,
        log: false,
    },
];

/// A load at a ratio, and the policies that had it.
struct Row<'a> {
    run: &'a RunSummary,
    label: String,
    policies: Vec<&'a PolicySummary>,
}

fn ratio(policy: &PolicySummary) -> Option<f64> {
    let ratio = policy.sharing.as_ref()?.ratio?;
    ratio.is_finite().then_some(ratio)
}

/// The service and the size of its guest, which is how a workload begins to be told; and the load.
fn label(run: &RunSummary, ratio: f64) -> String {
    let service = run.workload.split(" in guest").next().unwrap_or_default();
    let loaded = |policy: &PolicySummary| {
        let guests = &policy.sharing.as_ref()?.guests;
        Some(guests.iter().find(|guest| guest.loaded)?.vcpus)
    };
    let size = run
        .policies
        .iter()
        .find_map(loaded)
        .map(|vcpus| format!(", {vcpus} vCPU"));
    let rates = run.policies.iter().flat_map(|policy| &policy.curve);
    let most = rates.map(|point| point.rate_per_s).fold(0.0, f64::max);
    let rate = (most > 0.0).then(|| format!(", {}/s", short(most)));
    format!(
        "{}{}{} \u{b7} {}:1",
        clipped(service, 12),
        size.unwrap_or_default(),
        rate.unwrap_or_default(),
        short(ratio)
    )
}

fn rows<'a>(runs: &[&'a RunSummary]) -> Vec<Row<'a>> {
    let of_run = |run: &&'a RunSummary| {
        let run = *run;
        let mut ratios: Vec<f64> = run.policies.iter().filter_map(ratio).collect();
        ratios.retain(|ratio| *ratio > 1.0);
        ratios.sort_by(f64::total_cmp);
        ratios.dedup_by(|a, b| (*a - *b).abs() < RATIO);
        let row = move |at: f64| Row {
            run,
            label: label(run, at),
            policies: run
                .policies
                .iter()
                .filter(|policy| ratio(policy).is_some_and(|ratio| (ratio - at).abs() < RATIO))
                .collect(),
        };
        ratios.into_iter().map(row).collect::<Vec<_>>()
    };
    runs.iter().flat_map(of_run).collect()
}

/// The name under which policies of all ratios are one in the legend: without the ratio that it ends with.
fn family_name(policy: &PolicySummary) -> &str {
    let name = policy.policy.as_str();
    let bare = name.trim_end_matches(|c: char| c.is_ascii_digit());
    match bare.strip_suffix('-') {
        Some(bare) if !bare.is_empty() && bare.len() + 1 < name.len() => bare,
        _ => name,
    }
}

impl Row<'_> {
    fn base(&self, chart: &Chart) -> Option<f64> {
        let of = match chart.of {
            Of::Nothing => return Some(1.0),
            Of::OwnCores => undivided(self.run)?,
            Of::Kernel => self.policies.iter().find(|policy| {
                let sharing = policy.sharing.as_ref();
                sharing.is_some_and(|sharing| sharing.scheduler == "kernel")
            })?,
        };
        let median = (chart.read)(&of.figures).and_then(Spread::finite)?.median;
        (median > 0.0).then_some(median)
    }

    /// Its marks, at a height.
    fn node(
        &self,
        chart: &Chart,
        panel: &Panel,
        x: &Scale,
        middle: f64,
        (families, looks): (&[PolicySummary], &[Look]),
    ) -> Node {
        let mut g = el("g")
            .child(
                el("text")
                    .class("name")
                    .num("x", panel.left - 10.0)
                    .num("y", middle + 4.0)
                    .attr("text-anchor", "end")
                    .text(self.label.clone()),
            )
            .child(line(panel.left, middle, panel.right(), middle).class("grid"));
        for policy in &self.policies {
            let mut families = families.iter().zip(looks);
            let family = families.find(|(family, _)| family.policy == family_name(policy));
            let Some((spread, (_, look))) = self.value(chart, policy).zip(family) else {
                continue;
            };
            let Some(at) = x.at(spread.median) else {
                continue;
            };
            let mut mark = el("g").class(look.class());
            if let (Some(low), Some(high)) = (x.at(spread.min), x.at(spread.max))
                && high - low > 1.0
            {
                mark = mark.child(line(low, middle, high, middle).class("whisker"));
            }
            let tip = format!(
                "{}\n{}: {}",
                self.label,
                policy.policy,
                said(chart, spread.median)
            );
            g = g.child(mark.child(look.mark(at, middle))).child(hit(
                at - 4.0,
                middle - ROW / 2.0,
                8.0,
                ROW,
                tip,
            ));
        }
        g
    }

    /// A policy's figure as this chart shows it.
    fn value(&self, chart: &Chart, policy: &PolicySummary) -> Option<Spread> {
        let base = self.base(chart)?;
        let spread = (chart.read)(&policy.figures).and_then(Spread::finite)?;
        Spread {
            median: spread.median / base,
            min: spread.min / base,
            max: spread.max / base,
        }
        .finite()
    }
}

fn said(chart: &Chart, value: f64) -> String {
    match chart.of {
        Of::Nothing => percent(value),
        _ => times(value),
    }
}

/// The section; `None` where there is nothing to set beside each other.
pub fn section(runs: &[&RunSummary]) -> Option<Node> {
    let rows = rows(runs);
    if runs.len() < 2 || rows.is_empty() {
        return None;
    }
    // One stands for all of its name, the first.
    let mut families: Vec<PolicySummary> = Vec::new();
    for policy in rows.iter().flat_map(|row| &row.policies) {
        let name = family_name(policy);
        if families.iter().all(|known| known.policy != name) {
            families.push(PolicySummary {
                policy: name.to_owned(),
                timeline: None,
                ..(*policy).clone()
            });
        }
    }
    let figures = CHARTS.iter().map(|chart| figure(chart, &rows, &families));
    Some(
        part("loads", "All loads beside each other")
            .child(el("p").text(
                "A row per load and ratio of vCPUs to cores, a mark per scheduler: medians, with whiskers from the lowest to the highest round. The \
                 same marks stand for the same scheduler at every ratio.",
            ))
            .children(figures),
    )
}

fn figure(chart: &Chart, rows: &[Row], families: &[PolicySummary]) -> Node {
    let looks = looks(families.iter().map(|policy| policy.family));
    let panel = Panel {
        left: 250.0,
        top: 34.0,
        width: 580.0,
        height: (ROW * rows.len() as f64).max(families.len() as f64 * LEGEND_ROW),
    };
    let ends = rows.iter().flat_map(|row| {
        let values = row
            .policies
            .iter()
            .filter_map(|policy| row.value(chart, policy));
        values.flat_map(|spread| [spread.min, spread.max])
    });
    let x = if chart.log {
        Scale::log(ends.chain([1.0]), panel.xs())
    } else {
        let least = if chart.of == Of::Nothing { 0.0 } else { 1.0 };
        Scale::from_zero(Some(ends.fold(least, f64::max)), TICKS, panel.xs())
    };
    let say: fn(f64) -> String = if chart.of == Of::Nothing {
        percent
    } else {
        short
    };
    let mut marks = vec![panel.x_axis(&x, TICKS, chart.title, say)];
    if let Some(one) = x.at(1.0).filter(|_| chart.of != Of::Nothing) {
        marks.push(line(one, panel.top, one, panel.bottom()).class("reference"));
    }
    for (i, row) in rows.iter().enumerate() {
        let middle = panel.top + (i as f64 + 0.5) * ROW;
        marks.push(row.node(chart, &panel, &x, middle, (families, &looks)));
    }
    marks.push(legend(
        families
            .iter()
            .map(|policy| policy.policy.as_str())
            .zip(looks.iter().copied()),
        panel.right() + 30.0,
        panel.top,
    ));
    let drawing = Drawing {
        id: chart.id.to_owned(),
        title: chart.title,
        description: "A row per load and ratio, a mark per scheduler; what was not measured has none. The table below holds the same figures.",
        width: WIDTH,
        height: panel.bottom() + 48.0,
    };
    let table = rows.iter().flat_map(|row| {
        row.policies.iter().map(|policy| {
            let value = row.value(chart, policy);
            let cell = |read: fn(Spread) -> f64| {
                value.map_or(MISSING.to_owned(), |s| said(chart, read(s)))
            };
            vec![
                row.label.clone(),
                policy.policy.clone(),
                cell(|s| s.median),
                cell(|s| s.min),
                cell(|s| s.max),
            ]
        })
    });
    let table = folded_table(
        "The same as a table".to_owned(),
        &["load", "policy", "median", "lowest round", "highest round"],
        table,
    );
    el("figure")
        .class("chart")
        .child(el("div").class("scroll").child(drawing.svg(marks)))
        .child(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_of_all_ratios_have_one_name() {
        let named = |name: &str| {
            let policy = PolicySummary {
                policy: name.to_owned(),
                ..super::super::tests::sharing().policies[0].clone()
            };
            family_name(&policy).to_owned()
        };
        assert_eq!(
            ["boost-2", "boost-12", "alone", "-2", "v2", "a-"].map(named),
            ["boost", "boost", "alone", "-2", "v2", "a-"]
        );
    }
}
