//! The boost layer's half of acting: the scheduler of vCPUs is loaded while a plan wants it, is told whose processes are guests, and the
//! guests' vCPU threads get its policy.
//!
//! The policy of a thread is a setting like any other ([`Target::Policy`]): journaled, put back, and anybody else's change of it noticed. The
//! scheduler itself needs no undoing: it is gone with this process, and the kernel schedules the same threads by itself from then on, which
//! is also what happens when it fails.
//!
//! **Dead-man.** The kernel ends a scheduler that has left a thread without a core for five seconds, or that broke a rule. Then threads get
//! their own policies back, and it is loaded again after a while that doubles each time; after [`TIMES_MAX`] times no more, until the
//! configuration asks for something else. A scheduler that can't be loaded is tried again in the same way.

use std::collections::{BTreeMap, BTreeSet};

use ostler_boost::{Config, Delays, Guest, NOBODY, Service, Settings, Thread};
use ostler_model::{
    BoostOutcome, BoostPlan, BoostSettings, Conflict, Degradation, Failure, GuestBoost, GuestId,
    GuestView, Nanos, Outcome, Pid, Snapshot, Tid,
};

use crate::scheduler::{BoostError, SCHED_EXT_ONCE};
use crate::settings::Setting;
use crate::{Host, Target, Value};

/// Tried so often, with nothing changed in between.
const TIMES_MAX: u32 = 5;

/// Periods until it is tried again for the first time: ten seconds at 100 ms.
const WAIT_PERIODS: u64 = 100;

/// A vCPU that wakes takes a core by its own right from one that has had this much more.
const WAKE_GRANULARITY: Nanos = Nanos::from_millis(1);

/// Where a scheduler of vCPUs comes from. Tests put one here that schedules nobody.
pub trait VcpuSchedulers {
    /// Loads one.
    ///
    /// # Errors
    ///
    /// Why there can't be one here, and what to do.
    fn load(
        &self,
        settings: Settings,
        domains: &[ostler_model::CpuSet],
    ) -> Result<Box<dyn VcpuScheduler + Send>, BoostError>;
}

/// A scheduler of vCPUs while it is loaded; it ends when this is dropped.
pub trait VcpuScheduler {
    /// Threads of a process that come to have its policy are this guest's from now on; [`NOBODY`]'s: fairly scheduled, never boosted.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    fn own(&self, process: Pid, guest: u32) -> Result<(), BoostError>;
    /// A thread that comes to have its policy works for this guest's vCPUs from now on, and waits when they do; [`NOBODY`]'s: it is forgotten.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    fn works(&self, thread: Tid, guest: u32) -> Result<(), BoostError>;
    /// What it knows of a thread; none: that thread isn't its own.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    fn thread(&self, thread: Tid) -> Result<Option<Thread>, BoostError>;
    /// What a guest has had of others', and others of it.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    fn guest(&self, guest: u32) -> Result<Option<Guest>, BoostError>;
    /// How soon a guest's vCPUs ran after their events.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    fn delays(&self, guest: u32) -> Result<Option<Delays>, BoostError>;
    /// What a guest's other threads have run.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    fn service(&self, guest: u32) -> Result<Option<Service>, BoostError>;
    /// Why the kernel has ended it, if it has.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    fn end(&self) -> Result<Option<String>, BoostError>;
    /// What it can't be told of by this kernel, and why.
    fn deaf_to(&self) -> Vec<String>;
    /// Ends it and starts one that knows nobody, with other settings and domains. That is soon done: nothing is verified anew.
    ///
    /// # Errors
    ///
    /// Why there can't be one any more, and what to do.
    fn again(
        self: Box<Self>,
        settings: Settings,
        domains: &[ostler_model::CpuSet],
    ) -> Result<Box<dyn VcpuScheduler + Send>, BoostError>;
}

/// The scheduler and the guests that it has.
#[derive(Default)]
pub(crate) struct Boost {
    source: Option<Box<dyn VcpuSchedulers + Send>>,
    loaded: Option<Loaded>,
    members: BTreeMap<GuestId, Member>,
    settings: Vec<Setting>,
    trouble: Trouble,
}

struct Loaded {
    scheduler: Box<dyn VcpuScheduler + Send>,
    /// What it was loaded with.
    plan: BoostPlan,
}

struct Member {
    /// By which the scheduler knows it.
    number: u32,
    pid: Pid,
    /// Its vCPUs'.
    threads: Vec<Tid>,
    /// Its vhost workers', where they wait with its vCPUs.
    workers: Vec<Tid>,
    /// Threads of these that are left alone, as they have a real-time policy.
    excepted: BTreeSet<Tid>,
}

