//! What is tried in the world, and what must come of it.

use ostler_model::{BoostSettings, Bytes, CpuSet};
use serde::{Deserialize, Serialize};

use crate::host::Host;

/// A policy to compare.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Policy {
    /// Its name.
    pub name: String,
    /// What it does, in a few words.
    pub about: String,
    /// The steward's configuration: the scenario's `[steward]` with this policy's own keys over it. `None`: no steward.
    pub steward: Option<toml::Table>,
    /// Queues of the pNIC at the start; all where not given.
    pub pnic_queues: Option<u32>,
    /// A program that brings a scheduler of its own (`sched_ext`), and runs beside the policy; `None`: the kernel's.
    pub host_scheduler: Option<HostScheduler>,
    /// What the host's kernel does with guests' pages by itself, where it has a far node; `None`: they stay where they are. Simulated only.
    #[serde(default)]
    pub pages: Option<PageTiering>,
    /// What guests' cgroups weigh as they are found. Simulated only but for the usual.
    #[serde(default)]
    pub weights: Weights,
}

/// What a guest's cgroup weighs (`cpu.weight`) before a steward says anything else: who has how much of a core that several want.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Weights {
    /// Each 100, the kernel's usual: a guest of one vCPU has as much as one of sixteen.
    #[default]
    Equal,
    /// 100 for each vCPU, as clouds set it: each vCPU has as much.
    Vcpus,
}

impl Weights {
    /// What a guest of so many vCPUs weighs; no more than the kernel takes.
    pub fn of(self, vcpus: u32) -> u32 {
        match self {
            Weights::Equal => 100,
            Weights::Vcpus => vcpus.clamp(1, 100) * 100,
        }
    }
}

/// Pages that move by their heat, whosesoever they are, in the manner of TPP (Maruf et al., ASPLOS'23).
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq)]
pub struct PageTiering {
    /// As soon as a smaller share of near memory is free, cold pages go far until it isn't smaller any more.
    pub demote: f64,
    /// Far pages in use come near as long as a larger share of it is free.
    pub promote: f64,
    /// What moves in a second, at the most.
    pub rate: Bytes,
}

impl Default for PageTiering {
    /// TPP's watermark (`demote_scale_factor`), all that is free for what is in use, and the rate at which the tier layer moves.
    fn default() -> PageTiering {
        PageTiering {
            demote: 0.02,
            promote: 0.0,
            rate: ostler_model::TierSettings::default().bytes_per_s,
        }
    }
}

/// A scheduler by others: a program that is published as a crate of that name and version.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct HostScheduler {
    /// The crate's name, and the program's.
    pub name: String,
    /// As in `1.1.4`.
    pub version: String,
}

impl HostScheduler {
    /// `NAME@VERSION`, as cargo writes it; `None` where it isn't that.
    pub fn parse(text: &str) -> Option<HostScheduler> {
        let (name, version) = text.split_once('@')?;
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let is_name = name.len() <= 64 && name.starts_with(|c: char| c.is_ascii_alphabetic());
        let numbers = version.split('.');
        let numbered = numbers.clone().count() == 3
            && numbers
                .clone()
                .all(|n| n.len() <= 9 && n.parse::<u32>().is_ok());
        (is_name && name.chars().all(plain) && numbered).then(|| HostScheduler {
            name: name.to_owned(),
            version: version.to_owned(),
        })
    }
}

impl std::fmt::Display for HostScheduler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}", self.name, self.version)
    }
}

impl Policy {
    /// Whether it is one of the steward's own policies, rather than something to compare with.
    pub fn is_ours(&self) -> bool {
        let partition = self.steward.as_ref().and_then(|s| s.get("partition"));
        let name = partition.and_then(|p| p.get("policy")?.as_str());
        matches!(name, Some("performance" | "energy" | "resource"))
    }

    fn boost(&self) -> Option<&toml::Value> {
        self.steward.as_ref()?.get("boost")
    }

    /// Whether the steward is to bring its own scheduler of vCPUs.
    pub fn boosts(&self) -> bool {
        let mode = self.boost().and_then(|boost| boost.get("mode")?.as_str());
        mode.is_some_and(|mode| mode != "off")
    }

    /// What schedules vCPUs: `None` where it is the kernel's own scheduler, else the program that brings one, or the mode of ours, the length of its turns, whether workers go
    /// before vCPUs instead of waiting with them, and who does IO and what it may borrow, where that is told.
    pub fn scheduler(&self) -> Option<String> {
        if let Some(other) = &self.host_scheduler {
            return Some(other.to_string());
        }
        let boost = self.boost()?;
        let mode = boost.get("mode")?.as_str().filter(|mode| *mode != "off")?;
        let slice = boost.get("slice").and_then(toml::Value::as_str);
        let usual = || format!("{}ms", BoostSettings::default().slice.as_millis_f64());
        let waiting = boost.get("workers").and_then(toml::Value::as_bool);
        let apart = if waiting == Some(false) {
            ", workers apart"
        } else {
            ""
        };
        let told = |key: &str| {
            let value = boost.get(key)?;
            let text = value.as_str().map(str::to_owned);
            Some(format!(", {key} {}", text.unwrap_or(value.to_string())))
        };
        let told: String = ["threshold", "limit"]
            .into_iter()
            .filter_map(told)
            .collect();
        Some(format!(
            "{mode} {}{apart}{told}",
            slice.map_or_else(usual, str::to_owned)
        ))
    }

    /// The cores that its guests are divided over: those that its steward manages, or without one all under test. `None` where the steward is told
    /// something that names no cores.
    pub fn managed(&self, host: &Host) -> Option<CpuSet> {
        let told = self
            .steward
            .as_ref()
            .and_then(|s| s.get("cores")?.get("managed"));
        told.map_or(Some(host.under_test), |cores| cores.as_str()?.parse().ok())
    }
}

/// Something that must hold of a policy's figures: an absolute bound, or one in terms of another policy's.
///
/// Only figures that the real machine's load can't touch belong here: counters, cores, what plans did.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Expectation {
    /// The figure, by its name in the JSON lines.
    pub figure: String,
    /// Whose.
    pub policy: String,
    /// The policy whose figure is the unit of the bounds; without one they are absolute.
    pub of: Option<String>,
    /// The figure that is the unit, where it is another one; of the same policy unless `of` names one.
    pub of_figure: Option<String>,
    /// Lower bound, inclusive.
    pub at_least: Option<f64>,
    /// Upper bound, inclusive.
    pub at_most: Option<f64>,
    /// Asked only where `of` met the objective in as many windows or more: who misses it has less to give cores for.
    #[serde(default)]
    pub same_slo: bool,
}
