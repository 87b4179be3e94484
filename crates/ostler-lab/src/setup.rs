//! Installs what this machine lacks, or says exactly what an administrator must install.

use std::process::Command;

use crate::child;
use crate::error::{LabError, Result};
use crate::progress::Progress;

/// The packages among `wanted` that are not installed.
pub fn missing(wanted: &[&str]) -> Result<Vec<String>> {
    // dpkg-query fails when any package is unknown, but still lists the others: its output is what counts.
    let output = Command::new("dpkg-query")
        .args(["--show", "--showformat", "${Package} ${db:Status-Status}\n"])
        .args(wanted)
        .output()
        .map_err(|source| LabError::Start {
            program: "dpkg-query".to_owned(),
            source,
        })?;
    Ok(not_installed(
        wanted,
        &String::from_utf8_lossy(&output.stdout),
    ))
}

fn not_installed(wanted: &[&str], listing: &str) -> Vec<String> {
    wanted
        .iter()
        .filter(|name| {
            !listing
                .lines()
                .any(|l| l.strip_suffix(" installed") == Some(name))
        })
        .map(|&name| name.to_owned())
        .collect()
}

/// Installs the packages among `wanted` that are missing; `None` would have been changed where all are there.
/// Without root: one message with the exact commands.
pub fn ensure(wanted: &[&str], progress: Progress) -> Result<Vec<String>> {
    let missing = missing(wanted)?;
    if missing.is_empty() {
        return Ok(missing);
    }
    if !rustix::process::geteuid().is_root() {
        return Err(LabError::Missing { missing });
    }
    let step = progress.step("refresh apt's package lists");
    let remedy = "check this machine's network and /etc/apt, then run the same command again";
    child::run(apt_get().arg("update"), "apt-get update", remedy, &step)?;
    step.done("");
    let step = progress.step(format!("install {}", missing.join(" ")));
    let mut install = apt_get();
    install
        .args(["install", "--no-install-recommends", "--yes"])
        .args(&missing);
    child::run(&mut install, "apt-get install", remedy, &step)?;
    step.done("");
    Ok(missing)
}

/// As [`ensure`], for several lists, with progress shown.
pub fn ensure_lists(lists: &[&[&'static str]]) -> Result<()> {
    let mut wanted: Vec<&str> = lists.concat();
    wanted.sort_unstable();
    wanted.dedup();
    ensure(&wanted, Progress::detect())?;
    Ok(())
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    // Wait for another apt (unattended-upgrades on a fresh machine) rather than fail.
    command
        .env("DEBIAN_FRONTEND", "noninteractive")
        .args(["-o", "DPkg::Lock::Timeout=300"]);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_installed_and_unknown_packages_are_missing() {
        let listing = "gcc installed\nmake config-files\nlibelf-dev not-installed\n";
        assert_eq!(
            not_installed(&["gcc", "make", "libelf-dev", "clang-19"], listing),
            ["make", "libelf-dev", "clang-19"]
        );
    }
}
