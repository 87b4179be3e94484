//! A NIC's receive queues, and the softirqs that empty them.
//!
//! Packets are spread over the queues in use by a hash of their flow (RSS). A queue's interrupt comes at most once in the moderation time, and
//! not at all while its softirq polls (NAPI); that takes messages in turns of [`TURN`], each turn one piece of a core's work; when that is too much for too long, the host has its softirq thread go on. With RPS the
//! interrupt's core does no more than choose another by the hash, whose backlog is emptied likewise.
//!
//! On the lab's host a packet goes up when the one before is done, and its worker is woken at once, though that has no core there before the poll is over. Its NIC masks nothing: an interrupt comes while the softirq polls, too, which
//! then looks once more (QEMU's igb doesn't mask what the driver has it mask by itself, EIAM).
//!
//! Two faults: an interrupt that is lost, which the driver's watchdog repeats after [`WATCHDOG`]; and a full ring, whose packets are lost.
//!
//! That what was sent is gone comes with what is received where a vector is for both, and is in the cost of that; some NICs have transmit rings with vectors
//! of their own ([`Sender`]).
//!
//! What is left out: GRO.

use std::collections::VecDeque;

use ostler_model::{CpuId, CpuSet, Nanos, NodeId};

/// Messages that a softirq takes in one piece: as many as go up the stack at once (`gro_normal_batch`).
pub const TURN: usize = 8;
/// After this long a queue that has packets and no interrupt gets one (ixgbe's service timer).
pub const WATCHDOG: Nanos = Nanos::from_secs(2);
/// What a core's backlog holds (`netdev_max_backlog`).
pub const BACKLOG: usize = 1000;
/// Entries of the table by which a hash chooses a queue.
const INDIRECTION: u32 = 128;

/// A NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NicSpec {
    /// Its receive queues; each has an interrupt.
    pub queues: u32,
    /// What a queue's ring holds.
    pub ring: u32,
    /// A queue's interrupt comes at most once in this time.
    pub moderation: Nanos,
    /// Whether it comes again when that is over, whatever has come by then: QEMU's igb does (hw/net/igb_core.c of 10.0, `igb_intrmgr_on_msix_throttling_timer`).
    pub echoes: bool,
    /// The node that it is attached to.
    pub node: NodeId,
    /// Whether transmit rings, as many as there are queues, have vectors of their own.
    pub sends: bool,
}

impl Default for NicSpec {
    /// One queue, 512 descriptors (ixgbe's), at most 100,000 interrupts a second (the lowest latency of its classes).
    fn default() -> NicSpec {
        NicSpec {
            queues: 1,
            ring: 512,
            moderation: Nanos::from_micros(10),
            echoes: false,
            node: NodeId(0),
            sends: false,
        }
    }
}

/// Who sees to a ring. Where that is masked meanwhile there is no further interrupt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Napi {
    /// Nobody.
    #[default]
    Idle,
    /// An interrupt is on its way.
    Raised,
    /// A softirq is at it.
    Polls,
}

impl Napi {
    /// An interrupt is on its way; to a softirq that is at it that is nothing new.
    pub fn raise(&mut self) {
        if *self == Napi::Idle {
            *self = Napi::Raised;
        }
    }

    /// A softirq is at it; whether one was before.
    pub fn polls(&mut self) -> bool {
        std::mem::replace(self, Napi::Polls) == Napi::Polls
    }
}

/// Something that softirqs empty: the ring of a queue, or the backlog of a core.
#[derive(Debug, Default)]
pub struct Poller {
    /// What waits.
    pub ring: VecDeque<u32>,
    /// What it holds at the most.
    pub limit: usize,
    /// What is being worked on.
    pub batch: Vec<u32>,
    /// Who sees to it.
    pub napi: Napi,
    /// The core that it is being emptied on.
    pub cpu: CpuId,
    /// Whether its interrupt has come, and nothing was polled since.
    pub fresh: bool,
    /// Whether its poll has found packets, and has yet to do what comes after the last of them.
    pub ends: bool,
    /// When its interrupt came last.
    pub raised: Option<Nanos>,
    /// Whether an alarm is set, for the moderation, its echo or by the watchdog.
    pub alarm: bool,
    /// Interrupts so far.
    pub interrupts: u64,
}

