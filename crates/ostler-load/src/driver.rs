//! The generator without a socket or a clock: a state machine that is told the time and the bytes.
//!
//! ```text
//!  schedule --due--> queue (bounded, FIFO) --free slot--> lane: out bytes ... replies --> ledger
//! ```
//!
//! A *lane* is a connection with `depth` slots. A request that is due while every slot is taken waits in the queue, and its
//! wait is part of its latency. Slots are used in turn, so load spreads over all connections (and thereby over the receive queues
//! that hash them). A request whose window has been settled while it waited is thrown away when it reaches the head: it has been
//! charged as a timeout already, and sending it would only drag one overload into the next step.
//!
//! On a wire that may lose replies (ICMP), a lane is a socket, a reply may be any slot's, and what was never answered gives its slot back
//! when its window is settled.
//!
//! Everything is an argument, so tests drive it through stalls of any length in no time at all.

use std::collections::VecDeque;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::ledger::{Ledger, Limits, Outcome, Window};
use crate::proto::{Protocol, Reply, Wire};
use crate::schedule::{Arrival, Plan, Schedule};

/// At most this many requests fall due in one turn, so that replies are read even when the client is far behind.
const DUE_PER_TURN_MAX: usize = 4_096;

/// How a driver is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Connections.
    pub lanes: usize,
    /// Outstanding requests per connection.
    pub depth: usize,
    /// Requests that may wait for a free slot.
    pub queue: usize,
    /// The run's seed.
    pub seed: u64,
    /// Which of the run's threads.
    pub stream: u64,
}

#[derive(Debug, Clone, Copy)]
struct Waiting<R> {
    arrival: Arrival,
    request: R,
}

#[derive(Debug)]
struct Lane<P: Protocol> {
    open: bool,
    /// Counts how often it was opened; slots of an earlier life are void.
    epoch: u32,
    dirty: bool,
    out: Vec<u8>,
    out_start: usize,
    in_flight: VecDeque<Waiting<P::Request>>,
    parser: P::Parser,
}

/// The reply stream of a lane can't be followed any longer: close it and open it anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneLost;

/// An open-loop client.
#[derive(Debug)]
pub struct Driver<P: Protocol> {
    protocol: P,
    schedule: Schedule,
    next: Option<Arrival>,
    rng: ChaCha8Rng,
    queue: VecDeque<Waiting<P::Request>>,
    queue_max: usize,
    depth: usize,
    lanes: Vec<Lane<P>>,
    free: VecDeque<(usize, u32)>,
    dirty: Vec<usize>,
    ledger: Ledger,
}

impl<P: Protocol> Driver<P> {
    /// A driver whose lanes are all closed.
    pub fn new(protocol: P, plan: &Plan, shape: Shape, limits: Limits) -> Self {
        let mut schedule = Schedule::new(plan.clone(), shape.seed, 2 * shape.stream);
        let mut rng = ChaCha8Rng::seed_from_u64(shape.seed);
        rng.set_stream(2 * shape.stream + 1);
        let lane = |_| Lane {
            open: false,
            epoch: 0,
            dirty: false,
            out: Vec::with_capacity(4_096),
            out_start: 0,
            in_flight: VecDeque::with_capacity(shape.depth),
            parser: P::Parser::default(),
        };
        Self {
            protocol,
            next: schedule.next(),
            schedule,
            rng,
            queue: VecDeque::with_capacity(shape.queue.min(1 << 16)),
            queue_max: shape.queue,
            depth: shape.depth,
            lanes: (0..shape.lanes).map(lane).collect(),
            free: VecDeque::with_capacity(2 * shape.lanes * shape.depth),
            dirty: Vec::with_capacity(shape.lanes),
            ledger: Ledger::new(plan.clone(), limits),
        }
    }

    /// What carries its requests.
    pub fn wire(&self) -> Wire {
        self.protocol.wire()
    }

    /// A lane's connection stands.
    pub fn lane_opened(&mut self, lane: usize) {
        let state = &mut self.lanes[lane];
        state.open = true;
        state.epoch += 1;
        state.parser = P::Parser::default();
        for _ in 0..self.depth {
            self.free.push_back((lane, state.epoch));
        }
    }

    /// A lane's connection is gone; what was in flight on it has failed.
    pub fn lane_closed(&mut self, lane: usize, now_ns: u64) {
        let state = &mut self.lanes[lane];
        state.open = false;
        state.out.clear();
        state.out_start = 0;
        let epoch = state.epoch;
        for lost in state.in_flight.drain(..) {
            self.ledger.ended(
                lost.arrival.window,
                lost.arrival.intended_ns,
                now_ns,
                Outcome::Error,
            );
        }
        self.free.retain(|&slot| slot != (lane, epoch));
    }

    /// Takes in what is due at `now_ns` and hands it to free slots.
    pub fn advance(&mut self, now_ns: u64) {
        for _ in 0..DUE_PER_TURN_MAX {
            let Some(arrival) = self.next.filter(|a| a.intended_ns <= now_ns) else {
                break;
            };
            self.next = self.schedule.next();
            let request = self.protocol.draw(&mut self.rng);
            self.ledger
                .due(arrival.window, now_ns - arrival.intended_ns);
            if self.queue.len() >= self.queue_max {
                // Better the queue's stale head than a request that can still be answered in time.
                self.discard_past();
            }
            if self.queue.len() < self.queue_max {
                self.queue.push_back(Waiting { arrival, request });
            } else {
                self.ledger.dropped(arrival.window, arrival.intended_ns);
            }
        }
        self.dispatch(now_ns);
    }

    fn discard_past(&mut self) {
        while self
            .queue
            .front()
            .is_some_and(|w| self.ledger.is_past(w.arrival.window))
        {
            self.queue.pop_front();
        }
    }

