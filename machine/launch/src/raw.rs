//! A world as it is written: every value with its place in the text, none of them checked yet.

use serde::Deserialize;
use toml::Spanned;

use crate::world::{Isa, Model};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawWorld {
    pub(crate) machine: Vec<Spanned<RawMachine>>,
    pub(crate) memory: Option<RawMemory>,
    #[serde(default)]
    pub(crate) time: RawTime,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawMachine {
    pub(crate) name: Spanned<String>,
    pub(crate) isa: Spanned<Isa>,
    #[serde(default = "one")]
    pub(crate) cores: Spanned<u32>,
    pub(crate) memory: Option<Spanned<RawBytes>>,
    pub(crate) part: Option<Spanned<String>>,
    pub(crate) instruction_ns: Option<Spanned<f64>>,
    pub(crate) kernel: Spanned<String>,
    pub(crate) initrd: Option<Spanned<String>>,
    #[serde(default)]
    pub(crate) append: String,
    pub(crate) firmware: Option<Spanned<String>>,
    #[serde(default)]
    pub(crate) drive: Vec<RawDrive>,
    pub(crate) serial: Option<Spanned<String>>,
}

fn one() -> Spanned<u32> {
    Spanned::new(0..0, 1)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawDrive {
    pub(crate) file: Spanned<String>,
    #[serde(default)]
    pub(crate) keep: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawMemory {
    pub(crate) model: Spanned<Model>,
    pub(crate) pool: Option<Spanned<String>>,
    #[serde(default)]
    pub(crate) range: Vec<RawRange>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawRange {
    pub(crate) start: Spanned<RawBytes>,
    pub(crate) size: Spanned<RawBytes>,
    pub(crate) owner: Spanned<String>,
}

/// Bytes: a number, or one with a unit, "512M".
#[derive(Clone, Deserialize)]
#[serde(untagged)]
pub(crate) enum RawBytes {
    Number(u64),
    Text(String),
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawTime {
    pub(crate) quantum_ns: Option<Spanned<u32>>,
    pub(crate) interrupt_ns: Option<Spanned<u32>>,
}
