//! Acting on a real kernel: real threads named as QEMU names its own, real cgroups, a steward process that is killed.
//!
//! Each test says what it needs and is skipped where that isn't there: root, a writable cgroup v2 tree, and for some the
//! cpuset controller in it. What a test makes is in cgroups of its own and gone when it ends.

mod stage;
mod world;

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use ostler_act::{ActConfig, Actuator, GuestPort, Host, Journal, LinuxHost, Root, preview, undo};
use ostler_model::{
    Class, CpuId, CpuSet, CpuWeight, ExitPolicy, ForeignPolicy, GuestId, GuestPlan, NicPlan, Plan,
    RunState, Snapshot,
};
use stage::{Qemu, Stage, again, cgroup_of, cgroups, cpus, has_weights, parse_guest, snapshot_of};
use world::{Dice, Guest, World, facts_of};

/// How often the steward is killed.
const KILLS: u32 = 50;

/// One test at a time: `/ostler` is a single place.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[test]
#[ignore = "it is started by the tests, as a process of its own"]
fn a_process_like_qemu() {
    for name in io::stdin().lock().lines() {
        let Ok(name) = name else { return };
        let (tell, told) = mpsc::channel();
        thread::Builder::new()
            .name(name)
            .spawn(move || {
                let tid = rustix::thread::gettid().as_raw_nonzero().get();
                tell.send(tid).expect("the main thread waits");
                loop {
                    thread::park();
                }
            })
            .expect("a thread");
        println!("\nthread {}", told.recv().expect("its number"));
    }
    std::process::exit(0);
}

/// A steward in a process of its own: applies plan after plan, and tells of each, until it is killed.
#[test]
#[ignore = "it is started by the tests, as a process of its own"]
fn a_steward() {
    let place = |name| PathBuf::from(std::env::var_os(name).expect("a path"));
    let (guests, journal) = (place("OSTLER_TEST_GUESTS"), place("OSTLER_TEST_JOURNAL"));
    let seed = std::env::var("OSTLER_TEST_SEED").expect("a number");
    let mut dice = Dice(seed.parse().expect("a number"));
    let config = ActConfig {
        journal,
        foreign: ForeignPolicy::Respect,
    };
    let mut steward =
        Actuator::new(Box::new(LinuxHost::detect()), &config, None).expect("a steward");
    // It is killed; were it not, it must not stay for good.
    for _ in 0..100_000 {
        let guests = fs::read_to_string(&guests).expect("guests");
        let guests: Vec<Guest> = guests.lines().map(parse_guest).collect();
        let snapshot = snapshot_of(&guests);
        let mut plan = World::of(guests, cpus()).plan(&mut dice);
        plan.nics.clear();
        let outcome = steward
            .apply(&facts_of(cpus()), &snapshot, &plan)
            .expect("a journal");
        assert!(outcome.foreign.is_empty(), "{:?}", outcome.foreign);
        println!("\napplied {}", outcome.written);
    }
}

