//! The loop with nothing of Linux under it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::bail;
use ostler_model::config::Config;
use ostler_model::{
    Accesses, ActIntent, ActMode, BoostOutcome, Class, Cpu, CpuId, CpuPmu, CpuSet, CpuUsage,
    ExitPolicy, Facts, Groups, GuestId, GuestMatch, GuestPmu, GuestRule, GuestSource, GuestView,
    HostCounters, Intent, LatencyView, Nanos, NodeId, Outcome, Pid, Plan, Snapshot, State, TapView,
    ThreadUsage, Tid, Topology, VcpuView, VhostView,
};
use ostler_record::{Decided, Inputs, Limits, Reader, Recorder, Wall, replay};

use super::control::{Parts, Steward, mix};
use super::lines::line;
use super::view::{ConfigStatus, Shared};
use super::{Act, Agents, Clock, Decide, Restored, Sense};

/// What the fakes saw and what they are to do.
#[derive(Default)]
struct World {
    calls: RefCell<Vec<String>>,
    now: Cell<u64>,
    /// What sensing yields, in order; then empty snapshots.
    sensed: RefCell<VecDeque<Result<Snapshot, String>>>,
    /// Generations whose plans break a rule.
    bad: RefCell<Vec<u64>>,
    /// The parents that the checker was told of.
    previous: RefCell<Vec<Option<u64>>>,
    act_fails: Cell<bool>,
    /// Whether there is a scheduler of vCPUs.
    boosts: Cell<bool>,
}

impl World {
    fn call(&self, what: impl Into<String>) {
        self.calls.borrow_mut().push(what.into());
    }

    fn calls(&self) -> Vec<String> {
        self.calls.take()
    }
}

#[derive(Clone)]
struct Fake(Rc<World>, Rc<Facts>);

impl Sense for Fake {
    fn facts(&self) -> &Facts {
        &self.1
    }

    fn snapshot(&mut self, now: Nanos) -> anyhow::Result<Snapshot> {
        match self.0.sensed.borrow_mut().pop_front() {
            Some(Ok(snapshot)) => Ok(snapshot),
            Some(Err(why)) => bail!(why),
            None => Ok(Snapshot {
                seq: now.0,
                at: now,
                interval: Nanos(1),
                ..Snapshot::default()
            }),
        }
    }

    fn configure(&mut self, _: &Config) -> anyhow::Result<()> {
        self.0.call("configure");
        Ok(())
    }
}

impl Agents for Fake {
    fn fill(&mut self, _: &Intent, _: &mut Snapshot) {}
}

impl Decide for Fake {
    fn decide(&self, inputs: Inputs<'_>) -> Decided {
        let generation = inputs.state.generation + 1;
        Decided {
            plan: Plan {
                generation,
                parent: Some(inputs.state.generation),
                at: inputs.snapshot.at,
                groups: Groups {
                    idle: CpuSet::single(CpuId(0)),
                    ..Groups::default()
                },
                ..Plan::default()
            },
            reasons: Vec::new(),
            state: State {
                generation,
                ..State::default()
            },
        }
    }

    fn check(&self, inputs: Inputs<'_>, previous: Option<&Plan>, plan: &Plan) -> Vec<String> {
        let previous = previous.map(|previous| previous.generation);
        self.0.previous.borrow_mut().push(previous);
        let seq = inputs.snapshot.seq;
        if self.0.bad.borrow().contains(&seq) {
            vec![format!("plan {} is bad", plan.generation)]
        } else {
            Vec::new()
        }
    }
}

impl Act for Fake {
    fn apply(&mut self, _: &Facts, _: &Snapshot, plan: &Plan) -> anyhow::Result<Outcome> {
        self.0.call(format!("apply {}", plan.generation));
        if self.0.act_fails.get() {
            bail!("no journal");
        }
        Ok(Outcome {
            generation: plan.generation,
            written: 1,
            boost: self.0.boosts.get().then(BoostOutcome::default),
            ..Outcome::default()
        })
    }

    fn configure(&mut self, _: ActIntent) {}

    fn recover(&mut self, intent: ActIntent) -> anyhow::Result<Option<Restored>> {
        self.0.call(format!("recover {:?}", intent.mode));
        Ok(None)
    }

