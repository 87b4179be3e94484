//! Why the plugin won't load.

use thiserror::Error;

/// Why the plugin won't load. Each says what was expected, what was found, and what to do.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum Refusal {
    /// An argument that means nothing.
    #[error("the argument `{word}` means nothing here; write {expected}")]
    Option {
        /// As it was written.
        word: String,
        /// What may be written.
        expected: &'static str,
    },
    /// QEMU emulates a program, not a machine.
    #[error(
        "this QEMU emulates a single program; machine time is for qemu-system-x86_64 and qemu-system-aarch64"
    )]
    NoMachine,
    /// The emulated machine is of an instruction set that isn't known.
    #[error("this QEMU emulates {found}; machine time knows x86_64 and aarch64")]
    Target {
        /// What QEMU calls it.
        found: String,
    },
    /// QEMU is too old or too new.
    #[error(
        "this is QEMU {found}; machine time knows the inside of QEMU 10.0 only; use that one (the lab's image has it), or run on wall time (--time wall)"
    )]
    Version {
        /// What it calls itself.
        found: String,
    },
    /// QEMU lacks functions that are needed.
    #[error(
        "this QEMU {version} doesn't export {missing}; machine time needs Debian's build of QEMU 10.0; use that one, or run on wall time (--time wall)"
    )]
    Symbols {
        /// QEMU's version.
        version: String,
        /// The names.
        missing: String,
    },
    /// The machine code of a function isn't as expected.
    #[error(
        "this QEMU {version} has an unknown shape: in {function} {expected} was expected, and {found} was found; \
         machine time would have to guess where QEMU keeps things, and doesn't; use Debian's build of QEMU 10.0, or run on wall time (--time wall)"
    )]
    Shape {
        /// QEMU's version.
        version: String,
        /// The function looked at.
        function: &'static str,
        /// What should be there.
        expected: &'static str,
        /// What is there.
        found: String,
    },
    /// QEMU was started in a way that leaves no room for us.
    #[error("{found}; machine time needs {needed}")]
    Setting {
        /// How it was started.
        found: &'static str,
        /// How it should be.
        needed: &'static str,
    },
    /// Machines would not be near enough to each other in time.
    #[error(
        "with a quantum of {quantum_ns} ns an interrupt from another machine could come later than {latency_ns} ns;          a quantum of {largest_ns} ns or less is needed, or a longer latency"
    )]
    Quantum {
        /// As it was given.
        quantum_ns: i64,
        /// Likewise.
        latency_ns: i64,
        /// What would do.
        largest_ns: i64,
    },
    /// The other machines can't be met.
    #[error("the page {page} of fused machines is no good: {problem}")]
    Page {
        /// The file.
        page: String,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// The model of what memory costs can't be shared with the other machines.
    #[error("the block {block} of what memory costs is no good: {problem}")]
    Block {
        /// The file.
        block: String,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// The machine's topology makes no sense.
    #[error("the topology {file} is no good: {problem}")]
    Topology {
        /// The file.
        file: String,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// There is no place to show what the cores do.
    #[error("the counters' file {file} is no good: {problem}")]
    Pmu {
        /// The file.
        file: String,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// A place to mend wasn't found.
    #[error(
        "the fault \"{fault}\" can't be mended in this QEMU: in {function} {expected} was expected exactly once, and was found {found} times; \
         if this QEMU has the fault no more, say cure=off"
    )]
    Cure {
        /// What is to be mended.
        fault: &'static str,
        /// Where.
        function: &'static str,
        /// The instruction looked for.
        expected: &'static str,
        /// How often it was found.
        found: usize,
    },
    /// Code can't be made writable.
    #[error(
        "QEMU's code can't be changed ({error}): a security policy forbids it; allow it, or say cure=off and expect guests to die now and then"
    )]
    Protected {
        /// What the kernel said.
        error: String,
    },
    /// A thread couldn't be started.
    #[error("a thread couldn't be started: {error}; check the limits on processes and memory")]
    Thread {
        /// What the kernel said.
        error: String,
    },
}
