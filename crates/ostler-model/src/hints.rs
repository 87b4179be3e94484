//! What each guest may know of its host, what it asks, and what becomes of that.
//!
//! Physical cores and cache groups are the steward's own: they are in [`HintsScene`] and in a [`PinDecision`], which the host alone reads. What
//! a guest is shown is [`GuestHints`]: ids of its own numbering, and two degrees of load.

use serde::{Deserialize, Serialize};

use crate::{CpuId, CpuSet, GuestId, Nanos, Topology};

/// The most vCPUs of a guest that hints are given for.
pub const HINT_VCPUS_MAX: usize = 1024;
/// The most cache groups of a host that hints can name.
pub const HINT_GROUPS_MAX: usize = 256;

/// What the operator sets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HintsSettings {
    /// What a guest is shown changes at most once in this time, and pins are granted at most as often.
    pub interval: Nanos,
    /// Pins granted to a guest in an interval at the most.
    pub grants_max: u32,
    /// Pinned vCPUs that a core's account takes at the most, of all guests together.
    pub pins_per_core_max: u32,
    /// The host's secret, from which each guest's numbering is made. Guests must never have it.
    pub key: [u8; 32],
}

/// What the operator wants of hints; the host's secret is drawn when they are first given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HintsIntent {
    /// As in [`HintsSettings::interval`].
    pub interval: Nanos,
    /// As in [`HintsSettings::grants_max`].
    pub grants_max: u32,
    /// As in [`HintsSettings::pins_per_core_max`].
    pub pins_per_core_max: u32,
}

impl Default for HintsIntent {
    fn default() -> HintsIntent {
        HintsIntent {
            interval: Nanos::from_millis(100),
            grants_max: 4,
            pins_per_core_max: 2,
        }
    }
}

/// How many vCPUs wait or run on a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunnableView {
    /// Which.
    pub cpu: CpuId,
    /// How many.
    pub vcpus: u32,
}

/// Where a guest's vCPUs are, and what it asks for them. It counts while it is [fresh](crate::Intent::old_after) and tells of as many vCPUs as there are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestWishes {
    /// Which guest.
    pub guest: GuestId,
    /// In order of [`GuestView::vcpus`](crate::GuestView::vcpus).
    pub vcpus: Vec<HintsVcpu>,
    /// How old this is.
    #[serde(default)]
    pub age: Nanos,
}

/// What is seen when hints are published.
#[derive(Clone, Copy, Debug)]
pub struct HintsScene<'a> {
    /// The host's cores.
    pub topology: &'a Topology,
    /// Runnable vCPUs on each core, the running one among them, in order of [`Topology::cpus`]; a core beyond the end is unknown.
    pub runnable: &'a [u32],
    /// The guests there are, in order of id, whether they take part or not.
    pub guests: &'a [HintsGuest<'a>],
}

/// A guest, as hints see it.
#[derive(Clone, Copy, Debug)]
pub struct HintsGuest<'a> {
    /// Which.
    pub guest: &'a GuestId,
    /// Whether the operator lets it have hints.
    pub opted_in: bool,
    /// The cores that it was granted for its vCPUs.
    pub granted: &'a CpuSet,
    /// Each of its vCPUs has a core of its own already: there is nothing left to ask.
    pub placed: bool,
    /// Its vCPUs, in order of index.
    pub vcpus: &'a [HintsVcpu],
}

/// A vCPU, as hints see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HintsVcpu {
    /// The core that it runs or waits on; `None` when nobody knows.
    pub cpu: Option<CpuId>,
    /// The guest asks that it stays in its cache group. A guest's word: never more than a wish.
    pub pin: bool,
    /// It runs or waits there, and is among those that were counted there.
    #[serde(default)]
    pub runnable: bool,
}

/// How busy the core under a vCPU is, as much as a guest may know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LoadDegree {
    /// Few vCPUs of other guests want it: one that wakes there soon runs.
    Low,
    /// It waits; or nobody knows.
    #[default]
    High,
}

/// A cache group by a guest's own numbering, below [`HINT_GROUPS_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VirtualGroup(pub u16);

/// What is to be shown to guests, and which of their vCPUs are kept where.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HintsPlan {
    /// What it rests on: a core is of low load to a guest with at most `vcpus / (2 * cpus)` runnable vCPUs of others.
    pub threshold: LoadThreshold,
    /// What each guest that takes part is shown, in order of id.
    pub guests: Vec<GuestHints>,
    /// What became of what was asked, in order of guest and vCPU.
    pub pins: Vec<PinDecision>,
}

