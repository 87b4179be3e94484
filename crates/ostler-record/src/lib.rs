//! The record: what was seen, what was decided and why, and what came of it, kept so that any decision can be explained and made again.
//!
//! `decide()` is pure, so a period is whole when its inputs are: facts, intent, snapshot, the state carried over, the time and a seed. They
//! don't change alike, so they are not kept alike:
//!
//! - a **block** holds up to a second of periods as JSON lines in one zstd frame. A host looks much the same from one period to the next, and
//!   one frame over ten of them is far smaller than ten frames. The plan is written only where it asks for something new; the first
//!   period of a block has it always, so that a block can be read alone.
//! - facts and intent are **contexts**, written when they change and named by the blocks.
//! - the state is a **checkpoint** at the start of a run, after a gap, and every [`CHECKPOINT_PERIODS`] periods: between two of them it
//!   follows from replaying.
//!
//! The file is SQLite in WAL mode: written while it is read, whole after a crash but for the last second. The [`Recorder`] writes on its own thread behind
//! a bounded queue; when the disk is too slow, periods are dropped and counted, and the control loop never waits. It drops the oldest blocks above a
//! size and an age. The [`Reader`] finds periods by wall-clock time, and [`replay`] makes the decisions again, by whatever function it is given: this
//! crate knows no policy. It depends on `ostler-model` alone.

mod block;
mod error;
mod period;
mod reader;
mod recorder;
mod replay;
mod store;

pub use error::RecordError;
pub use period::{Cost, Period, Wall};
pub use reader::{Reader, Span};
pub use recorder::{Limits, QUEUE_PERIODS, Recorder, Stats};
pub use replay::{Decided, Difference, Inputs, Report, replay};
pub use store::CHECKPOINT_PERIODS;
