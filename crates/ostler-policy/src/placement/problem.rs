//! What is to be placed, and on what: plain values, borrowed from whoever has them.

use ostler_model::CpuId;

pub use crate::wrong::Index;
use crate::wrong::{COUNT_MAX, Range, Wrong, figure, named, within};

/// Everything that a placement is found from.
#[derive(Clone, Copy, Debug)]
pub struct Problem<'a> {
    /// The cores that threads may be placed on.
    pub cores: &'a [Core],
    /// What the counters of each socket have told.
    pub sockets: &'a [Socket],
    /// How far sockets are from each other, row by row: 0 for a socket and itself, 1 for a neighbour by one link of the interconnect, in
    /// proportion beyond. Linux's node distances `d` make `(d - 10) / 11`, as most firmware says 21 for a neighbour.
    pub distances: &'a [f64],
    /// The kinds of stages, by what slows them down.
    pub kinds: &'a [Weights],
    /// The cores among which stages are placed.
    pub pools: &'a [Pool<'a>],
    /// The threads that run the stages.
    pub threads: &'a [Thread],
    /// The queues of all NICs.
    pub queues: &'a [Queue<'a>],
}

/// A core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Core {
    /// Its number on the host.
    pub id: CpuId,
    /// Its socket.
    pub socket: Index,
    /// The last-level cache that it shares, by any number.
    pub cache: u32,
    /// How busy it is, 0 to 1, the threads of this problem that run there included.
    pub utilisation: f64,
}

/// A socket's counters, of the last second (paper, section III.C).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Socket {
    /// Hits of the last-level cache by accesses to it, above 0, up to 1.
    pub l3_hit: f64,
    /// Cycles lost to its misses by all cycles, 0 to 1.
    pub cycle_loss: f64,
    /// Instructions per cycle, above 0.
    pub ipc: f64,
}

/// How much each factor slows a kind of stage down (paper, figure 8); [`calibrate`](super::calibrate) finds them from samples.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Weights {
    /// Of the last-level cache: by 1 / hit rate of the stage's socket.
    pub cache: f64,
    /// Of the memory controller: by the cycle loss of the predecessor's socket.
    pub memory: f64,
    /// Of the interconnect: by the cycle loss of the stage's socket, where it isn't the predecessor's.
    pub interconnect: f64,
    /// Of remote access latency: by the instructions per cycle of the predecessor's socket over those of the stage's.
    pub remote: f64,
    /// Of crossing from one last-level cache to another within a socket. Not the paper's, whose sockets have one.
    pub crossing: f64,
    /// Of what else the core does: by u / (1 - u). Not the paper's, which reads counters again after each queue.
    pub load: f64,
    /// What the stage takes wherever it is. Not the paper's: it is the same for all cores, and tells how much the others are of all.
    pub base: f64,
}

/// Cores among which a stage may be placed.
#[derive(Clone, Copy, Debug)]
pub struct Pool<'a> {
    /// Which; none twice.
    pub cores: &'a [Index],
    /// Only so many of them, the least busy (paper, section IV.B.3).
    pub most: Option<u32>,
}

/// A thread that runs a stage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thread {
    /// Among which cores it is placed; one core: it is there already, and stays.
    pub pool: Index,
    /// How much of a core it keeps busy for each million packets a second.
    pub demand: f64,
    /// Where it runs now.
    pub now: Option<Index>,
}

/// A queue of a NIC.
#[derive(Clone, Copy, Debug)]
pub struct Queue<'a> {
    /// The socket whose memory its packets come to.
    pub socket: Index,
    /// What comes through it, by guest.
    pub flows: &'a [Flow<'a>],
}

/// The packets from a queue to a guest, and the chain of threads that handle them.
#[derive(Clone, Copy, Debug)]
pub struct Flow<'a> {
    /// Packets a second.
    pub packets: f64,
    /// It goes before all that haven't.
    pub priority: bool,
    /// The chain, in order, up to [`STAGES_MAX`]: such as a queue's softirq, a virtual switch, a guest's vhost worker, its vCPU, and the same of the
    /// next guest in the chain.
    pub stages: &'a [Stage],
}

/// A stage of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Its kind, in [`Problem::kinds`].
    pub kind: Index,
    /// The thread that runs it, in [`Problem::threads`]; no other stage of the chain may have the same.
    pub thread: Index,
}

/// The most stages of a chain.
pub const STAGES_MAX: usize = 8;

