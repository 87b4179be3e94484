//! What a policy is judged by: its figures in one round, over all rounds, and the lines of JSON that are kept of it. The lab and the simulator write
//! the same keys where they mean the same.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::spread::Spread;

/// One policy's figures in one round, and the line that `--json` writes of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PolicyLine {
    /// The policy's name.
    pub policy: String,
    /// Highest offered load whose P95 was within the objective; 0 when there was none.
    pub max_rate_under_slo: Option<f64>,
    /// Share of seconds whose P95 was within the objective.
    pub slo_met_share: Option<f64>,
    /// Cores held by vCPUs and queues, integrated over the run.
    pub core_seconds: Option<f64>,
    /// Median latency.
    pub p50_us: Option<f64>,
    /// 95th percentile of latency.
    pub p95_us: Option<f64>,
    /// 99th percentile of latency.
    pub p99_us: Option<f64>,
    /// Context switches on the cores under test.
    pub ctx_switches_per_s: Option<f64>,
    /// Migrations of threads between cores.
    pub migrations_per_s: Option<f64>,
    /// Interrupts on the cores under test.
    pub irqs_per_s: Option<f64>,
    /// Exits of the guests' vCPUs.
    pub kvm_exits_per_s: Option<f64>,
    /// CPU time that best-effort guests got.
    pub be_core_seconds: Option<f64>,
    /// Energy of all cores while under load, J.
    #[serde(default)]
    pub energy_j: Option<f64>,
    /// The share of near memory that nobody had, in the mean under load, on hosts with far memory.
    #[serde(default)]
    pub local_unused: Option<f64>,
    /// Memory that moved between near and far, MiB.
    #[serde(default)]
    pub moved_mib: Option<f64>,
    /// Correct answers, over the whole cell.
    pub ops_per_s: Option<f64>,
    /// Median latency over the whole cell, and not of its seconds; of loads of one step alone, as percentiles of several can't be merged.
    pub cell_p50_us: Option<f64>,
    /// The same of the 95th percentile.
    pub cell_p95_us: Option<f64>,
    /// The same of the 99th percentile.
    pub cell_p99_us: Option<f64>,
    /// From an interrupt or IPI for a vCPU of the loaded guest that doesn't run to its running: a bound that 99 % are below, by the scheduler's own count. It is a
    /// power of two. `None` where the kernel's own scheduler has vCPUs, which counts none.
    pub irq_to_run_p99_us: Option<f64>,
    /// How far any guest that is always busy was from an equal share in any 10 s, as a share of it; of loads that are shorter, over the cell. An equal
    /// share is what guests had in all, divided by vCPUs; what a guest leaves that sleeps is divided among the others. `None` where guests don't
    /// compete as equals: where one is suspended, or yields, or has other cores than others.
    pub fairness_error_10s: Option<f64>,
    /// Work that best-effort guests did, in what they do in an equal share of the cores: 1 is the fair share, and above it is what others left.
    /// What a core-second's work is, the first policy's best round tells, if its guests don't share cores; else `None`.
    pub neighbour_throughput: Option<f64>,
}

macro_rules! figures {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// The figures of [`PolicyLine`] over all rounds.
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
        pub struct Figures {
            $($(#[$doc])* pub $name: Option<Spread>,)*
        }

        impl Figures {
            /// Puts rounds of one policy together.
            pub fn over_rounds(rounds: &[PolicyLine]) -> Self {
                Self { $($name: Spread::of(rounds.iter().map(|r| r.$name)),)* }
            }

            /// The medians, as one line.
            pub fn line(&self, policy: &str) -> PolicyLine {
                PolicyLine {
                    policy: policy.to_owned(),
                    $($name: self.$name.map(|s| s.median),)*
                }
            }

            /// Least and most of each figure that isn't the same in all rounds.
            pub fn ranges(&self) -> BTreeMap<String, [f64; 2]> {
                let all = [$((stringify!($name), self.$name),)*];
                let told = all.into_iter().filter_map(|(name, spread)| Some((name, spread?)));
                let differ = told.filter(|(_, spread)| spread.min < spread.max);
                differ.map(|(name, spread)| (name.to_owned(), [spread.min, spread.max])).collect()
            }
        }
    };
}

figures! {
    /// Highest offered load whose P95 was within the objective; 0 when there was none.
    max_rate_under_slo,
    /// Share of seconds whose P95 was within the objective.
    slo_met_share,
    /// Cores held by vCPUs and queues, integrated over the run.
    core_seconds,
    /// Median latency.
    p50_us,
    /// 95th percentile of latency.
    p95_us,
    /// 99th percentile of latency.
    p99_us,
    /// Context switches on the cores under test.
    ctx_switches_per_s,
    /// Migrations of threads between cores.
    migrations_per_s,
    /// Interrupts on the cores under test.
    irqs_per_s,
    /// Exits of the guests' vCPUs.
    kvm_exits_per_s,
    /// CPU time that best-effort guests got.
    be_core_seconds,
    /// Energy of all cores while under load, J.
    energy_j,
    /// The share of near memory that nobody had.
    local_unused,
    /// Memory that moved between near and far, MiB.
    moved_mib,
    /// Correct answers, over the whole cell.
    ops_per_s,
    /// Median latency over the whole cell.
    cell_p50_us,
    /// 95th percentile of latency over the whole cell.
    cell_p95_us,
    /// 99th percentile of latency over the whole cell.
    cell_p99_us,
    /// From an interrupt or IPI to its vCPU running: a bound that 99 % are below.
    irq_to_run_p99_us,
    /// How far any guest that is always busy was from an equal share in any 10 s.
    fairness_error_10s,
    /// Work that best-effort guests did, in what they do in an equal share of the cores.
    neighbour_throughput,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_exactly_the_promised_fields() {
        let rounds = [1.0, 9.0, 2.0].map(|x| PolicyLine {
            p95_us: Some(x),
            ..PolicyLine::default()
        });
        let figures = Figures::over_rounds(&rounds);
        let ranges = figures.ranges().into_iter().collect::<Vec<_>>();
        assert_eq!(ranges, [("p95_us".to_owned(), [1.0, 9.0])]);
        assert_eq!(Figures::over_rounds(&rounds[..1]).ranges(), BTreeMap::new());
        let line = figures.line("vspace-p");
        insta::assert_snapshot!(serde_json::to_string(&line).unwrap(), @r#"{"policy":"vspace-p","max_rate_under_slo":null,"slo_met_share":null,"core_seconds":null,"p50_us":null,"p95_us":2.0,"p99_us":null,"ctx_switches_per_s":null,"migrations_per_s":null,"irqs_per_s":null,"kvm_exits_per_s":null,"be_core_seconds":null,"energy_j":null,"local_unused":null,"moved_mib":null,"ops_per_s":null,"cell_p50_us":null,"cell_p95_us":null,"cell_p99_us":null,"irq_to_run_p99_us":null,"fairness_error_10s":null,"neighbour_throughput":null}"#);
    }
}
