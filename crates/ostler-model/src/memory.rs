//! A host's memory: its nodes, what guests have of each, and what is decided of it.
//!
//! Local memory is that of nodes with cores, or as near as such; far memory is slower: a CXL device or pool. Guests' memory and the host's in-memory files for
//! guests draw on the same local memory.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Bytes, Facts, GuestId, Nanos, NodeId};

/// The host's memory by node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryFacts {
    /// Its nodes, in order.
    pub nodes: Vec<MemoryNode>,
    /// How far nodes are from each other as firmware has it (10 for a node and itself), row by row in order of `nodes`; empty where it can't be told.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub distances: Vec<u32>,
}

/// A node's memory. Its cores, if it has any, are in [`Topology`](crate::Topology).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryNode {
    /// Which.
    pub node: NodeId,
    /// All of it.
    pub bytes: Bytes,
    /// It is of the slower tier.
    pub far: bool,
    /// What a read from it takes, from the cores nearest to it; `None` where nobody knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Nanos>,
    /// Bytes a second that it can be read at; `None` where nobody knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_s: Option<u64>,
}

impl MemoryFacts {
    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// A node's memory.
    pub fn node(&self, node: NodeId) -> Option<&MemoryNode> {
        self.nodes.iter().find(|known| known.node == node)
    }

    /// All of one tier.
    pub fn bytes(&self, far: bool) -> Bytes {
        let tier = self.nodes.iter().filter(|node| node.far == far);
        Bytes(tier.fold(0, |sum, node| sum.saturating_add(node.bytes.0)))
    }

    /// How far two nodes are from each other, where it is known.
    pub fn distance(&self, from: NodeId, to: NodeId) -> Option<u32> {
        let place = |node| self.nodes.iter().position(|known| known.node == node);
        let at = place(from)? * self.nodes.len() + place(to)?;
        self.distances.get(at).copied()
    }
}

impl Facts {
    /// Whether a node has cores.
    pub fn has_cores(&self, node: NodeId) -> bool {
        self.topology.cpus.iter().any(|cpu| cpu.node == node)
    }
}

/// A node's memory in this period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeView {
    /// Which.
    pub node: NodeId,
    /// What nobody uses.
    pub free: Bytes,
    /// How old this is.
    #[serde(default)]
    pub age: Nanos,
}

/// Bytes on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeBytes {
    /// Which.
    pub node: NodeId,
    /// How many.
    pub bytes: Bytes,
}

/// A guest's memory, and how it uses it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GuestMemory {
    /// Which guest.
    pub guest: GuestId,
    /// Where its memory is, in order of node.
    pub nodes: Vec<NodeBytes>,
    /// What of it was touched lately (DAMON); `None` where nobody looks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hot: Option<Bytes>,
    /// Misses of the last-level cache a second; `None` where they aren't counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub llc_misses_per_s: Option<f64>,
    /// Interrupts of its devices a second; `None` where they aren't counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_interrupts_per_s: Option<f64>,
    /// Its memory by ranges of its own addresses, in order; empty where only sums are known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranges: Vec<RangeView>,
    /// How old this is.
    #[serde(default)]
    pub age: Nanos,
}

/// A range of a guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeView {
    /// Where it is.
    pub range: MemoryRange,
    /// On which node.
    pub node: NodeId,
    /// Whether it was touched lately.
    pub hot: bool,
}

/// Addresses of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MemoryRange {
    /// The first.
    pub start: u64,
    /// How many.
    pub bytes: Bytes,
}

impl GuestMemory {
    /// What it has in all.
    pub fn bytes(&self) -> Bytes {
        let sum = self.nodes.iter();
        Bytes(sum.fold(0, |sum, node| sum.saturating_add(node.bytes.0)))
    }

    /// What it has on a node.
    #[inline]
    pub fn on(&self, node: NodeId) -> Bytes {
        let here = self.nodes.iter().find(|here| here.node == node);
        here.map_or(Bytes(0), |here| here.bytes)
    }
}

/// How the tier layer works.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TierSettings {
    /// How often it decides.
    pub interval: Nanos,
    /// Misses of the last-level cache a second from which a guest presses on its memory.
    pub misses_per_s: f64,
    /// The share of its memory, touched lately, from which it does, where misses aren't counted.
    pub hot_share: f64,
    /// Interrupts of its devices a second from which a guest does IO.
    pub io_per_s: f64,
    /// How long a guest must have been below a threshold before it counts as below it.
    pub hold: Nanos,
    /// What may move a second, of all guests together.
    pub bytes_per_s: Bytes,
    /// The least change of what a guest has that is worth making.
    pub step: Bytes,
    /// Local memory that stays free for the host.
    pub reserve: Bytes,
    /// Local memory that the guests of a tenant have together, whatever others need; in order of name.
    pub tenants: Vec<TenantFloor>,
}

/// What a tenant's guests have at the least.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantFloor {
    /// The tenant, as rules of guests name it.
    pub tenant: String,
    /// How much local memory.
    pub local_min: Bytes,
}

impl Default for TierSettings {
    fn default() -> TierSettings {
        TierSettings {
            interval: Nanos::from_secs(1),
            misses_per_s: 1e6,
            hot_share: 0.1,
            io_per_s: 1000.0,
            hold: Nanos::from_secs(10),
            bytes_per_s: Bytes(1 << 30),
            step: Bytes(64 << 20),
            reserve: Bytes(1 << 30),
            tenants: Vec::new(),
        }
    }
}

/// How a guest uses its memory, the most pressing first (thesis, section 5.4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryClass {
    /// Much, and it does IO.
    IoAndMemory,
    /// Much.
    Memory,
    /// Little.
    Rest,
}

impl fmt::Display for MemoryClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MemoryClass::IoAndMemory => "does IO and presses on its memory",
            MemoryClass::Memory => "presses on its memory",
            MemoryClass::Rest => "uses its memory little",
        })
    }
}

/// How much local and far memory each guest is to have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierPlan {
    /// Since when it is so.
    pub since: Nanos,
    /// All guests press, so nobody makes way for another but for floors.
    pub peak: bool,
    /// What each is to have, in order of [`GuestId`].
    pub guests: Vec<GuestTier>,
    /// What moves for that until it is decided again, in the order in which it is to.
    pub moves: Vec<MemoryMove>,
}

/// What a guest is to have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestTier {
    /// Which guest.
    pub guest: GuestId,
    /// How it uses its memory.
    pub class: MemoryClass,
    /// What it is to have of local memory, in the end.
    pub local: Bytes,
    /// What it is to have of far memory, in the end.
    pub far: Bytes,
}

/// Local memory, in the order in which it is given out. Guests that all press go as one, and those who have some keep it before anybody has more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalShares {
    /// First: floors of guests and of tenants.
    pub floors: Bytes,
    /// Second: the leasts of guests' files.
    pub leasts: Bytes,
    /// Third: guests that press on their memory, those that do IO before others.
    pub pressing: Bytes,
    /// Fourth: what guests' files wish for beyond their leasts.
    pub wishes: Bytes,
    /// Last: guests that use their memory little.
    pub rest: Bytes,
}

/// Memory that moves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryMove {
    /// Whose.
    pub guest: GuestId,
    /// From here.
    pub from: NodeId,
    /// To here.
    pub to: NodeId,
    /// How much.
    pub bytes: Bytes,
    /// Which; empty where ranges aren't known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranges: Vec<MemoryRange>,
}
