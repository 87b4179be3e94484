//! A word of memory to sleep on, between processes.
#![allow(
    unsafe_code,
    reason = "the system call is given addresses of words and times that live as long as it takes"
)]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Sleeps while the word is `value`, at most so long. May return sooner.
pub fn sleep(word: &AtomicU32, value: u32, patience: Duration) {
    let time = libc::timespec {
        tv_sec: libc::time_t::try_from(patience.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(patience.subsec_nanos()),
    };
    // SAFETY: both pointers are valid for the length of the call. What it returns makes no difference: whoever sleeps looks again.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            value,
            &raw const time,
        );
    }
}

/// Changes the word and wakes all who sleep on it, in whatever process.
pub fn wake(word: &AtomicU32) {
    word.fetch_add(1, Ordering::SeqCst);
    // SAFETY: the pointer is valid for the length of the call.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_word_is_not_slept_on_and_a_sleeper_is_woken() {
        let word = AtomicU32::new(7);
        sleep(&word, 6, Duration::from_mins(1));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let deadline = std::time::Instant::now() + Duration::from_mins(1);
                while word.load(Ordering::SeqCst) == 7 {
                    assert!(std::time::Instant::now() < deadline, "nobody woke it");
                    sleep(&word, 7, Duration::from_mins(1));
                }
            });
            wake(&word);
        });
    }
}
