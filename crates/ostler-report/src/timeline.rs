//! One policy over time: offered load, P95 against the objective, who holds the cores, when best-effort guests were suspended, and
//! what was decided (seed figure 14). All policies share their scales, so that they can be compared by eye.

use serde::{Deserialize, Serialize};

use crate::frame::{Drawing, Panel, broken_line, folded_table, hit, line, rect};
use crate::node::{Node, Path, el};
use crate::say::{MISSING, micros, short};
use crate::scale::{Scale, extent};

const WIDTH: f64 = 1040.0;
const LEFT: f64 = 70.0;
const PANEL_WIDTH: f64 = 940.0;
/// More marks than this can't be told apart; the list says how many there are.
const DECISIONS_SHOWN_MAX: usize = 400;
/// So many samples answer to the pointer.
const HITS_MAX: usize = 600;

/// One round, second by second.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    /// Which round.
    pub round: u32,
    /// The samples, by rising time; each holds until the next.
    pub samples: Vec<Sample>,
    /// When best-effort guests were suspended.
    pub be_suspended: Vec<Interval>,
    /// What was decided, and why.
    pub decisions: Vec<Decision>,
}

/// The state of affairs at one time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Time since the round's start.
    pub t_s: f64,
    /// Offered load.
    pub offered_per_s: Option<f64>,
    /// Correct replies.
    pub completed_per_s: Option<f64>,
    /// P95 of requests that were due in this sample.
    pub p95_us: Option<f64>,
    /// Who holds the cores.
    pub cores: Option<Cores>,
}

/// How many cores each group holds; means over a sample, hence fractions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Cores {
    /// vCPUs alone.
    pub vcpu: f64,
    /// Network queues alone: softirq and vhost workers.
    pub nq: f64,
    /// vCPUs and queues together, where a policy lets them share.
    pub shared: f64,
    /// Best-effort guests.
    pub be: f64,
    /// Nobody.
    pub idle: f64,
}

/// From when to when, since the round's start.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Start.
    pub from_s: f64,
    /// End.
    pub to_s: f64,
}

/// Something the steward decided.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// Time since the round's start.
    pub t_s: f64,
    /// What changed, in a few words.
    pub what: String,
    /// Why: inputs, alternatives turned down, what it expects.
    pub reasons: Vec<String>,
}

/// Reads how many cores a group holds.
pub type Held = fn(&Cores) -> f64;

/// The groups that hold cores: class, name, and how to read it from a sample.
pub const GROUPS: [(&str, &str, Held); 5] = [
    ("g-vcpu", "vCPUs", |c| c.vcpu),
    ("g-nq", "queues (NQ)", |c| c.nq),
    ("g-shared", "vCPUs + queues shared", |c| c.shared),
    ("g-be", "best effort (BE)", |c| c.be),
    ("g-idle", "idle", |c| c.idle),
];

/// Scales that all policies share.
#[derive(Debug)]
pub struct Shared {
    time: Option<(f64, f64)>,
    load_max: Option<f64>,
    latencies: Vec<f64>,
    cores: f64,
    slo_us: f64,
}

impl Shared {
    /// Over all timelines of a run on so many cores, with this objective for P95 (not a number where there is none).
    pub fn new(timelines: &[&Timeline], cores_there: u32, slo_us: f64) -> Self {
        let timelines = || timelines.iter();
        let samples = || timelines().flat_map(|t| &t.samples);
        let loads = samples()
            .flat_map(|s| [s.offered_per_s, s.completed_per_s])
            .flatten();
        let cores = samples()
            .filter_map(|s| s.cores)
            .map(|c| GROUPS.iter().map(|(_, _, read)| read(&c).max(0.0)).sum());
        let times = timelines()
            .flat_map(|t| spans(&t.samples))
            .flat_map(|(from, to)| [from, to]);
        Self {
            time: extent(times),
            load_max: extent(loads).map(|e| e.1),
            latencies: samples().filter_map(|s| s.p95_us).chain([slo_us]).collect(),
            cores: extent(cores)
                .map_or(0.0, |e| e.1)
                .max(f64::from(cores_there)),
            slo_us,
        }
    }
}

