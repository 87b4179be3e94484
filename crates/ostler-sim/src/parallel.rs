//! Many worlds at once.
//!
//! Each job is a function of its own input, and results come in the order of jobs. So what comes out is the same, to the byte, for any number of threads and however they are
//! scheduled: only when it comes isn't. Threads take one job after the other, so that a long one keeps nobody but its own thread; no more worlds are there at one time than
//! threads.
//!
//! A job that panics has all others be left where they are, and its panic goes on in whoever asked: the one of the first job in order that did, of those that began.

use std::any::Any;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError, mpsc};
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

/// Jobs that a thread may be ahead of the first that isn't handed over yet.
const AHEAD: usize = 4;

/// How far all are.
#[derive(Default)]
struct Shared {
    /// The next job that nobody has begun.
    next: usize,
    /// The first that hasn't been handed over.
    due: usize,
    enough: bool,
}

/// A thread that panics has nobody wait for its job, and who is handed them and panics, for his turn: the panic goes on in whoever asked.
struct Wakes<'a>(&'a Mutex<Shared>, &'a Condvar);

impl Drop for Wakes<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).enough = true;
            self.1.notify_all();
        }
    }
}

/// Does so many jobs on `threads` threads, and hands over what came of each, in their order, as soon as it is its turn; `each` may have had enough.
///
/// What is over before its turn waits, and nobody begins a job that is further ahead of the first that isn't over than four for each thread: so a slow job
/// doesn't have all others be kept.
///
/// # Panics
/// With a job's panic.
pub fn in_turn<T: Send>(
    count: usize,
    threads: NonZeroUsize,
    job: &(dyn Fn(usize) -> T + Sync),
    each: &mut dyn FnMut(usize, T) -> ControlFlow<()>,
) {
    let threads = threads.get().min(count.max(1));
    let (shared, moved) = (Mutex::new(Shared::default()), Condvar::new());
    let lock = || shared.lock().unwrap_or_else(PoisonError::into_inner);
    // The next job, once it isn't too far ahead.
    let begin = || {
        let mut shared = lock();
        while !shared.enough && shared.next < count && shared.next >= shared.due + threads * AHEAD {
            shared = moved.wait(shared).unwrap_or_else(PoisonError::into_inner);
        }
        let at = shared.next;
        shared.next += 1;
        (!shared.enough && at < count).then_some(at)
    };
    let (told, heard) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..threads {
            let (told, begin) = (told.clone(), &begin);
            let (shared, moved) = (&shared, &moved);
            scope.spawn(move || {
                let _wakes = Wakes(shared, moved);
                while let Some(at) = begin() {
                    // Nobody listens once there was enough.
                    if told.send((at, job(at))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(told);
        let _wakes = Wakes(&shared, &moved);
        let mut early = BTreeMap::new();
        let mut due = 0;
        for (at, came) in heard {
            early.insert(at, came);
            while let Some(came) = early.remove(&due) {
                let more = each(due, came).is_continue();
                due += 1;
                let mut shared = lock();
                shared.due = due;
                // A thread that panicked meanwhile has said so, and nobody is to wait for it.
                shared.enough |= !more;
                moved.notify_all();
                if !more {
                    return;
                }
            }
        }
    });
}

fn take<T>(from: &Mutex<Option<T>>) -> Option<T> {
    from.lock().ok()?.take()
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

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
    fn what_came_is_handed_over_in_turn_until_there_was_enough() {
        for on in 1..5 {
            // The first is the slowest, and the last ones would be first.
            let job = |at: usize| {
                let turns = if at == 0 { 20_000 } else { 0 };
                (0..turns).for_each(|_| thread::yield_now());
                at * at
            };
            let mut came = Vec::new();
            in_turn(40, threads(on), &job, &mut |at, square| {
                came.push((at, square));
                if at < 30 {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            });
            assert_eq!(came, (0..=30).map(|at| (at, at * at)).collect::<Vec<_>>());
        }
        in_turn(0, threads(2), &|at| at, &mut |_, _| unreachable!());
    }

    #[test]
    fn nobody_is_far_ahead_of_the_first_that_is_not_over() {
        let (over, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let job = |at: usize| {
            most.fetch_max(at - over.load(Ordering::SeqCst).min(at), Ordering::SeqCst);
            let turns = if at == 0 { 50_000 } else { 0 };
            (0..turns).for_each(|_| thread::yield_now());
        };
        in_turn(100, threads(2), &job, &mut |at, ()| {
            over.store(at, Ordering::SeqCst);
            ControlFlow::Continue(())
        });
        // One more may have been counted between its being handed over and the count.
        assert!(most.load(Ordering::SeqCst) <= 2 * AHEAD + 1, "{most:?}");
    }

    #[test]
    #[should_panic(expected = "a scoped thread panicked")]
    fn a_jobs_panic_ends_those_that_come_in_turn() {
        let job = |at: usize| assert_ne!(at, 2, "the third of them");
        in_turn(8, threads(2), &job, &mut |_, ()| ControlFlow::Continue(()));
    }

    /// Whether it ends with a panic, instead of waiting for ever.
    #[expect(
        clippy::disallowed_methods,
        reason = "a thread that may be left behind, as one that hangs is to fail the test"
    )]
    fn panics(all: impl FnOnce() + Send + 'static) -> bool {
        let (told, heard) = mpsc::channel();
        thread::spawn(move || told.send(catch_unwind(AssertUnwindSafe(all)).is_err()));
        let ended = heard.recv_timeout(Duration::from_mins(1));
        ended.expect("it ends, one way or the other")
    }

    /// What is handed over after a job's panic doesn't have the others wait for that job.
    #[test]
    fn a_panic_before_the_first_job_is_over_ends_all() {
        let panicked = AtomicBool::new(false);
        let job = move |at: usize| {
            if at == 1 {
                panicked.store(true, Ordering::SeqCst);
                panic!("the second");
            }
            while at == 0 && !panicked.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            // By then it is over there.
            let turns = if at == 0 { 50_000 } else { 0 };
            (0..turns).for_each(|_| thread::yield_now());
        };
        assert!(panics(move || {
            in_turn(
                100,
                threads(2),
                &job,
                &mut |_, ()| ControlFlow::Continue(()),
            );
        }));
    }

    #[test]
    fn a_panic_of_who_is_handed_jobs_ends_all() {
        assert!(panics(|| {
            in_turn(100, threads(2), &|at| at, &mut |at, _| {
                assert_ne!(at, 3, "the fourth");
                ControlFlow::Continue(())
            });
        }));
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
