//! One turn of the loop, with all that a decision was made from and all that came of it.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ostler_model::{Facts, Intent, Nanos, Outcome, Plan, Reason, Snapshot, State};
use serde::{Deserialize, Serialize};

/// A point in wall-clock time, in nanoseconds since 1970 (UTC): how people ask for a moment. Decisions never see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Wall(pub u64);

impl Wall {
    /// Before everything.
    pub const MIN: Wall = Wall(0);
    /// After everything that SQLite can tell apart.
    pub const MAX: Wall = Wall(i64::MAX as u64);

    /// That much earlier.
    #[must_use]
    pub fn saturating_sub(self, span: Nanos) -> Wall {
        Wall(self.0.saturating_sub(span.0))
    }
}

impl From<SystemTime> for Wall {
    fn from(time: SystemTime) -> Wall {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Wall(u64::try_from(since.as_nanos()).unwrap_or(Wall::MAX.0))
    }
}

/// What a period cost its host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
    /// Time spent sensing.
    pub sense: Nanos,
    /// Time spent deciding and checking.
    pub decide: Nanos,
    /// Time spent acting.
    pub act: Nanos,
}

/// One turn of the loop.
#[derive(Clone, Debug, PartialEq)]
pub struct Period {
    /// When it was, on the clock on the wall.
    pub wall: Wall,
    /// What the host was.
    pub facts: Arc<Facts>,
    /// What its operator wanted.
    pub intent: Arc<Intent>,
    /// What was seen.
    pub snapshot: Arc<Snapshot>,
    /// What was carried over from the decision before. Always given to a recorder; read back only where there is a checkpoint.
    pub before: Option<Arc<State>>,
    /// The time that the decision was made at.
    pub now: Nanos,
    /// The seed of its randomness.
    pub seed: u64,
    /// What was decided.
    pub plan: Arc<Plan>,
    /// Why.
    pub reasons: Arc<[Reason]>,
    /// What the checker had against the plan; a plan with violations is not acted on.
    pub violations: Vec<String>,
    /// Whether the decision's state was carried over to the next period.
    pub adopted: bool,
    /// What came of acting on the plan; `None` when nothing was to be written.
    pub outcome: Option<Outcome>,
    /// What it cost.
    pub cost: Cost,
}
