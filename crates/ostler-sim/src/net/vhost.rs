//! A vhost worker: the host's half of a guest's queue pair, a thread that copies.
//!
//! It takes up to [`BATCH`] messages of a direction at a time (`VHOST_NET_BATCH`), and rings the guest once for all of them.
//!
//! **One at a time.** Where it is told what each step takes, it takes messages as drivers/vhost/net.c does, each when the one before is done, as long as there are any: so those that come
//! meanwhile are of the same batch, up to [`WEIGHT`] of a direction before the other has its turn. Of what it sends, all is taken before the first leaves (`handle_tx_copy`, `vhost_tx_batch`), and while they leave no
//! softirq runs on its core (`tun_sendmsg`: `local_bh_disable` around the batch): what interrupts bring waits for its end, and is done at once. Else it takes what there is, the directions in turn.
//!
//! Neither side tells the other what that knows already: while the guest polls its queue there are no interrupts, and while the worker is at the transmit queue
//! the guest makes no exit to tell it. Where the guest's receive queue is full, messages wait in the tap; there they are lost when that is full.

use std::collections::VecDeque;

use ostler_model::{CpuId, Nanos};

use super::sends::Sends;
use crate::work::ThreadId;

/// Messages taken at once (`VHOST_NET_BATCH`).
pub const BATCH: usize = 64;
/// Messages of a direction before the other has its turn (`VHOST_NET_PKT_WEIGHT`).
pub const WEIGHT: usize = 256;
/// What a tap's queue holds (its `txqueuelen`).
pub const TAP: usize = 1000;
/// What a guest's queue holds (QEMU's default).
pub const VRING: usize = 256;
/// What waits in the guest before a full transmit queue (its queueing discipline).
pub const QDISC: usize = 1000;

/// What a worker is at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Doing {
    /// Nothing.
    #[default]
    Nothing,
    /// Messages into the guest.
    Receive,
    /// Messages out of the guest.
    Transmit,
    /// What it does with one that it has taken until that leaves.
    Send,
    /// What is left to do for one that has left, before the next.
    Sent,
    /// All that it has taken is sent, and its guest is to see that.
    Done,
    /// It goes to sleep.
    Settle,
}

/// What a guest knows of what it had to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Word {
    /// All that it wants to be told of.
    #[default]
    Kept,
    /// It is to be told that some is gone.
    Owed,
    /// It has been told, and hasn't looked yet.
    Given,
}

/// A worker and its queues.
#[derive(Debug, Default)]
pub struct Worker {
    /// Whose.
    pub guest: u32,
    /// Which queue pair.
    pub queue: u32,
    /// Its thread.
    pub thread: ThreadId,
    /// The tap's queue.
    pub tap: VecDeque<u32>,
    /// The guest's receive queue: what was copied, and not yet taken.
    pub vring: VecDeque<u32>,
    /// The guest's transmit queue.
    pub tx: VecDeque<u32>,
    /// What it has in hand.
    pub batch: VecDeque<u32>,
    /// What it does with that.
    pub doing: Doing,
    /// What it did before.
    pub before: Doing,
    /// How many messages of that direction it has taken, one at a time, since the other had its turn.
    pub streak: usize,
    /// How many of what it sends have left.
    pub gone: u32,
    /// What it has sent, and of what of it its guest wants to be told.
    pub sends: Sends,
    /// Whether its guest knows.
    pub word: Word,
    /// The work that is left of it.
    pub left: Nanos,
    /// Whether it has been told that there is work, and hasn't slept since.
    pub awake: bool,
    /// What it still takes to sleep again, since it was woken.
    pub settling: Nanos,
    /// Whether the guest needn't tell it of messages to send.
    pub kick_off: bool,
    /// Whether the guest needn't be told of messages received.
    pub interrupt_off: bool,
    /// Where it ran last.
    pub cpu: CpuId,
    /// Exits by which it was told.
    pub kicks: u64,
    /// Interrupts for the guest.
    pub interrupts: u64,
    /// What it has done in all.
    pub ran: Nanos,
}

impl Worker {
    /// It interrupts a vCPU, which takes so much, and so much more if that sleeps; what it does itself goes before that.
    pub fn tells(&mut self, takes: Nanos, asleep: bool, wakes: Nanos) {
        self.settling.0 += takes.0 + if asleep { wakes.0 } else { 0 };
    }

    /// Turns to what is next, if there is anything: to the first of it where it takes them one at a time, else to all of it, up to a batch.
    pub fn take(&mut self, one_at_a_time: bool) -> Doing {
        let room = VRING.saturating_sub(self.vring.len());
        let receive = !self.tap.is_empty() && room > 0;
        let stays = one_at_a_time && self.streak < WEIGHT;
        let doing = match (receive, !self.tx.is_empty()) {
            (false, false) => {
                self.streak = 0;
                return Doing::Nothing;
            }
            (true, true) if (self.before == Doing::Receive) != stays => Doing::Transmit,
            (true, _) => Doing::Receive,
            (false, true) => Doing::Transmit,
        };
        if doing != self.before || self.streak >= WEIGHT {
            self.streak = 0;
        }
        self.doing = doing;
        self.before = doing;
        if one_at_a_time {
            self.take_one();
        } else if doing == Doing::Receive {
            let count = self.tap.len().min(room).min(BATCH);
            self.batch.extend(self.tap.drain(..count));
        } else {
            let count = self.tx.len().min(BATCH);
            self.batch.extend(self.tx.drain(..count));
        }
        doing
    }

    /// Takes one more of the direction that it is at, if there is one and it goes into the batch.
    pub fn take_one(&mut self) -> Option<u32> {
        let room = VRING.saturating_sub(self.vring.len());
        let from = match self.doing {
            Doing::Receive if self.batch.len() < room => &mut self.tap,
            Doing::Transmit => &mut self.tx,
            _ => return None,
        };
        if self.batch.len() >= BATCH {
            return None;
        }
        let message = from.pop_front()?;
        self.batch.push_back(message);
        self.streak += 1;
        Some(message)
    }

    /// Whether what interrupts bring to its core waits for it to have sent what it has taken.
    pub fn holds_softirqs(&self) -> bool {
        matches!(self.doing, Doing::Send | Doing::Sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a worker does that takes one at a time, direction by direction, with so much to receive and to send, of which nothing more comes.
    fn does(receive: u32, send: u32) -> Vec<(Doing, usize)> {
        let mut worker = Worker {
            tap: (0..receive).collect(),
            tx: (0..send).collect(),
            before: Doing::Receive,
            ..Worker::default()
        };
        let mut did = Vec::new();
        loop {
            let doing = worker.take(true);
            if doing == Doing::Nothing {
                return did;
            }
            while worker.take_one().is_some() {}
            did.push((doing, worker.batch.len()));
            worker.batch.clear();
            worker.doing = Doing::Nothing;
        }
    }

    #[test]
    fn one_at_a_time_a_direction_goes_on_until_it_has_no_more_or_has_had_its_weight() {
        use Doing::{Receive, Transmit};
        assert_eq!(does(70, 10), [(Receive, 64), (Receive, 6), (Transmit, 10)]);
        let long = does(300, 300);
        let batches = |doing, last| {
            let full = std::iter::repeat_n((doing, BATCH), WEIGHT / BATCH);
            full.chain(last)
        };
        let wanted: Vec<_> = batches(Receive, None)
            .chain(batches(Transmit, Some((Receive, 44))))
            .chain([(Transmit, 44)])
            .collect();
        assert_eq!(long, wanted);
    }
}
