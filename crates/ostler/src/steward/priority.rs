//! A steward that acts runs before what it looks after.
//!
//! A host is never more in need of it than when every core has more to do than it can: that is when cores must change hands, and when
//! whoever shuts it down waits for it. At an ordinary task's priority it would wait its turn behind all of them, at each of
//! a hundred small steps. It uses a hundredth of a core, so nobody misses what it takes.

use rustix::process::setpriority_process;

/// Of an ordinary task it is 0. A task of -10 weighs nine times as much.
const NICE: i32 = -10;

/// Raises the calling thread's priority, and that of all that it starts from now on. Where that isn't allowed, it goes on as it is.
pub fn raise() {
    if let Err(error) = setpriority_process(None, NICE) {
        tracing::debug!(%error, "the steward has an ordinary task's priority");
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::getpriority_process;

    use super::*;

    /// On a thread of its own: the priority is the thread's.
    #[test]
    fn what_is_started_later_has_it_too() {
        let nice = || getpriority_process(None).unwrap();
        let before = nice();
        let (own, started) = std::thread::spawn(move || {
            raise();
            (nice(), std::thread::spawn(nice).join().unwrap())
        })
        .join()
        .unwrap();
        assert_eq!(nice(), before, "others keep theirs");
        assert_eq!(own, started);
        // Root may; others stay where they were.
        assert!(own == NICE || own == before, "{own}");
        if rustix::process::geteuid().is_root() {
            assert!(own == NICE || own == before.min(NICE), "{own}");
        }
    }
}
