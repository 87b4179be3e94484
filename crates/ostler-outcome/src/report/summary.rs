//! What a run of a scenario amounts to: the typed input of the report, and the line that is kept per policy.
//!
//! Whatever was not measured is `None`, and is drawn as a gap. A figure of several rounds is a [`Spread`]: its median, and how far
//! the rounds lay apart.

use ostler_report::figures::Figures;
use ostler_report::timeline::Timeline;
use ostler_report::{Family, Look, Spread, looks};
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
    /// How each policy is drawn, in order.
    pub fn looks(&self) -> Vec<Look> {
        looks(self.policies.iter().map(|policy| policy.family))
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
    /// The emulated machine's own.
    Machine,
    /// A world's that is not made of instructions but of what things cost.
    #[value(skip)]
    Simulated,
}

impl Clock {
    /// Who ran it.
    pub fn world(self) -> &'static str {
        match self {
            Clock::Wall | Clock::Machine => "ostler lab",
            Clock::Simulated => "ostler sim",
        }
    }
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

/// P95 at one offered load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// Offered load.
    pub rate_per_s: f64,
    /// P95 over the rounds.
    pub p95_us: Option<Spread>,
}
