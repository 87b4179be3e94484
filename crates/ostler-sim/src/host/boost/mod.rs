//! vCPUs by who does IO: the scheduler of bpf/boost, over the same arithmetic (`ostler_boost`, bpf/core/boost.h).
//!
//! Its parts are named as there, and say what is there; why is told in that folder's essays and in docs/decisions/0014 and 0015. What the kernel's sched_ext does
//! around them is the host's: it asks [`Boost::dispatch`] when a core has nobody of its class at hand, and carries out the kicks that come of it.
//!
//! | part | there |
//! |---|---|
//! | `queue` | queue.h: who waits in a domain, and whom one meets on its core |
//! | `accounts` | accounts.h: charges, payments, what a guest's other threads run |
//! | `calls` | boost.bpf.c, coming.h, hooks.h, turns.h: the callbacks |
//! | `member` | state.h: a thread that is let in |
//! | this | state.h: what else it knows |
//!
//! Changed: a domain has any number of cores, times are the world's, and there is no lock since nothing happens at once.

mod accounts;
mod calls;
mod member;
mod queue;

use std::collections::VecDeque;

use ostler_boost::{Config, Conflict, Degradation, Guest, NOBODY, Service};
use ostler_model::{CpuId, CpuSet};

use self::member::{At, Member, Moment, Pooled};
use super::fair::NONE;

/// One that wakes takes a core by its own right from who has had more by this (`WAKE_GRANULARITY` of crates/ostler-act/src/boost.rs).
const WAKE_GRANULARITY_NS: u64 = 1_000_000;

/// So many may wait for a core before its queues need more room.
const ROOM: usize = 8;

/// The arithmetic's settings, by the operator's.
pub fn config(settings: &ostler_model::BoostSettings) -> Config {
    Config {
        slice_ns: settings.slice.0,
        slice_max_ns: settings.slice_max.0,
        limit_ns: settings.limit.0,
        threshold: settings.threshold,
        confidence_max: settings.confidence_max,
        degradation: match settings.degradation {
            ostler_model::Degradation::Halve => Degradation::Halve,
            ostler_model::Degradation::Decrement => Degradation::Decrement,
            ostler_model::Degradation::Forget => Degradation::Forget,
        },
        conflict: match settings.conflict {
            ostler_model::Conflict::Confidence => Conflict::ByConfidence,
            ostler_model::Conflict::Balance => Conflict::ByBalance,
            ostler_model::Conflict::Neither => Conflict::Neither,
        },
        enabled: u32::from(settings.io),
        spare: 0,
    }
}

/// A thread that waits in a domain, with what is asked of all of these whenever one comes or goes: what its member has ([`Boost::shows`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    /// Its place: by the virtual time that it had when it came.
    pub order: u64,
    pub vtime: u64,
    pub thread: u32,
    pub guest: u32,
    pub has_event: bool,
    /// It may run on all of the domain's cores.
    pub anywhere: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Domain {
    pub now: u64,
    pub cores: Vec<u32>,
    pub set: CpuSet,
    pub queue: VecDeque<Waiting>,
    /// Somebody in the queue has to be told from its place there.
    pub stirred: bool,
}

#[derive(Clone, Debug)]
pub(super) struct BoostCore {
    pub domain: u32,
    pub runs: u32,
    pub next: u32,
    pub held: u32,
    /// Threads that are this core's already; the kernel's local queue.
    pub local: VecDeque<u32>,
    pub turn_ends: u64,
    pub turn_fires: u64,
}

/// What the scheduler wants of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kick {
    /// Another core's has its vCPU make room, by an IPI.
    Preempt(u32),
    /// Its vCPU has had its turn, as its own timer or whoever came to it says.
    Over(u32),
    /// It may sleep, and there is work.
    Idle(u32),
    /// A timer at a time.
    Turn(u32, u64),
}

/// What the scheduler sees of the host.
#[derive(Clone, Copy)]
pub(super) struct Sight<'a> {
    pub now: u64,
    pub allowed: &'a [CpuSet],
    pub idle: &'a CpuSet,
}

impl Sight<'_> {
    fn may(&self, thread: u32, cpu: u32) -> bool {
        self.allowed[thread as usize].contains(CpuId(cpu))
    }
}

/// The scheduler.
#[derive(Clone, Debug)]
pub(super) struct Boost {
    pub config: Config,
    wake_granularity: u64,
    /// Between two ticks.
    tick: u64,
    members: Vec<Member>,
    /// By member: how often it was put before others for an event, and how often it wasn't.
    told: Vec<(u64, u64)>,
    /// By number: [`NOBODY`]'s first.
    pub guests: Vec<Guest>,
    services: Vec<Service>,
    domains: Vec<Domain>,
    cores: Vec<BoostCore>,
    pub kicks: Vec<Kick>,
}

