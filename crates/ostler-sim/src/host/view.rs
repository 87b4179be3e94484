//! A host as it is at a moment, for whoever observes it: nothing of it can be changed.

use ostler_model::{CpuId, CpuSet, GuestBoost, GuestId, Nanos};

use super::core::{CoreTime, Doing, Handled};
use super::fair::NONE;
use super::thread::{GroupId, State, ThreadTime};
use super::{Counters, Host};
use crate::work::ThreadId;

/// A host at a moment.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    host: &'a Host,
    now: Nanos,
}

impl Host {
    /// The host as it is at a time, which isn't before its last event.
    pub fn view(&self, now: Nanos) -> View<'_> {
        View { host: self, now }
    }
}

impl View<'_> {
    /// The time that this is about.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Cores that there are.
    pub fn online(&self) -> CpuSet {
        self.host.map.online
    }

    /// Threads that there are or were: their numbers are below this.
    pub fn threads(&self) -> u32 {
        self.host.threads.len() as u32
    }

    /// Where a core's time went.
    pub fn core_time(&self, cpu: CpuId) -> CoreTime {
        let core = &self.host.cores[cpu.0 as usize];
        let mut time = core.time;
        time.add(
            core.doing,
            self.host.yields(core.running),
            self.now.0 - core.since.0,
        );
        time
    }

    /// What of that is something else to who counts interrupts by their handlers.
    pub fn handled(&self, cpu: CpuId) -> Handled {
        self.host.cores[cpu.0 as usize].handled
    }

    /// What a core does.
    pub fn doing(&self, cpu: CpuId) -> Doing {
        self.host.cores[cpu.0 as usize].doing
    }

    /// The thread that has a core.
    pub fn running(&self, cpu: CpuId) -> Option<ThreadId> {
        let running = self.host.cores[cpu.0 as usize].running;
        (running != NONE).then_some(ThreadId(running))
    }

    /// Where a thread's time went.
    pub fn thread_time(&self, thread: ThreadId) -> ThreadTime {
        let known = &self.host.threads[thread.0 as usize];
        let mut time = known.time;
        let past = self.now.0.saturating_sub(known.since.0);
        match known.state {
            State::Asleep => time.slept += past,
            State::Waits => time.waited += past,
            State::Runs => match self.host.cores[known.cpu as usize].doing {
                Doing::Thread => time.ran += past,
                _ => time.held += past,
            },
            State::Gone => {}
        }
        time
    }

    /// What the kernel says that a thread has run, of where its time went: where it doesn't tell interrupts apart, with those that came meanwhile.
    pub fn charged(&self, time: ThreadTime) -> u64 {
        self.host.charged(time)
    }

    /// How long a thread has been there, or was.
    pub fn lifetime(&self, thread: ThreadId) -> Nanos {
        let known = &self.host.threads[thread.0 as usize];
        let end = if known.state == State::Gone {
            known.since
        } else {
            self.now
        };
        end.saturating_sub(known.born)
    }

    /// Where a thread is.
    pub fn state(&self, thread: ThreadId) -> State {
        self.host.threads[thread.0 as usize].state
    }

    /// Since when, where it waits.
    pub fn waits_since(&self, thread: ThreadId) -> Option<Nanos> {
        let known = &self.host.threads[thread.0 as usize];
        (known.state == State::Waits).then_some(known.since)
    }

    /// Whether two cores share a last-level cache.
    pub fn shares_cache(&self, one: CpuId, other: CpuId) -> bool {
        self.host.map.shares_cache(one.0, other.0)
    }

    /// The core that a thread is on, or was last.
    pub fn cpu(&self, thread: ThreadId) -> CpuId {
        CpuId(self.host.threads[thread.0 as usize].cpu)
    }

    /// Where a thread may run, by itself and its cgroup.
    pub fn allowed(&self, thread: ThreadId) -> CpuSet {
        self.host.allowed[thread.0 as usize]
    }

    /// A thread's cgroup.
    pub fn group(&self, thread: ThreadId) -> Option<GroupId> {
        self.host.threads[thread.0 as usize].group.map(GroupId)
    }

    /// Whether a thread yields to all others.
    pub fn yields(&self, thread: ThreadId) -> bool {
        self.host.yields(thread.0)
    }

    /// Whether a cgroup is frozen.
    pub fn frozen(&self, group: GroupId) -> bool {
        self.host.groups[group.0 as usize].frozen
    }

    /// How often a thread came to a core, and to another than before.
    pub fn moves(&self, thread: ThreadId) -> (u64, u64) {
        let known = &self.host.threads[thread.0 as usize];
        (known.switches, known.migrations)
    }

    /// Whether a cgroup has only what others leave.
    pub fn is_idle(&self, group: GroupId) -> bool {
        self.host.groups[group.0 as usize].idle
    }

    /// The cores that a cgroup's threads may run on.
    pub fn cpuset(&self, group: GroupId) -> CpuSet {
        self.host.groups[group.0 as usize].cpuset
    }

    /// What the boost scheduler has done for and to a guest, as the daemon tells it of a host; `None` where it has none of its vCPUs.
    pub fn guest_boost(
        &self,
        id: &GuestId,
        group: GroupId,
        vcpus: &[ThreadId],
    ) -> Option<GuestBoost> {
        let boost = self.host.boost.as_deref()?;
        let members = || vcpus.iter().filter_map(|vcpu| boost.member(vcpu.0));
        let number = members().next()?.guest as usize;
        let account = boost.guests.get(number)?;
        let told = || vcpus.iter().filter_map(|vcpu| boost.told(vcpu.0));
        let times = || vcpus.iter().map(|vcpu| self.thread_time(*vcpu));
        Some(GuestBoost {
            guest: id.clone(),
            vcpus: members().count() as u32,
            io_vcpus: members().filter(|m| m.vcpu.does_io(&boost.config)).count() as u32,
            ran: Nanos(times().map(|time| self.charged(time)).sum()),
            waited: Nanos(times().map(|time| time.waited).sum()),
            served: Nanos(boost.service_ran(number)),
            balance_ns: account.balance_ns,
            borrowed: Nanos(account.borrowed_ns),
            paid: Nanos(account.paid_ns),
            lent: Nanos(account.lent_ns),
            returned: Nanos(account.returned_ns),
            boosts: told().map(|told| told.0).sum(),
            refused: told().map(|told| told.1).sum(),
            tasks_seen: 0,
            delays: self.host.groups[group.0 as usize].delays.to_vec(),
        })
    }

    /// What was counted.
    pub fn counters(&self) -> Counters {
        self.host.counters
    }

    /// The boost scheduler's accounts of guests, by cgroup from 1 on (0: nobody's), and the limit of their balances, ns; `None` where there is none.
    pub fn boost_guests(&self) -> Option<(&[ostler_boost::Guest], u64)> {
        let boost = self.host.boost.as_deref()?;
        Some((&boost.guests, boost.config.limit_ns))
    }

    /// How often a guest's vCPU was put before others for an event, and wasn't: of all its threads that are let in.
    pub fn boosts(&self, thread: ThreadId) -> Option<(u64, u64)> {
        self.host.boost.as_deref()?.told(thread.0)
    }

    /// From an event to its vCPU running, by guest, as the boost scheduler counts it.
    pub fn delays(&self, group: GroupId) -> ostler_boost::Delays {
        self.host.groups[group.0 as usize].delays
    }

    /// What all cores took, in mW times ns (pJ): each in each state for as long as it was in it.
    pub fn energy_pj(&self) -> u128 {
        let costs = &self.host.costs;
        let of = |cpu: CpuId| {
            let time = self.core_time(cpu);
            let idle = time.idle.iter().zip(costs.idle_power);
            let idle: u128 = idle
                .map(|(time, power)| u128::from(*time) * u128::from(power))
                .sum();
            idle + u128::from(time.busy()) * u128::from(costs.busy_power)
        };
        self.host.map.online.iter().map(of).sum()
    }
}
