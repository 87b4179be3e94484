//! Which queue a tap puts a connection's packets into: the one by which the guest last answered on it.
//!
//! A tap of several queues has no hash of its own. It remembers for each flow the queue on which the guest last sent a packet of it, and gives the guest the flow's next packets there
//! (`tun_automq_select_queue`, `tun_flow_update`, drivers/net/tun.c); one that it doesn't know, or hasn't heard of in three seconds, goes by the flow's hash. A guest sends
//! on the queue of the vCPU that its thread runs on (XPS). So with a queue for each vCPU, packets come to the vCPU whose thread waits for them, and no other is woken for it; with one queue
//! for all they come to the first, which wakes that one.

use ostler_model::Nanos;

/// `TUN_FLOW_EXPIRE`.
const EXPIRES: Nanos = Nanos::from_secs(3);

/// What taps have learned.
#[derive(Clone, Debug, Default)]
pub(super) struct Learned {
    /// By flow, and of that by place on its route: the queue, and when it was heard of last.
    queues: Vec<Option<(u32, Nanos)>>,
    hops: usize,
}

impl Learned {
    /// Of so many flows, each of which passes so many guests at the most.
    pub fn new(flows: u32, hops: usize) -> Learned {
        Learned {
            queues: vec![None; flows as usize * hops],
            hops,
        }
    }

    fn at(&self, flow: u32, hop: u32) -> usize {
        flow as usize * self.hops + hop as usize
    }

    /// A guest has sent a packet on a queue.
    pub fn sent(&mut self, flow: u32, hop: u32, queue: u32, now: Nanos) {
        let at = self.at(flow, hop);
        if let Some(known) = self.queues.get_mut(at) {
            *known = Some((queue, now));
        }
    }

    /// The queue for a packet, of those that the guest uses; `None`: it isn't known.
    pub fn queue(&self, flow: u32, hop: u32, queues: u32, now: Nanos) -> Option<u32> {
        let (queue, heard) = (*self.queues.get(self.at(flow, hop))?)?;
        (queue < queues && now.saturating_sub(heard) <= EXPIRES).then_some(queue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_guest_last_sent_on_is_where_its_packets_come_until_it_is_forgotten() {
        let mut learned = Learned::new(2, 2);
        let at = Nanos::from_secs;
        assert_eq!(learned.queue(1, 0, 4, at(0)), None);
        learned.sent(1, 0, 3, at(1));
        assert_eq!(learned.queue(1, 0, 4, at(2)), Some(3));
        learned.sent(1, 0, 2, at(2));
        assert_eq!(learned.queue(1, 0, 4, at(5)), Some(2));
        // It is three seconds old; the queue isn't used any more; another flow's, or another guest's.
        assert_eq!(learned.queue(1, 0, 4, Nanos(at(5).0 + 1)), None);
        assert_eq!(learned.queue(1, 0, 2, at(3)), None);
        assert_eq!(learned.queue(0, 0, 4, at(3)), None);
        assert_eq!(learned.queue(1, 1, 4, at(3)), None);
        // None of that many.
        learned.sent(7, 0, 1, at(1));
        assert_eq!(learned.queue(7, 0, 4, at(1)), None);
    }
}
