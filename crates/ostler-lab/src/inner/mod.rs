//! The lab's side inside the emulated host, as the program `ostler-lab-inner`. [`init`] is its first process; everything
//! else happens in a second one ([`work`]), so that whatever goes wrong there, someone is left to say so and power off.

pub mod cells;
pub mod counters;
pub mod done;
pub mod faults;
pub mod guests;
pub mod init;
mod kernel;
pub mod load;
mod net;
pub mod profile;
pub mod sampler;
pub mod say;
mod scheduler;
pub mod steward;
mod trace;
mod turn;
pub mod work;

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::Context;

/// Folder for everything that we make inside the host.
pub const RUN: &str = "/run/ostler-lab";

/// Where results are gathered.
pub const RESULTS: &str = "/run/ostler-lab/results";

/// Where guests' cgroups are, as plain QEMU under a cgroup manager has them.
pub const MACHINE_CGROUP: &str = "/sys/fs/cgroup/machine";

/// Where everything else runs: load generators, the steward, ourselves.
pub const LAB_CGROUP: &str = "/sys/fs/cgroup/lab";

/// Entry of the program.
pub fn main(verb: Option<&str>) -> ExitCode {
    match verb {
        Some("init") => init::init(),
        Some("work") => work::work(),
        _ => {
            eprintln!(
                "ostler-lab-inner is the first program of the lab's emulated host; it does nothing elsewhere"
            );
            ExitCode::FAILURE
        }
    }
}

/// Runs a short command; an error holds what it said.
fn sh(program: &str, args: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(program)
        .args(args)
        .output()
        .with_context(|| format!("could not start {program}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    anyhow::bail!("`{program} {}` failed: {}", args.join(" "), said.trim())
}

/// Writes a kernel file.
fn write(path: impl AsRef<Path>, value: &str) -> anyhow::Result<()> {
    let path = path.as_ref();
    std::fs::write(path, value)
        .with_context(|| format!("could not write `{value}` to {}", path.display()))
}

/// Reads a kernel file.
fn read(path: impl AsRef<Path>) -> anyhow::Result<String> {
    let path = path.as_ref();
    std::fs::read_to_string(path).with_context(|| format!("could not read {}", path.display()))
}
