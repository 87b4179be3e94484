//! Locks of a guest's kernel whose holder is taken off its core.
//!
//! What comes for a task that waits for events (`epoll_wait`) is put on its list under the list's lock, and the task is woken before that is given back (fs/eventpoll.c, `ep_poll_callback`); the first thing that the
//! task does is to take it (`ep_poll`). If its vCPU sleeps, the waker leaves its guest to interrupt it, and the host may have the woken vCPU take the very core: then the woken one
//! spins for what nobody can give back. A guest's kernel knows that there is a host, so it spins no longer than so many turns and then sleeps until it is told
//! (kernel/locking/qspinlock_paravirt.h, `pv_wait_head_or_lock`); interrupts are off all the while. On cores of its own, or on one that the woken doesn't take, a waker
//! has given the lock back long before the other asks for it.
//!
//! Hosts that stop who spins (pause-loop exiting) give the core away sooner. The lab's emulated one can't, and papers' hosts have what their papers count.

use ostler_model::{CpuId, Nanos};

use super::Tenants;
use crate::guest::Segment;
use crate::work::Effects;

/// What a holder still does once it is back in its guest: the least that a core can do.
const REST: Nanos = Nanos(1);

impl Tenants {
    /// A vCPU has interrupted another, whose task then takes a lock that it still has.
    pub(super) fn holds(&mut self, g: u32, v: u32, target: u32) {
        if self.costs.lock_spin == Nanos::ZERO {
            return;
        }
        let guest = &mut self.guests[g as usize];
        guest.vcpus[target as usize].locked_by = Some(v);
        guest.vcpus[v as usize]
            .exits
            .push_front((REST, crate::guest::Then::Unlock(target)));
    }

    /// Whether a vCPU that goes on with its tasks spins first.
    pub(super) fn spins(&mut self, g: u32, v: u32) -> bool {
        let vcpu = &mut self.guests[g as usize].vcpus[v as usize];
        let spins = vcpu.locked_by.is_some();
        if spins {
            vcpu.segment = Some((Segment::Spin, self.costs.lock_spin));
        }
        spins
    }

    /// A vCPU gives a lock back that another takes first: it stops spinning, or is woken.
    pub(super) fn gives_back(
        &mut self,
        g: u32,
        v: u32,
        target: u32,
        cpu: CpuId,
        out: &mut Effects,
    ) {
        let target = &mut self.guests[g as usize].vcpus[target as usize];
        if target.locked_by != Some(v) {
            return;
        }
        target.locked_by = None;
        if std::mem::take(&mut target.halted) || target.on.is_some() {
            out.notify_from(target.thread, cpu);
        }
    }
}
