//! Plan -> Linux. Acting makes no choices: a plan and a snapshot are turned into *settings*, each a [`Target`] with the value
//! it should hold, and the host is reconciled with them, level-triggered and idempotent, once per period.
//!
//! - [`settings()`] says what should hold. It is pure.
//! - [`Actuator`] makes it hold: what differs is journaled with the value before it, then written.
//! - [`Journal`] remembers, in SQLite, what was there before, so that [`undo()`] works after a `kill -9` and without the steward.
//! - What is no longer wanted (a guest that left, a vCPU unplugged, a guest to run again) is put back as it was found: undo
//!   and release are one piece of code ([`undo`]).
//! - A value that someone else changed is theirs from then on, or ours again, by policy; it is always reported.
//!
//! - [`Scheduler`] is the scheduler for vCPUs; the actuator loads it while a plan wants it, and gives vCPUs its policy.
//!
//! Depends on ostler-model, on ostler-boost and ostler-bpf for the scheduler, and on Linux through [`Host`].

mod actuator;
mod boost;
mod explain;
mod guests;
mod host;
mod irqbalance;
mod journal;
mod layout;
mod order;
mod preview;
mod reconcile;
mod rss;
mod scheduler;
mod settings;
mod target;
mod text;
mod undo;

pub use actuator::{ActConfig, Actuator, GuestPort};
pub use boost::{VcpuScheduler, VcpuSchedulers};
pub use host::{Host, LinuxHost, Root, RssView};
pub use journal::{Journal, JournalError, Row};
pub use layout::{Layout, Origins, Placement, survey};
pub use preview::{Change, preview};
pub use scheduler::{BoostError, LinuxSchedulers, Programs, SCHED_EXT_ONCE, Scheduler};
pub use settings::{Setting, settings};
pub use target::{Target, Value};
pub use undo::{Left, UndoReport, undo};
