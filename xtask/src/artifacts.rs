//! The static binaries: what a user installs, and what the lab carries into its host and guests.

use std::path::PathBuf;

use anyhow::Result;
use ostler_lab::binaries::{self, Binaries};
use ostler_lab::progress::Progress;

use crate::run;

const TARGET: &str = "x86_64-unknown-linux-gnu";

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
    let plugin = Binaries::build_plugin(Progress::detect())?;
    binaries::put_plugin(&plugin, &folder)?;
    Ok(folder)
}
