//! All that runs on a host, but the host: guests, their workers, the NIC, and the clients. The owner of the host's threads ([`Work`]).
//!
//! ```text
//!   client --wire--> NIC queue -> interrupt, softirq -> tap -> vhost worker -> vCPU: interrupt, softirq -> task
//!          <--wire-- NIC       <------------------------------ vhost worker <- exit <------------------/
//! ```
//!
//! Build it of plain values ([`Tenants::new`], [`GuestSpec`], [`LoadSpec`], [`NicSpec`]); the host gives it a thread for each of
//! [`Tenants::owners`], by the numbers that they have there; then [`Tenants::begin`].
//!
//! | room | what it is |
//! |---|---|
//! | `vcpu` | what a vCPU does with its core |
//! | `tasks` | the steps of tasks' programs |
//! | `ticks` | ticks that wake vCPUs |
//! | `held` | locks of guests' kernels whose holders lost their cores |
//! | `ways` | messages from stage to stage |
//! | `sent` | what a NIC says of what it has sent |
//! | `crowds` | who crowds a node's memory |
//! | `steer` | what can be asked of them, what they tell, what goes wrong |
//! | `tiers` | where guests' memory lies, on a host with a far node |
//! | `steered` | all of that as a steward has it |

#![expect(
    clippy::cast_possible_truncation,
    reason = "numbers of guests, tasks and messages are far below 2^32"
)]

mod crowds;
#[cfg(test)]
mod driver;
mod ends;
mod held;
mod learned;
mod sent;
mod sockets;
mod steer;
mod steered;
mod tasks;
#[cfg(test)]
mod tests;
mod ticks;
mod tiers;
mod timers;
mod vcpu;
mod vhost;
mod ways;

use ostler_model::{CpuId, CpuSet, Nanos, Topology};

pub use steer::{Agent, Faults};
pub use steered::{Housed, NIC};
pub use tiers::{MemoryTold, MemoryUse, Phase as HeatPhase, TiersSpec};

use crate::guest::acks::Acks;
use crate::guest::cache::FileCache;
use crate::guest::place::Placing;
use crate::guest::program::{Barrier, Lock, Service};
use crate::guest::upkeep::Upkeep;
use crate::guest::{Activity, Guest, GuestSpec, Phase, Program, Running, Task, Told, Vcpu};
use crate::load::{Client, Histogram, LoadSpec, ROUTE_MAX, Record};
use crate::net::Net;
use crate::net::nic::{Nic, NicSpec};
use crate::net::vhost::Worker;
use crate::path::{Costs, Ground};
use crate::random::Stream;
use crate::work::{Effects, FULL_SPEED, Next, ThreadId, Work};

/// Whose a thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A guest's vCPU.
    Vcpu {
        /// Which guest.
        guest: u32,
        /// Which vCPU.
        vcpu: u32,
    },
    /// A guest's vhost worker.
    Vhost {
        /// Which guest.
        guest: u32,
        /// Which queue pair.
        queue: u32,
        /// Its number among all workers.
        worker: u32,
    },
}

/// What tenants can't be made of.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TenantsError {
    /// A guest without vCPUs or queues, or with more than there can be.
    #[error(
        "guest `{guest}` has {vcpus} vCPUs and {queues} queue pairs; give it 1 to 1024 vCPUs and 1 to 64 queue pairs"
    )]
    Size {
        /// Which.
        guest: String,
        /// Its vCPUs.
        vcpus: u32,
        /// Its queue pairs.
        queues: u32,
    },
    /// Guests have more memory than the host.
    #[error(transparent)]
    Memory(#[from] crate::memory::NoRoom),
    /// A load for nobody, or for too many, or for a guest that isn't there or that doesn't answer.
    #[error(
        "load {load} goes by guests {route:?}; name 1 to {ROUTE_MAX} that there are and that answer requests"
    )]
    Route {
        /// Which.
        load: usize,
        /// Its route.
        route: Vec<u32>,
    },
}

/// What a world's tenants are made of.
#[derive(Clone, Debug)]
pub struct TenantsSpec {
    /// The guests.
    pub guests: Vec<GuestSpec>,
    /// The NIC.
    pub nic: NicSpec,
    /// The cores that the NIC's interrupts go to at first, in turn.
    pub irq_cores: CpuSet,
    /// What is asked of them.
    pub loads: Vec<LoadSpec>,
    /// What things cost.
    pub costs: Costs,
    /// All that is random is drawn from it.
    pub seed: u64,
    /// The number of the first thread; the others follow.
    pub first_thread: u32,
    /// Memory, where some of it is far; elsewhere it makes no difference where a guest's lies.
    pub tiers: Option<TiersSpec>,
}

