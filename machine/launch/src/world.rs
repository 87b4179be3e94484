//! What is to run, as the file describes it, checked.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::error::WorldError;
use crate::layout::Range;

/// An instruction set.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Hash)]
pub enum Isa {
    /// x86-64, on QEMU's `q35`.
    #[serde(rename = "x86-64")]
    X86_64,
    /// AArch64, on QEMU's `virt`.
    #[serde(rename = "aarch64")]
    Aarch64,
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Isa::X86_64 => "x86-64",
            Isa::Aarch64 => "aarch64",
        })
    }
}

/// Whose memory is whose (the thesis's figure 4.3).
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Model {
    /// Each machine has memory of its own, and sees the other's wherever it can have memory.
    Separated,
    /// Each machine has memory of its own, which the other doesn't see, and a pool that both see.
    Shared,
    /// One memory for both. A machine has some of its own only where the other can't have any.
    FullyShared,
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Model::Separated => "separated",
            Model::Shared => "shared",
            Model::FullyShared => "fully-shared",
        })
    }
}

/// A disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drive {
    /// The raw image.
    pub file: PathBuf,
    /// Whether what is written stays; otherwise it is dropped at the end.
    pub keep: bool,
}

/// A machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// By which it is told from the other.
    pub name: String,
    /// Its instruction set.
    pub isa: Isa,
    /// How many cores it has.
    pub cores: u32,
    /// What an instruction costs, ps.
    pub instruction_ps: u64,
    /// What its cores are: says what an instruction costs, and what accesses to memory do ([`World::models_memory`]).
    pub part: Option<String>,
    /// What it boots: a Linux image, or an ELF file (by PVH on x86-64).
    pub kernel: PathBuf,
    /// An initial root.
    pub initrd: Option<PathBuf>,
    /// The kernel's command line.
    pub append: String,
    /// Firmware in place of QEMU's own.
    pub firmware: Option<PathBuf>,
    /// Disks, by virtio.
    pub drives: Vec<Drive>,
    /// Where its serial line is logged.
    pub serial: Option<PathBuf>,
}

/// How time passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time {
    /// How far a core may be ahead of another, ns.
    pub quantum_ns: u32,
    /// From a ring of the other machine's doorbell to its interrupt, ns.
    pub interrupt_ns: u32,
}

/// All that is to run.
#[derive(Clone, Debug, PartialEq)]
pub struct World {
    /// One or two.
    pub machines: Vec<Machine>,
    /// How they share memory, if there are two.
    pub model: Option<Model>,
    /// The device that the pool is, by `machine/memory`'s name for it, if it is told ([`crate::topology::POOL`]).
    pub pool: Option<String>,
    /// All memory, in order of address.
    pub ranges: Vec<Range>,
    /// How time passes.
    pub time: Time,
}

impl World {
    /// Reads and checks a file. Paths in it are relative to its folder.
    pub fn load(file: &Path) -> Result<World, WorldError> {
        let bytes = std::fs::read(file).map_err(|source| WorldError::Read {
            path: file.to_owned(),
            source,
        })?;
        // Bytes that are no UTF-8 are shown as such where they stand.
        World::parse(&String::from_utf8_lossy(&bytes), file)
    }

    /// Checks a file's text.
    pub fn parse(text: &str, file: &Path) -> Result<World, WorldError> {
        crate::check::parse(text, file.to_owned())
    }

    /// Whether accesses to memory cost what their machine's part says: where there are parts.
    pub fn models_memory(&self) -> bool {
        self.machines.iter().all(|machine| machine.part.is_some())
    }

    /// Whether there is more than one machine.
    pub fn is_fused(&self) -> bool {
        self.machines.len() > 1
    }
}
