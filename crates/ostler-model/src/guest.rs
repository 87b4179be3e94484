//! What a guest is to its steward.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Names a guest for as long as it lives: its UUID where it has one, else its name. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GuestId(Arc<str>);

/// In order of their text.
impl Ord for GuestId {
    #[inline]
    fn cmp(&self, other: &GuestId) -> Ordering {
        // Most that are compared are clones of each other, as decisions walk through sorted lists of the same guests.
        if Arc::ptr_eq(&self.0, &other.0) {
            return Ordering::Equal;
        }
        self.0.cmp(&other.0)
    }
}

impl PartialOrd for GuestId {
    #[inline]
    fn partial_cmp(&self, other: &GuestId) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl GuestId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for GuestId {
    fn from(id: &str) -> GuestId {
        GuestId(id.into())
    }
}

impl fmt::Display for GuestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How the operator ranks a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Has a service level objective; is given cores first.
    LatencyCritical,
    /// Takes what is left, and may be suspended.
    BestEffort,
    /// Left as it is found: neither moved nor suspended.
    Unmanaged,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Class::LatencyCritical => "latency-critical",
            Class::BestEffort => "best-effort",
            Class::Unmanaged => "unmanaged",
        })
    }
}
