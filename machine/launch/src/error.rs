//! What can go wrong. Each message says what was tried, on what, and what to do about it.

use std::path::PathBuf;

/// Why a description is refused.
#[derive(Debug, thiserror::Error)]
pub enum WorldError {
    /// The file can't be read.
    #[error("could not read the machines' description {}; check its path and permissions", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// It isn't TOML, or a key is unknown, missing or of the wrong type.
    #[error("{}: {message}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// What the parser said, with line and column.
        message: String,
    },
    /// A value makes no sense.
    #[error("{}:{line}: {what}; {remedy}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        what: String,
        /// What to write instead.
        remedy: String,
    },
}

/// Why machines can't run, or didn't run well.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// Something that a machine needs isn't there.
    #[error("machine {machine} needs its {what} {}, which can't be read ({error}); {remedy}", path.display())]
    Missing {
        /// The machine's name.
        machine: String,
        /// What it is to the machine.
        what: &'static str,
        /// Where it should be.
        path: PathBuf,
        /// What the kernel said.
        error: std::io::Error,
        /// What to do.
        remedy: &'static str,
    },
    /// Firmware of QEMU's own isn't there.
    #[error(
        "machine {machine} needs QEMU's firmware {file}, and it is in none of {searched}; install the packages qemu-system-data and \
         seabios, or let `ostler machine setup` fetch them"
    )]
    Firmware {
        /// The machine's name.
        machine: String,
        /// The file.
        file: &'static str,
        /// The folders.
        searched: String,
    },
    /// There is no QEMU for an instruction set.
    #[error(
        "machine {machine} needs {program}, which isn't there; let `ostler machine setup` fetch it, or install Debian's QEMU 10.0"
    )]
    NoEmulator {
        /// The machine's name.
        machine: String,
        /// The program.
        program: String,
    },
    /// A QEMU of a version that isn't known.
    #[error(
        "machine {machine} would run in {found}; the plugin that keeps time knows the inside of Debian's QEMU 10.0 only; let `ostler machine \
         setup` fetch it"
    )]
    Version {
        /// The machine's name.
        machine: String,
        /// What it calls itself.
        found: String,
    },
    /// The plugin isn't there.
    #[error("the plugin that keeps time isn't at {}; build it with `cargo xtask build`, or name its file by --plugin", path.display())]
    NoPlugin {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// This machine hasn't enough memory.
    #[error(
        "the machines have {wanted_mib} MiB of memory, and this machine has {available_mib} MiB that can be had; make their ranges smaller, \
         or end something else"
    )]
    HostMemory {
        /// What is wanted.
        wanted_mib: u64,
        /// What there is.
        available_mib: u64,
    },
    /// A machine hasn't enough memory for what it boots.
    #[error(
        "machine {machine} has {has_mib} MiB of memory to boot in, and its kernel and initial root need {needs_mib} MiB; give it more"
    )]
    MachineMemory {
        /// The machine's name.
        machine: String,
        /// What it has where it boots.
        has_mib: u64,
        /// What it needs.
        needs_mib: u64,
    },
    /// Something that the kernel was asked for failed.
    #[error("could not {doing}")]
    System {
        /// What was tried, as a verb.
        doing: String,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// A machine failed.
    #[error("machine {machine} failed ({status}); its emulator's last words:\n{last_words}")]
    Failed {
        /// The machine's name.
        machine: String,
        /// How its emulator ended.
        status: String,
        /// What it said at last.
        last_words: String,
    },
    /// They ran for longer than they were to.
    #[error(
        "the machines hadn't ended after {0} s and were ended; their serial lines tell how far they came"
    )]
    TooLong(u64),
    /// A signal asked us to end.
    #[error("interrupted; the machines were ended")]
    Interrupted,
}
