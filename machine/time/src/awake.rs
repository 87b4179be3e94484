//! Keeps the real machine's idle cores awake while the emulated ones wait for each other.
//!
//! A real core that runs out of threads goes to sleep, and how long it takes to wake is decided by its deepest idle state, or
//! by the hypervisor under it: tens of microseconds, which is as long as a quantum takes. Linux lets a process say that this is
//! too long: what is written to `/dev/cpu_dma_latency` bounds the wake-up latency of all cores for as long as the
//! file is open (Documentation/power/pm_qos_interface.rst). Nothing is left behind, however the process ends.
//!
//! It is a matter of speed alone: without the right to open the file, everything is the same, later.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;

/// Where Linux takes the bound.
pub const LATENCY: &str = "/dev/cpu_dma_latency";

/// Keeps idle cores awake until it is dropped.
#[derive(Debug)]
pub struct Awake {
    /// Closing it takes the word back.
    _open: File,
}

impl Awake {
    /// Asks for no wake-up latency at all.
    pub fn ask(latency: &Path) -> io::Result<Awake> {
        let mut open = OpenOptions::new().write(true).open(latency)?;
        // A binary number of microseconds, in one piece.
        open.write_all(&0_i32.to_ne_bytes())?;
        Ok(Awake { _open: open })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asks_for_zero_microseconds_in_binary() {
        let file = std::env::temp_dir().join(format!("ostler-awake-{}", std::process::id()));
        File::create(&file).expect("a file in the temporary folder");
        let awake = Awake::ask(&file).expect("the file can be written to");
        let written = std::fs::read(&file).expect("it is there");
        drop(awake);
        std::fs::remove_file(&file).expect("it is there");
        assert_eq!(written, [0; 4]);
        assert!(Awake::ask(&file).is_err(), "it is made where it isn't");
    }
}
