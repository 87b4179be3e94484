//! The report: from a [`RunSummary`] to one HTML file that needs nothing else.
//!
//! [`render`] is pure: no clock, no files, no network. What its figures are drawn with is `ostler-report`'s; here is what is shown of a run of the lab, and
//! in which order.

mod costs;
mod curves;
mod delays;
mod fleet;
mod guests;
mod headline;
mod loads;
mod machine;
mod shares;
mod sharing;
mod side;
mod summary;
mod table;

#[cfg(test)]
mod tests;

pub use fleet::{FleetResult, FleetRun, render_fleet};
pub use ostler_report::figures::{Figures, PolicyLine};
pub use ostler_report::timeline::{Cores, Decision, Interval, Sample, Timeline};
pub use ostler_report::{Family, Spread};
pub use sharing::{Account, GuestShare, GuestSpan, GuestTimeline, Sharing};
pub use side::{Side, render_compared};
pub use summary::{Clock, CurvePoint, Host, PolicySummary, RunSummary};

use ostler_report::timeline;
use ostler_report::{Node, el, page, section};

/// The whole page for a run of one load.
pub fn render(run: &RunSummary) -> String {
    render_all(&[run])
}

/// The whole page for a run of several loads: the loads one after the other, each with its own plots.
pub fn render_all(runs: &[&RunSummary]) -> String {
    let scenario = runs.first().map_or("no loads", |run| run.scenario.as_str());
    // The first load's ids are bare, so that links to a page of one load are simple.
    let parts = runs.iter().enumerate().flat_map(|(at, run)| {
        let prefix = if at == 0 {
            String::new()
        } else {
            format!("load-{at}-")
        };
        [headline::header(run), main(run)].map(|part| part.prefix_ids(&prefix))
    });
    let body = el("body")
        .children(loads::section(runs))
        .children(parts)
        .child(footer());
    let world = runs.first().map_or("ostler", |run| run.clock.world());
    page(format!("{scenario} \u{b7} {world}"), body)
}

fn main(run: &RunSummary) -> Node {
    let mut main = el("main")
        .child(headline::caveat(run))
        .child(headline::cards(run));
    main = main
        .child(section("policies", "Policies side by side").child(table::table(run)))
        .child(
            section("latency", "How far the objective holds")
                .child(el("p").text("P95 of the latency-critical guest as the offered load rises. Higher and further left is worse."))
                .child(curves::figure(run)),
        )
        .child(
            section("events", "What it costs the host")
                .child(el("p").text(format!("System events at the same load, as multiples of {}. Fewer is better.", run.baseline)))
                .child(costs::figure(run)),
        );
    if let Some(table) = machine::table(run) {
        main = main.child(
            section("machine", "What the emulated cores did")
                .child(el("p").text(machine::ABOUT))
                .child(table),
        );
    }
    if let Some(sharing) = sharing::section(run) {
        main = main.child(sharing);
    }
    let timelines: Vec<_> = run
        .policies
        .iter()
        .filter_map(|policy| policy.timeline.as_ref())
        .collect();
    let shared = timeline::Shared::new(&timelines, run.host.cores, run.slo_us);
    let of_guests = guests::Shared::new(run);
    let sections = run
        .policies
        .iter()
        .enumerate()
        .map(|(i, policy)| policy_section(policy, i, &shared, &of_guests));
    main.child(
        section("time", "Over time")
            .child(el("p").text(
                "One round of each policy, the one nearest to the medians. All share their scales. Point at a plot for its figures.",
            ))
            .child(contents(run))
            .children(sections),
    )
}

fn contents(run: &RunSummary) -> Node {
    let links = run.policies.iter().enumerate().map(|(i, p)| {
        el("li").child(
            el("a")
                .attr("href", format!("#policy-{i}"))
                .text(p.policy.clone()),
        )
    });
    el("nav")
        .attr("aria-label", "policies")
        .child(el("ul").class("contents").children(links))
}

fn policy_section(
    policy: &PolicySummary,
    index: usize,
    shared: &timeline::Shared,
    of_guests: &guests::Shared,
) -> Node {
    let class = if policy.family == Family::Ostler {
        "policy ours"
    } else {
        "policy base"
    };
    let body = el("section")
        .class(class)
        .attr("id", format!("policy-{index}"))
        .child(
            el("h3")
                .text(policy.policy.clone())
                .child(el("span").class("about").text(policy.about.clone())),
        );
    let body = body.child(el("p").class("strapline").text(headline::strapline(policy)));
    let body = match &policy.timeline {
        Some(timeline) if !timeline.samples.is_empty() => {
            body.child(timeline::figure(&policy.policy, timeline, index, shared))
        }
        _ => body.child(
            el("p")
                .class("quiet")
                .text("No round was recorded second by second."),
        ),
    };
    let sharing = policy.sharing.as_ref();
    body.children(sharing.and_then(|sharing| guests::figure(policy, sharing, index, of_guests)))
}

fn footer() -> Node {
    el("footer")
        .child(el("h2").text("How to read this"))
        .child(el("p").text(
            "Load comes from an open-loop Poisson client. Latency runs from the time a request was due, so a stalled server is charged for \
             every request that was due in the stall; failed and unanswered requests count as if never answered within their deadline. \
             A second is within the objective when its P95 is.",
        ))
        .child(el("p").text(
            "Core-seconds integrate the cores held by vCPUs and network queues over the run; best-effort core-seconds are the CPU time that \
             best-effort guests got. Policies run in interleaved rounds, so that slow drifts of the host fall on all of them alike.",
        ))
}
