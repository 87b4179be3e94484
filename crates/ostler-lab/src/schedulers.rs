//! Schedulers by others, to compare with: programs that are published as crates. A scenario names them with their version, and they are built once, by the crate's
//! own lock file, into the lab's folder; nothing of them is part of ostler.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

use crate::child;
use crate::error::{IoContext, Result};
use crate::image::LabDir;
use crate::progress::Progress;
use crate::scenario::HostScheduler;

/// The program, built if it isn't there yet.
pub fn ensure(lab: &LabDir, scheduler: &HostScheduler, progress: Progress) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    ensure_by(&cargo, lab, scheduler, progress)
}

fn ensure_by(
    cargo: &OsStr,
    lab: &LabDir,
    scheduler: &HostScheduler,
    progress: Progress,
) -> Result<PathBuf> {
    let HostScheduler { name, version } = scheduler;
    let folder = lab.path().join("schedulers");
    let root = folder.join(format!("{name}-{version}"));
    let program = root.join("bin").join(name);
    if program.is_file() {
        return Ok(program);
    }
    let step = progress.step(format!("build {scheduler}"));
    std::fs::create_dir_all(&folder).on("create", &folder)?;
    let staging = tempfile::tempdir_in(&folder).on("create a folder in", &folder)?;
    let made = staging.path().join("made");
    let mut cargo = Command::new(cargo);
    // Elsewhere's flags are for our own programs.
    cargo
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .args(["install", name, "--version", version, "--locked", "--root"])
        .arg(&made)
        .arg("--target-dir")
        .arg(staging.path().join("build"));
    // Those of sched-ext's own repository look for a plain `clang` else, which Debian's packages of one version don't have.
    if std::env::var_os("BPF_CLANG").is_none() {
        let clang = std::env::var_os("CLANG").unwrap_or_else(|| "clang-19".into());
        cargo.env("BPF_CLANG", clang);
    }
    let remedy = "schedulers that use BPF want clang, libelf's and zlib's headers; or choose other policies by --policies";
    child::run(&mut cargo, "cargo install", remedy, &step)?;
    if root.exists() {
        std::fs::remove_dir_all(&root).on("remove", &root)?;
    }
    std::fs::rename(&made, &root).on("move", &made)?;
    step.done("");
    Ok(program)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::*;

    fn cargo(folder: &Path, script: &str) -> PathBuf {
        let path = folder.join("cargo");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("written");
        let all = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&path, all).expect("it is ours");
        path
    }

    #[test]
    fn a_scheduler_is_built_once_and_a_failed_build_leaves_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let lab = LabDir::new(folder.path().join("lab"));
        let scheduler = HostScheduler::parse("scx_some@1.2.3").expect("a good one");
        let ensure =
            |cargo: &Path| ensure_by(cargo.as_os_str(), &lab, &scheduler, Progress::Silent);
        let bad = cargo(folder.path(), "echo 'no libelf' >&2; exit 1");
        let error = ensure(&bad).expect_err("cargo fails").to_string();
        assert!(
            error.contains("no libelf") && error.contains("--policies"),
            "{error}"
        );
        let kept = std::fs::read_dir(lab.path().join("schedulers")).expect("it is made");
        assert_eq!(kept.count(), 0);
        // What cargo is told: install NAME --version VERSION --locked --root FOLDER.
        let script = "test \"$1 $2 $3 $4 $5 $6\" = 'install scx_some --version 1.2.3 --locked --root' || exit 2\n\
            mkdir -p $7/bin && echo built >> $7/bin/$2";
        let good = cargo(folder.path(), script);
        let program = ensure(&good).expect("cargo builds it");
        assert_eq!(ensure(&bad).expect("it is there"), program);
        assert_eq!(
            std::fs::read_to_string(program).expect("it is there"),
            "built\n"
        );
    }
}
