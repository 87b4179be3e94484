//! What a core's own caches settle between themselves: a line goes from L2 to an L1, under the core's own lock.
//!
//! L2 has the line, and well enough for the access: then nobody else need hear of it. Others may be about to take it away, so
//! the core takes its own lock, which they take for that, and looks again. L2's state changes from exclusive to modified at most, and the directory
//! needn't know.

use crate::cache::State;
use crate::counters::{Kind, Level};
use crate::map::Place;
use crate::sets::Slot;
use crate::system::{Charge, Core, System};

/// What came of an access that L1 doesn't have.
pub(crate) enum Second {
    /// It is done.
    Served(Charge),
    /// It needs others. Where L2 has the line, if it has.
    Missed(Place, Option<Slot>),
}

impl System {
    /// A core's L1 doesn't have what it wants. By the core's own thread.
    #[inline]
    pub(crate) fn second(&self, core: usize, kind: Kind, line: u64) -> Second {
        let own = &self.cores[core];
        let Some(place) = self.map.place(line) else {
            own.counters.served(kind, Level::Nowhere);
            return Second::Served(Charge {
                picoseconds: 0,
                level: Level::Nowhere,
            });
        };
        // Nobody else brings lines here, so what isn't there won't be.
        match own.l2.find(place.index) {
            Some(slot) => self.second_in(own, kind, place, slot),
            None => Second::Missed(place, None),
        }
    }

    /// The same, where L2 had the line in a slot a moment ago.
    #[inline]
    fn second_in(&self, own: &Core, kind: Kind, place: Place, slot: Slot) -> Second {
        let Place { line, .. } = place;
        let guard = self.lock_core(own);
        let state = match own.l2.state(slot, place.index) {
            None => return Second::Missed(place, None),
            Some(State::Shared) if kind.writes() => return Second::Missed(place, Some(slot)),
            Some(state) => state,
        };
        own.l2.use_slot(slot);
        let charge = own.second_charge(kind, line);
        self.fill_l1(own, kind, line, slot, state);
        drop(guard);
        own.charged(kind, charge);
        Second::Served(charge)
    }

    /// The line is in a slot of the core's L2 in a state, for itself if it is to be written, and comes into an L1. By the core's
    /// own thread, under its own lock or that of the line's shard.
    pub(crate) fn fill_l1(&self, own: &Core, kind: Kind, line: u64, slot: Slot, state: State) {
        let victim = match kind {
            Kind::Fetch => {
                if own.data.share(line) == Some(State::Modified) {
                    own.l2.change(slot, State::Modified);
                }
                own.l2.note_code(slot, true);
                own.code.put(line, State::Shared)
            }
            Kind::Load => {
                let code = || own.l2.may_be_code(slot) && own.code.holds(line);
                let shared = state == State::Shared || code();
                let state = if shared {
                    State::Shared
                } else {
                    State::Exclusive
                };
                own.data.put(line, state)
            }
            Kind::Store | Kind::Atomic => {
                if own.l2.may_be_code(slot) {
                    own.code.take(line);
                    own.l2.note_code(slot, false);
                }
                own.data.put(line, State::Modified)
            }
        };
        if let Some((victim, State::Modified)) = victim
            && let Some(Place { index, .. }) = self.map.place(victim)
            && let Some(slot) = own.l2.find(index)
        {
            own.l2.change(slot, State::Modified);
        }
    }
}

impl Core {
    /// What a line that L2 has costs: a store to one that L1 has, to read, waits for nothing but itself.
    pub(crate) fn second_charge(&self, kind: Kind, line: u64) -> Charge {
        let (level, picoseconds) = if kind.writes() && self.data.holds(line) {
            (Level::L1, self.costs.l1)
        } else {
            (Level::L2, self.costs.l2)
        };
        Charge { picoseconds, level }
    }
}

#[cfg(test)]
#[path = "private_tests.rs"]
mod tests;
