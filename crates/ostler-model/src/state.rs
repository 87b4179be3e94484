//! What the policies carry from one decision to the next.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{Bytes, FilesPlan, Groups, GuestId, HintsPlan, Nanos, PlacementPlan, TierPlan};

/// All that `decide()` remembers. Part of the record: a decision can be made again from it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Generation of the last plan; 0 before the first.
    pub generation: u64,
    /// The partition layer's memory.
    pub partition: PartitionState,
    /// The placement layer's memory.
    #[serde(default, skip_serializing_if = "PlacementState::is_empty")]
    pub placement: PlacementState,
    /// The tier layer's memory.
    #[serde(default, skip_serializing_if = "TierState::is_empty")]
    pub tier: TierState,
    /// The sizing layer's memory.
    #[serde(default, skip_serializing_if = "SizingState::is_empty")]
    pub sizing: SizingState,
    /// The hints layer's memory.
    #[serde(default, skip_serializing_if = "HintsState::is_empty")]
    pub hints: HintsState,
}

/// The placement layer's memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PlacementState {
    /// When it decided last; `None` before that.
    pub decided: Option<Nanos>,
    /// What.
    pub plan: Option<Arc<PlacementPlan>>,
    /// Whether what it had moved was worth it.
    #[serde(default, skip_serializing_if = "Trust::is_usual")]
    pub trust: Trust,
}

/// Whether moves of threads brought what they were made for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trust {
    /// The margin is so many times the setting's, 1 to 16.
    pub wary: f64,
    /// The mean slowdown before the last moves, and what it was to be after them; `None` once that is known.
    pub promised: Option<[f64; 2]>,
}

impl Default for Trust {
    /// Nothing is known yet.
    fn default() -> Trust {
        Trust {
            wary: 1.0,
            promised: None,
        }
    }
}

impl Trust {
    fn is_usual(&self) -> bool {
        *self == Trust::default()
    }
}

/// The tier layer's memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TierState {
    /// When it decided last; `None` before that.
    pub decided: Option<Nanos>,
    /// What.
    pub plan: Option<Arc<TierPlan>>,
    /// When all that it has had moved is where it is to be, at the rate that is set; zero where nothing moves.
    #[serde(default)]
    pub until: Nanos,
    /// What was seen of each guest, in order of [`GuestId`].
    #[serde(default)]
    pub guests: Arc<[TierWatch]>,
}

/// When a guest came, and when it last used its memory much.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierWatch {
    /// Which guest.
    pub guest: GuestId,
    /// When it was seen first: who came first is served first.
    pub came: Nanos,
    /// When it last pressed on its memory; `None` if it never has.
    pub pressed: Option<Nanos>,
    /// When it last did IO; `None` if it never has.
    pub io: Option<Nanos>,
}

/// The sizing layer's memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SizingState {
    /// When memory was shared out last; `None` before that.
    pub shared: Option<Nanos>,
    /// What it decided last.
    pub plan: Option<Arc<FilesPlan>>,
    /// Each guest's control loop, in order of [`GuestId`].
    pub guests: Arc<[Arc<FilesControl>]>,
}

/// The control loop of a guest's files (Hylics, section 5.1); the policy's module tells what the figures mean.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FilesControl {
    /// Which guest.
    pub guest: GuestId,
    /// What it wishes for.
    pub wish: Bytes,
    /// What it was given.
    pub granted: Bytes,
    /// Its control interval.
    pub interval: Nanos,
    /// When that is over.
    pub next: Nanos,
    /// What was seen last, and how much it had by then.
    pub last: Option<FilesSample>,
    /// What response times and counts have told so far.
    pub found: FilesFound,
    /// The error and the change of the last interval.
    pub pair: Option<(f64, f64)>,
    /// theta.
    pub theta: [f64; 2],
    /// F: its diagonal, and what is beside that.
    pub gain: [f64; 3],
    /// The step of size that changes are counted in.
    pub unit: Bytes,
}

/// What response times and counts of arrivals have told of a guest's tasks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FilesFound {
    /// Tasks that ever arrived, and the time in which they did, s.
    pub arrived: f64,
    /// Likewise.
    pub seconds: f64,
    /// Since when the rate may have been what it is.
    pub spans: Vec<FilesSpan>,
    /// How long tasks take, in multiples of what was measured.
    pub times: f64,
    /// From how many tasks that is known.
    pub tasks: f64,
    /// The response time that is to be expected now, s.
    pub response_s: f64,
}

/// A time since which the rate of arrivals may have been the same.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct FilesSpan {
    /// Tasks that arrived since.
    pub tasks: f64,
    /// How long it is, s.
    pub seconds: f64,
    /// How likely it is.
    pub likelihood: f64,
}

/// What was seen of a guest's tasks at the end of a control interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct FilesSample {
    /// Mean response time, s.
    pub response_s: f64,
    /// Arrivals a second.
    pub arrivals_per_s: f64,
    /// What its files had.
    pub bytes: Bytes,
}

