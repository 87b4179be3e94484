//! Guests' in-memory files in the host: what is seen of who serves them, how much memory they have, and what is to be (Hylics).

use serde::{Deserialize, Serialize};

use crate::{Bytes, GuestId, Nanos};

/// A guest's file service in the host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FilesView {
    /// Which guest.
    pub guest: GuestId,
    /// What its files may have now.
    pub bytes: Bytes,
    /// Mean response time of its tasks since it was last asked; `None` where none ended.
    pub response: Option<Nanos>,
    /// Tasks that came, a second.
    pub arrivals_per_s: f64,
    /// How old this is.
    #[serde(default)]
    pub age: Nanos,
}

/// How files are sized.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SizingSettings {
    /// What all guests' files have of local memory at the most.
    pub budget: Bytes,
    /// By what.
    pub parts: SizingParts,
    /// A change of the response time from which the queueing model is asked.
    pub response_step: Nanos,
    /// The least change of size worth making.
    pub size_step: Bytes,
    /// The control interval's bounds.
    pub interval_min: Nanos,
    /// Likewise.
    pub interval_max: Nanos,
    /// How much what was learned earlier counts, above 0 to 1; 1 is the paper's.
    pub memory: f64,
}

/// The queueing model, the loop that learns, or both: the paper compares them (table 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SizingParts {
    /// Both, and the model by service times as they are found to be.
    Corrected,
    /// Both.
    Both,
    /// The model alone.
    Queue,
    /// The loop alone.
    Adaptive,
}

impl Default for SizingSettings {
    /// The paper's intervals; no budget.
    fn default() -> SizingSettings {
        SizingSettings {
            budget: Bytes(0),
            parts: SizingParts::Corrected,
            response_step: Nanos::from_millis(200),
            size_step: Bytes(64 << 20),
            interval_min: Nanos::from_secs(30),
            interval_max: Nanos::from_secs(240),
            memory: 1.0,
        }
    }
}

/// What the operator wants of a guest's files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesWish {
    /// The mean response time wanted of its tasks.
    pub response: Nanos,
    /// The least that its files have, before anybody's have more.
    pub least: Bytes,
    /// The most.
    pub most: Bytes,
    /// Mean time of a task alone by what its files have, sizes rising.
    pub service: Vec<ServiceTime>,
}

/// What a task takes alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceTime {
    /// With so much for files.
    pub bytes: Bytes,
    /// So long.
    pub time: Nanos,
}

/// What guests' files are to have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesPlan {
    /// Since when it is so.
    pub since: Nanos,
    /// What there was to share out.
    pub budget: Bytes,
    /// What each guest's have, in order of [`GuestId`].
    pub guests: Vec<GuestFiles>,
}

/// What a guest's files are to have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestFiles {
    /// Which guest.
    pub guest: GuestId,
    /// What its response time asks for.
    pub wish: Bytes,
    /// What they have.
    pub bytes: Bytes,
}
