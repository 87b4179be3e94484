//! The block of memory that all mutable state of a system is in: zeros at first, and plain atomics at offsets that follow from
//! the topology alone. No pointer is in it, so two processes can map it at two addresses and work on one system.
//!
//! A [`Carver`] hands out [`Area`]s one behind the other, each from a new pair of real cache lines on, so that what two
//! threads write is never in the same. The layout is the order in which a system's parts ask for theirs; how many bytes that takes
//! is found by asking once without any memory.
//!
//! On the heap the block is taken from the system in one piece that is zeros already, and costs memory only where it is
//! touched. That matters for the directory, which has a word for each line of physical memory.
#![allow(
    unsafe_code,
    reason = "typed slices of one block; everything unsafe of this room is in this file"
)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

/// Areas begin at multiples of this: two real cache lines, which are often fetched together. So must a caller's block.
pub(crate) const ALIGN: usize = 128;

/// What areas are made of.
///
/// # Safety
/// Zeros must be a value, any bytes must be, and anybody may write it at any time: atomics and arrays of them.
pub(crate) unsafe trait Word {}

// SAFETY: an atomic.
unsafe impl Word for AtomicU8 {}
// SAFETY: an atomic.
unsafe impl Word for AtomicU16 {}
// SAFETY: an atomic.
unsafe impl Word for AtomicU32 {}
// SAFETY: an atomic.
unsafe impl Word for AtomicU64 {}
// SAFETY: an array of such.
unsafe impl<T: Word, const N: usize> Word for [T; N] {}

/// A line of the real machine's, with words of two sizes.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Line {
    pub(crate) narrow: [AtomicU32; 8],
    pub(crate) wide: [AtomicU64; 4],
}

// SAFETY: atomics, and nothing between them.
unsafe impl Word for Line {}

/// Where areas are.
struct Memory {
    start: NonNull<u8>,
    bytes: usize,
    /// What is to be given back; nothing of a caller's block.
    heap: Option<(NonNull<u8>, Layout)>,
}

// SAFETY: it is only ever read and written as atomics.
unsafe impl Send for Memory {}
// SAFETY: likewise.
unsafe impl Sync for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some((start, layout)) = self.heap {
            // SAFETY: as it came from `alloc_zeroed`, and no area is left: each keeps this alive.
            unsafe { dealloc(start.as_ptr(), layout) };
        }
    }
}

/// A slice of a block, which stays as long as the area does.
pub(crate) struct Area<T> {
    start: NonNull<T>,
    len: usize,
    _memory: Option<Arc<Memory>>,
}

// SAFETY: as a reference to a slice of atomics.
unsafe impl<T: Word + Sync> Send for Area<T> {}
// SAFETY: likewise.
unsafe impl<T: Word + Sync> Sync for Area<T> {}

impl<T> Deref for Area<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: the carver made sure that so many lie in the memory, aligned, and in no other area; the memory stays. Only
        // `Word`s are handed out.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T> Area<T> {
    /// Has the real machine fetch what is there, soon. A hint: any number will do.
    #[inline]
    pub(crate) fn prefetch(&self, at: usize) {
        let there = self.start.as_ptr().wrapping_add(at);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: fetching ahead reads nothing and never faults.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(there.cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = there;
    }
}

/// An area that is never empty, for what an L1 hit touches: nothing is checked there, as nothing can be wrong.
pub(crate) struct Full<T>(Area<T>);

impl<T> Full<T> {
    /// The first.
    #[inline]
    pub(crate) fn first(&self) -> &T {
        // SAFETY: it isn't empty; else as for areas.
        unsafe { self.0.start.as_ref() }
    }
}

/// An area whose length is a power of two, and indexed by any number's lowest bits.
pub(crate) struct Ring<T> {
    full: Full<T>,
    mask: usize,
}

impl<T> Ring<T> {
    /// The one at a number's lowest bits.
    #[inline]
    pub(crate) fn at(&self, number: usize) -> &T {
        // SAFETY: below its length; else as for areas.
        unsafe { self.full.0.start.add(number & self.mask).as_ref() }
    }

