//! One policy over time, guest by guest (seed figure 3.9): the cores' time that each had, and, where the steward's scheduler has vCPUs, how often those
//! of the guest that serves the load were put before others, what that borrowed, and what was paid for it. All policies share their scales.

use ostler_report::frame::{Drawing, Panel, broken_line, folded_table, hit, line};
use ostler_report::say::{MISSING, short};
use ostler_report::scale::{Scale, extent};
use ostler_report::{Node, el};

use super::sharing::{Account, GuestSpan, GuestTimeline, Sharing};
use super::summary::{PolicySummary, RunSummary};

const WIDTH: f64 = 1040.0;
const LEFT: f64 = 70.0;
const PANEL_WIDTH: f64 = 940.0;
/// So many spans answer to the pointer.
const HITS_MAX: usize = 600;

type Read = fn(&Account) -> f64;

/// What is drawn of boosts, and of the account: class, name, where to find it.
const BOOSTS: [(&str, &str, Read); 2] = [
    ("boosts", "boosts", |a| a.boosts_per_s),
    ("refused", "refused", |a| a.refused_per_s),
];
const TIMES: [(&str, &str, Read); 3] = [
    ("borrowed", "borrowed", |a| a.borrowed_ms),
    ("paid", "paid", |a| a.paid_ms),
    ("balance", "balance (debt)", |a| a.balance_ms),
];

/// Scales that all policies share.
#[derive(Debug)]
pub struct Shared {
    time: Option<(f64, f64)>,
    cores_max: Option<f64>,
    boosts_max: Option<f64>,
    /// Zero is in it.
    times: Option<(f64, f64)>,
}

impl Shared {
    /// Over all policies of a run.
    pub fn new(run: &RunSummary) -> Self {
        let sharing = || run.policies.iter().filter_map(|p| p.sharing.as_ref());
        let guests = || sharing().flat_map(|s| &s.timeline);
        let spans = || guests().flat_map(|guest| &guest.spans);
        let of_loaded = |reads: &'static [(&str, &str, Read)]| {
            let loaded = guests().filter(|guest| guest.loaded);
            let accounts = loaded
                .flat_map(|guest| &guest.spans)
                .filter_map(|s| s.account);
            accounts.flat_map(move |account| reads.iter().map(move |(.., read)| read(&account)))
        };
        Self {
            time: extent(spans().flat_map(|span| [span.from_s, span.to_s])),
            cores_max: extent(spans().filter_map(|span| span.cores)).map(|e| e.1),
            boosts_max: extent(of_loaded(&BOOSTS)).map(|e| e.1),
            times: extent(of_loaded(&TIMES).chain([0.0])),
        }
    }
}

/// The figure; `None` where nothing was recorded. `index` makes its ids unique.
pub fn figure(
    policy: &PolicySummary,
    sharing: &Sharing,
    index: usize,
    shared: &Shared,
) -> Option<Node> {
    let spans = |guest: &GuestTimeline| guest.spans.len();
    sharing
        .timeline
        .iter()
        .map(spans)
        .find(|spans| *spans > 0)?;
    let loaded = sharing.timeline.iter().find(|guest| guest.loaded);
    let accounted = loaded.filter(|guest| guest.spans.iter().any(|span| span.account.is_some()));
    let panel = |top, height| Panel {
        left: LEFT,
        top,
        width: PANEL_WIDTH,
        height,
    };
    let had = panel(30.0, 130.0);
    let x = Scale::linear(shared.time, had.xs());
    let mut marks = vec![had_panel(had, &x, &sharing.timeline, shared)];
    let mut bottom = had;
    if let Some(guest) = accounted {
        let boosts = panel(196.0, 70.0);
        let y = Scale::from_zero(shared.boosts_max, 3, boosts.ys());
        let heading = "Boosts of the loaded guest, /s";
        marks.push(account_panel(boosts, heading, &x, &y, guest, &BOOSTS));
        bottom = panel(302.0, 110.0);
        let y = Scale::linear(shared.times, bottom.ys());
        let heading = "Its account since the load\u{2019}s start, ms";
        marks.push(account_panel(bottom, heading, &x, &y, guest, &TIMES));
    }
    marks.push(bottom.x_axis(&x, 12, "seconds since the start of the round", short));
    marks.push(hits(sharing, &x, had.top, bottom.bottom()));
    let title = format!("{} over time, guest by guest", policy.policy);
    let drawing = Drawing {
        id: format!("guests-{index}"),
        title: &title,
        description: "Above, the cores\u{2019} time that each guest had, the one that serves the load in bold. Below, where the steward\u{2019}s scheduler \
                      has vCPUs: events for which one of that guest was put before others or couldn\u{2019}t be, and what it borrowed, paid, \
                      and owes.",
        width: WIDTH,
        height: bottom.bottom() + 44.0,
    };
    let figure = el("figure")
        .class("chart")
        .child(legend(accounted.is_some()))
        .child(el("div").class("scroll").child(drawing.svg(marks)));
    Some(
        figure
            .child(guests_table(&sharing.timeline))
            .children(loaded.map(|guest| {
                folded_table(
                    format!("{} over time", guest.guest),
                    &SPAN_HEAD,
                    guest.spans.iter().map(span_cells),
                )
            })),
    )
}

