//! A scenario: a world to try policies in. The lab and the simulator read the same files: they say what there is and what
//! happens, not how it is carried out. Who carries it out is a [`World`], which is asked what only it can know.
//!
//! A file is refused with the line that is wrong and the remedy; unknown keys are refused too, since a key that does
//! nothing is a wish that silently isn't granted.
//!
//! Depends on `ostler-model` for core sets, classes and the steward's defaults.

mod check;
mod world;

use std::fmt;
use std::path::{Path, PathBuf};

use ostler_model::{BoostSettings, Class, CpuSet};
use serde::{Deserialize, Serialize};

pub use check::{ScenarioError, merge};
pub use world::World;

/// A checked scenario.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Scenario {
    /// Its name, for folders and reports.
    pub name: String,
    /// What it shows, in a sentence.
    pub summary: String,
    /// How often each policy is tried; rounds are interleaved, so that a slow minute of the real machine hits all alike.
    pub rounds: u32,
    /// Seconds between the start of a policy and the first load.
    pub settle_s: f64,
    /// The emulated host.
    pub host: Host,
    /// Its guests, in the order of the file.
    pub guests: Vec<Guest>,
    /// What is asked of the guests; one after the other within a round.
    pub loads: Vec<Load>,
    /// The policies to compare.
    pub policies: Vec<Policy>,
    /// What must come of it; a run that shows something else fails.
    pub expectations: Vec<Expectation>,
    /// What is done to the steward and its guests once the cells are over, one after the other.
    #[serde(default)]
    pub faults: Vec<Fault>,
}

/// The emulated host.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Host {
    /// Its CPUs.
    pub cpus: Cpus,
    /// Its memory; node numbers are positions.
    pub nodes: Vec<Node>,
    /// The cores whose use is compared.
    pub under_test: CpuSet,
    /// The cores for load generators, the steward and everything else.
    pub client: CpuSet,
    /// Queues of the physical NIC.
    pub pnic_queues: u32,
    /// What an instruction costs on machine time, ns: 1 makes each core one of a thousand million instructions per second.
    pub instruction_ns: f64,
    /// On machine time: what its caches are, if accesses to memory cost time by where their data lies.
    #[serde(default)]
    pub caches: Option<Caches>,
}

/// What the emulated host's cores are, as far as memory is concerned.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Caches {
    /// The part: a name that `machine/memory` knows.
    pub part: String,
    /// How many CPUs share a last-level cache; as the part has it where not given.
    pub group_cores: Option<u32>,
}

/// How many CPUs, and how they hang together.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Cpus {
    /// Sockets.
    pub sockets: u32,
    /// Cores in each socket.
    pub cores: u32,
    /// Threads of each core.
    pub threads: u32,
}

impl Cpus {
    /// Logical CPUs in all.
    pub fn count(self) -> u32 {
        self.sockets * self.cores * self.threads
    }
}

/// A memory node.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Node {
    /// Its size.
    pub memory_mib: u64,
    /// Its CPUs; none makes it a far node.
    pub cpus: CpuSet,
    /// Latency from the first node that has CPUs.
    pub latency_ns: u32,
    /// Bandwidth from there.
    pub bandwidth_mib_per_s: u32,
}

/// What a guest does.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// memcached, with a thread per vCPU.
    Memcached,
    /// redis, all in memory.
    Redis,
    /// nginx, with 2,000 files of 1 KB.
    Nginx,
    /// A process per connection that sends back what it is sent.
    Echo,
    /// Nothing, but its kernel answers pings.
    Ping,
    /// nginx, and a loop on every vCPU that compresses and counts its rounds.
    Mixed,
    /// Reads its disk from beginning to end, again and again, with direct IO of 4 KiB; counts these blocks.
    DiskRead,
    /// The same, writing.
    DiskWrite,
    /// A loop on every vCPU that counts its rounds.
    Spin,
    /// Nothing.
    Idle,
}

/// How requests are asked of a workload that answers some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// The load generator's name for the protocol.
    pub protocol: &'static str,
    /// The TCP port, where it's a protocol that has ports.
    pub port: Option<u16>,
}

