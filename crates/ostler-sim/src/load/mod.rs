//! Clients: requests are due at the times of their plan, whatever becomes of those before (open loop), and a response time counts from when a request
//! was due. So a server that stands still is charged for every request that it keeps waiting, on its way or with a client that has so many connections
//! ([`connections`]). Where a client is a machine that takes its time, what is due or has come waits for that, too ([`end`]).

#![expect(
    clippy::cast_possible_truncation,
    reason = "numbers of connections are, and times are within what there is"
)]

pub mod acks;
pub mod connections;
pub mod end;
pub mod histogram;
pub mod record;

use ostler_model::Nanos;

use acks::Acks;
use connections::Connections;
use end::{End, Request};
pub use histogram::Histogram;
pub use record::{DRAIN, Record};

use crate::random::Stream;
use crate::round::nanos;

/// When requests come, at a rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arrivals {
    /// At random.
    #[default]
    Poisson,
    /// One after the other, evenly.
    Even,
    /// Facebook's ETC: gaps are generalised Pareto, shape 0.154971 (Atikoglu et al., 2012).
    Etc,
}

const ETC_SHAPE: f64 = 0.154_971;
const SECOND: u64 = 1_000_000_000;

/// A rate for some time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Requests per second.
    pub rate: f64,
    /// For how long.
    pub seconds: f64,
}

/// What is asked of a guest.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadSpec {
    /// The guests that each message passes, by number; the last answers or sends on to the client. One to eight.
    pub route: Vec<u32>,
    /// Connections; a message belongs to one of them.
    pub connections: u32,
    /// Requests that may be on their way on each of them, taken in turn, while others wait with the client. `None`: each is sent when it is due, on any of them.
    pub depth: Option<u32>,
    /// Whether answers on connections are acknowledged, as TCP has it.
    pub acknowledged: bool,
    /// When it begins.
    pub start: Nanos,
    /// Rates, one after the other.
    pub steps: Vec<Step>,
    /// How requests come.
    pub arrivals: Arrivals,
    /// What a message's way costs, in parts of 1024 of memcached's: [`PACKETS`], and for nginx [`PACKETS_NGINX`].
    pub packets: u32,
    /// The P95 response time that a second should meet.
    pub slo: Option<Nanos>,
}

/// A way of memcached's cost.
pub const PACKETS: u32 = 1024;
/// nginx's, by [`crate::costs::path::NGINX`].
pub const PACKETS_NGINX: u32 = 1708;

/// The longest chain (DESIGN: placement's limit).
pub const ROUTE_MAX: usize = 8;

/// Response times, us.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Latency {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
}

/// A client.
#[derive(Debug)]
pub struct Client {
    /// What it does.
    pub spec: LoadSpec,
    /// Its first connection, of all connections.
    pub first_flow: u32,
    /// Draws times and connections.
    pub stream: Stream,
    step: usize,
    begins: Nanos,
    ends: Nanos,
    /// When all steps are over.
    over: Nanos,
    at: Nanos,
    /// Its connections, where they have room for so much and no more.
    pub connections: Option<Connections>,
    /// What is to be acknowledged on them, where answers are.
    pub acks: Option<Acks>,
    /// The machine that it is on, where that takes time.
    pub end: End,
    /// What came of it.
    pub books: Books,
    /// Where it is kept second by second, if it is.
    pub record: Option<u32>,
}

/// What clients saw.
#[derive(Debug, Default)]
pub struct Books {
    /// Sent, answered, lost.
    pub sent: u64,
    /// See above.
    pub answered: u64,
    /// See above.
    pub lost: u64,
    /// All response times.
    pub all: Histogram,
    /// The ages of those that waited in vain ([`Client::unanswered`]).
    pub in_vain: Histogram,
    second: u64,
    of_second: Histogram,
    seconds: u64,
    met: u64,
}

impl Client {
    /// One that has sent nothing yet.
    pub fn new(spec: LoadSpec, first_flow: u32, stream: Stream) -> Client {
        let at = spec.start;
        let first = spec.steps.first().map_or(0.0, |step| step.seconds);
        let seconds = |step: &Step| nanos(step.seconds * 1e9);
        let over = spec
            .steps
            .iter()
            .map(seconds)
            .fold(at, Nanos::saturating_add);
        Client {
            over,
            begins: at,
            ends: at.saturating_add(nanos(first * 1e9)),
            at,
            connections: spec
                .depth
                .map(|depth| Connections::new(first_flow, spec.connections, depth)),
            acks: (spec.acknowledged && spec.depth.is_some())
                .then(|| Acks::new(first_flow, spec.connections)),
            step: 0,
            spec,
            first_flow,
            end: End::new(stream.clone().bits()),
            stream,
            books: Books::default(),
            record: None,
        }
    }

