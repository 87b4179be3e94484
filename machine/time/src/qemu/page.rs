//! The block of memory in which fused machines meet, mapped from its file.
#![allow(unsafe_code, reason = "a file is mapped that other processes map too")]

use super::mapping;
use crate::fused::{Fused, Page};
use crate::options::{Fusion, Options};
use crate::refusal::Refusal;

/// Maps the page, and takes this machine's place on it.
pub fn join(fusion: &Fusion, cores: usize, options: &Options) -> Result<Fused, Refusal> {
    let refuse = |problem: String| Refusal::Page {
        page: fusion.page.display().to_string(),
        problem,
    };
    let mapped = mapping::shared(&fusion.page, size_of::<Page>()).map_err(refuse)?;
    // SAFETY: it is mapped for ever and page-aligned; all of it is atomics, for which any bytes are values, and which any
    // process may change at any time.
    let page: &'static Page = unsafe { mapped.cast().as_ref() };
    Fused::join(
        page,
        fusion.machine,
        cores,
        options.quantum_ns,
        fusion.latency_ns,
    )
    .ok_or_else(|| {
        refuse(format!(
            "machine {} is taken by another process, or has more than 64 cores ({cores}), or the page isn't new",
            fusion.machine
        ))
    })
}
