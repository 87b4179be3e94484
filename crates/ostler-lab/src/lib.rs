//! The lab: an emulated KVM host with real guests under real load, on any machine, with or without KVM.
//!
//! It builds an image of a Debian host ([`image`]), boots it in the QEMU that the image itself contains ([`machine`],
//! [`vm`]), and has it run a scenario ([`scenario`]) as a program of cells, policy by load by round ([`program`]). What
//! happens inside is told as events, from which `ostler-outcome` makes a report. The side inside the emulated host is [`inner`], the program
//! `ostler-lab-inner`.
//!
//! Depends on `ostler-model` for core sets and classes, on `ostler-scenario` for the format of scenarios, and on `ostler-outcome` for what a run comes to. It runs `ostler` as a process and knows nothing of how it decides.

pub mod apt;
pub mod binaries;
pub mod child;
pub mod cli;
pub mod error;
pub mod hogs;
pub mod image;
pub mod inner;
pub mod machine;
mod memory;
pub mod packages;
pub mod profile;
pub mod program;
pub mod progress;
mod pulse;
pub mod run;
pub mod scenario;
mod schedulers;
pub mod setup;
pub mod share;
pub mod stdout;
pub mod tail;
pub mod trace;
pub mod up;
pub mod vm;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

pub use error::LabError;

static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on, SIGINT and SIGTERM are noted rather than deadly, so that what was started can be ended in order. A second
/// one ends us at once; children are bound to us by the kernel.
pub fn catch_interrupts() {
    INTERRUPTED.get_or_init(|| {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            // Failing to register leaves the default: the signal ends us, and the kernel our children.
            let _ =
                signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&flag));
            let _ = signal_hook::flag::register(signal, Arc::clone(&flag));
        }
        flag
    });
}

/// Whether we were asked to stop.
pub fn interrupted() -> bool {
    INTERRUPTED
        .get()
        .is_some_and(|flag| flag.load(Ordering::Relaxed))
}
