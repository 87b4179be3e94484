//! A scenario as it is written: every value with its place in the text, none of them checked yet. The same types are written when a scenario is, so no key
//! is known in one direction only.

use ostler_model::{Class, CpuSet};
use serde::{Deserialize, Serialize};
use toml::Spanned;

use crate::{Arrivals, Expectation, FleetPlacement, Step, Wakeups, Weights, Workload};

/// A value without a place: one that isn't in the file.
pub(crate) fn nowhere<T>(value: T) -> Spanned<T> {
    Spanned::new(0..0, value)
}

fn none() -> Spanned<u32> {
    nowhere(0)
}

fn one() -> Spanned<u32> {
    nowhere(1)
}

fn one_u32() -> u32 {
    1
}

fn settle_s() -> Spanned<f64> {
    nowhere(2.0)
}

fn connections() -> Spanned<u32> {
    Spanned::new(0..0, 16)
}

fn is_one(number: &Spanned<u32>) -> bool {
    *number.get_ref() == 1
}

fn is_none(number: &Spanned<u32>) -> bool {
    *number.get_ref() == 0
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawScenario {
    pub name: Spanned<String>,
    pub summary: String,
    #[serde(default = "one")]
    pub rounds: Spanned<u32>,
    #[serde(default = "settle_s")]
    pub settle_s: Spanned<f64>,
    pub host: RawHost,
    pub fleet: Option<Spanned<RawFleet>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub guest: Vec<RawGuest>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub load: Vec<RawLoad>,
    pub steward: Option<toml::Table>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub policy: Vec<RawPolicy>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expect: Vec<Spanned<Expectation>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fault: Vec<RawFault>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawHost {
    #[serde(default = "one_u32")]
    pub sockets: u32,
    pub cores: Spanned<u32>,
    #[serde(default = "one_u32")]
    pub threads: u32,
    pub memory: Option<Spanned<String>>,
    pub under_test: Option<Spanned<CpuSet>>,
    pub client: Option<Spanned<CpuSet>>,
    pub pnic_queues: Spanned<u32>,
    pub instruction_ns: Option<Spanned<f64>>,
    pub part: Option<Spanned<String>>,
    pub cache_group_cores: Option<Spanned<u32>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub node: Vec<RawNode>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawNode {
    pub memory: Spanned<String>,
    pub cpus: Option<Spanned<CpuSet>>,
    pub latency_ns: Option<u32>,
    pub bandwidth_mib_per_s: Option<u32>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawFleet {
    pub hosts: Spanned<u32>,
    pub oversubscription: Spanned<f64>,
    #[serde(default)]
    pub placement: FleetPlacement,
    pub slo_p95: Spanned<String>,
    pub trace: Option<Spanned<String>>,
    pub readings: Option<Spanned<Vec<String>>>,
    pub one_of: Option<Spanned<u32>>,
    pub from: Option<Spanned<String>>,
    pub generate: Option<Spanned<u32>>,
    pub lasts: Spanned<String>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawGuest {
    pub name: Spanned<String>,
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub count: Spanned<u32>,
    pub class: Spanned<Class>,
    pub vcpus: Spanned<u32>,
    pub memory: Spanned<String>,
    #[serde(default = "one")]
    pub queues: Spanned<u32>,
    pub workload: Spanned<Workload>,
    pub slo_p95: Option<Spanned<String>>,
    pub wakeups: Option<Spanned<Wakeups>>,
    pub halt_poll: Option<Spanned<String>>,
    pub serve: Option<Spanned<RawServe>>,
    pub barrier: Option<Spanned<RawBarrier>>,
    pub forward: Option<Spanned<RawForward>>,
    pub files: Option<Spanned<RawFiles>>,
    pub lock: Option<Spanned<RawLock>>,
    pub heat: Option<Spanned<RawHeat>>,
    pub cpus: Option<Spanned<Vec<CpuSet>>>,
    pub memory_waits: Option<Spanned<f64>>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawServe {
    pub time: Spanned<toml::Value>,
    pub threads: Option<Spanned<u32>>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawBarrier {
    pub compute: Spanned<toml::Value>,
    pub threads: Option<Spanned<u32>>,
    pub wait: Option<Spanned<String>>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawForward {
    pub to: Option<Spanned<String>>,
    pub work: Option<Spanned<toml::Value>>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawFiles {
    pub count: Spanned<u32>,
    pub size: Spanned<String>,
    pub cacheable: Spanned<f64>,
    pub time: Spanned<toml::Value>,
    pub disk: Spanned<String>,
    pub threads: Option<Spanned<u32>>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawLock {
    pub think: Spanned<toml::Value>,
    pub hold: Spanned<toml::Value>,
    pub threads: Option<Spanned<u32>>,
    #[serde(default = "one")]
    pub locks: Spanned<u32>,
    #[serde(default = "one")]
    pub lines: Spanned<u32>,
    pub wait: Option<Spanned<String>>,
    #[serde(default)]
    pub declared: bool,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawHeat {
    pub mpki: Option<Spanned<f64>>,
    pub repeat: Option<Spanned<String>>,
    pub phases: Spanned<Vec<RawPhase>>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawPhase {
    pub at: Option<Spanned<String>>,
    pub hot: Option<Spanned<String>>,
    pub warm: Option<Spanned<String>>,
    pub cold: Option<Spanned<String>>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawLoad {
    pub guest: Spanned<String>,
    #[serde(default = "connections")]
    pub connections: Spanned<u32>,
    pub args: Option<Spanned<Vec<String>>>,
    pub steps: Spanned<Vec<Step>>,
    pub arrivals: Option<Spanned<Arrivals>>,
    pub background: Option<Spanned<bool>>,
    pub packets: Option<Spanned<u32>>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawPolicy {
    pub name: Spanned<String>,
    #[serde(default)]
    pub about: String,
    pub pnic_queues: Option<Spanned<u32>>,
    pub host_scheduler: Option<Spanned<String>>,
    pub pages: Option<Spanned<RawPages>>,
    pub weights: Option<Spanned<Weights>>,
    pub steward: Option<toml::Table>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawPages {
    pub demote: Option<Spanned<f64>>,
    pub promote: Option<Spanned<f64>>,
    pub rate: Option<Spanned<String>>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawFault {
    pub kind: Spanned<String>,
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub times: Spanned<u32>,
    #[serde(default = "none", skip_serializing_if = "is_none")]
    pub rate: Spanned<u32>,
    pub programs: Option<Spanned<Vec<String>>>,
    pub at: Option<Spanned<String>>,
    pub lasts: Option<Spanned<String>>,
    pub guest: Option<Spanned<String>>,
    pub host: Option<Spanned<u32>>,
    pub share: Option<Spanned<f64>>,
    pub steward: Option<toml::Table>,
}
