//! When a client's TCP acknowledges an answer by a packet of its own.
//!
//! A connection on which requests and answers follow each other soon talks: what acknowledges an answer goes with the next request. One that comes too late for that goes alone after
//! [`path::DELACK`], and then the connection doesn't talk any more, and acknowledges at once, until a request follows an answer within that time again (Linux's `tcp_event_data_sent`
//! and `tcp_delack_timer_handler`). So a connection that is asked little brings more packets for each request than a busy one, and each is an interrupt, a wake-up of a worker and one of a guest.
//!
//! What is left out: a connection begins as one that talks, where Linux acknowledges its first answers at once; timers go by the nanosecond, and not by ticks; and answers longer
//! than a segment, which are acknowledged at once.

use ostler_model::Nanos;

use crate::costs::{INSTRUCTION_NS, path};

#[derive(Clone, Copy, Debug)]
struct Flow {
    /// When its last answer came.
    heard: Nanos,
    /// When that is to be acknowledged by itself; never, where it is already.
    due: Nanos,
    /// Whether requests follow answers soon.
    talks: bool,
}

const NEVER: Nanos = Nanos(u64::MAX);

/// What is to be acknowledged on connections.
#[derive(Clone, Debug)]
pub struct Acks {
    first: u32,
    flows: Vec<Flow>,
    delay: Nanos,
    /// When somebody comes to look.
    comes: Nanos,
}

impl Acks {
    /// On so many connections, from a number on.
    pub fn new(first: u32, count: u32) -> Acks {
        let flow = Flow {
            heard: Nanos::ZERO,
            due: NEVER,
            talks: true,
        };
        Acks {
            first,
            flows: vec![flow; count.max(1) as usize],
            delay: path::DELACK.nanos(INSTRUCTION_NS),
            comes: NEVER,
        }
    }

    fn flow(&mut self, flow: u32) -> Option<&mut Flow> {
        self.flows.get_mut(flow.checked_sub(self.first)? as usize)
    }

    /// A request goes, and with it what acknowledges the answers that have come.
    pub fn sends(&mut self, now: Nanos, flow: u32) {
        let delay = self.delay;
        let Some(flow) = self.flow(flow).filter(|flow| flow.heard <= now) else {
            return;
        };
        flow.talks |= flow.heard > Nanos::ZERO && now.saturating_sub(flow.heard) < delay;
        flow.due = NEVER;
    }

    /// An answer comes at a time. When to look whether it is acknowledged, if nobody comes by then anyway.
    pub fn hears(&mut self, at: Nanos, flow: u32) -> Option<Nanos> {
        let delay = self.delay;
        let flow = self.flow(flow)?;
        let delay = if flow.talks { delay } else { Nanos::ZERO };
        flow.heard = at;
        flow.due = flow.due.min(at.saturating_add(delay));
        let due = flow.due;
        (due < self.comes).then(|| {
            self.comes = due;
            due
        })
    }

    /// Somebody has come: the connections on which an acknowledgement goes now, in order, and when to come again. Who isn't expected any more finds nothing.
    pub fn look(&mut self, now: Nanos) -> (Vec<u32>, Option<Nanos>) {
        if now != self.comes {
            return (Vec::new(), None);
        }
        let mut go = Vec::new();
        self.comes = NEVER;
        for (number, flow) in (self.first..).zip(&mut self.flows) {
            if flow.due <= now {
                flow.due = NEVER;
                flow.talks = false;
                go.push(number);
            }
            self.comes = self.comes.min(flow.due);
        }
        (go, Some(self.comes).filter(|at| *at < NEVER))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Nanos = Nanos::from_millis;

    #[test]
    fn an_answer_is_acknowledged_by_the_next_request_or_after_a_while_by_itself() {
        let mut acks = Acks::new(7, 2);
        acks.sends(MS(1), 7);
        assert_eq!(acks.hears(MS(2), 7), Some(MS(42)));
        acks.sends(MS(30), 7);
        assert_eq!(acks.hears(MS(31), 7), None, "somebody comes before");
        assert_eq!(acks.hears(MS(33), 8), None);
        assert_eq!(acks.look(MS(40)), (vec![], None), "nobody was to come");
        assert_eq!(acks.look(MS(42)), (vec![], Some(MS(71))));
        assert_eq!(acks.look(MS(71)), (vec![7], Some(MS(73))));
        assert_eq!(acks.look(MS(73)), (vec![8], None));
    }

    #[test]
    fn whoever_was_late_acknowledges_at_once_until_a_request_follows_soon() {
        let mut acks = Acks::new(0, 1);
        acks.hears(MS(10), 0);
        assert_eq!(acks.look(MS(50)), (vec![0], None));
        acks.sends(MS(60), 0);
        assert_eq!(acks.hears(MS(61), 0), Some(MS(61)), "it doesn't talk");
        assert_eq!(acks.look(MS(61)), (vec![0], None));
        acks.sends(MS(70), 0);
        assert_eq!(acks.hears(MS(71), 0), Some(MS(111)), "it talks again");
    }

    /// Packets of a connection's for each of its requests, which come so long after each other with so much chance in it.
    fn packets(gap_ms: f64, spread: f64) -> f64 {
        let mut acks = Acks::new(0, 1);
        let mut stream = crate::random::Stream::new(1, "acks", 0);
        let (mut now, mut alone) = (Nanos::ZERO, 0);
        let mut comes = None;
        for _ in 0..10_000 {
            let gap = gap_ms * (1.0 + spread * (2.0 * stream.below(1001) as f64 / 1000.0 - 1.0));
            now = now.saturating_add(crate::round::nanos(gap * 1e6));
            while let Some(at) = comes.filter(|at| *at <= now) {
                let (gone, next) = acks.look(at);
                alone += gone.len();
                comes = next;
            }
            acks.sends(now, 0);
            comes = acks.hears(now.saturating_add(MS(1)), 0).or(comes);
        }
        1.0 + alone as f64 / 10_000.0
    }

    #[test]
    fn a_connection_that_is_asked_little_has_two_packets_for_a_request_and_a_busy_one_has_one() {
        assert!((packets(10.0, 0.5) - 1.0).abs() < 0.001);
        assert!((packets(100.0, 0.5) - 2.0).abs() < 0.001);
        // Half of the gaps are long. Whoever was late pays for the next one, too: of four pairs of gaps, three.
        let some = packets(41.0, 0.5);
        assert!((some - 1.75).abs() < 0.03, "{some}");
    }
}
