//! What to do with a host: [`decide`] turns what was seen and what is wanted into a [`Plan`] with its reasons.
//!
//! The daemon, the simulator and `ostler plan` call the same function. It is pure: time and randomness are arguments, what it
//! remembers is a value that it takes and returns ([`State`]), and `clippy.toml` beside this crate refuses clocks,
//! files, environment and unordered maps. A recorded decision can therefore be made again, bit for bit.
//!
//! A decision is composed of layers, each of which owns one question ([`Decider`]). They share one [`Ledger`] of cores, which
//! grants a core to one owner and refuses it to the next, so that no layer can give away what another has given.
//!
//! | layer | question | module |
//! |---|---|---|
//! | partition | how many cores, and which, for vCPUs, for network queues and for best-effort guests? | [`partition`] |
//! | boost | whose vCPUs are scheduled by who does IO? | [`boost`] |
//! | placement | which core for each thread on a packet's way? | [`placement`] |
//! | hints | what may each guest know of its host, and which of its wishes are met? | [`hints`] |
//! | sizing | how much host memory for each guest's in-memory files? | [`sizing`] |
//! | tier | how much local and far memory for each guest? | [`tier`] |
//!
//! Where the paper's symbols are: the table in [`partition`].
//!
//! May depend on: `ostler-model`. `ostler-check` judges what comes out, by rules of its own.

pub mod boost;
mod decide;
pub mod hints;
mod ledger;
pub mod partition;
pub mod placement;
mod roster;
pub mod sizing;
pub mod tier;
mod walk;
pub mod wrong;

use ostler_model::{Facts, Intent, Nanos, Plan, Reason, Snapshot, State};

pub use decide::{Calibration, Decider, StageCalibrated, StageKind, decide};
pub use ledger::Ledger;
pub use roster::{Member, Roster};

/// A plan, why it is so, and what to remember for the next.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// What is to be done.
    pub plan: Plan,
    /// Why, in the order in which it was decided.
    pub reasons: Vec<Reason>,
    /// To be handed to the next [`decide`].
    pub state: State,
}

/// Where policies draw random numbers from. Any `FnMut() -> u64` is one.
pub trait Random {
    /// The next 64 random bits.
    fn next_u64(&mut self) -> u64;
}

impl<F: FnMut() -> u64> Random for F {
    fn next_u64(&mut self) -> u64 {
        self()
    }
}

/// What the layers read.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The host.
    pub facts: &'a Facts,
    /// This period.
    pub snapshot: &'a Snapshot,
    /// What the operator wants.
    pub intent: &'a Intent,
    /// The guests in the steward's care.
    pub roster: &'a Roster<'a>,
    /// The time of the decision.
    pub now: Nanos,
}