    fn restore(&mut self) -> anyhow::Result<Restored> {
        self.0.call("restore");
        Ok(Restored::default())
    }
}

impl Clock for Fake {
    fn now(&self) -> Nanos {
        self.0.now.set(self.0.now.get() + 1);
        Nanos(self.0.now.get())
    }

    fn wall(&self) -> Wall {
        Wall(1_000_000_000 + self.0.now.get())
    }
}

fn intent(mode: ActMode, on_exit: ExitPolicy) -> Intent {
    Intent {
        act: ActIntent {
            mode,
            on_exit,
            ..ActIntent::default()
        },
        ..Intent::default()
    }
}

fn steward(world: &Rc<World>, intent: Intent) -> Steward {
    let fake = Fake(Rc::clone(world), Rc::default());
    let parts = Parts {
        sense: Box::new(fake.clone()),
        agents: Box::new(fake.clone()),
        decide: Box::new(fake.clone()),
        act: Box::new(fake.clone()),
        clock: Box::new(fake),
    };
    Steward::new(parts, intent, 7, None, ConfigStatus::default()).expect("a steward")
}

#[test]
fn observing_never_acts_and_has_nothing_to_take_back() {
    let world = Rc::new(World::default());
    let mut steward = steward(&world, intent(ActMode::Observe, ExitPolicy::Restore));
    for _ in 0..5 {
        steward.turn(0, Nanos::ZERO);
    }
    assert_eq!(steward.view().totals.decisions, 5);
    steward.end().expect("an end");
    assert_eq!(world.calls(), ["recover Observe"]);
}

#[test]
fn acting_applies_each_plan_and_takes_it_back_at_the_end() {
    let world = Rc::new(World::default());
    let mut steward = steward(&world, intent(ActMode::Act, ExitPolicy::Restore));
    steward.turn(0, Nanos::ZERO);
    steward.turn(0, Nanos::ZERO);
    let view = steward.view();
    assert_eq!((view.totals.written, view.totals.plan_changes), (2, 1));
    steward.end().expect("an end");
    assert_eq!(
        world.calls(),
        ["recover Act", "apply 1", "apply 2", "restore"]
    );
}

#[test]
fn a_periods_line_tells_of_the_scheduler_of_vcpus_while_there_is_one() {
    let world = Rc::new(World::default());
    let mut steward = steward(&world, intent(ActMode::Act, ExitPolicy::Keep));
    let mut told = |boosts| {
        world.boosts.set(boosts);
        steward.turn(0, Nanos::ZERO);
        let view = steward.view();
        let last = view.last.as_deref().expect("a period");
        let line = serde_json::to_value(line(&view, last, 0)).expect("JSON");
        line.get("boost").cloned()
    };
    assert_eq!(told(false), None);
    let boost = serde_json::json!({"deaf_to": [], "guests": []});
    assert_eq!(told(true), Some(boost));
}

#[test]
fn what_is_to_be_kept_is_not_taken_back() {
    let world = Rc::new(World::default());
    let mut steward = steward(&world, intent(ActMode::Act, ExitPolicy::Keep));
    steward.turn(0, Nanos::ZERO);
    steward.end().expect("an end");
    assert_eq!(world.calls(), ["recover Act", "apply 1"]);
}

#[test]
fn a_plan_that_breaks_a_rule_is_neither_acted_on_nor_built_on() {
    let world = Rc::new(World::default());
    let mut steward = steward(&world, intent(ActMode::Act, ExitPolicy::Keep));
    for seq in 1..=4 {
        world.sensed.borrow_mut().push_back(Ok(Snapshot {
            seq,
            ..Snapshot::default()
        }));
    }
    world.bad.borrow_mut().extend([2, 3]);
    for _ in 0..4 {
        steward.turn(0, Nanos::ZERO);
    }
    assert_eq!(world.calls(), ["recover Act", "apply 1", "apply 2"]);
    // The bad plan's place is taken by the next good one, whose parent is the last good one.
    assert_eq!(world.previous.take(), [None, Some(1), Some(1), Some(1)]);
    let view = steward.view();
    assert_eq!(view.totals.violations, 2);
    assert_eq!(view.last.map(|last| last.plan.generation), Some(2));
}

