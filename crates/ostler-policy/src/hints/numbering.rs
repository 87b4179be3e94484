//! Each guest's own numbering of the host's cache groups.
//!
//! A permutation, drawn by Fisher and Yates from SHA-256 of the host's key, the guest's id and a counter. Who hasn't the key can tell nothing of
//! one guest's numbering from another's, so two guests that compare theirs don't learn whether they are neighbours (CPS, sections 4.1 and 7.2).
//! Numbers run below the next power of two, so that they don't tell how many groups the host has either.

use ostler_model::{GuestId, HINT_GROUPS_MAX};
use sha2::{Digest as _, Sha256};

/// What groups are numbered below on a host with so many; `None` when they can't be named.
pub fn domain(groups: usize) -> Option<u16> {
    (groups <= HINT_GROUPS_MAX)
        .then(|| groups.next_power_of_two().max(2))
        .and_then(|domain| u16::try_from(domain).ok())
}

/// Draws a guest's numbering: each physical group's number, in order.
pub fn draw(key: &[u8; 32], guest: &GuestId, domain: u16, order: &mut Vec<u16>) {
    order.clear();
    order.extend(0..domain);
    for (counter, last) in (0_u64..).zip((1..order.len()).rev()) {
        let mut hash = Sha256::new();
        hash.update(key);
        hash.update(counter.to_le_bytes());
        hash.update(guest.as_str());
        let digest = hash.finalize();
        let word = digest
            .iter()
            .take(8)
            .fold(0_u64, |word, byte| word << 8 | u64::from(*byte));
        // Of 2^64, too few are left over by 256 or less to be noticed.
        let at = usize::try_from(word % (last as u64 + 1)).unwrap_or(0);
        order.swap(at, last);
    }
}
