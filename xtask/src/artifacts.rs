//! The static binaries: what a user installs, and what the lab carries into its host and guests.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::run;

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The plugin's file name.
const PLUGIN: &str = "libostler_machine_time.so";

/// The packages whose binaries are built.
const PACKAGES: &[&str] = &["ostler", "ostler-guest", "ostler-load", "ostler-lab"];

/// Builds them and returns the folder that holds them.
pub fn build() -> Result<PathBuf> {
    let mut cargo = run::cargo();
    cargo
        .args([
            "build",
            "--release",
            "--quiet",
            "--bins",
            "--target",
            TARGET,
        ])
        // One file runs in the host, in a guest's initrd and on any distribution. The flag goes with an explicit target so that
        // build scripts and procedural macros, which can't be static, don't get it.
        .env("RUSTFLAGS", "-C target-feature=+crt-static");
    for package in PACKAGES {
        cargo.args(["--package", package]);
    }
    run::run(&mut cargo)?;
    let folder = run::target_dir().join(TARGET).join("release");
    plugin(&folder)?;
    Ok(folder)
}

/// The plugin that keeps the emulated host's time, beside the programs. A shared library can't be linked statically, and
/// cargo would build everything anew whenever the flags change: so it has a folder of its own to be built in.
fn plugin(folder: &Path) -> Result<()> {
    let built = run::target_dir().join("plugin");
    run::run(
        run::cargo()
            .env_remove("RUSTFLAGS")
            .env_remove("CARGO_ENCODED_RUSTFLAGS")
            .args(["build", "--release", "--quiet"])
            .args(["-p", "machine-time", "--target-dir"])
            .arg(&built),
    )?;
    let from = built.join("release").join(PLUGIN);
    // Renamed into its place: an emulator that runs has the file mapped, and ends by SIGBUS if it is written over.
    let beside = folder.join(format!(".{PLUGIN}"));
    std::fs::copy(&from, &beside).with_context(|| format!("could not copy {}", from.display()))?;
    std::fs::rename(&beside, folder.join(PLUGIN))
        .with_context(|| format!("could not move {}", beside.display()))?;
    Ok(())
}
