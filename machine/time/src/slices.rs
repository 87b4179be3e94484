//! Short turns on the real cores, for threads that hand over to each other.
//!
//! In lockstep, threads go on for some microseconds and let the next one go on. Where others have the real cores, each of those hand-overs waits until
//! one of them has had its slice, milliseconds; and who gives way puts itself off by a slice of its own. Since Linux 6.12, a thread may ask for slices of another
//! length, of 0.1 ms at least: its turn comes sooner, and is as much shorter (Stoica and Abdel-Wahab, "Earliest Eligible Virtual Deadline First", 1995: of those
//! who haven't had their share, the one whose slice would end first). Older kernels don't listen.
//!
//! It is a matter of speed alone, as [`crate::awake`] is.
#![allow(
    unsafe_code,
    reason = "the system calls have no wrappers; they are given a structure that lives as long as they take"
)]

use std::io;

/// The shortest that Linux allows.
const SLICE_NS: u64 = 100_000;

/// What Linux knows of how this thread is scheduled.
fn attributes() -> io::Result<libc::sched_attr> {
    // SAFETY: it is made of numbers, for which zeros are good.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::sched_attr>();
    // SAFETY: the pointer is valid for so many bytes.
    let failed = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    if failed == 0 {
        Ok(attributes)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// This thread asks for short slices. One that somebody gave real-time priority, or a deadline, stays as it is.
pub fn ask() -> io::Result<()> {
    let mut attributes = attributes()?;
    if i32::try_from(attributes.sched_policy) != Ok(libc::SCHED_OTHER) {
        return Ok(());
    }
    attributes.sched_runtime = SLICE_NS;
    // SAFETY: the pointer is valid; the structure says how large it is.
    let failed = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if failed == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_short_slices_once_it_has_asked_and_nothing_else_changes() {
        let thread = std::thread::spawn(|| {
            let before = attributes().expect("any thread may look");
            ask().expect("any thread may ask");
            (before, attributes().expect("any thread may look"))
        });
        let (before, after) = thread.join().expect("it ended well");
        assert_eq!(after.sched_policy, before.sched_policy);
        assert_eq!(after.sched_nice, before.sched_nice);
        // Kernels before 6.12 tell no slice.
        if before.sched_runtime != 0 {
            assert_eq!(after.sched_runtime, SLICE_NS);
        }
    }
}
