//! Guests' vCPUs come to have a scheduler of their own, and their old policy back when it ends, fails or isn't wanted any more.

mod world;

use std::collections::BTreeMap;

use ostler_act::{Actuator, SCHED_EXT_ONCE};
use ostler_model::{
    BoostPlan, BoostSettings, Class, CpuSet, ExitPolicy, ForeignPolicy, GuestId, Nanos, Outcome,
    Plan, Tid,
};
use world::kernel::CPUS;
use world::run::{Run, config};
use world::schedulers::Schedulers;
use world::{Kind, facts};

/// A steward whose scheduler is in the test's hands.
struct Stage {
    run: Run,
    schedulers: Schedulers,
    steward: Actuator,
    plan: Plan,
}

impl Stage {
    fn new(kinds: &[Kind]) -> Stage {
        let mut run = Run::new(5, kinds, false);
        let schedulers = Schedulers::default();
        let config = config(run.journal.clone(), ForeignPolicy::Respect);
        let steward = Actuator::new(Box::new(run.kernel.clone()), &config, None)
            .expect("a journal")
            .with_schedulers(Box::new(schedulers.clone()));
        let mut plan = run.world.plan(&mut run.dice);
        // All take part, whatever was drawn.
        let all = run.world.snapshot(&run.kernel);
        while plan.guests.len() < all.guests.len() {
            plan = run.world.plan(&mut run.dice);
        }
        for guest in &mut plan.guests {
            guest.class = Class::LatencyCritical;
        }
        plan.boost = Some(BoostPlan {
            settings: BoostSettings::default(),
            domains: vec![CpuSet::range(0, CPUS)],
            workers: false,
            guests: all.guests.iter().map(|guest| guest.id.clone()).collect(),
        });
        Stage {
            run,
            schedulers,
            steward,
            plan,
        }
    }

    fn apply(&mut self) -> Outcome {
        let snapshot = self.run.world.snapshot(&self.run.kernel);
        self.steward
            .apply(&facts(), &snapshot, &self.plan)
            .expect("a journal")
    }

    /// vCPU threads, and whether each has the scheduler's policy.
    fn boosted(&self) -> Vec<bool> {
        let snapshot = self.run.world.snapshot(&self.run.kernel);
        let kernel = self.run.kernel.lock();
        let vcpus = snapshot.guests.iter().flat_map(|guest| &guest.vcpus);
        vcpus
            .map(|vcpu| kernel.state.tasks[&vcpu.tid.0].policy == SCHED_EXT_ONCE)
            .collect()
    }

    /// Threads that have it.
    fn count(&self) -> usize {
        let kernel = self.run.kernel.lock();
        let tasks = kernel.state.tasks.values();
        tasks.filter(|task| task.policy == SCHED_EXT_ONCE).count()
    }
}

fn troubles(outcome: &Outcome) -> Vec<&str> {
    let failures = outcome.failures.iter();
    failures
        .filter(|failure| failure.target == "vCPU scheduler")
        .map(|failure| failure.error.as_str())
        .collect()
}

#[test]
fn vcpus_get_the_policy_and_others_do_not() {
    let mut stage = Stage::new(&[Kind::Own, Kind::Libvirt]);
    let outcome = stage.apply();
    assert_eq!(troubles(&outcome), [""; 0]);
    assert!(stage.boosted().iter().all(|boosted| *boosted));
    assert_eq!(stage.count(), stage.boosted().len(), "vCPUs alone");
    let loader = stage.schedulers.lock();
    assert_eq!(loader.owners.len(), 2, "both are told apart");
    let settings = loader.settings.expect("it was loaded");
    assert_eq!(settings.config, ostler_boost::Config::default());
    drop(loader);
    let told = outcome.boost.expect("it is on");
    assert_eq!(told.deaf_to, ["doorbells (no such tracepoint)"]);
    for guest in &told.guests {
        let view = stage.run.world.snapshot(&stage.run.kernel);
        let view = view.guest(&guest.guest).expect("it is there");
        assert_eq!(guest.vcpus as usize, view.vcpus.len());
        assert_eq!(guest.io_vcpus, guest.vcpus);
        let ran: u64 = view.vcpus.iter().map(|vcpu| u64::from(vcpu.tid.0)).sum();
        assert_eq!(guest.ran, Nanos(ran));
        // The toy counts its number in each.
        assert_eq!(guest.served, Nanos(guest.balance_ns.unsigned_abs()));
    }
    assert_eq!(stage.apply().written, 0, "a second time writes nothing");
    assert_eq!(stage.schedulers.lock().asked, 1);
}