/// Everything that runs on a host.
pub struct Tenants {
    /// The guests.
    pub guests: Vec<Guest>,
    /// What is on its way.
    pub net: Net,
    /// The NIC.
    pub nic: Nic,
    /// All guests' workers.
    pub workers: Vec<Worker>,
    /// The clients.
    pub clients: Vec<Client>,
    /// What goes wrong.
    pub faults: Faults,
    /// Loads that are kept second by second.
    pub records: Vec<Record>,
    costs: Costs,
    ground: Ground,
    owners: Vec<Owner>,
    first_thread: u32,
    /// Response times on each guest's tap, since they were last asked for.
    taps: Vec<Histogram>,
    /// How many responses there were when this was last asked, and their mean.
    told_of: Vec<(u64, Nanos)>,
    flows: steered::Flows,
    /// Where the host's taps choose queues by what guests send, what they know.
    learned: learned::Learned,
    sockets: sockets::Sockets,
    tiers: Option<tiers::Tiers>,
    crowds: crowds::Crowds,
}

/// A vCPU has room for so many exits to come before it needs more.
const EXITS: usize = 8;

/// What an alarm or an interrupt is about: the highest byte of its token.
const CLIENT: u64 = 1 << 56;
const MODERATION: u64 = 2 << 56;
const DISK: u64 = 3 << 56;
const HARD: u64 = 4 << 56;
const SOFT: u64 = 5 << 56;
const MEMORY: u64 = 6 << 56;
const BOOT: u64 = 7 << 56;
const ROOM: u64 = 8 << 56;
const AGAIN: u64 = 9 << 56;
const ACK: u64 = 10 << 56;
const TICK: u64 = 11 << 56;
const SENT: u64 = 12 << 56;
const SENT_HARD: u64 = 13 << 56;
const SENT_SOFT: u64 = 14 << 56;
const TIMER: u64 = 15 << 56;
const LEFT: u64 = 16 << 56;
const END: u64 = 17 << 56;
const KIND: u64 = 0xff << 56;

impl Tenants {
    /// All of a host's tenants, asleep.
    pub fn new(spec: TenantsSpec, topology: &Topology) -> Result<Tenants, TenantsError> {
        let ground = Ground::new(topology);
        let mut tenants = Tenants {
            guests: Vec::with_capacity(spec.guests.len()),
            net: Net::default(),
            nic: Nic::new(spec.nic, &spec.irq_cores, ground.len()),
            workers: Vec::new(),
            clients: Vec::new(),
            faults: Faults::new(spec.seed),
            records: Vec::new(),
            costs: spec.costs,
            owners: Vec::new(),
            first_thread: spec.first_thread,
            taps: vec![Histogram::default(); spec.guests.len()],
            told_of: vec![(0, Nanos::ZERO); spec.guests.len()],
            flows: steered::Flows::default(),
            learned: learned::Learned::default(),
            sockets: sockets::Sockets::default(),
            tiers: None,
            crowds: crowds::Crowds::new(&ground, spec.guests.len()),
            ground,
        };
        for (number, guest) in (0..).zip(spec.guests) {
            tenants.add(number, guest, spec.seed)?;
        }
        if let Some(tiers) = spec.tiers {
            tenants.tiers = Some(tiers::Tiers::new(tiers, &tenants.guests, spec.seed)?);
            tenants.hold_files();
        }
        let mut flow = 0;
        for (number, load) in spec.loads.into_iter().enumerate() {
            let answers = |guest: &u32| {
                let guest = tenants.guests.get(*guest as usize);
                guest.is_some_and(|guest| guest.programs.iter().any(|p| p.program.serves()))
            };
            if load.route.is_empty()
                || load.route.len() > ROUTE_MAX
                || !load.route.iter().all(answers)
            {
                return Err(TenantsError::Route {
                    load: number,
                    route: load.route,
                });
            }
            let connections = load.connections.max(1);
            let stream = Stream::new(spec.seed, "client", number as u64);
            tenants.clients.push(Client::new(load, flow, stream));
            flow += connections;
        }
        if spec.costs.driver.tap_learns {
            let routes = tenants.clients.iter().map(|client| client.spec.route.len());
            tenants.learned = learned::Learned::new(flow, routes.max().unwrap_or(0));
        }
        Ok(tenants)
    }

