//! A vhost worker: the host's half of a guest's queue pair, a thread that copies.
//!
//! It takes up to [`BATCH`] messages of a direction at a time (`VHOST_NET_BATCH`), the directions in turn, and rings the guest once for all of them.
//! Neither side tells the other what that knows already: while the guest polls its queue there are no interrupts, and while the worker is at the transmit queue
//! the guest makes no exit to tell it. Where the guest's receive queue is full, messages wait in the tap; there they are lost when that is full.

use std::collections::VecDeque;

use ostler_model::{CpuId, Nanos};

use crate::work::ThreadId;

/// Messages taken at once (`VHOST_NET_BATCH`).
pub const BATCH: usize = 64;
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
    /// What is left to do for one that has left, before the next.
    Sent,
    /// All is sent, and its guest is to be told.
    Done,
    /// It goes to sleep.
    Settle,
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
    /// It interrupts a vCPU, which takes so much if that sleeps; what it does itself goes before that.
    pub fn tells(&mut self, asleep: bool, takes: Nanos) {
        if asleep {
            self.settling.0 += takes.0;
        }
    }

    /// Takes what is next, up to a batch: the directions in turn where both have something.
    pub fn take(&mut self) -> Doing {
        let room = VRING.saturating_sub(self.vring.len());
        let receive = !self.tap.is_empty() && room > 0;
        let doing = match (receive, !self.tx.is_empty()) {
            (false, false) => Doing::Nothing,
            (true, true) if self.before == Doing::Receive => Doing::Transmit,
            (true, _) => Doing::Receive,
            (false, true) => Doing::Transmit,
        };
        let (from, most) = match doing {
            Doing::Nothing | Doing::Settle | Doing::Sent | Doing::Done => return doing,
            Doing::Receive => (&mut self.tap, room.min(BATCH)),
            Doing::Transmit => (&mut self.tx, BATCH),
        };
        let count = from.len().min(most);
        self.batch.extend(from.drain(..count));
        self.doing = doing;
        self.before = doing;
        doing
    }
}