fn had_panel(panel: Panel, x: &Scale, guests: &[GuestTimeline], shared: &Shared) -> Node {
    let y = Scale::from_zero(shared.cores_max, 4, panel.ys());
    let source = if guests
        .iter()
        .flat_map(|g| &g.spans)
        .any(|span| span.account.is_some())
    {
        "Cores\u{2019} time of each guest\u{2019}s vCPUs"
    } else {
        "Cores\u{2019} time of each guest (all its threads)"
    };
    let mut g = el("g").child(panel.y_axis(&y, 4, source, short));
    // The loaded guest last, so that it lies on top.
    let (loaded, others): (Vec<_>, Vec<_>) = guests.iter().partition(|guest| guest.loaded);
    for guest in others.into_iter().chain(loaded) {
        let points = guest
            .spans
            .iter()
            .map(|span| place(x, &y, span, span.cores));
        let class = if guest.loaded {
            "guest loaded"
        } else {
            "guest"
        };
        g = g.child(broken_line(points).node().class(class));
    }
    g
}

fn account_panel(
    panel: Panel,
    heading: &str,
    x: &Scale,
    y: &Scale,
    guest: &GuestTimeline,
    reads: &[(&str, &str, Read)],
) -> Node {
    let mut g = el("g").child(panel.y_axis(y, 3, heading, short));
    if let Some(zero) = y.at(0.0) {
        g = g.child(line(panel.left, zero, panel.right(), zero).class("edge"));
    }
    for (class, _, read) in reads {
        let points = guest.spans.iter().map(|span| {
            let value = span.account.as_ref().map(read);
            place(x, y, span, value)
        });
        g = g.child(broken_line(points).node().class(format!("account {class}")));
    }
    g
}

fn place(x: &Scale, y: &Scale, span: &GuestSpan, value: Option<f64>) -> Option<(f64, f64)> {
    Some((x.at(f64::midpoint(span.from_s, span.to_s))?, y.at(value?)?))
}

fn hits(sharing: &Sharing, x: &Scale, top: f64, bottom: f64) -> Node {
    let mut g = el("g");
    let Some(first) = sharing
        .timeline
        .iter()
        .find(|guest| !guest.spans.is_empty())
    else {
        return g;
    };
    let every = first.spans.len().div_ceil(HITS_MAX).max(1);
    for (at, span) in first.spans.iter().enumerate().step_by(every) {
        let (Some(x0), Some(x1)) = (x.at(span.from_s), x.at(span.to_s)) else {
            continue;
        };
        let mut tip = vec![format!("{} s", short(span.from_s))];
        for guest in &sharing.timeline {
            let Some(span) = guest.spans.get(at) else {
                continue;
            };
            let said = span_cells(span);
            if guest.loaded {
                let all = SPAN_HEAD.iter().zip(&said).skip(1);
                let known = all.filter(|(_, said)| *said != MISSING);
                tip.extend(known.map(|(head, said)| format!("{}: {head} {said}", guest.guest)));
            } else {
                tip.push(format!("{}: cores {}", guest.guest, said[1]));
            }
        }
        g = g.child(hit(x0, top, x1 - x0, bottom - top, tip.join("\n")));
    }
    g
}

const SPAN_HEAD: [&str; 9] = [
    "t, s",
    "cores",
    "boosts/s",
    "refused/s",
    "borrowed, ms",
    "paid, ms",
    "lent, ms",
    "returned, ms",
    "balance, ms",
];

fn said(value: Option<f64>) -> String {
    value.map_or(MISSING.to_owned(), short)
}

fn account_cells(account: Option<Account>) -> [String; 7] {
    let reads: [Read; 7] = [
        |a| a.boosts_per_s,
        |a| a.refused_per_s,
        |a| a.borrowed_ms,
        |a| a.paid_ms,
        |a| a.lent_ms,
        |a| a.returned_ms,
        |a| a.balance_ms,
    ];
    reads.map(|read| said(account.as_ref().map(read)))
}

fn span_cells(span: &GuestSpan) -> Vec<String> {
    let mut cells = vec![short(span.from_s), said(span.cores)];
    cells.extend(account_cells(span.account));
    cells
}

/// Each guest over the whole round: means of what is per second, and what the account came to.
fn guests_table(guests: &[GuestTimeline]) -> Node {
    let rows = guests.iter().map(|guest| {
        let mean = |read: &dyn Fn(&GuestSpan) -> Option<f64>| {
            let known = guest
                .spans
                .iter()
                .filter_map(|span| Some((read(span)?, span.to_s - span.from_s)));
            let (sum, seconds) = known.fold((0.0, 0.0), |(sum, all), (value, seconds)| {
                (sum + value * seconds, all + seconds)
            });
            (seconds > 0.0).then(|| sum / seconds)
        };
        let last = guest.spans.iter().rev().find_map(|span| span.account);
        let account = last.map(|last| Account {
            boosts_per_s: mean(&|span| Some(span.account?.boosts_per_s)).unwrap_or(f64::NAN),
            refused_per_s: mean(&|span| Some(span.account?.refused_per_s)).unwrap_or(f64::NAN),
            ..last
        });
        let mut cells = vec![guest.guest.clone(), said(mean(&|span| span.cores))];
        cells.extend(account_cells(account));
        cells
    });
    let mut head = SPAN_HEAD;
    head[0] = "guest";
    folded_table(format!("Guests ({})", guests.len()), &head, rows)
}

fn legend(accounted: bool) -> Node {
    let item = |class: &str, text: &str| {
        el("li")
            .child(el("span").class(format!("swatch k-{class}")))
            .child(el("span").text(text))
    };
    let list = el("ul")
        .class("key")
        .child(item("loaded", "the guest that serves the load"))
        .child(item("guest", "other guests"));
    let account = BOOSTS.iter().chain(&TIMES).filter(|_| accounted);
    list.children(account.map(|(class, name, _)| item(class, name)))
}
