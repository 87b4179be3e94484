//! A guest: vCPUs, which are threads of the host, and a kernel of its own that has tasks run on them.
//!
//! A vCPU that has a core does, in this order: what it is in the middle of; interrupts that came; exits that it owes a device or another vCPU; softirqs; tasks. So its
//! tasks are interrupted at once, by what the host brings while it runs, and not at all while it has no core: that is where latency goes on a
//! host with more vCPUs than cores. One that has nothing to do sleeps, and costs no events.
//!
//! | room | what it is |
//! |---|---|
//! | [`spec`] | guests as plain values |
//! | [`program`] | what tasks do |
//! | [`queue`] | the guest's scheduler: who is next on a vCPU |
//! | [`place`] | on which vCPU a woken task runs, by what the guest knows of its host |
//! | [`cache`] | files that are in memory, or not |
//! | [`acks`] | when connections' timers are due |
//! | [`upkeep`] | when memcached sees to its lists |
//!
//! Times in here are work: nanoseconds of a core at full speed. A guest's slices are measured so, too; what is stolen from it is not held against its
//! tasks.

#![expect(
    clippy::cast_possible_truncation,
    reason = "numbers of vCPUs and tasks are far below 2^32"
)]

pub mod acks;
pub mod cache;
pub mod place;
pub mod program;
pub mod queue;
pub mod spec;
pub mod upkeep;

use std::collections::VecDeque;

use ostler_model::{Bytes, CpuId, GuestId, Nanos};

use crate::random::Stream;
use crate::work::{Effect, Effects, IoEvent, ThreadId};
use acks::Acks;
use cache::FileCache;
use place::Placing;
use program::{Barrier, Lock, Service};
pub use spec::{GuestSpec, Program};
use upkeep::Upkeep;

/// What a vCPU's time went to; whoever adds it up gets what its thread ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accounts {
    /// Tasks' work.
    pub tasks: Nanos,
    /// Tasks that spin for others.
    pub spins: Nanos,
    /// Its kernel, which spins for a lock that another vCPU has.
    pub locks: Nanos,
    /// Interrupts and softirqs.
    pub interrupts: Nanos,
    /// Exits, IPIs, and choosing vCPUs.
    pub exits: Nanos,
    /// Spinning with nothing to do.
    pub polls: Nanos,
}

impl Accounts {
    /// All together.
    pub fn total(&self) -> Nanos {
        let kernel = self.locks.0 + self.interrupts.0 + self.exits.0 + self.polls.0;
        Nanos(self.tasks.0 + self.spins.0 + kernel)
    }
}

/// What a task does at the moment, or would if it were on a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// It has so much to do.
    Work(Nanos),
    /// It computes without end.
    Endless,
    /// It spins until it is released, or for so long.
    Spin(Nanos),
    /// It sleeps.
    Blocked,
}

/// Where a task is in its program, where that has stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// At the beginning.
    #[default]
    Start,
    /// It thinks, or computes its part.
    Think,
    /// It waits for a lock, a barrier or a disk.
    Wait,
    /// It has the lock; or the last part of a request.
    Hold,
}

/// A task.
#[derive(Debug)]
pub struct Task {
    /// Its program, by number.
    pub program: u32,
    /// Which of the program's tasks.
    pub number: u32,
    /// What it does.
    pub activity: Activity,
    /// Where in its program.
    pub phase: Phase,
    /// The vCPU that it is on, or was last.
    pub vcpu: u32,
    /// Whether it is to be placed again when its vCPU is asked next.
    pub go: bool,
    /// Virtual run time, ns.
    pub vruntime: u64,
    /// What is left of its slice.
    pub slice: Nanos,
    /// What it has run.
    pub ran: Nanos,
    /// Messages for it alone.
    pub inbox: VecDeque<u32>,
    /// The message that it works on.
    pub message: Option<u32>,
    /// What is left to do when that is answered.
    pub then: Nanos,
    /// It has found nothing more to answer, and is on its way to sleep.
    pub rests: bool,
    /// How often it was woken, since groups were last looked for; and what it had run then.
    pub woken: u32,
    /// See above.
    pub ran_before: Nanos,
    /// The group of threads that it interacts with.
    pub group: Option<u32>,
    /// The virtual cache group that it counts in.
    pub vcg: Option<u32>,
}

