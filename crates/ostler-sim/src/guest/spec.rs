//! Guests as plain values, and what the workloads that scenarios name do in one.

use ostler_model::{Bytes, GuestId, Nanos};
use ostler_scenario::KEYS;
pub use ostler_scenario::Workload;

use crate::costs::{INSTRUCTION_NS, path};
use crate::path::Costs;
use crate::random::Stream;
use crate::round::nanos;

/// A distribution of times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Time {
    /// Always the same.
    Fixed(Nanos),
    /// Exponential, of this mean.
    Exponential(Nanos),
    /// Log-normal: median, deviation of the logarithm.
    LogNormal(Nanos, f64),
    /// A base, and so much for each byte of a value of Facebook's ETC: generalised Pareto, scale 214.476, shape 0.348238 (Atikoglu et al., 2012).
    Etc(Nanos, f64),
    /// One of two: the second with this probability.
    Either(Nanos, Nanos, f64),
}

/// Values of ETC (Atikoglu et al., SIGMETRICS 2012, table 5; what mutilate's `fb_value` draws).
const ETC_SCALE: f64 = 214.476;
const ETC_SHAPE: f64 = 0.348_238;

/// The size of one of them, bytes.
pub(super) fn value(stream: &mut Stream) -> f64 {
    // memcached's items end at a megabyte.
    stream.pareto(0.0, ETC_SCALE, ETC_SHAPE).min(1_048_576.0)
}

impl Time {
    /// One of them.
    pub fn draw(&self, stream: &mut Stream) -> Nanos {
        match *self {
            Time::Fixed(time) => time,
            Time::Exponential(mean) => nanos(stream.exponential(mean.0 as f64)),
            Time::LogNormal(median, sigma) => nanos(stream.log_normal(median.0 as f64, sigma)),
            Time::Etc(base, per_byte) => base.saturating_add(nanos(per_byte * value(stream))),
            Time::Either(first, second, chance) => {
                if stream.chance(chance) {
                    second
                } else {
                    first
                }
            }
        }
    }

    /// The mean; ETC's without the end of its tail.
    pub fn mean(&self) -> f64 {
        match *self {
            Time::Fixed(time) | Time::Exponential(time) => time.0 as f64,
            Time::LogNormal(median, sigma) => median.0 as f64 * libm::exp(sigma * sigma / 2.0),
            Time::Etc(base, per_byte) => base.0 as f64 + per_byte * ETC_SCALE / (1.0 - ETC_SHAPE),
            Time::Either(first, second, chance) => {
                first.0 as f64 * (1.0 - chance) + second.0 as f64 * chance
            }
        }
    }
}

/// Who answers a connection's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Always the same task, by connection (memcached's threads, nginx's workers, a process per connection).
    Connection,
    /// Whichever task is free.
    Free,
    /// No task: the guest's kernel, in its softirq (pings, forwarding).
    Kernel,
}

/// What tasks of a guest do.
#[derive(Clone, Debug, PartialEq)]
pub enum Program {
    /// They answer requests; in a chain, send packets on.
    Serve {
        /// How many there are; none where the kernel does it.
        tasks: u32,
        /// Who answers what.
        sharing: Sharing,
        /// What a request takes.
        service: Time,
    },
    /// They answer requests for files, of which some are in memory.
    Files {
        /// How many there are: as many requests are served at once.
        tasks: u32,
        /// How many different files are asked for, all alike.
        files: u64,
        /// The size of each.
        size: Bytes,
        /// What files in memory may take at the beginning.
        memory: Bytes,
        /// What a request takes of a vCPU.
        service: Time,
        /// How long a file takes to come from the disk.
        disk: Nanos,
    },
    /// They compute without end, and count rounds.
    Compute {
        /// How many there are.
        tasks: u32,
        /// A round.
        round: Nanos,
    },
    /// They compute their parts, and wait for each other.
    Barrier {
        /// How many there are.
        tasks: u32,
        /// A part.
        part: Time,
        /// How long each spins before it sleeps; zero: it sleeps at once.
        spin: Nanos,
    },
    /// They take turns at locks.
    Lock {
        /// How many there are.
        tasks: u32,
        /// How many locks, each with as many of the tasks.
        locks: u32,
        /// What a task does between.
        think: Time,
        /// What it does with the lock.
        hold: Time,
        /// Cache lines that it has from whoever had the lock before.
        lines: u32,
        /// As with barriers.
        spin: Nanos,
        /// Whether the guest is told which threads share a lock; otherwise it has to find out.
        declared: bool,
    },
    /// A thread of memcached's beside those that serve, which sees to its lists ([`super::upkeep`]).
    Upkeep {
        /// What looking takes, each time.
        work: Nanos,
        /// How many items there are.
        keys: u32,
    },
    /// The steward's agent, which that asks how the guest is ([`crate::tenants`]' timers).
    Agent {
        /// What an answer takes.
        work: Nanos,
        /// Between two questions.
        every: Nanos,
    },
    /// They have a disk bring or take one block after the other.
    Disk {
        /// How many there are.
        tasks: u32,
    },
}

