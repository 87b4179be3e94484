//! Locks in the block: they work between processes too.
//!
//! A lock is a count: even is free, odd is held. Taking it is one compare-exchange, and releasing it a plain store, so that one
//! that nobody else wants costs little more than the exchange. Who finds it held looks a few times more and then lets others run
//! between looks: critical sections are tens of nanoseconds, and whoever is in one longer has lost its core.
//!
//! ## Who dies with a lock
//!
//! A thread can't: nothing in a critical section panics but by a mistake, and then the guard releases it. A process that is killed can.
//! Since the count moves with each holder, who waits can tell one holder that is stuck from many in turn. After
//! [`PATIENCE`] looks at the same holder it takes the lock by force and notes it. What the holder had begun
//! is half done then: a line may be in a cache unknown to the directory or the other way round. That makes figures wrong, and nothing else: no
//! index is taken from the block unchecked. So the survivor goes on until its launcher ends it, and
//! [`System::forced_locks`](crate::System::forced_locks) tells that its figures are worth nothing.

use std::sync::atomic::{AtomicU64, Ordering};

/// Looks at one holder before the lock is taken by force: some twenty seconds where nothing else runs. Long, so that a process that
/// a debugger has stopped for a moment isn't taken for dead.
const PATIENCE: u32 = 1 << 26;
/// Looks before others may run.
const SPINS: u32 = 100;

/// A lock that is held.
pub(crate) struct Guard<'a> {
    word: &'a AtomicU64,
    held: u64,
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.word
            .store(self.held.wrapping_add(1), Ordering::Release);
    }
}

/// Takes a lock; `forced` counts those taken by force.
#[inline]
pub(crate) fn lock<'a>(word: &'a AtomicU64, forced: &AtomicU64) -> Guard<'a> {
    match take(word, word.load(Ordering::Relaxed)) {
        Some(guard) => guard,
        None => wait(word, forced, PATIENCE),
    }
}

/// Takes a free lock, if it is what was seen.
#[inline]
fn take(word: &AtomicU64, seen: u64) -> Option<Guard<'_>> {
    let held = seen | 1;
    if seen == held {
        return None;
    }
    word.compare_exchange(seen, held, Ordering::Acquire, Ordering::Relaxed)
        .ok()
        .map(|_| Guard { word, held })
}

#[cold]
fn wait<'a>(word: &'a AtomicU64, forced: &AtomicU64, patience: u32) -> Guard<'a> {
    let mut seen = word.load(Ordering::Relaxed);
    let mut looks = 0;
    loop {
        if let Some(guard) = take(word, seen) {
            return guard;
        }
        if looks < SPINS {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
        let now = word.load(Ordering::Relaxed);
        looks = if now == seen { looks + 1 } else { 0 };
        seen = now;
        if looks >= patience {
            let held = seen.wrapping_add(2);
            let mine = word.compare_exchange(seen, held, Ordering::Acquire, Ordering::Relaxed);
            if mine.is_ok() {
                forced.fetch_add(1, Ordering::Relaxed);
                return Guard { word, held };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_holds_nobody_else_does() {
        let (word, forced) = (AtomicU64::new(0), AtomicU64::new(0));
        // Two words that only differ if two are in at once.
        let (one, other) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let _guard = lock(&word, &forced);
                        let seen = one.load(Ordering::Relaxed);
                        assert_eq!(seen, other.load(Ordering::Relaxed));
                        one.store(seen + 1, Ordering::Relaxed);
                        other.store(seen + 1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(one.into_inner(), 80_000);
        assert_eq!(word.into_inner(), 160_000, "two steps for each holder");
        assert_eq!(forced.into_inner(), 0);
    }

    #[test]
    fn who_is_stuck_loses_the_lock_and_that_is_noted() {
        let (word, forced) = (AtomicU64::new(0), AtomicU64::new(0));
        std::mem::forget(lock(&word, &forced));
        let guard = wait(&word, &forced, 1000);
        assert_eq!(forced.load(Ordering::Relaxed), 1);
        drop(guard);
        drop(lock(&word, &forced));
        assert_eq!(forced.into_inner(), 1, "it is free again");
    }
}
