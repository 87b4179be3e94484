//! Threads: what a host had them do is what their owner accounts for, and neither breaks what they have agreed ([`crate::work`]).
//!
//! A watcher stands between the two and sees every call. It holds the host to: only a thread that has work runs, for no longer than it has; and
//! the owner to: what a vCPU's thread ran is what its tasks, spins, interrupts, exits and polls consumed, and what tasks ran is what vCPUs
//! ran for them.

use std::collections::BTreeMap;

use ostler_model::{
    AgentHealth, AgentState, CpuId, CpuSet, LatencyView, Nanos, Plan, Ring, Snapshot,
};

use crate::steward::Steered;
use crate::tenants::{Housed, Owner, Tenants};
use crate::work::{Effects, Next, ThreadId, Work};

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ThreadViolation {
    /// A thread ran what it didn't have.
    #[error("at {} ns thread {} ran {} ns, and had {had:?} to do", at.0, thread.0, ran.0)]
    Ran {
        /// When.
        at: Nanos,
        /// Which.
        thread: ThreadId,
        /// How much.
        ran: Nanos,
        /// What it had.
        had: Next,
    },
    /// A thread's owner accounts for something else.
    #[error("thread {} ran {} ns, and {owner:?} accounts for {} ns", thread.0, ran.0, told.0)]
    Accounts {
        /// Which.
        thread: ThreadId,
        /// Whose.
        owner: Owner,
        /// What it ran.
        ran: Nanos,
        /// What its owner says.
        told: Nanos,
    },
    /// Tasks ran for longer than vCPUs ran tasks, or for less.
    #[error("tasks of guest {guest} ran {tasks} ns, and its vCPUs ran tasks for {vcpus} ns")]
    Tasks {
        /// Which.
        guest: usize,
        /// By the tasks.
        tasks: u64,
        /// By the vCPUs.
        vcpus: u64,
    },
    /// A task is on two vCPUs, or on none and not asleep.
    #[error("task {task} of guest {guest} is {times} times on vCPUs and {activity}")]
    Places {
        /// Whose.
        guest: usize,
        /// Which.
        task: usize,
        /// How often.
        times: usize,
        /// What it does.
        activity: String,
    },
}

/// An owner of threads, and what it was seen to do.
pub struct Watched<W> {
    /// Who is watched.
    pub inner: W,
    threads: BTreeMap<ThreadId, (Next, Nanos)>,
    violations: Vec<ThreadViolation>,
}

impl<W: Work> Watched<W> {
    /// Watches from now on.
    pub fn new(inner: W) -> Watched<W> {
        Watched {
            inner,
            threads: BTreeMap::new(),
            violations: Vec::new(),
        }
    }

    /// What a thread has run.
    pub fn ran_in_all(&self, thread: ThreadId) -> Nanos {
        self.threads.get(&thread).map_or(Nanos::ZERO, |seen| seen.1)
    }
}

impl Watched<Tenants> {
    /// Whether everything agrees.
    pub fn check(&self) -> Result<(), ThreadViolation> {
        if let Some(violation) = self.violations.first() {
            return Err(violation.clone());
        }
        for &thread in self.threads.keys() {
            let Some(owner) = self.inner.owner(thread) else {
                continue;
            };
            let told = match owner {
                Owner::Vcpu { guest, vcpu } => {
                    let guest = &self.inner.guests[guest as usize];
                    guest.vcpus[vcpu as usize].accounts.total()
                }
                Owner::Vhost { worker, .. } => self.inner.workers[worker as usize].ran,
            };
            let ran = self.ran_in_all(thread);
            if ran != told {
                return Err(ThreadViolation::Accounts {
                    thread,
                    owner,
                    ran,
                    told,
                });
            }
        }
        for (number, guest) in self.inner.guests.iter().enumerate() {
            let tasks: u64 = guest.tasks.iter().map(|task| task.ran.0).sum();
            let accounts = guest.vcpus.iter().map(|vcpu| vcpu.accounts);
            let vcpus: u64 = accounts.map(|all| all.tasks.0 + all.spins.0).sum();
            if tasks != vcpus {
                return Err(ThreadViolation::Tasks {
                    guest: number,
                    tasks,
                    vcpus,
                });
            }
            if guest.dead {
                continue;
            }
            let mut times = vec![0; guest.tasks.len()];
            for vcpu in &guest.vcpus {
                for task in vcpu.queue.iter().chain(&vcpu.current) {
                    times[*task as usize] += 1;
                }
            }
            for (task, times) in times.into_iter().enumerate() {
                let activity = guest.tasks[task].activity;
                let asleep = activity == crate::guest::Activity::Blocked;
                if times != usize::from(!asleep) {
                    return Err(ThreadViolation::Places {
                        guest: number,
                        task,
                        times,
                        activity: format!("{activity:?}"),
                    });
                }
            }
        }
        Ok(())
    }
}

