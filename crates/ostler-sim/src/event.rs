//! The queue of what is to happen.
//!
//! Events of the same time happen in the order in which they were put in. So there is one order of all events, and with it one
//! outcome. An event that is no longer wanted isn't searched for: its owner counts up a number that the event has a copy of, and
//! ignores it when it comes ([`Ticket`]).

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use ostler_model::Nanos;

/// What is to happen, in order of time.
#[derive(Clone, Debug)]
pub struct Queue<E> {
    heap: BinaryHeap<Entry<E>>,
    now: Nanos,
    sequence: u64,
    taken: u64,
}

#[derive(Clone, Debug)]
struct Entry<E> {
    at: Nanos,
    sequence: u64,
    event: E,
}

impl<E> Default for Queue<E> {
    fn default() -> Queue<E> {
        Queue {
            heap: BinaryHeap::new(),
            now: Nanos::ZERO,
            sequence: 0,
            taken: 0,
        }
    }
}

impl<E> Queue<E> {
    /// The time of the event that was taken last.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// How many events have happened.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// How many are to happen.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether nothing more is to happen.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// Has `event` happen at a time; one that is over counts as now.
    pub fn at(&mut self, at: Nanos, event: E) {
        self.sequence += 1;
        self.heap.push(Entry {
            at: at.max(self.now),
            sequence: self.sequence,
            event,
        });
    }

    /// Has `event` happen after a time.
    pub fn after(&mut self, delay: Nanos, event: E) {
        self.at(self.now.saturating_add(delay), event);
    }

    /// When the next one happens.
    pub fn next_at(&self) -> Option<Nanos> {
        self.heap.peek().map(|entry| entry.at)
    }

    /// Time goes on to `until`, if nothing is to happen before.
    pub fn pass(&mut self, until: Nanos) {
        self.now = self.now.max(until.min(self.next_at().unwrap_or(until)));
    }

    /// The next one, if it happens at `until` or before. Time goes on to it.
    pub fn take(&mut self, until: Nanos) -> Option<E> {
        if self.next_at()? > until {
            return None;
        }
        let entry = self.heap.pop()?;
        self.now = entry.at;
        self.taken += 1;
        Some(entry.event)
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Entry<E>) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Entry<E>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    /// The heap gives its greatest: that is the earliest here.
    fn cmp(&self, other: &Entry<E>) -> Ordering {
        (other.at, other.sequence).cmp(&(self.at, self.sequence))
    }
}

/// Tells an event that still counts from one that has been called off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticket(u32);

impl Ticket {
    /// Calls off what was issued before, and gives the number for what is put in now.
    #[expect(
        clippy::return_self_not_must_use,
        reason = "to call off without putting anything in is fine"
    )]
    pub fn renew(&mut self) -> Ticket {
        self.0 = self.0.wrapping_add(1);
        *self
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn events_happen_in_order_of_time_and_then_of_entry(
            times in proptest::collection::vec(0_u64..20, 0..100),
        ) {
            let mut queue = Queue::default();
            for (index, at) in times.iter().enumerate() {
                queue.at(Nanos(*at), (*at, index));
            }
            let mut expected: Vec<_> = times.iter().copied().enumerate().map(|(i, at)| (at, i)).collect();
            expected.sort_unstable();
            let mut happened = Vec::new();
            while let Some(event) = queue.take(Nanos(9)) {
                prop_assert_eq!(queue.now(), Nanos(event.0));
                happened.push(event);
            }
            prop_assert!(queue.next_at().is_none_or(|at| at > Nanos(9)));
            while let Some(event) = queue.take(Nanos(u64::MAX)) {
                happened.push(event);
            }
            prop_assert_eq!(happened, expected);
        }
    }

    #[test]
    fn what_is_put_into_the_past_happens_now() {
        let mut queue = Queue::default();
        queue.at(Nanos(5), 'a');
        assert_eq!(queue.take(Nanos(5)), Some('a'));
        queue.at(Nanos(3), 'b');
        queue.after(Nanos(0), 'c');
        assert_eq!((queue.take(Nanos(5)), queue.now()), (Some('b'), Nanos(5)));
        assert_eq!((queue.take(Nanos(5)), queue.taken()), (Some('c'), 3));
    }

    #[test]
    fn what_was_called_off_is_told_from_what_counts() {
        let mut ticket = Ticket::default();
        let first = ticket.renew();
        assert_eq!(first, ticket);
        assert_ne!(ticket.renew(), first);
    }
}
