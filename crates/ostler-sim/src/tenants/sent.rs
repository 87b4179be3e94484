//! What a NIC says of what it has sent, where its transmit rings have vectors of their own.
//!
//! By which ring a core sends is what XPS says, and else what the answer's queue of the guest is (`skb_tx_hash`: a tap notes its queue as the one received on). The NIC sends at once; its ring's
//! interrupt says so, at most once in the moderation time and not at all while its softirq is at it (NAPI), which finds all that was sent by then.
//!
//! What is left out: interrupts of these that are lost, which delay nothing that anyone waits for; and rings that are full.

use ostler_model::{CpuId, Nanos};

use super::{SENT, SENT_HARD, SENT_SOFT, Tenants};
use crate::net::nic::{Napi, NicSpec};
use crate::work::Effects;

impl Tenants {
    /// A core sends an answer of this queue of its guest.
    pub(super) fn sends(&mut self, cpu: CpuId, queue: u32, now: Nanos, out: &mut Effects) {
        let Some(ring) = self.nic.transmit_ring(cpu, queue) else {
            return;
        };
        let sender = &mut self.nic.senders[ring as usize];
        sender.gone = true;
        if (self.nic.spec.echoes || sender.napi == Napi::Idle) && !sender.alarm {
            self.says_sent(ring, false, now, out);
        }
    }

    /// A transmit ring's interrupt, as soon as the moderation lets it; where it is the echo of the one before none follows.
    fn says_sent(&mut self, ring: u32, echo: bool, now: Nanos, out: &mut Effects) {
        let NicSpec {
            moderation, echoes, ..
        } = self.nic.spec;
        let sender = &mut self.nic.senders[ring as usize];
        let earliest = sender.raised.map(|at| at.saturating_add(moderation));
        if let Some(at) = earliest.filter(|at| *at > now) {
            sender.alarm = true;
            out.alarm(at, SENT | u64::from(ring));
            return;
        }
        sender.napi.raise();
        sender.cpu = sender.irq;
        // Where there are echoes the alarm is what lets no other come: once it is over, the next one may at once.
        if !echoes {
            sender.raised = Some(now);
        } else if !echo {
            sender.alarm = true;
            out.alarm(now.saturating_add(moderation), SENT | u64::from(ring));
        }
        sender.interrupts += 1;
        out.interrupt(sender.cpu, SENT_HARD | u64::from(ring), self.costs.hardirq);
    }

    /// The moderation time is over.
    pub(super) fn may_say_sent(&mut self, ring: u32, now: Nanos, out: &mut Effects) {
        let echo = self.nic.spec.echoes;
        let sender = &mut self.nic.senders[ring as usize];
        sender.alarm = false;
        if echo || (sender.gone && sender.napi == Napi::Idle) {
            self.says_sent(ring, echo, now, out);
        }
    }

    /// The interrupt is over, and its softirq follows.
    pub(super) fn sees_sent(&mut self, ring: u32, out: &mut Effects) {
        let sender = &mut self.nic.senders[ring as usize];
        sender.gone = false;
        // One that is at it already sees to that, too.
        if sender.napi.polls() {
            return;
        }
        out.softirq(sender.cpu, SENT_SOFT | u64::from(ring), self.costs.sent);
    }

    /// The softirq is over; what was sent meanwhile has the next.
    pub(super) fn saw_sent(&mut self, ring: u32, now: Nanos, out: &mut Effects) {
        let sender = &mut self.nic.senders[ring as usize];
        sender.napi = Napi::Idle;
        if sender.gone && !sender.alarm {
            self.says_sent(ring, false, now, out);
        }
    }
}
