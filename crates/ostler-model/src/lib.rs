//! The nouns of ostler: what a host is, what was seen on it, what its operator wants, and what was decided.
//!
//! Every other room speaks in these types. Nothing here does IO, reads a clock or makes a choice; this crate
//! depends on no other room (`ARCHITECTURE.md`).
//!
//! The data flows one way: [`Facts`] and a [`Snapshot`] are sensed, an [`Intent`] is configured, `decide()` turns them
//! and the previous [`State`] into a [`Plan`] with its [`Reason`]s, and acting on the plan yields an [`Outcome`]. All of
//! them are plain immutable values that serialise, so that a recorded run can be replayed.

pub mod config;
mod cpuset;
mod facts;
mod files;
mod guest;
mod hints;
mod intent;
mod memory;
mod outcome;
mod pattern;
mod placement;
mod plan;
mod reason;
mod snapshot;
mod state;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod units;

pub use cpuset::{CpuSet, CpuSetIter, MAX_CPUS, ParseCpuSetError};
pub use facts::{Capability, Cpu, Facts, NicFacts, Topology};
pub use files::{
    FilesPlan, FilesView, FilesWish, GuestFiles, ServiceTime, SizingParts, SizingSettings,
};
pub use guest::{Class, GuestId};
pub use hints::{
    GuestHints, GuestWishes, HINT_GROUPS_MAX, HINT_VCPUS_MAX, HintsGuest, HintsIntent, HintsPlan,
    HintsScene, HintsSettings, HintsVcpu, LoadDegree, LoadThreshold, PinDecision, PinRefusal,
    PinVerdict, RunnableView, VcpuHint, VirtualGroup,
};
pub use intent::{
    ActIntent, ActMode, BoostSettings, Conflict, CoreIntent, Degradation, ExitPolicy, Exploration,
    ForeignPolicy, GuestMatch, GuestRule, GuestTerms, Intent, PartitionIntent, PartitionPolicy,
    QueueCount, SharedCores,
};
pub use memory::{
    GuestMemory, GuestTier, LocalShares, MemoryClass, MemoryFacts, MemoryMove, MemoryNode,
    MemoryRange, NodeBytes, NodeView, RangeView, TenantFloor, TierPlan, TierSettings,
};
pub use outcome::{
    BoostOutcome, Failure, ForeignChange, ForeignHandling, GuestBoost, Outcome, delay_bound,
};
pub use pattern::Pattern;
pub use placement::{
    FlowView, Hop, PlacementPlan, PlacementPolicy, PlacementSettings, QueueCore, SocketView,
    StageSettings, ThreadCore,
};
pub use plan::{BoostPlan, CpuWeight, Group, Groups, GuestPlan, IrqPlan, NicPlan, Plan, RunState};
pub use reason::{Alternative, ByThreads, FilesCause, Layer, Reason, Unmeasured};
pub use snapshot::{
    Accesses, AgentHealth, AgentState, AgentView, CpuPmu, CpuUsage, GuestPmu, GuestSource,
    GuestView, HostCounters, IrqView, LatencyView, NicView, Ring, Snapshot, TapView, ThreadUsage,
    VcpuView, VhostView,
};
pub use state::{
    Average, FilesControl, FilesFound, FilesSample, FilesSpan, HintsState, Leftovers,
    PartitionState, Peak, PinGrant, PlacementState, Room, Sample, SizingState, State, Thresholds,
    TierState, TierWatch, Trust,
};
pub use units::{Bytes, CpuId, IrqId, Nanos, NodeId, Pid, Tid};
