//! The programs that go onto the input disk. They are linked statically where they can be, so that they run on the
//! emulated host's Debian and in guests, whatever machine built them.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::child;
use crate::error::{IoContext, LabError, Result};
use crate::image::workspace_root;
use crate::progress::{Progress, Step};
use crate::share::TESTS;

/// Target triple of static builds. Naming it keeps `RUSTFLAGS` away from build scripts and procedural macros.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The plugin's file name.
const PLUGIN: &str = "libostler_machine_time.so";

/// The tests that need cpusets, RSS tables or BPF, which the machine that builds them may lack, as cargo knows them. The binary, of which nothing here is tested, has libraries be built with what it
/// asks of them, as they are for its own build: without it cargo builds nearly all of them a second time, libbpf and SQLite among them.
const TESTED: &[&str] = &[
    "--package",
    "ostler",
    "--package",
    "ostler-act",
    "--test",
    "kernel",
    "--test",
    "boost",
    "--package",
    "ostler-bpf",
    "--test",
    "verifier",
    "--package",
    "ostler-sense",
    "--lib",
    "--test",
    "host_busy",
];

/// Programs for the input disk; all but the first may be left out, and then what needs them can't be done.
#[derive(Clone, Debug)]
pub struct Binaries {
    /// `ostler-lab-inner`: the emulated host's first program.
    pub inner: PathBuf,
    /// `ostler`: the steward.
    pub ostler: Option<PathBuf>,
    /// `ostler-load`: the load generator.
    pub load: Option<PathBuf>,
    /// `ostler-guest`: the agent in guests.
    pub guest: Option<PathBuf>,
    /// `ostler-guest-evil`: agents that misbehave, for fault tests.
    pub evil: Option<PathBuf>,
    /// The plugin that gives the emulated host a time of its own. It isn't for the input disk: the host's QEMU loads it.
    pub plugin: Option<PathBuf>,
    /// Test programs for the emulated host's kernel.
    pub tests: Vec<PathBuf>,
    /// Schedulers for its kernel, by others.
    pub schedulers: Vec<PathBuf>,
}

impl Binaries {
    /// Takes those that are in a folder.
    pub fn in_folder(folder: &Path) -> Result<Binaries> {
        let find = |name: &str| Some(folder.join(name)).filter(|path| path.is_file());
        let inner = find("ostler-lab-inner").ok_or_else(|| LabError::NoProgram {
            what: "ostler-lab-inner".to_owned(),
            folder: folder.to_owned(),
        })?;
        Ok(Binaries {
            inner,
            ostler: find("ostler"),
            load: find("ostler-load"),
            guest: find("ostler-guest"),
            evil: find("ostler-guest-evil"),
            plugin: find(PLUGIN),
            tests: files_in(&folder.join(TESTS)),
            schedulers: Vec::new(),
        })
    }

    /// Builds the test programs of crates that need a kernel like the emulated host's.
    pub fn build_tests(&mut self, progress: Progress) -> Result<()> {
        let root = checkout()?;
        let step = progress.step("build tests for the emulated host's kernel");
        let mut cargo = static_cargo(&root, "test");
        cargo.args(["--no-run", "--message-format", "json"]);
        cargo.args(TESTED);
        let said = child::output(&mut cargo, "cargo test --no-run", "try it by hand")?;
        self.tests = test_programs(&said);
        step.done(&format!("{} programs", self.tests.len()));
        Ok(())
    }

    /// Builds the plugin alone, with cargo from the checkout that we are in; returns its file.
    pub fn build_plugin(progress: Progress) -> Result<PathBuf> {
        let root = checkout()?;
        let step = progress.step("build the plugin that keeps machine time");
        let built = build_plugin(&root, &step)?;
        step.done("");
        Ok(built)
    }

    /// Builds them with cargo from the checkout that we are in; the steward is this very program unless another is given.
    pub fn build(ostler: Option<PathBuf>, progress: Progress) -> Result<Binaries> {
        let root = checkout()?;
        let step = progress.step("build the emulated host's programs");
        // Each only where its crate has it; the list of what was built is read back from the folder.
        let mut cargo = static_cargo(&root, "build");
        cargo.args([
            "-p",
            "ostler-lab",
            "-p",
            "ostler-load",
            "-p",
            "ostler-guest",
            "--bins",
        ]);
        child::run(
            &mut cargo,
            "cargo build",
            "fix the error above and try again",
            &step,
        )?;
        let folder = target_dir(&root).join(TARGET).join("release");
        let built = build_plugin(&root, &step)?;
        put_plugin(&built, &folder)?;
        step.done("");
        let mut binaries = Binaries::in_folder(&folder)?;
        binaries.ostler = ostler.or_else(this_program);
        Ok(binaries)
    }
}

