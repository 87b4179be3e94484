//! What the operator wants. Text becomes an [`Intent`] in `config`, where every key is checked.

use serde::{Deserialize, Serialize};

use crate::{
    Bytes, Class, CpuSet, FilesWish, GuestView, HintsIntent, Nanos, Pattern, PlacementSettings,
    SizingSettings, Thresholds, TierSettings,
};

/// What the operator wants of the steward.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Intent {
    /// How often to sense and decide. 100 ms unless told (vSPACE section 5.1).
    pub period: Nanos,
    /// Which cores are the steward's.
    pub cores: CoreIntent,
    /// The partition layer.
    pub partition: PartitionIntent,
    /// The boost layer; `None` leaves vCPUs to the kernel's own scheduler.
    #[serde(default)]
    pub boost: Option<BoostSettings>,
    /// The placement layer; `None` leaves threads on packets' ways where the partition layer has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<PlacementSettings>,
    /// The tier layer; `None` leaves guests' memory where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<TierSettings>,
    /// The sizing layer; `None` leaves guests' files the memory that they have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sizing: Option<SizingSettings>,
    /// The hints layer; `None` shows nobody anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hints: Option<HintsIntent>,
    /// Guests' classes and objectives; the first rule that matches wins.
    pub guests: Vec<GuestRule>,
    /// The class of a guest that no rule matches.
    pub default_class: Class,
    /// Physical NICs whose queues and interrupts are the steward's.
    pub nics: Vec<String>,
    /// How plans are carried out.
    pub act: ActIntent,
}

/// Which cores are the steward's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoreIntent {
    /// Cores to manage; `None` is all that are online.
    pub managed: Option<CpuSet>,
    /// Cores among them to leave to the host.
    pub reserved: CpuSet,
}

/// How the partition layer divides the cores.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PartitionIntent {
    /// Which policy.
    pub policy: PartitionPolicy,
    /// Thresholds to begin with.
    pub thresholds: Thresholds,
    /// How much demand is overstated before a group shrinks. 1.1 (vSPACE section 5.1).
    pub margin: f64,
    /// How long a group keeps the cores that its demand asked for at its peak: it grows at once, and shrinks when its demand has been
    /// lower for so long. Zero follows each period's demand both ways, as the paper does (`docs/decisions/0005`).
    pub hold: Nanos,
    /// How best-effort guests compete on cores that they share with latency-critical ones. The comparison policies don't go by it.
    #[serde(default)]
    pub best_effort: SharedCores,
    /// Whether best-effort guests that have cores of their own ([`PartitionPolicy::Resource`]) also have what latency-critical guests and
    /// their queues leave of theirs. Only where they are idle there (`best_effort`), and no core has SMT siblings; on queues' cores only where what
    /// yields is counted ([`crate::CpuUsage::yielding`]).
    #[serde(default)]
    pub leftovers: bool,
    /// Threshold exploration; `None` keeps the thresholds as they are.
    pub exploration: Option<Exploration>,
}

/// The policy that divides the cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PartitionPolicy {
    /// vSPACE-P: all cores, in proportion to demand.
    Performance,
    /// vSPACE-E: as few cores as demand asks for.
    Energy,
    /// vSPACE-R: as E, and idle cores go to best-effort guests.
    Resource,
    /// Baseline: everything floats over all cores, with so many network queues.
    TimeSharing {
        /// Queues of the pNIC and of each vNIC.
        queues: QueueCount,
    },
    /// Baseline: a fixed isolation.
    Static {
        /// Cores for vCPUs.
        vcpu: u32,
        /// Cores for network queues.
        nq: u32,
    },
    /// Baseline in the manner of CoreNap: as many cores as demand asks for, shared by vCPUs and queues.
    CoreNap,
    /// Baseline in the manner of Demeter: cores for vCPUs by their run time alone, queues float, the rest to best-effort guests.
    Demeter {
        /// Queues of the pNIC and of each vNIC.
        queues: QueueCount,
    },
}

/// How best-effort guests compete on cores that they share with latency-critical ones (`docs/decisions/0006`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SharedCores {
    /// They have what the others leave, and are preempted at once.
    #[default]
    Idle,
    /// With this CPU weight, from 1 to below 100, which is what a latency-critical guest has unless someone changed it.
    Weight(u32),
    /// As equals, with the weights that they were found with.
    Equal,
}

