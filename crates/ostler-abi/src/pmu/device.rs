//! The device whose memory the counters are, found in sysfs and mapped to be read, and to be marked.
#![allow(
    unsafe_code,
    reason = "memory of a device is mapped: nothing safe offers that"
)]

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{
    BYTES, Counts, DEVICE, Header, MARK, PmuError, RESOURCE, VENDOR, header, read, read_vcpus,
};

/// Why a device that may have counters can't be read.
#[derive(Debug, thiserror::Error)]
pub enum NoDevice {
    /// It can't be mapped.
    #[error(
        "the machine's counters can't be read from {file}; it takes root, and a kernel that isn't locked down"
    )]
    File {
        /// Its memory.
        file: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// It isn't what it should be.
    #[error("the machine's counters can't be read from {file}")]
    Pages {
        /// Its memory.
        file: PathBuf,
        /// What is wrong.
        source: PmuError,
    },
}

/// A machine's counters.
#[derive(Debug)]
pub struct Device {
    pages: Pages,
    header: Header,
}

impl Device {
    /// Looks for the device in a tree of the shape of `/sys`. Most hosts have none; shared memory of another kind isn't ours,
    /// either.
    pub fn find(sys: &Path) -> Result<Option<Device>, NoDevice> {
        let found = find(sys, false)?;
        Ok(found.map(|(pages, header)| Device { pages, header }))
    }

    /// What it counts.
    pub fn header(&self) -> Header {
        self.header
    }

    /// What a core did so far.
    pub fn read(&self, core: usize) -> Result<Counts, PmuError> {
        read(self.pages.words(), core)
    }

    /// What vCPUs of guests did so far, by the physical address of each one's VMCB.
    pub fn read_vcpus(&self) -> Result<Vec<(u64, Counts)>, PmuError> {
        read_vcpus(self.pages.words())
    }
}

/// Where the host marks what it wants to know of.
#[derive(Debug)]
pub struct Marker {
    pages: Pages,
}

impl Marker {
    /// Looks for the device, as [`Device::find`] does.
    pub fn find(sys: &Path) -> Result<Option<Marker>, NoDevice> {
        let found = find(sys, true)?;
        Ok(found.map(|(pages, _)| Marker { pages }))
    }

    /// A window begins.
    pub fn begin(&self, window: u32) {
        self.set(2 * u64::from(window) + 1);
    }

    /// It ends.
    pub fn end(&self, window: u32) {
        self.set(2 * u64::from(window) + 2);
    }

    fn set(&self, mark: u64) {
        self.pages.words()[MARK].store(mark, Ordering::Release);
    }
}

/// The first machine's counters in a tree of the shape of `/sys`.
fn find(sys: &Path, writable: bool) -> Result<Option<(Pages, Header)>, NoDevice> {
    let Ok(devices) = fs::read_dir(sys.join("bus/pci/devices")) else {
        return Ok(None);
    };
    let mut devices: Vec<PathBuf> = devices.flatten().map(|device| device.path()).collect();
    devices.sort();
    for device in devices {
        let is = |file: &str, id: u16| {
            let text = fs::read_to_string(device.join(file)).unwrap_or_default();
            u16::from_str_radix(text.trim().trim_start_matches("0x"), 16) == Ok(id)
        };
        if !is("vendor", VENDOR) || !is("device", DEVICE) {
            continue;
        }
        let file = device.join(format!("resource{RESOURCE}"));
        let pages = match Pages::map(&file, writable) {
            Ok(pages) => pages,
            Err(source) => return Err(NoDevice::File { file, source }),
        };
        match header(pages.words()) {
            Ok(header) => return Ok(Some((pages, header))),
            Err(PmuError::NotOurs(_)) => {}
            Err(source) => return Err(NoDevice::Pages { file, source }),
        }
    }
    Ok(None)
}

/// A mapping of a file.
#[derive(Debug)]
struct Pages {
    start: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: shared memory of plain atomic words; any thread may read and write them, and the one owner unmaps them.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    fn map(file: &Path, writable: bool) -> io::Result<Pages> {
        let opened = OpenOptions::new().read(true).write(writable).open(file)?;
        let write = if writable { libc::PROT_WRITE } else { 0 };
        let bytes = usize::try_from(opened.metadata()?.len()).unwrap_or(usize::MAX);
        let words = bytes.min(BYTES) / size_of::<u64>();
        // SAFETY: a fresh mapping at an address of the kernel's choice; nothing else of ours is touched.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                words * size_of::<u64>(),
                libc::PROT_READ | write,
                libc::MAP_SHARED,
                opened.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at zero"))?;
        Ok(Pages { start, words })
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is as long, page-aligned, and there as long as self is. A device's memory doesn't shrink.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped; no reference into it outlives self.
        unsafe {
            libc::munmap(self.start.as_ptr().cast(), self.words * size_of::<u64>());
        }
    }
}

#[cfg(test)]
#[path = "device_tests.rs"]
mod tests;
