//! A load second by second, in the words of the lab's load generator (`ostler_load::lines`), so that both are reckoned up alike.
//!
//! A request belongs to the window in which it was due, a second of one step at the most, and puts one latency into it: how long after it was due it was
//! answered; or, lost or not answered by the window's deadline, its age then. A window is settled once all of its requests have ended, or at its
//! deadline, and is kept as a line; so what is held doesn't grow with what was asked, but for these.

use std::collections::VecDeque;

use ostler_load::lines::{Figures, Line, Start, StepLine, WindowLine};
use ostler_model::Nanos;

use super::histogram::Histogram;
use super::{Step, nanos};

/// How long after its window's end a request may be answered: what the load generator gives it unless told.
pub const DRAIN: Nanos = Nanos::from_secs(1);
/// What is sent later than this is late, as the load generator has it unless told.
const LATE: Nanos = Nanos::from_micros(100);
/// A window.
const WINDOW_S: f64 = 1.0;
/// What isn't answered is remembered by the hundredth of its window.
const SLOTS: usize = 100;

/// Counts and times of a window, or of a step.
#[derive(Clone, Debug, Default)]
struct Sum {
    due: u64,
    sent: u64,
    late: u64,
    completed: u64,
    lost: u64,
    dropped: u64,
    timeouts: u64,
    over_slo: u64,
    times: Histogram,
}

/// A window that isn't settled.
#[derive(Clone, Debug)]
struct Open {
    sum: Sum,
    /// Requests that haven't ended, by when they were due.
    slots: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Span {
    step: u32,
    window: u32,
    from: Nanos,
    until: Nanos,
    last: bool,
}

/// What one load showed.
#[derive(Clone, Debug)]
pub struct Record {
    start: Nanos,
    steps: Vec<Step>,
    spans: Vec<Span>,
    slo: Option<Nanos>,
    /// Windows from [`Record::settled`] on that something was due in.
    open: VecDeque<Open>,
    settled: usize,
    step: Sum,
    windows: (u32, u32, u32),
    lines: Vec<Line>,
}

impl Record {
    /// Of a load that begins at a time, with an objective for its P95.
    pub fn new(start: Nanos, steps: &[Step], slo: Option<Nanos>) -> Record {
        let mut spans = Vec::new();
        let mut at = start;
        for (step, spec) in (0..).zip(steps) {
            let end = at.saturating_add(nanos(spec.seconds * 1e9));
            let mut window = 0;
            while at < end {
                let until = at.saturating_add(nanos(WINDOW_S * 1e9)).min(end);
                spans.push(Span {
                    step,
                    window,
                    from: at,
                    until,
                    last: until == end,
                });
                at = until;
                window += 1;
            }
        }
        Record {
            start,
            steps: steps.to_vec(),
            spans,
            slo,
            open: VecDeque::new(),
            settled: 0,
            step: Sum::default(),
            windows: (0, 0, 0),
            lines: Vec::new(),
        }
    }

    /// When the last of its windows is over.
    pub fn ends(&self) -> Nanos {
        self.spans.last().map_or(self.start, |span| span.until)
    }

    /// The window that a time lies in, and its hundredth.
    fn place(&self, at: Nanos) -> Option<(usize, usize)> {
        let window = self.spans.partition_point(|span| span.until <= at);
        let span = self.spans.get(window).filter(|span| span.from <= at)?;
        let (past, length) = (at.0 - span.from.0, span.until.0 - span.from.0);
        Some((window, slot(past, length)))
    }

    /// A request was due.
    pub fn due(&mut self, at: Nanos) {
        self.settle(at);
        let Some((window, slot)) = self.place(at) else {
            return;
        };
        let Some(index) = window.checked_sub(self.settled) else {
            return;
        };
        while self.open.len() <= index {
            self.open.push_back(Open {
                sum: Sum::default(),
                slots: vec![0; SLOTS],
            });
        }
        let open = &mut self.open[index];
        open.sum.due += 1;
        open.slots[slot] += 1;
    }

    /// A request that was due then was sent so much later.
    pub fn sent(&mut self, due: Nanos, delay: Nanos) {
        let window = self.place(due).map(|(window, _)| window);
        let index = window.and_then(|window| window.checked_sub(self.settled));
        if let Some(open) = index.and_then(|index| self.open.get_mut(index)) {
            open.sum.sent += 1;
            open.sum.late += u64::from(delay > LATE);
        }
    }

    /// A request that was due then is never sent: too many wait.
    pub fn dropped(&mut self, due: Nanos) {
        let dropped = self.end(due, None);
        if let Some(sum) = dropped {
            sum.lost -= 1;
            sum.dropped += 1;
        }
    }

