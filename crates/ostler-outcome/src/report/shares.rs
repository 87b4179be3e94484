//! What each guest had of the cores, in equal shares, under each policy (seed figures 3.8 and 3.9): a stroke for each guest that only competes, a mark
//! for the one that serves the load.

use ostler_report::frame::{Drawing, Panel, folded_table, hit, line};
use ostler_report::say::{MISSING, short, times};
use ostler_report::scale::Scale;
use ostler_report::{Node, Spread, el};

use super::sharing::GuestShare;
use super::summary::{PolicySummary, RunSummary};

const ROW: f64 = 26.0;
const WIDTH: f64 = 1040.0;
const TICKS: usize = 8;

fn guests(policy: &PolicySummary) -> &[GuestShare] {
    policy
        .sharing
        .as_ref()
        .map_or(&[], |sharing| &sharing.guests)
}

fn median(guest: &GuestShare) -> Option<f64> {
    guest
        .of_equal
        .and_then(Spread::finite)
        .map(|spread| spread.median)
}

/// The figure.
pub fn figure(run: &RunSummary, label: fn(&PolicySummary) -> String) -> Node {
    let panel = Panel {
        left: 170.0,
        top: 34.0,
        width: 820.0,
        height: ROW * run.policies.len().max(1) as f64,
    };
    let shares = run.policies.iter().flat_map(guests).filter_map(median);
    let x = Scale::from_zero(Some(shares.fold(1.0, f64::max)), TICKS, panel.xs());
    let mut marks = vec![panel.x_axis(&x, TICKS, "CPU time, in equal shares of the cores", short)];
    if let Some(one) = x.at(1.0) {
        marks.push(line(one, panel.top, one, panel.bottom()).class("reference"));
    }
    for (i, (policy, look)) in run.policies.iter().zip(run.looks()).enumerate() {
        let top = panel.top + i as f64 * ROW;
        let middle = top + ROW / 2.0;
        let mut g = el("g")
            .class(look.class())
            .child(
                el("text")
                    .class("name")
                    .num("x", panel.left - 10.0)
                    .num("y", middle + 4.0)
                    .attr("text-anchor", "end")
                    .text(label(policy)),
            )
            .child(line(panel.left, middle, panel.right(), middle).class("grid"));
        // The loaded guest last, so that it lies on top.
        let (loaded, others): (Vec<_>, Vec<_>) =
            guests(policy).iter().partition(|guest| guest.loaded);
        for guest in others.into_iter().chain(loaded) {
            let Some((share, at)) = median(guest).and_then(|share| Some((share, x.at(share)?)))
            else {
                continue;
            };
            let tip = format!("{}\n{}: {}", policy.policy, guest.guest, times(share));
            g = g.child(if guest.loaded {
                look.mark(at, middle)
            } else {
                line(at, middle - 8.0, at, middle + 8.0).class("stroke")
            });
            g = g.child(hit(at - 4.0, top, 8.0, ROW, tip));
        }
        marks.push(g);
    }
    let drawing = Drawing {
        id: "sharing-shares".to_owned(),
        title: "What each guest had, in equal shares",
        description: "A row per policy: a mark for the guest that serves the load, a stroke for each other guest; medians of the rounds. The \
                      table below holds the same figures.",
        width: WIDTH,
        height: panel.bottom() + 48.0,
    };
    let rows = run.policies.iter().flat_map(|policy| {
        guests(policy).iter().map(|guest| {
            let cell = |read: fn(Spread) -> f64| {
                let spread = guest.of_equal.and_then(Spread::finite);
                spread.map_or(MISSING.to_owned(), |spread| times(read(spread)))
            };
            vec![
                policy.policy.clone(),
                guest.guest.clone(),
                cell(|s| s.median),
                cell(|s| s.min),
                cell(|s| s.max),
            ]
        })
    });
    let table = folded_table(
        "The same as a table".to_owned(),
        &["policy", "guest", "median", "lowest round", "highest round"],
        rows,
    );
    el("figure")
        .class("chart")
        .child(el("p").class("quiet").text(
            "Each guest\u{2019}s CPU time, in equal shares of the cores by vCPUs: the marks are the guest that serves the load, the strokes all others. \
             What it leaves, as it sleeps, is theirs; where all strokes lie together, it is divided fairly.",
        ))
        .child(el("div").class("scroll").child(drawing.svg(marks)))
        .child(table)
}
