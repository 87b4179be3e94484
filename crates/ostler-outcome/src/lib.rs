//! What a run of a scenario showed: told as events by whoever ran it, summed up, and drawn.
//!
//! ```text
//!  a world (the lab, the simulator) --events--> gather --summaries--> JSON lines, expectations, report
//! ```
//!
//! Every world runs the same cells in the same order ([`order`]) and tells of them in the same words ([`events`]), so that what comes of them is
//! reckoned up once ([`gather`]), is held against the same expectations, and can be laid side by side ([`compare`](mod@compare)), whoever ran it.
//!
//! All of it is pure: no clock, no files, no network. Depends on `ostler-scenario` for what was to be run, on `ostler-load` for the shape of a load
//! generator's lines, on `ostler-model` for plans and the counts of the scheduler of vCPUs, and on `ostler-report` to draw with.

pub mod compare;
pub mod events;
pub mod fleet;
pub mod gather;
pub mod order;
pub mod report;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
