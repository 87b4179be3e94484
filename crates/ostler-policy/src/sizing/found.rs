//! What response times tell of how long tasks take, and of how long those wait that are there already.
//!
//! A response time of a busy queue says little: it is as much chance as anything else, and after a change of the load it isn't yet what it will be. The model's mean response time R = E / (1 - lambda E)
//! is that of a queue that has come to rest, which takes some E / (1 - sqrt(rho))^2 (the relaxation time of M/M/1; Cohen, The single server queue, 1982). So the response time that is to be expected is carried
//! along:
//!
//! ```text
//! dR/dt = (E / (1 - rho) - R) (1 - sqrt(rho))^2 / E      rho < 1: to where it rests
//! dR/dt = rho - 1                                        otherwise: those who wait become more
//! ```
//!
//! What is seen beyond that is due to tasks that take longer than was measured, or to chance; the factor between what they take and what was measured goes by the mean of all that was seen, a step each time that is
//! the smaller the more has been seen (Robbins and Monro), and never smaller than for the last [`TASKS_MAX`] tasks. R goes by E as R (1 + lambda R) / E, so a step in the logarithm is linear in the response time,
//! and chance cancels out. To tell E from each response time, as R / (1 + lambda R), and to average that, would not do: it bends, and what comes out is too low.

use ostler_model::FilesFound;

use super::Seen;
use super::rate::Rate;

/// What has been found.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// How often tasks arrive.
    pub rate: Rate,
    /// How long they take, in multiples of what was measured.
    pub times: f64,
    /// From how many tasks that is known.
    pub tasks: f64,
    /// The response time that is to be expected now, s; zero before anything was seen.
    pub response: f64,
}

impl Default for Found {
    fn default() -> Found {
        Found {
            rate: Rate::default(),
            times: 1.0,
            tasks: FIRST_TASKS,
            response: 0.0,
        }
    }
}

/// What was measured without load counts as so many tasks under load.
const FIRST_TASKS: f64 = 10.0;
/// What was seen counts as no more than so many tasks, so that something else can be learned.
pub const TASKS_MAX: f64 = 400.0;
/// Beyond this a queue's response time tells nothing any more of how long tasks take, only of how long it has been too long.
const BUSY: f64 = 0.9;
/// The most that an interval changes the factor by, as a logarithm, and the factor's bounds.
const STEP: f64 = 0.3;
const TIMES: (f64, f64) = (0.1, 10.0);
/// An interval is followed in so many parts.
const PARTS: u32 = 32;

impl Found {
    /// As it was remembered.
    pub(super) fn resume(from: &FilesFound) -> Found {
        // With room for the one that the next interval adds.
        let mut spans = Vec::with_capacity(from.spans.len() + 1);
        spans.extend_from_slice(&from.spans);
        Found {
            rate: Rate {
                tasks: from.arrived,
                seconds: from.seconds,
                spans,
            },
            times: from.times,
            tasks: from.tasks,
            response: from.response_s,
        }
    }

    /// To be remembered.
    pub(super) fn remember(self) -> FilesFound {
        FilesFound {
            arrived: self.rate.tasks,
            seconds: self.rate.seconds,
            spans: self.rate.spans,
            times: self.times,
            tasks: self.tasks,
            response_s: self.response,
        }
    }

    /// After `seconds` in which tasks would have taken `measured` without load: tasks a second.
    pub fn see(&mut self, seen: Seen, seconds: f64, measured: f64, wanted: f64) -> f64 {
        let tasks = seen.arrivals * seconds;
        let arrivals = self.rate.see(tasks, seconds);
        let alone = self.times * measured;
        let expected = self.follow(arrivals, alone, seconds);
        if tasks > 0.0 {
            let weight = tasks / (self.tasks + tasks);
            self.tasks = (self.tasks + tasks).min(TASKS_MAX);
            let slope = expected * (1.0 + arrivals.min(BUSY / alone) * expected.min(3.0 * wanted));
            let step = weight * (seen.response - expected) / slope;
            let times = self.times * libm::exp(step.clamp(-STEP, STEP));
            self.times = times.clamp(TIMES.0, TIMES.1);
        }
        arrivals
    }

    /// Carries the response time along; the mean of it on the way.
    fn follow(&mut self, arrivals: f64, alone: f64, seconds: f64) -> f64 {
        let busy = arrivals * alone;
        let idle = 1.0 - busy;
        let slack = 1.0 - busy.sqrt();
        let part = seconds / f64::from(PARTS);
        let mut sum = 0.0;
        let mut response = self.response.max(alone);
        // What of the way to rest is left after a part.
        let left = libm::exp(-part * slack * slack / alone);
        for _ in 0..PARTS {
            response = if idle > 0.0 {
                // The solution over the part, not a step along the slope: a part may be longer than a short queue's rest takes.
                let rests = alone / idle;
                rests + (response - rests) * left
            } else {
                response - idle * part
            };
            sum += response;
        }
        self.response = response.max(alone);
        sum / f64::from(PARTS)
    }
}