/// A number of queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueueCount {
    /// A single queue.
    One,
    /// As many as the device has.
    Max,
}

/// Threshold exploration (vSPACE Algorithm 3).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Exploration {
    /// Samples between explorations. 1000 (100 s).
    pub samples: u32,
    /// The share of samples that may violate the objective.
    pub allow_violation: f64,
    /// The weight of the new thresholds against the old. 0.7.
    pub weight: f64,
    /// What thresholds are multiplied by after no violation at all. 1.03.
    pub reward: f64,
}

/// A rule that gives guests their class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestRule {
    /// Which guests.
    pub matches: GuestMatch,
    /// Their class.
    pub class: Class,
    /// P95 of request-response times that must not be exceeded; latency-critical guests have one.
    pub slo: Option<Nanos>,
    /// Whether the boost layer schedules their vCPUs, where there is one.
    #[serde(default = "yes")]
    pub boost: bool,
    /// What else it says of them.
    #[serde(default, skip_serializing_if = "GuestTerms::say_nothing")]
    pub terms: GuestTerms,
}

/// What a rule says of its guests, for layers that are on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestTerms {
    /// Whose they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Local memory that each of them has, whatever others need, if it has so much memory.
    #[serde(default)]
    pub local_min: Bytes,
    /// Their queues are placed before others, and their memory is local before others of their kind.
    #[serde(default)]
    pub priority: bool,
    /// Each of them may know of its host what hints tell.
    #[serde(default)]
    pub hints: bool,
    /// Their vCPUs run on these of the cores for vCPUs, one each where there are as many; `None`: on all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuSet>,
    /// The host has in-memory files for each of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<FilesWish>,
}

impl GuestTerms {
    /// Whether it is as if nothing had been written.
    pub fn say_nothing(&self) -> bool {
        *self == GuestTerms::default()
    }
}

impl GuestRule {
    /// A rule that gives guests a class and says nothing else.
    pub fn new(matches: GuestMatch, class: Class, slo: Option<Nanos>) -> GuestRule {
        GuestRule {
            matches,
            class,
            slo,
            boost: true,
            terms: GuestTerms::default(),
        }
    }
}

const fn yes() -> bool {
    true
}

/// Which guests a rule is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GuestMatch {
    /// By name, where `*` stands for any text.
    Name(Pattern),
    /// By UUID, letter case apart.
    Uuid(String),
    /// By a libvirt metadata label.
    Metadata {
        /// The label's key.
        key: String,
        /// Its value.
        value: String,
    },
}

/// How vCPUs are scheduled by who does IO (`bpf/core/boost.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoostSettings {
    /// Whether a vCPU that does IO goes before others; otherwise all have equal turns.
    pub io: bool,
    /// A turn. 3 ms: EEVDF's on hosts of eight cores and more.
    pub slice: Nanos,
    /// The longest that a vCPU that does IO runs at a stretch.
    pub slice_max: Nanos,
    /// How far a guest's balance may be from zero: half of what the boost can bring it from its share.
    pub limit: Nanos,
    /// Ticks with IO from which a vCPU does IO. 4 (thesis, section 3.5.2).
    pub threshold: u32,
    /// The most that are counted.
    pub confidence_max: u32,
    /// What becomes of the count when a tick tells nothing.
    pub degradation: Degradation,
    /// Which of two vCPUs that do IO has the core.
    pub conflict: Conflict,
    /// Whether vhost workers wait with the vCPUs that they work for, where they share cores; otherwise they go before all vCPUs.
    #[serde(default)]
    pub workers: bool,
}

/// What becomes of a vCPU's confidence when a tick tells nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Degradation {
    /// It is halved, as in the thesis.
    Halve,
    /// One less.
    Decrement,
    /// None is left.
    Forget,
}

/// Which of two vCPUs that do IO has the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Conflict {
    /// That of more confidence, as in the thesis.
    Confidence,
    /// That whose guest has had less.
    Balance,
    /// Neither goes before the other.
    Neither,
}

/// How plans are carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActIntent {
    /// Whether anything is written.
    pub mode: ActMode,
    /// What happens to our writes when the steward ends.
    pub on_exit: ExitPolicy,
    /// What happens when someone else changes a value that we set.
    pub foreign: ForeignPolicy,
}

