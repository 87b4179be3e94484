//! The queue of what is to happen.
//!
//! Events of the same time happen in the order in which they were put in. So there is one order of all events, and with it one
//! outcome. Whoever has one event at most that is to happen keeps it in a *slot* ([`Queue::set`]): the next one there takes the place of the one
//! before, which never happens.
//!
//! It is a radix heap (Ahuja, Mehlhorn, Orlin, Tarjan, *Faster algorithms for the shortest path problem*, JACM 37(2), 1990, section 2): a priority queue for keys that are never
//! below the least that was taken, as times of events aren't. An event is in the bucket whose number is the highest bit, counted from 1, in which its time differs from
//! the *base*, the time of the last bucket that was opened; bucket 0 has what is due at that time. When that is empty, the first bucket that isn't is opened: the least time
//! in it becomes the base, and all of it goes to lower buckets, none of which had anything. So an event moves a few times, always towards
//! bucket 0, and is never compared with more than those of its bucket. Whoever has the same time is in the same bucket at all times, so that order of
//! entry is kept by having each bucket a list that is added to at its end.
//!
//! Changed: base and now are two, since a bucket isn't opened before its time has come; and an event whose slot is set or
//! cleared is taken out at once, so that there are never more nodes than there were events at one time.

use ostler_model::Nanos;

/// No node, no slot.
const NONE: u32 = u32::MAX;
/// Bucket 0, and one for each bit of a time.
const BUCKETS: usize = 65;

/// What is to happen, in order of time.
#[derive(Clone, Debug)]
pub struct Queue<E> {
    nodes: Vec<Node<E>>,
    /// Nodes of no use now, a list.
    free: u32,
    buckets: [List; BUCKETS],
    /// Buckets from 1 on that have something: bit 0 is bucket 1's.
    used: u64,
    base: u64,
    /// By slot: the node that counts.
    slots: Vec<u32>,
    now: Nanos,
    len: usize,
    taken: u64,
}

#[derive(Clone, Debug)]
struct Node<E> {
    at: u64,
    /// Those beside it in its bucket.
    prev: u32,
    next: u32,
    slot: u32,
    /// `None` where the node is of no use.
    event: Option<E>,
}

/// A list of nodes.
#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    last: u32,
}

const EMPTY: List = List {
    first: NONE,
    last: NONE,
};