#[test]
fn vhost_workers_wait_with_vcpus_where_the_plan_says_so() {
    let mut stage = Stage::new(&[Kind::Own, Kind::Libvirt]);
    let workers = |stage: &Stage| -> BTreeMap<Tid, GuestId> {
        let snapshot = stage.run.world.snapshot(&stage.run.kernel);
        let guests = snapshot.guests.iter();
        guests
            .flat_map(|guest| {
                guest
                    .vhost
                    .iter()
                    .map(|worker| (worker.tid, guest.id.clone()))
            })
            .collect()
    };
    let all = workers(&stage);
    assert!(!all.is_empty(), "these guests have some");
    stage.apply();
    assert_eq!(stage.count(), stage.boosted().len(), "vCPUs alone");

    stage.plan.boost.as_mut().expect("it is wanted").workers = true;
    let outcome = stage.apply();
    assert_eq!(troubles(&outcome), [""; 0]);
    assert_eq!(stage.count(), stage.boosted().len() + all.len());
    let told = outcome.boost.expect("it is on");
    let vcpus: u32 = told.guests.iter().map(|guest| guest.vcpus).sum();
    assert_eq!(
        vcpus as usize,
        stage.boosted().len(),
        "none counts as a vCPU"
    );
    let numbers: BTreeMap<GuestId, u32> = told
        .guests
        .iter()
        // The toy tells each guest's number as its balance.
        .map(|guest| {
            (
                guest.guest.clone(),
                u32::try_from(guest.balance_ns).expect("small"),
            )
        })
        .collect();
    let named: BTreeMap<Tid, u32> = all
        .iter()
        .map(|(tid, guest)| (*tid, numbers[guest]))
        .collect();
    assert_eq!(
        stage.schedulers.lock().workers,
        named,
        "each is its guest's"
    );
    assert_eq!(stage.apply().written, 0, "a second time writes nothing");
    assert_eq!(
        stage.schedulers.lock().asked,
        1,
        "it isn't loaded anew for it"
    );

    stage.plan.boost.as_mut().expect("it is wanted").workers = false;
    stage.apply();
    assert_eq!(
        stage.count(),
        stage.boosted().len(),
        "they have their own back"
    );
    assert!(
        stage.schedulers.lock().workers.is_empty(),
        "and are forgotten"
    );
}

#[test]
fn a_guest_that_is_left_out_keeps_its_policy() {
    let mut stage = Stage::new(&[Kind::Own, Kind::Own]);
    stage.apply();
    let boost = stage.plan.boost.as_mut().expect("it is wanted");
    let left = boost.guests.pop().expect("two");
    stage.apply();
    let snapshot = stage.run.world.snapshot(&stage.run.kernel);
    for guest in &snapshot.guests {
        for vcpu in &guest.vcpus {
            let policy = stage.run.kernel.lock().state.tasks[&vcpu.tid.0].policy;
            assert_eq!(policy == SCHED_EXT_ONCE, guest.id != left);
        }
    }
    assert_eq!(stage.schedulers.lock().owners.len(), 1);
}

#[test]
fn it_ends_when_nobody_wants_it_and_leaves_no_trace() {
    let mut stage = Stage::new(&[Kind::Own]);
    stage.apply();
    assert!(stage.schedulers.lock().loaded);
    stage.plan.boost = None;
    let outcome = stage.apply();
    assert_eq!(outcome.boost, None);
    assert_eq!(stage.count(), 0);
    assert!(!stage.schedulers.lock().loaded);
    let Stage { run, steward, .. } = stage;
    let report = steward.exit(ExitPolicy::Restore).expect("a journal");
    run.assert_as_found(&report, "after the end");
}

