//! A scenario as it is written: every value with its place in the text, none of them checked yet.

use ostler_model::{Class, CpuSet};
use serde::Deserialize;
use toml::Spanned;

use super::super::{Expectation, Step, Workload};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawScenario {
    pub(super) name: Spanned<String>,
    pub(super) summary: String,
    #[serde(default = "one")]
    pub(super) rounds: Spanned<u32>,
    #[serde(default = "settle_s")]
    pub(super) settle_s: Spanned<f64>,
    pub(super) host: RawHost,
    pub(super) guest: Vec<RawGuest>,
    #[serde(default)]
    pub(super) load: Vec<RawLoad>,
    pub(super) steward: Option<toml::Table>,
    #[serde(default)]
    pub(super) policy: Vec<RawPolicy>,
    #[serde(default)]
    pub(super) expect: Vec<Spanned<Expectation>>,
    #[serde(default)]
    pub(super) fault: Vec<RawFault>,
}

fn none() -> Spanned<u32> {
    Spanned::new(0..0, 0)
}

fn one() -> Spanned<u32> {
    Spanned::new(0..0, 1)
}

fn settle_s() -> Spanned<f64> {
    Spanned::new(0..0, 2.0)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawHost {
    #[serde(default = "one_u32")]
    pub(super) sockets: u32,
    pub(super) cores: Spanned<u32>,
    #[serde(default = "one_u32")]
    pub(super) threads: u32,
    pub(super) memory: Option<Spanned<String>>,
    pub(super) under_test: Spanned<CpuSet>,
    pub(super) client: Spanned<CpuSet>,
    pub(super) pnic_queues: Spanned<u32>,
    pub(super) instruction_ns: Option<Spanned<f64>>,
    pub(super) part: Option<Spanned<String>>,
    pub(super) cache_group_cores: Option<u32>,
    #[serde(default)]
    pub(super) node: Vec<RawNode>,
}

fn one_u32() -> u32 {
    1
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawNode {
    pub(super) memory: Spanned<String>,
    pub(super) cpus: Option<Spanned<CpuSet>>,
    pub(super) latency_ns: Option<u32>,
    pub(super) bandwidth_mib_per_s: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawGuest {
    pub(super) name: Spanned<String>,
    pub(super) class: Spanned<Class>,
    pub(super) vcpus: Spanned<u32>,
    pub(super) memory: Spanned<String>,
    #[serde(default = "one_spanned")]
    pub(super) queues: Spanned<u32>,
    pub(super) workload: Workload,
    pub(super) slo_p95: Option<Spanned<String>>,
}

fn one_spanned() -> Spanned<u32> {
    one()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawLoad {
    pub(super) guest: Spanned<String>,
    #[serde(default = "connections")]
    pub(super) connections: u32,
    #[serde(default)]
    pub(super) args: Vec<String>,
    pub(super) steps: Spanned<Vec<Step>>,
}

fn connections() -> u32 {
    16
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPolicy {
    pub(super) name: Spanned<String>,
    #[serde(default)]
    pub(super) about: String,
    pub(super) steward: Option<toml::Table>,
    pub(super) pnic_queues: Option<Spanned<u32>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawFault {
    pub(super) kind: Spanned<String>,
    #[serde(default = "one")]
    pub(super) times: Spanned<u32>,
    #[serde(default = "none")]
    pub(super) rate: Spanned<u32>,
    pub(super) programs: Option<Spanned<Vec<String>>>,
    pub(super) steward: Option<toml::Table>,
}
