//! Runs simulated machines: one, or two of different instruction sets that share their physical memory.
//!
//! A file describes them ([`world`]): what each is and boots, whose memory is where, and how time passes. All of it is
//! checked before anything starts ([`check`]), each mistake with its line and what to write instead; and so is what it takes to
//! run it: a QEMU that is known, its firmware, the plugin that keeps time, memory enough ([`emulator`], [`ready`]). Then each machine is
//! a stock QEMU with the plugin of `machine/time` ([`qemu`]), and a run follows them to their end ([`run`]).
//!
//! Memory that machines share, and the page by which they are in step, are files without a name (`memfd_create`): when the last
//! process is gone, so are they, however it ended.
//!
//! May depend on: `machine/memory`, for parts and topologies.

mod check;
mod child;
pub mod emulator;
pub mod error;
pub mod layout;
pub mod qemu;
mod raw;
pub mod ready;
pub mod run;
pub mod topology;
pub mod world;

pub use emulator::{Emulator, Emulators};
pub use error::{LaunchError, WorldError};
pub use run::{Ended, Options, run};
pub use world::{Isa, World};
