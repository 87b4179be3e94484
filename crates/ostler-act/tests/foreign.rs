//! What happens to values that someone else changes, before undo and after.

mod world;

use ostler_model::{Class, CpuSet, CpuWeight, ForeignHandling, ForeignPolicy, Plan, RunState};
use proptest::prelude::*;
use world::kernel::State;
use world::run::{Run, actuator, cases, undo_all};
use world::{Kind, facts};

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn what_someone_else_changed_is_theirs_or_ours_by_policy(seed: u64, kind in proptest::sample::select(vec![Kind::Own, Kind::Libvirt]), reown: bool, pick: u64) {
        let mut run = Run::new(seed, &[kind], false);
        let policy = if reown { ForeignPolicy::Reown } else { ForeignPolicy::Respect };
        let mut steward = actuator(&run.kernel, &run.journal, policy);
        let snapshot = run.world.snapshot(&run.kernel);
        let mut plan = run.world.plan(&mut run.dice);
        while plan.nics.is_empty() {
            plan = run.world.plan(&mut run.dice);
        }
        steward.apply(&facts(), &snapshot, &plan).expect("a journal");
        let irq = 20 + u32::try_from(pick % 3).unwrap();
        let ours = run.kernel.lock().state.irqs[&irq].0;
        let theirs = if ours.len() == 1 { CpuSet::range(0, 8) } else { CpuSet::single(ours.first().unwrap()) };
        for kernel in [&run.kernel, &run.twin] {
            kernel.lock().state.irqs.get_mut(&irq).unwrap().0 = theirs;
        }
        let mut foreign = Vec::new();
        for _ in 0..150 {
            let snapshot = run.world.snapshot(&run.kernel);
            foreign.extend(steward.apply(&facts(), &snapshot, &plan).expect("a journal").foreign);
        }
        prop_assert_eq!(foreign.len(), 1, "told once: {:?}", foreign);
        prop_assert_eq!(&foreign[0].found, &theirs.to_string());
        let now = run.kernel.lock().state.irqs[&irq].0;
        if reown {
            prop_assert_eq!(foreign[0].handling, ForeignHandling::Reowned);
            prop_assert_eq!(now, ours);
        } else {
            prop_assert_eq!(foreign[0].handling, ForeignHandling::Respected);
            prop_assert_eq!(now, theirs);
        }
        drop(steward);
        // Either way their value is there in the end.
        let report = undo_all(&run.kernel, &run.journal);
        run.assert_as_found(&report, "after undo");
    }

    #[test]
    fn undo_leaves_what_someone_else_changed_since(seed: u64, pick: u64) {
        let mut run = Run::new(seed, &[Kind::Own], false);
        let mut steward = actuator(&run.kernel, &run.journal, ForeignPolicy::Respect);
        let snapshot = run.world.snapshot(&run.kernel);
        let mut plan = run.world.plan(&mut run.dice);
        while plan.nics.is_empty() {
            plan = run.world.plan(&mut run.dice);
        }
        steward.apply(&facts(), &snapshot, &plan).expect("a journal");
        drop(steward);
        let irq = 20 + u32::try_from(pick % 3).unwrap();
        let ours = run.kernel.lock().state.irqs[&irq].0;
        let theirs = if ours.len() == 1 { CpuSet::range(1, 3) } else { CpuSet::single(ours.first().unwrap()) };
        for kernel in [&run.kernel, &run.twin] {
            kernel.lock().state.irqs.get_mut(&irq).unwrap().0 = theirs;
        }
        let report = undo_all(&run.kernel, &run.journal);
        prop_assert_eq!(report.left.len(), 1);
        prop_assert!(!report.left[0].kept);
        prop_assert_eq!(report.left[0].found.clone(), Some(theirs.to_string()));
        let (kernel, twin) = (run.kernel.lock(), run.twin.lock());
        prop_assert_eq!(&kernel.state, &twin.state);
    }
}

/// Values that someone else may change behind our back, in a guest with a cgroup of its own (`home`).
fn meddle(state: &mut State, what: u32, home: &str, vcpu: u32, on: bool) -> String {
    let cpus = if on { "1,3" } else { "2" };
    let file = |name: &str| format!("{home}/{name}");
    match what {
        0 => {
            let path = file("ostler.vcpu");
            state.cgroups.get_mut(&path).unwrap().cpus = cpus.parse().unwrap();
            format!("{path}/cpuset.cpus")
        }
        1 => {
            state.tasks.get_mut(&vcpu).unwrap().cgroup = home.into();
            "cgroup of thread".into()
        }
        2 => {
            state.cgroups.get_mut(home).unwrap().frozen = false;
            file("cgroup.freeze")
        }
        // As the kernel has it: what stops being idle has the default weight.
        5 => {
            let cgroup = state.cgroups.get_mut(home).unwrap();
            if cgroup.idle {
                (cgroup.idle, cgroup.weight) = (false, 100);
            }
            file("cpu.idle")
        }
        6 => {
            state.cgroups.get_mut(home).unwrap().weight = if on { 20 } else { 77 };
            file("cpu.weight")
        }
        3 => {
            *state.masks.get_mut("tx-1/xps_cpus").unwrap() = cpus.parse().unwrap();
            "/sys/class/net/eth9/queues/tx-1/xps_cpus".into()
        }
        _ => {
            state.rss = vec![3; 16];
            "RSS indirection table".into()
        }
    }
}

