//! Lists in order of guest, gone through once.
//!
//! What was seen, remembered and planned of guests stands in lists of their own, each in order of id, and most of them are of the same guests. So whoever goes
//! through guests in that order finds the next one where he is, and never searches.

use ostler_model::GuestId;

/// A place in a list that is in order of guest.
pub(crate) struct Walk<'a, T, F> {
    list: &'a [T],
    id: F,
    at: usize,
}

impl<'a, T, F: Fn(&T) -> &GuestId> Walk<'a, T, F> {
    pub(crate) fn new(list: &'a [T], id: F) -> Walk<'a, T, F> {
        Walk { list, id, at: 0 }
    }

    /// The place of what is of a guest, who comes after all that were asked for before.
    #[inline]
    pub(crate) fn place(&mut self, guest: &GuestId) -> Option<usize> {
        while let Some(item) = self.list.get(self.at) {
            match (self.id)(item).cmp(guest) {
                std::cmp::Ordering::Less => self.at += 1,
                std::cmp::Ordering::Equal => {
                    // The next one asked for is not this one.
                    self.at += 1;
                    return Some(self.at - 1);
                }
                std::cmp::Ordering::Greater => return None,
            }
        }
        None
    }

    /// What is of a guest, likewise.
    #[inline]
    pub(crate) fn find(&mut self, guest: &GuestId) -> Option<&'a T> {
        self.place(guest).map(|at| &self.list[at])
    }
}