    /// All.
    #[inline]
    pub(crate) fn all(&self) -> &Area<T> {
        &self.full.0
    }
}

impl<T> fmt::Debug for Full<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T> fmt::Debug for Ring<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.full.fmt(f)
    }
}

impl<T> fmt::Debug for Area<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Area({})", self.len)
    }
}

/// Hands out areas.
pub(crate) struct Carver {
    memory: Option<Arc<Memory>>,
    at: usize,
}

impl Carver {
    /// Hands out empty areas, and only counts.
    pub(crate) fn measuring() -> Carver {
        Carver {
            memory: None,
            at: 0,
        }
    }

    /// Of so many bytes of the heap, if there are.
    pub(crate) fn heap(bytes: usize) -> Option<Carver> {
        // The allocator has zeros without touching them only where nothing is asked about alignment.
        let layout = Layout::from_size_align(bytes.checked_add(ALIGN)?, align_of::<u64>()).ok()?;
        // SAFETY: its size isn't zero.
        let heap = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let ahead = heap.addr().get().next_multiple_of(ALIGN) - heap.addr().get();
        // SAFETY: less than `ALIGN`, by which it is larger than asked for.
        let start = unsafe { heap.add(ahead) };
        let memory = Memory {
            start,
            bytes,
            heap: Some((heap, layout)),
        };
        Some(Carver {
            memory: Some(Arc::new(memory)),
            at: 0,
        })
    }

    /// Of a caller's block, which begins at a multiple of [`ALIGN`].
    pub(crate) fn of(block: &'static [AtomicU64]) -> Carver {
        let memory = Memory {
            start: NonNull::from(block).cast(),
            bytes: size_of_val(block),
            heap: None,
        };
        Carver {
            memory: Some(Arc::new(memory)),
            at: 0,
        }
    }

    /// The next area, of zeros or what others have written there.
    ///
    /// # Panics
    /// When the memory is too small: measure first.
    pub(crate) fn area<T: Word>(&mut self, len: usize) -> Area<T> {
        let from = self.at;
        let bytes = len.saturating_mul(size_of::<T>());
        self.at = from
            .saturating_add(bytes)
            .checked_next_multiple_of(ALIGN)
            .unwrap_or(usize::MAX);
        let Some(memory) = &self.memory else {
            return Area {
                start: NonNull::dangling(),
                len: 0,
                _memory: None,
            };
        };
        assert!(
            self.at <= memory.bytes && memory.start.addr().get().is_multiple_of(ALIGN),
            "an area of {bytes} bytes at {from} of {}",
            memory.bytes
        );
        Area {
            // SAFETY: within the memory, by the assertion.
            start: unsafe { memory.start.add(from) }.cast(),
            len,
            _memory: Some(Arc::clone(memory)),
        }
    }

    /// The next area, which is not empty: there is a first one even while nothing but its length is measured.
    ///
    /// # Panics
    /// As [`Carver::area`], and when there is no memory left in the process at all.
    fn full<T: Word>(&mut self, len: usize) -> Full<T> {
        let area = self.area(len);
        if !area.is_empty() {
            return Full(area);
        }
        let mut alone = Carver::heap(size_of::<T>().next_multiple_of(ALIGN));
        let alone = alone.as_mut().map(|carver| carver.area(1));
        Full(alone.expect("a few words of memory"))
    }

    /// An area of one.
    pub(crate) fn one<T: Word>(&mut self) -> Full<T> {
        self.full(1)
    }

    /// An area of a power of two.
    ///
    /// # Panics
    /// As [`Carver::area`], and when it is no power of two.
    pub(crate) fn ring<T: Word>(&mut self, len: usize) -> Ring<T> {
        assert!(len.is_power_of_two(), "a ring of {len}");
        let full = self.full(len);
        let mask = full.0.len() - 1;
        Ring { full, mask }
    }

    /// Bytes handed out so far.
    pub(crate) fn bytes(&self) -> usize {
        self.at
    }
}

#[cfg(test)]
#[path = "block_tests.rs"]
mod tests;