/// From when to when each sample holds. The last holds as long as the one before it.
fn spans(samples: &[Sample]) -> Vec<(f64, f64)> {
    let gap = samples
        .windows(2)
        .last()
        .map_or(1.0, |w| w[1].t_s - w[0].t_s);
    let ends = samples
        .iter()
        .skip(1)
        .map(|s| s.t_s)
        .chain(samples.last().map(|s| s.t_s + gap));
    samples.iter().map(|s| s.t_s).zip(ends).collect()
}

/// The figure of one policy; `index` makes its ids unique.
pub fn figure(policy: &str, timeline: &Timeline, index: usize, shared: &Shared) -> Node {
    let panel = |top, height| Panel {
        left: LEFT,
        top,
        width: PANEL_WIDTH,
        height,
    };
    let (load, latency, cores, strip) = (
        panel(30.0, 84.0),
        panel(150.0, 130.0),
        panel(316.0, 150.0),
        panel(478.0, 20.0),
    );
    let x = Scale::linear(shared.time, load.xs());
    let id = format!("timeline-{index}");
    let marks = [
        load_panel(load, &x, timeline, shared),
        latency_panel(latency, &x, timeline, shared),
        cores_panel(cores, &x, timeline, shared, &id),
        decision_marks(strip, &x, timeline),
        strip.x_axis(&x, 12, "seconds since the start of the round", short),
        hits(timeline, &x, load.top, strip.top),
    ];
    let title = format!("{policy} over time");
    let drawing = Drawing {
        id,
        title: &title,
        description: "From top to bottom: offered and served load; P95 against the objective; cores held by each group, stacked; \
                      decisions. Gaps were not measured. The tables below hold the same figures.",
        width: WIDTH,
        height: strip.bottom() + 44.0,
    };
    el("figure")
        .class("chart")
        .child(legend(timeline))
        .child(el("div").class("scroll").child(drawing.svg(marks)))
        .child(decisions_table(&timeline.decisions))
        .child(samples_table(&timeline.samples))
}

fn load_panel(panel: Panel, x: &Scale, timeline: &Timeline, shared: &Shared) -> Node {
    let y = Scale::from_zero(shared.load_max, 3, panel.ys());
    let mut area = Path::default();
    for (sample, (from, to)) in timeline.samples.iter().zip(spans(&timeline.samples)) {
        let value = sample.offered_per_s.and_then(|v| y.at(v));
        if let (Some(top), Some(x0), Some(x1)) = (value, x.at(from), x.at(to)) {
            block(&mut area, x0, x1, top, panel.bottom());
        }
    }
    let served =
        timeline
            .samples
            .iter()
            .zip(spans(&timeline.samples))
            .map(|(sample, (from, to))| {
                Some((
                    x.at(f64::midpoint(from, to))?,
                    y.at(sample.completed_per_s?)?,
                ))
            });
    el("g")
        .child(panel.y_axis(&y, 3, "Load, requests/s", short))
        .child(area.node().class("offered"))
        .child(broken_line(served).node().class("served"))
}

fn latency_panel(panel: Panel, x: &Scale, timeline: &Timeline, shared: &Shared) -> Node {
    let slo_us = shared.slo_us;
    let y = Scale::log(shared.latencies.iter().copied(), panel.ys());
    let mut g = el("g").child(panel.y_axis(&y, 4, "P95 latency (log scale)", micros));
    if let Some(slo_y) = y.at(slo_us) {
        g = g
            .child(rect(panel.left, panel.top, panel.width, slo_y - panel.top).class("over"))
            .child(line(panel.left, slo_y, panel.right(), slo_y).class("slo"))
            .child(
                el("text")
                    .class("slo-label")
                    .num("x", panel.right() - 4.0)
                    .num("y", slo_y - 5.0)
                    .attr("text-anchor", "end")
                    .text(format!("SLO {}", micros(slo_us))),
            );
    }
    let place = |sample: &Sample, (from, to): (f64, f64)| {
        Some((x.at(f64::midpoint(from, to))?, y.at(sample.p95_us?)?))
    };
    let points: Vec<_> = timeline
        .samples
        .iter()
        .zip(spans(&timeline.samples))
        .map(|(s, span)| place(s, span))
        .collect();
    g = g.child(broken_line(points.iter().copied()).node().class("latency"));
    for (sample, point) in timeline.samples.iter().zip(&points) {
        if let (Some((px, py)), Some(p95)) = (point, sample.p95_us) {
            let class = if p95 > slo_us { "violation" } else { "within" };
            g = g.child(
                el("circle")
                    .num("cx", *px)
                    .num("cy", *py)
                    .num("r", 2.4)
                    .class(class),
            );
        }
    }
    g
}

