//! A host: its cores, the threads on them, and the scheduler that brings both together.
//!
//! It knows threads, cgroups and interrupts, and nothing of guests. Who owns threads says what they have to do ([`crate::work`]); here is when, where and
//! how fast they do it.
//!
//! | part | what it is | after |
//! |---|---|---|
//! | `core` | what a core does now, and where its time went | |
//! | `run` | the life of a thread on a core: chosen, asked, switched, put to sleep, woken | kernel/sched/core.c |
//! | `change` | threads that others move, freeze and end | |
//! | `fair` | a run queue's arithmetic | EEVDF, kernel/sched/fair.c of 6.12 and 7.3 |
//! | `group` | guests as groups: a queue for each guest and core, below the core's | cgroup v2 |
//! | `preempt` | when one that is to have a core has it | `resched_curr_lazy`, `sched_tick` |
//! | `flat` | the same without those queues: all of a core's threads in one | Linux 7.3 |
//! | `place` | where one that wakes goes | `select_task_rq_fair` |
//! | `balance` | who is moved to a core that has nothing to do, or less | `sched_balance_rq` |
//! | `busy` | how busy groups of cores are, and what is to be moved | `sched_balance_find_src_group` |
//! | `newly` | how often a core without threads looks for one | `sched_balance_newidle` |
//! | `capacity` | what interrupts leave of a core, and who is moved because of it | `scale_rt_capacity` |
//! | `boost` | vCPUs by who does IO, where a plan wants it | bpf/boost |
//! | `class` | what sched_ext does around it | kernel/sched/ext.c |
//! | `interrupts` | what goes before threads, and when ksoftirqd has it | kernel/softirq.c |
//!
//! On a core, hard interrupts go before softirqs, these before threads of the fair class, and those before vCPUs that the boost scheduler has. A core that has nothing of all of them sleeps, and takes the longer to wake the deeper it does.
//!
//! Each core has one event at most that is to happen: the end of what it does, if nothing comes between. Whatever comes between reckons up what
//! was done until then ([`Host::view`] shows it up to any moment), and has the end be later. Ticks are on while a core is busy.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "threads, cores and queues are numbered in 32 bits, and times of a run are far below 2^63 ns"
)]

mod balance;
mod boost;
mod busy;
mod capacity;
mod change;
mod class;
mod core;
mod costs;
mod fair;
mod flat;
mod group;
mod idle;
mod interrupts;
mod map;
mod newly;
mod place;
mod preempt;
mod run;
mod scan;
mod thread;
mod view;

use std::collections::VecDeque;

use ostler_model::{CpuId, CpuSet, Nanos, Topology};

pub use self::core::{CoreTime, Doing, Handled};
pub use self::costs::{HostCosts, IDLE_STATES, Kernel};
pub use self::thread::{GroupId, Spawn, State, ThreadTime};
pub use self::view::View;

use self::core::Core;
use self::fair::{Average, Away, NONE, Queue as RunQueue, WEIGHT};
use self::map::Map;
use self::thread::{Group, Thread};
use crate::event::Queue;
use crate::random::Stream;
use crate::work::{Effect, Effects, ThreadId, Work};

/// What is to happen on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A core has done what it does.
    Done {
        /// Which core.
        cpu: u32,
    },
    /// A core's tick.
    Tick {
        /// Which core.
        cpu: u32,
    },
    /// A core's thread leaves its guest for a timer of the guest's.
    Look {
        /// Which core.
        cpu: u32,
    },
    /// A core's thread is out of its guest.
    Out {
        /// Which core.
        cpu: u32,
    },
    /// The slice of a core's thread is over.
    Slice {
        /// Which core.
        cpu: u32,
    },
    /// The boost scheduler's timer of a core.
    Turn {
        /// Which core.
        cpu: u32,
    },
    /// [`Work::alarm`].
    Alarm(u64),
    /// The world's own.
    World(u32),
}

/// What is around the host while it acts.
pub struct Scene<'a, W> {
    /// What is to happen.
    pub queue: &'a mut Queue<Event>,
    /// Who owns the threads.
    pub work: &'a mut W,
    /// What they want.
    pub out: &'a mut Effects,
}

impl<W> Scene<'_, W> {
    fn now(&self) -> Nanos {
        self.queue.now()
    }
}

/// What a host has counted since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Switches of threads, to idle and from it too, as `/proc/stat` has them.
    pub switches: u64,
    /// Times that a core began to run a thread, as `/proc/schedstat` has them and the lab counts.
    pub begun: u64,
    /// Threads that came to run on another core than before.
    pub migrations: u64,
    /// Hard interrupts that came: of devices, and of timers that threads' owners set.
    pub interrupts: u64,
    /// Those of devices.
    pub device_irqs: u64,
    /// Those by which one core told another to look: to wake up, at who has come, or at what has come for the vCPU in its guest.
    pub ipis: u64,
    /// Times that softirqs were left to ksoftirqd.
    pub ksoftirqd: u64,
}

