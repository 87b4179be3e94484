//! The steward's heap keeps what is freed.
//!
//! Each period makes a snapshot, a plan and a record, and drops those of the period before: hundreds of kilobytes on a large host. glibc gives
//! the top of its heap back to the kernel as soon as 128 KiB of it are free, and takes large blocks from the kernel each time, so that
//! every period would pay for the same pages anew: a third of what a decision for 512 guests costs (`bench/decide`). What a
//! steward used once it will use again a tenth of a second later.
#![allow(unsafe_code, reason = "mallopt is C's")]

/// So much may lie free before any is given back. No block is so large that it isn't taken from the heap.
#[cfg(target_env = "gnu")]
const KEPT: libc::c_int = 32 << 20;

/// From now on, for the whole process. Of a C library that isn't glibc nothing is asked.
pub fn keep_freed() {
    #[cfg(target_env = "gnu")]
    for parameter in [libc::M_TRIM_THRESHOLD, libc::M_MMAP_THRESHOLD] {
        // SAFETY: glibc's own call, which takes its lock; it changes two of its numbers.
        if unsafe { libc::mallopt(parameter, KEPT) } == 0 {
            tracing::debug!(
                parameter,
                "glibc doesn't keep freed memory; periods cost more"
            );
        }
    }
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use std::hint::black_box;

    /// Pages that the kernel gave this thread so far.
    fn faults() -> i64 {
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: the kernel fills it in.
        let usage = unsafe {
            assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()), 0);
            usage.assume_init()
        };
        usage.ru_minflt
    }

    /// As many bytes as a period's, in blocks of its sizes.
    fn period() {
        let blocks: Vec<_> = (0..40).map(|at| vec![1_u8; at * 10_000]).collect();
        black_box(blocks);
    }

    #[test]
    fn a_period_uses_the_memory_of_the_one_before() {
        super::keep_freed();
        (0..3).for_each(|_| period());
        let before = faults();
        (0..20).for_each(|_| period());
        let pages = faults() - before;
        assert!(pages < 200, "{pages} pages in 20 periods of 1900 pages");
    }
}