/// A problem that has no answer, and why.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// Too many of something, a number that names nothing, or a figure that is none.
    #[error(transparent)]
    Wrong(#[from] Wrong),
    /// A table that isn't as large as it must be.
    #[error(
        "there are {count} distances between {sockets} sockets; there must be one for each pair, in both directions"
    )]
    Distances {
        /// How many there are.
        count: usize,
        /// Sockets.
        sockets: usize,
    },
    /// A pool without a core: the stage could be nowhere.
    #[error("pool {pool} has no core; give it one, or leave its threads out")]
    Empty {
        /// Which.
        pool: usize,
    },
    /// A core that is twice in a pool, or a thread that is twice in a chain.
    #[error("{what} {at} has {named} {index} twice")]
    Twice {
        /// Which list.
        what: &'static str,
        /// Which of these.
        at: usize,
        /// Of what.
        named: &'static str,
        /// Which.
        index: Index,
    },
    /// Samples that tell nothing of some weight, or aren't numbers.
    #[error(
        "{samples} samples don't tell weights apart: {why}; sample placements that differ, on sockets that do"
    )]
    Samples {
        /// How many.
        samples: usize,
        /// What is wrong with them.
        why: &'static str,
    },
}

impl Problem<'_> {
    /// Whether it can be worked on at all: everything that is named is there, and every figure is one.
    pub(super) fn check(&self, seen: &mut Vec<u32>) -> Result<(), Refusal> {
        for (what, count) in [
            ("cores", self.cores.len()),
            ("sockets", self.sockets.len()),
            ("kinds of stages", self.kinds.len()),
            ("pools", self.pools.len()),
            ("threads", self.threads.len()),
            ("queues", self.queues.len()),
        ] {
            within(what, count, COUNT_MAX)?;
        }
        for (at, core) in self.cores.iter().enumerate() {
            named("core", at, "socket", core.socket, self.sockets.len())?;
            figure("core", at, "utilisation", core.utilisation, Range::Share)?;
        }
        for (at, socket) in self.sockets.iter().enumerate() {
            figure(
                "socket",
                at,
                "L3 hit rate",
                socket.l3_hit,
                Range::PositiveShare,
            )?;
            figure("socket", at, "cycle loss", socket.cycle_loss, Range::Share)?;
            figure(
                "socket",
                at,
                "instructions per cycle",
                socket.ipc,
                Range::Positive,
            )?;
        }
        if self.distances.len() != self.sockets.len() * self.sockets.len() {
            return Err(Refusal::Distances {
                count: self.distances.len(),
                sockets: self.sockets.len(),
            });
        }
        for (at, distance) in self.distances.iter().enumerate() {
            figure("pair of sockets", at, "distance", *distance, Range::Amount)?;
        }
        for (at, kind) in self.kinds.iter().enumerate() {
            for weight in kind.all() {
                figure("kind of stages", at, "weight", weight, Range::Amount)?;
            }
        }
        self.check_pools(seen)?;
        for (at, thread) in self.threads.iter().enumerate() {
            named("thread", at, "pool", thread.pool, self.pools.len())?;
            figure("thread", at, "demand", thread.demand, Range::Amount)?;
            if let Some(core) = thread.now {
                named("thread", at, "core", core, self.cores.len())?;
            }
        }
        self.check_queues()
    }

    fn check_pools(&self, seen: &mut Vec<u32>) -> Result<(), Refusal> {
        seen.clear();
        seen.resize(self.cores.len(), 0);
        for ((at, pool), mark) in self.pools.iter().enumerate().zip(1..) {
            if pool.cores.is_empty() || pool.most == Some(0) {
                return Err(Refusal::Empty { pool: at });
            }
            for &core in pool.cores {
                named("pool", at, "core", core, self.cores.len())?;
                let place = &mut seen[core as usize];
                if *place == mark {
                    return Err(Refusal::Twice {
                        what: "pool",
                        at,
                        named: "core",
                        index: core,
                    });
                }
                *place = mark;
            }
        }
        Ok(())
    }

    fn check_queues(&self) -> Result<(), Refusal> {
        for (at, queue) in self.queues.iter().enumerate() {
            named("queue", at, "socket", queue.socket, self.sockets.len())?;
            within("flows of a queue", queue.flows.len(), COUNT_MAX)?;
            for flow in queue.flows {
                figure(
                    "queue",
                    at,
                    "packets/s of a flow",
                    flow.packets,
                    Range::Amount,
                )?;
                within("stages of a chain", flow.stages.len(), STAGES_MAX)?;
                for (place, stage) in flow.stages.iter().enumerate() {
                    named("a chain of queue", at, "kind", stage.kind, self.kinds.len())?;
                    named(
                        "a chain of queue",
                        at,
                        "thread",
                        stage.thread,
                        self.threads.len(),
                    )?;
                    if flow.stages[..place]
                        .iter()
                        .any(|s| s.thread == stage.thread)
                    {
                        return Err(Refusal::Twice {
                            what: "a chain of queue",
                            at,
                            named: "thread",
                            index: stage.thread,
                        });
                    }
                }
            }
        }
        Ok(())
    }
}

impl Weights {
    /// All of them, in the order in which they stand.
    #[must_use]
    pub fn all(&self) -> [f64; 7] {
        [
            self.cache,
            self.memory,
            self.interconnect,
            self.remote,
            self.crossing,
            self.load,
            self.base,
        ]
    }
}
