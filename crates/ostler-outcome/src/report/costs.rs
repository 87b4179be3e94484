//! System events relative to the baseline (seed figures 9 and 10): context switches, migrations, interrupts, exits.

use ostler_report::bars::{Bar, Chart, Unit};
use ostler_report::figures::Figures;
use ostler_report::frame::folded_table;
use ostler_report::say::{clipped, short};
use ostler_report::{Node, Spread, el};

use super::summary::{PolicySummary, RunSummary};

pub(super) type Read = fn(&Figures) -> Option<Spread>;

/// Id, name, and where to find it.
const EVENTS: [(&str, &str, Read); 4] = [
    ("ctx", "Context switches", |f| f.ctx_switches_per_s),
    ("migrations", "Migrations", |f| f.migrations_per_s),
    ("irqs", "Interrupts", |f| f.irqs_per_s),
    ("exits", "KVM exits", |f| f.kvm_exits_per_s),
];

/// A chart's bars: a figure of each policy.
pub fn bars(run: &RunSummary, label: fn(&PolicySummary) -> String, read: Read) -> Vec<Bar<'_>> {
    let policies = run.policies.iter().zip(run.looks());
    policies
        .map(|(policy, look)| Bar {
            name: &policy.policy,
            label: label(policy),
            look,
            figure: read(&policy.figures),
        })
        .collect()
}

/// The four figures.
pub fn figure(run: &RunSummary) -> Node {
    let baseline = run.policies.iter().find(|p| p.policy == run.baseline);
    let charts = EVENTS.iter().map(|&(id, name, read)| {
        let chart = Chart {
            id: format!("events-{id}"),
            name,
            title: format!("{name} per second relative to the baseline"),
            say: |count| format!("{}/s", short(count)),
            unit: Unit::Times {
                of: baseline.and_then(|baseline| read(&baseline.figures)),
                name: &run.baseline,
            },
        };
        chart.svg(&bars(run, |policy| clipped(&policy.policy, 18), read))
    });
    let rows = run.policies.iter().map(|policy| {
        let cell = |read: Read| {
            read(&policy.figures)
                .and_then(Spread::finite)
                .map_or("not measured".to_owned(), |s| short(s.median))
        };
        std::iter::once(policy.policy.clone())
            .chain(EVENTS.iter().map(|(_, _, read)| cell(*read)))
            .collect()
    });
    let head: Vec<String> = std::iter::once("policy".to_owned())
        .chain(EVENTS.iter().map(|(_, name, _)| format!("{name}/s")))
        .collect();
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    el("figure")
        .class("chart")
        .child(el("div").class("panels").children(charts))
        .child(folded_table("The same as a table".to_owned(), &head, rows))
}