fn cores_panel(panel: Panel, x: &Scale, timeline: &Timeline, shared: &Shared, id: &str) -> Node {
    // It ends with the last core: there is nothing above it to show.
    let y = Scale::linear(Some((0.0, shared.cores.max(1.0))), panel.ys());
    let mut areas: Vec<Path> = GROUPS.iter().map(|_| Path::default()).collect();
    for (sample, (from, to)) in timeline.samples.iter().zip(spans(&timeline.samples)) {
        let (Some(cores), Some(x0), Some(x1)) = (sample.cores, x.at(from), x.at(to)) else {
            continue;
        };
        let mut below = 0.0;
        for ((_, _, read), area) in GROUPS.iter().zip(&mut areas) {
            let held = read(&cores);
            if !held.is_finite() || held <= 0.0 {
                continue;
            }
            if let (Some(bottom), Some(top)) = (y.at(below), y.at(below + held)) {
                block(area, x0, x1, top, bottom);
            }
            below += held;
        }
    }
    let hatch = format!("{id}-hatch");
    let pattern = el("pattern")
        .attr("id", hatch.clone())
        .attr("width", "8")
        .attr("height", "8")
        .attr("patternUnits", "userSpaceOnUse")
        .attr("patternTransform", "rotate(45)")
        .child(line(0.0, 0.0, 0.0, 8.0).class("hatch"));
    let mut g = el("g").child(el("defs").child(pattern));
    for ((class, _, _), area) in GROUPS.iter().zip(areas) {
        if !area.is_empty() {
            g = g.child(area.node().class(*class));
        }
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "1 to 6"
    )]
    let ticks = shared.cores.clamp(1.0, 6.0) as usize;
    // The grid lies over the areas, faintly, so that cores can be counted.
    g = g.child(panel.y_axis(&y, ticks, "Cores held by each group", short));
    for interval in &timeline.be_suspended {
        let (Some(x0), Some(x1)) = (x.at(interval.from_s), x.at(interval.to_s)) else {
            continue;
        };
        g = g
            .child(
                rect(x0, panel.top, x1 - x0, panel.height)
                    .attr("fill", format!("url(#{hatch})"))
                    .class("suspended"),
            )
            .child(rect(x0, panel.top - 4.0, x1 - x0, 4.0).class("suspended-bar"));
    }
    g
}

/// A block of a stepped area.
fn block(area: &mut Path, x0: f64, x1: f64, top: f64, bottom: f64) {
    area.move_to(x0, bottom);
    area.down_to(top);
    area.across_to(x1);
    area.down_to(bottom);
    area.close();
}

fn decision_marks(panel: Panel, x: &Scale, timeline: &Timeline) -> Node {
    let middle = panel.top + panel.height / 2.0;
    let mut g = el("g").class("axis").child(
        el("text")
            .num("x", panel.left - 8.0)
            .num("y", middle + 4.0)
            .attr("text-anchor", "end")
            .text("decisions"),
    );
    for decision in timeline.decisions.iter().take(DECISIONS_SHOWN_MAX) {
        let Some(at) = x.at(decision.t_s) else {
            continue;
        };
        let tip = std::iter::once(format!("{} s: {}", short(decision.t_s), decision.what))
            .chain(decision.reasons.iter().map(|r| format!("\u{2022} {r}")))
            .collect::<Vec<_>>()
            .join("\n");
        let mut mark = Path::default();
        mark.move_to(at, middle - 6.0);
        mark.line_to(at + 5.0, middle);
        mark.line_to(at, middle + 6.0);
        mark.line_to(at - 5.0, middle);
        mark.close();
        g = g.child(
            mark.node()
                .class("decision hit")
                .child(el("title").text(tip)),
        );
    }
    g
}