#[test]
fn a_host_that_cannot_be_sensed_is_left_alone_until_it_can() {
    let world = Rc::new(World::default());
    let mut steward = steward(&world, intent(ActMode::Act, ExitPolicy::Keep));
    world
        .sensed
        .borrow_mut()
        .extend([Err("gone".to_owned()), Err("gone".to_owned())]);
    steward.turn(0, Nanos::ZERO);
    steward.turn(0, Nanos::ZERO);
    let view = steward.view();
    assert_eq!(view.totals.sense_failures, 2);
    assert_eq!(view.sense_error.as_deref(), Some("gone"));
    assert!(view.last.is_none());
    steward.turn(0, Nanos::ZERO);
    assert!(steward.view().sense_error.is_none());
    assert_eq!(world.calls(), ["recover Act", "apply 1"]);
}

#[test]
fn a_failure_to_act_does_not_stop_the_loop() {
    let world = Rc::new(World::default());
    let mut steward = steward(&world, intent(ActMode::Act, ExitPolicy::Restore));
    world.act_fails.set(true);
    steward.turn(0, Nanos::ZERO);
    world.act_fails.set(false);
    steward.turn(0, Nanos::ZERO);
    let view = steward.view();
    assert_eq!((view.totals.failures, view.totals.written), (1, 1));
    // A half-applied plan may have written: it is taken back too.
    steward.end().expect("an end");
    assert_eq!(world.calls().last().map(String::as_str), Some("restore"));
}

#[test]
fn a_refused_configuration_leaves_the_old_one_in_force() {
    let world = Rc::new(World::default());
    let mut steward = steward(&world, intent(ActMode::Observe, ExitPolicy::Restore));
    let before = steward.intent().clone();
    steward.refuse("line 3".to_owned());
    assert_eq!(*steward.intent(), before);
    let shared = Shared::new(steward.view());
    assert_eq!(shared.get().config.refused.as_deref(), Some("line 3"));
    let new = Config {
        intent: intent(ActMode::Act, ExitPolicy::Restore),
        ..Config::default()
    };
    steward
        .adopt(new, ConfigStatus::default())
        .expect("adopted");
    steward.publish(&shared);
    let view = shared.get();
    assert!(view.acting && view.config.refused.is_none());
    assert_eq!((view.totals.reloads, view.totals.reloads_refused), (2, 1));
}

#[test]
fn going_back_to_observing_takes_back_what_was_written() {
    let world = Rc::new(World::default());
    let mut steward = steward(&world, intent(ActMode::Act, ExitPolicy::Restore));
    steward.turn(0, Nanos::ZERO);
    let observe = Config {
        intent: intent(ActMode::Observe, ExitPolicy::Restore),
        ..Config::default()
    };
    steward
        .adopt(observe, ConfigStatus::default())
        .expect("adopted");
    steward.turn(0, Nanos::ZERO);
    steward.end().expect("an end");
    // Once: at the end there is nothing of ours left.
    assert_eq!(
        world.calls(),
        ["recover Act", "apply 1", "configure", "restore"]
    );
}

#[test]
fn missed_periods_are_counted_and_not_made_up_for() {
    let world = Rc::new(World::default());
    let mut steward = steward(&world, intent(ActMode::Observe, ExitPolicy::Keep));
    steward.turn(3, Nanos::from_millis(310));
    let totals = steward.view().totals;
    assert_eq!((totals.missed_periods, totals.decisions), (3, 1));
    assert_eq!(totals.lateness.last, Nanos::from_millis(310));
}