    /// When the next request is due; `None` when all steps are over.
    pub fn next_due(&mut self) -> Option<Nanos> {
        loop {
            let step = self.spec.steps.get(self.step)?;
            let gap = match self.spec.arrivals {
                Arrivals::Poisson => self.stream.gap(step.rate),
                _ if step.rate <= 0.0 => Nanos(u64::MAX),
                Arrivals::Even => nanos(1e9 / step.rate),
                Arrivals::Etc => {
                    let mean = 1e9 / step.rate;
                    nanos(self.stream.pareto(0.0, mean * (1.0 - ETC_SHAPE), ETC_SHAPE))
                }
            };
            let due = self.at.saturating_add(gap);
            if due < self.ends {
                self.at = due;
                return Some(due);
            }
            // What would have come in the step after comes by that step's rate.
            self.at = self.ends;
            self.begins = self.ends;
            self.step += 1;
            let seconds = self
                .spec
                .steps
                .get(self.step)
                .map_or(0.0, |step| step.seconds);
            self.ends = self.ends.saturating_add(nanos(seconds * 1e9));
        }
    }

    /// Until when the request that was last due may be answered: so long after its second of its step is over.
    pub fn deadline(&self) -> Nanos {
        let seconds = (self.at.0 - self.begins.0) / SECOND + 1;
        let over = self.begins.saturating_add(Nanos(seconds * SECOND));
        over.min(self.ends).saturating_add(DRAIN)
    }

    /// The next request that its thread is to send, if there is one and it has room.
    pub fn next_request(&mut self, now: Nanos) -> Option<Request> {
        let first = self.end.requests.pop_front();
        first.or_else(|| {
            let (due, flow) = self.connections.as_mut()?.take(now)?;
            let times = 1;
            Some(Request { due, flow, times })
        })
    }

    /// A request that was due then is lost, or hasn't been answered by the end. Where there is an objective, who waits in vain waits too long: it counts with its age when
    /// the load is over, as in the lab's load generator; but for one that could still have been in time.
    pub fn unanswered(&mut self, due: Nanos) {
        let age = self.over.saturating_sub(due);
        if self.spec.slo.is_some_and(|slo| age > slo) {
            self.books.in_vain.record(age);
        }
    }

    /// A connection for a request, any of them.
    pub fn flow(&mut self) -> u32 {
        let connections = u64::from(self.spec.connections.max(1));
        self.first_flow + self.stream.below(connections) as u32
    }
}

impl Books {
    /// A request was answered at a time, so long after it was due.
    pub fn answer(&mut self, at: Nanos, time: Nanos, slo: Option<Nanos>) {
        let second = at.0 / SECOND;
        if second != self.second {
            self.settle(slo);
            self.second = second;
        }
        self.answered += 1;
        self.all.record(time);
        if slo.is_some() {
            self.of_second.record(time);
        }
    }

    fn settle(&mut self, slo: Option<Nanos>) {
        if let Some(slo) = slo
            && self.of_second.count() > 0
        {
            self.seconds += 1;
            self.met += u64::from(self.of_second.quantile(950) <= slo);
            self.of_second.clear();
        }
    }

    /// The share of seconds with answers whose P95 met the objective.
    pub fn slo_met_share(&mut self, slo: Option<Nanos>) -> Option<f64> {
        self.settle(slo);
        (self.seconds > 0).then(|| self.met as f64 / self.seconds as f64)
    }

    /// Response times so far, and the ages of those that waited in vain.
    pub fn latency(&self) -> Option<Latency> {
        let mut all = self.all.clone();
        all.merge(&self.in_vain);
        let us = |thousandths| all.quantile(thousandths).as_micros_f64();
        (all.count() > 0).then(|| Latency {
            mean: all.mean().as_micros_f64(),
            p50: us(500),
            p95: us(950),
            p99: us(990),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(arrivals: Arrivals, steps: &[(f64, f64)]) -> Client {
        let spec = LoadSpec {
            route: vec![0],
            connections: 4,
            depth: None,
            acknowledged: false,
            start: Nanos::from_secs(1),
            steps: steps
                .iter()
                .map(|&(rate, seconds)| Step { rate, seconds })
                .collect(),
            arrivals,
            packets: PACKETS,
            slo: None,
        };
        Client::new(spec, 0, Stream::new(5, "client", 0))
    }

    #[test]
    fn requests_come_at_the_rate_of_their_step_and_end_with_the_last() {
        for arrivals in [Arrivals::Poisson, Arrivals::Even, Arrivals::Etc] {
            let mut client = client(arrivals, &[(10_000.0, 2.0), (0.0, 1.0), (40_000.0, 1.0)]);
            let mut counts = [0_u32; 6];
            let mut before = Nanos::ZERO;
            while let Some(due) = client.next_due() {
                assert!(due >= before);
                before = due;
                counts[(due.0 / 1_000_000_000) as usize] += 1;
            }
            assert_eq!((counts[0], counts[3], counts[5]), (0, 0, 0));
            for (at, wanted) in [(1, 10_000_u32), (2, 10_000), (4, 40_000)] {
                let off = counts[at].abs_diff(wanted);
                assert!(off < wanted / 25, "{arrivals:?}: {counts:?}");
            }
        }
    }

    #[test]
    fn a_second_meets_its_objective_by_its_own_answers() {
        let mut books = Books::default();
        let slo = Some(Nanos(1000));
        for (second, time) in [(1, 900), (1, 900), (2, 5000), (4, 10)] {
            books.answer(Nanos::from_secs(second), Nanos(time), slo);
        }
        assert_eq!(books.slo_met_share(slo), Some(2.0 / 3.0));
    }
}