/// What a queue is told by a plan.
#[derive(Clone, Debug, Default)]
pub struct Steering {
    /// Where its interrupt goes.
    pub irq: CpuId,
    /// The cores that share its work; none: the interrupt's does it.
    pub rps: Vec<CpuId>,
}

/// A transmit ring that has a vector of its own.
#[derive(Clone, Debug, Default)]
pub struct Sender {
    /// Where its interrupt goes.
    pub irq: CpuId,
    /// Something was sent that no softirq has seen to be gone.
    pub gone: bool,
    /// Who sees to it.
    pub napi: Napi,
    /// The core that it is being seen to on.
    pub cpu: CpuId,
    /// When its interrupt came last.
    pub raised: Option<Nanos>,
    /// Whether an alarm is set for the moderation, or its echo.
    pub alarm: bool,
    /// Interrupts so far.
    pub interrupts: u64,
}

/// A NIC, and the backlogs of the cores.
#[derive(Debug)]
pub struct Nic {
    /// What it is.
    pub spec: NicSpec,
    /// The first so many queues are in use.
    pub queues: u32,
    /// A poller for each queue, and then one for each core's backlog.
    pub pollers: Vec<Poller>,
    /// By queue.
    pub steering: Vec<Steering>,
    /// By queue, where transmit rings have vectors.
    pub senders: Vec<Sender>,
    /// The ring that each core sends by (XPS); none: as the packet has it.
    sends_by: Vec<Option<u32>>,
}

impl Nic {
    /// With all queues in use, their interrupts on the cores in turn.
    pub fn new(spec: NicSpec, cores: &CpuSet, core_count: usize) -> Nic {
        let all: Vec<CpuId> = cores.iter().collect();
        let queues = spec.queues.max(1);
        let mut pollers = Vec::new();
        for _ in 0..queues {
            pollers.push(Poller {
                limit: spec.ring as usize,
                ..Poller::default()
            });
        }
        for cpu in (0..).take(core_count) {
            pollers.push(Poller {
                limit: BACKLOG,
                cpu: CpuId(cpu),
                ..Poller::default()
            });
        }
        let home = |queue: usize| {
            let cpu = all.get(queue % all.len().max(1));
            cpu.copied().unwrap_or_default()
        };
        let steering = (0..queues as usize).map(|queue| Steering {
            irq: home(queue),
            rps: Vec::new(),
        });
        let senders = (0..queues as usize).filter(|_| spec.sends);
        let senders = senders.map(|queue| Sender {
            irq: home(queue),
            ..Sender::default()
        });
        Nic {
            queues,
            steering: steering.collect(),
            senders: senders.collect(),
            sends_by: vec![None; core_count],
            pollers,
            spec,
        }
    }

    /// Cores send by these rings, in order; one in no set as the packet has it.
    pub fn send_by(&mut self, sets: &[CpuSet]) {
        self.sends_by.fill(None);
        for (ring, cpus) in (0..self.queue_count()).zip(sets) {
            for cpu in cpus {
                if let Some(by) = self.sends_by.get_mut(cpu.0 as usize) {
                    *by = Some(ring);
                }
            }
        }
    }

    /// The ring by which a core sends a packet that came by a queue of its guest, if such have vectors.
    pub fn transmit_ring(&self, cpu: CpuId, queue: u32) -> Option<u32> {
        let rings = self.senders.len() as u32;
        if rings == 0 {
            return None;
        }
        let by = self.sends_by.get(cpu.0 as usize).copied().flatten();
        Some(by.unwrap_or(queue % rings))
    }

    /// The queue that a hash is sent to: entries of the table take the queues in turn, as `ethtool -X equal` has it.
    pub fn queue(&self, hash: u32) -> u32 {
        hash % INDIRECTION % self.queues.max(1)
    }

    /// How many of the pollers are queues; the rest are backlogs, by core.
    pub fn queue_count(&self) -> u32 {
        self.steering.len() as u32
    }

    /// The backlog of a core.
    pub fn backlog(&self, cpu: CpuId) -> u32 {
        self.queue_count() + cpu.0
    }
}