/// A host with six cores, a latency-critical guest and a best-effort one, whose load comes and goes.
fn busy_snapshot(seq: u64) -> Snapshot {
    let interval = 100_000_000_u64;
    let load = |salt: u64| mix(seq / 20, salt) % interval;
    let usage = |salt| ThreadUsage {
        run: Nanos(load(salt)),
        wait: Nanos(load(salt + 50) / 10),
    };
    let all = CpuSet::range(0, 6);
    let guest = |name: &str, pid: u32, vcpus: u32| GuestView {
        id: GuestId::from(name),
        name: name.to_owned(),
        uuid: None,
        metadata: Vec::new(),
        source: GuestSource::Qmp,
        pid: Pid(pid),
        cgroup: Some(format!("/machine.slice/{name}")),
        frozen: false,
        vcpus: (0..vcpus)
            .map(|index| VcpuView {
                index,
                tid: Tid(pid + 1 + index),
                allowed: all,
                usage: usage(u64::from(pid + index)),
            })
            .collect(),
        vhost: vec![VhostView {
            tid: Tid(pid + 50),
            queue: Some(0),
            allowed: all,
            usage: usage(u64::from(pid + 50)),
        }],
        emulator: vec![Tid(pid)],
        taps: vec![TapView {
            name: format!("tap-{name}"),
            guest_mac: None,
            queues: 1,
        }],
        vsock_cid: None,
        latency: Some(LatencyView {
            responses: 100,
            p50: Nanos(load(900)),
            p95: Nanos(load(900) + load(901)),
            p99: Nanos(load(900) + load(901) + 1),
            age: Nanos::ZERO,
        }),
        agent: None,
        age: Nanos::ZERO,
    };
    Snapshot {
        seq,
        at: Nanos(seq * interval),
        interval: Nanos(if seq == 1 { 0 } else { interval }),
        cpus: (0..6)
            .map(|cpu| CpuUsage {
                cpu: CpuId(cpu),
                busy: Nanos(load(u64::from(cpu))),
                irq: Nanos::ZERO,
                softirq: Nanos(load(u64::from(cpu)) / 4),
                yielding: None,
            })
            .collect(),
        guests: vec![guest("batch", 200, 2), guest("web", 100, 4)],
        nics: Vec::new(),
        counters: HostCounters::default(),
        pmu: vec![pmu(seq)],
        guest_pmu: vec![guest_pmu(seq)],
        ..Snapshot::default()
    }
}

/// What a CPU's counters tell of period `seq`.
fn pmu(seq: u64) -> CpuPmu {
    CpuPmu {
        cpu: CpuId(3),
        elapsed: Nanos(100_000_000),
        halted: Nanos(60_000_000),
        instructions: seq,
        accesses: Some(Accesses {
            l1: 3 * seq,
            pool: seq,
            stall: Nanos(10_000_000),
            node_bytes: vec![0, 64 * seq],
            ..Accesses::default()
        }),
    }
}

/// What CPUs did as vCPUs of a guest in period `seq`.
fn guest_pmu(seq: u64) -> GuestPmu {
    let mut counted = GuestPmu::new(GuestId::from("web"));
    counted.executed = Nanos(20_000_000);
    counted.instructions = 5 * seq;
    counted.accesses.l1 = 4 * seq;
    counted.accesses.remote = seq;
    counted.accesses.stall = Nanos(6_000_000);
    counted
}

#[test]
fn a_machines_counters_are_shown_and_added_up() {
    let world = Rc::new(World::default());
    let mut steward = steward(&world, intent(ActMode::Observe, ExitPolicy::Keep));
    let shared = Arc::new(Shared::new(steward.view()));
    let text = || {
        let metrics = crate::api::metrics::Metrics::new(Arc::clone(&shared));
        metrics.encode().expect("metrics")
    };
    assert!(!text().contains("machine_"), "an ordinary host has none");
    for seq in 1..=2 {
        let mut snapshot = busy_snapshot(seq);
        snapshot.guests.retain(|guest| guest.name == "web");
        world.sensed.borrow_mut().push_back(Ok(snapshot));
        steward.turn(0, Nanos::ZERO);
    }
    shared.set(steward.view());
    for series in [
        "ostler_machine_instructions_total{cpu=\"3\"} 3",
        "ostler_machine_accesses_total{cpu=\"3\",level=\"l1\"} 9",
        "ostler_machine_accesses_total{cpu=\"3\",level=\"pool\"} 3",
        "ostler_machine_stall_seconds_total{cpu=\"3\"} 0.02",
        "ostler_machine_memory_traffic_bytes_total{cpu=\"3\",node=\"1\"} 192",
        "ostler_machine_guest_executed_seconds_total{guest=\"web\"} 0.04",
        "ostler_machine_guest_instructions_total{guest=\"web\"} 15",
        "ostler_machine_guest_accesses_total{guest=\"web\",level=\"remote\"} 3",
        "ostler_machine_guest_stall_seconds_total{guest=\"web\"} 0.012",
    ] {
        assert!(text().contains(series), "no {series} in\n{}", text());
    }
    let status = shared.get().status();
    assert_eq!(status.pmu, [pmu(2)]);
    assert_eq!(status.guest_pmu, [guest_pmu(2)]);
    let plain = crate::output::Paint(false);
    let shown = crate::verbs::status::render(&status, plain);
    let row = shown.lines().find(|line| line.contains("75.0 %"));
    let row = row.unwrap_or_else(|| panic!("no row in\n{shown}"));
    for cell in ["60.0 %", "25.0 %", "10.0 %"] {
        assert!(row.contains(cell), "no {cell} in {row}");
    }
    let row = shown.lines().find(|line| line.contains("80.0 %"));
    let row = row.unwrap_or_else(|| panic!("no row in\n{shown}"));
    for cell in ["web", "20.0 %", "30.0 %"] {
        assert!(row.contains(cell), "no {cell} in {row}");
    }
    // A guest that is gone takes its series with it.
    let mut snapshot = busy_snapshot(3);
    snapshot.guests.clear();
    snapshot.guest_pmu.clear();
    world.sensed.borrow_mut().push_back(Ok(snapshot));
    steward.turn(0, Nanos::ZERO);
    shared.set(steward.view());
    assert!(!text().contains("machine_guest"), "{}", text());
}

