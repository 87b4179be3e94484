//! Messages: none is lost without a reason, served twice, or in two places; and what goes into a place comes out of it.
//!
//! The checker is told what happens to each message ([`crate::net::Net::watch`]), and keeps its own books: where each is, how many are at each place, and the
//! area under that number over time. Three things that are found in different ways must agree, to the message and to the nanosecond:
//!
//! - its own numbers;
//! - what the places' own accounts say. By Little's law the area under the number at a place is the time that all who were there spent there: the sum over those
//!   that left, by stamps on the messages, and those that are still there;
//! - what is really in the queues ([`census`]).

#![expect(
    clippy::cast_possible_truncation,
    reason = "numbers of places are far below 2^32"
)]

use std::collections::BTreeMap;

use ostler_model::Nanos;

use crate::net::{Net, Note, Place, Stage};
use crate::tenants::Tenants;

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageViolation {
    /// Something happened to a message that isn't on its way: it was never sent, or is answered or lost already.
    #[error("at {} ns {note:?} was told of a message that is not on its way", at.0)]
    Unknown {
        /// When.
        at: Nanos,
        /// What.
        note: Note,
    },
    /// A number was given twice.
    #[error("message {0} was sent twice")]
    Twice(u64),
    /// It was answered before any task had it.
    #[error("message {0} was answered from {1:?}")]
    Skipped(u64, Option<Place>),
    /// It was taken elsewhere than in a guest's kernel.
    #[error("message {0} was taken from {1:?}")]
    Misled(u64, Option<Place>),
    /// A place's accounts say something else.
    #[error("{what} of {place:?}: it says {told}, and there were {seen}")]
    Place {
        /// Which.
        place: Place,
        /// Which account.
        what: &'static str,
        /// What it says.
        told: u128,
        /// What was seen.
        seen: u128,
    },
    /// What was sent isn't what was answered, lost or is on its way.
    #[error(
        "{sent} were sent, {answered} answered, {taken} taken, {lost} lost, and {in_flight} are on their way"
    )]
    Totals {
        /// See there.
        sent: u64,
        /// See there.
        answered: u64,
        /// See there.
        taken: u64,
        /// See there.
        lost: u64,
        /// See there.
        in_flight: u64,
    },
}

#[derive(Clone, Copy, Debug, Default)]
struct Area {
    inside: u64,
    entered: u64,
    left: u64,
    product: u128,
    last: Nanos,
}

impl Area {
    fn until(&mut self, now: Nanos) {
        self.product += u128::from(self.inside) * u128::from(now.0 - self.last.0);
        self.last = now;
    }
}

/// The checker's books.
#[derive(Clone, Debug, Default)]
pub struct Messages {
    on_their_way: BTreeMap<u64, Option<Place>>,
    places: BTreeMap<Place, Area>,
    sent: u64,
    answered: u64,
    taken: u64,
    lost: u64,
    violations: Vec<MessageViolation>,
}

impl Messages {
    /// Something happened.
    pub fn note(&mut self, now: Nanos, note: Note) {
        match note {
            Note::Sent(uid) => {
                // Numbers go up, so one that isn't above all others was given before.
                if uid <= self.sent {
                    self.violations.push(MessageViolation::Twice(uid));
                }
                self.sent = uid;
                self.on_their_way.insert(uid, None);
            }
            Note::Entered(uid, place) => {
                if self.leave(now, uid, note).is_ok() {
                    let area = self.places.entry(place).or_default();
                    area.until(now);
                    area.inside += 1;
                    area.entered += 1;
                    self.on_their_way.insert(uid, Some(place));
                }
            }
            Note::Answered(uid) => {
                if let Ok(place) = self.leave(now, uid, note) {
                    if place.map(|place| place.stage) != Some(Stage::VhostTx) {
                        self.violations.push(MessageViolation::Skipped(uid, place));
                    }
                    self.answered += 1;
                }
            }
            Note::Taken(uid) => {
                if let Ok(place) = self.leave(now, uid, note) {
                    if place.map(|place| place.stage) != Some(Stage::GuestSoftirq) {
                        self.violations.push(MessageViolation::Misled(uid, place));
                    }
                    self.taken += 1;
                }
            }
            Note::Lost(uid, _) => {
                if self.leave(now, uid, note).is_ok() {
                    self.lost += 1;
                }
            }
        }
    }

    /// Where it was, if it is on its way at all.
    fn leave(&mut self, now: Nanos, uid: u64, note: Note) -> Result<Option<Place>, ()> {
        let Some(place) = self.on_their_way.remove(&uid) else {
            self.violations
                .push(MessageViolation::Unknown { at: now, note });
            return Err(());
        };
        if let Some(place) = place {
            let area = self.places.entry(place).or_default();
            area.until(now);
            area.inside -= 1;
            area.left += 1;
        }
        Ok(place)
    }

    /// Mean number at a place until now, as the area has it.
    pub fn mean_number(&self, place: Place, now: Nanos) -> f64 {
        let area = self.places.get(&place).copied().unwrap_or_default();
        let open = u128::from(area.inside) * u128::from(now.0 - area.last.0);
        (area.product + open) as f64 / now.0.max(1) as f64
    }

