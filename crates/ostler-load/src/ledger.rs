//! The books: every request that was due is accounted for exactly once, in the window in which it was due.
//!
//! A request ends in one of four ways, and each of them puts one latency into its window's histogram, so that nothing can
//! vanish from the percentiles:
//! - *completed*: reply time minus **intended** send time;
//! - *error* (refused, malformed, connection lost): charged as if it had never been answered, because a server that fails
//!   fast must not look fast;
//! - *timeout* (not answered, or not even sent, by the window's deadline): its age at the deadline;
//! - *dropped* (the client's own bounded queue was full): its age at the deadline, rounded up by less than 10 ms.
//!
//! The deadline of a window is its end plus a drain time. A window is settled, and its line goes out, as soon as the last of
//! its requests has ended, or at its deadline; replies that come later still free their connection but change no figure.

use std::collections::VecDeque;

use hdrhistogram::Histogram;

use crate::schedule::{Plan, WindowSpan};

/// Latencies below this are not told apart; three significant digits hold from a few microseconds on.
const LATENCY_NS_MIN: u64 = 1_000;
/// Longer latencies are recorded as this.
pub const LATENCY_NS_MAX: u64 = 600_000_000_000;
/// Dropped requests are remembered by the hundredth of the window in which they were due.
const DROP_SLOTS: usize = 100;

/// What a reply turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// A get that found its value, of the right length.
    Hit,
    /// A get that found nothing.
    Miss,
    /// Anything else that succeeded.
    Done,
    /// The server refused, or answered with the wrong thing; the stream of replies is still in step.
    Error,
}

/// The figures of one window.
#[derive(Debug, Clone)]
pub struct Window {
    /// Which stretch of time.
    pub span: WindowSpan,
    /// Requests whose intended time lies in it.
    pub due: u64,
    /// Of those, written to a connection.
    pub sent: u64,
    /// Of those, answered correctly.
    pub completed: u64,
    /// Answered wrongly, or lost with their connection.
    pub errors: u64,
    /// Not answered by the deadline.
    pub timeouts: u64,
    /// Never sent: the queue was full.
    pub dropped: u64,
    /// Sent later than intended by more than the tolerance.
    pub late: u64,
    /// Ended with a latency above the objective.
    pub over_slo: u64,
    /// Gets that found their value.
    pub hits: u64,
    /// Gets that found none.
    pub misses: u64,
    /// How far behind the schedule the client's own loop was at worst. A figure about the client, not the server.
    pub lag_max_ns: u64,
    /// One entry for each request that was due.
    pub latency_ns: Histogram<u64>,
}

impl Window {
    /// An empty window.
    ///
    /// # Panics
    /// Never: the histogram's bounds are constants that satisfy its rules.
    pub fn new(span: WindowSpan) -> Self {
        let latency_ns = Histogram::new_with_bounds(LATENCY_NS_MIN, LATENCY_NS_MAX, 3)
            .expect("bounds are valid constants");
        Self {
            span,
            due: 0,
            sent: 0,
            completed: 0,
            errors: 0,
            timeouts: 0,
            dropped: 0,
            late: 0,
            over_slo: 0,
            hits: 0,
            misses: 0,
            lag_max_ns: 0,
            latency_ns,
        }
    }

    /// Adds another window's figures: another thread's share of the same second, or the next second of the same step.
    ///
    /// # Panics
    /// Never: all windows have the same bounds.
    pub fn merge(&mut self, other: &Self) {
        self.span.start_ns = self.span.start_ns.min(other.span.start_ns);
        self.span.end_ns = self.span.end_ns.max(other.span.end_ns);
        self.due += other.due;
        self.sent += other.sent;
        self.completed += other.completed;
        self.errors += other.errors;
        self.timeouts += other.timeouts;
        self.dropped += other.dropped;
        self.late += other.late;
        self.over_slo += other.over_slo;
        self.hits += other.hits;
        self.misses += other.misses;
        self.lag_max_ns = self.lag_max_ns.max(other.lag_max_ns);
        self.latency_ns
            .add(&other.latency_ns)
            .expect("all windows have the same bounds");
    }

    fn charge(&mut self, latency_ns: u64, count: u64, slo_ns: Option<u64>) {
        self.latency_ns.saturating_record_n(latency_ns, count);
        if slo_ns.is_some_and(|slo| latency_ns > slo) {
            self.over_slo += count;
        }
    }
}

/// When a request is held to be late, failed, or too slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// How long after its window's end a request may still be answered.
    pub drain_ns: u64,
    /// Sent later than intended by more than this is *late*.
    pub late_ns: u64,
    /// The objective, if there is one.
    pub slo_ns: Option<u64>,
}

#[derive(Debug)]
struct OpenWindow {
    window: Window,
    outstanding: u64,
    dropped_at: [u32; DROP_SLOTS],
}

/// The windows of a run that are not settled yet.
#[derive(Debug)]
pub struct Ledger {
    plan: Plan,
    limits: Limits,
    open: VecDeque<OpenWindow>,
    /// Index in the plan of the first window in `open`.
    first: u32,
}

impl Ledger {
    /// Empty books for `plan`.
    pub fn new(plan: Plan, limits: Limits) -> Self {
        Self {
            plan,
            limits,
            open: VecDeque::new(),
            first: 0,
        }
    }

    /// Whether every window has been settled.
    pub fn is_settled(&self) -> bool {
        self.first as usize == self.plan.windows().len()
    }

