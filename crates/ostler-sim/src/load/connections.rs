//! A client's connections, as the lab's load generator has them (`ostler_load::driver`): so many requests are on their way at once as they have room for.
//! Others wait with the client, in order, and their wait counts; one whose window has been settled meanwhile is never sent. What is lost on its way
//! goes again, as TCP has it, and its connection has no room until it is answered.

use std::collections::{BTreeMap, VecDeque};

use ostler_model::Nanos;

use crate::costs::{INSTRUCTION_NS, path};

/// Requests that may wait: what the load generator lets unless told.
const WAITING: usize = 262_144;

/// A request that was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Its connection.
    pub flow: u32,
    /// When it was due.
    pub due: Nanos,
    /// How often it had been sent.
    pub sent: u32,
}

/// Connections, and who waits for one.
#[derive(Clone, Debug)]
pub struct Connections {
    /// Room for a request: from when on, and on which connection. Taken in turn, so that all connections are used.
    free: VecDeque<(Nanos, u32)>,
    /// When each was due, and until when it is worth sending.
    waiting: VecDeque<(Nanos, Nanos)>,
    /// Somebody comes when there is room.
    woken: bool,
    /// What goes again, by when.
    lost: BTreeMap<(Nanos, u64), Lost>,
    losses: u64,
}

impl Connections {
    /// So many, from a number on, with room for so many requests each.
    pub fn new(first: u32, count: u32, depth: u32) -> Connections {
        let each = |flow| std::iter::repeat_n((Nanos::ZERO, flow), depth.max(1) as usize);
        Connections {
            free: (first..first + count.max(1)).flat_map(each).collect(),
            waiting: VecDeque::new(),
            woken: false,
            lost: BTreeMap::new(),
            losses: 0,
        }
    }

    /// A request is due, and worth sending until a time; false: too many wait.
    pub fn due(&mut self, due: Nanos, until: Nanos) -> bool {
        if self.waiting.len() >= WAITING {
            self.give_up(due);
        }
        let room = self.waiting.len() < WAITING;
        if room {
            self.waiting.push_back((due, until));
        }
        room
    }

    fn give_up(&mut self, now: Nanos) {
        while self.waiting.front().is_some_and(|(_, until)| *until <= now) {
            self.waiting.pop_front();
        }
    }

    /// A request that is sent now: when it was due, and its connection.
    pub fn take(&mut self, now: Nanos) -> Option<(Nanos, u32)> {
        self.give_up(now);
        let (_, flow) = *self.free.front().filter(|(from, _)| *from <= now)?;
        let (due, _) = self.waiting.pop_front()?;
        self.free.pop_front();
        Some((due, flow))
    }

    /// A request of a connection is answered at a time, which is no earlier than the last one.
    pub fn answered(&mut self, at: Nanos, flow: u32) {
        self.free.push_back((at, flow));
    }

    /// When to come for those that wait, if there is room by then; told once until somebody came.
    pub fn wake(&mut self) -> Option<Nanos> {
        if self.woken || self.waiting.is_empty() {
            return None;
        }
        let (from, _) = self.free.front()?;
        self.woken = true;
        Some(*from)
    }

    /// Somebody came for those that wait.
    pub fn came(&mut self) {
        self.woken = false;
    }

    /// A request was lost; when it goes again.
    pub fn lose(&mut self, now: Nanos, lost: Lost) -> Nanos {
        let least = path::RTO_MIN.nanos(INSTRUCTION_NS).0;
        let most = path::RTO_MAX.nanos(INSTRUCTION_NS).0;
        let after = least << lost.sent.saturating_sub(1).min(16);
        let at = now.saturating_add(Nanos(after.min(most)));
        self.losses += 1;
        self.lost.insert((at, self.losses), lost);
        at
    }

    /// One that goes again now.
    pub fn again(&mut self, now: Nanos) -> Option<Lost> {
        let first = self
            .lost
            .first_entry()
            .filter(|first| first.key().0 <= now)?;
        Some(first.remove())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEVER: Nanos = Nanos(u64::MAX);

    #[test]
    fn requests_wait_in_order_for_room_and_connections_are_used_in_turn() {
        let mut few = Connections::new(7, 2, 1);
        for due in 1..=4 {
            assert!(few.due(Nanos(due), NEVER));
        }
        assert_eq!(few.take(Nanos(4)), Some((Nanos(1), 7)));
        assert_eq!(few.take(Nanos(4)), Some((Nanos(2), 8)));
        assert_eq!(few.take(Nanos(4)), None);
        assert_eq!(few.wake(), None, "nobody knows when there is room");
        few.answered(Nanos(10), 8);
        assert_eq!(few.wake(), Some(Nanos(10)));
        assert_eq!(few.wake(), None, "it was told");
        assert_eq!(few.take(Nanos(9)), None, "not yet");
        few.came();
        assert_eq!(few.take(Nanos(10)), Some((Nanos(3), 8)));
        few.answered(Nanos(11), 7);
        assert_eq!(few.take(Nanos(11)), Some((Nanos(4), 7)));
        assert_eq!(few.wake(), None, "nobody waits");
    }

    #[test]
    fn what_has_waited_too_long_is_never_sent() {
        let mut one = Connections::new(0, 1, 1);
        for (due, until) in [(1, 100), (2, 100), (3, 200)] {
            one.due(Nanos(due), Nanos(until));
        }
        assert_eq!(one.take(Nanos(3)), Some((Nanos(1), 0)));
        one.answered(Nanos(100), 0);
        assert_eq!(one.take(Nanos(100)), Some((Nanos(3), 0)));
    }

    #[test]
    fn no_more_wait_than_may_but_for_those_that_have_waited_too_long() {
        let mut none = Connections::new(0, 1, 1);
        none.free.clear();
        for _ in 0..WAITING {
            assert!(none.due(Nanos(1), Nanos(10)));
        }
        assert!(!none.due(Nanos(9), NEVER));
        assert!(none.due(Nanos(10), NEVER));
        assert_eq!(none.waiting.len(), 1);
    }

    #[test]
    fn what_is_lost_goes_again_ever_later() {
        let mut one = Connections::new(0, 1, 1);
        let lost = |sent| Lost {
            flow: 0,
            due: Nanos(5),
            sent,
        };
        let ms = Nanos::from_millis;
        assert_eq!(one.lose(ms(1), lost(1)), ms(201));
        assert_eq!(one.lose(ms(0), lost(3)), ms(800));
        assert_eq!(one.lose(ms(0), lost(40)), Nanos::from_secs(120));
        assert_eq!(one.again(ms(200)), None);
        assert_eq!(one.again(ms(201)), Some(lost(1)));
        assert_eq!(one.again(ms(900)), Some(lost(3)));
    }
}