/// What went wrong with the same wishes.
#[derive(Default)]
struct Trouble {
    with: Option<BoostSettings>,
    times: u32,
    /// The period in which to try again.
    again: u64,
}

impl Boost {
    pub(crate) fn new(source: Box<dyn VcpuSchedulers + Send>) -> Boost {
        Boost {
            source: Some(source),
            ..Boost::default()
        }
    }

    /// Has it be as the plan says; tells whether settings may have changed.
    pub(crate) fn refresh(
        &mut self,
        host: &dyn Host,
        plan: Option<&BoostPlan>,
        snapshot: &Snapshot,
        tick: u64,
        outcome: &mut Outcome,
    ) -> bool {
        // Without guests there may be no KVM yet, and then nothing that could tell of events.
        let Some(plan) = plan.filter(|plan| !plan.guests.is_empty()) else {
            self.trouble = Trouble::default();
            return self.leave();
        };
        let mut changed = false;
        if let Some(why) = self.ended() {
            self.loaded = None;
            changed |= self.leave();
            self.trouble(plan.settings, tick);
            outcome.failures.push(failed(format!(
                "it has ended: {why}; vCPUs are scheduled by the kernel's own, and {}",
                self.trouble.told()
            )));
        }
        let other = |loaded: &Loaded| {
            loaded.plan.settings != plan.settings || loaded.plan.domains != plan.domains
        };
        if self.loaded.as_ref().is_some_and(other) {
            changed |= self.leave();
        }
        if self.loaded.as_ref().is_none_or(other) {
            self.load(plan, tick, outcome);
        }
        changed |= self.take_in(host, plan, snapshot, outcome);
        outcome.boost = self.told(snapshot);
        changed
    }

    /// The policies of its threads.
    pub(crate) fn settings(&self) -> &[Setting] {
        &self.settings
    }

    /// Ends it, once nobody has its policy any more.
    pub(crate) fn finish(&mut self, plan: Option<&BoostPlan>) {
        if plan.is_none_or(|plan| plan.guests.is_empty()) {
            self.loaded = None;
        }
    }

    /// Forgets all guests; tells whether there were any.
    fn leave(&mut self) -> bool {
        self.members.clear();
        let some = !self.settings.is_empty();
        self.settings.clear();
        some
    }

    fn ended(&self) -> Option<String> {
        let end = self.loaded.as_ref()?.scheduler.end();
        end.unwrap_or_else(|error| Some(error.to_string()))
    }

    fn trouble(&mut self, with: BoostSettings, tick: u64) {
        if self.trouble.with != Some(with) {
            self.trouble = Trouble::default();
        }
        let wait = WAIT_PERIODS << self.trouble.times.min(TIMES_MAX);
        self.trouble.with = Some(with);
        self.trouble.times += 1;
        self.trouble.again = tick.saturating_add(wait);
    }

    /// Loads one as the plan says, in the place of one that is otherwise.
    fn load(&mut self, plan: &BoostPlan, tick: u64, outcome: &mut Outcome) {
        let last = self.loaded.take();
        let Some(source) = &self.source else { return };
        let again = self.trouble.with != Some(plan.settings)
            || (self.trouble.times < TIMES_MAX && tick >= self.trouble.again);
        if !again {
            return;
        }
        let settings = settings(&plan.settings);
        let done = match last {
            Some(last) => last.scheduler.again(settings, &plan.domains),
            None => source.load(settings, &plan.domains),
        };
        match done {
            Ok(scheduler) => {
                self.loaded = Some(Loaded {
                    scheduler,
                    plan: plan.clone(),
                });
            }
            Err(error) => {
                self.trouble(plan.settings, tick);
                outcome
                    .failures
                    .push(failed(format!("{error}; {}", self.trouble.told())));
            }
        }
    }

