//! The lab's image: a Debian user space, a kernel that has `sched_ext`, and the small initial roots of host and guests.
//!
//! It is built in steps, each into a temporary name that is renamed when the step is complete: what exists under its
//! final name is whole, so an interrupted build goes on where it stopped.

mod cpio;
mod emulators;
mod kernel;
mod recipe;
mod systems;
mod tree;

use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

pub use cpio::Cpio;
pub use emulators::Emulators;
pub use kernel::Series;
pub use recipe::Recipe;
pub use systems::{Architecture, System};
pub use tree::command_of;

use crate::apt::Mirror;
use crate::error::{IoContext, LabError, Result};
use crate::packages;
use crate::progress::Progress;
use crate::setup;
use kernel::Wanted;

/// Where the image keeps what the lab adds to Debian, inside the host's root.
pub const LAB_FOLDER: &str = "usr/lib/ostler-lab";

/// A complete image.
#[derive(Clone, Debug)]
pub struct Image {
    /// Its folder.
    pub folder: PathBuf,
    /// What it was made from.
    pub manifest: Manifest,
    /// Where what boots another kernel than its own is.
    pub other: Option<PathBuf>,
}

/// What an image was made from; written last, so its presence means that the image is complete.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Manifest {
    /// The recipe's hash.
    pub recipe: String,
    /// Release of the kernel, as in `uname -r`.
    pub kernel: String,
    /// What the lab's own QEMU calls itself.
    pub qemu: String,
}

/// The folder of images, runs and state: `target/lab` of the workspace.
#[derive(Clone, Debug)]
pub struct LabDir(PathBuf);

impl LabDir {
    /// Uses this folder.
    pub fn new(path: impl Into<PathBuf>) -> LabDir {
        LabDir(path.into())
    }

    /// `OSTLER_LAB_DIR`, else `target/lab` next to the nearest `Cargo.lock` above the current folder, else the user's cache.
    pub fn detect() -> LabDir {
        if let Some(dir) = std::env::var_os("OSTLER_LAB_DIR") {
            return LabDir(dir.into());
        }
        if let Some(root) = workspace_root() {
            return LabDir(root.join("target/lab"));
        }
        let cache = std::env::var_os("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")))
            .unwrap_or_else(|| "/var/cache".into());
        LabDir(cache.join("ostler-lab"))
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Where runs are kept.
    pub fn runs(&self) -> PathBuf {
        self.0.join("runs")
    }
}

/// The source checkout we are in, if any.
pub fn workspace_root() -> Option<PathBuf> {
    let here = std::env::current_dir().ok()?;
    here.ancestors()
        .find(|dir| dir.join("crates/ostler-lab/Cargo.toml").exists())
        .map(Path::to_owned)
}

impl Image {
    /// The image of the current recipe if it has been built.
    pub fn find(lab: &LabDir) -> Option<Image> {
        let recipe = Recipe::current().hash();
        let folder = lab.path().join(&recipe);
        let text = std::fs::read_to_string(folder.join("image.json")).ok()?;
        let manifest: Manifest = serde_json::from_str(&text).ok()?;
        (manifest.recipe == recipe).then_some(Image {
            folder,
            manifest,
            other: None,
        })
    }

    /// The image of the current recipe, built where it is missing or incomplete.
    pub fn ensure(lab: &LabDir, progress: Progress) -> Result<Image> {
        match Image::find(lab) {
            Some(image) => Ok(image),
            None => Image::build(lab, progress),
        }
    }

    fn build(lab: &LabDir, progress: Progress) -> Result<Image> {
        setup::ensure(packages::LAB, progress)?;
        if !rustix::process::geteuid().is_root() {
            return Err(LabError::NeedsRoot {
                what: "building the lab's image",
                why: "it makes device nodes and files of several owners",
                command: format!("OSTLER_LAB_DIR={} ostler lab image", lab.path().display()),
            });
        }
        let recipe = Recipe::current();
        let hash = recipe.hash();
        let folder = lab.path().join(&hash);
        std::fs::create_dir_all(&folder).on("create", &folder)?;
        let _lock = lock(&folder, progress)?;
        if let Some(image) = Image::find(lab) {
            return Ok(image); // someone else built it while we waited
        }
        let mirror = Mirror::of_this_machine()?;
        progress.note(&format!(
            "building the lab's image {hash} from {}",
            mirror.uri
        ));

        let (major, minor) = recipe.kernel_at_least;
        let wanted = Wanted::From(Series(major, minor));
        let suites = [recipe.kernel_suite];
        let kernel = kernel::fetch(&recipe, wanted, &suites, &mirror, &folder, progress)?;
        tree::bootstrap(&recipe, &mirror, &folder, progress)?;
        tree::initial_roots(&recipe, &folder.join("root"), &folder, progress)?;
        tree::pack(&recipe, &kernel, &folder, progress)?;
        let manifest = Manifest {
            recipe: hash,
            kernel,
            qemu: tree::qemu_version(&folder)?,
        };
        let json = serde_json::to_string_pretty(&manifest).unwrap_or_default();
        let temporary = folder.join("image.json.partial");
        std::fs::write(&temporary, json).on("write", &temporary)?;
        let manifest_path = folder.join("image.json");
        std::fs::rename(&temporary, &manifest_path).on("rename into", &manifest_path)?;
        progress.note(&format!(
            "the image is ready: kernel {}, {}",
            manifest.kernel, manifest.qemu
        ));
        Ok(Image {
            folder,
            manifest,
            other: None,
        })
    }

