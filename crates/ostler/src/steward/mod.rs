//! The control loop: sense, decide, check, act, record; once per period.
//!
//! One thread does all of it, in order, so that a plan always rests on the snapshot just taken. Nothing else may hold it up: the record has
//! its own thread behind a bounded queue, and the API reads a [`View`](view::View) that is swapped whole. What the loop meets is behind
//! four small traits ([`Sense`], [`Agents`], [`Decide`], [`Act`]), so that the loop is tested with none of Linux under it; `wire` puts the real
//! ones there.
//!
//! **Time.** Periods are counted on the monotonic clock by a timer that keeps its phase. A turn that overruns makes the loop late, never faster:
//! missed periods are counted and skipped, because a decision on evidence that was never taken is worth nothing. Counters in a snapshot are over
//! its own interval, so a long one is still measured right.
//!
//! **Safety.** A plan is judged by ostler-check before anything is written. A plan with violations is not acted on and its state is
//! not carried over: the next decision starts from the last good one. A failure to sense skips the period.

pub mod control;
pub mod heap;
pub mod lines;
pub mod lock;
pub mod priority;
pub mod timer;
pub mod totals;
pub mod view;

#[cfg(test)]
mod tests;

use ostler_model::config::Config;
use ostler_model::{ActIntent, Facts, Intent, Nanos, Outcome, Plan, Snapshot};
use ostler_record::{Decided, Inputs};

/// Sees the host.
pub trait Sense {
    /// What the host is, as of the last look.
    fn facts(&self) -> &Facts;
    /// What happened on it since the last snapshot.
    fn snapshot(&mut self, now: Nanos) -> anyhow::Result<Snapshot>;
    /// Follows a new configuration: other NICs, other sockets.
    fn configure(&mut self, config: &Config) -> anyhow::Result<()>;
}

/// Speaks with the agents in guests.
pub trait Agents {
    /// Writes what agents last said into the snapshot. Never waits for one.
    fn fill(&mut self, intent: &Intent, snapshot: &mut Snapshot);
}

/// Makes a plan and judges it.
pub trait Decide {
    /// Decides. Pure: the same inputs give the same decision.
    fn decide(&self, inputs: Inputs<'_>) -> Decided;
    /// What is wrong with a plan, by rules of their own; nothing when it may be acted on. `previous` is the last plan that was adopted.
    fn check(&self, inputs: Inputs<'_>, previous: Option<&Plan>, plan: &Plan) -> Vec<String>;
}

/// What came of taking our writes back.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Restored {
    /// Values put back.
    pub put_back: u32,
    /// Values that held the original already, or whose place is gone.
    pub unchanged: u32,
    /// Guests whose agents were not told, and give their guests back by themselves.
    pub by_agents: u32,
    /// Values that were left, each with the reason.
    pub left: Vec<String>,
}

/// Carries plans out.
pub trait Act {
    /// Makes the host as the plan says; what fails is in the outcome, and the next period tries again.
    fn apply(&mut self, facts: &Facts, snapshot: &Snapshot, plan: &Plan)
    -> anyhow::Result<Outcome>;
    /// Follows a new intent.
    fn configure(&mut self, intent: ActIntent);
    /// Meets what a steward before us left behind: when acting, goes on from there, so that guests are not moved for nothing; else takes it back, unless
    /// it was to be kept.
    fn recover(&mut self, intent: ActIntent) -> anyhow::Result<Option<Restored>>;
    /// Takes our writes back.
    fn restore(&mut self) -> anyhow::Result<Restored>;
}

/// Tells the time.
pub trait Clock {
    /// On the monotonic clock.
    fn now(&self) -> Nanos;
    /// On the wall.
    fn wall(&self) -> ostler_record::Wall;
}
