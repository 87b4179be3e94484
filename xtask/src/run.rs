//! Running other programs, and where things are.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

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

/// Announces a step.
pub fn step(what: &str) {
    println!("\n==> {what}");
}
