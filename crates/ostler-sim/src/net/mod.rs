//! The way of a packet: NIC queue, softirq, switch, vhost worker, guest, and back.
//!
//! A message is a request on its way to a guest, or its answer on its way back; in a chain it is a packet that passes one guest after the other. It
//! is always at exactly one [`Place`], and [`Net`] is told whenever it goes to another ([`Net::enter`]). So what is where can be counted in two
//! ways, and is (`check/`).
//!
//! | room | what it is |
//! |---|---|
//! | [`nic`] | receive queues, interrupt moderation, softirqs, RPS |
//! | [`vhost`] | the host's half of a guest's queue pair |

#![expect(
    clippy::cast_possible_truncation,
    reason = "numbers of queues, workers and messages are far below 2^32"
)]

pub mod nic;
pub mod sends;
pub mod vhost;

use ostler_model::{CpuId, Nanos};

/// Where a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// In the ring of a NIC queue; or, after RPS, in the backlog of a core. By number of the poller.
    Ring,
    /// In a softirq. By number of the poller.
    Softirq,
    /// In a tap's queue, before the vhost worker. By number of the worker.
    Tap,
    /// With the worker, on its way in.
    VhostRx,
    /// In the guest's receive queue. By number of the worker.
    Vring,
    /// In the guest's softirq. By number of the guest, and so on.
    GuestSoftirq,
    /// Waiting for a task.
    Socket,
    /// With a task.
    Service,
    /// In the guest's transmit queue. By number of the worker.
    TxRing,
    /// With the worker, on its way out.
    VhostTx,
}

/// How many stages there are.
pub const STAGES: usize = 10;

/// A stage of something that has a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Which stage.
    pub stage: Stage,
    /// Of which poller, worker or guest.
    pub at: u32,
}

/// Why a message is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Loss {
    /// The ring of the NIC queue was full.
    Ring,
    /// The backlog of the core that RPS chose was full.
    Backlog,
    /// The queue of the tap was full.
    Tap,
    /// The guest's transmit queue and what waits before it were full.
    Transmit,
    /// The guest is dead.
    Dead,
}

/// How many reasons there are.
pub const LOSSES: usize = 5;

/// Something that happened to a message, or to a thread's time, for whoever audits it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// A client sent it, of this number; each number is given once.
    Sent(u64),
    /// It is at a place from now on.
    Entered(u64, Place),
    /// It was answered.
    Answered(u64),
    /// It asked nothing, and was taken.
    Taken(u64),
    /// It was lost.
    Lost(u64, Loss),
}

/// What has passed a place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Messages that came.
    pub entered: u64,
    /// That went on, were answered there or lost there.
    pub left: u64,
    /// How long those that left had been there, ns.
    pub time: u128,
}

/// A message.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// Its number.
    pub uid: u64,
    /// Whose: the number of a load.
    pub load: u32,
    /// Its connection, of all connections.
    pub flow: u32,
    /// Where it is on its route.
    pub hop: u32,
    /// When its client meant to send it.
    pub due: Nanos,
    /// When it last passed a tap inwards.
    pub tapped: Nanos,
    /// When it came to where it is.
    pub entered: Nanos,
    /// Where it is; `None` before the first and after the last place.
    pub place: Option<Place>,
    /// The core that worked on it last.
    pub cpu: CpuId,
    /// What queues are chosen by.
    pub hash: u32,
    /// What the stages' costs are times, in parts of 1024: packets to a message.
    pub packets: u32,
    /// How often its request has been sent, with this.
    pub times: u32,
    /// It is no request: it acknowledges an answer, and a guest's kernel takes it.
    pub acknowledges: bool,
}

/// Messages, where they are, and what became of them.
#[derive(Default)]
pub struct Net {
    messages: Vec<Message>,
    free: Vec<u32>,
    passed: [Vec<Passed>; STAGES],
    sent: u64,
    answered: u64,
    taken: u64,
    lost: [u64; LOSSES],
    witness: Option<Witness>,
}

/// Whoever is told what happens.
pub type Witness = Box<dyn FnMut(Nanos, Note) + Send>;

impl Net {
    /// Has someone told of all that happens from now on.
    pub fn watch(&mut self, witness: Witness) {
        self.witness = Some(witness);
    }

    fn tell(&mut self, now: Nanos, note: Note) {
        if let Some(witness) = &mut self.witness {
            witness(now, note);
        }
    }

