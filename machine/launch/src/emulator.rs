//! The QEMUs that machines run in, and the plugin that keeps their time.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::LaunchError;
use crate::world::Isa;

/// Debian's dynamic loader and libraries, as paths in a tree.
const LOADER: &str = "usr/lib64/ld-linux-x86-64.so.2";
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
/// Where Debian's packages put firmware.
const FIRMWARE: &[&str] = &["usr/share/qemu", "usr/share/seabios"];

/// How a QEMU is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emulator {
    /// The QEMU itself.
    pub program: PathBuf,
    /// The words before ours: the program, or a loader and how it is to load the program.
    pub command: Vec<OsString>,
    /// Folders with its firmware.
    pub firmware: Vec<PathBuf>,
}

impl Isa {
    /// QEMU's name for a machine of it.
    pub fn program(self) -> &'static str {
        match self {
            Isa::X86_64 => "qemu-system-x86_64",
            Isa::Aarch64 => "qemu-system-aarch64",
        }
    }
}

impl Emulator {
    /// From a tree that Debian was unpacked into, by the tree's own loader and libraries, whatever this machine has.
    pub fn in_tree(root: &Path, isa: Isa) -> Emulator {
        let program = root.join("usr/bin").join(isa.program());
        let command = [
            root.join(LOADER).into_os_string(),
            "--inhibit-cache".into(),
            "--library-path".into(),
            root.join(LIBRARIES).into_os_string(),
            program.clone().into_os_string(),
        ];
        Emulator {
            program,
            command: command.into(),
            firmware: FIRMWARE.iter().map(|folder| root.join(folder)).collect(),
        }
    }

    /// This machine's own.
    pub fn installed(isa: Isa) -> Emulator {
        let root = Path::new("/");
        let program = root.join("usr/bin").join(isa.program());
        Emulator {
            command: vec![program.clone().into_os_string()],
            program,
            firmware: FIRMWARE.iter().map(|folder| root.join(folder)).collect(),
        }
    }

    /// The command to which QEMU's arguments are added.
    pub fn command(&self) -> Command {
        let mut words = self.command.iter();
        let mut command = Command::new(words.next().map_or_else(
            || self.program.as_os_str().to_owned(),
            std::borrow::ToOwned::to_owned,
        ));
        command.args(words);
        // A preload of this machine's must not leak into another libc.
        command
            .env_remove("LD_LIBRARY_PATH")
            .env_remove("LD_PRELOAD");
        command
    }

    /// What it calls itself; an error if it isn't there, or doesn't run.
    pub fn version(&self) -> std::io::Result<String> {
        let output = self
            .command()
            .arg("--version")
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        text.lines()
            .next()
            .filter(|_| output.status.success())
            .map(str::to_owned)
            .ok_or_else(|| std::io::Error::other("it doesn't tell its version"))
    }
}

/// Whether the plugin knows a QEMU by what it calls itself. The plugin looks more closely when it is loaded.
pub fn is_known(version: &str) -> bool {
    version.contains(" version 10.0.") && version.contains("Debian")
}

/// All that machines run in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emulators {
    /// For x86-64.
    pub x86_64: Emulator,
    /// For AArch64.
    pub aarch64: Emulator,
    /// The library that `machine/time` builds.
    pub plugin: PathBuf,
}

impl Emulators {
    /// From a tree.
    pub fn in_tree(root: &Path, plugin: PathBuf) -> Emulators {
        Emulators {
            x86_64: Emulator::in_tree(root, Isa::X86_64),
            aarch64: Emulator::in_tree(root, Isa::Aarch64),
            plugin,
        }
    }

    /// This machine's own.
    pub fn installed(plugin: PathBuf) -> Emulators {
        Emulators {
            x86_64: Emulator::installed(Isa::X86_64),
            aarch64: Emulator::installed(Isa::Aarch64),
            plugin,
        }
    }

    /// The one for an instruction set.
    pub fn of(&self, isa: Isa) -> &Emulator {
        match isa {
            Isa::X86_64 => &self.x86_64,
            Isa::Aarch64 => &self.aarch64,
        }
    }

    /// Whether all are there and known.
    pub fn are_known(&self) -> bool {
        [&self.x86_64, &self.aarch64]
            .into_iter()
            .all(|emulator| emulator.version().is_ok_and(|version| is_known(&version)))
    }
}

/// Finds the version of the QEMU for a machine, or says why it won't do.
pub fn check(machine: &str, emulator: &Emulator) -> Result<(), LaunchError> {
    let found = emulator.version().map_err(|_| LaunchError::NoEmulator {
        machine: machine.to_owned(),
        program: emulator.program.display().to_string(),
    })?;
    if is_known(&found) {
        return Ok(());
    }
    Err(LaunchError::Version {
        machine: machine.to_owned(),
        found,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debians_builds_of_10_0_are_known_and_no_others() {
        assert!(is_known(
            "QEMU emulator version 10.0.13 (Debian 1:10.0.13+ds-0+deb13u1)"
        ));
        assert!(is_known(
            "QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2~bpo12+1)"
        ));
        assert!(!is_known(
            "QEMU emulator version 7.2.19 (Debian 1:7.2+dfsg-7)"
        ));
        assert!(!is_known("QEMU emulator version 10.0.2"));
        assert!(!is_known("QEMU emulator version 110.0.2 (Debian)"));
    }
}