/// The whole chain with the real policies and checker: every plan is accepted, and what was recorded is decided alike when it is made again.
#[test]
fn what_the_loop_records_replays_with_the_real_policies() {
    let world = Rc::new(World::default());
    let cpus = (0..6).map(|id| Cpu {
        id: CpuId(id),
        node: NodeId(0),
        core: CpuId(id),
        cache_group: CpuId(0),
    });
    let facts = Facts {
        topology: Topology {
            cpus: cpus.collect(),
        },
        ..Facts::default()
    };
    let fake = Fake(Rc::clone(&world), Rc::new(facts));
    let rule = |name: &str, class, slo| GuestRule::new(GuestMatch::Name(name.into()), class, slo);
    let mut intent = intent(ActMode::Act, ExitPolicy::Keep);
    intent.guests = vec![
        rule("web", Class::LatencyCritical, Some(Nanos::from_millis(50))),
        rule("batch", Class::BestEffort, None),
    ];
    // Explorations within the test's length, so that the state that is carried over matters.
    intent.partition.exploration = Some(ostler_model::Exploration {
        samples: 50,
        ..ostler_model::Exploration::default()
    });
    intent.partition.policy = ostler_model::PartitionPolicy::Resource;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("record.db");
    let limits = Limits {
        size_max: ostler_model::Bytes(64 << 20),
        age_max: Nanos::from_secs(3600),
    };
    let recorder = Recorder::start(&path, limits).expect("a recorder");
    let parts = Parts {
        sense: Box::new(fake.clone()),
        agents: Box::new(fake.clone()),
        decide: Box::new(crate::wire::decider()),
        act: Box::new(fake.clone()),
        clock: Box::new(fake),
    };
    let mut steward =
        Steward::new(parts, intent, 7, Some(recorder), ConfigStatus::default()).expect("a steward");
    // As many as the recorder's queue holds: none is dropped, however slow the disk is.
    let periods = 250;
    for seq in 1..=periods {
        // The fakes' clock must stay close to the snapshots', or the policy finds them old.
        world.now.set(seq * 100_000_000);
        world.sensed.borrow_mut().push_back(Ok(busy_snapshot(seq)));
        steward.turn(0, Nanos::ZERO);
        let view = steward.view();
        let last = view.last.expect("a period");
        assert!(last.violations.is_empty(), "{seq}: {:?}", last.violations);
    }
    let totals = steward.view().totals;
    assert!(
        totals.plan_changes > 3,
        "a load that moves must move the plan: {}",
        totals.plan_changes
    );
    steward.end().expect("an end");

    let reader = Reader::open(&path).expect("a record");
    let report = replay(&reader, Wall::MIN, Wall::MAX, crate::wire::decide).expect("a replay");
    assert!(report.difference.is_none(), "{:?}", report.difference);
    assert_eq!((report.replayed, report.skipped), (periods, 0));
}