impl Task {
    /// Begins with a message that takes so much, of which so much comes after the answer: no more than three quarters, as the answer has to be made first.
    pub fn begin(&mut self, work: Nanos, answered: Nanos) {
        self.then = answered.min(Nanos(work.0 / 4 * 3));
        self.activity = Activity::Work(work.saturating_sub(self.then).max(Nanos(1)));
    }
}

/// What a vCPU is in the middle of, other than a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// Interrupts' entry.
    Interrupt,
    /// A softirq's turn, for the queue pair of a worker.
    Softirq(u32),
    /// An exit, and what comes of it.
    Exit(Then),
    /// It spins for a lock of its kernel's.
    Spin,
}

/// What comes of an exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Nothing: it was work of the kernel.
    Nothing,
    /// The worker is told that there is something to send.
    Kick(u32),
    /// Another vCPU is interrupted; and whether this one has a lock meanwhile that the other takes first.
    Ipi(u32, bool),
    /// The lock is given back that another vCPU takes first.
    Unlock(u32),
    /// The disk is told of a task's block.
    Disk(u32),
    /// A timer is set for a task.
    Timer(u32, Nanos),
}

/// What a vCPU's thread was told to do last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Told {
    /// Nothing.
    #[default]
    Sleep,
    /// To go on with its segment.
    Segment,
    /// To run a task, or to spin for it.
    Task(u32, bool),
    /// To spin for a while, in case something comes.
    Poll,
}

/// A vCPU.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is something that its kernel is told, or not"
)]
pub struct Vcpu {
    /// Its thread.
    pub thread: ThreadId,
    /// The core that it has.
    pub on: Option<CpuId>,
    /// The core that it had last.
    pub cpu: CpuId,
    /// What it was told.
    pub told: Told,
    /// What it is in the middle of, and what is left of that.
    pub segment: Option<(Segment, Nanos)>,
    /// Messages that the softirq has in hand.
    pub batch: Vec<u32>,
    /// Interrupts that came, by queue pair; and for disks and IPIs.
    pub pending: u64,
    /// Other interrupts that came: disk or IPI.
    pub rescheduled: bool,
    /// What it had to send is sent.
    pub completed: bool,
    /// An interrupt has brought it out of its guest since it last saw to any.
    pub brought_out: bool,
    /// A tick has come while it slept.
    pub ticked: bool,
    /// Whether it keeps its tick when it sleeps: a task has run since that woke it.
    pub ticks: bool,
    /// At which of its guest's ticks it last looked whether to have another balance.
    pub looked: u64,
    /// When its timer is due while it sleeps or is stopped: a tick that it has kept, or the first timer of its guest's connections.
    pub tick_at: Option<Nanos>,
    /// Tasks whose blocks have come.
    pub blocks: Vec<u32>,
    /// Tasks whose timers are due.
    pub due: Vec<u32>,
    /// Queue pairs that the softirq polls.
    pub polling: u64,
    /// What softirqs took since tasks ran, to have them share.
    pub soft_spent: Nanos,
    /// What tasks still have before softirqs go on.
    pub tasks_turn: Nanos,
    /// The vCPU that has a lock of the kernel's which this one takes before anything else.
    pub locked_by: Option<u32>,
    /// Whether it has spun for that as long as it does, and sleeps until it is given back.
    pub halted: bool,
    /// Whether it has done what it takes to sleep, since it was woken.
    pub settled: bool,
    /// Exits to come.
    pub exits: VecDeque<(Nanos, Then)>,
    /// The task that it runs.
    pub current: Option<u32>,
    /// Those that wait.
    pub queue: Vec<u32>,
    /// What is left of its polling before it sleeps.
    pub poll: Nanos,
    /// Where its time went.
    pub accounts: Accounts,
    /// Interrupts and IPIs so far.
    pub interrupts: u64,
    /// Exits so far.
    pub exit_count: u64,
}