impl<W: Work> Work for Watched<W> {
    fn next(&mut self, thread: ThreadId, cpu: CpuId, now: Nanos, out: &mut Effects) -> Next {
        let next = self.inner.next(thread, cpu, now, out);
        self.threads.entry(thread).or_insert((next, Nanos::ZERO)).0 = next;
        next
    }

    fn ran(&mut self, thread: ThreadId, cpu: CpuId, work: Nanos, now: Nanos, out: &mut Effects) {
        let seen = self
            .threads
            .entry(thread)
            .or_insert((Next::Sleep, Nanos::ZERO));
        seen.1.0 += work.0;
        let had = seen.0;
        let too_much = match &mut seen.0 {
            Next::Run(left) if work <= *left => {
                left.0 -= work.0;
                false
            }
            Next::Spin => false,
            _ => work > Nanos::ZERO,
        };
        if too_much {
            self.violations.push(ThreadViolation::Ran {
                at: now,
                thread,
                ran: work,
                had,
            });
        }
        self.inner.ran(thread, cpu, work, now, out);
    }

    fn left(&mut self, thread: ThreadId, cpu: CpuId, now: Nanos, out: &mut Effects) {
        self.inner.left(thread, cpu, now, out);
    }

    fn interrupted(
        &mut self,
        cpu: CpuId,
        token: u64,
        now: Nanos,
        out: &mut Effects,
    ) -> Option<Nanos> {
        self.inner.interrupted(cpu, token, now, out)
    }

    fn alarm(&mut self, token: u64, now: Nanos, out: &mut Effects) {
        self.inner.alarm(token, now, out);
    }

    fn slowdown(&self, thread: ThreadId, cpu: CpuId) -> u32 {
        self.inner.slowdown(thread, cpu)
    }

    fn in_kernel(&self, thread: ThreadId) -> bool {
        self.inner.in_kernel(thread)
    }

    fn holds_softirqs(&self, thread: ThreadId) -> bool {
        self.inner.holds_softirqs(thread)
    }

    fn exits(&self, thread: ThreadId) -> u64 {
        self.inner.exits(thread)
    }

    fn leaves_at(&self, thread: ThreadId, now: Nanos) -> Option<Nanos> {
        self.inner.leaves_at(thread, now)
    }

    fn stays(&self, thread: ThreadId) -> Nanos {
        self.inner.stays(thread)
    }
}

/// What a steward asks goes through: it concerns no thread's time.
impl<W: Steered> Steered for Watched<W> {
    fn lives(&self, guest: u32) -> bool {
        self.inner.lives(guest)
    }

    fn latency(&mut self, guest: u32) -> Option<LatencyView> {
        self.inner.latency(guest)
    }

    fn agent(&self, guest: u32) -> Option<(AgentHealth, Option<AgentState>)> {
        self.inner.agent(guest)
    }

    fn ask_vcpus(&mut self, guest: u32, vcpus: u32, out: &mut Effects) {
        self.inner.ask_vcpus(guest, vcpus, out);
    }

    fn ask_queues(&mut self, guest: u32, queues: u32) {
        self.inner.ask_queues(guest, queues);
    }

    fn nic_queues(&self, nic: u32) -> u32 {
        self.inner.nic_queues(nic)
    }

    fn nic_irq(&self, nic: u32, ring: Ring, queue: u32) -> Option<(CpuId, u64)> {
        self.inner.nic_irq(nic, ring, queue)
    }

    fn set_nic_queues(&mut self, nic: u32, queues: u32) {
        self.inner.set_nic_queues(nic, queues);
    }

    fn set_nic_irq(&mut self, nic: u32, ring: Ring, queue: u32, cpu: CpuId) {
        self.inner.set_nic_irq(nic, ring, queue, cpu);
    }

    fn set_nic_xps(&mut self, nic: u32, sets: &[CpuSet]) {
        self.inner.set_nic_xps(nic, sets);
    }

    fn set_nic_rps(&mut self, nic: u32, queue: u32, cpus: &CpuSet) {
        self.inner.set_nic_rps(nic, queue, cpus);
    }

    fn pins(&self, guest: u32) -> Vec<bool> {
        self.inner.pins(guest)
    }

    fn fill(&mut self, snapshot: &mut Snapshot) {
        self.inner.fill(snapshot);
    }

    fn carry(&mut self, plan: &Plan, now: Nanos, out: &mut Effects) {
        self.inner.carry(plan, now, out);
    }
}

impl Housed for Watched<Tenants> {
    fn tenants(&self) -> &Tenants {
        &self.inner
    }

    fn tenants_mut(&mut self) -> &mut Tenants {
        &mut self.inner
    }
}