    /// Tells it of guests that came or changed, and of those that went; whether any did.
    fn take_in(
        &mut self,
        host: &dyn Host,
        plan: &BoostPlan,
        snapshot: &Snapshot,
        outcome: &mut Outcome,
    ) -> bool {
        let Some(loaded) = &self.loaded else {
            return false;
        };
        let mut changed = false;
        self.members.retain(|guest, member| {
            let stays = plan.guests.binary_search(guest).is_ok()
                && snapshot
                    .guest(guest)
                    .is_none_or(|view| view.pid == member.pid);
            if !stays {
                // Its process may be gone, and its entries be needed no more in any case.
                let _ = loaded.scheduler.own(member.pid, NOBODY);
                for worker in &member.workers {
                    let _ = loaded.scheduler.works(*worker, NOBODY);
                }
            }
            changed |= !stays;
            stays
        });
        for guest in &plan.guests {
            let Some(view) = snapshot.guest(guest) else {
                continue;
            };
            let vcpus = || view.vcpus.iter().map(|vcpu| vcpu.tid);
            let workers = || workers(plan, view);
            let scheduler = &*loaded.scheduler;
            match self.members.get_mut(guest) {
                Some(member)
                    if member.threads.iter().copied().eq(vcpus())
                        && member.workers.iter().copied().eq(workers()) => {}
                Some(member) => {
                    member.threads = vcpus().collect();
                    changed = true;
                    if let Err(error) = member.employ(scheduler, workers().collect()) {
                        outcome.failures.push(failed(format!(
                            "vhost workers of guest {guest} go before all vCPUs: {error}"
                        )));
                    }
                    member.excepted = excepted(host, view, member, outcome);
                }
                None => {
                    let number = unused(&self.members);
                    let owned = number
                        .ok_or_else(|| "it has room for no more guests".to_owned())
                        .and_then(|number| {
                            let mut member = Member {
                                number,
                                pid: view.pid,
                                threads: vcpus().collect(),
                                workers: Vec::new(),
                                excepted: BTreeSet::new(),
                            };
                            scheduler
                                .own(view.pid, number)
                                .and_then(|()| member.employ(scheduler, workers().collect()))
                                .map(|()| member)
                                .map_err(|error| error.to_string())
                        });
                    match owned {
                        Ok(mut member) => {
                            member.excepted = excepted(host, view, &member, outcome);
                            self.members.insert(guest.clone(), member);
                            changed = true;
                        }
                        Err(why) => outcome.failures.push(failed(format!(
                            "guest {guest} is left to the kernel's own: {why}"
                        ))),
                    }
                }
            }
        }
        if changed {
            let members = self.members.iter();
            self.settings = members
                .flat_map(|(guest, member)| {
                    let threads = member.threads.iter().chain(&member.workers);
                    threads
                        .filter(|tid| !member.excepted.contains(tid))
                        .map(|tid| setting(guest, member.pid, *tid))
                })
                .collect();
        }
        changed
    }

    fn told(&self, snapshot: &Snapshot) -> Option<BoostOutcome> {
        let loaded = self.loaded.as_ref()?;
        let config = config(&loaded.plan.settings);
        let members = self.members.iter();
        Some(BoostOutcome {
            deaf_to: loaded.scheduler.deaf_to(),
            guests: members
                .filter(|(guest, _)| snapshot.guest(guest).is_some())
                .map(|(guest, member)| member.told(guest, &*loaded.scheduler, &config))
                .collect(),
        })
    }
}

impl Member {
    /// These are its workers from now on.
    fn employ(
        &mut self,
        scheduler: &dyn VcpuScheduler,
        workers: Vec<Tid>,
    ) -> Result<(), BoostError> {
        for gone in self.workers.iter().filter(|tid| !workers.contains(tid)) {
            let _ = scheduler.works(*gone, NOBODY);
        }
        // One that the scheduler doesn't know of must not come to have its policy: it would be taken for a vCPU.
        self.workers.retain(|tid| workers.contains(tid));
        for worker in workers {
            if !self.workers.contains(&worker) {
                scheduler.works(worker, self.number)?;
                self.workers.push(worker);
            }
        }
        self.workers.sort_unstable();
        Ok(())
    }

    /// What can't be read counts as nothing: it is for looking at.
    fn told(&self, id: &GuestId, scheduler: &dyn VcpuScheduler, config: &Config) -> GuestBoost {
        let of = scheduler.guest(self.number).ok().flatten();
        let of = of.unwrap_or_default();
        let delays = scheduler.delays(self.number).ok().flatten();
        let service = scheduler.service(self.number).ok().flatten();
        let mut told = GuestBoost {
            guest: id.clone(),
            vcpus: 0,
            io_vcpus: 0,
            ran: Nanos::ZERO,
            waited: Nanos::ZERO,
            served: Nanos(service.unwrap_or_default().ran_ns),
            balance_ns: of.balance_ns,
            borrowed: Nanos(of.borrowed_ns),
            paid: Nanos(of.paid_ns),
            lent: Nanos(of.lent_ns),
            returned: Nanos(of.returned_ns),
            boosts: 0,
            refused: 0,
            tasks_seen: 0,
            delays: delays.unwrap_or_default().to_vec(),
        };
        for thread in &self.threads {
            let Ok(Some(thread)) = scheduler.thread(*thread) else {
                continue;
            };
            told.vcpus += 1;
            told.io_vcpus += u32::from(thread.vcpu.does_io(config));
            told.ran = told.ran.saturating_add(Nanos(thread.ran_ns));
            told.waited = told.waited.saturating_add(Nanos(thread.waited_ns));
            told.boosts = told.boosts.saturating_add(thread.boosts);
            told.refused = told.refused.saturating_add(thread.refused);
            told.tasks_seen = told.tasks_seen.saturating_add(thread.tasks_seen);
        }
        told
    }
}