    fn add(&mut self, number: u32, spec: GuestSpec, seed: u64) -> Result<(), TenantsError> {
        if !(1..=1024).contains(&spec.vcpus) || !(1..=64).contains(&spec.queues) {
            return Err(TenantsError::Size {
                guest: spec.id.as_str().to_owned(),
                vcpus: spec.vcpus,
                queues: spec.queues,
            });
        }
        let thread = |owners: &Vec<Owner>| ThreadId(self.first_thread + owners.len() as u32);
        let mut vcpus = Vec::new();
        for vcpu in 0..spec.vcpus {
            vcpus.push(Vcpu::new(thread(&self.owners)));
            self.owners.push(Owner::Vcpu {
                guest: number,
                vcpu,
            });
        }
        let mut workers = Vec::new();
        for queue in 0..spec.queues {
            let worker = self.workers.len() as u32;
            workers.push(worker);
            self.workers.push(Worker {
                guest: number,
                queue,
                thread: thread(&self.owners),
                cpu: CpuId(u32::MAX),
                ..Worker::default()
            });
            self.owners.push(Owner::Vhost {
                guest: number,
                queue,
                worker,
            });
        }
        // Linux's: 0.7 ms, scaled by the number of CPUs up to eight.
        let scale = 1 + spec.vcpus.min(8).ilog2();
        let mut guest = Guest {
            id: spec.id,
            vcpus,
            vcpus_active: spec.vcpus,
            workers,
            queues_active: spec.queues,
            programs: Vec::new(),
            tasks: Vec::new(),
            waiting: 0,
            relief: (Nanos::ZERO, 0),
            fades: Nanos::ZERO,
            down: Some(spec.vcpus),
            slice: Nanos(u64::from(scale) * 700_000),
            halt_poll: spec.halt_poll,
            memory_waits: spec.memory_waits,
            placing: Placing::new(spec.placement, spec.vcpus),
            resting: false,
            away: false,
            dead: false,
            ticks_from: Nanos(
                Stream::new(seed, "tick", number.into()).below(self.costs.guest_tick.0.max(1)),
            ),
            acks: Acks::default(),
            upkeep: None,
            done: 0,
            stream: Stream::new(seed, "guest", number.into()),
        };
        guest.allow(spec.vcpus);
        for program in spec.programs {
            if let Program::Upkeep { keys, .. } = program {
                guest.upkeep = Some(Upkeep::new(
                    keys,
                    Stream::new(seed, "upkeep", number.into()),
                ));
            }
            add_program(&mut guest, program);
        }
        // However its tasks come together, their queues have room.
        for vcpu in &mut guest.vcpus {
            vcpu.queue.reserve(guest.tasks.len());
            vcpu.exits.reserve(EXITS);
        }
        self.guests.push(guest);
        Ok(())
    }

    /// Keeps what comes of these clients, by number, in one record.
    pub fn keep(&mut self, record: Record, clients: &[usize]) {
        let number = self.records.len() as u32;
        self.records.push(record);
        for client in clients {
            if let Some(client) = self.clients.get_mut(*client) {
                client.record = Some(number);
            }
        }
    }

    /// The threads that it wants, in order of their numbers, from the first on.
    pub fn owners(&self) -> &[Owner] {
        &self.owners
    }

    /// Whose a thread is.
    pub fn owner(&self, thread: ThreadId) -> Option<Owner> {
        let at = thread.0.checked_sub(self.first_thread)?;
        self.owners.get(at as usize).copied()
    }

    /// What things cost.
    pub fn costs(&self) -> &Costs {
        &self.costs
    }

    /// Guests boot, one after the other, and clients begin. A kernel runs on each of its vCPUs before any task does: so each of them is on some core from then on,
    /// where the host put it, and tasks begin on vCPUs that are idle ([`Tenants::booted`]). At one instant whichever cores were through first would take the
    /// others' vCPUs, and all would end up there.
    pub fn begin(&mut self, out: &mut Effects) {
        for g in 0..self.guests.len() as u64 {
            out.alarm(Nanos(self.costs.start.0 * g), BOOT | g);
        }
        for client in 0..self.clients.len() {
            self.next_arrival(client, out);
        }
        if self.tiers.is_some() {
            out.alarm(tiers::PASS, MEMORY);
        }
    }

    /// A guest boots; or, once it has, its tasks begin. One that something woke before its turn has booted by then.
    fn boot(&mut self, g: u32, out: &mut Effects) {
        let guest = &self.guests[g as usize];
        match guest.down {
            None => {}
            Some(0) => self.booted(g, out),
            Some(_) => {
                for vcpu in &guest.vcpus {
                    out.notify(vcpu.thread);
                }
            }
        }
    }