/// A run queue's account, beside its arithmetic.
#[derive(Clone, Copy, Debug)]
struct Account {
    /// Its cgroup; [`NONE`]: it is a core's own.
    group: u32,
    cpu: u32,
    load: Average,
    /// As much of its load is in its group's sum.
    told: u32,
    /// Its threads that would run, each as [`WEIGHT`], and what of that is in its group's sum: for [`flat`].
    tasks: Average,
    tasks_told: u32,
    /// What its group's weight on the core was when that was looked at last: for [`flat`], too.
    share: u32,
    /// What its entity in the core's queue kept while it was out of it.
    away: Away,
}

/// A core's own queue has room for so many guests and threads before it needs more.
const ROOM: usize = 16;

/// A host.
#[derive(Clone, Debug)]
pub struct Host {
    costs: HostCosts,
    map: Map,
    cores: Vec<Core>,
    threads: Vec<Thread>,
    /// Where each may run: by itself and by its cgroup.
    allowed: Vec<CpuSet>,
    /// By itself alone.
    affinity: Vec<CpuSet>,
    groups: Vec<Group>,
    /// Run queues: one for each core, then those of groups as they come to be used.
    queues: Vec<RunQueue>,
    accounts: Vec<Account>,
    /// The cgroup that all of them are in, if there is one.
    slice: Option<flat::Slice>,
    idle: CpuSet,
    /// Cores whose threads are about to go to sleep.
    leavers: VecDeque<u32>,
    /// Of those that sleep, those whose siblings all do.
    alone: CpuSet,
    counters: Counters,
    /// Cores on which threads wait, for the fair class.
    overloaded: CpuSet,
    newly: newly::Newly,
    /// Some thread or cgroup yields to all others, or has done so.
    some_yield: bool,
    /// How many cores one that wakes looks at, by cache group.
    scans: Vec<scan::Scan>,
    /// Where one that has to go anywhere goes next.
    rotor: u32,
    /// Where new threads go is drawn from this, if it is.
    chance: Option<Stream>,
    boost: Option<Box<boost::Boost>>,
    boost_domains: Vec<CpuSet>,
}

impl Host {
    /// A host at rest. Threads with numbers below that of its cores are its own.
    pub fn new(topology: &Topology, costs: HostCosts) -> Host {
        let map = Map::new(topology);
        let len = map.len as u32;
        let throws = costs.kernel.throws_for_looks();
        let mut host = Host {
            costs,
            newly: newly::Newly::new(map.len, throws),
            cores: vec![Core::new(); map.len],
            threads: Vec::new(),
            allowed: Vec::new(),
            affinity: Vec::new(),
            groups: Vec::new(),
            queues: (0..len).map(|_| RunQueue::new(ROOM)).collect(),
            accounts: (0..len)
                .map(|cpu| Account {
                    group: NONE,
                    cpu,
                    load: Average::default(),
                    told: 0,
                    tasks: Average::default(),
                    tasks_told: 0,
                    share: 0,
                    away: Away::default(),
                })
                .collect(),
            slice: None,
            idle: map.online,
            leavers: VecDeque::new(),
            alone: map.online,
            scans: vec![scan::Scan::default(); map.sets[0].len()],
            map,
            counters: Counters::default(),
            overloaded: CpuSet::EMPTY,
            some_yield: false,
            rotor: 0,
            chance: None,
            boost: None,
            boost_domains: Vec::new(),
        };
        for cpu in 0..len {
            host.spawn(
                Spawn {
                    allowed: CpuSet::single(CpuId(cpu)),
                    ..Spawn::default()
                },
                Nanos::ZERO,
            );
        }
        host
    }

    /// Of several cores that are alike a new thread begins on any, by chance, and not on the first of them: on which one it does goes by what else happened there as guests were started.
    pub fn draw(&mut self, seed: u64) {
        self.chance = Some(Stream::new(seed, "where threads begin", 0));
    }

    /// A cgroup for a guest's threads.
    pub fn add_group(&mut self) -> GroupId {
        self.groups.push(Group {
            weight: WEIGHT,
            idle: false,
            frozen: false,
            threads: Vec::new(),
            cpuset: self.map.online,
            queues: vec![NONE; self.map.len],
            load: 0,
            tasks: 0,
            delays: [0; ostler_boost::BINS],
        });
        GroupId(self.groups.len() as u32 - 1)
    }