/// Half the mean number of vCPUs to a core, as a fraction, so that it is exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadThreshold {
    /// vCPUs of all guests.
    pub vcpus: u32,
    /// Online cores.
    pub cpus: u32,
}

/// What a guest is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestHints {
    /// Which guest.
    pub guest: GuestId,
    /// Since when it is shown this.
    pub since: Nanos,
    /// Its groups are numbered below this, a power of two.
    pub groups: u16,
    /// In order of vCPU.
    pub vcpus: Vec<VcpuHint>,
}

/// What a guest is shown of a vCPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VcpuHint {
    /// The cache group it is in; `None` when nobody knows.
    pub group: Option<VirtualGroup>,
    /// The first of the guest's vCPUs that is on the same core, maybe itself; `None` when nobody knows.
    #[serde(default)]
    pub core: Option<u16>,
    /// How busy its core is with other guests.
    pub load: LoadDegree,
}

/// What became of a wish to be pinned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinDecision {
    /// Whose.
    pub guest: GuestId,
    /// Which vCPU.
    pub vcpu: u32,
    /// What became of it.
    pub verdict: PinVerdict,
}

/// Yes or no.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PinVerdict {
    /// The vCPU stays on these cores: what its guest was granted of a cache group.
    Granted {
        /// Where.
        cpus: CpuSet,
        /// The core, one of them, whose account it fills.
        charged: CpuId,
        /// Since when.
        since: Nanos,
    },
    /// It doesn't.
    Refused(PinRefusal),
}

/// Why a vCPU isn't pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PinRefusal {
    /// It has a core already, by placement or partition.
    Placed,
    /// Nobody knows where the vCPU is.
    Unplaced,
    /// Its guest was granted no core of the group that it is in.
    NotGranted,
    /// The group's accounts are full.
    Crowded,
    /// The guest has its share of the group.
    Share,
    /// The guest was granted as many in this interval as it may be.
    RateLimited,
}

impl LoadThreshold {
    /// The degree of a core with so many runnable vCPUs. Where no core or no vCPU was counted: high unless none is runnable.
    pub fn degree(self, runnable: u32) -> LoadDegree {
        if 2 * u128::from(runnable) * u128::from(self.cpus.max(1)) <= u128::from(self.vcpus) {
            LoadDegree::Low
        } else {
            LoadDegree::High
        }
    }
}

impl HintsPlan {
    /// What a guest is shown.
    pub fn guest(&self, id: &GuestId) -> Option<&GuestHints> {
        let at = self.guests.binary_search_by(|hints| hints.guest.cmp(id));
        at.ok().map(|at| &self.guests[at])
    }

    /// Which of a guest's vCPUs are kept where, by its wish; in order of vCPU.
    pub fn kept(&self, id: &GuestId) -> impl Iterator<Item = (u32, CpuSet)> {
        let first = self.pins.partition_point(|pin| pin.guest < *id);
        let of = self.pins[first..].iter();
        let of = of.take_while(move |pin| pin.guest == *id);
        of.filter_map(|pin| match pin.verdict {
            PinVerdict::Granted { cpus, .. } => Some((pin.vcpu, cpus)),
            PinVerdict::Refused(_) => None,
        })
    }

    /// What became of a vCPU's wish, if it had one.
    pub fn pin(&self, id: &GuestId, vcpu: u32) -> Option<&PinVerdict> {
        let key = |pin: &PinDecision| pin.guest.cmp(id).then(pin.vcpu.cmp(&vcpu));
        let at = self.pins.binary_search_by(key);
        at.ok().map(|at| &self.pins[at].verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_threshold_is_one_for_two_vcpus_to_a_core() {
        // CPS, 5.1: two guests of 128 vCPUs on 128 cores have a threshold of 1.
        let threshold = LoadThreshold {
            vcpus: 256,
            cpus: 128,
        };
        let degrees = [0, 1, 2].map(|runnable| threshold.degree(runnable));
        assert_eq!(
            degrees,
            [LoadDegree::Low, LoadDegree::Low, LoadDegree::High]
        );
        let alone = LoadThreshold {
            vcpus: 128,
            cpus: 128,
        };
        assert_eq!(alone.degree(0), LoadDegree::Low);
        assert_eq!(alone.degree(1), LoadDegree::High);
        assert_eq!(LoadThreshold::default().degree(u32::MAX), LoadDegree::High);
    }
}
