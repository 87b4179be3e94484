//! What was decided: an immutable value with a generation and a parent. Acting on it makes no choices.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{
    BoostSettings, Class, CpuId, CpuSet, FilesPlan, GuestId, HintsPlan, IrqId, Nanos,
    PlacementPlan, Ring, TierPlan,
};

/// A decision for the whole host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Counts up by one for each decision.
    pub generation: u64,
    /// The generation it followed.
    pub parent: Option<u64>,
    /// When it was decided: the time of the snapshot it rests on.
    pub at: Nanos,
    /// How the cores are divided.
    pub groups: Groups,
    /// What each managed guest is given, in order of [`GuestId`].
    pub guests: Vec<GuestPlan>,
    /// What each managed NIC is given, by name.
    pub nics: Vec<NicPlan>,
    /// How vCPUs are scheduled; `None`: by the kernel's own scheduler.
    #[serde(default)]
    pub boost: Option<BoostPlan>,
    /// Where the threads on packets' ways run; `None`: the partition layer has them where they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Arc<PlacementPlan>>,
    /// How much local and far memory guests have; `None`: whatever they are found with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<Arc<TierPlan>>,
    /// How much memory guests' files in the host have; `None`: whatever they are found with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<Arc<FilesPlan>>,
    /// What guests are shown of the host; `None`: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hints: Option<Arc<HintsPlan>>,
}

/// Whose vCPUs are scheduled by who does IO, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoostPlan {
    /// How.
    pub settings: BoostSettings,
    /// Cores that share a queue of vCPUs: each online core is in exactly one, which has [`BoostPlan::DOMAIN_CORES_MAX`] cores at the most.
    pub domains: Vec<CpuSet>,
    /// Whether vhost workers of these guests have it too, and wait with the vCPUs that they work for.
    #[serde(default)]
    pub workers: bool,
    /// The guests that take part, in order of [`GuestId`].
    pub guests: Vec<GuestId>,
}

impl BoostPlan {
    /// As many cores share a queue at the most: each looks into it when it needs work.
    pub const DOMAIN_CORES_MAX: u32 = 16;
}

/// The ledger of cores: each managed core is in exactly one of `vcpu`, `nq`, `best_effort` and `idle`, unless the policy shares
/// them by design ([`Groups::shared`]); an idle core is in no other group even then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Groups {
    /// For vCPUs of latency-critical guests.
    pub vcpu: CpuSet,
    /// For network queues: interrupts, softirqs and vhost workers.
    pub nq: CpuSet,
    /// For best-effort guests.
    pub best_effort: CpuSet,
    /// For nobody: left to sleep.
    pub idle: CpuSet,
    /// Managed cores kept for the host itself.
    pub reserved: CpuSet,
    /// Whether queues share cores with others (the time-sharing baselines); then `nq` overlaps `vcpu`, and `best_effort` too
    /// where queues float over everything.
    pub shared: bool,
}

/// A group of cores, for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Group {
    /// [`Groups::vcpu`].
    Vcpu,
    /// [`Groups::nq`].
    Nq,
    /// [`Groups::best_effort`].
    BestEffort,
    /// [`Groups::idle`].
    Idle,
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Group::Vcpu => "vCPU",
            Group::Nq => "NQ",
            Group::BestEffort => "best-effort",
            Group::Idle => "idle",
        })
    }
}

/// What a guest is given. A suspended guest's CPU sets are empty: they stay as they are until it runs again, and are set
/// before it is thawed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestPlan {
    /// Which guest.
    pub guest: GuestId,
    /// Its class, as the intent had it.
    pub class: Class,
    /// Whether it runs.
    pub run: RunState,
    /// Where its vCPU threads may run.
    pub vcpu_cpus: CpuSet,
    /// One core per vCPU, in order of index, all within `vcpu_cpus`; empty when they float.
    pub vcpu_pins: Vec<CpuId>,
    /// Where its vhost workers may run.
    pub vhost_cpus: CpuSet,
    /// One core per vhost worker, in order of queue, all within `vhost_cpus`; empty when they float.
    pub vhost_pins: Vec<CpuId>,
    /// Where its other threads may run.
    pub emulator_cpus: CpuSet,
    /// How all its threads together compete for the CPUs that they share with others.
    #[serde(default)]
    pub weight: CpuWeight,
    /// How many vCPUs its work should use, asked of its agent; `None` when there is no agent to ask. Best-effort guests aren't asked.
    pub vcpus_active: Option<u32>,
    /// How many queue pairs its vNIC should use, asked of its agent; `None` when there is no agent to ask.
    pub queues: Option<u32>,
}