#[test]
fn a_steward_killed_while_it_acts_is_undone() {
    let _turn = turn();
    let (tree, cpuset) = match cgroups() {
        Ok(found) => found,
        Err(why) => {
            println!("SKIP a_steward_killed_while_it_acts_is_undone: {why}");
            return;
        }
    };
    if !cpuset {
        println!(
            "SKIP a_steward_killed_while_it_acts_is_undone/cpusets: the v2 tree has no cpuset controller, so threads are placed by affinity"
        );
    }
    let mut stage = Stage::set(&tree, cpuset);
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let (guests, journal) = (
        scratch.path().join("guests"),
        scratch.path().join("journal"),
    );
    let mut dice = Dice(u64::from(std::process::id()));
    let mut before = stage.look();
    let (mut applied, mut restored) = (0, 0);
    for round in 0..KILLS {
        stage.tell(&guests);
        let mut steward = again("a_steward")
            .env("OSTLER_TEST_GUESTS", &guests)
            .env("OSTLER_TEST_JOURNAL", &journal)
            .env("OSTLER_TEST_SEED", dice.roll(u64::MAX).to_string())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this very program");
        let mut told = BufReader::new(steward.stdout.take().expect("a pipe")).lines();
        let periods = dice.roll(6);
        let mut seen = 0;
        while seen < periods {
            let line = told.next().expect("it lives").expect("a line");
            seen += u64::from(line.starts_with("applied "));
        }
        applied += seen;
        if round % 4 == 3 {
            // A thread is born while it acts; without a steward it would be beside its process's first.
            let at = usize::try_from(dice.roll(stage.qemus.len() as u64)).expect("small");
            let leader = format!("{} {}", stage.guests[at].id, stage.guests[at].pid);
            // Told first: the process may be frozen, and is let go below.
            let mut input = &stage.qemus[at].input;
            writeln!(input, "worker").expect("it lives");
            kill_within(&mut steward, &mut dice);
            restored += undone(&journal);
            let tid = answer(&mut stage.qemus[at]);
            stage.guests[at].emulator.push(tid);
            before.insert(
                format!("{} {tid}", stage.guests[at].id),
                before[&leader].clone(),
            );
        } else {
            kill_within(&mut steward, &mut dice);
            restored += undone(&journal);
        }
        let after = stage.look();
        for (key, value) in &before {
            assert_eq!(after.get(key), Some(value), "round {round}: {key}");
        }
        assert_eq!(after, before, "round {round}");
    }
    assert!(applied > 0 && restored > 0, "{applied} {restored}");
    println!("{applied} plans, {restored} values restored after {KILLS} kills");
}

fn answer(qemu: &mut Qemu) -> u32 {
    loop {
        let mut line = String::new();
        assert!(
            qemu.output.read_line(&mut line).expect("a line") > 0,
            "it died"
        );
        if let Some(tid) = line.trim().strip_prefix("thread ") {
            return tid.parse().expect("a number");
        }
    }
}

/// Kills after a random moment. It need not be any particular one, so spinning it away is no synchronisation.
fn kill_within(steward: &mut Child, dice: &mut Dice) {
    let until = Instant::now() + Duration::from_micros(dice.roll(8000));
    while Instant::now() < until {
        std::hint::spin_loop();
    }
    steward.kill().expect("it lives");
    steward.wait().expect("it was ours");
}

fn undone(journal: &Path) -> u32 {
    let host = LinuxHost::detect();
    let mut journal = Journal::open(journal, &host).expect("a journal");
    let report = undo(&mut journal, &host, None).expect("undo");
    assert!(report.left.is_empty(), "{:#?}", report.left);
    report.restored
}

#[derive(Default)]
struct Wishes(Mutex<Vec<String>>);

impl GuestPort for Wishes {
    fn desire(&self, guest: &GuestId, vcpus_active: Option<u32>, queues: Option<u32>) {
        let wish = format!("{guest} {vcpus_active:?} {queues:?}");
        self.0.lock().expect("a list").push(wish);
    }

    fn restore(&self, guest: &GuestId) {
        self.0
            .lock()
            .expect("a list")
            .push(format!("{guest} restored"));
    }
}

/// A plan that gives a guest one set of CPUs for everything.
fn give(guest: &Guest, cpus: CpuSet, run: RunState) -> GuestPlan {
    GuestPlan {
        guest: guest.id.clone(),
        class: Class::BestEffort,
        run,
        vcpu_cpus: cpus,
        vcpu_pins: Vec::new(),
        vhost_cpus: cpus,
        vhost_pins: Vec::new(),
        emulator_cpus: cpus,
        weight: CpuWeight::Untouched,
        vcpus_active: Some(1),
        queues: None,
    }
}

fn allowed(pid: u32, tid: u32) -> CpuSet {
    let status = fs::read_to_string(format!("/proc/{pid}/task/{tid}/status")).expect("it lives");
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.expect("a list").parse().expect("a list")
}

