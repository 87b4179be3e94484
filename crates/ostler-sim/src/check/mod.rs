//! What must hold of every world, found by watching it.
//!
//! Written apart from what it checks: a watcher sees a host only as [`View`] shows it, after each instant at which something happened, and keeps accounts of
//! its own: between two instants nothing changes, so each core and thread was all the time in the state that it was left in. What the
//! host's own accounts say must be the same, to the nanosecond. Those who own its threads have checkers of their own: [`messages`], [`threads`].

pub(crate) mod books;
pub mod messages;
pub mod threads;

use ostler_model::{CpuId, Nanos};

use crate::host::{CoreTime, Doing, State, ThreadTime, View};
use crate::work::ThreadId;

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A core's accounts.
    #[error("core {cpu}'s accounts say {told:?}, and it was {seen:?}")]
    Core {
        /// Which.
        cpu: CpuId,
        /// What the host says.
        told: CoreTime,
        /// What was seen.
        seen: CoreTime,
    },
    /// A core's time isn't all there.
    #[error("core {cpu} has accounts of {told} ns after {now} ns")]
    CoreTime {
        /// Which.
        cpu: CpuId,
        /// Of all accounts.
        told: u64,
        /// The time.
        now: Nanos,
    },
    /// A thread's accounts.
    #[error("thread {}'s accounts say {told:?}, and it was {seen:?}", thread.0)]
    Thread {
        /// Which.
        thread: ThreadId,
        /// What the host says.
        told: ThreadTime,
        /// What was seen.
        seen: ThreadTime,
    },
    /// A thread's time isn't all there.
    #[error("thread {} has accounts of {told} ns and has lived for {lived} ns", thread.0)]
    Lifetime {
        /// Which.
        thread: ThreadId,
        /// Of all accounts.
        told: u64,
        /// Its age.
        lived: Nanos,
    },
    /// Cores did more for threads than these had, or less.
    #[error("threads ran for {threads} ns, and cores for {cores} ns")]
    Ran {
        /// All threads.
        threads: u64,
        /// All cores.
        cores: u64,
    },
    /// A thread runs where it may not, or on a core that doesn't know of it.
    #[error("thread {} runs on core {cpu}, which it may not, or has another there", thread.0)]
    Place {
        /// Which.
        thread: ThreadId,
        /// Where.
        cpu: CpuId,
    },
    /// A core sleeps that could have a thread that waits.
    #[error("thread {} waits for {waits} ns, and core {cpu} sleeps for {sleeps} ns and could have it", thread.0)]
    Idle {
        /// Which.
        thread: ThreadId,
        /// For how long.
        waits: u64,
        /// The core.
        cpu: CpuId,
        /// For how long.
        sleeps: u64,
    },
    /// Balances don't add up to zero.
    #[error("the boost scheduler's balances add up to {sum} ns")]
    Balances {
        /// Of all.
        sum: i64,
    },
    /// A balance is beyond the limit.
    #[error("guest {guest}'s balance is {balance} ns, and the limit {limit} ns")]
    Limit {
        /// By the scheduler's number.
        guest: usize,
        /// What it is.
        balance: i64,
        /// What it may be.
        limit: u64,
    },
    /// Energy isn't what states add up to.
    #[error("the host took {told} pJ by its accounts, and {seen} by its cores' states")]
    Energy {
        /// What the host says.
        told: u128,
        /// What was seen.
        seen: u128,
    },
}

/// Keeps accounts of a host from outside.
#[derive(Clone, Debug)]
pub struct Watcher {
    at: Nanos,
    cores: Vec<SeenCore>,
    threads: Vec<SeenThread>,
    /// A core may sleep for so long while a thread waits that it could have; `None`: for ever.
    delay: Option<Nanos>,
    /// The same of cores that share no cache with the one where it waits.
    across: Nanos,
    violations: Vec<Violation>,
}

#[derive(Clone, Copy, Debug)]
struct SeenCore {
    cpu: CpuId,
    doing: Doing,
    since: Nanos,
    /// Whether whose turn it is yields.
    yields: bool,
    time: CoreTime,
}

#[derive(Clone, Copy, Debug)]
struct SeenThread {
    state: State,
    /// Whether an interrupt has its core.
    held: bool,
    time: ThreadTime,
}

/// As many are kept.
const VIOLATIONS_MAX: usize = 20;

impl Watcher {
    /// Of a host that has just begun. `delay` is how long a core may sleep while a thread waits that it could have.
    pub fn new(view: View<'_>, delay: Option<Nanos>) -> Watcher {
        let cores = view.online().iter().map(|cpu| SeenCore {
            cpu,
            doing: view.doing(cpu),
            since: view.now(),
            yields: false,
            time: CoreTime::default(),
        });
        let mut watcher = Watcher {
            at: view.now(),
            cores: cores.collect(),
            threads: Vec::new(),
            delay,
            across: delay.unwrap_or(Nanos::ZERO),
            violations: Vec::new(),
        };
        watcher.see(view);
        watcher
    }

    /// The same, where cores may sleep for another time while a thread waits on one that shares no cache with them.
    #[must_use]
    pub fn across(self, delay: Nanos) -> Watcher {
        Watcher {
            across: delay,
            ..self
        }
    }