    /// A new thread, asleep until it is notified.
    pub fn spawn(&mut self, spawn: Spawn, now: Nanos) -> ThreadId {
        let id = self.threads.len() as u32;
        self.some_yield |= spawn.idle;
        let cpu = spawn.allowed.intersection(&self.map.online).first();
        let cpu = cpu.map_or(0, |cpu| cpu.0);
        self.threads.push(Thread {
            state: State::Asleep,
            since: now,
            born: now,
            time: ThreadTime::default(),
            cpu,
            queue: NONE,
            recent: cpu,
            group: spawn.group.map(|group| group.0),
            weight: spawn.weight.max(2),
            idle: spawn.idle,
            wants: false,
            frozen: spawn
                .group
                .is_some_and(|group| self.groups[group.0 as usize].frozen),
            boost: false,
            away: Away::default(),
            load: Average::default(),
            ran_at: Nanos::ZERO,
            moved: 0,
            stopped: None,
            paid: false,
            switches: 0,
            migrations: 0,
        });
        if let Some(group) = spawn.group {
            self.groups[group.0 as usize].threads.push(id);
        }
        self.affinity.push(spawn.allowed);
        self.allowed.push(CpuSet::EMPTY);
        self.narrow(id);
        ThreadId(id)
    }

    /// The host's own threads' numbers are below this.
    pub fn own_threads(&self) -> u32 {
        self.map.len as u32
    }

    /// Where a thread may run: as Linux, by its cgroup alone where nothing of its own is left in that.
    fn narrow(&mut self, id: u32) {
        let at = id as usize;
        let cpuset = self.threads[at].group.map_or(self.map.online, |group| {
            self.groups[group as usize]
                .cpuset
                .intersection(&self.map.online)
        });
        let both = self.affinity[at].intersection(&cpuset);
        self.allowed[at] = if both.is_empty() { cpuset } else { both };
    }

    /// An event of the host's has come.
    pub fn happen<W: Work>(&mut self, event: Event, scene: &mut Scene<'_, W>) {
        match event {
            Event::Done { cpu } => self.done(cpu, scene),
            Event::Tick { cpu } => self.tick(cpu, scene),
            Event::Look { cpu } => self.look(cpu, scene),
            Event::Out { cpu } => self.out(cpu, scene),
            Event::Slice { cpu } => self.slice_over(cpu, scene),
            Event::Turn { cpu } => self.turn(cpu, scene),
            Event::Alarm(_) | Event::World(_) => {}
        }
        self.kicks(scene);
    }

    /// Carries out what an owner of threads wants; alarms are the world's.
    pub fn carry_out<W: Work>(&mut self, effect: Effect, scene: &mut Scene<'_, W>) {
        match effect {
            Effect::Notify { thread, from } => self.notify(thread.0, from, scene),
            Effect::Interrupt { cpu, interrupt } => self.interrupt(cpu.0, interrupt, scene),
            Effect::Exit(thread) => self.exit(thread.0, scene),
            Effect::Io { thread, event } => self.io(thread.0, event, scene),
            Effect::Alarm { .. } => {}
        }
        self.kicks(scene);
    }

    /// The cores that a thread may run on by itself.
    pub fn set_affinity<W: Work>(
        &mut self,
        thread: ThreadId,
        cpus: CpuSet,
        scene: &mut Scene<'_, W>,
    ) {
        self.affinity[thread.0 as usize] = cpus;
        self.confine(thread.0, scene);
        self.kicks(scene);
    }

    /// The cores that a cgroup's threads may run on.
    pub fn set_cpuset<W: Work>(&mut self, group: GroupId, cpus: CpuSet, scene: &mut Scene<'_, W>) {
        self.groups[group.0 as usize].cpuset = cpus;
        for at in 0..self.groups[group.0 as usize].threads.len() {
            let thread = self.groups[group.0 as usize].threads[at];
            self.confine(thread, scene);
        }
        self.kicks(scene);
    }

    /// A cgroup's weight (100 is what all begin with), or that it is idle.
    pub fn set_weight(&mut self, group: GroupId, weight: u32, idle: bool, now: Nanos) {
        let known = &self.groups[group.0 as usize];
        let queues: Vec<(usize, u32)> = (0..self.map.len)
            .map(|at| (at, known.queues[at]))
            .filter(|(_, queue)| *queue != NONE)
            .collect();
        for (at, _) in &queues {
            self.reckon(*at as u32, now);
        }
        let known = &mut self.groups[group.0 as usize];
        known.weight = (weight * WEIGHT / 100).max(2);
        known.idle = idle;
        self.some_yield |= idle;
        for (_, queue) in queues {
            self.share(queue, now);
        }
    }

    /// Freezes a cgroup's threads, or lets them go on.
    pub fn set_frozen<W: Work>(&mut self, group: GroupId, frozen: bool, scene: &mut Scene<'_, W>) {
        self.groups[group.0 as usize].frozen = frozen;
        for at in 0..self.groups[group.0 as usize].threads.len() {
            let thread = self.groups[group.0 as usize].threads[at];
            self.freeze(thread, frozen, scene);
        }
        self.kicks(scene);
    }
}

#[cfg(test)]
mod tests;
