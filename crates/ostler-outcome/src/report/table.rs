//! The table of all policies and figures.

use ostler_report::Node;
use ostler_report::figures::Figures;
use ostler_report::say::{micros, percent, short};
use ostler_report::table::{Better, Column, Row};

use super::summary::RunSummary;

/// How many columns, from the last, are shown only where somebody counts what is in them or in one after it.
const COUNTED: usize = 3;

const COLUMNS: [Column<Figures>; 14] = [
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
    Column {
        field: "energy_j",
        head: "energy, J",
        better: Better::Less,
        say: short,
        read: |f| f.energy_j,
    },
    Column {
        field: "local_unused",
        head: "near memory unused",
        better: Better::Less,
        say: percent,
        read: |f| f.local_unused,
    },
    Column {
        field: "moved_mib",
        head: "memory moved, MiB",
        better: Better::Less,
        say: short,
        read: |f| f.moved_mib,
    },
];

/// The table.
pub fn table(run: &RunSummary) -> Node {
    let rows: Vec<_> = run
        .policies
        .iter()
        .map(|policy| Row {
            name: &policy.policy,
            about: &policy.about,
            family: policy.family,
            baseline: policy.policy == run.baseline,
            figures: &policy.figures,
        })
        .collect();
    let counted =
        |column: &&Column<Figures>| rows.iter().any(|row| (column.read)(row.figures).is_some());
    let last = COLUMNS[COLUMNS.len() - COUNTED..].iter().rev();
    let without = last.take_while(|column| !counted(column)).count();
    let columns = &COLUMNS[..COLUMNS.len() - without];
    ostler_report::table::table("summary-table", columns, &rows, run.rounds)
}

#[cfg(test)]
mod tests {
    use super::*;

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