    /// Something has happened.
    pub fn observe(&mut self, view: View<'_>) {
        let past = view.now().0 - self.at.0;
        for core in &mut self.cores {
            match core.doing {
                Doing::Rising => core.time.idle[0] += past,
                Doing::Idle(state) | Doing::Waking(state) => {
                    core.time.idle[usize::from(state)] += past;
                }
                Doing::Hard => core.time.hard += past,
                Doing::Soft => core.time.soft += past,
                Doing::Thread => {
                    core.time.threads += past;
                    core.time.yielding += if core.yields { past } else { 0 };
                }
            }
        }
        for thread in &mut self.threads {
            match thread.state {
                State::Asleep => thread.time.slept += past,
                State::Waits => thread.time.waited += past,
                State::Runs if thread.held => thread.time.held += past,
                State::Runs => thread.time.ran += past,
                State::Gone => {}
            }
        }
        self.at = view.now();
        self.see(view);
    }

    fn see(&mut self, view: View<'_>) {
        for core in &mut self.cores {
            let doing = view.doing(core.cpu);
            core.yields = view
                .running(core.cpu)
                .is_some_and(|thread| view.yields(thread));
            if doing != core.doing {
                core.doing = doing;
                core.since = view.now();
            }
        }
        for number in 0..view.threads() {
            let thread = ThreadId(number);
            let state = view.state(thread);
            let cpu = view.cpu(thread);
            let seen = SeenThread {
                state,
                held: view.doing(cpu) != Doing::Thread,
                time: self
                    .threads
                    .get(number as usize)
                    .map_or(ThreadTime::default(), |t| t.time),
            };
            match self.threads.get_mut(number as usize) {
                Some(known) => *known = seen,
                None => self.threads.push(seen),
            }
            if state == State::Runs
                && (!view.allowed(thread).contains(cpu) || view.running(cpu) != Some(thread))
            {
                self.tell(Violation::Place { thread, cpu });
            }
        }
        self.conserves_work(view);
        let Some((guests, limit)) = view.boost_guests() else {
            return;
        };
        let sum = guests.iter().map(|guest| guest.balance_ns).sum();
        if sum != 0 {
            self.tell(Violation::Balances { sum });
        }
        for (guest, account) in guests.iter().enumerate() {
            if account.balance_ns.unsigned_abs() > limit {
                self.tell(Violation::Limit {
                    guest,
                    balance: account.balance_ns,
                    limit,
                });
            }
        }
    }

    fn conserves_work(&mut self, view: View<'_>) {
        let Some(delay) = self.delay else {
            return;
        };
        for number in 0..view.threads() {
            let thread = ThreadId(number);
            let Some(since) = view.waits_since(thread) else {
                continue;
            };
            let waits = view.now().saturating_sub(since);
            if waits <= delay.min(self.across) {
                continue;
            }
            let (allowed, on) = (view.allowed(thread), view.cpu(thread));
            let idle = self.cores.iter().find(|core| {
                let near = view.shares_cache(on, core.cpu);
                let delay = if near { delay } else { self.across };
                matches!(core.doing, Doing::Idle(_))
                    && allowed.contains(core.cpu)
                    && waits > delay
                    && view.now().saturating_sub(core.since) > delay
            });
            if let Some(core) = idle {
                let (cpu, sleeps) = (core.cpu, view.now().saturating_sub(core.since).0);
                self.tell(Violation::Idle {
                    thread,
                    waits: waits.0,
                    cpu,
                    sleeps,
                });
            }
        }
    }

    fn tell(&mut self, violation: Violation) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(violation);
        }
    }

    /// All that was found, the accounts as they are now among it. `idle_power` and `busy_power` are what a core takes, mW.
    pub fn verdict(
        mut self,
        view: View<'_>,
        idle_power: &[u64],
        busy_power: u64,
    ) -> Vec<Violation> {
        self.observe(view);
        let (mut by_cores, mut energy) = (0, 0_u128);
        for core in self.cores.clone() {
            let (cpu, told, seen) = (core.cpu, view.core_time(core.cpu), core.time);
            if told != seen {
                self.tell(Violation::Core { cpu, told, seen });
            }
            if told.total() != view.now().0 {
                self.tell(Violation::CoreTime {
                    cpu,
                    told: told.total(),
                    now: view.now(),
                });
            }
            by_cores += told.threads;
            energy += u128::from(seen.threads + seen.hard + seen.soft) * u128::from(busy_power);
            for (time, power) in seen.idle.iter().zip(idle_power) {
                energy += u128::from(*time) * u128::from(*power);
            }
        }
        let mut by_threads = 0;
        for number in 0..view.threads() {
            let thread = ThreadId(number);
            let told = view.thread_time(thread);
            let seen = self.threads[number as usize].time;
            by_threads += told.ran;
            if told != seen {
                self.tell(Violation::Thread { thread, told, seen });
            }
            let lived = view.lifetime(thread);
            if told.total() != lived.0 {
                self.tell(Violation::Lifetime {
                    thread,
                    told: told.total(),
                    lived,
                });
            }
        }
        if by_threads != by_cores {
            self.tell(Violation::Ran {
                threads: by_threads,
                cores: by_cores,
            });
        }
        if energy != view.energy_pj() {
            self.tell(Violation::Energy {
                told: view.energy_pj(),
                seen: energy,
            });
        }
        self.violations
    }
}