#[test]
fn a_plan_is_seen_frozen_thawed_and_taken_back() {
    let _turn = turn();
    let (tree, cpuset) = match cgroups() {
        Ok(found) => found,
        Err(why) => {
            println!("SKIP a_plan_is_seen_frozen_thawed_and_taken_back: {why}");
            return;
        }
    };
    let stage = Stage::set(&tree, cpuset);
    let before = stage.look();
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let config = ActConfig {
        journal: scratch.path().join("journal"),
        foreign: ForeignPolicy::Respect,
    };
    let wishes = Arc::new(Wishes::default());
    let host = LinuxHost::detect();
    let mut steward =
        Actuator::new(Box::new(host.clone()), &config, Some(wishes.clone())).expect("a steward");
    let one = CpuSet::single(CpuId(cpus() - 1));
    let mut plan = Plan {
        guests: stage
            .guests
            .iter()
            .map(|guest| give(guest, one, RunState::Suspended))
            .collect(),
        ..Plan::default()
    };
    plan.guests.sort_by(|a, b| a.guest.cmp(&b.guest));
    let facts = facts_of(cpus());

    let snapshot = snapshot_of(&stage.guests);
    let changes = preview(&host, &facts, &snapshot, &plan);
    assert!(!changes.is_empty());
    assert_eq!(stage.look(), before, "a preview writes nothing");

    let outcome = steward.apply(&facts, &snapshot, &plan).expect("a journal");
    if cpuset {
        assert_eq!(outcome.failures, []);
    }
    for guest in &stage.guests {
        for tid in guest
            .vcpus
            .iter()
            .chain(&guest.vhost)
            .chain(&guest.emulator)
        {
            assert_eq!(allowed(guest.pid, *tid), one, "{} {tid}", guest.id);
        }
        let at = cgroup_of(guest.pid, guest.pid);
        let domain = at.split("/ostler.").next().expect("a part");
        let domain = domain.strip_suffix("/emulator").unwrap_or(domain);
        let events = tree.join(&domain[1..]).join("cgroup.events");
        // The kernel freezes in its own time.
        let until = Instant::now() + Duration::from_secs(10);
        while !fs::read_to_string(&events)
            .expect("events")
            .contains("frozen 1")
        {
            assert!(Instant::now() < until, "{} isn't frozen", guest.id);
            thread::yield_now();
        }
    }
    let mut frozen = snapshot_of(&stage.guests);
    for guest in &mut frozen.guests {
        guest.frozen = true;
    }
    let again = steward.apply(&facts, &frozen, &plan).expect("a journal");
    assert_eq!(again.written, 0, "{again:?}");

    for guest in &mut plan.guests {
        guest.run = RunState::Running;
    }
    let outcome = steward.apply(&facts, &frozen, &plan).expect("a journal");
    assert_eq!(outcome.written as usize, stage.guests.len(), "{outcome:?}");
    assert!(
        wishes
            .0
            .lock()
            .expect("a list")
            .iter()
            .all(|wish| !wish.ends_with("restored"))
    );

    let report = steward.exit(ExitPolicy::Restore).expect("undo");
    assert_eq!(report.left, []);
    assert_eq!(stage.look(), before);
    let restored = wishes.0.lock().expect("a list");
    let restored = restored.iter().filter(|wish| wish.ends_with("restored"));
    assert_eq!(restored.count(), stage.guests.len());
}

/// Guests in a cgroup of their own, in a shell's and in libvirt's tree yield, have their own weights again, and are put back by an undo
/// after the steward ended without; where nobody weighed anything before, and where an operator did.
#[test]
fn guests_yield_and_get_their_weights_back() {
    let _turn = turn();
    let tree = match cgroups() {
        Ok((tree, true)) if has_weights(&tree) => tree,
        Ok((_, cpuset)) => {
            let lacking = if cpuset { "cpu" } else { "cpuset" };
            println!(
                "SKIP guests_yield_and_get_their_weights_back: the v2 tree has no {lacking} controller"
            );
            return;
        }
        Err(why) => {
            println!("SKIP guests_yield_and_get_their_weights_back: {why}");
            return;
        }
    };
    yield_and_come_back(&Stage::set(&tree, true), ["100"; 3]);
    let stage = Stage::set(&tree, true);
    let handed_down = stage.get("/cgroup.subtree_control");
    if !handed_down.split_whitespace().any(|c| c == "cpu") {
        println!(
            "SKIP guests_yield_and_get_their_weights_back/weighed: the root hands no cpu controller down"
        );
        return;
    }
    stage.put(&format!("{}/cgroup.subtree_control", stage.base), "+cpu");
    stage.put(&format!("{}/own/cpu.weight", stage.base), 50);
    stage.put(&format!("{}/qemu.scope/cpu.weight", stage.base), 30);
    yield_and_come_back(&stage, ["50", "100", "30"]);
}