/// Which vCPU a woken task runs on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// Any idle one.
    #[default]
    Hvm,
    /// An idle one that isn't preempted.
    Pvm,
    /// Or that is preempted on a core of low load (CPS-Pload).
    Pload,
    /// Likewise, in the cache group of those it interacts with (CPS-CGsched).
    CgSched,
}

/// A guest.
#[derive(Clone, Debug, PartialEq)]
pub struct GuestSpec {
    /// Its name.
    pub id: GuestId,
    /// vCPUs.
    pub vcpus: u32,
    /// Queue pairs; at most 64.
    pub queues: u32,
    /// What it runs.
    pub programs: Vec<Program>,
    /// Where its woken tasks go.
    pub placement: Placement,
    /// How long a vCPU with nothing to do spins before it sleeps (`guest_halt_poll_ns`); zero: not at all.
    pub halt_poll: Nanos,
    /// The share of its vCPUs' time that waits for memory, which it crowds for others.
    pub memory_waits: f64,
}

/// What the tasks of a guest of so many vCPUs do, by the name of a scenario.
pub fn programs(workload: Workload, vcpus: u32, costs: &Costs) -> Vec<Program> {
    // A byte of a value is copied thrice at 10 GB/s (assumed): a tenth of a microsecond for the mean one.
    let kernel = Nanos(costs.guest_rx.0 + costs.guest_tx.0);
    let memcached = Time::Etc(costs.request.saturating_sub(kernel), 0.3);
    let serve = |tasks, sharing, service| Program::Serve {
        tasks,
        sharing,
        service,
    };
    let nginx = serve(vcpus, Sharing::Connection, Time::Fixed(costs.nginx));
    let spin = Program::Compute {
        tasks: vcpus,
        round: Nanos::from_millis(1),
    };
    match workload {
        Workload::Memcached => {
            let mut programs = vec![serve(vcpus, Sharing::Connection, memcached)];
            programs.extend((costs.upkeep > Nanos::ZERO).then_some(Program::Upkeep {
                work: costs.upkeep,
                keys: KEYS,
            }));
            programs
        }
        Workload::Redis => vec![serve(1, Sharing::Connection, memcached)],
        Workload::Nginx => vec![nginx],
        // A read and a write: as the kernel's ways.
        Workload::Echo => vec![serve(
            4 * vcpus,
            Sharing::Connection,
            Time::Fixed(costs.guest_tx),
        )],
        Workload::Ping | Workload::Forward => {
            vec![serve(0, Sharing::Kernel, Time::Fixed(Nanos::ZERO))]
        }
        Workload::Mixed => vec![nginx, spin],
        Workload::DiskRead | Workload::DiskWrite => vec![Program::Disk { tasks: 1 }],
        Workload::Spin => vec![spin],
        Workload::Idle => Vec::new(),
        Workload::Barrier => vec![Program::Barrier {
            tasks: vcpus,
            part: Time::Exponential(Nanos::from_millis(1)),
            spin: Nanos::ZERO,
        }],
        // Segments of 720p, ten seconds long, that take 3.32 s from memory and 4.02 s from the disk (Hylics, 5.3).
        Workload::Files => vec![Program::Files {
            tasks: 64,
            files: 100,
            size: Bytes(4 << 20),
            memory: Bytes(256 << 20),
            service: Time::Fixed(path::FILE.nanos(INSTRUCTION_NS)),
            disk: path::FILE_DISK.nanos(INSTRUCTION_NS),
        }],
        Workload::Lock => vec![Program::Lock {
            tasks: vcpus,
            locks: vcpus.div_ceil(4),
            think: Time::Exponential(Nanos::from_micros(10)),
            hold: Time::Fixed(Nanos::from_micros(2)),
            lines: 8,
            spin: Nanos(u64::MAX),
            declared: true,
        }],
    }
}

impl GuestSpec {
    /// A guest that does what a scenario names, with Linux's defaults.
    pub fn new(id: &str, vcpus: u32, queues: u32, workload: Workload, costs: &Costs) -> GuestSpec {
        GuestSpec {
            id: GuestId::from(id),
            vcpus,
            queues,
            programs: programs(workload, vcpus, costs),
            placement: Placement::Hvm,
            halt_poll: Nanos::ZERO,
            memory_waits: 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_have_the_means_that_are_told() {
        let times = [
            Time::Fixed(Nanos(700)),
            Time::Exponential(Nanos(5000)),
            Time::LogNormal(Nanos(10_000), 0.5),
            Time::Etc(Nanos(1000), 3.0),
            Time::Either(Nanos(100), Nanos(1100), 0.25),
        ];
        for time in times {
            let mut stream = Stream::new(3, "time", 0);
            let count = 400_000;
            let sum: u64 = (0..count).map(|_| time.draw(&mut stream).0).sum();
            let mean = sum as f64 / f64::from(count);
            assert!((mean / time.mean() - 1.0).abs() < 0.02, "{time:?}: {mean}");
        }
    }
}
