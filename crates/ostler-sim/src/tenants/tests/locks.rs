//! Who is next at a lock.

use super::*;
use crate::guest::Phase;

/// Seen from outside, every tenth of a microsecond: of those that begin to wait within one, nothing is said.
#[test]
fn nobody_has_a_lock_twice_while_another_waits_for_it() {
    let sleeps = Nanos::ZERO;
    for (tasks, spin) in [(4, Nanos(u64::MAX)), (4, sleeps), (7, sleeps)] {
        let program = Program::Lock {
            tasks,
            locks: 1,
            think: Time::Exponential(Nanos(2000)),
            hold: Time::Fixed(Nanos(1000)),
            lines: 0,
            spin,
            declared: false,
        };
        let mut driver = world(vec![guest(4, 1, program)], Vec::new(), free(), 3);
        let count = tasks as usize;
        let mut before = None;
        let mut waited = vec![false; count];
        // For each that waits, how often each other has had the lock since.
        let mut since = vec![vec![0_u32; count]; count];
        let mut turns = 0;
        for step in 1..=20_000 {
            driver.run(Nanos(100 * step));
            let guest = &driver.work.inner.guests[0];
            let holder = guest.programs[0].locks[0].holder;
            if let Some(has) = holder.filter(|_| holder != before) {
                turns += 1;
                for (waits, since) in since.iter_mut().enumerate() {
                    if waited[waits] && waits != has as usize {
                        since[has as usize] += 1;
                        assert!(
                            since[has as usize] < 2,
                            "{has} of {tasks} passed {waits} over in step {step}"
                        );
                    }
                }
            }
            before = holder;
            for (task, entry) in guest.tasks.iter().enumerate() {
                waited[task] = entry.phase == Phase::Wait;
                if !waited[task] {
                    since[task].fill(0);
                }
            }
        }
        assert!(turns > 1000, "{tasks} tasks had the lock {turns} times");
    }
}