impl Trouble {
    fn told(&self) -> String {
        if self.times >= TIMES_MAX {
            return format!(
                "after {TIMES_MAX} times it isn't tried again until [boost] is changed"
            );
        }
        "it is tried again in a while".to_owned()
    }
}

/// The policies that a plan wants, without looking at the host.
pub(crate) fn of_plan(plan: &BoostPlan, snapshot: &Snapshot) -> Vec<Setting> {
    let views = plan.guests.iter().filter_map(|id| snapshot.guest(id));
    views
        .flat_map(|view| {
            let vcpus = view.vcpus.iter().map(|vcpu| vcpu.tid);
            vcpus
                .chain(workers(plan, view))
                .map(|tid| setting(&view.id, view.pid, tid))
        })
        .collect()
}

/// The vhost workers that wait with a guest's vCPUs, in order of their numbers.
fn workers(plan: &BoostPlan, view: &GuestView) -> impl Iterator<Item = Tid> {
    let workers = view.vhost.iter().filter(|_| plan.workers);
    let tids: BTreeSet<Tid> = workers.map(|worker| worker.tid).collect();
    tids.into_iter()
}

fn setting(guest: &GuestId, pid: Pid, tid: Tid) -> Setting {
    Setting {
        target: Target::Policy { pid, tid },
        value: Value::Policy(SCHED_EXT_ONCE),
        guest: Some(guest.clone()),
    }
}

/// The least number that no guest has.
fn unused(members: &BTreeMap<GuestId, Member>) -> Option<u32> {
    let used: BTreeSet<u32> = members.values().map(|member| member.number).collect();
    (NOBODY + 1..ostler_boost::GUESTS_MAX).find(|number| !used.contains(number))
}

/// Threads with a real-time policy: someone made sure that they run at once, and no other scheduler could.
fn excepted(
    host: &dyn Host,
    view: &GuestView,
    member: &Member,
    outcome: &mut Outcome,
) -> BTreeSet<Tid> {
    let real_time = |tid: &Tid| {
        let policy = host
            .policy(*tid)
            .map(|policy| policy & !SCHED_RESET_ON_FORK);
        matches!(
            policy,
            Ok(libc::SCHED_FIFO | libc::SCHED_RR | libc::SCHED_DEADLINE)
        )
    };
    let tids = member.threads.iter().chain(&member.workers).copied();
    let excepted: BTreeSet<Tid> = tids.filter(real_time).collect();
    if !excepted.is_empty() {
        outcome.failures.push(failed(format!(
            "{} of guest {}'s threads have a real-time policy and keep it; take that away, or set boost = false for the guest",
            excepted.len(),
            view.id
        )));
    }
    excepted
}

/// Children of the thread have an ordinary policy.
const SCHED_RESET_ON_FORK: i32 = libc::SCHED_RESET_ON_FORK;

fn failed(error: String) -> Failure {
    Failure {
        target: "vCPU scheduler".into(),
        value: "on".into(),
        error,
    }
}

fn settings(settings: &BoostSettings) -> Settings {
    Settings {
        config: config(settings),
        wake_granularity_ns: WAKE_GRANULARITY.0,
        domains: 0,
        tick_us: 0,
    }
}

fn config(settings: &BoostSettings) -> Config {
    Config {
        slice_ns: settings.slice.0,
        slice_max_ns: settings.slice_max.0,
        limit_ns: settings.limit.0,
        threshold: settings.threshold,
        confidence_max: settings.confidence_max,
        degradation: match settings.degradation {
            Degradation::Halve => ostler_boost::Degradation::Halve,
            Degradation::Decrement => ostler_boost::Degradation::Decrement,
            Degradation::Forget => ostler_boost::Degradation::Forget,
        },
        conflict: match settings.conflict {
            Conflict::Confidence => ostler_boost::Conflict::ByConfidence,
            Conflict::Balance => ostler_boost::Conflict::ByBalance,
            Conflict::Neither => ostler_boost::Conflict::Neither,
        },
        enabled: settings.io.into(),
        spare: 0,
    }
}
