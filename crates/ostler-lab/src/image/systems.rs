//! The smallest Debian that a simulated machine can boot, for each architecture: a kernel as it comes, and a busybox to put into an initial
//! root.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::kernel::PrivateApt;
use super::{Cpio, LabDir, Recipe, lock, step};
use crate::apt::Mirror;
use crate::child;
use crate::error::{IoContext, LabError, Result};
use crate::progress::Progress;

/// An architecture, by Debian's name for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// x86-64.
    Amd64,
    /// AArch64.
    Arm64,
}

impl Architecture {
    /// Both.
    pub const ALL: [Architecture; 2] = [Architecture::Amd64, Architecture::Arm64];

    fn name(self) -> &'static str {
        match self {
            Architecture::Amd64 => "amd64",
            Architecture::Arm64 => "arm64",
        }
    }
}

/// A kernel and a busybox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct System {
    folder: PathBuf,
}

const REMEDY: &str =
    "check that this machine reaches its Debian mirror, then run the same command again";

impl System {
    /// What has been fetched for an architecture.
    pub fn find(lab: &LabDir, architecture: Architecture) -> Option<System> {
        let folder = parent(lab).join(architecture.name());
        folder.is_dir().then_some(System { folder })
    }

    /// The same, fetched where it is missing.
    pub fn ensure(lab: &LabDir, architecture: Architecture, progress: Progress) -> Result<System> {
        if let Some(found) = System::find(lab, architecture) {
            return Ok(found);
        }
        let parent = parent(lab);
        std::fs::create_dir_all(&parent).on("create", &parent)?;
        let _lock = lock(&parent, progress)?;
        let mirror = Mirror::of_this_machine()?;
        let folder = step(
            &parent,
            architecture.name(),
            "fetch a kernel for simulated machines",
            progress,
            |partial, shown| {
                std::fs::create_dir_all(partial).on("create", partial)?;
                let line = mirror.line(Recipe::current().suite);
                let name = architecture.name();
                let apt = PrivateApt::new(&partial.join("apt"), &line, Some(name))?;
                child::run(apt.get().arg("update"), "apt-get update", REMEDY, shown)?;
                let meta = format!("linux-image-cloud-{name}");
                let depends = child::output(
                    apt.cache().args(["depends", &meta]),
                    "apt-cache depends",
                    REMEDY,
                )?;
                let kernel = depended(&depends).ok_or_else(|| LabError::Incomplete {
                    what: format!("a dependency of {meta} on a kernel"),
                    tree: partial.join("apt"),
                })?;
                let debs = partial.join("debs");
                std::fs::create_dir_all(&debs).on("create", &debs)?;
                child::run(
                    apt.get()
                        .args(["-o", "APT::Sandbox::User=root", "download"])
                        .args([kernel, "busybox-static"])
                        .current_dir(&debs),
                    "download of a kernel",
                    REMEDY,
                    shown,
                )?;
                unpack(&debs, partial, shown)?;
                for done in [debs, partial.join("apt")] {
                    std::fs::remove_dir_all(&done).on("remove", &done)?;
                }
                Ok(())
            },
        )?;
        Ok(System { folder })
    }

    /// The kernel, as it comes.
    pub fn kernel(&self) -> PathBuf {
        self.folder.join("vmlinuz")
    }

    /// Writes an initial root whose first program is a script for busybox's shell, at /bin/busybox.
    pub fn initial_root(&self, script: &str, to: &Path) -> Result<()> {
        let mut cpio = Cpio::default();
        for folder in ["bin", "dev", "proc", "sys"] {
            cpio.folder(folder);
        }
        cpio.character_device("dev/console", 5, 1);
        cpio.copy("bin/busybox", 0o755, &self.folder.join("busybox"))?;
        cpio.symlink("bin/sh", "busybox");
        cpio.file("init", 0o755, script.as_bytes());
        cpio.write(to)
    }
}

fn parent(lab: &LabDir) -> PathBuf {
    lab.path()
        .join(format!("systems-{}", Recipe::current().suite))
}

/// Takes the two files out of the packages in a folder.
fn unpack(debs: &Path, into: &Path, shown: &crate::progress::Step) -> Result<()> {
    let tree = debs.join("tree");
    for deb in std::fs::read_dir(debs).on("list", debs)?.flatten() {
        let mut unpack = Command::new("dpkg-deb");
        unpack.arg("--extract").arg(deb.path()).arg(&tree);
        child::run(&mut unpack, "unpacking a kernel", REMEDY, shown)?;
    }
    let boot = tree.join("boot");
    let kernel = std::fs::read_dir(&boot)
        .on("list", &boot)?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| {
            let name = path.file_name().unwrap_or_default();
            name.as_encoded_bytes().starts_with(b"vmlinuz-")
        })
        .ok_or(LabError::Incomplete {
            what: "vmlinuz".to_owned(),
            tree: boot,
        })?;
    for (from, to) in [
        (kernel, "vmlinuz"),
        (tree.join("usr/bin/busybox"), "busybox"),
    ] {
        std::fs::rename(&from, into.join(to)).on("move", &from)?;
    }
    Ok(())
}

/// The kernel that a package for "the newest one" depends on.
fn depended(printed: &str) -> Option<&str> {
    printed
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|name| name.starts_with("linux-image-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_what_the_newest_depends_on() {
        let printed = "linux-image-cloud-arm64\n  Depends: <awk>\n  Depends: linux-image-6.12.9+deb13-cloud-arm64\n  Suggests: x\n";
        assert_eq!(
            depended(printed),
            Some("linux-image-6.12.9+deb13-cloud-arm64")
        );
        assert_eq!(depended("linux-image-cloud-arm64\n"), None);
    }
}