impl Vcpu {
    /// One that sleeps.
    pub fn new(thread: ThreadId) -> Vcpu {
        Vcpu {
            thread,
            on: None,
            cpu: CpuId(u32::MAX),
            told: Told::Sleep,
            segment: None,
            batch: Vec::new(),
            pending: 0,
            rescheduled: false,
            completed: false,
            brought_out: false,
            ticked: false,
            ticks: false,
            looked: 0,
            tick_at: None,
            blocks: Vec::new(),
            due: Vec::new(),
            polling: 0,
            soft_spent: Nanos::ZERO,
            tasks_turn: Nanos::ZERO,
            locked_by: None,
            halted: false,
            settled: true,
            exits: VecDeque::new(),
            current: None,
            queue: Vec::new(),
            poll: Nanos::ZERO,
            accounts: Accounts::default(),
            interrupts: 0,
            exit_count: 0,
        }
    }

    /// An interrupt comes, caused on a core, for a task (its number and one; 0: none). A vCPU that sleeps with its interrupts off isn't woken.
    pub fn interrupt(&mut self, task: u64, from: CpuId, out: &mut Effects) {
        self.interrupts += 1;
        self.brought_out |= self.on.is_some();
        out.0.push(Effect::Io {
            thread: self.thread,
            event: IoEvent {
                task,
                arrives: true,
            },
        });
        if !self.halted {
            out.notify_from(self.thread, from);
        }
    }

    /// Whether its thread sleeps, as nothing is to be done.
    pub fn sleeps(&self) -> bool {
        self.on.is_none() && self.told == Told::Sleep
    }

    /// Tasks that run or wait on it.
    pub fn load(&self) -> usize {
        self.queue.len() + usize::from(self.current.is_some())
    }
}

/// A guest.
pub struct Guest {
    /// Its name.
    pub id: GuestId,
    /// Its vCPUs.
    pub vcpus: Vec<Vcpu>,
    /// The first so many are used.
    pub vcpus_active: u32,
    /// The workers of its queue pairs, by number.
    pub workers: Vec<u32>,
    /// The first so many queue pairs are used.
    pub queues_active: u32,
    /// What its tasks run.
    pub programs: Vec<Running>,
    /// Its tasks.
    pub tasks: Vec<Task>,
    /// Tasks that wait on vCPUs, in all.
    pub waiting: u32,
    /// vCPUs that haven't come up yet; `None` once its tasks have begun.
    pub down: Option<u32>,
    /// When idle vCPUs are next looked for to have them, and how many more are to be kicked now.
    pub relief: (Nanos, u32),
    /// When what its idle vCPUs were busy with is to fade.
    pub fades: Nanos,
    /// A slice.
    pub slice: Nanos,
    /// How long a vCPU spins before it sleeps.
    pub halt_poll: Nanos,
    /// The share of its vCPUs' time that waits for memory.
    pub memory_waits: f64,
    /// Where woken tasks go.
    pub placing: Placing,
    /// Whether work that nobody asks for rests.
    pub resting: bool,
    /// Whether it hasn't come yet.
    pub away: bool,
    /// Whether it is dead.
    pub dead: bool,
    /// When its first tick is: in a time between ticks, by when it booted, which nobody planned.
    pub ticks_from: Nanos,
    /// Its connections' timers.
    pub acks: Acks,
    /// When its thread looks that sees to what it keeps, where it has one.
    pub upkeep: Option<Upkeep>,
    /// What it counts by itself: rounds, blocks, operations.
    pub done: u64,
    /// Draws times.
    pub stream: Stream,
}

/// A program that runs.
pub struct Running {
    /// What it is.
    pub program: Program,
    /// Its first task, and how many it has.
    pub first: u32,
    /// See above.
    pub count: u32,
    /// What messages wait for.
    pub service: Service,
    /// Its locks.
    pub locks: Vec<Lock>,
    /// Its barrier.
    pub barrier: Barrier,
    /// Its files.
    pub cache: FileCache,
}

/// What files in memory did for a guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilesView {
    /// What they may take.
    pub capacity: Bytes,
    /// What they take.
    pub used: Bytes,
    /// Requests for files that were there.
    pub hits: u64,
    /// For others.
    pub misses: u64,
}
