//! How guests shared their cores under each policy: the data, and the section that sets policies side by side.

use ostler_report::bars::{Chart, Unit};
use ostler_report::say::{clipped, micros, percent, short, times};
use ostler_report::table::missing;
use ostler_report::{Node, Spread, el};
use serde::{Deserialize, Serialize};

use super::costs::{Read, bars};
use super::summary::{PolicySummary, RunSummary};
use super::{delays, shares};

/// How guests shared their cores under a policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sharing {
    /// vCPUs of the guests that the cores are divided over, by those cores.
    pub ratio: Option<f64>,
    /// What schedules vCPUs.
    pub scheduler: String,
    /// How soon vCPUs of the loaded guest ran after their events, over all rounds: entry `n` counts those that took 2^n us and more, but less than
    /// 2^(n+1); the last, all longer ones. Empty where nobody counted.
    pub delays: Vec<u64>,
    /// What each guest had, over all rounds.
    pub guests: Vec<GuestShare>,
    /// One round, guest by guest: the one that is shown second by second.
    pub timeline: Vec<GuestTimeline>,
}

/// What a guest had.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GuestShare {
    /// Its name.
    pub guest: String,
    /// Whether it is the one that serves the load.
    pub loaded: bool,
    /// How many vCPUs it has.
    pub vcpus: u32,
    /// Its CPU time, in equal shares of the cores.
    pub of_equal: Option<Spread>,
}

/// A guest over time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GuestTimeline {
    /// Its name.
    pub guest: String,
    /// Whether it is the one that serves the load.
    pub loaded: bool,
    /// From time to time.
    pub spans: Vec<GuestSpan>,
}

/// A guest between two times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct GuestSpan {
    /// Start, since the load's.
    pub from_s: f64,
    /// End.
    pub to_s: f64,
    /// Cores' time that it had.
    pub cores: Option<f64>,
    /// What the scheduler of vCPUs says of it; `None` where it is the kernel's own.
    pub account: Option<Account>,
}

/// What the scheduler of vCPUs has done for a guest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Account {
    /// Events for which a vCPU was put before others.
    pub boosts_per_s: f64,
    /// Events for which no core could be had at once.
    pub refused_per_s: f64,
    /// What its vCPUs ran beyond their shares since the load's start.
    pub borrowed_ms: f64,
    /// What they gave back.
    pub paid_ms: f64,
    /// What others ran of its share.
    pub lent_ms: f64,
    /// What they gave back.
    pub returned_ms: f64,
    /// What it has beyond its share; below zero, what others have of it.
    pub balance_ms: f64,
}

/// The policy that others are compared with: the first whose guests have a core for each vCPU.
pub fn undivided(run: &RunSummary) -> Option<&PolicySummary> {
    run.policies.iter().find(|policy| {
        let ratio = policy.sharing.as_ref().and_then(|sharing| sharing.ratio);
        ratio.is_some_and(|ratio| ratio <= 1.0)
    })
}

/// A policy's name, and how many vCPUs there are to a core.
fn label(policy: &PolicySummary) -> String {
    let ratio = policy.sharing.as_ref().and_then(|sharing| sharing.ratio);
    let name = clipped(&policy.policy, 12);
    ratio.map_or_else(
        || name.clone(),
        |ratio| format!("{name} \u{b7} {}:1", short(ratio)),
    )
}

type Say = fn(f64) -> String;

/// Id, name, what it is, how to say it, where to find it.
const RELATIVE: [(&str, &str, &str, Say, Read); 4] = [
    ("p50", "Response time, P50", "Median latency", micros, |f| {
        f.cell_p50_us
    }),
    (
        "p95",
        "Response time, P95",
        "95th percentile of latency",
        micros,
        |f| f.cell_p95_us,
    ),
    (
        "p99",
        "Response time, P99",
        "99th percentile of latency",
        micros,
        |f| f.cell_p99_us,
    ),
    ("ops", "Throughput", "Answers per second", per_second, |f| {
        f.ops_per_s
    }),
];

fn per_second(value: f64) -> String {
    format!("{}/s", short(value))
}