    fn dispatch(&mut self, now_ns: u64) {
        self.discard_past();
        while !self.queue.is_empty() {
            let Some((lane, epoch)) = self.free.pop_front() else {
                break;
            };
            let state = &mut self.lanes[lane];
            if !state.open || state.epoch != epoch {
                continue;
            }
            let Some(waiting) = self.queue.pop_front() else {
                break;
            };
            self.protocol.encode(waiting.request, &mut state.out);
            state.in_flight.push_back(waiting);
            if !state.dirty {
                state.dirty = true;
                self.dirty.push(lane);
            }
            self.ledger.sent(
                waiting.arrival.window,
                now_ns.saturating_sub(waiting.arrival.intended_ns),
            );
            self.discard_past();
        }
    }

    /// Takes in bytes that came on a lane: a piece of its stream, or one datagram.
    pub fn received(&mut self, lane: usize, bytes: &[u8], now_ns: u64) -> Result<(), LaneLost> {
        match self.protocol.wire() {
            Wire::Stream => self.piece(lane, bytes, now_ns),
            Wire::Icmp { .. } => {
                self.datagram(lane, bytes, now_ns);
                Ok(())
            }
        }
    }

    /// What answers none of the requests in flight is nothing: it may have come late, come twice, or be made up.
    fn datagram(&mut self, lane: usize, bytes: &[u8], now_ns: u64) {
        let (protocol, state) = (&self.protocol, &mut self.lanes[lane]);
        let parser = &mut state.parser;
        let found = state
            .in_flight
            .iter()
            .enumerate()
            .find_map(
                |(at, waiting)| match protocol.parse(parser, waiting.request, bytes).1 {
                    Reply::Complete(outcome) | Reply::Last(outcome) => Some((at, outcome)),
                    Reply::Incomplete | Reply::Broken => None,
                },
            );
        let Some((at, outcome)) = found else { return };
        if let Some(Waiting { arrival, .. }) = state.in_flight.remove(at) {
            self.ledger
                .ended(arrival.window, arrival.intended_ns, now_ns, outcome);
            self.free.push_back((lane, state.epoch));
        }
    }

    fn piece(&mut self, lane: usize, mut bytes: &[u8], now_ns: u64) -> Result<(), LaneLost> {
        let state = &mut self.lanes[lane];
        while !bytes.is_empty() {
            // Bytes that nobody asked for: whatever they are, we are out of step.
            let waiting = *state.in_flight.front().ok_or(LaneLost)?;
            let (used, reply) = self
                .protocol
                .parse(&mut state.parser, waiting.request, bytes);
            bytes = &bytes[used..];
            match reply {
                Reply::Incomplete => debug_assert!(bytes.is_empty()),
                Reply::Broken => return Err(LaneLost),
                Reply::Complete(outcome) | Reply::Last(outcome) => {
                    state.in_flight.pop_front();
                    self.ledger.ended(
                        waiting.arrival.window,
                        waiting.arrival.intended_ns,
                        now_ns,
                        outcome,
                    );
                    if matches!(reply, Reply::Last(_)) {
                        return Err(LaneLost);
                    }
                    self.free.push_back((lane, state.epoch));
                }
            }
        }
        Ok(())
    }

    /// A lane that has something to write, if there is one; each is given once until it gets more.
    pub fn take_dirty(&mut self) -> Option<usize> {
        let lane = self.dirty.pop()?;
        self.lanes[lane].dirty = false;
        Some(lane)
    }

    /// What a lane has to write.
    pub fn unsent(&self, lane: usize) -> &[u8] {
        let state = &self.lanes[lane];
        &state.out[state.out_start..]
    }

    /// The first `count` bytes of [`Self::unsent`] have been written.
    pub fn wrote(&mut self, lane: usize, count: usize) {
        let state = &mut self.lanes[lane];
        state.out_start += count;
        if state.out_start >= state.out.len() {
            state.out.clear();
            state.out_start = 0;
        }
    }

    /// The next window whose figures are final, if there is one.
    pub fn settle(&mut self, now_ns: u64) -> Option<Window> {
        let (queue, lanes) = (&self.queue, &self.lanes);
        // A window can't be final while the schedule still holds requests of it.
        if self.next.is_some_and(|a| a.intended_ns <= now_ns) {
            return None;
        }
        let settled = self.ledger.settle(now_ns, |charge| {
            let in_flight = lanes.iter().flat_map(|lane| &lane.in_flight);
            for waiting in queue.iter().chain(in_flight) {
                charge(waiting.arrival.window, waiting.arrival.intended_ns);
            }
        })?;
        if settled.timeouts > 0 && self.protocol.wire() != Wire::Stream {
            self.give_up_past();
        }
        Some(settled)
    }

    /// Frees the slots of requests that have been charged as unanswered: where replies may be lost, none need ever come.
    fn give_up_past(&mut self) {
        for (lane, state) in self.lanes.iter_mut().enumerate() {
            let before = state.in_flight.len();
            state
                .in_flight
                .retain(|waiting| !self.ledger.is_past(waiting.arrival.window));
            for _ in state.in_flight.len()..before {
                self.free.push_back((lane, state.epoch));
            }
        }
    }

    /// Whether every window has been settled.
    pub fn is_done(&self) -> bool {
        self.ledger.is_settled()
    }

    /// When something happens next by itself: a request falls due, or a window ends or must be settled.
    pub fn next_wake_ns(&self, now_ns: u64) -> Option<u64> {
        let due = self.next.map(|a| a.intended_ns);
        due.into_iter()
            .chain(self.ledger.next_wake_ns(now_ns))
            .min()
    }
}