/// The hints layer's memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HintsState {
    /// The host's secret, from which guests' numberings are made; `None` before the first hints.
    pub key: Option<[u8; 32]>,
    /// What was published last.
    pub plan: Option<Arc<HintsPlan>>,
    /// When guests were last granted a pin, in order of [`GuestId`].
    pub granted: Arc<[PinGrant]>,
}

/// When a guest was last granted a pin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinGrant {
    /// Which guest.
    pub guest: GuestId,
    /// When.
    pub at: Nanos,
}

impl PlacementState {
    /// Whether it has decided nothing yet.
    pub fn is_empty(&self) -> bool {
        self.decided.is_none()
    }
}

impl TierState {
    /// Whether it has decided nothing yet.
    pub fn is_empty(&self) -> bool {
        self.decided.is_none() && self.guests.is_empty() && self.until == Nanos::ZERO
    }
}

impl SizingState {
    /// Whether it has decided nothing yet.
    pub fn is_empty(&self) -> bool {
        self.plan.is_none() && self.guests.is_empty()
    }
}

impl HintsState {
    /// Whether it has decided nothing yet.
    pub fn is_empty(&self) -> bool {
        self.key.is_none()
    }
}

/// The partition layer's memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PartitionState {
    /// Thresholds in force; `None` before the first decision, which takes the intent's.
    pub thresholds: Option<Thresholds>,
    /// The intent's thresholds that those in force were explored from; when the operator sets others, exploration begins anew.
    pub configured: Option<Thresholds>,
    /// The groups of the last plan: the next demand is measured on them, and a core leaves its group only when it must.
    pub previous: Option<Groups>,
    /// Demand of vCPUs within the intent's hold, the highest first.
    pub vcpu_peaks: Vec<Peak>,
    /// Demand of network queues within the intent's hold, the highest first.
    pub nq_peaks: Vec<Peak>,
    /// Average demand of vCPUs and network queues over about the intent's hold; `None` before the first measurement.
    pub average: Option<Average>,
    /// How near objectives are, and what is lent by that; `None` until a guest with an objective has answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub room: Option<Room>,
    /// Samples since the last exploration, at most as many as one exploration takes.
    pub samples: Vec<Sample>,
    /// Explorations so far.
    pub explorations: u64,
}

/// The share of its cores' time that a group may use before it needs more cores (`Th` in vSPACE).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Thresholds {
    /// For vCPU cores, 0..1.
    pub vcpu: f64,
    /// For network queue cores, 0..1.
    pub nq: f64,
}

impl Default for Thresholds {
    fn default() -> Thresholds {
        Thresholds { vcpu: 0.7, nq: 0.7 }
    }
}

/// What best-effort guests with cores of their own have besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Leftovers {
    /// Nothing.
    Nothing,
    /// What vCPUs leave of their cores.
    OfVcpus,
    /// What queues leave of theirs, too.
    OfAll,
}

/// How near the objectives are, and what of latency-critical guests' cores best-effort guests are lent by that.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Room {
    /// P95 over objective of the guest that fares worst, averaged over about a second.
    pub p95_over_slo: f64,
    /// What they have.
    pub lent: Leftovers,
    /// Since when.
    pub since: Nanos,
    /// Answers a second of all guests with an objective, averaged over some tenths of a second.
    pub rate: f64,
    /// Up to how many a second it was looked at whether they bear what is lent.
    pub load: f64,
    /// How many a second there were when cores were last taken back for P95; `None`: they weren't, or it is another load now.
    pub taken_at: Option<f64>,
    /// How long after that it is tried again.
    pub trial: Nanos,
    /// Whether what they have was lent on trial, under a load that hasn't borne it before.
    pub on_trial: bool,
    /// When groups grew, again and again: the first time, and the last. `None` until one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grew: Option<(Nanos, Nanos)>,
    /// What `p95_over_slo` was when queues' cores were last lent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub apart: Option<f64>,
    /// How many times as long P95 is with queues' cores lent, as it was seen last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub costs: Option<f64>,
}

/// A group's demand in a period that no later one has exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Peak {
    /// When it was measured.
    pub at: Nanos,
    /// How much, in cores.
    pub busy: f64,
}

/// Demand averaged over periods, the recent ones most.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Average {
    /// Of vCPUs, in cores.
    pub vcpu: f64,
    /// Of network queues, in cores.
    pub nq: f64,
}

/// One period's evidence for threshold exploration.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// P95 over the objective, the worst of the latency-critical guests: above 1 is a violation.
    pub p95_over_slo: f64,
    /// Average utilisation of the vCPU cores, 0..1.
    pub vcpu: f64,
    /// Average utilisation of the network queue cores, 0..1.
    pub nq: f64,
}