    /// A request that was due then was answered so much later; or, without a time, never will be.
    pub fn ended(&mut self, due: Nanos, time: Option<Nanos>) {
        self.end(due, time);
    }

    fn end(&mut self, due: Nanos, time: Option<Nanos>) -> Option<&mut Sum> {
        let (window, slot) = self.place(due)?;
        let deadline = self.spans[window].until.saturating_add(DRAIN);
        let slo = self.slo;
        let index = window.checked_sub(self.settled)?;
        let open = self.open.get_mut(index).filter(|o| o.slots[slot] > 0)?;
        open.slots[slot] -= 1;
        match time {
            Some(time) if due.saturating_add(time) <= deadline => {
                open.sum.completed += 1;
                open.sum.record(time, 1, slo);
            }
            Some(_) => {
                open.sum.timeouts += 1;
                open.sum.record(deadline.saturating_sub(due), 1, slo);
            }
            None => {
                open.sum.lost += 1;
                open.sum.record(deadline.saturating_sub(due), 1, slo);
            }
        }
        Some(&mut open.sum)
    }

    /// Keeps the lines of windows that are over.
    fn settle(&mut self, now: Nanos) {
        while let Some(span) = self.spans.get(self.settled).copied() {
            if now < span.until {
                return;
            }
            let deadline = span.until.saturating_add(DRAIN);
            let pending = |open: &Open| open.slots.iter().any(|count| *count > 0);
            if now < deadline && self.open.front().is_some_and(pending) {
                return;
            }
            self.settled += 1;
            let mut sum = Sum::default();
            if let Some(open) = self.open.pop_front() {
                sum = open.sum;
                let length = span.until.0 - span.from.0;
                for (slot, count) in open.slots.iter().enumerate().filter(|(_, n)| **n > 0) {
                    let due = span.from.0 + length / SLOTS as u64 * slot as u64;
                    sum.timeouts += u64::from(*count);
                    sum.record(Nanos(deadline.0 - due), *count, self.slo);
                }
            }
            self.line(span, &sum);
        }
    }

    fn line(&mut self, span: Span, sum: &Sum) {
        let figures = sum.figures(self.slo);
        let met = self.slo.zip(figures.p95_us);
        let met = met.map(|(slo, p95)| p95 <= slo.as_micros_f64());
        self.windows.0 += 1;
        self.windows.1 += u32::from(met.is_some());
        self.windows.2 += u32::from(met == Some(true));
        self.step.add(sum);
        let rate_per_s = self.steps[span.step as usize].rate;
        let since = |at: Nanos| (at.0 - self.start.0) as f64 / 1e9;
        let start_s = since(span.from);
        self.lines.push(Line::Window(WindowLine {
            step: span.step,
            window: span.window,
            start_s,
            seconds: since(span.until) - start_s,
            rate_per_s,
            figures,
        }));
        if !span.last {
            return;
        }
        let step = std::mem::take(&mut self.step);
        let (windows, judged, met) = std::mem::take(&mut self.windows);
        let seconds = self.steps[span.step as usize].seconds;
        self.lines.push(Line::Step(StepLine {
            step: span.step,
            start_s: since(span.until) - seconds,
            seconds,
            rate_per_s,
            completed_per_s: step.completed as f64 / seconds,
            windows,
            slo_met_share: (judged > 0).then(|| f64::from(met) / f64::from(judged)),
            figures: step.figures(self.slo),
        }));
    }

    /// All lines, once the load is over and what could be answered was: the first says what was run, against whom.
    pub fn lines(&mut self, protocol: &str, connections: u32, depth: u32, seed: u64) -> Vec<Line> {
        self.settle(Nanos(u64::MAX));
        let start = Line::Start(Start {
            protocol: protocol.to_owned(),
            target: "simulated".to_owned(),
            seed,
            connections: connections as usize,
            depth: depth as usize,
            threads: 0,
            steps: self.steps.len(),
            start_unix_ms: self.start.0 / 1_000_000,
            start_monotonic_ns: self.start.0,
            slo_us: self.slo.map(Nanos::as_micros_f64),
        });
        std::iter::once(start)
            .chain(std::mem::take(&mut self.lines))
            .collect()
    }
}

fn slot(past: u64, length: u64) -> usize {
    let slot = u128::from(past) * SLOTS as u128 / u128::from(length.max(1));
    usize::try_from(slot).map_or(SLOTS - 1, |slot| slot.min(SLOTS - 1))
}

impl Sum {
    fn record(&mut self, time: Nanos, count: u32, slo: Option<Nanos>) {
        for _ in 0..count {
            self.times.record(time);
        }
        self.over_slo += u64::from(count) * u64::from(slo.is_some_and(|slo| time > slo));
    }

