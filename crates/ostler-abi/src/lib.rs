//! The layouts and wires that ostler shares with what it doesn't link against.
//!
//! May depend on: nothing of ostler. Used by sense, act, guest and machine.

pub mod bpf;
pub mod guest;
pub mod hints;
pub mod pmu;