impl<E> Default for Queue<E> {
    fn default() -> Queue<E> {
        Queue {
            nodes: Vec::new(),
            free: NONE,
            buckets: [EMPTY; BUCKETS],
            used: 0,
            base: 0,
            slots: Vec::new(),
            now: Nanos::ZERO,
            len: 0,
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
        self.len
    }

    /// Whether nothing more is to happen.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Has `event` happen at a time; one that is over counts as now.
    #[inline]
    pub fn at(&mut self, at: Nanos, event: E) {
        self.put(at, NONE, event);
    }

    /// Has `event` happen after a time.
    #[inline]
    pub fn after(&mut self, delay: Nanos, event: E) {
        self.at(self.now.saturating_add(delay), event);
    }

    /// Has `event` happen at a time, and not what this slot had before. Slots are numbered from 0 on, and cost 4 bytes each up to the highest.
    #[inline]
    pub fn set(&mut self, slot: u32, at: Nanos, event: E) {
        if self.slots.len() <= slot as usize {
            self.slots.resize(slot as usize + 1, NONE);
        }
        self.clear(slot);
        self.slots[slot as usize] = self.put(at, slot, event);
    }

    /// What a slot has doesn't happen.
    #[inline]
    pub fn clear(&mut self, slot: u32) {
        if let Some(known) = self.slots.get_mut(slot as usize) {
            let number = std::mem::replace(known, NONE);
            if number != NONE {
                self.unlink(number);
                self.release(number);
            }
        }
    }

    /// When the next one happens.
    pub fn next_at(&self) -> Option<Nanos> {
        if self.buckets[0].first != NONE {
            return Some(Nanos(self.base));
        }
        (self.used != 0).then(|| Nanos(self.least(self.used.trailing_zeros() as usize + 1)))
    }

    /// The least time in a bucket.
    fn least(&self, bucket: usize) -> u64 {
        let mut least = u64::MAX;
        let mut at = self.buckets[bucket].first;
        while at != NONE {
            let node = &self.nodes[at as usize];
            least = least.min(node.at);
            at = node.next;
        }
        least
    }

    /// Time goes on to `until`, if nothing is to happen before.
    pub fn pass(&mut self, until: Nanos) {
        self.now = self.now.max(until.min(self.next_at().unwrap_or(until)));
    }

    /// The next one, if it happens at `until` or before. Time goes on to it.
    #[inline]
    pub fn take(&mut self, until: Nanos) -> Option<E> {
        if self.buckets[0].first == NONE {
            if self.used == 0 {
                return None;
            }
            let bucket = self.used.trailing_zeros() as usize + 1;
            let least = self.least(bucket);
            if least > until.0 {
                return None;
            }
            self.open(bucket, least);
        } else if self.base > until.0 {
            return None;
        }
        let list = &mut self.buckets[0];
        let first = list.first;
        let node = &self.nodes[first as usize];
        let slot = node.slot;
        list.first = node.next;
        if node.next == NONE {
            list.last = NONE;
        } else {
            let next = node.next;
            self.nodes[next as usize].prev = NONE;
        }
        if slot != NONE {
            self.slots[slot as usize] = NONE;
        }
        self.now = Nanos(self.base);
        self.taken += 1;
        self.release(first)
    }

    /// Puts an event in; its node.
    fn put(&mut self, at: Nanos, slot: u32, event: E) -> u32 {
        let at = at.max(self.now).0;
        let node = Node {
            at,
            prev: NONE,
            next: NONE,
            slot,
            event: Some(event),
        };
        let number = self.free;
        let number = if number == NONE {
            self.nodes.push(node);
            u32::try_from(self.nodes.len() - 1).expect("fewer events than 2^32")
        } else {
            let old = &mut self.nodes[number as usize];
            self.free = old.next;
            *old = node;
            number
        };
        self.len += 1;
        self.link(number, at);
        number
    }

    /// A node is of no use any longer; its event.
    fn release(&mut self, number: u32) -> Option<E> {
        let node = &mut self.nodes[number as usize];
        node.next = self.free;
        self.free = number;
        self.len -= 1;
        node.event.take()
    }

    fn bucket_of(&self, at: u64) -> usize {
        (u64::BITS - (at ^ self.base).leading_zeros()) as usize
    }

    /// Adds a node at the end of the bucket of its time.
    fn link(&mut self, number: u32, at: u64) {
        let bucket = self.bucket_of(at);
        if bucket > 0 {
            self.used |= 1 << (bucket - 1);
        }
        let list = &mut self.buckets[bucket];
        let before = std::mem::replace(&mut list.last, number);
        self.nodes[number as usize].prev = before;
        if before == NONE {
            list.first = number;
        } else {
            self.nodes[before as usize].next = number;
        }
    }

    /// Takes a node out of its bucket.
    fn unlink(&mut self, number: u32) {
        let node = &self.nodes[number as usize];
        let (at, prev, next) = (node.at, node.prev, node.next);
        let bucket = self.bucket_of(at);
        let list = &mut self.buckets[bucket];
        match prev {
            NONE => list.first = next,
            prev => self.nodes[prev as usize].next = next,
        }
        match next {
            NONE => list.last = prev,
            next => self.nodes[next as usize].prev = prev,
        }
        if list.first == NONE && bucket > 0 {
            self.used &= !(1 << (bucket - 1));
        }
    }

    /// Opens the first bucket that has something, whose least time it is told.
    fn open(&mut self, bucket: usize, least: u64) {
        self.used &= self.used - 1;
        let mut at = std::mem::replace(&mut self.buckets[bucket], EMPTY).first;
        self.base = least;
        while at != NONE {
            let node = &mut self.nodes[at as usize];
            let (due, next) = (node.at, std::mem::replace(&mut node.next, NONE));
            self.link(at, due);
            at = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        At(u64),
        Set(u32, u64),
        Clear(u32),
        Take(u64),
        Pass(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        // Near and far, and often the same.
        let time = || prop_oneof![0_u64..8, 0_u64..2000, (0_u32..64).prop_map(|bit| 1 << bit)];
        let step = prop_oneof![
            3 => time().prop_map(Step::At),
            3 => (0_u32..4, time()).prop_map(|(slot, at)| Step::Set(slot, at)),
            1 => (0_u32..6).prop_map(Step::Clear),
            6 => time().prop_map(Step::Take),
            1 => time().prop_map(Step::Pass),
        ];
        proptest::collection::vec(step, 0..200)
    }

    proptest! {
        /// Beside a list that is searched from end to end.
        #[test]
        fn events_happen_in_order_of_time_and_then_of_entry(steps in steps()) {
            let mut queue = Queue::default();
            let mut list: Vec<(u64, usize, Option<u32>)> = Vec::new();
            let mut now = 0_u64;
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::At(after) => {
                        queue.after(Nanos(after), number);
                        list.push((now.saturating_add(after), number, None));
                    }
                    Step::Set(slot, at) => {
                        // Some into the past, which is now.
                        queue.set(slot, Nanos(at), number);
                        list.retain(|entry| entry.2 != Some(slot));
                        list.push((at.max(now), number, Some(slot)));
                    }
                    Step::Clear(slot) => {
                        queue.clear(slot);
                        list.retain(|entry| entry.2 != Some(slot));
                    }
                    Step::Take(span) => {
                        let until = now.saturating_add(span);
                        let first = list.iter().min().copied().filter(|first| first.0 <= until);
                        prop_assert_eq!(queue.take(Nanos(until)), first.map(|first| first.1));
                        if let Some(first) = first {
                            now = first.0;
                            list.retain(|entry| *entry != first);
                        }
                    }
                    Step::Pass(span) => {
                        let until = now.saturating_add(span);
                        queue.pass(Nanos(until));
                        now = list.iter().map(|entry| entry.0).fold(until, u64::min);
                    }
                }
                prop_assert_eq!(queue.now(), Nanos(now));
                prop_assert_eq!(queue.len(), list.len());
                prop_assert_eq!(queue.next_at(), list.iter().min().map(|first| Nanos(first.0)));
            }
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
    fn events_that_never_happen_leave_nothing_behind() {
        let mut queue = Queue::default();
        for number in 0..1000_u64 {
            queue.set(0, Nanos(number + 500), number);
            queue.set(1, Nanos(number), number);
            assert_eq!(queue.take(Nanos(number)), Some(number));
        }
        assert_eq!((queue.nodes.len(), queue.len()), (2, 1));
    }
}
