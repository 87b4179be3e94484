//! What a run of a scenario amounts to: the typed input of the report, and the line that is kept per policy.
//!
//! Whatever was not measured is `None`, and is drawn as a gap. A figure of several rounds is a [`Spread`]: its median, and how far
//! the rounds lay apart.

use serde::{Deserialize, Serialize};

use super::sharing::Sharing;
use crate::events::MachineCounters;

/// A run: the same scenario under several policies, in several interleaved rounds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunSummary {
    /// The scenario's name.
    pub scenario: String,
    /// One sentence on what it does.
    pub description: String,
    /// Revision of the source that ran.
    pub revision: String,
    /// When it started, in words (the report doesn't look at a clock).
    pub started: String,
    /// What it ran on.
    pub host: Host,
    /// What the latency-critical guest serves, and to whom.
    pub workload: String,
    /// How often each policy ran.
    pub rounds: u32,
    /// Whose seconds these are.
    pub clock: Clock,
    /// The objective for P95.
    pub slo_us: f64,
    /// Name of the policy that others are compared with.
    pub baseline: String,
    /// The policies, in the order in which they are shown.
    pub policies: Vec<PolicySummary>,
}

impl RunSummary {
    /// One line per policy: its medians, for `--json`.
    pub fn lines(&self) -> impl Iterator<Item = PolicyLine> + '_ {
        self.policies.iter().map(|p| p.figures.line(&p.policy))
    }
}

/// The machine that was looked after.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// What it is, in words.
    pub name: String,
    /// Cores that policies may use.
    pub cores: u32,
    /// Its kernel.
    pub kernel: String,
    /// What emulates or virtualises it.
    pub hypervisor: String,
    /// On machine time: what an instruction costs, ns, where memory costs nothing of its own.
    pub instruction_ns: f64,
    /// On machine time: the part that its cores and memory cost time like, if they do.
    pub part: Option<String>,
}

/// Whose seconds a run is measured in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Clock {
    /// The real machine's: what else it does shows in rates and latencies.
    Wall,
    /// The simulated machine's own.
    Machine,
}

/// Whether a policy is ours or stands for what others do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// Something to be compared with.
    Baseline,
    /// The steward's.
    Ostler,
}

/// All that one policy did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PolicySummary {
    /// Its name; unique in a run.
    pub policy: String,
    /// What it does, in a few words.
    pub about: String,
    /// Ours or not.
    pub family: Family,
    /// Its figures over all rounds.
    pub figures: Figures,
    /// P95 at each offered load, over all rounds, by rising load.
    pub curve: Vec<CurvePoint>,
    /// One round, second by second: the one whose figures lie nearest to the medians.
    pub timeline: Option<Timeline>,
    /// What the emulated machine counted, over all rounds.
    #[serde(default)]
    pub machine: Option<MachineCounters>,
    /// How guests shared their cores; only in runs that compare schedulers of vCPUs.
    #[serde(default)]
    pub sharing: Option<Sharing>,
}

/// A figure over several rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The middle round (the mean of the two middle ones when there is an even number).
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// The spread of the rounds that have a value; `None` when none has.
    pub fn of(rounds: impl IntoIterator<Item = Option<f64>>) -> Option<Self> {
        let mut values: Vec<f64> = rounds
            .into_iter()
            .flatten()
            .filter(|v| v.is_finite())
            .collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let upper = *values.get(middle)?;
        // Halved before adding, so that two huge values don't overflow.
        let median = if values.len() % 2 == 1 {
            upper
        } else {
            values[middle - 1] / 2.0 + upper / 2.0
        };
        Some(Self {
            median,
            min: values[0],
            max: values[values.len() - 1],
        })
    }

    /// The same, unless something in it is not a number.
    pub(crate) fn finite(self) -> Option<Self> {
        [self.median, self.min, self.max]
            .iter()
            .all(|v| v.is_finite())
            .then_some(self)
    }
}

/// One policy's figures in one round, and the line that `ostler lab run --json` writes.
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

/// P95 at one offered load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// Offered load.
    pub rate_per_s: f64,
    /// P95 over the rounds.
    pub p95_us: Option<Spread>,
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_extremes_ignore_what_was_not_measured() {
        assert_eq!(Spread::of([None, Some(f64::NAN)]), None);
        assert_eq!(
            Spread::of([Some(3.0), None, Some(1.0), Some(2.0)]),
            Some(Spread {
                median: 2.0,
                min: 1.0,
                max: 3.0
            })
        );
        assert_eq!(
            Spread::of([Some(4.0), Some(2.0)]).map(|s| s.median),
            Some(3.0)
        );
    }

    #[test]
    fn a_line_has_exactly_the_promised_fields() {
        let rounds = [1.0, 9.0, 2.0].map(|x| PolicyLine {
            p95_us: Some(x),
            ..PolicyLine::default()
        });
        let line = Figures::over_rounds(&rounds).line("vspace-p");
        insta::assert_snapshot!(serde_json::to_string(&line).unwrap(), @r#"{"policy":"vspace-p","max_rate_under_slo":null,"slo_met_share":null,"core_seconds":null,"p50_us":null,"p95_us":2.0,"p99_us":null,"ctx_switches_per_s":null,"migrations_per_s":null,"irqs_per_s":null,"kvm_exits_per_s":null,"be_core_seconds":null,"ops_per_s":null,"cell_p50_us":null,"cell_p95_us":null,"cell_p99_us":null,"irq_to_run_p99_us":null,"fairness_error_10s":null,"neighbour_throughput":null}"#);
    }
}
