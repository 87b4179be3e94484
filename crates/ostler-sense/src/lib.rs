//! Linux -> [`Facts`](ostler_model::Facts) and [`Snapshot`](ostler_model::Snapshot): everything that ostler sees of a
//! host.
//!
//! A [`Sensor`] is made once and asked for a snapshot each period. It costs little: CPU times and response times are
//! read from memory that BPF programs share with us, all threads of all guests by a single system call, and everything
//! that changes rarely only when something says that it changed. It waits for no guest: monitors are talked to on a
//! thread of their own. And it works without BPF, with coarser figures: each thing that this host can't do is a
//! capability with the reason why.
//!
//! Depends on `ostler-model` for its nouns and on `ostler-abi` for what it shares with BPF; on no other room.

mod bell;
mod bpf;
mod capability;
mod cgroup;
mod config;
#[cfg(test)]
mod core_tests;
mod cpus;
mod error;
mod ethtool;
mod files;
mod guest_report;
mod guests;
#[cfg(feature = "libvirt")]
mod libvirt;
mod nic;
mod pmu;
pub mod qmp;
mod sensor;
mod sys;
mod tap;
mod threads;
mod topology;

pub use bell::Bell;
pub use config::{Roots, SenseConfig};
pub use error::SenseError;
pub use ostler_bpf::BpfError;
pub use sensor::Sensor;
pub use sys::now;
pub use tap::Window;