impl Workload {
    /// What answers requests.
    pub fn service(self) -> Option<Service> {
        let (protocol, port) = match self {
            Workload::Memcached => ("memcached", Some(11211)),
            Workload::Redis => ("redis", Some(6379)),
            Workload::Nginx | Workload::Mixed => ("http", Some(80)),
            Workload::Echo => ("echo", Some(7)),
            Workload::Ping => ("ping", None),
            Workload::DiskRead | Workload::DiskWrite | Workload::Spin | Workload::Idle => {
                return None;
            }
        };
        Some(Service { protocol, port })
    }

    /// Whether it does work that nobody asks for, and counts it.
    pub fn works(self) -> bool {
        matches!(
            self,
            Workload::Mixed | Workload::DiskRead | Workload::DiskWrite | Workload::Spin
        )
    }

    /// Size of the disk that it works on.
    pub fn disk_mib(self) -> Option<u64> {
        // Read or written through in a second or two, and no burden for the host's memory, which holds it.
        matches!(self, Workload::DiskRead | Workload::DiskWrite).then_some(32)
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Workload::Memcached => "memcached",
            Workload::Redis => "redis",
            Workload::Nginx => "nginx",
            Workload::Echo => "echo",
            Workload::Ping => "ping",
            Workload::Mixed => "mixed",
            Workload::DiskRead => "disk-read",
            Workload::DiskWrite => "disk-write",
            Workload::Spin => "spin",
            Workload::Idle => "idle",
        })
    }
}

/// A guest.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Guest {
    /// Its name: in QEMU, its cgroup, its tap.
    pub name: String,
    /// How its operator ranks it.
    pub class: Class,
    /// vCPUs.
    pub vcpus: u32,
    /// Memory.
    pub memory_mib: u64,
    /// Queue pairs of its NIC.
    pub queues: u32,
    /// What it does.
    pub workload: Workload,
    /// The P95 response time it must not exceed.
    pub slo_p95_us: Option<u64>,
    /// Whether the work that it does by itself rests but while a load names the guest: some load does.
    #[serde(default)]
    pub in_turn: bool,
}

/// What is asked of a guest.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Load {
    /// The guest.
    pub guest: String,
    /// Connections to it.
    pub connections: u32,
    /// Further words for the load generator.
    pub args: Vec<String>,
    /// Rates, one after the other.
    pub steps: Vec<Step>,
}

/// A rate for some time.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Requests per second; 0 for a guest that answers none and is measured by its work.
    pub rate: f64,
    /// For how long.
    pub seconds: f64,
}

impl Load {
    /// Its steps as the load generator wants them, like `500x5,1000x5`.
    pub fn steps_text(&self) -> String {
        let steps: Vec<_> = self
            .steps
            .iter()
            .map(|step| format!("{}x{}", step.rate, step.seconds))
            .collect();
        steps.join(",")
    }
}

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
}

/// A kind of fault.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// The steward is killed at random moments while it acts; `ostler undo` must leave the host as it was found.
    Kill,
    /// A guest's QEMU is killed.
    GuestDies,
    /// A guest's QEMU is stopped, and with it its QMP monitor.
    QmpHangs,
    /// Someone takes a guest's threads out of the steward's cgroups and removes these.
    CgroupVanishes,
    /// Someone sets an interrupt's affinity and a cpuset that are the steward's.
    ForeignAffinity,
    /// The guest's agent is silent, slow, sends noise, or lies.
    AgentMisbehaves,
    /// The steward is told to end while the host is overloaded.
    Overload,
    /// The host's kernel changes its own running code, over and over, while its cores interrupt each other.
    CodeChanges,
    /// Not a fault: tests of crates that need this host's kernel run in it.
    KernelTests,
}