    /// A new message, nowhere yet.
    pub fn send(&mut self, now: Nanos, load: u32, flow: u32, due: Nanos, packets: u32) -> u32 {
        self.sent += 1;
        let uid = self.sent;
        let message = Message {
            uid,
            load,
            flow,
            hop: 0,
            due,
            tapped: Nanos::ZERO,
            entered: now,
            place: None,
            cpu: CpuId(u32::MAX),
            hash: spread(flow),
            packets,
            times: 1,
            acknowledges: false,
        };
        self.tell(now, Note::Sent(uid));
        if let Some(at) = self.free.pop() {
            self.messages[at as usize] = message;
            return at;
        }
        self.messages.push(message);
        (self.messages.len() - 1) as u32
    }

    /// A message that is on its way.
    pub fn message(&self, at: u32) -> &Message {
        &self.messages[at as usize]
    }

    /// Likewise, to change.
    pub fn message_mut(&mut self, at: u32) -> &mut Message {
        &mut self.messages[at as usize]
    }

    fn leave(&mut self, now: Nanos, at: u32) {
        let message = &mut self.messages[at as usize];
        if let Some(place) = message.place.take() {
            let passed = &mut self.passed[place.stage as usize][place.at as usize];
            passed.left += 1;
            passed.time += u128::from(now.0 - message.entered.0);
        }
    }

    /// It goes to a place.
    pub fn enter(&mut self, now: Nanos, at: u32, stage: Stage, number: u32) {
        self.leave(now, at);
        let place = Place { stage, at: number };
        let message = &mut self.messages[at as usize];
        message.place = Some(place);
        message.entered = now;
        let uid = message.uid;
        let all = &mut self.passed[stage as usize];
        if all.len() <= number as usize {
            all.resize(number as usize + 1, Passed::default());
        }
        all[number as usize].entered += 1;
        self.tell(now, Note::Entered(uid, place));
    }

    /// It was answered, and is no more.
    pub fn answer(&mut self, now: Nanos, at: u32) {
        self.leave(now, at);
        self.answered += 1;
        self.free.push(at);
        self.tell(now, Note::Answered(self.messages[at as usize].uid));
    }

    /// It acknowledged an answer, and is no more.
    pub fn take(&mut self, now: Nanos, at: u32) {
        self.leave(now, at);
        self.taken += 1;
        self.free.push(at);
        self.tell(now, Note::Taken(self.messages[at as usize].uid));
    }

    /// It was lost, and is no more.
    pub fn lose(&mut self, now: Nanos, at: u32, loss: Loss) {
        self.leave(now, at);
        self.lost[loss as usize] += 1;
        self.free.push(at);
        self.tell(now, Note::Lost(self.messages[at as usize].uid, loss));
    }

    /// Messages sent, answered, and lost by reason.
    pub fn totals(&self) -> (u64, u64, [u64; LOSSES]) {
        (self.sent, self.answered, self.lost)
    }

    /// Messages that acknowledged answers.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// What has passed each place of a stage, by number.
    pub fn passed(&self, stage: Stage) -> &[Passed] {
        &self.passed[stage as usize]
    }

    /// Requests that are somewhere now: of which load each is, and when it was due.
    pub fn unanswered(&self) -> impl Iterator<Item = (u32, Nanos)> {
        let asks = |it: &&Message| it.place.is_some() && !it.acknowledges;
        let there = self.messages.iter().filter(asks);
        there.map(|message| (message.load, message.due))
    }

    /// Messages that are somewhere now, each with its place and since when.
    pub fn in_flight(&self) -> impl Iterator<Item = (u64, Place, Nanos)> {
        self.messages.iter().filter_map(|message| {
            let place = message.place?;
            Some((message.uid, place, message.entered))
        })
    }
}

impl Stage {
    /// In the order of the way.
    pub const ALL: [Stage; STAGES] = [
        Stage::Ring,
        Stage::Softirq,
        Stage::Tap,
        Stage::VhostRx,
        Stage::Vring,
        Stage::GuestSoftirq,
        Stage::Socket,
        Stage::Service,
        Stage::TxRing,
        Stage::VhostTx,
    ];
}

/// What a NIC's hash makes of a flow: near ones have nothing in common.
pub fn spread(flow: u32) -> u32 {
    let mut bits = flow.wrapping_add(0x9e37_79b9);
    bits = (bits ^ (bits >> 16)).wrapping_mul(0x85eb_ca6b);
    bits = (bits ^ (bits >> 13)).wrapping_mul(0xc2b2_ae35);
    bits ^ (bits >> 16)
}