#[test]
fn other_settings_are_another_scheduler() {
    let mut stage = Stage::new(&[Kind::Own]);
    stage.apply();
    let boost = stage.plan.boost.as_mut().expect("it is wanted");
    boost.settings.slice = Nanos::from_millis(1);
    stage.apply();
    let loader = stage.schedulers.lock();
    assert_eq!((loader.asked, loader.again), (2, 1));
    assert_eq!(
        loader.settings.expect("it was loaded").config.slice_ns,
        1_000_000
    );
    drop(loader);
    assert!(stage.boosted().iter().all(|boosted| *boosted));
    // Where there can be none in its place, it is gone as well.
    stage.schedulers.lock().none = true;
    let boost = stage.plan.boost.as_mut().expect("it is wanted");
    boost.domains = vec![CpuSet::range(0, CPUS - 1)];
    let outcome = stage.apply();
    assert!(troubles(&outcome)[0].contains("another sched_ext scheduler"));
    assert_eq!(stage.count(), 0, "they have their own policy back");
    assert!(!stage.schedulers.lock().loaded);
}

#[test]
fn one_that_the_kernel_ended_is_tried_again_ever_later_and_then_no_more() {
    let mut stage = Stage::new(&[Kind::Own]);
    stage.apply();
    let mut tried = Vec::new();
    for period in 0..20_000 {
        let asked = stage.schedulers.lock().asked;
        if stage.schedulers.lock().loaded {
            stage.schedulers.lock().end = Some("runnable task stall".into());
            let outcome = stage.apply();
            let told = troubles(&outcome);
            assert!(told[0].contains("runnable task stall"), "{told:?}");
            assert_eq!(stage.count(), 0, "they have their own policy back");
        } else {
            assert_eq!(troubles(&stage.apply()), [""; 0], "it is told once");
        }
        if stage.schedulers.lock().asked > asked {
            tried.push(period);
        }
    }
    assert_eq!(tried.len(), 4, "{tried:?}");
    let gaps: Vec<_> = tried.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(gaps.windows(2).all(|two| two[1] > two[0]), "{gaps:?}");
    // Who asks for something else begins anew.
    let boost = stage.plan.boost.as_mut().expect("it is wanted");
    boost.settings.limit = Nanos::from_millis(20);
    stage.apply();
    assert!(stage.schedulers.lock().loaded);
}

#[test]
fn where_there_can_be_none_it_is_told_and_nothing_is_changed() {
    let mut stage = Stage::new(&[Kind::Own]);
    stage.schedulers.lock().none = true;
    let outcome = stage.apply();
    let told = troubles(&outcome);
    assert!(
        told[0].contains("another sched_ext scheduler runs on this host (theirs)"),
        "{told:?}"
    );
    assert_eq!(outcome.boost, None);
    for _ in 0..50 {
        stage.apply();
    }
    assert_eq!(stage.count(), 0);
    assert_eq!(stage.schedulers.lock().asked, 1, "not each period");
    stage.schedulers.lock().none = false;
    for _ in 0..100 {
        stage.apply();
    }
    assert!(stage.boosted().iter().all(|boosted| *boosted));
}

#[test]
fn a_vcpu_with_a_real_time_policy_keeps_it() {
    let mut stage = Stage::new(&[Kind::Own]);
    let snapshot = stage.run.world.snapshot(&stage.run.kernel);
    let tid = snapshot.guests[0].vcpus[0].tid;
    let set = |policy| {
        let mut kernel = stage.run.kernel.lock();
        kernel.state.tasks.get_mut(&tid.0).expect("it lives").policy = policy;
    };
    set(libc::SCHED_FIFO);
    let outcome = stage.apply();
    let told = troubles(&outcome);
    assert!(told[0].contains("real-time policy"), "{told:?}");
    let policy = stage.run.kernel.lock().state.tasks[&tid.0].policy;
    assert_eq!(policy, libc::SCHED_FIFO);
    assert_eq!(stage.count() + 1, stage.boosted().len());
}
