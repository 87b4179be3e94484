//! What becomes of weights beyond what holds for every setting: those that count for nothing, and those of others.

mod world;

use ostler_model::{Class, CpuWeight, ForeignPolicy, Plan};
use world::run::{Run, actuator, undo_all};
use world::{Kind, facts};

/// A plan in which the first guest is best-effort and has this weight, and the others are latency-critical.
fn plan_of(run: &Run, weight: CpuWeight) -> Plan {
    run.world.even_plan(|at, given| {
        if at == 0 {
            given.weight = weight;
        } else {
            given.class = Class::LatencyCritical;
        }
    })
}

/// A host whose cgroups hand no cpu controller down by themselves.
fn without_controller(kinds: &[Kind]) -> Run {
    (0..64)
        .map(|seed| Run::new(seed, kinds, false))
        .find(|run| {
            let state = &run.kernel.lock().state;
            !state.cgroups["/machine.slice"].subtree.contains("cpu")
        })
        .expect("one world in two is such")
}

/// Wherever a guest is, also in a cgroup of ours that stays, and whatever the kernel tells of a cgroup while it is idle.
#[test]
fn a_guest_yields_for_as_long_as_the_plan_says() {
    for kind in [Kind::Own, Kind::Shared, Kind::Libvirt] {
        for idle_weighs in [0, 1] {
            let run = without_controller(&[kind, Kind::Own]);
            for kernel in [&run.kernel, &run.twin] {
                kernel.lock().state.idle_weighs = idle_weighs;
            }
            let mut steward = actuator(&run.kernel, &run.journal, ForeignPolicy::Respect);
            let idle = || {
                let state = &run.kernel.lock().state;
                state.cgroups.values().filter(|cgroup| cgroup.idle).count()
            };
            for (weight, yields) in [
                (CpuWeight::Idle, 1),
                (CpuWeight::AsFound, 0),
                (CpuWeight::Idle, 1),
            ] {
                let plan = plan_of(&run, weight);
                // As many periods as it takes for each value to be read again on its turn.
                for period in 0..150 {
                    let snapshot = run.world.snapshot(&run.kernel);
                    let outcome = steward
                        .apply(&facts(), &snapshot, &plan)
                        .expect("a journal");
                    assert_eq!(outcome.foreign, [], "{kind:?}");
                    assert!(period == 0 || outcome.written == 0, "{outcome:?}");
                    assert_eq!(idle(), yields, "{kind:?} {weight:?}");
                }
            }
            drop(steward);
            let report = undo_all(&run.kernel, &run.journal);
            run.assert_as_found(&report, "after undo");
        }
    }
}

/// A weight counts among the children of one cgroup.
#[test]
fn a_weight_in_vain_is_told_once() {
    for (critical, in_vain) in [(Kind::Own, 0), (Kind::Libvirt, 0), (Kind::Shared, 1)] {
        let run = Run::new(1, &[Kind::Own, critical], false);
        let mut steward = actuator(&run.kernel, &run.journal, ForeignPolicy::Respect);
        let mut told = 0;
        for _ in 0..3 {
            for weight in [CpuWeight::Idle, CpuWeight::AsFound, CpuWeight::Idle] {
                let plan = plan_of(&run, weight);
                let snapshot = run.world.snapshot(&run.kernel);
                let outcome = steward
                    .apply(&facts(), &snapshot, &plan)
                    .expect("a journal");
                told += outcome
                    .failures
                    .iter()
                    .filter(|failure| failure.target.starts_with("CPU weight of guest"))
                    .count();
            }
        }
        assert_eq!(told, in_vain, "{critical:?}");
        drop(steward);
        let report = undo_all(&run.kernel, &run.journal);
        run.assert_as_found(&report, "after undo");
    }
}

/// What someone else came to set with a controller that we turned on stays, and the controller with it.
#[test]
fn a_controller_that_others_use_stays() {
    for theirs in [(300, false), (100, true)] {
        let run = without_controller(&[Kind::Own]);
        let home = run.world.guests[0].home.clone();
        let plan = plan_of(&run, CpuWeight::Idle);
        let mut steward = actuator(&run.kernel, &run.journal, ForeignPolicy::Respect);
        let snapshot = run.world.snapshot(&run.kernel);
        steward
            .apply(&facts(), &snapshot, &plan)
            .expect("a journal");
        drop(steward);
        let other = "/machine.slice/other.scope";
        {
            let state = &mut run.kernel.lock().state;
            assert!(state.cgroups[&home].idle);
            state.mkdir(other);
            let cgroup = state.cgroups.get_mut(other).expect("it was just made");
            (cgroup.weight, cgroup.idle) = theirs;
        }
        let report = undo_all(&run.kernel, &run.journal);
        let left: Vec<&str> = report
            .left
            .iter()
            .map(|left| left.target.as_str())
            .collect();
        assert_eq!(
            left,
            [
                "/machine.slice/cgroup.subtree_control (cpu)",
                "/cgroup.subtree_control (cpu)"
            ]
        );
        let state = &run.kernel.lock().state;
        let cgroup = &state.cgroups[other];
        assert_eq!((cgroup.weight, cgroup.idle), theirs);
        assert!(!state.cgroups[&home].idle);
    }
}

/// Without the cpu controller a guest is placed all the same.
#[test]
fn a_guest_that_cannot_be_weighed_is_placed_all_the_same() {
    let run = without_controller(&[Kind::Own, Kind::Own]);
    run.kernel.lock().state.no_cpu = true;
    run.twin.lock().state.no_cpu = true;
    let plan = plan_of(&run, CpuWeight::Idle);
    let mut steward = actuator(&run.kernel, &run.journal, ForeignPolicy::Respect);
    let snapshot = run.world.snapshot(&run.kernel);
    let outcome = steward
        .apply(&facts(), &snapshot, &plan)
        .expect("a journal");
    assert!(
        outcome
            .failures
            .iter()
            .any(|failure| failure.target.ends_with("cpu.idle")),
        "{:?}",
        outcome.failures
    );
    for tid in &run.world.guests[0].vcpus {
        let cgroup = run.kernel.lock().state.tasks[tid].cgroup.clone();
        assert!(cgroup.contains("/ostler.vcpu/"), "{cgroup}");
    }
    drop(steward);
    let report = undo_all(&run.kernel, &run.journal);
    run.assert_as_found(&report, "after undo");
}
