//! What the loop lets others see: one immutable value, swapped whole after each period, so that readers never hold the loop up.

use std::sync::{Arc, Mutex, PoisonError};

use ostler_model::{
    AgentHealth, Class, CpuPmu, CpuWeight, Facts, Groups, GuestId, GuestPmu, Intent, Nanos,
    Outcome, Plan, Reason, RunState, Snapshot,
};
use ostler_record::{Cost, Period, Stats, Wall};
use serde::{Deserialize, Serialize};

use super::totals::Totals;

/// The steward as it was after its last period.
#[derive(Clone, Debug)]
pub struct View {
    /// What the host is.
    pub facts: Arc<Facts>,
    /// What is wanted.
    pub intent: Arc<Intent>,
    /// Whether plans are carried out.
    pub acting: bool,
    /// The last period; `None` before the first.
    pub last: Option<Arc<Period>>,
    /// The last period whose plan asked for something new.
    pub last_change: Option<Arc<Period>>,
    /// What came of the last plan that was acted on.
    pub outcome: Option<Arc<Outcome>>,
    /// Counts since the start.
    pub totals: Arc<Totals>,
    /// How the record fares; `None` without one.
    pub record: Option<Stats>,
    /// When the steward started.
    pub started: Wall,
    /// The configuration in force.
    pub config: ConfigStatus,
    /// The last failure to sense, and how many periods ago it was the last word.
    pub sense_error: Option<String>,
}

/// The configuration in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigStatus {
    /// Its file; `None` when defaults are in force.
    pub file: Option<String>,
    /// When it was read.
    pub loaded: Wall,
    /// Why the last attempt to read it again was refused, if it was.
    pub refused: Option<String>,
    /// Keys that were changed but need a restart to take effect.
    pub needs_restart: Vec<String>,
}

/// The place where the view is swapped.
#[derive(Debug)]
pub struct Shared(Mutex<Arc<View>>);

impl Shared {
    /// Begins with this view.
    pub fn new(view: View) -> Shared {
        Shared(Mutex::new(Arc::new(view)))
    }

    /// The view of now.
    pub fn get(&self) -> Arc<View> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Swaps the view. The lock is held for an assignment on either side.
    pub fn set(&self, view: View) {
        let view = Arc::new(view);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = view;
    }
}

/// `/v1/status`: a summary for people and monitors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// This program's version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// When it started.
    pub started: Wall,
    /// `act` or `observe`.
    pub mode: String,
    /// The period.
    pub period: Nanos,
    /// The partition policy.
    pub policy: String,
    /// The last snapshot's number.
    pub seq: u64,
    /// When it was taken.
    pub at: Option<Wall>,
    /// The last plan's generation.
    pub generation: u64,
    /// How the cores are divided.
    pub groups: Groups,
    /// Busy cores per group, in cores.
    pub busy: Busy,
    /// The guests.
    pub guests: Vec<GuestStatus>,
    /// What the checker has against the last plan.
    pub violations: Vec<String>,
    /// What came of the last plan that was acted on.
    pub outcome: Option<Outcome>,
    /// What the machine's own counters tell of the last period, per CPU; empty where it has none that can be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pmu: Vec<CpuPmu>,
    /// The same per guest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub guest_pmu: Vec<GuestPmu>,
    /// What the last period cost.
    pub cost: Cost,
    /// Periods missed since the start.
    pub missed_periods: u64,
    /// What the steward can't do here, and why.
    pub missing: Vec<String>,
    /// The last failure to sense, while it lasts.
    pub sense_error: Option<String>,
    /// How the record fares.
    pub record: Option<RecordStatus>,
    /// The configuration in force.
    pub config: ConfigStatus,
}

/// Busy cores per group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Busy {
    /// Of the vCPU group.
    pub vcpu: f64,
    /// Of the network queue group.
    pub nq: f64,
    /// Of the best-effort group.
    pub best_effort: f64,
    /// Of all online cores.
    pub all: f64,
}

/// How the record fares.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordStatus {
    /// Periods written.
    pub written: u64,
    /// Periods dropped because the disk was too slow.
    pub dropped: u64,
    /// Periods lost to failures.
    pub failed: u64,
    /// Bytes in use.
    pub bytes: u64,
    /// The last failure.
    pub last_error: Option<String>,
}

/// A guest, in short.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GuestStatus {
    /// Its id.
    pub id: GuestId,
    /// Its name.
    pub name: String,
    /// Its class.
    pub class: Class,
    /// Its objective.
    pub slo: Option<Nanos>,
    /// P50, P95 and P99 of its last window, and that window's age.
    pub latency: Option<ostler_model::LatencyView>,
    /// Whether that P95 meets the objective.
    pub slo_met: Option<bool>,
    /// The share of periods with responses that missed it.
    pub slo_missed_share: Option<f64>,
    /// Whether the plan lets it run.
    pub run: Option<RunState>,
    /// How many vCPUs it has.
    pub vcpus: usize,
    /// How many cores' time they took.
    pub vcpu_busy: f64,
    /// The CPUs that the plan gives them.
    pub vcpu_cpus: Option<ostler_model::CpuSet>,
    /// What it weighs, where the plan gives it a weight.
    #[serde(default)]
    pub weight: Option<CpuWeight>,
    /// Its agent's health; `None` without one.
    pub agent: Option<AgentHealth>,
}

