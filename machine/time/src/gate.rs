//! A place to wait until something that others change in atomics has come true.
//!
//! Waking is on the hot path and mostly in vain, waiting is rare; so who wakes looks at a count and goes on when nobody
//! waits. No wake-up is lost: a waiter announces itself before it looks at the condition, a waker changes what the
//! condition reads before it looks for waiters, and both in one total order. Either the waiter sees the change or the waker
//! sees the waiter; and a waker that has seen one takes the lock, which the waiter holds from its look until it sleeps.

use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Where threads wait for a condition.
#[derive(Debug, Default)]
pub struct Gate {
    waiting: AtomicUsize,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Gate {
    /// Wakes all who wait, to look at their conditions again. Call it after the change.
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.changed.notify_all();
        }
    }

    /// Waits while the condition holds, at most for `patience`. Returns whether it holds still.
    pub fn wait_while(&self, patience: Duration, mut condition: impl FnMut() -> bool) -> bool {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let (guard, outcome) = self
            .changed
            .wait_timeout_while(guard, patience, |()| condition())
            .unwrap_or_else(PoisonError::into_inner);
        drop(guard);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        outcome.timed_out()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    use super::*;

    /// Two threads hand a turn to and fro. A lost wake-up would show as a wait that ends by its patience alone.
    #[test]
    fn no_wake_up_is_lost() {
        const TURNS: u32 = 20_000;
        let shared = Arc::new((Gate::default(), AtomicU32::new(0)));
        let other = Arc::clone(&shared);
        let play = |(gate, turn): &(Gate, AtomicU32), parity: u32| {
            for mine in (parity..TURNS).step_by(2) {
                let timed_out = gate.wait_while(Duration::from_secs(30), || {
                    turn.load(Ordering::SeqCst) != mine
                });
                assert!(!timed_out, "turn {mine} was never announced");
                turn.store(mine + 1, Ordering::SeqCst);
                gate.wake();
            }
        };
        let thread = std::thread::spawn(move || play(&other, 1));
        play(&shared, 0);
        thread.join().expect("the other player ended well");
        assert_eq!(shared.1.load(Ordering::SeqCst), TURNS);
    }

    #[test]
    fn patience_ends_a_wait() {
        assert!(Gate::default().wait_while(Duration::from_millis(1), || true));
        assert!(!Gate::default().wait_while(Duration::ZERO, || false));
    }
}
