//! The machine at a client's end: a thread that sends requests and reads answers, in turns, and a NIC of its own.
//!
//! A client that is a machine of the same kind as the host, as the lab's is, takes its time: what is due or has come while its thread is at something else waits, and that is in response times. Its NIC
//! interrupts it once in the moderation time, and again when that is over where it has echoes ([`crate::net::nic`]), so answers that come soon after others are read later. Papers' clients have no such end: what
//! they take isn't in their figures, and a wire is all that is between.
//!
//! **In turns** (`ostler_load::net::Worker::run`): the thread sends all that is due by then and has room, one after the other; then it reads all that has come by then; and again, until there is neither, and it
//! sleeps. So what falls due while it reads leaves together: requests come to the host in small bursts, more so the busier the client is, and not as they fall due.

use std::collections::VecDeque;

use ostler_model::Nanos;

/// What things take at a client's end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndCosts {
    /// From when a request is sent until the NIC of the host interrupts for it, if nothing has that wait.
    pub device: Nanos,
    /// To send a request, or to read an answer; zero: there is no such end.
    pub each: Nanos,
    /// To wake the thread, where it sleeps.
    pub wake: Nanos,
    /// An interrupt for answers, with its softirq.
    pub interrupt: Nanos,
    /// Interrupts come at most once in this time, and again when it is over.
    pub moderation: Nanos,
}

impl EndCosts {
    /// Whether there is such an end.
    pub fn there(&self) -> bool {
        self.each > Nanos::ZERO
    }
}

/// What the thread does in a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Turn {
    /// Sends what is due.
    #[default]
    Sends,
    /// Reads what has come.
    Reads,
}

/// A request that waits for the thread alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// When it was due.
    pub due: Nanos,
    /// Its connection.
    pub flow: u32,
    /// How often it has been sent, with this.
    pub times: u32,
}

/// An answer that the thread hasn't read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// When its interrupt is over.
    pub at: Nanos,
    /// When the request was due.
    pub due: Nanos,
    /// Its connection.
    pub flow: u32,
}

/// A client's end.
#[derive(Clone, Debug, Default)]
pub struct End {
    /// What is to be sent, beside what waits for a connection.
    pub requests: VecDeque<Request>,
    answers: VecDeque<Answer>,
    /// When the thread turns to something next, if it is known, and to what.
    next: Option<Nanos>,
    turn: Turn,
    awake: bool,
    /// Until when its NIC interrupts nobody.
    quiet: Nanos,
}

impl End {
    /// Something falls due. When to have the thread take its turn, if that is new.
    pub fn falls_due(&mut self, now: Nanos, costs: &EndCosts) -> Option<Nanos> {
        let wakes = now.saturating_add(costs.wake);
        if self.awake || self.next.is_some_and(|next| next <= wakes) {
            return None;
        }
        self.turn = Turn::Sends;
        self.next = Some(wakes);
        self.next
    }

    /// An answer of a request that was due then has left the host. When to have the thread take its turn, if that is new.
    pub fn hears(&mut self, now: Nanos, due: Nanos, flow: u32, costs: &EndCosts) -> Option<Nanos> {
        let interrupt = if now > self.quiet {
            self.quiet = now.saturating_add(costs.moderation);
            now
        } else {
            self.quiet
        };
        let at = interrupt.saturating_add(costs.interrupt);
        self.answers.push_back(Answer { at, due, flow });
        if self.awake || self.next.is_some() {
            return None;
        }
        self.rests(costs)
    }

    /// The thread's turn, if it is now.
    pub fn turns(&mut self, now: Nanos) -> Option<Turn> {
        let turns = self.next == Some(now);
        self.awake |= turns;
        turns.then_some(self.turn)
    }

    /// The next answer that has come by now.
    pub fn reads(&mut self, now: Nanos) -> Option<Answer> {
        self.answers.pop_front_if(|answer| answer.at <= now)
    }

    /// The thread has had its turn, with so many; when the other one is.
    pub fn goes_on(&mut self, now: Nanos, did: Turn, count: u64, costs: &EndCosts) -> Nanos {
        self.turn = match did {
            Turn::Sends => Turn::Reads,
            Turn::Reads => Turn::Sends,
        };
        let next = now.saturating_add(Nanos(costs.each.0 * count));
        self.next = Some(next);
        next
    }

    /// The thread has nothing to do, and sleeps; until when, if that is known.
    pub fn rests(&mut self, costs: &EndCosts) -> Option<Nanos> {
        let first = self.answers.front();
        self.awake = false;
        self.turn = Turn::Reads;
        self.next = first.map(|answer| answer.at.saturating_add(costs.wake));
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: EndCosts = EndCosts {
        device: Nanos(50),
        each: Nanos(70),
        wake: Nanos(90),
        interrupt: Nanos(60),
        moderation: Nanos(200),
    };

    #[test]
    fn who_sleeps_is_woken_once_for_what_comes_first() {
        let mut end = End::default();
        assert_eq!(end.falls_due(Nanos(1000), &COSTS), Some(Nanos(1090)));
        assert_eq!(end.falls_due(Nanos(1001), &COSTS), None, "it is on its way");
        assert_eq!(end.turns(Nanos(1089)), None);
        assert_eq!(end.turns(Nanos(1090)), Some(Turn::Sends));
        assert_eq!(end.falls_due(Nanos(1091), &COSTS), None, "it is awake");
        assert_eq!(
            end.goes_on(Nanos(1090), Turn::Sends, 2, &COSTS),
            Nanos(1230)
        );
        assert_eq!(end.turns(Nanos(1230)), Some(Turn::Reads));
        assert_eq!(end.rests(&COSTS), None);
        assert_eq!(end.turns(Nanos(1230)), None);
        // An answer's interrupt takes longer than a timer's.
        assert_eq!(
            end.hears(Nanos(2000), Nanos(1000), 3, &COSTS),
            Some(Nanos(2150))
        );
        assert_eq!(end.falls_due(Nanos(2010), &COSTS), Some(Nanos(2100)));
        assert_eq!(end.turns(Nanos(2100)), Some(Turn::Sends));
        assert_eq!(
            end.goes_on(Nanos(2100), Turn::Sends, 1, &COSTS),
            Nanos(2170)
        );
        assert_eq!(end.turns(Nanos(2150)), None, "that was before it was awake");
        assert_eq!(end.turns(Nanos(2170)), Some(Turn::Reads));
        let read = end
            .reads(Nanos(2170))
            .map(|answer| (answer.at, answer.due, answer.flow));
        assert_eq!(read, Some((Nanos(2060), Nanos(1000), 3)));
    }

    #[test]
    fn answers_soon_after_others_come_by_the_interrupt_when_the_moderation_time_is_over() {
        let mut end = End::default();
        for at in [1000, 1100, 1200, 1900] {
            end.hears(Nanos(at), Nanos(0), 0, &COSTS);
        }
        // Two by the one at 1200, which keeps none back that comes after it.
        let mut come = Vec::new();
        for now in (0..3000).map(Nanos) {
            come.extend(std::iter::from_fn(|| end.reads(now)).map(|_| now.0));
        }
        assert_eq!(come, [1060, 1260, 1260, 1960]);
    }
}
