//! What came of a plan.

use serde::{Deserialize, Serialize};

/// What came of acting on a plan. A failure leaves the rest applied; the next period tries again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Generation of the plan.
    pub generation: u64,
    /// Values written.
    pub written: u32,
    /// Values that already held.
    pub unchanged: u32,
    /// Writes that failed.
    pub failures: Vec<Failure>,
    /// Values that someone else had changed since we set them.
    pub foreign: Vec<ForeignChange>,
}

/// A write that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What was to be set: a path, or a device and its setting.
    pub target: String,
    /// The value that was to be set.
    pub value: String,
    /// What went wrong, and what to do.
    pub error: String,
}

/// A value that we set and found changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForeignChange {
    /// What it is: a path, or a device and its setting.
    pub target: String,
    /// What we had set.
    pub ours: String,
    /// What it is now.
    pub found: String,
    /// What we did about it.
    pub handling: ForeignHandling,
}

/// What was done about a foreign change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ForeignHandling {
    /// Left to them from now on.
    Respected,
    /// Set again.
    Reowned,
}
