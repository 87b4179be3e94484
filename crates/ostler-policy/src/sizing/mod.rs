//! How much host memory for each guest's in-memory files (Hylics).
//!
//! More memory for files makes a guest's tasks faster, and there is one budget for all. A model of the queue ([`queue`]) knows how much is needed for a response time, but only
//! as well as service times were measured; what it leaves is corrected by a loop that learns from its own changes ([`rls`]).
//!
//! ```text
//! each control interval ci:                                     (paper, algorithm 1)
//!   the response time R changed by R_thresh or more:  m <- m for tau by the model
//!   else:                                             learn; dm for which the error vanishes
//!                                                     m <- m + dm, if |dm| >= m_thresh
//!   m has changed: ci <- max(ci / 2, least), else ci <- min(2 ci, most)
//! ```
//!
//! | paper | here |
//! |---|---|
//! | tau, R_thresh, m_thresh | [`Settings::wanted`], [`Settings::response_step`], [`Settings::size_step`] |
//! | ci, ci_minthresh, ci_maxthresh | [`Control::interval`], [`Settings::interval_min`], [`Settings::interval_max`] |
//! | E\[X given m\], lambda(t), R(t) | [`queue::Service`], [`Seen`] |
//! | y(k), u(k), theta, F, f_0 | [`rls`] |
//!
//! Beyond the paper:
//!
//! - **What the loop's own changes do is no jump.** The listing compares R with the last one. Where the model is off by more than R_thresh, the loop corrects it, that changes R, and the model takes
//!   the correction back, for ever. So R is compared with the last one times what the model says that the size granted since does.
//! - **What is chance is not acted on** ([`Parts::Corrected`]). In half a minute a handful of tasks arrive; their mean response time is off by half from its own mean, and the paper's loop takes that for an
//!   error to correct and for the effect of its last change. Here chance is reckoned with: the arrival rate is what counts say of it so far ([`rate`]), and how long tasks take by what was measured is learned
//!   from all response times, each compared with what the queue is on its way to ([`found`]). The model is solved with both, at every look.
//!
//! The listing goes on to learn after the model was solved again, too. Then the loop would correct an error that the new size has just been chosen against, so here it is
//! one or the other, as the paper's section 5.2 tells it. Learning is from what was granted ([`share`](mod@share)), not from what was wished for: a guest that is short of memory
//! doesn't learn that memory has no effect. Errors are in multiples of tau, changes in multiples of `size_step`, so that neither drowns the other.

pub mod found;
pub mod queue;
pub mod rate;
pub mod rls;
pub mod share;

use found::Found;
use ostler_model::{Bytes, FilesControl, FilesSample, GuestId, Nanos};
use queue::{Service, Solution};
use rls::Rls;

/// What a guest's files are sized by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// The wanted mean response time, s.
    pub wanted: f64,
    /// A change of the response time from which the model is asked, s.
    pub response_step: f64,
    /// The least change of size worth making, bytes.
    pub size_step: u64,
    /// No less, and no more, bytes.
    pub size_min: u64,
    /// Likewise.
    pub size_max: u64,
    /// The control interval's bounds.
    pub interval_min: Nanos,
    /// Likewise.
    pub interval_max: Nanos,
    /// Which of the two are in use.
    pub parts: Parts,
    /// How much older pairs count, in (0, 1]; 1 is the paper's.
    pub memory: f64,
}

/// The model, the loop, or both: the paper compares them (table 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parts {
    /// The queueing model, by arrivals and service times as they are found to be.
    Corrected,
    /// The queueing model and the adaptive loop.
    Both,
    /// The model alone.
    Queue,
    /// The loop alone.
    Adaptive,
}

impl Default for Settings {
    /// The paper's intervals; a second of response time, steps of 64 MiB, and the model put right as it goes.
    fn default() -> Settings {
        Settings {
            wanted: 1.0,
            response_step: 0.2,
            size_step: 64 << 20,
            size_min: 0,
            size_max: u64::MAX,
            interval_min: Nanos::from_secs(30),
            interval_max: Nanos::from_secs(240),
            parts: Parts::Corrected,
            memory: 1.0,
        }
    }
}

