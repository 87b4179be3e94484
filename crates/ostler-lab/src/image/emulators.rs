//! The QEMUs that simulated machines run in: Debian's, for both instruction sets, in a tree of their own.
//!
//! The plugin that keeps time knows the inside of certain builds only, so what this machine happens to have installed won't do. The tree
//! has nothing but QEMU, its firmware and what they are linked with, unpacked and not installed: nothing in it is ever run
//! but those two programs, by the tree's own loader.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Serialize;
use sha2::{Digest, Sha256};

use super::tree::proxies;
use super::{LabDir, Recipe, lock, step};
use crate::apt::Mirror;
use crate::child;
use crate::error::{IoContext, LabError, Result};
use crate::packages;
use crate::progress::Progress;
use crate::setup;

/// Everything that decides what is in the tree.
#[derive(Serialize)]
struct Contents {
    suite: &'static str,
    packages: &'static [&'static str],
}

/// The tree with the QEMUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emulators {
    root: PathBuf,
}

impl Emulators {
    /// The tree, if it has been made.
    pub fn find(lab: &LabDir) -> Option<Emulators> {
        let root = folder(lab).join("root");
        root.is_dir().then_some(Emulators { root })
    }

    /// The tree, made where it is missing.
    pub fn ensure(lab: &LabDir, progress: Progress) -> Result<Emulators> {
        if let Some(found) = Emulators::find(lab) {
            return Ok(found);
        }
        setup::ensure(packages::LAB, progress)?;
        let folder = folder(lab);
        if !rustix::process::geteuid().is_root() {
            return Err(LabError::NeedsRoot {
                what: "unpacking Debian's QEMUs",
                why: "apt keeps files as the users that packages name",
                command: format!(
                    "OSTLER_LAB_DIR={} ostler machine setup",
                    lab.path().display()
                ),
            });
        }
        std::fs::create_dir_all(&folder).on("create", &folder)?;
        let _lock = lock(&folder, progress)?;
        let mirror = Mirror::of_this_machine()?;
        let root = step(
            &folder,
            "root",
            "unpack Debian's QEMUs for simulated machines",
            progress,
            |partial, shown| {
                child::run(
                    &mut extract(&mirror, partial),
                    "mmdebstrap",
                    "check that this machine reaches its Debian mirror, then run the same command again",
                    shown,
                )
            },
        )?;
        Ok(Emulators { root })
    }

    /// Where it is.
    pub fn root(&self) -> &Path {
        &self.root
    }
}

fn contents() -> Contents {
    Contents {
        suite: Recipe::current().suite,
        packages: packages::EMULATORS,
    }
}

/// The tree's folder: named by its contents, so that a change makes another.
fn folder(lab: &LabDir) -> PathBuf {
    // A plain struct of strings always serialises.
    let json = serde_json::to_vec(&contents()).unwrap_or_default();
    let digest = Sha256::digest(&json);
    let short = u64::from_be_bytes(digest[..8].try_into().unwrap_or_default());
    lab.path().join(format!("emulators-{:012x}", short >> 16))
}

fn extract(mirror: &Mirror, into: &Path) -> Command {
    let contents = contents();
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .arg("mmdebstrap")
        .args(["--mode=root", "--variant=extract"])
        .arg(format!("--include={}", contents.packages.join(",")))
        .args([
            "--aptopt=Acquire::Languages \"none\"",
            "--aptopt=APT::Install-Recommends \"false\"",
        ])
        .args(
            ["man", "doc", "locale", "info"]
                .map(|d| format!("--dpkgopt=path-exclude=/usr/share/{d}/*")),
        )
        .args(proxies().iter().map(|option| format!("--aptopt={option}")))
        .arg(contents.suite)
        .arg(into)
        .arg(mirror.line(contents.suite));
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_that_isnt_there_isnt_found_and_one_that_is_is() {
        let dir = tempfile::tempdir().expect("a folder");
        let lab = LabDir::new(dir.path());
        assert_eq!(Emulators::find(&lab), None);
        let root = folder(&lab).join("root");
        std::fs::create_dir_all(&root).expect("a folder");
        assert_eq!(Emulators::find(&lab).expect("it is there").root(), root);
    }
}