impl View {
    /// The view in short.
    pub fn status(&self) -> Status {
        let last = self.last.as_deref();
        let plan = last.map(|last| &*last.plan);
        let snapshot = last.map(|last| &*last.snapshot);
        let groups = plan.map(|plan| plan.groups).unwrap_or_default();
        let busy = |cpus| snapshot.map_or(0.0, |snapshot| snapshot.busy_cores(cpus));
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            started: self.started,
            mode: if self.acting { "act" } else { "observe" }.to_owned(),
            period: self.intent.period,
            policy: policy_name(&self.intent),
            seq: snapshot.map_or(0, |snapshot| snapshot.seq),
            at: last.map(|last| last.wall),
            generation: plan.map_or(0, |plan| plan.generation),
            groups,
            busy: Busy {
                vcpu: busy(&groups.vcpu),
                nq: busy(&groups.nq),
                best_effort: busy(&groups.best_effort),
                all: busy(&self.facts.topology.online()),
            },
            guests: snapshot.map_or_else(Vec::new, |snapshot| self.guests(snapshot, plan)),
            violations: last.map(|last| last.violations.clone()).unwrap_or_default(),
            outcome: self.outcome.as_deref().cloned(),
            pmu: snapshot.map_or_else(Vec::new, |snapshot| snapshot.pmu.clone()),
            guest_pmu: snapshot.map_or_else(Vec::new, |snapshot| snapshot.guest_pmu.clone()),
            cost: last.map(|last| last.cost).unwrap_or_default(),
            missed_periods: self.totals.missed_periods,
            missing: self
                .facts
                .capabilities
                .iter()
                .filter_map(|capability| {
                    let why = capability.missing.as_ref()?;
                    Some(format!("{}: {why}", capability.name))
                })
                .collect(),
            sense_error: self.sense_error.clone(),
            record: self.record.clone().map(|stats| RecordStatus {
                written: stats.written,
                dropped: stats.dropped,
                failed: stats.failed,
                bytes: stats.bytes,
                last_error: stats.last_error,
            }),
            config: self.config.clone(),
        }
    }

    fn guests(&self, snapshot: &Snapshot, plan: Option<&Plan>) -> Vec<GuestStatus> {
        let interval = snapshot.interval.as_secs_f64();
        snapshot
            .guests
            .iter()
            .map(|guest| {
                let (class, slo) = self.intent.classify(guest);
                let given = plan.and_then(|plan| plan.guest(&guest.id));
                let totals = self.totals.guests.get(&guest.id);
                let run: f64 = guest
                    .vcpus
                    .iter()
                    .map(|vcpu| vcpu.usage.run.as_secs_f64())
                    .sum();
                GuestStatus {
                    id: guest.id.clone(),
                    name: guest.name.clone(),
                    class,
                    slo,
                    latency: guest.latency,
                    slo_met: slo
                        .zip(guest.latency)
                        .map(|(slo, latency)| latency.p95 <= slo),
                    slo_missed_share: totals
                        .filter(|totals| slo.is_some() && totals.slo_samples > 0)
                        .map(|totals| totals.slo_violations as f64 / totals.slo_samples as f64),
                    run: given.map(|given| given.run),
                    vcpus: guest.vcpus.len(),
                    vcpu_busy: if interval > 0.0 { run / interval } else { 0.0 },
                    vcpu_cpus: given.map(|given| given.vcpu_cpus),
                    weight: given.map(|given| given.weight).filter(|w| w.is_set()),
                    agent: guest.agent.as_ref().map(|agent| agent.health.clone()),
                }
            })
            .collect()
    }
}

/// A policy by the name it has in the configuration.
pub fn policy_name(intent: &Intent) -> String {
    use ostler_model::{PartitionPolicy as P, QueueCount as Q};
    let queues = |count: &Q| match count {
        Q::One => "one queue",
        Q::Max => "all queues",
    };
    match &intent.partition.policy {
        P::Performance => "performance".to_owned(),
        P::Energy => "energy".to_owned(),
        P::Resource => "resource".to_owned(),
        P::TimeSharing { queues: count } => format!("time-sharing, {}", queues(count)),
        P::Static { vcpu, nq } => format!("static, {vcpu} vCPU + {nq} NQ"),
        P::CoreNap => "corenap".to_owned(),
        P::Demeter { queues: count } => format!("demeter, {}", queues(count)),
    }
}

/// A period as the API and `--json` show it: with its reasons as sentences, without its snapshot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Explained {
    /// When.
    pub wall: Wall,
    /// The same, for people.
    pub time: String,
    /// The snapshot's number.
    pub seq: u64,
    /// What was decided.
    pub plan: Plan,
    /// Why.
    pub reasons: Vec<Why>,
    /// What the checker had against it.
    pub violations: Vec<String>,
    /// What came of it; `None` when nothing was to be written.
    pub outcome: Option<Outcome>,
}

/// A reason, for programs and for people.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Why {
    /// As a sentence.
    pub text: String,
    /// As it is.
    pub reason: Reason,
}

impl From<&Period> for Explained {
    fn from(period: &Period) -> Explained {
        Explained {
            wall: period.wall,
            time: crate::output::time(period.wall),
            seq: period.snapshot.seq,
            plan: Plan::clone(&period.plan),
            reasons: period.reasons.iter().map(Why::from).collect(),
            violations: period.violations.clone(),
            outcome: period.outcome.clone(),
        }
    }
}

impl From<&Reason> for Why {
    fn from(reason: &Reason) -> Why {
        Why {
            text: reason.to_string(),
            reason: reason.clone(),
        }
    }
}
