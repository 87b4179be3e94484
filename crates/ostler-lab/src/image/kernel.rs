//! The kernel: fetched with apt, but unpacked by hand. Installing the package would drag an initramfs generator into the image and run it for
//! every build.
//!
//! Debian has cut a release's kernel into packages since 6.19; before that, one package has it whole. Of superseded releases the mirror may have some
//! parts only, and those are as good as not there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Recipe, step};
use crate::apt::Mirror;
use crate::child;
use crate::error::{IoContext, LabError, Result};
use crate::progress::Progress;

/// Kernel packages of one release: the image itself, its modules, and the lists that `depmod` reads.
const PARTS: [&str; 3] = ["linux-binary-unsigned-", "linux-modules-", "linux-base-"];
/// The package that has all of it, where there is none that has the image alone.
const WHOLE: &str = "linux-image-";
const IMAGE_ALONE: &str = "linux-binary-";

/// Which kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The newest, from this series on.
    From(Series),
    /// The newest of this series.
    Of(Series),
}

/// A series of kernels: 7.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Series(pub u32, pub u32);

impl std::str::FromStr for Series {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Series, String> {
        let numbers = text.split_once('.');
        numbers
            .and_then(|(major, minor)| Some(Series(major.parse().ok()?, minor.parse().ok()?)))
            .ok_or_else(|| format!("{text} is no series of kernels; write one such as 6.18"))
    }
}

impl std::fmt::Display for Series {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

impl std::fmt::Display for Wanted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Wanted::From(series) => write!(f, "{series} or later"),
            Wanted::Of(series) => write!(f, "{series}"),
        }
    }
}

/// Fetches the newest fitting kernel that these suites have into `folder/kernel`; returns its release.
pub fn fetch(
    recipe: &Recipe,
    wanted: Wanted,
    suites: &[&str],
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
            let lines: String = suites
                .iter()
                .map(|suite| mirror.line(suite) + "\n")
                .collect();
            let apt = PrivateApt::new(&partial.join("apt"), &lines, None)?;
            let remedy = "check that this machine reaches its Debian mirror, then run the same command again: it goes on from here";
            child::run(
                apt.get().arg("update"),
                "apt-get update for the kernel's suites",
                remedy,
                shown,
            )?;
            let names = child::output(
                apt.cache().args(["pkgnames", "linux-"]),
                "apt-cache pkgnames",
                remedy,
            )?;
            let all = releases(&names, recipe.kernel_suffix);
            let newest = all.iter().filter(|release| release.is(wanted)).max();
            let Release {
                name: release,
                packages,
                ..
            } = newest.ok_or_else(|| LabError::NoKernel {
                suites: suites.join(" or "),
                mirror: mirror.uri.clone(),
                wanted: wanted.to_string(),
                found: if all.is_empty() {
                    "none at all".to_owned()
                } else {
                    let names: Vec<_> = all.iter().map(|release| release.name.as_str()).collect();
                    names.join(", ")
                },
            })?;
            let debs = partial.join("debs");
            std::fs::create_dir_all(&debs).on("create", &debs)?;
            let mut download = apt.get();
            // apt drops to its own user for downloads and would warn that this user can't write here.
            download
                .args(["-o", "APT::Sandbox::User=root", "download"])
                .current_dir(&debs);
            download.args(packages);
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
            let tree = partial.join("tree");
            let modules = tree.join("usr/lib/modules").join(release);
            let places = [
                modules.join("vmlinuz.unsigned"),
                tree.join(format!("boot/vmlinuz-{release}")),
            ];
            let Some(vmlinuz) = places.into_iter().find(|place| place.exists()) else {
                return Err(LabError::Incomplete {
                    what: format!("vmlinuz of {release}"),
                    tree,
                });
            };
            std::fs::rename(&vmlinuz, partial.join("vmlinuz")).on("move", &vmlinuz)?;
            // Where packages keep it since they are several: what a kernel brings along are its modules.
            let config = tree.join(format!("boot/config-{release}"));
            if config.exists() {
                std::fs::rename(&config, modules.join("config")).on("move", &config)?;
            }
            for unwanted in recipe.unwanted_modules {
                // A folder that this kernel doesn't have is as good as removed.
                let _ = std::fs::remove_dir_all(modules.join("kernel").join(unwanted));
            }
            std::fs::write(partial.join("release"), release)
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

/// A release that can be had whole. Ordered by its numbers.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Release {
    numbers: Vec<u32>,
    name: String,
    packages: Vec<String>,
}

