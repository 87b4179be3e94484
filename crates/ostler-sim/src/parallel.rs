//! Many worlds at once.
//!
//! Each job is a function of its own input, and results come in the order of jobs. So what comes out is the same, to the byte, for any number of threads and however they are
//! scheduled: only when it comes isn't. Threads take one job after the other, so that a long one keeps nobody but its own thread; no more worlds are there at one time than
//! threads.
//!
//! A job that panics has all others be left where they are, and its panic goes on in whoever asked: the one of the first job in order that did, of those that began.

use std::any::Any;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

/// What a job has left.
type Left<T> = Result<T, Box<dyn Any + Send>>;

/// Does `jobs` on `threads` threads, this one among them, and returns their results in the order of `jobs`.
///
/// # Panics
/// With a job's own panic.
pub fn in_parallel<J, T>(jobs: Vec<J>, threads: NonZeroUsize) -> Vec<T>
where
    J: FnOnce() -> T + Send,
    T: Send,
{
    let count = jobs.len();
    // One lock each: nobody waits for another's.
    let jobs: Vec<_> = jobs.into_iter().map(|job| Mutex::new(Some(job))).collect();
    let left: Vec<Mutex<Option<Left<T>>>> = (0..count).map(|_| Mutex::new(None)).collect();
    let (next, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let work = || {
        while !over.load(Ordering::Relaxed) {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = jobs.get(at).and_then(take) else {
                return;
            };
            // Nothing that the job has touched is looked at again.
            let done = catch_unwind(AssertUnwindSafe(job));
            if done.is_err() {
                over.store(true, Ordering::Relaxed);
            }
            if let Ok(mut left) = left[at].lock() {
                *left = Some(done);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads.get().min(count) {
            scope.spawn(work);
        }
        work();
    });
    let mut results = Vec::with_capacity(count);
    for done in left.iter().filter_map(take) {
        match done {
            Ok(result) => results.push(result),
            Err(panic) => resume_unwind(panic),
        }
    }
    debug_assert_eq!(results.len(), count, "no job is left out unless one panics");
    results
}

fn take<T>(from: &Mutex<Option<T>>) -> Option<T> {
    from.lock().ok()?.take()
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::AtomicU32;

    use proptest::prelude::*;

    use super::*;

    fn threads(count: usize) -> NonZeroUsize {
        NonZeroUsize::new(count).expect("some")
    }

    proptest! {
        #[test]
        fn results_come_in_order_of_jobs_and_each_is_done_once(
            count in 0_usize..100,
            on in 1_usize..12,
        ) {
            let done: Vec<_> = (0..count).map(|_| AtomicU32::new(0)).collect();
            let jobs = done.iter().enumerate().map(|(at, done)| {
                move || {
                    done.fetch_add(1, Ordering::Relaxed);
                    at
                }
            });
            let results = in_parallel(jobs.collect(), threads(on));
            prop_assert_eq!(results, (0..count).collect::<Vec<_>>());
            prop_assert!(done.iter().all(|done| done.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn as_many_jobs_as_threads_are_at_work_at_once_and_no_more() {
        // Each waits until three are there; that a fourth never is, is counted.
        let (meet, now, most) = (Barrier::new(3), AtomicUsize::new(0), AtomicUsize::new(0));
        let jobs = (0..9).map(|_| {
            || {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                meet.wait();
                now.fetch_sub(1, Ordering::SeqCst);
            }
        });
        in_parallel(jobs.collect(), threads(3));
        assert_eq!(most.into_inner(), 3);
    }

    #[test]
    fn one_thread_does_all_by_itself() {
        let here = thread::current().id();
        let jobs = vec![|| thread::current().id(); 5];
        assert_eq!(in_parallel(jobs, threads(1)), vec![here; 5]);
    }

    #[test]
    #[should_panic(expected = "the third of them")]
    fn a_jobs_panic_is_its_callers() {
        let jobs = (0..8).map(|at| move || assert_ne!(at, 2, "the third of them"));
        in_parallel(jobs.collect(), threads(2));
    }
}