/// Whether anything is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ActMode {
    /// Sense, decide and record only.
    Observe,
    /// Write too.
    Act,
}

/// What happens to our writes when the steward ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExitPolicy {
    /// They stay; `ostler undo` takes them back.
    Keep,
    /// They are taken back.
    Restore,
}

/// What happens when someone else changes a value that we set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ForeignPolicy {
    /// Leave that value to them from then on, and say so.
    Respect,
    /// Set it again, and say so.
    Reown,
}

impl Default for Intent {
    fn default() -> Intent {
        Intent {
            period: Nanos::from_millis(100),
            cores: CoreIntent::default(),
            partition: PartitionIntent::default(),
            boost: None,
            placement: None,
            tier: None,
            sizing: None,
            hints: None,
            guests: Vec::new(),
            default_class: Class::Unmanaged,
            nics: Vec::new(),
            act: ActIntent::default(),
        }
    }
}

impl Default for PartitionIntent {
    fn default() -> PartitionIntent {
        PartitionIntent {
            policy: PartitionPolicy::Energy,
            thresholds: Thresholds::default(),
            margin: 1.1,
            hold: Nanos::from_secs(1),
            best_effort: SharedCores::default(),
            leftovers: true,
            exploration: Some(Exploration::default()),
        }
    }
}

impl Default for Exploration {
    fn default() -> Exploration {
        Exploration {
            samples: 1000,
            allow_violation: 0.01,
            weight: 0.7,
            reward: 1.03,
        }
    }
}

impl Default for BoostSettings {
    fn default() -> BoostSettings {
        BoostSettings {
            io: true,
            slice: Nanos::from_millis(3),
            slice_max: Nanos::from_millis(12),
            limit: Nanos::from_millis(50),
            threshold: 4,
            confidence_max: 64,
            degradation: Degradation::Halve,
            conflict: Conflict::Confidence,
            workers: true,
        }
    }
}

impl Default for ActIntent {
    fn default() -> ActIntent {
        ActIntent {
            mode: ActMode::Observe,
            on_exit: ExitPolicy::Restore,
            foreign: ForeignPolicy::Respect,
        }
    }
}

impl PartitionPolicy {
    /// Whether best-effort guests yield under it: the comparison policies are to be as what they are named after.
    pub fn weighs(self) -> bool {
        matches!(
            self,
            PartitionPolicy::Performance | PartitionPolicy::Energy | PartitionPolicy::Resource
        )
    }
}

impl GuestMatch {
    /// Whether the rule is about this guest.
    #[inline]
    pub fn matches(&self, guest: &GuestView) -> bool {
        match self {
            GuestMatch::Name(pattern) => pattern.matches(&guest.name),
            GuestMatch::Uuid(uuid) => guest
                .uuid
                .as_deref()
                .is_some_and(|have| have.eq_ignore_ascii_case(uuid)),
            GuestMatch::Metadata { key, value } => {
                guest.metadata.iter().any(|(k, v)| k == key && v == value)
            }
        }
    }
}

impl Intent {
    /// A guest's class and objective: those of the first rule that matches, else the default class without one.
    #[inline]
    pub fn classify(&self, guest: &GuestView) -> (Class, Option<Nanos>) {
        self.rule(guest)
            .map_or((self.default_class, None), |rule| (rule.class, rule.slo))
    }

    /// Whether the boost layer, where there is one, schedules a guest's vCPUs: it is in the steward's care, and its rule doesn't except it.
    pub fn boosts(&self, guest: &GuestView) -> bool {
        let rule = self.rule(guest);
        rule.map_or(self.default_class, |rule| rule.class) != Class::Unmanaged
            && rule.is_none_or(|rule| rule.boost)
    }

    /// A view that is older than so many periods no longer counts.
    pub const OLD_AFTER_PERIODS: u64 = 10;

    /// How old a view may be and still count.
    pub fn old_after(&self) -> Nanos {
        Nanos(self.period.0.saturating_mul(Intent::OLD_AFTER_PERIODS))
    }

    /// The first rule that matches a guest.
    #[inline]
    pub fn rule(&self, guest: &GuestView) -> Option<&GuestRule> {
        self.guests.iter().find(|rule| rule.matches.matches(guest))
    }
}