/// `found` are the weights of the stage's guests before us.
fn yield_and_come_back(stage: &Stage, found: [&str; 3]) {
    let (own, scope) = (
        format!("{}/own", stage.base),
        format!("{}/qemu.scope", stage.base),
    );
    let before = stage.look();
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let config = ActConfig {
        journal: scratch.path().join("journal"),
        foreign: ForeignPolicy::Respect,
    };
    let mut steward =
        Actuator::new(Box::new(LinuxHost::detect()), &config, None).expect("a steward");
    let one = CpuSet::single(CpuId(cpus() - 1));
    let facts = facts_of(cpus());
    let places = [own.as_str(), "/ostler/shared", scope.as_str()];
    let as_found = found.map(|weight| ("0", Some(weight)));
    // What is told as the weight of an idle cgroup differs between kernels.
    let idle = [("1", None); 3];
    for (weight, want) in [
        (CpuWeight::Idle, idle),
        (CpuWeight::AsFound, as_found),
        (CpuWeight::Weight(20), [("0", Some("20")); 3]),
        (CpuWeight::Weight(1), [("0", Some("1")); 3]),
        (CpuWeight::AsFound, as_found),
        (CpuWeight::Idle, idle),
    ] {
        let mut plan = Plan {
            guests: stage
                .guests
                .iter()
                .map(|guest| GuestPlan {
                    weight,
                    ..give(guest, one, RunState::Running)
                })
                .collect(),
            ..Plan::default()
        };
        plan.guests.sort_by(|a, b| a.guest.cmp(&b.guest));
        let mut apply = || {
            let snapshot = snapshot_of(&stage.guests);
            steward.apply(&facts, &snapshot, &plan).expect("a journal")
        };
        let outcome = apply();
        assert_eq!(outcome.failures, [], "{weight:?}");
        assert_eq!(outcome.foreign, [], "{weight:?}");
        for (place, (idle, weight)) in places.iter().zip(want) {
            assert_eq!(stage.get(&format!("{place}/cpu.idle")), idle, "{place}");
            if let Some(weight) = weight {
                assert_eq!(stage.get(&format!("{place}/cpu.weight")), weight, "{place}");
            }
        }
        // As many periods as it takes for each value to be read again on its turn.
        for _ in 0..150 {
            let again = apply();
            assert_eq!((again.written, again.foreign), (0, Vec::new()));
        }
    }
    // A guest is weighed as a whole, in the root of its threaded cgroups.
    assert_eq!(stage.get(&format!("{own}/cgroup.type")), "domain threaded");
    let below = stage.tree.join(&own[1..]).join("ostler.vcpu/cpu.weight");
    assert!(!below.exists(), "{}", below.display());
    drop(steward);
    undone(&config.journal);
    assert_eq!(stage.look(), before, "{found:?}");
}

