//! Files that several processes have mapped.
#![allow(unsafe_code, reason = "a file is mapped that other processes map too")]

use std::fs::OpenOptions;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::ptr::NonNull;

/// Maps the first `bytes` of a file, to be read and written by all who map it, for good. What is wrong, and what to do, if it can't be.
pub fn shared(path: &Path, bytes: usize) -> Result<NonNull<u8>, String> {
    let file = OpenOptions::new().read(true).write(true).open(path);
    let file = file.map_err(|error| format!("it can't be opened: {error}"))?;
    let length = file.metadata().map_or(0, |found| found.len());
    if length < bytes as u64 {
        return Err(format!("it has {length} bytes and needs {bytes}, all zero"));
    }
    // SAFETY: a new mapping, at an address of the kernel's choice, of a file that is long enough.
    let mapped = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_NORESERVE,
            file.as_raw_fd(),
            0,
        )
    };
    let mapped = NonNull::new(mapped.cast()).filter(|_| mapped != libc::MAP_FAILED);
    mapped.ok_or_else(|| {
        let error = std::io::Error::last_os_error();
        format!("it can't be mapped: {error}")
    })
}