proptest! {
    #![proptest_config(cases(60))]

    #[test]
    fn every_kind_of_value_is_watched(seed: u64, what in 0..7_u32, on: bool, reown: bool) {
        let mut run = Run::new(seed, &[Kind::Own], false);
        if what == 6 {
            let state = &run.kernel.lock().state;
            let weighed = state.cgroups["/machine.slice"].subtree.contains("cpu");
            prop_assume!(weighed && !state.cgroups[&run.world.guests[0].home].idle);
        }
        let policy = if reown { ForeignPolicy::Reown } else { ForeignPolicy::Respect };
        let mut steward = actuator(&run.kernel, &run.journal, policy);
        let snapshot = run.world.snapshot(&run.kernel);
        let mut plan = run.world.plan(&mut run.dice);
        while plan.nics.is_empty() || plan.guests.iter().all(|given| given.run == RunState::Running) {
            plan = run.world.plan(&mut run.dice);
        }
        plan.guests[0].weight = if what == 6 { CpuWeight::Weight(20) } else { CpuWeight::Idle };
        steward.apply(&facts(), &snapshot, &plan).expect("a journal");
        let guest = run.world.guests[0].clone();
        let before = run.kernel.lock().state.clone();
        let theirs = meddle(&mut run.kernel.lock().state, what, &guest.home, guest.vcpus[0], on);
        let meddled = run.kernel.lock().state.clone();
        let mut foreign = Vec::new();
        for _ in 0..150 {
            let snapshot = run.world.snapshot(&run.kernel);
            foreign.extend(steward.apply(&facts(), &snapshot, &plan).expect("a journal").foreign);
        }
        if meddled == before {
            // They set what was there.
            prop_assert_eq!(foreign, vec![]);
            return Ok(());
        }
        prop_assert_eq!(foreign.len(), 1, "told once: {:?}", foreign);
        prop_assert!(foreign[0].target.starts_with(&theirs), "{:?}", foreign);
        let now = run.kernel.lock().state.clone();
        prop_assert_eq!(&now, if reown { &before } else { &meddled });
        // A restart remembers whose it is.
        drop(steward);
        let mut steward = actuator(&run.kernel, &run.journal, policy);
        let snapshot = run.world.snapshot(&run.kernel);
        let outcome = steward.apply(&facts(), &snapshot, &plan).expect("a journal");
        prop_assert_eq!(outcome.written, 0, "{:?}", outcome);
        drop(steward);
        let report = undo_all(&run.kernel, &run.journal);
        if what > 2 {
            meddle(&mut run.twin.lock().state, what, &guest.home, guest.vcpus[0], on);
        }
        run.assert_as_found(&report, "after undo");
    }
}

#[test]
fn a_task_that_was_given_an_old_number_is_left_alone() {
    let mut run = Run::new(5, &[Kind::Own], true);
    let mut steward = actuator(&run.kernel, &run.journal, ForeignPolicy::Respect);
    let plan = loop {
        let plan = run.world.plan(&mut run.dice);
        if plan
            .guests
            .iter()
            .any(|given| given.class != Class::Unmanaged)
        {
            break plan;
        }
    };
    let snapshot = run.world.snapshot(&run.kernel);
    steward
        .apply(&facts(), &snapshot, &plan)
        .expect("a journal");
    drop(steward);
    // The guest ends, and another process comes by its numbers and, as it happens, its affinity.
    for task in run.kernel.lock().state.tasks.values_mut() {
        task.start += 1_000_000;
    }
    let before = run.kernel.lock().state.tasks.clone();
    assert!(
        before
            .values()
            .any(|task| task.affinity != CpuSet::range(0, 8))
    );
    undo_all(&run.kernel, &run.journal);
    assert_eq!(run.kernel.lock().state.tasks, before);
}

/// A plan that runs all guests but for one that it suspends, and one that it leaves alone.
fn plan_of(run: &Run, suspended: Option<usize>, unmanaged: Option<usize>) -> Plan {
    run.world.even_plan(|at, given| {
        if Some(at) == suspended {
            given.run = RunState::Suspended;
        }
        if Some(at) == unmanaged {
            given.class = Class::Unmanaged;
        }
    })
}

/// Of two guests that shared a cgroup one is moved out first, and comes back while the other is suspended: the cgroup that it
/// comes back to was never the other's own, though that was alone in it meanwhile.
#[test]
fn a_guest_that_comes_back_is_not_suspended_with_another() {
    for kind in [Kind::Shared, Kind::Blocked] {
        for (first, other) in [(0, 1), (1, 0)] {
            let run = Run::new(7, &[kind, kind], false);
            // Nobody else is there.
            for kernel in [&run.kernel, &run.twin] {
                kernel.lock().state.tasks.remove(&900);
            }
            let mut steward = actuator(&run.kernel, &run.journal, ForeignPolicy::Respect);
            for (suspended, unmanaged) in [
                (Some(first), Some(other)),
                (Some(other), Some(first)),
                (None, Some(other)),
            ] {
                let plan = plan_of(&run, suspended, unmanaged);
                for _ in 0..2 {
                    let snapshot = run.world.snapshot(&run.kernel);
                    steward
                        .apply(&facts(), &snapshot, &plan)
                        .expect("a journal");
                }
                let state = &run.kernel.lock().state;
                for (at, guest) in run.world.guests.iter().enumerate() {
                    let cgroup = &state.tasks[&guest.pid].cgroup;
                    let within = |path: &String| cgroup.starts_with(path.as_str());
                    let frozen = state
                        .cgroups
                        .iter()
                        .any(|(path, cgroup)| cgroup.frozen && within(path));
                    assert_eq!(frozen, Some(at) == suspended, "{kind:?}: {guest:?}");
                }
            }
            drop(steward);
            let report = undo_all(&run.kernel, &run.journal);
            run.assert_as_found(&report, "after undo");
        }
    }
}