/// Runs in a network namespace of its own.
#[test]
#[ignore = "it is started by the tests, as a process of its own"]
fn queues_of_a_veth() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = LinuxHost::detect();
    let masks = || -> Vec<String> {
        let read = |file: String| {
            host.read(Root::Sys, &format!("class/net/v0/queues/{file}"))
                .expect("a queue")
        };
        (0..4)
            .flat_map(|queue| {
                [
                    format!("rx-{queue}/rps_cpus"),
                    format!("tx-{queue}/xps_cpus"),
                ]
            })
            .map(read)
            .collect()
    };
    let before = masks();
    let config = ActConfig {
        journal: scratch.path().join("journal"),
        foreign: ForeignPolicy::Respect,
    };
    let mut steward = Actuator::new(Box::new(host.clone()), &config, None).expect("a steward");
    let one = CpuSet::single(CpuId(cpus() - 1));
    let plan = Plan {
        nics: vec![NicPlan {
            name: "v0".into(),
            queues: 2,
            irqs: Vec::new(),
            xps: vec![one; 4],
            rps: vec![one; 4],
        }],
        ..Plan::default()
    };
    let facts = facts_of(cpus());
    let outcome = steward
        .apply(&facts, &Snapshot::default(), &plan)
        .expect("a journal");
    assert_eq!((outcome.written, outcome.failures), (8, Vec::new()));
    let bits = |text: &String| {
        text.replace(',', "")
            .trim()
            .trim_start_matches('0')
            .to_owned()
    };
    let want = format!("{:x}", 1_u64 << (cpus() - 1));
    assert!(masks().iter().all(|mask| bits(mask) == want));
    // A veth has no indirection table, and says so.
    assert!(host.rss("v0").is_err());
    // Nor is there such a NIC.
    assert_eq!(
        host.rss("no-such-nic").expect_err("no NIC").raw_os_error(),
        Some(libc::ENODEV)
    );
    drop(steward);
    assert_eq!(undone(&config.journal), 8);
    assert_eq!(masks(), before);
    println!("\nall is well");
}

#[test]
fn rps_and_xps_of_a_veth_are_set_and_taken_back() {
    let script = "mount -t sysfs none /sys 2>&1 && \
        ip link add v0 numrxqueues 4 numtxqueues 4 type veth peer name v1 numrxqueues 4 numtxqueues 4 2>&1 && \
        echo ready && exec \"$@\"";
    let own = again("queues_of_a_veth");
    let output = Command::new("unshare")
        .args(["-n", "-m", "sh", "-c", script, "sh"])
        .arg(own.get_program())
        .args(own.get_args())
        .output();
    let output = match output {
        Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
        Err(error) => format!("unshare: {error}"),
    };
    if !output.contains("ready") {
        println!("SKIP rps_and_xps_of_a_veth_are_set_and_taken_back: {output}");
        return;
    }
    assert!(output.contains("all is well"), "{output}");
}

/// Where a kernel has a NIC with an indirection table to spare (OSTLER_TEST_RSS_NIC), its table is set and put back.
#[test]
fn an_indirection_table_is_set_and_put_back() {
    let Ok(nic) = std::env::var("OSTLER_TEST_RSS_NIC") else {
        println!(
            "SKIP an_indirection_table_is_set_and_put_back: OSTLER_TEST_RSS_NIC names no NIC to try it on"
        );
        return;
    };
    let host = LinuxHost::detect();
    let before = host.rss(&nic).expect("a table");
    assert!(before.rings > 1 && !before.table.is_empty());
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let config = ActConfig {
        journal: scratch.path().join("journal"),
        foreign: ForeignPolicy::Respect,
    };
    let mut facts = facts_of(cpus());
    facts.nics[0].name.clone_from(&nic);
    let mut plan = Plan {
        nics: vec![NicPlan {
            name: nic.clone(),
            queues: 1,
            irqs: Vec::new(),
            xps: Vec::new(),
            rps: Vec::new(),
        }],
        ..Plan::default()
    };
    let mut steward = Actuator::new(Box::new(host.clone()), &config, None).expect("a steward");
    for queues in [1, before.rings, 2, 1] {
        plan.nics[0].queues = queues;
        let outcome = steward
            .apply(&facts, &Snapshot::default(), &plan)
            .expect("a journal");
        assert_eq!(outcome.failures, []);
        let table = host.rss(&nic).expect("a table").table;
        let spread = table.iter().zip((0..queues).cycle());
        assert!(spread.into_iter().all(|(&a, b)| a == b), "{table:?}");
    }
    drop(steward);
    undone(&config.journal);
    assert_eq!(host.rss(&nic).expect("a table"), before);
}
