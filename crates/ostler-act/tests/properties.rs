//! What acting promises, in a model of the kernel with random hosts, guests and plans, and with the steward killed at any
//! operation.

mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use ostler_act::{
    Actuator, Host, Journal, LinuxHost, Origins, Placement, Target, UndoReport, Value, settings,
    survey, undo,
};
use ostler_model::{
    Class, CpuSet, CpuWeight, ForeignPolicy, GuestPlan, PinVerdict, Plan, RunState,
};
use proptest::prelude::*;
use world::kernel::Kernel;
use world::run::{Run, actuator, cases, config, scratch, undo_all};
use world::{Kind, facts};

const KINDS: [Kind; 4] = [Kind::Own, Kind::Shared, Kind::Libvirt, Kind::Blocked];

fn kinds() -> impl Strategy<Value = Vec<Kind>> {
    proptest::collection::vec(proptest::sample::select(KINDS.to_vec()), 1..4)
}

proptest! {
    #![proptest_config(cases(96))]

    #[test]
    fn undo_leaves_the_host_as_found(seed: u64, kinds in kinds(), periods in 1..6_u32, no_cpuset in proptest::bool::weighted(0.1)) {
        let mut run = Run::new(seed, &kinds, no_cpuset);
        run.live(periods);
        let report = undo_all(&run.kernel, &run.journal);
        run.assert_as_found(&report, "after undo");
        // And there is nothing left to undo.
        let again = undo_all(&run.kernel, &run.journal);
        prop_assert_eq!(again, UndoReport::default());
    }

    #[test]
    fn a_second_apply_writes_nothing(seed: u64, kinds in kinds(), no_cpuset in proptest::bool::weighted(0.1)) {
        let mut run = Run::new(seed, &kinds, no_cpuset);
        let plan = run.world.plan(&mut run.dice);
        let mut steward = actuator(&run.kernel, &run.journal, ForeignPolicy::Respect);
        let snapshot = run.world.snapshot(&run.kernel);
        steward.apply(&facts(), &snapshot, &plan).expect("a journal");
        for _ in 0..3 {
            // The first of these is also the first that shows where the processes are now.
            let snapshot = run.world.snapshot(&run.kernel);
            let writes = run.kernel.lock().writes;
            let outcome = steward.apply(&facts(), &snapshot, &plan).expect("a journal");
            let writes = run.kernel.lock().writes - writes;
            // What failed at first is tried again now and then.
            let retried = u64::from(outcome.written) + outcome.failures.len() as u64;
            prop_assert_eq!(outcome.written, 0, "{:?}", outcome);
            prop_assert_eq!(writes, retried, "{:?}", outcome);
        }
        // Nor does another steward that takes over, save that it tries anew where cgroups could not be had.
        if kinds.contains(&Kind::Blocked) {
            return Ok(());
        }
        drop(steward);
        let writes = run.kernel.lock().writes;
        let mut steward = actuator(&run.kernel, &run.journal, ForeignPolicy::Respect);
        let snapshot = run.world.snapshot(&run.kernel);
        let outcome = steward.apply(&facts(), &snapshot, &plan).expect("a journal");
        prop_assert_eq!(outcome.written, 0);
        prop_assert_eq!(&outcome.foreign, &vec![]);
        // What can't be is tried anew: the managed interrupt, and the weight of a cgroup that an operator made idle.
        let tried = outcome.failures.iter().filter(|failure| {
            failure.target.ends_with("smp_affinity_list") || failure.target.ends_with("cpu.weight")
        });
        prop_assert_eq!(run.kernel.lock().writes - writes, tried.count() as u64, "{:?}", outcome);
    }

    #[test]
    fn threads_run_where_the_plan_says(seed: u64, kinds in kinds(), periods in 0..3_u32, no_cpuset in proptest::bool::weighted(0.1)) {
        let mut run = Run::new(seed, &kinds, no_cpuset);
        run.live(periods);
        let mut steward = actuator(&run.kernel, &run.journal, ForeignPolicy::Respect);
        let snapshot = run.world.snapshot(&run.kernel);
        let plan = run.world.plan(&mut run.dice);
        steward.apply(&facts(), &snapshot, &plan).expect("a journal");
        let state = &run.kernel.lock().state;
        for guest in &run.world.guests {
            let Some(given) = plan.guest(&guest.id).filter(|given| given.class != Class::Unmanaged) else {
                continue;
            };
            let runs_on = |tid: &u32| {
                let task = &state.tasks[tid];
                state.effective(&task.cgroup).intersection(&task.affinity)
            };
            let suspended = given.run == RunState::Suspended;
            for (at, tid) in guest.vcpus.iter().enumerate().filter(|_| !suspended) {
                let pin = given.vcpu_pins.get(at).copied().map(CpuSet::single);
                let wish = plan.hints.as_ref().and_then(|hints| hints.pin(&guest.id, u32::try_from(at).ok()?));
                let kept = match wish {
                    Some(PinVerdict::Granted { cpus, .. }) => Some(*cpus),
                    _ => None,
                };
                prop_assert_eq!(runs_on(tid), pin.or(kept).unwrap_or(given.vcpu_cpus), "vCPU {} of {:?}", at, guest);
            }
            for (at, tid) in guest.vhost.iter().enumerate() {
                let pin = given.vhost_pins.get(at).copied();
                prop_assert_eq!(runs_on(tid), pin.map_or(given.vhost_cpus, CpuSet::single), "worker {} of {:?}", at, guest);
            }
            for tid in &guest.emulator {
                prop_assert_eq!(runs_on(tid), given.emulator_cpus, "thread {} of {:?}", tid, guest);
            }
            let mut at = state.tasks[&guest.pid].cgroup.as_str();
            let mut frozen = false;
            while let Some((up, _)) = at.rsplit_once('/') {
                frozen |= state.cgroups.get(at).is_some_and(|cgroup| cgroup.frozen);
                at = up;
            }
            prop_assert_eq!(frozen, suspended, "{:?}", guest);
        }
    }

    #[test]
    fn guests_weigh_what_the_plan_says(seed: u64, kinds in kinds(), periods in 0..3_u32, no_cpuset in proptest::bool::weighted(0.1)) {
        let mut run = Run::new(seed, &kinds, no_cpuset);
        run.live(periods);
        let mut steward = actuator(&run.kernel, &run.journal, ForeignPolicy::Respect);
        let snapshot = run.world.snapshot(&run.kernel);
        let plan = run.world.plan(&mut run.dice);
        let outcome = steward.apply(&facts(), &snapshot, &plan).expect("a journal");
        let weight_failures = outcome.failures.iter().filter(|failure| failure.target.contains("/cpu.")).count();
        let (state, twin) = (&run.kernel.lock().state, &run.twin.lock().state);
        let mut expected_failures = 0;
        for guest in &run.world.guests {
            // The cgroup that the guest is weighed in: the one of all of its own that is nearest to the root.
            let task = &state.tasks[&guest.pid].cgroup;
            let cgroup = match guest.kind {
                Kind::Own => guest.home.clone(),
                Kind::Libvirt => guest.home.trim_end_matches("/libvirt/emulator").to_owned(),
                // No weight can be had there: the cgroup above has processes of its own.
                Kind::Blocked => continue,
                // Not moved: unmanaged, or placed by affinity.
                Kind::Shared if !task.starts_with("/ostler/") => continue,
                Kind::Shared => {
                    let name = task["/ostler/".len()..].split('/').next().unwrap();
                    format!("/ostler/{name}")
                }
            };
            let now = &state.cgroups[&cgroup];
            let found = twin.cgroups.get(&cgroup).map_or((100, false), |before| (before.weight, before.idle));
            let given = plan.guest(&guest.id).map(|given| given.weight).unwrap_or_default();
            let want = match given {
                CpuWeight::Untouched | CpuWeight::AsFound => found,
                CpuWeight::Idle => (100, true),
                // An operator's idle is less than any weight, takes none, and stays.
                CpuWeight::Weight(_) if found.1 => found,
                CpuWeight::Weight(weight) => (weight, false),
            };
            expected_failures += usize::from(matches!(given, CpuWeight::Weight(_)) && found.1);
            prop_assert_eq!((now.weight, now.idle), want, "{:?} in {}", guest, cgroup);
            if given != CpuWeight::Untouched {
                let up = cgroup.rsplit_once('/').unwrap().0;
                prop_assert!(state.cgroups[up].subtree.contains("cpu"), "{}", up);
            }
        }
        if !kinds.contains(&Kind::Blocked) && !no_cpuset && periods == 0 {
            prop_assert_eq!(weight_failures, expected_failures, "{:?}", outcome.failures);
        }
    }

    #[test]
    fn every_thread_has_one_owner_of_its_cores(seed: u64, kinds in kinds(), no_cpuset: bool) {
        let mut run = Run::new(seed, &kinds, no_cpuset);
        let snapshot = run.world.snapshot(&run.kernel);
        let plan = run.world.plan(&mut run.dice);
        let layouts: BTreeMap<_, _> = snapshot
            .guests
            .iter()
            .map(|guest| (guest.id.clone(), survey(&run.kernel, guest, &Origins::new())))
            .collect();
        let settings = settings(&facts(), &plan, &snapshot, &layouts);
        let targets: BTreeSet<&Target> = settings.iter().map(|setting| &setting.target).collect();
        prop_assert_eq!(targets.len(), settings.len(), "a target has one value");
        for guest in &run.world.guests {
            let managed = plan.guest(&guest.id).is_some_and(|given| given.class != Class::Unmanaged);
            let libvirt = matches!(layouts[&guest.id].placement, Placement::Libvirt { .. });
            for (tid, in_tree) in guest.vcpus.iter().map(|tid| (tid, libvirt))
                .chain(guest.vhost.iter().map(|tid| (tid, false)))
                .chain(guest.emulator.iter().map(|tid| (tid, libvirt)))
            {
                let mut owners = Vec::new();
                for setting in &settings {
                    match (&setting.target, &setting.value) {
                        (Target::Thread { tid: of, .. }, Value::Cgroup(path)) if of.0 == *tid => owners.push(path.clone()),
                        (Target::Affinity { tid: of, .. }, _) if of.0 == *tid => owners.push(String::from("itself")),
                        _ => {}
                    }
                }
                if in_tree {
                    // libvirt put it into a cgroup; that one's cpuset is ours then.
                    let cgroup = run.kernel.lock().state.tasks[tid].cgroup.clone();
                    owners.push(cgroup);
                }
                if !managed {
                    owners.retain(|owner| targets.contains(&Target::Cpus { cgroup: owner.clone() }));
                }
                prop_assert_eq!(owners.len(), usize::from(managed), "thread {} of {:?}", tid, guest);
                if managed && owners[0] != "itself" {
                    let cpus = Target::Cpus { cgroup: owners[0].clone() };
                    prop_assert!(targets.contains(&cpus), "{} owns no cores", owners[0]);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(cases(12))]

    #[test]
    fn a_steward_killed_at_any_operation_is_undone(seed: u64, kinds in kinds(), periods in 1..4_u32) {
        let mut whole = Run::new(seed, &kinds, false);
        whole.live(periods);
        let ops = whole.kernel.lock().ops;
        // A prime stride visits different operations in different cases; one test below visits each.
        let mut kill_at = 1 + seed % 13;
        while kill_at <= ops {
            killed_at(seed, &kinds, periods, kill_at);
            kill_at += 13;
        }
    }

    #[test]
    fn an_undo_killed_at_any_operation_is_run_again(seed: u64, kinds in kinds(), periods in 1..4_u32) {
        let mut whole = Run::new(seed, &kinds, false);
        whole.live(periods);
        whole.kernel.lock().ops = 0;
        undo_all(&whole.kernel, &whole.journal);
        let ops = whole.kernel.lock().ops;
        let mut kill_at = 1 + seed % 11;
        while kill_at <= ops {
            let mut run = Run::new(seed, &kinds, false);
            run.live(periods);
            {
                let mut inner = run.kernel.lock();
                inner.ops = 0;
                inner.kill_at = Some(kill_at);
            }
            let killed = catch_unwind(AssertUnwindSafe(|| undo_all(&run.kernel, &run.journal)));
            prop_assert!(killed.is_err());
            run.kernel.lock().kill_at = None;
            let report = undo_all(&run.kernel, &run.journal);
            run.assert_as_found(&report, &format!("undo killed at {kill_at}"));
            kill_at += 11;
        }
    }
}

fn killed_at(seed: u64, kinds: &[Kind], periods: u32, kill_at: u64) {
    let mut run = Run::new(seed, kinds, false);
    run.kernel.lock().kill_at = Some(kill_at);
    assert!(run.live(periods), "it does the same each time");
    run.kernel.lock().kill_at = None;
    // Threads are born while nobody looks.
    run.world.happen(&mut run.dice, &[&run.kernel, &run.twin]);
    if kill_at.is_multiple_of(2) {
        // Half of the time another steward takes over first.
        run.live(2);
    }
    let report = undo_all(&run.kernel, &run.journal);
    run.assert_as_found(&report, &format!("seed {seed} killed at {kill_at}"));
}

#[test]
fn a_steward_killed_at_each_operation_is_undone() {
    let mut whole = Run::new(7, &KINDS, false);
    whole.live(3);
    let ops = whole.kernel.lock().ops;
    assert!(ops > 100, "{ops} operations are no test");
    for kill_at in 1..=ops {
        killed_at(7, &KINDS, 3, kill_at);
    }
}

#[test]
fn a_managed_interrupt_is_told_once() {
    let mut run = Run::new(1, &[Kind::Own], false);
    let mut steward = actuator(&run.kernel, &run.journal, ForeignPolicy::Respect);
    let mut plan = run.world.plan(&mut run.dice);
    while plan.nics.is_empty() {
        plan = run.world.plan(&mut run.dice);
    }
    plan.nics[0].irqs[3].cpus = CpuSet::range(0, 2);
    let mut told = 0;
    for _ in 0..700 {
        let snapshot = run.world.snapshot(&run.kernel);
        let outcome = steward
            .apply(&facts(), &snapshot, &plan)
            .expect("a journal");
        told += outcome
            .failures
            .iter()
            .filter(|failure| failure.target == "/proc/irq/23/smp_affinity_list")
            .count();
    }
    assert_eq!(told, 1);
}

#[test]
fn an_irqbalance_is_told_once() {
    let mut run = Run::new(1, &[Kind::Own], false);
    run.kernel.lock().state.irqbalance = true;
    let mut steward = actuator(&run.kernel, &run.journal, ForeignPolicy::Respect);
    let mut plan = run.world.plan(&mut run.dice);
    while plan.nics.is_empty() {
        plan = run.world.plan(&mut run.dice);
    }
    let mut told = 0;
    for _ in 0..1300 {
        let snapshot = run.world.snapshot(&run.kernel);
        let outcome = steward
            .apply(&facts(), &snapshot, &plan)
            .expect("a journal");
        let of_it = |failure: &&ostler_model::Failure| failure.target.starts_with("irqbalance");
        told += outcome.failures.iter().filter(of_it).count();
    }
    assert_eq!(told, 1);
}

#[test]
fn a_reboot_leaves_nothing_to_undo() {
    #[derive(Clone)]
    struct Rebooted(Kernel);
    impl Host for Rebooted {
        fn read(&self, root: ostler_act::Root, path: &str) -> std::io::Result<String> {
            if path.ends_with("boot_id") {
                return Ok("another-boot\n".into());
            }
            self.0.read(root, path)
        }
        fn write(&self, _: ostler_act::Root, path: &str, _: &str) -> std::io::Result<()> {
            panic!("{path} was written");
        }
        fn create_dir(&self, _: ostler_act::Root, path: &str) -> std::io::Result<()> {
            panic!("{path} was made");
        }
        fn remove_dir(&self, _: ostler_act::Root, path: &str) -> std::io::Result<()> {
            panic!("{path} was removed");
        }
        fn dirs(&self, root: ostler_act::Root, path: &str) -> std::io::Result<Vec<String>> {
            self.0.dirs(root, path)
        }
        fn affinity(&self, tid: ostler_model::Tid) -> std::io::Result<CpuSet> {
            self.0.affinity(tid)
        }
        fn set_affinity(&self, tid: ostler_model::Tid, _: &CpuSet) -> std::io::Result<()> {
            panic!("thread {tid} was moved");
        }
        fn policy(&self, tid: ostler_model::Tid) -> std::io::Result<i32> {
            self.0.policy(tid)
        }
        fn set_policy(&self, tid: ostler_model::Tid, _: i32) -> std::io::Result<()> {
            panic!("thread {tid} was given another policy");
        }
        fn rss(&self, nic: &str) -> std::io::Result<ostler_act::RssView> {
            self.0.rss(nic)
        }
        fn set_rss(&self, nic: &str, _: Option<&[u32]>) -> std::io::Result<()> {
            panic!("{nic} was changed");
        }
    }
    let mut run = Run::new(3, &[Kind::Own, Kind::Shared], false);
    run.live(2);
    let host = Rebooted(run.kernel.clone());
    let mut journal = Journal::open(&run.journal, &host).expect("a journal");
    let report = undo(&mut journal, &host, None).expect("undo");
    assert_eq!(report, UndoReport::default());
}

/// One that its maker has begun to make before that was given back, and that is there only after some looks at the process's threads: it has the affinity that its maker had.
#[test]
fn a_thread_that_is_born_during_an_undo_is_given_back() {
    #[derive(Clone)]
    struct Late {
        kernel: Kernel,
        pid: u32,
        affinity: CpuSet,
        /// Looks until it is there.
        left: std::sync::Arc<std::sync::Mutex<u32>>,
    }
    impl Host for Late {
        fn read(&self, root: ostler_act::Root, path: &str) -> std::io::Result<String> {
            self.kernel.read(root, path)
        }
        fn write(&self, root: ostler_act::Root, path: &str, text: &str) -> std::io::Result<()> {
            self.kernel.write(root, path, text)
        }
        fn create_dir(&self, root: ostler_act::Root, path: &str) -> std::io::Result<()> {
            self.kernel.create_dir(root, path)
        }
        fn remove_dir(&self, root: ostler_act::Root, path: &str) -> std::io::Result<()> {
            self.kernel.remove_dir(root, path)
        }
        fn dirs(&self, root: ostler_act::Root, path: &str) -> std::io::Result<Vec<String>> {
            let found = self.kernel.dirs(root, path);
            if path == format!("{}/task", self.pid) {
                let mut left = self.left.lock().expect("no test panics with it");
                let mut inner = self.kernel.lock();
                let maker = inner.state.tasks[&self.pid].clone();
                // It is being made from when its maker is given back on.
                if *left > 0 && maker.affinity != self.affinity {
                    *left -= 1;
                    if *left == 0 {
                        inner.state.spawn(self.pid, LATE, 9, &maker.cgroup);
                        let late = inner.state.tasks.get_mut(&LATE).expect("it was born");
                        late.affinity = self.affinity;
                    }
                }
            }
            found
        }
        fn affinity(&self, tid: ostler_model::Tid) -> std::io::Result<CpuSet> {
            self.kernel.affinity(tid)
        }
        fn set_affinity(&self, tid: ostler_model::Tid, cpus: &CpuSet) -> std::io::Result<()> {
            self.kernel.set_affinity(tid, cpus)
        }
        fn policy(&self, tid: ostler_model::Tid) -> std::io::Result<i32> {
            self.kernel.policy(tid)
        }
        fn set_policy(&self, tid: ostler_model::Tid, policy: i32) -> std::io::Result<()> {
            self.kernel.set_policy(tid, policy)
        }
        fn rss(&self, nic: &str) -> std::io::Result<ostler_act::RssView> {
            self.kernel.rss(nic)
        }
        fn set_rss(&self, nic: &str, table: Option<&[u32]>) -> std::io::Result<()> {
            self.kernel.set_rss(nic, table)
        }
    }
    const LATE: u32 = 200_000;
    let mut born = 0;
    for (seed, looks) in (0..40).zip((1..=4).cycle()) {
        let mut run = Run::new(seed, &[Kind::Own], true);
        let pid = run.world.guests[0].pid;
        run.live(1);
        let of = |kernel: &Kernel| kernel.lock().state.tasks.get(&pid).map(|t| t.affinity);
        let (Some(ours), Some(theirs)) = (of(&run.kernel), of(&run.twin)) else {
            continue;
        };
        if ours == theirs {
            continue;
        }
        let host = Late {
            kernel: run.kernel.clone(),
            pid,
            affinity: ours,
            left: std::sync::Arc::new(std::sync::Mutex::new(looks)),
        };
        let mut journal = Journal::open(&run.journal, &host).expect("a journal");
        undo(&mut journal, &host, None).expect("undo");
        let inner = run.kernel.lock();
        let late = inner.state.tasks.get(&LATE).expect("it was born");
        assert_eq!(late.affinity, theirs, "seed {seed}, after {looks} looks");
        born += 1;
    }
    assert!(born > 5, "{born}");
}

#[test]
fn two_stewards_never_act_at_once() {
    let run = Run::new(3, &[Kind::Own], false);
    let _first = actuator(&run.kernel, &run.journal, ForeignPolicy::Respect);
    let error = Journal::open(&run.journal, &run.kernel).expect_err("the journal is in use");
    assert!(error.to_string().contains("in use"), "{error}");
}

/// A host with this many guests of four vCPUs, two vhost workers and four other threads.
fn crowd(guests: usize) -> Run {
    let mut run = Run::new(1, &vec![Kind::Own; guests], false);
    for guest in &mut run.world.guests {
        let mut inner = run.kernel.lock();
        for (list, n) in [
            (&mut guest.vcpus, 4),
            (&mut guest.vhost, 2),
            (&mut guest.emulator, 4),
        ] {
            for extra in list.len()..n {
                let tid = 100_000 + guest.pid * 10 + u32::try_from(extra + n).unwrap();
                inner.state.spawn(guest.pid, tid, 7, &guest.home);
                list.push(tid);
            }
            list.truncate(n);
        }
    }
    run
}

fn plan_for_all(run: &mut Run) -> Plan {
    let mut plan = run.world.plan(&mut run.dice);
    let given = plan.guests[0].clone();
    plan.guests = run
        .world
        .guests
        .iter()
        .map(|guest| GuestPlan {
            guest: guest.id.clone(),
            class: Class::LatencyCritical,
            run: RunState::Running,
            vcpu_cpus: CpuSet::range(0, 4),
            vcpu_pins: Vec::new(),
            vhost_pins: Vec::new(),
            ..given.clone()
        })
        .collect();
    plan.guests.sort_by(|a, b| a.guest.cmp(&b.guest));
    plan
}

#[test]
fn a_quiet_period_costs_few_operations() {
    let mut run = crowd(64);
    let mut plan = plan_for_all(&mut run);
    let mut steward = actuator(&run.kernel, &run.journal, ForeignPolicy::Respect);
    for _ in 0..3 {
        let snapshot = run.world.snapshot(&run.kernel);
        steward
            .apply(&facts(), &snapshot, &plan)
            .expect("a journal");
    }
    let snapshot = run.world.snapshot(&run.kernel);
    let before = run.kernel.lock().ops;
    let periods = 100;
    let begun = std::time::Instant::now();
    for _ in 0..periods {
        steward
            .apply(&facts(), &snapshot, &plan)
            .expect("a journal");
    }
    let took = begun.elapsed() / periods;
    let ops = (run.kernel.lock().ops - before) / u64::from(periods);
    println!("64 guests: {ops} reads in a quiet period, {took:?} without the kernel's part");
    assert!(ops <= 64, "{ops} operations in a quiet period");

    // Cores that move from one group to another cost one write for each guest's vCPUs.
    let writes = run.kernel.lock().writes;
    for given in &mut plan.guests {
        given.vcpu_cpus = CpuSet::range(0, 5);
    }
    steward
        .apply(&facts(), &snapshot, &plan)
        .expect("a journal");
    assert_eq!(run.kernel.lock().writes - writes, 64);

    // The same from files, as a real host has them. A steward that takes over finds all as it should be.
    let files = scratch();
    run.kernel.write_out(files.path());
    drop(steward);
    let place = |name: &str| files.path().join(name);
    let host = LinuxHost::new(place("cgroup"), place("proc"), place("sys"));
    let config = config(run.journal.clone(), ForeignPolicy::Respect);
    plan.nics.clear();
    let mut steward = Actuator::new(Box::new(host), &config, None).expect("an actuator");
    let outcome = steward
        .apply(&facts(), &snapshot, &plan)
        .expect("a journal");
    let begun = std::time::Instant::now();
    for _ in 0..periods {
        let again = steward
            .apply(&facts(), &snapshot, &plan)
            .expect("a journal");
        assert_eq!(again.written, 0, "{again:?}");
    }
    let took = begun.elapsed() / periods;
    println!(
        "64 guests: {took:?} for a quiet period, read from files; {} written",
        outcome.written
    );
}