    fn add(&mut self, more: &Sum) {
        self.due += more.due;
        self.sent += more.sent;
        self.late += more.late;
        self.dropped += more.dropped;
        self.completed += more.completed;
        self.lost += more.lost;
        self.timeouts += more.timeouts;
        self.over_slo += more.over_slo;
        self.times.merge(&more.times);
    }

    fn figures(&self, slo: Option<Nanos>) -> Figures {
        let some = |time: Nanos| (self.times.count() > 0).then(|| time.as_micros_f64());
        Figures {
            due: self.due,
            sent: self.sent,
            completed: self.completed,
            errors: self.lost,
            timeouts: self.timeouts,
            dropped: self.dropped,
            late: self.late,
            over_slo: slo.map(|_| self.over_slo),
            mean_us: some(self.times.mean()),
            p50_us: some(self.times.quantile(500)),
            p95_us: some(self.times.quantile(950)),
            p99_us: some(self.times.quantile(990)),
            max_us: some(self.times.quantile(1000)),
            ..Figures::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const START: Nanos = Nanos::from_secs(3);

    fn steps() -> Vec<Step> {
        [(100.0, 2.5), (200.0, 1.0)]
            .map(|(rate, seconds)| Step { rate, seconds })
            .to_vec()
    }

    #[test]
    fn windows_are_seconds_of_a_step() {
        let mut record = Record::new(START, &steps(), None);
        let lines = record.lines("memcached", 4, 1, 1);
        let told: Vec<_> = lines
            .iter()
            .filter_map(|line| match line {
                Line::Start(_) => None,
                Line::Window(w) => Some((w.step, w.start_s, w.seconds)),
                Line::Step(s) => Some((100 + s.step, s.start_s, s.seconds)),
            })
            .collect();
        let wanted = [
            (0, 0.0, 1.0),
            (0, 1.0, 1.0),
            (0, 2.0, 0.5),
            (100, 0.0, 2.5),
            (1, 2.5, 1.0),
            (101, 2.5, 1.0),
        ];
        assert_eq!(told, wanted);
    }

    proptest! {
        /// Each request is counted once, in the window in which it was due, whenever it ends and whether it does.
        #[test]
        fn every_request_is_counted_once_where_it_was_due(
            mut requests in proptest::collection::vec((0_u64..4000, proptest::option::of(0_u64..6000), any::<bool>()), 0..200),
        ) {
            let slo = Some(Nanos::from_millis(700));
            requests.sort_unstable();
            let mut record = Record::new(START, &steps(), slo);
            let mut happens: Vec<(u64, usize, bool)> = Vec::new();
            for (at, (due, time, _)) in requests.iter().enumerate() {
                happens.push((*due, at, false));
                if let Some(time) = time {
                    happens.push((due + time, at, true));
                }
            }
            happens.sort_unstable();
            for (_, at, ends) in happens {
                let (due, time, answered) = requests[at];
                let due = START.saturating_add(Nanos::from_millis(due));
                if ends {
                    record.ended(due, time.filter(|_| answered).map(Nanos::from_millis));
                } else {
                    record.due(due);
                }
            }
            let lines = record.lines("memcached", 4, 1, 1);
            let spans = [(0, 1000), (1000, 2000), (2000, 2500), (2500, 3500)];
            let windows: Vec<_> = lines.iter().filter_map(|line| match line {
                Line::Window(window) => Some(window),
                _ => None,
            }).collect();
            for (window, (from, until)) in windows.iter().zip(spans) {
                let mine = || requests.iter().filter(|(due, ..)| (from..until).contains(due));
                let in_time = |due: &u64, time: &u64| due + time <= until + 1000;
                let good = mine().filter(|(due, time, ok)| *ok && time.is_some_and(|t| in_time(due, &t))).count();
                let figures = &window.figures;
                prop_assert_eq!(figures.due, mine().count() as u64);
                prop_assert_eq!(figures.completed, good as u64);
                prop_assert_eq!(figures.due, figures.completed + figures.errors + figures.timeouts);
                prop_assert_eq!(figures.p95_us.is_some(), figures.due > 0);
                // What never ended was waited for until the deadline.
                let longest = mine().map(|(due, time, ok)| match time {
                    Some(time) if *ok && in_time(due, time) => *time,
                    _ => until + 1000 - due,
                }).max();
                if let Some(longest) = longest {
                    let read = figures.max_us.unwrap_or(0.0) / 1e3;
                    let most = (longest as f64 + 10.0) * 1.04 + 0.1;
                    prop_assert!(read >= longest as f64 && read <= most, "{read} for {longest}");
                }
            }
            let steps: u64 = lines.iter().map(|line| match line {
                Line::Step(step) => step.figures.due,
                _ => 0,
            }).sum();
            let windows: u64 = windows.iter().map(|window| window.figures.due).sum();
            prop_assert_eq!(steps, windows);
        }
    }
}
