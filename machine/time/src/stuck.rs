//! When a core that holds others back is taken to wait inside QEMU.
//!
//! Nothing tells that for certain, and to be wrong costs exactness: the others run away from a core that is only slow. So a core must have stood still for
//! long, while whoever waits for it looked on and every thread of the emulator had the real cores that it wanted:
//!
//! - **Looked on.** What counts is not how late it is but what the waiter has seen. It wakes every 50 ms ([`super::NAP`]); a look that comes seconds late says
//!   that the real machine stood still, or had no core for the waiter either, and the others are no better off. It counts as two naps.
//! - **Had what they wanted.** Once patience is over, and then each fifth of it, all threads are looked at ([`crate::wanting`]). Where one has wanted a real core
//!   from one look to the next and has had none, the core may wait for that one, or be it.
//!
//! A machine that is so busy for a minute is no longer waited for: a core that waits inside QEMU for something that never comes must not stall the rest,
//! however busy the real machine is.

use std::time::{Duration, Instant};

use super::{NAP, STARVED};
use crate::lockstep::Holder;
use crate::wanting::Wanting;

/// What a core that waits thinks of the one that holds it.
#[derive(Debug, Default)]
pub struct Suspicion {
    seen: Option<Seen>,
}

#[derive(Debug)]
struct Seen {
    holder: Holder,
    looked: Instant,
    /// For how long it has been seen not to move.
    still: Duration,
    /// When threads are looked at next, in the same terms.
    look_at: Duration,
    wanting: Option<Wanting>,
    looks: u32,
}

impl Suspicion {
    /// A look at the one that holds us. Returns whether it is stuck.
    pub fn grows(
        &mut self,
        holder: Holder,
        now: Instant,
        patience: Duration,
        wanting: impl FnOnce() -> Wanting,
    ) -> bool {
        let seen = match &mut self.seen {
            Some(seen) if seen.holder == holder => seen,
            other => {
                *other = Some(Seen {
                    holder,
                    looked: now,
                    still: Duration::ZERO,
                    look_at: patience,
                    wanting: None,
                    looks: 0,
                });
                return false;
            }
        };
        seen.still += now.duration_since(seen.looked).min(2 * NAP);
        seen.looked = now;
        if seen.still < seen.look_at {
            return false;
        }
        seen.look_at = seen.still + patience / 5;
        let wanting = wanting();
        let before = seen.wanting.replace(wanting.clone());
        let Some(before) = before else {
            return false;
        };
        seen.looks += 1;
        !before.starved_until(&wanting) || seen.looks > STARVED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(5);
    const HOLDER: Holder = Holder {
        core: 1,
        time: 100,
        until: 200,
    };

    /// Looks on, each `step`, at a core that doesn't move. Returns when it was taken to be stuck, within `most`.
    fn stuck_after(
        step: Duration,
        most: Duration,
        mut wanting: impl FnMut(Duration) -> Wanting,
    ) -> Option<Duration> {
        let began = Instant::now();
        let mut suspicion = Suspicion::default();
        let mut passed = Duration::ZERO;
        while passed < most {
            if suspicion.grows(HOLDER, began + passed, PATIENCE, || wanting(passed)) {
                return Some(passed);
            }
            passed += step;
        }
        None
    }

    fn secs(range: std::ops::Range<u64>, found: Option<Duration>) {
        let found = found.expect("it is taken to be stuck at last");
        let range = Duration::from_secs(range.start)..Duration::from_secs(range.end);
        assert!(range.contains(&found), "{found:?}");
    }

    #[test]
    fn a_core_that_stands_still_while_all_have_what_they_want_is_stuck() {
        let hour = Duration::from_hours(1);
        secs(6..7, stuck_after(NAP, hour, |_| Wanting::default()));
        // Whoever runs has had more each time.
        let runs = |passed: Duration| Wanting::made_up(&[(7, passed.subsec_nanos().into())]);
        secs(6..9, stuck_after(Duration::from_millis(49), hour, runs));
    }

    #[test]
    fn a_core_that_moves_is_never_stuck() {
        let mut suspicion = Suspicion::default();
        let began = Instant::now();
        for look in 0..10_000 {
            let holder = Holder {
                time: i64::from(look / 90),
                ..HOLDER
            };
            let now = began + look * NAP;
            assert!(!suspicion.grows(holder, now, PATIENCE, Wanting::default));
        }
    }

    #[test]
    fn nobody_is_stuck_while_a_thread_gets_no_real_core_for_up_to_a_minute() {
        let until = Duration::from_secs(30);
        let starves = |passed: Duration| Wanting::made_up(&[(7, u64::from(passed > until))]);
        let hour = Duration::from_hours(1);
        secs(30..33, stuck_after(NAP, hour, starves));
        let always = |_| Wanting::made_up(&[(7, 0)]);
        secs(60..70, stuck_after(NAP, hour, always));
    }

    #[test]
    fn a_real_machine_that_stood_still_is_no_reason() {
        // Each look comes ten seconds late: it takes as many of them as it takes on time.
        let late = Duration::from_secs(10);
        let looks = |step: Duration| {
            let after = stuck_after(step, Duration::from_hours(2), |_| Wanting::default());
            after.expect("at last").as_millis() / step.as_millis()
        };
        assert!(looks(late) >= looks(2 * NAP), "{}", looks(late));
        assert_eq!(stuck_after(late, 50 * late, |_| Wanting::default()), None);
    }
}