    /// Whether everything agrees, at a time at which nothing is being done.
    pub fn check(&self, tenants: &Tenants, now: Nanos) -> Result<(), MessageViolation> {
        if let Some(violation) = self.violations.first() {
            return Err(violation.clone());
        }
        let net = &tenants.net;
        let (sent, answered, lost) = net.totals();
        let lost: u64 = lost.iter().sum();
        let taken = net.taken();
        let in_flight = self.on_their_way.len() as u64;
        if (sent, answered, taken, lost) != (self.sent, self.answered, self.taken, self.lost)
            || sent != answered + taken + lost + in_flight
        {
            return Err(MessageViolation::Totals {
                sent,
                answered,
                taken,
                lost,
                in_flight,
            });
        }
        let mut open = BTreeMap::<Place, u128>::new();
        for (_, place, since) in net.in_flight() {
            *open.entry(place).or_default() += u128::from(now.0 - since.0);
        }
        let census = census(tenants);
        for place in places(net) {
            let mut area = self.places.get(&place).copied().unwrap_or_default();
            area.until(now);
            let passed = net.passed(place.stage)[place.at as usize];
            let stayed = passed.time + open.get(&place).copied().unwrap_or(0);
            let there = census.get(&place).copied().unwrap_or(0);
            for (what, told, seen) in [
                (
                    "messages that came",
                    passed.entered.into(),
                    area.entered.into(),
                ),
                ("messages that went", passed.left.into(), area.left.into()),
                ("messages in queues", there.into(), area.inside.into()),
                ("time spent", stayed, area.product),
            ] {
                if told != seen {
                    return Err(MessageViolation::Place {
                        place,
                        what,
                        told,
                        seen,
                    });
                }
            }
        }
        Ok(())
    }
}

fn places(net: &Net) -> impl Iterator<Item = Place> {
    Stage::ALL.into_iter().flat_map(|stage| {
        let count = net.passed(stage).len() as u32;
        (0..count).map(move |at| Place { stage, at })
    })
}

/// How many messages are really in each queue.
pub fn census(tenants: &Tenants) -> BTreeMap<Place, u64> {
    let mut counts = BTreeMap::new();
    let mut add = |stage, at, count: usize| {
        *counts.entry(Place { stage, at }).or_default() += count as u64;
    };
    for (at, poller) in (0..).zip(&tenants.nic.pollers) {
        add(Stage::Ring, at, poller.ring.len());
        add(Stage::Softirq, at, poller.batch.len());
    }
    for (at, worker) in (0..).zip(&tenants.workers) {
        add(Stage::Tap, at, worker.tap.len());
        add(Stage::Vring, at, worker.vring.len());
        add(Stage::TxRing, at, worker.tx.len());
        let stage = match worker.doing {
            crate::net::vhost::Doing::Receive => Stage::VhostRx,
            _ => Stage::VhostTx,
        };
        add(stage, at, worker.batch.len());
    }
    for (at, guest) in (0..).zip(&tenants.guests) {
        for vcpu in &guest.vcpus {
            add(Stage::GuestSoftirq, at, vcpu.batch.len());
        }
        for task in &guest.tasks {
            add(Stage::Socket, at, task.inbox.len());
            add(Stage::Service, at, usize::from(task.message.is_some()));
        }
        for running in &guest.programs {
            add(Stage::Socket, at, running.service.inbox.len());
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::Loss;

    /// What the checker finds in what happened to messages.
    fn found(notes: &[Note]) -> Vec<MessageViolation> {
        let mut messages = Messages::default();
        for (at, note) in (1..).zip(notes) {
            messages.note(Nanos(at), *note);
        }
        messages.violations
    }

    #[test]
    fn messages_that_are_served_twice_or_not_at_all_are_found() {
        let place = |stage| Place { stage, at: 0 };
        let way = [
            Note::Sent(1),
            Note::Entered(1, place(Stage::Service)),
            Note::Entered(1, place(Stage::VhostTx)),
            Note::Answered(1),
        ];
        assert_eq!(found(&way), []);
        let and = |note| [&way[..], &[note]].concat();
        assert_eq!(found(&and(Note::Sent(1))), [MessageViolation::Twice(1)]);
        for note in [
            Note::Answered(1),
            Note::Lost(1, Loss::Dead),
            Note::Entered(1, place(Stage::Service)),
            Note::Answered(2),
        ] {
            let at = Nanos(5);
            assert_eq!(found(&and(note)), [MessageViolation::Unknown { at, note }]);
        }
        let tap = place(Stage::Tap);
        assert_eq!(
            found(&[Note::Sent(1), Note::Entered(1, tap), Note::Answered(1)]),
            [MessageViolation::Skipped(1, Some(tap))]
        );
        assert_eq!(
            found(&[Note::Sent(1), Note::Entered(1, tap), Note::Taken(1)]),
            [MessageViolation::Misled(1, Some(tap))]
        );
    }
}