/// What is compared; `None` for runs that compare no schedulers of vCPUs.
pub fn section(run: &RunSummary) -> Option<Node> {
    if run.policies.iter().all(|policy| policy.sharing.is_none()) {
        return None;
    }
    let undivided = undivided(run);
    let (against, compared) = match undivided {
        Some(policy) => (
            policy.policy.as_str(),
            format!(
                "Latency and throughput over whole cells, as multiples of {}, where every vCPU has a core.",
                policy.policy
            ),
        ),
        None => (
            "",
            "No policy gives every vCPU a core, so latency and throughput over whole cells are multiples of nothing.".to_owned(),
        ),
    };
    let relative = RELATIVE.map(|(id, name, what, say, read)| {
        let chart = Chart {
            id: format!("sharing-{id}"),
            name,
            title: format!("{what} relative to cores of one\u{2019}s own"),
            say,
            unit: Unit::Times {
                of: undivided.and_then(|undivided| read(&undivided.figures)),
                name: against,
            },
        };
        chart.svg(&bars(run, label, read))
    });
    let neighbours = Chart {
        id: "sharing-neighbours".to_owned(),
        name: "Work of best-effort guests, in equal shares",
        title: "Work of best-effort guests in what they do in an equal share of the cores"
            .to_owned(),
        say: times,
        unit: Unit::Own {
            reference: Some(1.0),
        },
    };
    let fairness = Chart {
        id: "sharing-fairness".to_owned(),
        name: "Fairness error, 10 s",
        title: "Largest distance of an always busy guest from its fair share".to_owned(),
        say: percent,
        unit: Unit::Own { reference: None },
    };
    let absolute = [
        neighbours.svg(&bars(run, label, |f| f.neighbour_throughput)),
        fairness.svg(&bars(run, label, |f| f.fairness_error_10s)),
    ];
    let section = ostler_report::section("sharing", "How guests shared their cores")
        .child(el("p").text(format!(
            "{compared} The ratio is of vCPUs to cores. Work is counted by the guests themselves; 1 is what they do in an equal share, and \
             more is what others left. The fairness error is that of the worst 10 s (of the whole cell, where it is shorter)."
        )))
        .child(
            el("figure")
                .class("chart")
                .child(el("div").class("panels").children(relative))
                .child(el("div").class("panels").children(absolute)),
        )
        .child(table(run))
        .child(shares::figure(run, label));
    Some(section.children(delays::figure(run)))
}

/// A column of the table: the field of the result line, what is above it, how it is said, and where to find it.
pub const COLUMNS: [(&str, &str, Say, Read); 8] = [
    ("ops_per_s", "answers/s", short, |f| f.ops_per_s),
    ("cell_p50_us", "P50", micros, |f| f.cell_p50_us),
    ("cell_p95_us", "P95", micros, |f| f.cell_p95_us),
    ("cell_p99_us", "P99", micros, |f| f.cell_p99_us),
    ("irq_to_run_p99_us", "event to running, P99", at_most, |f| {
        f.irq_to_run_p99_us
    }),
    ("fairness_error_10s", "fairness error", percent, |f| {
        f.fairness_error_10s
    }),
    (
        "neighbour_throughput",
        "neighbours\u{2019} work",
        times,
        |f| f.neighbour_throughput,
    ),
    ("ctx_switches_per_s", "context switches/s", short, |f| {
        f.ctx_switches_per_s
    }),
];

fn at_most(us: f64) -> String {
    format!("\u{2264} {}", micros(us))
}

fn table(run: &RunSummary) -> Node {
    let plain = ["policy", "ratio", "vCPUs\u{2019} scheduler"]
        .map(|head| el("th").attr("scope", "col").text(head));
    let figures = COLUMNS.map(|(field, head, ..)| {
        let column = el("th").attr("scope", "col").attr("title", field);
        column.text(head)
    });
    let rows = run.policies.iter().filter_map(|policy| {
        let sharing = policy.sharing.as_ref()?;
        let ratio = sharing.ratio.map(|ratio| format!("{}:1", short(ratio)));
        let cells = COLUMNS.map(|(_, _, say, read)| {
            let spread = read(&policy.figures).and_then(Spread::finite);
            spread.map(|spread| say(spread.median))
        });
        let cells = [ratio, Some(sharing.scheduler.clone())]
            .into_iter()
            .chain(cells);
        Some(
            el("tr")
                .child(el("th").attr("scope", "row").text(policy.policy.clone()))
                .children(cells.map(|cell| cell.map_or_else(missing, |text| el("td").text(text)))),
        )
    });
    el("figure").class("summary").child(
        el("div").class("scroll").child(
            el("table")
                .attr("id", "sharing-table")
                .child(el("thead").child(el("tr").children(plain).children(figures)))
                .child(el("tbody").children(rows)),
        ),
    )
}
