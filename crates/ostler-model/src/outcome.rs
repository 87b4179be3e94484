//! What came of a plan.

use serde::{Deserialize, Serialize};

use crate::{GuestId, Nanos};

/// What came of acting on a plan. A failure leaves the rest applied; the next period tries again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Generation of the plan.
    pub generation: u64,
    /// Values written.
    pub written: u32,
    /// Values that already held.
    pub unchanged: u32,
    /// Writes that failed.
    pub failures: Vec<Failure>,
    /// Values that someone else had changed since we set them.
    pub foreign: Vec<ForeignChange>,
    /// What came of the boost, while it is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boost: Option<BoostOutcome>,
}

/// What the scheduler of vCPUs has done since it was loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoostOutcome {
    /// What this kernel can't tell it of; without any source of events nobody is boosted.
    pub deaf_to: Vec<String>,
    /// The guests that it schedules, in order of id.
    pub guests: Vec<GuestBoost>,
}

/// What it has done for and to a guest, since the guest came.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestBoost {
    /// Which guest.
    pub guest: GuestId,
    /// Its vCPUs, and those of them that do IO now.
    pub vcpus: u32,
    /// Likewise.
    pub io_vcpus: u32,
    /// Time that its vCPUs ran.
    pub ran: Nanos,
    /// Time that they waited for a core.
    pub waited: Nanos,
    /// Time that its other threads ran, vhost workers above all: its vCPUs are charged for it.
    pub served: Nanos,
    /// Run time beyond its share, ns; below zero where it has had less.
    pub balance_ns: i64,
    /// What its vCPUs ran beyond their shares, and gave back.
    pub borrowed: Nanos,
    /// Likewise.
    pub paid: Nanos,
    /// What others took of its share, and gave back.
    pub lent: Nanos,
    /// Likewise.
    pub returned: Nanos,
    /// Events for which a vCPU was put before others.
    pub boosts: u64,
    /// Events for which no core could be had at once.
    pub refused: u64,
    /// Ticks of the clock, on its vCPUs, at which it was known which task the guest runs.
    pub tasks_seen: u64,
    /// From an event to its vCPU running: entry `n` counts those that took 2^n us and more, but less than 2^(n+1); the last, all longer ones.
    pub delays: Vec<u64>,
}

impl GuestBoost {
    /// A bound that this share of delays is below; `None` where there were none, or it took longer than all bounds.
    pub fn delay(&self, share: f64) -> Option<Nanos> {
        delay_bound(&self.delays, share)
    }
}

/// The same of any such counts, which can be added and taken from each other.
pub fn delay_bound(delays: &[u64], share: f64) -> Option<Nanos> {
    let all: u64 = delays.iter().sum();
    let wanted = (all as f64 * share).ceil().max(1.0);
    let mut seen = 0;
    let at = delays.iter().position(|count| {
        seen += count;
        seen as f64 >= wanted
    })?;
    // The last is without a bound.
    let bounded = at + 1 < delays.len();
    bounded.then(|| Nanos::from_micros(2 << at))
}

/// A write that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What was to be set: a path, or a device and its setting.
    pub target: String,
    /// The value that was to be set.
    pub value: String,
    /// What went wrong, and what to do.
    pub error: String,
}

/// A value that we set and found changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForeignChange {
    /// What it is: a path, or a device and its setting.
    pub target: String,
    /// What we had set.
    pub ours: String,
    /// What it is now.
    pub found: String,
    /// What we did about it.
    pub handling: ForeignHandling,
}

/// What was done about a foreign change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ForeignHandling {
    /// Left to them from now on.
    Respected,
    /// Set again.
    Reowned,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_bounded_by_the_bin_that_its_share_ends_in() {
        let boost = |delays: Vec<u64>| GuestBoost {
            guest: GuestId::from("web"),
            vcpus: 1,
            io_vcpus: 1,
            ran: Nanos::ZERO,
            waited: Nanos::ZERO,
            served: Nanos::ZERO,
            balance_ns: 0,
            borrowed: Nanos::ZERO,
            paid: Nanos::ZERO,
            lent: Nanos::ZERO,
            returned: Nanos::ZERO,
            boosts: 0,
            refused: 0,
            tasks_seen: 0,
            delays,
        };
        let some = boost(vec![50, 49, 0, 1]);
        assert_eq!(some.delay(0.5), Some(Nanos::from_micros(2)));
        assert_eq!(some.delay(0.51), Some(Nanos::from_micros(4)));
        assert_eq!(some.delay(0.99), Some(Nanos::from_micros(4)));
        assert_eq!(some.delay(1.0), None, "the last bin has no bound");
        assert_eq!(boost(vec![0; 24]).delay(0.5), None);
        assert_eq!(boost(Vec::new()).delay(0.5), None);
    }
}