impl Boost {
    /// What a guest's other threads have run.
    pub fn service_ran(&self, guest: usize) -> u64 {
        self.services.get(guest).map_or(0, |service| service.ran_ns)
    }

    pub fn new(config: Config, tick: u64, domains: &[CpuSet], cores: usize) -> Boost {
        let mut boost = Boost {
            config,
            wake_granularity: WAKE_GRANULARITY_NS,
            tick,
            members: Vec::new(),
            told: Vec::new(),
            guests: vec![Guest::default()],
            services: vec![Service::default()],
            domains: Vec::new(),
            cores: vec![
                BoostCore {
                    domain: 0,
                    runs: NONE,
                    next: NONE,
                    held: NONE,
                    local: VecDeque::with_capacity(ROOM),
                    turn_ends: 0,
                    turn_fires: 0,
                };
                cores
            ],
            kicks: Vec::with_capacity(ROOM),
        };
        for (number, set) in domains.iter().enumerate() {
            boost.domains.push(Domain {
                now: 0,
                cores: set.iter().map(|cpu| cpu.0).collect(),
                set: *set,
                queue: VecDeque::with_capacity(ROOM * set.len() as usize),
                stirred: false,
            });
            for cpu in set {
                boost.cores[cpu.0 as usize].domain = number as u32;
            }
        }
        boost
    }

    pub fn member(&self, thread: u32) -> Option<&Member> {
        let member = self.members.get(thread as usize);
        member.filter(|member| member.is_in())
    }

    /// How often a member was put before others for an event, and how often it wasn't.
    pub fn told(&self, thread: u32) -> Option<(u64, u64)> {
        self.member(thread)?;
        Some(self.told[thread as usize])
    }

    fn member_mut(&mut self, thread: u32) -> Option<&mut Member> {
        let member = self.members.get_mut(thread as usize);
        member.filter(|member| member.is_in())
    }

    /// Lets a thread in, whose guest is told by its cgroup.
    pub fn enable(
        &mut self,
        thread: u32,
        group: Option<u32>,
        (works, asleep): (bool, bool),
        cpu: u32,
        ran: u64,
    ) {
        let guest = group.map_or(NOBODY, |group| group + 1);
        if self.guests.len() <= guest as usize {
            self.guests.resize(guest as usize + 1, Guest::default());
            self.services.resize(guest as usize + 1, Service::default());
        }
        if self.members.len() <= thread as usize {
            self.members.resize(thread as usize + 1, Member::nobody());
            self.told.resize(thread as usize + 1, (0, 0));
        }
        let domain = self.cores[cpu as usize].domain;
        let vtime = self.domains[domain as usize].now;
        let mut member = Member::new(guest, works, (domain, cpu), vtime, ran);
        member.slice = self.config.slice_ns;
        self.members[thread as usize] = member;
        self.told[thread as usize] = (0, 0);
        self.join(thread);
        if asleep {
            self.rest(thread);
        }
    }

    pub fn disable(&mut self, thread: u32) {
        self.remove(thread);
        if self.member(thread).is_some() {
            self.leave(thread);
            self.members[thread as usize] = Member::nobody();
        }
    }

    /// Others than before may share its cores.
    pub fn moved(&mut self, thread: u32) {
        if let Some(member) = self.member_mut(thread) {
            member.moved = true;
        }
    }

    /// `boost_set_cpumask`: a thread is told where it may run. One that sleeps does so where it is to wake, as far as that is known.
    pub fn confined(&mut self, thread: u32, allowed: &CpuSet) {
        self.moved(thread);
        if let Some((domain, at)) = self.place(thread) {
            let domain = &mut self.domains[domain];
            domain.queue[at].anywhere = domain.set.is_subset(allowed);
        }
        let Some(member) = self.member(thread).filter(|member| member.rests()) else {
            return;
        };
        let mut cores = self.domains[member.domain as usize].cores.iter();
        if cores.any(|cpu| allowed.contains(CpuId(*cpu))) {
            return;
        }
        let Some(first) = allowed.first() else { return };
        self.arrive(thread, self.cores[first.0 as usize].domain);
        self.rest(thread);
    }

    pub fn is_clear(&self, cpu: u32) -> bool {
        self.cores[cpu as usize].local.is_empty()
    }

    /// The first of those that are a core's already.
    pub fn local(&self, cpu: u32) -> Option<u32> {
        self.cores[cpu as usize].local.front().copied()
    }

    /// `boost_select_cpu`, where a core sleeps: it is that one's without a queue.
    pub fn insert_local(&mut self, thread: u32, cpu: u32) {
        let slice = self.config.slice_ns;
        if let Some(member) = self.member_mut(thread) {
            member.slice = slice;
        }
        self.cores[cpu as usize].local.push_back(thread);
    }

    /// What the kernel does with one that a higher class stops in the midst of its slice.
    pub fn keep_local(&mut self, thread: u32, cpu: u32) {
        self.cores[cpu as usize].local.push_front(thread);
    }
}