fn hits(timeline: &Timeline, x: &Scale, top: f64, bottom: f64) -> Node {
    let every = timeline.samples.len().div_ceil(HITS_MAX).max(1);
    let mut g = el("g");
    for (sample, (from, to)) in timeline
        .samples
        .iter()
        .zip(spans(&timeline.samples))
        .step_by(every)
    {
        if let (Some(x0), Some(x1)) = (x.at(from), x.at(to)) {
            let mut tip = vec![format!("{} s", short(sample.t_s))];
            let cells = sample_cells(sample);
            tip.extend(
                SAMPLE_HEAD
                    .iter()
                    .zip(&cells)
                    .skip(1)
                    .filter(|(_, c)| *c != MISSING)
                    .map(|(h, c)| format!("{h} {c}")),
            );
            g = g.child(hit(x0, top, x1 - x0, bottom - top, tip.join("\n")));
        }
    }
    g
}

const SAMPLE_HEAD: [&str; 9] = [
    "t, s",
    "offered/s",
    "served/s",
    "P95",
    "vCPU cores",
    "NQ cores",
    "shared cores",
    "BE cores",
    "idle cores",
];

fn sample_cells(sample: &Sample) -> Vec<String> {
    let cell = |value: Option<f64>, say: fn(f64) -> String| {
        value
            .filter(|v| v.is_finite())
            .map_or(MISSING.to_owned(), say)
    };
    let mut cells = vec![
        cell(Some(sample.t_s), short),
        cell(sample.offered_per_s, short),
        cell(sample.completed_per_s, short),
        cell(sample.p95_us, micros),
    ];
    cells.extend(
        GROUPS
            .iter()
            .map(|(_, _, read)| cell(sample.cores.map(|c| read(&c)), short)),
    );
    cells
}

fn samples_table(samples: &[Sample]) -> Node {
    let summary = format!("Samples ({})", samples.len());
    folded_table(summary, &SAMPLE_HEAD, samples.iter().map(sample_cells))
}

fn decisions_table(decisions: &[Decision]) -> Node {
    if decisions.is_empty() {
        return el("p")
            .class("quiet")
            .text("No decisions were made in this round.");
    }
    let shown = decisions.len().min(DECISIONS_SHOWN_MAX);
    let rest = decisions.len() - shown;
    let rows = decisions.iter().take(shown).map(|decision| {
        el("tr")
            .child(
                el("td")
                    .class("number")
                    .text(format!("{} s", short(decision.t_s))),
            )
            .child(el("td").text(decision.what.clone()))
            .child(el("td").child(
                el("ul").children(decision.reasons.iter().map(|r| el("li").text(r.clone()))),
            ))
    });
    let head = ["at", "decision", "because"].map(|h| el("th").attr("scope", "col").text(h));
    let mut summary = format!("Decisions and their reasons ({})", decisions.len());
    if rest > 0 {
        summary = format!("{summary}, of which the first {shown} are shown");
    }
    el("details")
        .class("data decisions")
        .child(el("summary").text(summary))
        .child(
            el("div").class("scroll").child(
                el("table")
                    .child(el("thead").child(el("tr").children(head)))
                    .child(el("tbody").children(rows)),
            ),
        )
}

fn legend(timeline: &Timeline) -> Node {
    let item = |class: &str, text: &str| {
        el("li")
            .child(el("span").class(format!("swatch {class}")))
            .child(el("span").text(text))
    };
    let held = |read: fn(&Cores) -> f64| {
        timeline
            .samples
            .iter()
            .filter_map(|s| s.cores)
            .any(|c| read(&c) > 0.0)
    };
    let mut list = el("ul")
        .class("key")
        .child(item("k-offered", "offered"))
        .child(item("k-served", "served"));
    list = list
        .child(item("k-latency", "P95"))
        .child(item("k-violation", "P95 over the SLO"));
    list = list.children(
        GROUPS
            .iter()
            .filter(|(_, _, read)| held(*read))
            .map(|(class, name, _)| item(class, name)),
    );
    if !timeline.be_suspended.is_empty() {
        list = list.child(item("k-suspended", "BE guests suspended"));
    }
    if !timeline.decisions.is_empty() {
        list = list.child(item("k-decision", "decision"));
    }
    list
}
