//! What Libra is compared with: pure, and blind to what they don't look at.
//!
//! - **A fixed split** (thesis, figure 5.6, vanilla): each guest is given a share of local memory when it comes, and keeps that. Nothing moves.
//! - **Pages by their heat**, in the manner of TPP (Maruf et al., ASPLOS'23): the host moves what is hot near and, when local memory runs short, what is cold far, whosesoever it is. What is free above the
//!   watermarks stays free: cold pages don't come back by themselves.
//! - **Balloons**: every guest's local memory is in proportion to its size, of what there is for all. So all give when one comes, and all get when one goes.

/// How hot pages are, from the hottest: as many classes as there need be.
pub const HEATS: usize = 3;

/// A guest's bytes by heat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pages {
    /// In local memory.
    pub local: [u64; HEATS],
    /// In far memory.
    pub far: [u64; HEATS],
}

/// Pages that move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shift {
    /// Whose, by place.
    pub guest: usize,
    /// How hot.
    pub heat: usize,
    /// To local memory, or away from it.
    pub near: bool,
    /// How much.
    pub bytes: u64,
}

/// What is local of a guest that comes, by a fixed split.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of it"
)]
pub fn split(bytes: u64, share: f64) -> u64 {
    (bytes as f64 * share.clamp(0.0, 1.0)) as u64
}

/// A host's local memory, as page tiering sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// Free local memory now.
    pub free: u64,
    /// Free far memory now.
    pub far_free: u64,
    /// As soon as less is free, cold pages go far until it isn't less any more.
    pub demote: u64,
    /// Hot pages come near as long as more is free.
    pub promote: u64,
    /// What moves at the most.
    pub budget: u64,
}

/// Pages by their heat: the coldest go first, whosesoever they are, and the hottest come.
pub fn pages(guests: &[Pages], marks: &Watermarks, into: &mut Vec<Shift>) {
    let (mut free, mut far, mut budget) = (marks.free, marks.far_free, marks.budget);
    // What is active isn't reclaimed.
    for heat in (1..HEATS).rev() {
        for (guest, pages) in guests.iter().enumerate() {
            let wanted = marks.demote.saturating_sub(free).min(budget).min(far);
            let bytes = pages.local[heat].min(wanted);
            if bytes > 0 {
                (free, far, budget) = (free + bytes, far - bytes, budget - bytes);
                let near = false;
                into.push(Shift {
                    guest,
                    heat,
                    near,
                    bytes,
                });
            }
        }
    }
    for (guest, pages) in guests.iter().enumerate() {
        let room = free.saturating_sub(marks.promote).min(budget);
        let bytes = pages.far[0].min(room);
        if bytes > 0 {
            (free, budget) = (free - bytes, budget - bytes);
            let (heat, near) = (0, true);
            into.push(Shift {
                guest,
                heat,
                near,
                bytes,
            });
        }
    }
}

/// Every guest's local memory in proportion to its size, of what there is; no more than it is.
#[expect(
    clippy::cast_possible_truncation,
    reason = "no more than the guest's bytes"
)]
pub fn balloons(local: u64, sizes: &[u64], into: &mut Vec<u64>) {
    let all: u128 = sizes.iter().map(|size| u128::from(*size)).sum();
    into.clear();
    into.extend(sizes.iter().map(|&size| {
        let share = u128::from(local) * u128::from(size) / all.max(1);
        share.min(u128::from(size)) as u64
    }));
}