impl FaultKind {
    /// Every kind, by the name that scenarios and events use.
    pub const ALL: [(&'static str, FaultKind); 9] = [
        ("kill", FaultKind::Kill),
        ("guest-dies", FaultKind::GuestDies),
        ("qmp-hangs", FaultKind::QmpHangs),
        ("cgroup-vanishes", FaultKind::CgroupVanishes),
        ("foreign-affinity", FaultKind::ForeignAffinity),
        ("agent-misbehaves", FaultKind::AgentMisbehaves),
        ("overload", FaultKind::Overload),
        ("code-changes", FaultKind::CodeChanges),
        ("kernel-tests", FaultKind::KernelTests),
    ];

    /// The class of guest that it is done to.
    pub fn needs(self) -> Option<Class> {
        match self {
            FaultKind::GuestDies | FaultKind::QmpHangs => Some(Class::BestEffort),
            FaultKind::Kill
            | FaultKind::CgroupVanishes
            | FaultKind::ForeignAffinity
            | FaultKind::AgentMisbehaves
            | FaultKind::Overload => Some(Class::LatencyCritical),
            FaultKind::CodeChanges | FaultKind::KernelTests => None,
        }
    }

    /// Seconds that it takes each time, on a machine that isn't quiet.
    fn expected_s(self) -> f64 {
        match self {
            FaultKind::Kill => 5.0,
            FaultKind::GuestDies => 40.0,
            FaultKind::QmpHangs | FaultKind::CgroupVanishes | FaultKind::ForeignAffinity => 20.0,
            FaultKind::AgentMisbehaves
            | FaultKind::Overload
            | FaultKind::CodeChanges
            | FaultKind::KernelTests => 60.0,
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = FaultKind::ALL.iter().find(|(_, kind)| kind == self);
        f.write_str(named.map_or("fault", |(name, _)| name))
    }
}

/// Something that goes wrong, and must not do harm.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Fault {
    /// What.
    pub kind: FaultKind,
    /// How often.
    pub times: u32,
    /// Requests per second that guests which answer any get meanwhile; 0 for none.
    pub rate: u32,
    /// Of kernel tests, the programs to run, by the names that cargo knows them by; all unless given.
    #[serde(default)]
    pub programs: Option<Vec<String>>,
    /// The steward's configuration: the scenario's `[steward]` with this fault's own keys over it.
    pub steward: toml::Table,
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
}

impl Policy {
    /// Whether it is one of the steward's own policies, rather than something to compare with.
    pub fn is_ours(&self) -> bool {
        let partition = self.steward.as_ref().and_then(|s| s.get("partition"));
        let name = partition.and_then(|p| p.get("policy")?.as_str());
        matches!(name, Some("performance" | "energy" | "resource"))
    }

    /// What schedules vCPUs: `None` where it is the kernel's own scheduler, else the mode of ours, the length of its turns, and whether workers go
    /// before vCPUs instead of waiting with them.
    pub fn scheduler(&self) -> Option<String> {
        let boost = self.steward.as_ref()?.get("boost")?;
        let mode = boost.get("mode")?.as_str().filter(|mode| *mode != "off")?;
        let slice = boost.get("slice").and_then(toml::Value::as_str);
        let usual = || format!("{}ms", BoostSettings::default().slice.as_millis_f64());
        let waiting = boost.get("workers").and_then(toml::Value::as_bool);
        let apart = if waiting == Some(false) {
            ", workers apart"
        } else {
            ""
        };
        Some(format!(
            "{mode} {}{apart}",
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

impl Scenario {
    /// Reads a file and checks it for a world.
    pub fn load(path: &Path, world: &dyn World) -> Result<Scenario, ScenarioError> {
        let text = std::fs::read_to_string(path).map_err(|source| ScenarioError::Read {
            path: path.to_owned(),
            source,
        })?;
        Scenario::parse(&text, path, world)
    }

    /// Checks a scenario's text for a world; `path` is for messages.
    pub fn parse(text: &str, path: &Path, world: &dyn World) -> Result<Scenario, ScenarioError> {
        check::parse(text, PathBuf::from(path), world)
    }

    /// Seconds that all cells take if everything goes well.
    pub fn expected_s(&self) -> f64 {
        let loads: f64 = self
            .loads
            .iter()
            .flat_map(|l| &l.steps)
            .map(|s| s.seconds)
            .sum();
        let cells = f64::from(self.rounds) * self.policies.len() as f64;
        let faults = self.faults.iter();
        let faults: f64 = faults
            .map(|fault| fault.kind.expected_s() * f64::from(fault.times))
            .sum();
        cells * (loads + (self.settle_s + 3.0) * self.loads.len() as f64) + faults
    }
}