    /// Whether this window has been settled, so that its requests no longer matter.
    pub fn is_past(&self, window: u32) -> bool {
        window < self.first
    }

    /// When the next window is worth looking at again: at its end, when it may be answered in full, and then at its deadline.
    pub fn next_wake_ns(&self, now_ns: u64) -> Option<u64> {
        let span = self.plan.windows().get(self.first as usize)?;
        let over = now_ns >= span.end_ns;
        Some(if over {
            span.end_ns + self.limits.drain_ns
        } else {
            span.end_ns
        })
    }

    fn deadline_ns(&self, window: u32) -> u64 {
        self.plan.windows()[window as usize].end_ns + self.limits.drain_ns
    }

    fn open(&mut self, window: u32) -> Option<&mut OpenWindow> {
        let offset = window.checked_sub(self.first)? as usize;
        while self.open.len() <= offset {
            let span = *self
                .plan
                .windows()
                .get(self.first as usize + self.open.len())?;
            self.open.push_back(OpenWindow {
                window: Window::new(span),
                outstanding: 0,
                dropped_at: [0; DROP_SLOTS],
            });
        }
        self.open.get_mut(offset)
    }

    /// A request fell due and was noticed `lag_ns` after its time.
    pub fn due(&mut self, window: u32, lag_ns: u64) {
        if let Some(open) = self.open(window) {
            open.window.due += 1;
            open.window.lag_max_ns = open.window.lag_max_ns.max(lag_ns);
            open.outstanding += 1;
        }
    }

    /// The request that just fell due found the queue full.
    pub fn dropped(&mut self, window: u32, intended_ns: u64) {
        if let Some(open) = self.open(window) {
            let span = open.window.span;
            let slot = intended_ns.saturating_sub(span.start_ns) * DROP_SLOTS as u64
                / crate::schedule::SECOND_NS;
            open.dropped_at[usize::try_from(slot)
                .unwrap_or(DROP_SLOTS)
                .min(DROP_SLOTS - 1)] += 1;
            open.window.dropped += 1;
            open.outstanding -= 1;
        }
    }

    /// A request was written, `delay_ns` after its time.
    pub fn sent(&mut self, window: u32, delay_ns: u64) {
        let late = delay_ns > self.limits.late_ns;
        if let Some(open) = self.open(window) {
            open.window.sent += 1;
            open.window.late += u64::from(late);
        }
    }

    /// A request ended.
    pub fn ended(&mut self, window: u32, intended_ns: u64, now_ns: u64, outcome: Outcome) {
        if self.is_past(window) {
            return;
        }
        let charged_until_ns = if outcome == Outcome::Error {
            self.deadline_ns(window)
        } else {
            now_ns
        };
        let slo_ns = self.limits.slo_ns;
        if let Some(open) = self.open(window) {
            open.outstanding -= 1;
            match outcome {
                Outcome::Hit => open.window.hits += 1,
                Outcome::Miss => open.window.misses += 1,
                Outcome::Done => {}
                Outcome::Error => open.window.errors += 1,
            }
            open.window.completed += u64::from(outcome != Outcome::Error);
            open.window
                .charge(charged_until_ns.saturating_sub(intended_ns), 1, slo_ns);
        }
    }

    /// The next window that can be closed at `now_ns`. `unanswered` must call its argument with the window and intended time
    /// of every request that is still waiting or in flight; it is asked only when some are left at a deadline.
    pub fn settle(
        &mut self,
        now_ns: u64,
        unanswered: impl FnOnce(&mut dyn FnMut(u32, u64)),
    ) -> Option<Window> {
        let index = self.first;
        let span = *self.plan.windows().get(index as usize)?;
        if now_ns < span.end_ns {
            return None;
        }
        let deadline_ns = self.deadline_ns(index);
        let limits = self.limits;
        let open = self.open(index)?;
        if open.outstanding > 0 {
            if now_ns < deadline_ns {
                return None;
            }
            unanswered(&mut |window, intended_ns| {
                if window == index {
                    open.window.timeouts += 1;
                    open.window
                        .charge(deadline_ns - intended_ns, 1, limits.slo_ns);
                }
            });
        }
        for (slot, &count) in (0_u64..).zip(&open.dropped_at) {
            if count > 0 {
                let slot_start_ns =
                    span.start_ns + slot * crate::schedule::SECOND_NS / DROP_SLOTS as u64;
                open.window
                    .charge(deadline_ns - slot_start_ns, u64::from(count), limits.slo_ns);
            }
        }
        self.first += 1;
        self.open.pop_front().map(|open| open.window)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn window(latencies: &[u64]) -> Window {
        let mut window = Window::new(WindowSpan {
            step: 0,
            index: 0,
            start_ns: 0,
            end_ns: 1_000_000_000,
        });
        for &latency in latencies {
            window.due += 1;
            window.completed += 1;
            window.charge(latency, 1, Some(1_000_000));
        }
        window
    }

    proptest! {
        #[test]
        fn merging_is_the_same_as_counting_together(
            a in prop::collection::vec(1_000..10_000_000_000_u64, 0..200),
            b in prop::collection::vec(1_000..10_000_000_000_u64, 0..200),
        ) {
            let mut merged = window(&a);
            merged.merge(&window(&b));
            let together = window(&[a, b].concat());
            prop_assert_eq!(&merged.latency_ns, &together.latency_ns);
            prop_assert_eq!(merged.due, together.due);
            prop_assert_eq!(merged.over_slo, together.over_slo);
        }
    }
}