/// How a guest's threads, taken as one, compete for CPUs that they share with others: the CPU weight of its cgroup. It says nothing
/// where nobody else wants the CPU, so a guest of the least weight still has all that others leave (`docs/decisions/0006`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CpuWeight {
    /// None of the steward's business: nothing is touched.
    #[default]
    Untouched,
    /// As it was found. The cpu controller is kept at hand, so that another weight is one cheap write: turning the controller on moves
    /// every thread below.
    AsFound,
    /// A weight (`cpu.weight`) in [`CpuWeight::MIN`]..=[`CpuWeight::MAX`]: guests that want the same CPU get time in proportion.
    Weight(u32),
    /// Least of all (`cpu.idle`): whoever else wakes up takes the CPU at once, whatever its weight, and this guest has what is left.
    Idle,
}

impl CpuWeight {
    /// The least weight that the kernel takes.
    pub const MIN: u32 = 1;
    /// The greatest.
    pub const MAX: u32 = 10_000;
    /// What a cgroup begins with.
    pub const DEFAULT: u32 = 100;

    /// Whether it differs from what the guest had by itself.
    pub fn is_set(self) -> bool {
        matches!(self, CpuWeight::Weight(_) | CpuWeight::Idle)
    }
}

impl fmt::Display for CpuWeight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CpuWeight::Untouched => f.write_str("untouched"),
            CpuWeight::AsFound => f.write_str("as found"),
            CpuWeight::Weight(weight) => weight.fmt(f),
            CpuWeight::Idle => f.write_str("idle"),
        }
    }
}

/// Whether a guest runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunState {
    /// It runs.
    Running,
    /// It is frozen until cores are free.
    Suspended,
}

/// What a NIC is given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicPlan {
    /// Its interface name.
    pub name: String,
    /// Receive queues to spread packets over: the first so many.
    pub queues: u32,
    /// Where each queue's interrupts go, in order of ring and queue; queues out of use are parked on a network queue core too.
    pub irqs: Vec<IrqPlan>,
    /// CPUs whose sends go out by each transmit queue, in order of queue; an empty set sends nobody there, an empty list leaves
    /// XPS as it is. A device with fewer transmit queues than entries has no use for the rest.
    pub xps: Vec<CpuSet>,
    /// CPUs that share each receive queue's softirq work (RPS), in order of queue; an empty set turns it off, an empty list leaves
    /// RPS as it is.
    pub rps: Vec<CpuSet>,
}

/// Where a queue's interrupt goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IrqPlan {
    /// The line.
    pub irq: IrqId,
    /// The queue it serves.
    pub queue: u32,
    /// The ring of it.
    #[serde(default, skip_serializing_if = "Ring::is_receive")]
    pub ring: Ring,
    /// The CPUs it may be delivered to.
    pub cpus: CpuSet,
}

impl Plan {
    /// What this plan gives a guest.
    pub fn guest(&self, id: &GuestId) -> Option<&GuestPlan> {
        self.guests
            .binary_search_by(|guest| guest.guest.cmp(id))
            .ok()
            .map(|at| &self.guests[at])
    }

    /// Where each of a guest's vCPUs may run that doesn't float with the others, by place and in order: its core, or where its guest's wish keeps it.
    pub fn vcpu_homes(&self, given: &GuestPlan) -> impl Iterator<Item = (usize, CpuSet)> {
        let pins = given.vcpu_pins.len();
        let pinned = given.vcpu_pins.iter().enumerate();
        let kept = self.hints.iter();
        let kept = kept.flat_map(|hints| hints.kept(&given.guest));
        // A wish is granted to none that has a core; if it were, the core would have it.
        let kept = kept.filter(move |(vcpu, _)| *vcpu as usize >= pins);
        pinned
            .map(|(at, cpu)| (at, CpuSet::single(*cpu)))
            .chain(kept.map(|(vcpu, cpus)| (vcpu as usize, cpus)))
    }

    /// Whether both plans ask for the same, generation and time apart.
    pub fn same_wishes(&self, other: &Plan) -> bool {
        self.groups == other.groups
            && self.guests == other.guests
            && self.nics == other.nics
            && self.boost == other.boost
            && self.placement == other.placement
            && self.tier == other.tier
            && self.files == other.files
            && self.hints == other.hints
    }
}
