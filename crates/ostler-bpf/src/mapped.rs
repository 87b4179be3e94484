//! BPF arrays mapped into our memory.
#![allow(unsafe_code)] // mmap, and reading memory that the kernel writes: nothing safe offers either.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// A BPF array (`BPF_F_MMAPABLE`) as 64-bit words. The kernel writes it meanwhile, so each word is read atomically, and
/// nothing is promised about words together.
#[derive(Debug)]
pub struct MappedArray {
    base: NonNull<AtomicU64>,
    stride: usize,
    entries: usize,
}

// SAFETY: the mapping is shared memory of plain atomic words; any thread may read or write them, and it is unmapped
// only when the one owner goes.
unsafe impl Send for MappedArray {}
// SAFETY: as above; all access is atomic.
unsafe impl Sync for MappedArray {}

impl MappedArray {
    /// Maps an array whose values are `words` 64-bit words each.
    ///
    /// # Errors
    ///
    /// What mmap said.
    pub fn new(fd: BorrowedFd<'_>, entries: usize, words: usize) -> io::Result<MappedArray> {
        let bytes = entries * words * size_of::<u64>();
        // SAFETY: a fresh shared mapping of the kernel's choice of address; nothing else of ours is touched.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at zero"))?;
        Ok(MappedArray {
            base,
            stride: words,
            entries,
        })
    }

    /// How many values there are.
    pub fn entries(&self) -> usize {
        self.entries
    }

    /// The words of one value.
    ///
    /// # Panics
    ///
    /// If there is no such value.
    pub fn entry(&self, index: usize) -> &[AtomicU64] {
        assert!(index < self.entries, "value {index} of {}", self.entries);
        // SAFETY: inside the mapping by the assertion, aligned because mappings are by pages and strides by words, and
        // the mapping lives as long as self.
        unsafe {
            std::slice::from_raw_parts(self.base.as_ptr().add(index * self.stride), self.stride)
        }
    }
}

impl Drop for MappedArray {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `new` mapped; no reference into it outlives self.
        unsafe {
            libc::munmap(
                self.base.as_ptr().cast(),
                self.entries * self.stride * size_of::<u64>(),
            );
        }
    }
}