    /// A guest's tasks begin.
    fn booted(&mut self, g: u32, out: &mut Effects) {
        let guest = &mut self.guests[g as usize];
        if guest.dead {
            return;
        }
        guest.down = None;
        for task in 0..self.guests[g as usize].tasks.len() as u32 {
            self.start_task(g, task, out);
        }
    }

    /// Whoever has a core is asked for what it has done there: one that nobody disturbs doesn't say so by itself.
    pub fn ask_all(&self, out: &mut Effects) {
        let vcpus = self.guests.iter().flat_map(|guest| &guest.vcpus);
        for vcpu in vcpus.filter(|vcpu| vcpu.on.is_some()) {
            out.notify(vcpu.thread);
        }
    }

    /// Memory is looked at anew. Who has a core is asked before and after, for what it has done and how fast it goes on.
    fn memory_passes(&mut self, now: Nanos, out: &mut Effects) {
        let Some(tiers) = &mut self.tiers else {
            return;
        };
        tiers.pass(&self.guests, now);
        self.ask_all(out);
        out.alarm(now.saturating_add(tiers::PASS), MEMORY);
    }

    fn next_arrival(&mut self, client: usize, out: &mut Effects) {
        if let Some(due) = self.clients[client].next_due() {
            out.alarm(due.saturating_add(self.costs.wire), CLIENT | client as u64);
        }
    }
}

fn add_program(guest: &mut Guest, program: Program) {
    let first = guest.tasks.len() as u32;
    let count = program.tasks();
    let mut locks = Vec::new();
    let mut cache = FileCache::default();
    let mut group = None;
    match &program {
        Program::Lock {
            locks: wanted,
            declared,
            ..
        } => {
            let wanted = (*wanted).clamp(1, count.max(1));
            locks.resize_with(wanted as usize, Lock::default);
            group = declared.then_some(wanted);
            guest.placing.finds |= !declared;
        }
        Program::Files { size, memory, .. } => cache = FileCache::new(*memory, *size),
        Program::Barrier { .. } => guest.placing.finds = true,
        Program::Serve { .. }
        | Program::Compute { .. }
        | Program::Upkeep { .. }
        | Program::Agent { .. }
        | Program::Disk { .. } => {}
    }
    // Where the first of them are is of no account to most. Those that hand lines over are compared by it, and the vCPUs of low numbers are on neighbouring cores
    // where a guest boots alone: they begin on any.
    let mut starts: Vec<u32> = (0..guest.vcpus.len() as u32).collect();
    if let Program::Lock { tasks, .. } = &program
        && (*tasks as usize) < starts.len()
    {
        for at in 0..*tasks as usize {
            let rest = (starts.len() - at) as u64;
            starts.swap(at, at + guest.stream.below(rest) as usize);
        }
    }
    let mut service = Service::default();
    for number in 0..count {
        let task = first + number;
        service.free.push(task);
        guest.tasks.push(Task {
            program: guest.programs.len() as u32,
            number,
            activity: Activity::Blocked,
            phase: Phase::Start,
            vcpu: starts[task as usize % starts.len()],
            go: false,
            vruntime: 0,
            slice: Nanos::ZERO,
            ran: Nanos::ZERO,
            inbox: std::collections::VecDeque::new(),
            message: None,
            then: Nanos::ZERO,
            rests: false,
            woken: 0,
            ran_before: Nanos::ZERO,
            // Those of a lock are a group; groups are told apart from those of other programs by their first task.
            group: group.map(|locks| first + number % locks),
            vcg: None,
        });
    }
    guest.programs.push(Running {
        program,
        first,
        count,
        service,
        locks,
        barrier: Barrier::default(),
        cache,
    });
}

impl Work for Tenants {
    fn next(&mut self, thread: ThreadId, cpu: CpuId, now: Nanos, out: &mut Effects) -> Next {
        match self.owner(thread) {
            Some(Owner::Vcpu { guest, vcpu }) => self.vcpu_next(guest, vcpu, cpu, now, out),
            Some(Owner::Vhost { worker, .. }) => self.vhost_next(worker, cpu, now),
            None => Next::Sleep,
        }
    }

