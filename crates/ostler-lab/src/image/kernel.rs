//! The kernel: fetched from the backports suite with apt, but unpacked by hand. Installing the package would drag an
//! initramfs generator into the image and run it for every build.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Recipe, step};
use crate::apt::Mirror;
use crate::child;
use crate::error::{IoContext, LabError, Result};
use crate::progress::Progress;

/// Kernel packages of one release: the image itself, its modules, and the lists that `depmod` reads.
const PARTS: [&str; 3] = ["linux-binary-unsigned-", "linux-modules-", "linux-base-"];

/// Fetches the newest fitting kernel into `folder/kernel`; returns its release.
pub fn fetch(
    recipe: &Recipe,
    mirror: &Mirror,
    folder: &Path,
    progress: Progress,
) -> Result<String> {
    let kernel = step(
        folder,
        "kernel",
        "fetch the kernel",
        progress,
        |partial, shown| {
            std::fs::create_dir_all(partial).on("create", partial)?;
            let line = mirror.line(recipe.kernel_suite);
            let apt = PrivateApt::new(&partial.join("apt"), &line, None)?;
            let remedy = "check that this machine reaches its Debian mirror, then run the same command again: it goes on from here";
            child::run(
                apt.get().arg("update"),
                "apt-get update for the kernel's suite",
                remedy,
                shown,
            )?;
            let names = child::output(
                apt.cache().args(["pkgnames", PARTS[0]]),
                "apt-cache pkgnames",
                remedy,
            )?;
            let release = newest(&names, recipe).ok_or_else(|| LabError::NoKernel {
                suite: recipe.kernel_suite.to_owned(),
                mirror: mirror.uri.clone(),
                wanted: format!("{}.{}", recipe.kernel_at_least.0, recipe.kernel_at_least.1),
                found: if names.trim().is_empty() {
                    "none at all".to_owned()
                } else {
                    names.trim().replace('\n', ", ")
                },
            })?;
            let debs = partial.join("debs");
            std::fs::create_dir_all(&debs).on("create", &debs)?;
            let mut download = apt.get();
            // apt drops to its own user for downloads and would warn that this user can't write here.
            download
                .args(["-o", "APT::Sandbox::User=root", "download"])
                .current_dir(&debs);
            download.args(PARTS.map(|part| format!("{part}{release}")));
            child::run(
                &mut download,
                &format!("download of kernel {release}"),
                remedy,
                shown,
            )?;
            for deb in std::fs::read_dir(&debs).on("list", &debs)?.flatten() {
                let mut unpack = Command::new("dpkg-deb");
                unpack
                    .arg("--extract")
                    .arg(deb.path())
                    .arg(partial.join("tree"));
                child::run(
                    &mut unpack,
                    "unpacking the kernel",
                    "remove the folder named above and try again",
                    shown,
                )?;
            }
            let modules = partial.join("tree/usr/lib/modules").join(&release);
            let vmlinuz = modules.join("vmlinuz.unsigned");
            if !vmlinuz.exists() {
                return Err(LabError::Incomplete {
                    what: "vmlinuz.unsigned".to_owned(),
                    tree: modules,
                });
            }
            std::fs::rename(&vmlinuz, partial.join("vmlinuz")).on("move", &vmlinuz)?;
            for unwanted in recipe.unwanted_modules {
                // A folder that this kernel doesn't have is as good as removed.
                let _ = std::fs::remove_dir_all(modules.join("kernel").join(unwanted));
            }
            std::fs::write(partial.join("release"), &release)
                .on("write", partial.join("release"))?;
            for done in [debs, partial.join("apt")] {
                std::fs::remove_dir_all(&done).on("remove", &done)?;
            }
            Ok(())
        },
    )?;
    std::fs::read_to_string(kernel.join("release")).on("read", kernel.join("release"))
}

/// apt on the machine we run on, but with lists and sources of its own: the machine's are neither read nor changed.
pub(super) struct PrivateApt {
    config: PathBuf,
}

impl PrivateApt {
    /// With one source, for this machine's architecture or another.
    pub(super) fn new(folder: &Path, line: &str, architecture: Option<&str>) -> Result<PrivateApt> {
        for sub in ["lists/partial", "cache/archives/partial"] {
            let path = folder.join(sub);
            std::fs::create_dir_all(&path).on("create", &path)?;
        }
        let sources = folder.join("sources.list");
        std::fs::write(&sources, line).on("write", &sources)?;
        let config = folder.join("apt.conf");
        // Dir::Etc::SourceParts must be a folder that is empty; /dev/null does for both.
        let text = format!(
            "Dir::State \"{0}\";\nDir::State::status \"/dev/null\";\nDir::Cache \"{0}/cache\";\n\
             Dir::Etc::SourceList \"{0}/sources.list\";\nDir::Etc::SourceParts \"/dev/null\";\n\
             Acquire::Languages \"none\";\nAPT::Sandbox::User \"root\";\n{1}",
            folder.display(),
            architecture.map_or_else(String::new, |name| format!(
                "APT::Architecture \"{name}\";\nAPT::Architectures \"{name}\";\n"
            ))
        );
        std::fs::write(&config, text).on("write", &config)?;
        Ok(PrivateApt { config })
    }

    pub(super) fn get(&self) -> Command {
        let mut command = Command::new("apt-get");
        command.env("APT_CONFIG", &self.config).arg("-q");
        command
    }

    pub(super) fn cache(&self) -> Command {
        let mut command = Command::new("apt-cache");
        command.env("APT_CONFIG", &self.config);
        command
    }
}

/// The newest release among package names.
fn newest(names: &str, recipe: &Recipe) -> Option<String> {
    names
        .lines()
        .filter_map(|name| {
            let release = name.strip_prefix(PARTS[0])?;
            let version = release.strip_suffix(recipe.kernel_suffix)?;
            let numbers: Option<Vec<u32>> = version.split('.').map(|n| n.parse().ok()).collect();
            Some((numbers?, release.to_owned()))
        })
        .filter(|(numbers, _)| {
            numbers.as_slice() >= [recipe.kernel_at_least.0, recipe.kernel_at_least.1].as_slice()
        })
        .max()
        .map(|(_, release)| release)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_generic_kernel_is_chosen() {
        let names = "linux-binary-unsigned-7.3.4+deb13-cloud-amd64\nlinux-binary-unsigned-7.3.4+deb13-amd64\n\
                     linux-binary-unsigned-7.3.12+deb13-amd64\nlinux-binary-unsigned-6.12.90+deb13-amd64\n\
                     linux-binary-unsigned-7.3.13+deb13-rt-amd64\nlinux-binary-unsigned-7.10~rc1+deb13-amd64\n";
        let recipe = Recipe::current();
        assert_eq!(
            newest(names, &recipe).as_deref(),
            Some("7.3.12+deb13-amd64")
        );
        assert_eq!(
            newest("linux-binary-unsigned-6.12.90+deb13-amd64\n", &recipe),
            None
        );
    }
}