    /// The same image with the newest kernel of a series, fetched where it is missing. Its user space stays what it is: another kernel needs its modules and
    /// the small initial roots alone, and those come with a run.
    pub fn with_kernel(self, series: Series, progress: Progress) -> Result<Image> {
        let recipe = Recipe::current();
        let folder = self.folder.join("kernels").join(series.to_string());
        std::fs::create_dir_all(&folder).on("create", &folder)?;
        let _lock = lock(&folder, progress)?;
        let mirror = Mirror::of_this_machine()?;
        let suites = [recipe.kernel_suite, recipe.suite];
        let wanted = Wanted::Of(series);
        let kernel = kernel::fetch(&recipe, wanted, &suites, &mirror, &folder, progress)?;
        tree::initial_roots(&recipe, &self.tree(), &folder, progress)?;
        Ok(Image {
            manifest: Manifest {
                kernel,
                ..self.manifest
            },
            other: Some(folder),
            folder: self.folder,
        })
    }

    /// The host's user space, from which the lab's own QEMU is run.
    pub fn tree(&self) -> PathBuf {
        self.folder.join("root")
    }

    /// The host's root disk.
    pub fn disk(&self) -> PathBuf {
        self.folder.join("root.ext4")
    }

    /// The kernel, of host and guests alike.
    pub fn kernel(&self) -> PathBuf {
        self.booted().join("kernel/vmlinuz")
    }

    /// The host's initial root.
    pub fn host_initramfs(&self) -> PathBuf {
        self.booted().join("host.cpio")
    }

    fn booted(&self) -> &Path {
        self.other.as_ref().unwrap_or(&self.folder)
    }

    /// What the host's disk lacks where the kernel isn't the image's own: files, and what they are called where a run brings them.
    pub fn brought(&self) -> Vec<(PathBuf, &'static str)> {
        let Some(other) = &self.other else {
            return Vec::new();
        };
        vec![
            (other.join("kernel/vmlinuz"), "vmlinuz"),
            (other.join("guest.cpio"), "guest.cpio"),
            (other.join("kernel/tree/usr/lib/modules"), "modules"),
        ]
    }
}

/// Keeps two builds out of one folder.
fn lock(folder: &Path, progress: Progress) -> Result<std::fs::File> {
    let path = folder.join("lock");
    let file = std::fs::File::create(&path).on("create", &path)?;
    if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        progress.note("another build of the same image is under way; waiting for it");
        rustix::fs::flock(&file, FlockOperation::LockExclusive).on("lock", &path)?;
    }
    Ok(file)
}

/// Removes what an interrupted step left. Never crosses into another file system, and first makes sure that nothing is
/// mounted below: a bootstrap that was killed may have left the machine's own /dev bound there.
fn remove_leftover(path: &Path) -> Result<()> {
    if std::fs::symlink_metadata(path).is_err() {
        return Ok(());
    }
    let mounts = std::fs::read_to_string("/proc/self/mounts").on("read", "/proc/self/mounts")?;
    let prefix = path.to_string_lossy().into_owned();
    let mut below: Vec<&str> = mounts
        .lines()
        .filter_map(|line| line.split(' ').nth(1))
        .filter(|target| target.starts_with(&prefix))
        .collect();
    below.reverse();
    for target in below {
        rustix::mount::unmount(target, rustix::mount::UnmountFlags::DETACH)
            .on("unmount", target)?;
    }
    if path.is_dir() {
        std::fs::remove_dir_all(path).on("remove", path)
    } else {
        std::fs::remove_file(path).on("remove", path)
    }
}

/// Runs one step: `make` fills `NAME.partial`, which is renamed to `NAME`. A step whose result exists is skipped.
fn step(
    folder: &Path,
    name: &str,
    what: &str,
    progress: Progress,
    make: impl FnOnce(&Path, &crate::progress::Step) -> Result<()>,
) -> Result<PathBuf> {
    let complete = folder.join(name);
    if complete.exists() {
        return Ok(complete);
    }
    let partial = folder.join(format!("{name}.partial"));
    remove_leftover(&partial)?;
    let shown = progress.step(what);
    make(&partial, &shown)?;
    std::fs::rename(&partial, &complete).on("rename into", &complete)?;
    shown.done("");
    Ok(complete)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupted_step_is_done_again_and_a_complete_one_is_not() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let make = |made: &mut Vec<&str>, who, whole| {
            made.push(who);
            move |partial: &Path, _: &crate::progress::Step| {
                assert!(!partial.exists(), "leftovers are cleared first");
                std::fs::create_dir(partial).expect("the step's folder");
                std::fs::write(partial.join("half"), "").expect("a file");
                if whole {
                    Ok(())
                } else {
                    Err(LabError::Interrupted)
                }
            }
        };
        let mut ran = Vec::new();
        let first = make(&mut ran, "first", false);
        assert!(step(dir.path(), "x", "x", Progress::Silent, first).is_err());
        assert!(dir.path().join("x.partial/half").exists());
        assert!(!dir.path().join("x").exists());
        let second = make(&mut ran, "second", true);
        step(dir.path(), "x", "x", Progress::Silent, second).expect("the step is done again");
        step(dir.path(), "x", "x", Progress::Silent, |_, _| {
            panic!("it is complete")
        })
        .expect("skipped");
        assert!(!dir.path().join("x.partial").exists());
    }
}
