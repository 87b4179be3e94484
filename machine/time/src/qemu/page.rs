//! The block of memory in which fused machines meet, mapped from its file.
#![allow(unsafe_code, reason = "a file is mapped that other processes map too")]

use std::fs::OpenOptions;
use std::os::fd::AsRawFd as _;

use crate::fused::{Fused, Page};
use crate::options::{Fusion, Options};
use crate::refusal::Refusal;

/// Maps the page, and takes this machine's place on it.
pub fn join(fusion: &Fusion, cores: usize, options: &Options) -> Result<Fused, Refusal> {
    let refuse = |problem: String| Refusal::Page {
        page: fusion.page.display().to_string(),
        problem,
    };
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&fusion.page)
        .map_err(|error| refuse(format!("it can't be opened: {error}")))?;
    let length = file.metadata().map_or(0, |found| found.len());
    if length < size_of::<Page>() as u64 {
        return Err(refuse(format!(
            "it has {length} bytes and needs {}, all zero",
            size_of::<Page>()
        )));
    }
    // SAFETY: a new mapping of a file that is long enough.
    let mapped = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size_of::<Page>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if mapped == libc::MAP_FAILED {
        let error = std::io::Error::last_os_error();
        return Err(refuse(format!("it can't be mapped: {error}")));
    }
    // SAFETY: it is mapped for ever and page-aligned; all of it is atomics, for which any bytes are values, and which any
    // process may change at any time.
    let page: &'static Page = unsafe { &*mapped.cast() };
    Fused::join(
        page,
        fusion.machine,
        cores,
        options.quantum_ns,
        fusion.latency_ns,
        options.cost,
    )
    .ok_or_else(|| {
        refuse(format!(
            "machine {} is taken by another process, or has more than 64 cores ({cores}), or the page isn't new",
            fusion.machine
        ))
    })
}
