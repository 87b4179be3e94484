//! Running other programs, and where things are.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, bail};
use ostler_lab::error::LabError;
use ostler_lab::image::{Architecture, Emulators, LabDir, System};
use ostler_lab::progress::Progress;
use ostler_lab::{packages, setup};

/// The root of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the repository")
}

/// Where build outputs go.
pub fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// What cargo is told to have all that there is.
pub const ALL: [&str; 3] = ["--workspace", "--features", "ostler/libvirt"];

/// The cargo that runs us.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Runs a command to its end, showing what it prints; an error names it.
pub fn run(command: &mut Command) -> Result<()> {
    let shown = shown(command);
    let status = command
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("could not start `{shown}`"))?;
    if !status.success() {
        bail!("`{shown}` ended with {status}");
    }
    Ok(())
}

/// Runs a command to its end and returns what it printed; an error names it and shows its messages.
pub fn output(command: &mut Command) -> Result<String> {
    let shown = shown(command);
    let out = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("could not start `{shown}`"))?;
    if !out.status.success() {
        bail!(
            "`{shown}` ended with {}:\n{}",
            out.status,
            String::from_utf8_lossy(&out.stderr)
        );
    }
    String::from_utf8(out.stdout).with_context(|| format!("`{shown}` printed no text"))
}

/// The command as one would type it.
pub fn shown(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Installs what building needs, or says what an administrator must. Without Debian's package manager the packages have
/// names of another distribution, so it's the user's to install them: the build itself says what it misses.
pub fn setup_for_building() -> Result<()> {
    match setup::ensure_lists(&[packages::BUILD]) {
        Err(LabError::Start { program, source })
            if program == "dpkg-query" && source.kind() == std::io::ErrorKind::NotFound =>
        {
            eprintln!(
                "no dpkg here; on Debian these would be installed: {}",
                packages::BUILD.join(" ")
            );
            Ok(())
        }
        done => Ok(done?),
    }
}

/// Installs what building and the lab need, or says what an administrator must.
pub fn setup() -> Result<()> {
    setup::ensure_lists(&[packages::BUILD, packages::LAB])?;
    Ok(())
}

/// The same, with what the tests hold ostler against.
pub fn setup_for_tests() -> Result<()> {
    setup::ensure_lists(&[packages::BUILD, packages::LAB, packages::TEST])?;
    Ok(())
}

/// What simulated machines run in and boot.
pub fn machines_for_tests() -> Result<()> {
    let (lab, progress) = (LabDir::detect(), Progress::detect());
    Emulators::ensure(&lab, progress)?;
    for architecture in Architecture::ALL {
        System::ensure(&lab, architecture, progress)?;
    }
    Ok(())
}

/// Does jobs, as many at a time as there are cores; what came of each, in their order.
pub fn side_by_side<'j, J: Sync, R: Send>(
    jobs: &'j [J],
    work: impl Fn(&'j J) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let lane = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            match jobs.get(at) {
                Some(job) => done.push((at, work(job))),
                None => return done,
            }
        }
    };
    let at_a_time = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let mut all: Vec<_> = std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..at_a_time.min(jobs.len()))
            .map(|_| scope.spawn(lane))
            .collect();
        let ended = lanes.into_iter().flat_map(|lane| {
            lane.join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        ended.collect()
    });
    all.sort_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, came)| came).collect()
}

/// Announces a step.
pub fn step(what: &str) {
    println!("\n==> {what}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_of_jobs_is_told_in_their_order_and_each_is_done_once() {
        let jobs: Vec<u32> = (0..100).collect();
        let done = AtomicUsize::new(0);
        let came = side_by_side(&jobs, |job| {
            done.fetch_add(1, Ordering::Relaxed);
            2 * job
        });
        assert_eq!(came, jobs.iter().map(|job| 2 * job).collect::<Vec<_>>());
        assert_eq!(done.into_inner(), 100);
        assert!(side_by_side(&[] as &[u32], |job| *job).is_empty());
    }
}
