//! How a core waits for those that are behind: of its own machine, and of others.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::stuck::Suspicion;
use super::{Emulator, Machine, NAP, NOBODY, PEERS, SHY, SPINS, STRANGER, YIELDS};
use crate::watch::seconds;

/// So many excuses are told one by one; all are counted.
const TOLD: u64 = 8;

impl<E: Emulator> Machine<E> {
    /// Whether a core that waits is wanted elsewhere. What it has yet to hear from another machine is exact only if it has waited for that one,
    /// so among machines an interrupt of its own doesn't count: it is taken at the block's end anyway.
    fn wanted(&self, core: usize) -> bool {
        if self.fused.is_some() {
            self.emulator.called_away(core)
        } else {
            self.emulator.asked_to_leave(core)
        }
    }

    /// Waits until no other machine is more than a quantum behind. Returns `false` if the core is wanted elsewhere before that, or something
    /// is `due`.
    pub(super) fn wait_for_peers(&self, core: usize, time: i64, due: &impl Fn() -> bool) -> bool {
        let Some(fused) = &self.fused else {
            return true;
        };
        if fused.behind(time).is_none() {
            return true;
        }
        let waits_for = &self.own[core].waits_for;
        waits_for.store(PEERS, Ordering::SeqCst);
        let free = fused.wait(time, || due() || self.wanted(core));
        waits_for.store(NOBODY, Ordering::SeqCst);
        free
    }

    /// Waits until nobody is more than a quantum behind. Returns `false` if the core is wanted elsewhere before that: for an
    /// interrupt, or because another one needs all cores to stop; or if something is `due` that another machine has rung for. (Nobody tells a
    /// sleeper of that but its nap's end: it takes a core that an access has brought far ahead of the others of its machine.)
    ///
    /// Who sleeps here is woken by the one core that it waits for, and only once that one has come far enough. It says whom it
    /// waits for before it looks at that core's time; the other stores its time before it looks who waits. Both are in one total
    /// order, so either the waiter sees the time or the other sees the waiter.
    pub(super) fn wait_for_others(&self, core: usize, time: i64, due: &impl Fn() -> bool) -> bool {
        let own = &self.own[core];
        let leave = || self.wanted(core) || due();
        let held = |asks: bool| {
            self.lockstep
                .holder(core, time, |other| !asks || self.emulator.has_work(other))
        };
        for spin in 0..SPINS {
            // A woken core is asked after its work only once the wait gets longer: it is a call into QEMU.
            if held(spin > SPINS / 4).is_none() {
                return true;
            }
            if leave() {
                own.left.fetch_add(1, Ordering::Relaxed);
                return false;
            }
            if spin == 0 {
                own.waits.fetch_add(1, Ordering::Relaxed);
            }
            std::hint::spin_loop();
        }
        let waits = own.waits.load(Ordering::Relaxed);
        if waits >= own.shy_until.load(Ordering::Relaxed) {
            for _ in 0..YIELDS {
                own.yields.fetch_add(1, Ordering::Relaxed);
                let began = Instant::now();
                std::thread::yield_now();
                let took = began.elapsed();
                if held(true).is_none() {
                    return true;
                }
                if leave() {
                    own.left.fetch_add(1, Ordering::Relaxed);
                    return false;
                }
                if took > STRANGER {
                    own.shy_until.store(waits + SHY, Ordering::Relaxed);
                    break;
                }
            }
        }
        let mut suspicion = Suspicion::default();
        let free = loop {
            own.sleeps.fetch_add(1, Ordering::Relaxed);
            let mut holder = None;
            own.gate.wait_while(NAP, || {
                if leave() {
                    return false;
                }
                // Announced, and then looked at again: until the one announced is the one that holds us.
                holder = held(true);
                while let Some(found) = holder {
                    let until = own.waits_until_ns.swap(found.until, Ordering::SeqCst);
                    let core = own.waits_for.swap(found.core, Ordering::SeqCst);
                    if (core, until) == (found.core, found.until) {
                        return true;
                    }
                    holder = held(true);
                }
                false
            });
            let Some(holder) = held(true) else {
                break true;
            };
            if leave() {
                own.left.fetch_add(1, Ordering::Relaxed);
                break false;
            }
            // Another machine may be as slow as its real cores are busy: who waits for it isn't stuck.
            let excusable = !self.waits_for_peers(holder.core);
            let stuck = suspicion.grows(holder, Instant::now(), self.patience, || {
                self.emulator.wanting()
            });
            let state = self.lockstep.seat(holder.core).0;
            if stuck && excusable && self.lockstep.excuse(holder) {
                if self.counts.excused.fetch_add(1, Ordering::Relaxed) < TOLD {
                    self.emulator.say(&format!(
                        "core {} is left out: {} at {} for long, and not for want of a real core; {}",
                        holder.core,
                        state.word(),
                        seconds(holder.time),
                        self.emulator.describe(holder.core)
                    ));
                }
                self.let_go(holder.core, i64::MAX);
            }
        };
        own.waits_for.store(NOBODY, Ordering::SeqCst);
        free
    }
}
