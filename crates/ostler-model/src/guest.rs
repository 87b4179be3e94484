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
        // Others mostly differ early: the first bytes at once, as one number, whose order is theirs.
        let first = |id: &GuestId| {
            id.0.as_bytes()
                .first_chunk()
                .copied()
                .map(u64::from_be_bytes)
        };
        match (first(self), first(other)) {
            (Some(a), Some(b)) if a != b => a.cmp(&b),
            _ => self.0.cmp(&other.0),
        }
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::GuestId;

    proptest! {
        /// Two letters of one byte and one of two, so that ids agree in their beginning and end at any byte.
        #[test]
        fn ids_are_in_order_of_their_text(a in "[ab\u{e9}]{0,10}", b in "[ab\u{e9}]{0,10}", common in "[a-f0-9]{0,9}") {
            let (a, b) = (format!("{common}{a}"), format!("{common}{b}"));
            let ids = (GuestId::from(a.as_str()), GuestId::from(b.as_str()));
            prop_assert_eq!(ids.0.cmp(&ids.1), a.cmp(&b));
            prop_assert_eq!(ids.0.cmp(&ids.0.clone()), std::cmp::Ordering::Equal);
        }
    }
}