    fn ran(&mut self, thread: ThreadId, cpu: CpuId, work: Nanos, now: Nanos, out: &mut Effects) {
        match self.owner(thread) {
            Some(Owner::Vcpu { guest, vcpu }) => self.vcpu_ran(guest, vcpu, cpu, work, now, out),
            Some(Owner::Vhost { worker, .. }) => self.vhost_ran(worker, cpu, work, now, out),
            None => {}
        }
    }

    fn left(&mut self, thread: ThreadId, _cpu: CpuId, now: Nanos, out: &mut Effects) {
        if let Some(Owner::Vcpu { guest: g, vcpu }) = self.owner(thread) {
            let guest = &mut self.guests[g as usize];
            let known = &mut guest.vcpus[vcpu as usize];
            known.on = None;
            let stopped = known.told != Told::Sleep;
            crate::guest::place::set(&mut guest.placing.sets.preempted, vcpu, true);
            if stopped {
                self.keeps_tick(g, vcpu, now, out);
            }
        }
    }

    fn interrupted(
        &mut self,
        cpu: CpuId,
        token: u64,
        now: Nanos,
        out: &mut Effects,
    ) -> Option<Nanos> {
        let number = token & !KIND;
        let poller = number as u32;
        match token & KIND {
            HARD => self.begin_poll(poller, now, out),
            SOFT => return self.polled(poller, cpu, now, out),
            SENT_HARD => self.sees_sent(poller, out),
            SENT_SOFT => self.saw_sent(poller, now, out),
            TICK => self.ticked((number >> 24) as u32, (number & 0xff_ffff) as u32, cpu, out),
            TIMER => self.timed((number >> 24) as u32, (number & 0xff_ffff) as u32, cpu, out),
            _ => {}
        }
        None
    }

    fn alarm(&mut self, token: u64, now: Nanos, out: &mut Effects) {
        let number = token & !KIND;
        match token & KIND {
            CLIENT => self.arrive(number as usize, now, out),
            ROOM => self.comes_free(number as usize, now, out),
            LEFT => self.comes_in(number as u32, now, out),
            END => self.client_turns(number as usize, now, out),
            AGAIN => self.send_again(number as usize, now, out),
            ACK => self.acknowledge(number as usize, now, out),
            MODERATION => self.alarmed(number as u32, now, out),
            SENT => self.may_say_sent(number as u32, now, out),
            MEMORY => self.memory_passes(now, out),
            BOOT => self.boot(number as u32, out),
            TICK => self.tick((number >> 24) as u32, (number & 0xff_ffff) as u32, now, out),
            TIMER => self.timer((number >> 24) as u32, (number & 0xff_ffff) as u32, out),
            DISK => self.block_came((number >> 24) as u32, (number & 0xff_ffff) as u32, now, out),
            _ => {}
        }
    }

    fn in_kernel(&self, thread: ThreadId) -> bool {
        matches!(self.owner(thread), Some(Owner::Vhost { .. }))
    }

    fn holds_softirqs(&self, thread: ThreadId) -> bool {
        match self.owner(thread) {
            Some(Owner::Vhost { worker, .. }) => self.workers[worker as usize].holds_softirqs(),
            _ => false,
        }
    }

    fn exits(&self, thread: ThreadId) -> u64 {
        match self.owner(thread) {
            Some(Owner::Vcpu { guest, vcpu }) => {
                let vcpu = &self.guests[guest as usize].vcpus[vcpu as usize];
                vcpu.exit_count + vcpu.interrupts
            }
            _ => 0,
        }
    }

    fn leaves_at(&self, thread: ThreadId, now: Nanos) -> Option<Nanos> {
        match self.owner(thread) {
            Some(Owner::Vcpu { guest, .. }) => self.next_tick(guest, now),
            _ => None,
        }
    }

    fn stays(&self, thread: ThreadId) -> Nanos {
        let Some(Owner::Vcpu { guest, vcpu }) = self.owner(thread) else {
            return Nanos::ZERO;
        };
        let guest = &self.guests[guest as usize];
        let program = guest.vcpus[vcpu as usize].current.map(|task| {
            let task = &guest.tasks[task as usize];
            &guest.programs[task.program as usize].program
        });
        match program {
            Some(Program::Compute { .. } | Program::Barrier { .. } | Program::Lock { .. }) => {
                Nanos::ZERO
            }
            _ => self.costs.serving_stay,
        }
    }

    fn slowdown(&self, thread: ThreadId, _cpu: CpuId) -> u32 {
        match (&self.tiers, self.owner(thread)) {
            (Some(tiers), Some(Owner::Vcpu { guest, .. })) => tiers.slow(guest),
            _ => FULL_SPEED,
        }
    }
}
