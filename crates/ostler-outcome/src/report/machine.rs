//! What the emulated machine counted under each policy: where accesses were served, and what they cost.

use ostler_report::say::{percent, short};
use ostler_report::table::missing;
use ostler_report::{Node, el};

use super::summary::RunSummary;
use crate::events::{MachineCounters, SERVED};

pub const ABOUT: &str = "The emulated machine\u{2019}s own counters, on the cores under test while the load was on, over all rounds. Shares are of \
    all accesses: fetched lines, loads and stores. Stalls are the time that accesses took beyond hits of the first cache, as a share of \
    the time in which cores weren\u{2019}t halted.";

/// The table; `None` where the machine counted nothing.
pub fn table(run: &RunSummary) -> Option<Node> {
    let counted: Vec<_> = run
        .policies
        .iter()
        .filter_map(|policy| Some((policy.policy.as_str(), policy.machine.as_ref()?)))
        .collect();
    let caches = counted.iter().any(|(_, counted)| counted.served.is_some());
    let nodes = counted
        .iter()
        .map(|(_, counted)| counted.node_bytes.len())
        .max()?;
    let mut heads = vec!["policy".to_owned(), "halted".into(), "instructions".into()];
    if caches {
        heads.extend(SERVED.map(str::to_owned));
        heads.extend(["stalled", "waiting for bandwidth", "snoops"].map(str::to_owned));
        heads.extend((0..nodes).map(|node| format!("node {node}, MB")));
    }
    let head = heads
        .into_iter()
        .map(|head| el("th").attr("scope", "col").text(head));
    let rows = counted.iter().map(|(policy, counted)| {
        let cells = cells(counted, caches, nodes);
        el("tr")
            .child(el("th").attr("scope", "row").text((*policy).to_owned()))
            .children(
                cells
                    .into_iter()
                    .map(|cell| cell.map_or_else(missing, |text| el("td").text(text))),
            )
    });
    Some(
        el("figure").class("summary").child(
            el("div").class("scroll").child(
                el("table")
                    .attr("id", "machine-table")
                    .child(el("thead").child(el("tr").children(head)))
                    .child(el("tbody").children(rows)),
            ),
        ),
    )
}

fn cells(counted: &MachineCounters, caches: bool, nodes: usize) -> Vec<Option<String>> {
    let share = |part: f64, whole: f64| (whole > 0.0).then(|| percent(part / whole));
    let mut cells = vec![
        share(counted.halted_s, counted.core_seconds),
        Some(short(counted.instructions as f64)),
    ];
    if !caches {
        return cells;
    }
    let Some(served) = counted.served else {
        cells.resize(2 + SERVED.len() + 3 + nodes, None);
        return cells;
    };
    let all: u64 = served.iter().sum();
    cells.extend(served.map(|count| share(count as f64, all as f64)));
    let busy = counted.core_seconds - counted.halted_s;
    cells.push(share(counted.stall_s, busy));
    cells.push(share(counted.queued_s, busy));
    cells.push(Some(short(counted.snoops as f64)));
    let bytes = (0..nodes).map(|node| counted.node_bytes.get(node));
    cells.extend(bytes.map(|bytes| Some(short(*bytes? as f64 / 1e6))));
    cells
}