impl Release {
    fn is(&self, wanted: Wanted) -> bool {
        match (wanted, &self.numbers[..]) {
            (Wanted::From(series), numbers) => numbers >= &[series.0, series.1][..],
            (Wanted::Of(series), numbers) => numbers.starts_with(&[series.0, series.1]),
        }
    }
}

/// The releases of which all packages that are needed are among these.
fn releases(names: &str, suffix: &str) -> Vec<Release> {
    let known: BTreeSet<&str> = names.lines().collect();
    let mut releases: Vec<Release> = known
        .iter()
        .filter_map(|name| {
            let release = name.strip_prefix(WHOLE)?;
            let version = release.strip_suffix(suffix)?;
            let numbers: Option<Vec<u32>> = version.split('.').map(|n| n.parse().ok()).collect();
            let parts = PARTS.map(|part| format!("{part}{release}"));
            let packages = if parts.iter().all(|part| known.contains(part.as_str())) {
                parts.to_vec()
            } else if known.contains(format!("{IMAGE_ALONE}{release}").as_str()) {
                return None;
            } else {
                vec![(*name).to_owned()]
            };
            Some(Release {
                numbers: numbers?,
                name: release.to_owned(),
                packages,
            })
        })
        .collect();
    releases.sort();
    releases
}

#[cfg(test)]
mod tests {
    use super::*;

    fn newest(names: &str, wanted: Wanted) -> Option<Release> {
        let all = releases(names, Recipe::current().kernel_suffix);
        all.into_iter().filter(|release| release.is(wanted)).max()
    }

    /// All packages of a release that is cut up.
    fn parts(release: &str) -> String {
        let all = PARTS.into_iter().chain([WHOLE, IMAGE_ALONE]);
        let all: Vec<_> = all.map(|part| format!("{part}{release}\n")).collect();
        all.concat()
    }

    #[test]
    fn the_newest_generic_kernel_is_chosen() {
        let mut names = String::new();
        for release in [
            "7.3.4+deb13-cloud-amd64",
            "7.3.4+deb13-amd64",
            "7.3.12+deb13-amd64",
            "7.3.13+deb13-rt-amd64",
            "7.10~rc1+deb13-amd64",
        ] {
            names += &parts(release);
        }
        names += "linux-image-6.12.90+deb13-amd64\n";
        let release = newest(&names, Wanted::From(Series(7, 3))).expect("there are two");
        assert_eq!(release.name, "7.3.12+deb13-amd64");
        assert_eq!(release.packages.len(), PARTS.len());
        assert_eq!(newest(&names, Wanted::From(Series(7, 4))), None);
    }

    #[test]
    fn a_series_is_had_whole_or_not_at_all() {
        let mut names = parts("7.2.12+deb13-amd64") + &parts("7.2.9+deb13-amd64");
        // Superseded: the modules are gone. Before packages were cut up, one had all.
        names += "linux-image-7.1.13+deb13-amd64\nlinux-binary-7.1.13+deb13-amd64\n\
                  linux-image-6.18.9+deb13-amd64\nlinux-image-6.18.15+deb13-amd64\n";
        let of = |major, minor| newest(&names, Wanted::Of(Series(major, minor)));
        assert_eq!(of(7, 2).expect("two").name, "7.2.12+deb13-amd64");
        assert_eq!(of(7, 1), None);
        let whole = of(6, 18).expect("two");
        assert_eq!(whole.packages, ["linux-image-6.18.15+deb13-amd64"]);
    }

    #[test]
    fn a_series_is_read_as_it_is_written() {
        assert_eq!("6.18".parse(), Ok(Series(6, 18)));
        for wrong in ["6", "6.18.15", "trixie", ""] {
            assert!(wrong.parse::<Series>().is_err(), "{wrong}");
        }
        assert_eq!(Wanted::From(Series(7, 3)).to_string(), "7.3 or later");
    }
}