/// What was seen of a guest's tasks in an interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
    /// Mean response time, s.
    pub response: f64,
    /// Arrivals a second.
    pub arrivals: f64,
}

/// What an interval's end came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// The interval goes on.
    Waits,
    /// What was seen are no figures; nothing was done.
    Blind,
    /// The model was solved.
    Solved(Solution),
    /// The loop changed the size by so many bytes, or would have, had it been worth it.
    Adapted {
        /// How many.
        change: i64,
        /// It was.
        made: bool,
    },
    /// There was nothing to correct by.
    Rests,
}

/// A guest's control loop.
#[derive(Clone, Debug, PartialEq)]
pub struct Control {
    /// What it wishes for, bytes.
    pub wish: u64,
    /// Its control interval.
    pub interval: Nanos,
    granted: u64,
    next: Nanos,
    /// What was seen last, and how much it had by then.
    last: Option<(Seen, u64)>,
    /// What response times and counts have told so far.
    found: Found,
    /// The error and the change of the last interval.
    pair: Option<(f64, f64)>,
    rls: Rls,
    /// The bytes that changes are counted in.
    unit: u64,
}

/// f_0, and what a step of size is first taken to do: a tenth of tau off.
const FIRST_GAIN: f64 = 100.0;
const FIRST_THETA: [f64; 2] = [1.0, -0.1];

impl Control {
    /// A guest that has so many bytes now.
    pub fn new(now: Nanos, bytes: u64, settings: &Settings) -> Control {
        Control {
            wish: bytes.clamp(settings.size_min, settings.size_max.max(settings.size_min)),
            interval: settings.interval_min,
            granted: bytes,
            next: now.saturating_add(settings.interval_min),
            last: None,
            found: Found::default(),
            pair: None,
            rls: Rls::new(FIRST_THETA, FIRST_GAIN, settings.memory),
            unit: settings.size_step.max(1),
        }
    }

    /// One that goes on where it was left; from the beginning, if changes were counted in other steps then.
    pub fn resume(from: &FilesControl, settings: &Settings) -> Option<Control> {
        let unit = settings.size_step.max(1);
        (from.unit.0 == unit).then(|| Control {
            wish: from.wish.0,
            interval: from.interval,
            granted: from.granted.0,
            next: from.next,
            last: from.last.map(|last| {
                let seen = Seen {
                    response: last.response_s,
                    arrivals: last.arrivals_per_s,
                };
                (seen, last.bytes.0)
            }),
            found: Found::resume(&from.found),
            pair: from.pair,
            rls: Rls::resume(from.theta, from.gain, FIRST_GAIN, settings.memory),
            unit,
        })
    }

    /// What it goes on from.
    pub fn remember(self, guest: GuestId) -> FilesControl {
        FilesControl {
            guest,
            wish: Bytes(self.wish),
            granted: Bytes(self.granted),
            interval: self.interval,
            next: self.next,
            last: self.last.map(|(seen, bytes)| FilesSample {
                response_s: seen.response,
                arrivals_per_s: seen.arrivals,
                bytes: Bytes(bytes),
            }),
            found: self.found.remember(),
            pair: self.pair,
            theta: self.rls.theta,
            gain: self.rls.gain,
            unit: Bytes(self.unit),
        }
    }

    /// How much it has been given, which is what it learns from.
    pub fn grant(&mut self, bytes: u64) {
        grant(&mut self.pair, &mut self.granted, bytes, self.unit);
    }

