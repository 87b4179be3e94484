//! What goes into the emulated host and what comes out. In: a read-only disk, made in well under a second, with this
//! run's programs and `program.json`; so a fresh binary runs without rebuilding the image. Out: events by a virtio port
//! as they happen, and at the end a tar archive on a raw disk. No daemon beside QEMU, and no shared memory.

use std::path::Path;
use std::process::Command;

use crate::binaries::Binaries;
use crate::child;
use crate::error::{IoContext, LabError, Result};
use crate::image::Image;
use crate::machine::files;
use crate::program::Program;
use crate::scenario::FaultKind;

/// Most that a run may bring out.
const RESULTS_BYTES: u64 = 1 << 30;

/// Folder of test programs, on the input disk and below a folder of binaries.
pub const TESTS: &str = "kernel-tests";

/// Folder of a kernel that isn't the image's own, on the input disk.
pub const KERNEL: &str = "kernel";

/// Makes a run's disks.
pub fn make_disks(run: &Path, image: &Image, binaries: &Binaries, program: &Program) -> Result<()> {
    let staging = tempfile::tempdir_in(run).on("create a folder in", run)?;
    let bin = staging.path().join("bin");
    std::fs::create_dir(&bin).on("create", &bin)?;
    let mut bytes = 0;
    // Only where it is asked for: it makes every guest's memory that much smaller.
    let wants_evil = program
        .scenario
        .faults
        .iter()
        .any(|fault| fault.kind == FaultKind::AgentMisbehaves);
    let programs = [
        ("ostler-lab-inner", Some(&binaries.inner)),
        ("ostler", binaries.ostler.as_ref()),
        ("ostler-load", binaries.load.as_ref()),
        ("ostler-guest", binaries.guest.as_ref()),
        (
            "ostler-guest-evil",
            binaries.evil.as_ref().filter(|_| wants_evil),
        ),
    ];
    for (name, path) in programs {
        if let Some(path) = path {
            bytes += std::fs::copy(path, bin.join(name)).on("copy", path)?;
        }
    }
    for path in &binaries.schedulers {
        if let Some(name) = path.file_name() {
            bytes += std::fs::copy(path, bin.join(name)).on("copy", path)?;
        }
    }
    if !binaries.tests.is_empty() {
        let tests = staging.path().join(TESTS);
        std::fs::create_dir(&tests).on("create", &tests)?;
        for path in &binaries.tests {
            if let Some(name) = path.file_name() {
                bytes += std::fs::copy(path, tests.join(name)).on("copy", path)?;
            }
        }
    }
    let brought = image.brought();
    if !brought.is_empty() {
        let kernel = staging.path().join(KERNEL);
        std::fs::create_dir(&kernel).on("create", &kernel)?;
        let remedy = "check the free space";
        for (from, name) in brought {
            let mut copy = Command::new("cp");
            copy.arg("-a").arg(&from).arg(kernel.join(name));
            child::output(&mut copy, "copying the kernel", remedy)?;
            let mut size = Command::new("du");
            let size = child::output(size.args(["-s", "-B1"]).arg(&from), "du", remedy)?;
            bytes += size
                .split_whitespace()
                .next()
                .and_then(|n| n.parse().ok())
                .unwrap_or(0);
        }
    }
    let json = serde_json::to_vec_pretty(program).map_err(|e| LabError::Format {
        doing: "write the program as JSON".to_owned(),
        why: e.to_string(),
    })?;
    for path in [
        staging.path().join("program.json"),
        run.join("program.json"),
    ] {
        std::fs::write(&path, &json).on("write", &path)?;
    }
    let disk = run.join(files::INPUT);
    let _ = std::fs::remove_file(&disk); // of an earlier attempt
    let mut mkfs = Command::new("mkfs.ext4");
    mkfs.args(["-q", "-F", "-O", "^has_journal", "-m", "0", "-d"])
        .arg(staging.path())
        .arg(&disk);
    mkfs.arg(format!("{}M", bytes * 5 / 4 / (1 << 20) + 16));
    child::output(
        &mut mkfs,
        "mkfs.ext4 of the input disk",
        "check the free space",
    )?;

    let results = run.join(files::RESULTS);
    let file = std::fs::File::create(&results).on("create", &results)?;
    file.set_len(RESULTS_BYTES).on("size", &results) // sparse
}

/// Unpacks what the host left on its results disk into `run/results`; then the disk isn't needed any more.
pub fn unpack_results(run: &Path) -> Result<()> {
    let archive = run.join(files::RESULTS);
    let folder = run.join("results");
    std::fs::create_dir_all(&folder).on("create", &folder)?;
    let mut tar = Command::new("tar");
    tar.arg("-xf")
        .arg(&archive)
        .arg("-C")
        .arg(&folder)
        .arg("--no-same-owner");
    child::output(
        &mut tar,
        "unpacking the host's results",
        "the archive is kept for a look",
    )?;
    std::fs::remove_file(&archive).on("remove", &archive)
}