/// Builds the plugin; returns its file.
fn build_plugin(root: &Path, step: &Step) -> Result<PathBuf> {
    child::run(
        &mut plugin_cargo(root),
        "cargo build of the plugin",
        "fix the error above and try again",
        step,
    )?;
    Ok(plugin_dir(root).join("release").join(PLUGIN))
}

/// Puts the plugin beside the programs in `folder`, whole: an emulator that runs has the file mapped, and ends by SIGBUS if it is written over.
pub fn put_plugin(built: &Path, folder: &Path) -> Result<()> {
    let beside = folder.join(format!(".{PLUGIN}"));
    std::fs::copy(built, &beside).on("copy", built)?;
    std::fs::rename(&beside, folder.join(PLUGIN)).on("move", &beside)
}

/// The sources that we are in.
fn checkout() -> Result<PathBuf> {
    workspace_root().ok_or_else(|| {
        LabError::State(
            "the lab's programs are built from ostler's sources, and this folder is in no checkout of them; \
             run it there, or name a folder with the programs by --bin-dir"
                .to_owned(),
        )
    })
}

/// Where cargo puts what it builds for a checkout: static programs lie beside the others, in a folder named by their target.
fn target_dir(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

/// cargo, to build static programs. The same words as `cargo xtask build` uses, so that neither builds what the other has.
fn static_cargo(root: &Path, verb: &str) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(root)
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .args([verb, "--release", "--target", TARGET, "--target-dir"])
        .arg(target_dir(root));
    cargo
}

/// Where the plugin is built. In a folder of its own: its flags differ from those of the static programs, and from
/// whatever the user's `RUSTFLAGS` are, and cargo would build everything anew each time they change.
fn plugin_dir(root: &Path) -> PathBuf {
    target_dir(root).join("plugin")
}

/// cargo, to build the plugin: a shared library can't be linked statically. The same words as `cargo xtask build` uses.
fn plugin_cargo(root: &Path) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(root)
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .args(["build", "--release", "-p", "machine-time", "--target-dir"])
        .arg(plugin_dir(root));
    cargo
}

/// The test programs that cargo's JSON messages name.
fn test_programs(messages: &str) -> Vec<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["profile"]["test"] == true)
        .filter_map(|message| message["executable"].as_str().map(PathBuf::from))
        .collect()
}

fn files_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .filter(|path| path.is_file())
        .collect()
}

/// This program, if it is the steward.
fn this_program() -> Option<PathBuf> {
    let path = std::env::current_exe().ok()?;
    (path.file_name()? == "ostler").then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_programs_says_how_they_are_made() {
        let folder = tempfile::tempdir().expect("a folder");
        let error = Binaries::in_folder(folder.path()).expect_err("it is empty");
        assert!(error.to_string().contains("cargo xtask build"), "{error}");
    }

    /// Who has mapped the plugin has its file open in effect, and ends by SIGBUS where that is cut short under him.
    #[test]
    fn who_has_the_plugin_keeps_it_when_another_is_put_in_its_place() {
        use std::io::Read as _;

        let folder = tempfile::tempdir().expect("a folder");
        let built = folder.path().join("built.so");
        let place = folder.path().join(PLUGIN);
        std::fs::write(&built, "the first one").expect("it can be written to");
        put_plugin(&built, folder.path()).expect("there is room");
        let mut open = std::fs::File::open(&place).expect("it is there");
        std::fs::write(&built, "another").expect("it can be written to");
        put_plugin(&built, folder.path()).expect("there is room");
        let mut kept = String::new();
        open.read_to_string(&mut kept).expect("it is a text");
        let now = std::fs::read_to_string(&place).expect("it is there");
        assert_eq!((kept.as_str(), now.as_str()), ("the first one", "another"));
    }

    #[test]
    fn test_programs_are_told_from_other_artifacts() {
        let messages = r#"{"reason":"compiler-artifact","profile":{"test":false},"executable":"/t/ostler"}
{"reason":"compiler-artifact","profile":{"test":true},"executable":"/t/deps/kernel-1"}
{"reason":"compiler-artifact","profile":{"test":true},"executable":null}
{"reason":"build-finished","success":true}"#;
        assert_eq!(test_programs(messages), [PathBuf::from("/t/deps/kernel-1")]);
    }
}