    /// Goes on, if its interval is over.
    pub fn step(&mut self, now: Nanos, seen: Seen, service: &Service, settings: &Settings) -> Step {
        if now < self.next {
            return Step::Waits;
        }
        let fine = |figure: f64| (0.0..=1e9).contains(&figure);
        if !fine(seen.response) || !fine(seen.arrivals) || settings.wanted <= 0.0 {
            self.rest(now, false, settings);
            return Step::Blind;
        }
        if settings.parts == Parts::Corrected {
            return self.find(now, seen, service, settings);
        }
        let error = seen.response / settings.wanted - 1.0;
        let jump = self
            .expects(service)
            .is_none_or(|expected| (seen.response - expected).abs() >= settings.response_step);
        self.last = Some((seen, self.granted));
        let learned = self.pair.replace((error, 0.0));
        let step = if settings.parts != Parts::Adaptive && jump {
            Step::Solved(service.solve(seen.arrivals, settings.wanted, 1.0))
        } else if settings.parts == Parts::Queue {
            Step::Rests
        } else {
            if let Some(pair) = learned {
                self.rls.learn(pair, error);
            }
            match self.rls.solve(error) {
                None => Step::Rests,
                Some(change) => {
                    #[expect(clippy::cast_possible_truncation, reason = "it saturates")]
                    let change = (change * self.unit as f64) as i64;
                    let made = change.unsigned_abs() >= settings.size_step;
                    Step::Adapted { change, made }
                }
            }
        };
        let wish = match step {
            Step::Solved(solution) => solution.bytes(),
            Step::Adapted { change, made: true } => self.granted.saturating_add_signed(change),
            _ => self.wish,
        };
        let before = self.wish;
        self.wish = wish.clamp(settings.size_min, settings.size_max.max(settings.size_min));
        self.rest(
            now,
            self.wish.abs_diff(before) >= settings.size_step.max(1),
            settings,
        );
        step
    }

    /// Solves the model with what has been found. There is nothing to wait for where chance is reckoned with, so the interval stays the shortest: looking costs nothing, and
    /// a change of the rate is seen as soon as it can be.
    fn find(&mut self, now: Nanos, seen: Seen, service: &Service, settings: &Settings) -> Step {
        let begun = self.next.saturating_sub(self.interval);
        let seconds = now.saturating_sub(begun).as_secs_f64();
        let arrivals = self
            .found
            .see(seen, seconds, service.mean(self.granted), settings.wanted);
        // Who waits already waits too long, or less long than he may: what comes makes up for it.
        let mirrored = 2.0 * settings.wanted - self.found.response;
        let wanted = mirrored.clamp(settings.wanted / 2.0, settings.wanted * 1.5);
        let solution = service.solve(arrivals, wanted, self.found.times);
        let wish = solution
            .bytes()
            .clamp(settings.size_min, settings.size_max.max(settings.size_min));
        if wish.abs_diff(self.granted) >= settings.size_step {
            self.wish = wish;
        }
        self.interval = settings.interval_min.max(Nanos(1));
        self.next = now.saturating_add(self.interval);
        Step::Solved(solution)
    }

    /// The response time that there would be if nothing had changed but what it was granted.
    fn expects(&self, service: &Service) -> Option<f64> {
        let (last, bytes) = self.last?;
        let by_model = |bytes| service.response(bytes, last.arrivals);
        let ratio = by_model(self.granted).zip(by_model(bytes));
        Some(last.response * ratio.map_or(1.0, |(now, then)| now / then))
    }

    fn rest(&mut self, now: Nanos, changed: bool, settings: &Settings) {
        let interval = if changed {
            Nanos(self.interval.0 / 2).max(settings.interval_min)
        } else {
            Nanos(self.interval.0.saturating_mul(2)).min(settings.interval_max)
        };
        self.interval = interval.max(Nanos(1));
        self.next = now.saturating_add(self.interval);
    }
}

/// Enters a grant in what is remembered of a loop, as [`Control::grant`] does in the loop itself.
pub fn enter(control: &mut FilesControl, bytes: u64) {
    let unit = control.unit.0;
    grant(&mut control.pair, &mut control.granted.0, bytes, unit);
}

fn grant(pair: &mut Option<(f64, f64)>, granted: &mut u64, bytes: u64, unit: u64) {
    if let Some((_, change)) = pair {
        let (more, less) = (
            bytes.saturating_sub(*granted),
            granted.saturating_sub(bytes),
        );
        *change += (more as f64 - less as f64) / unit as f64;
    }
    *granted = bytes;
}
