use proptest::prelude::*;

use super::fake::{CGROUP, FakeKernel, MAC, OWN_PID, handler_path};
use super::*;

const XPS0: &str = "/sys/class/net/eth0/queues/tx-0/xps_cpus";
const XPS1: &str = "/sys/class/net/eth0/queues/tx-1/xps_cpus";

fn irq(number: u32) -> String {
    format!("/proc/irq/{number}/smp_affinity_list")
}

fn agent(kernel: &FakeKernel, config: Config) -> (Agent<&FakeKernel>, Instant) {
    let now = Instant::now();
    (Agent::new(kernel, config, now), now)
}

fn ask<K: Kernel>(agent: &mut Agent<K>, now: Instant, body: request::Body) -> reply::Body {
    let request = wire::Request { body: Some(body) };
    agent.handle(now, &request).body.unwrap()
}

fn vcpus(ids: &[u32]) -> request::Body {
    request::Body::SetVcpus(wire::SetVcpus {
        vcpus: bits::from_ids(ids.iter().copied()),
    })
}

fn queues(count: u32) -> request::Body {
    request::Body::SetQueues(wire::SetQueues {
        mac: MAC.to_vec(),
        count,
    })
}

fn error_code(body: &reply::Body) -> Option<ErrorCode> {
    match body {
        reply::Body::Error(error) => Some(error.code()),
        _ => None,
    }
}

#[test]
fn workloads_interrupts_and_transmit_queues_follow_the_vcpus() {
    let kernel = FakeKernel::new(4, 2, true);
    let (mut agent, now) = agent(&kernel, Config::default());
    assert_eq!(ask(&mut agent, now, vcpus(&[1, 2, 3])), ack(true, 0));
    let cpuset = |name| kernel.get(&format!("{CGROUP}/{name}/cpuset.cpus"));
    assert_eq!(cpuset("app.slice"), "1-3\n");
    assert_eq!(cpuset("system.slice/web.service"), "1-3\n");
    // On the way to the agent's own cgroup nothing is confined, nor is that, nor what is empty.
    assert_eq!(cpuset("system.slice"), "\n");
    assert_eq!(cpuset("system.slice/ostler.service"), "\n");
    assert_eq!(cpuset("empty.slice"), "\n");
    // Queue 0 is irqs 25 and 26, queue 1 is 27 and 28.
    assert_eq!(
        [25, 26, 27, 28].map(|n| kernel.get(&irq(n))),
        ["1\n", "1\n", "2\n", "2\n"]
    );
    assert_eq!(kernel.get(XPS0), "a\n", "vCPUs 1 and 3");
    assert_eq!(kernel.get(XPS1), "4\n", "vCPU 2");
    // In the root cgroup: 7 with its threads, but neither the kernel thread nor 9, which is elsewhere.
    let affinities = kernel.world().affinities;
    assert_eq!(affinities[&7], [1, 2, 3]);
    assert_eq!(affinities[&8], [1, 2, 3]);
    assert_eq!(affinities[&2], [0, 1, 2, 3]);
    assert_eq!(affinities[&9], [0, 1, 2, 3]);
}

#[test]
fn a_set_to_the_present_value_writes_nothing_and_says_so() {
    let kernel = FakeKernel::new(4, 2, true);
    let (mut agent, now) = agent(&kernel, Config::default());
    ask(&mut agent, now, vcpus(&[0, 2]));
    ask(&mut agent, now, queues(1));
    let writes = *kernel.writes.borrow();
    assert_eq!(ask(&mut agent, now, vcpus(&[0, 2])), ack(false, 0));
    assert_eq!(ask(&mut agent, now, queues(1)), ack(false, 0));
    agent.tick(now + Duration::from_secs(2));
    assert_eq!(*kernel.writes.borrow(), writes);
}

#[test]
fn queues_are_steered_again_after_the_driver_spread_them() {
    let kernel = FakeKernel::new(4, 4, true);
    let (mut agent, now) = agent(&kernel, Config::default());
    ask(&mut agent, now, vcpus(&[2, 3]));
    assert_eq!(ask(&mut agent, now, queues(2)), ack(true, 0));
    assert_eq!(kernel.world().channels["eth0"], (2, 4));
    assert_eq!(kernel.get(&irq(25)), "2\n");
    assert_eq!(kernel.get(&irq(27)), "3\n");
    assert_eq!(kernel.get(XPS0), "4\n");
    assert_eq!(kernel.get(XPS1), "8\n");
}

#[test]
fn queues_that_are_not_in_use_are_left_alone_until_they_are() {
    let kernel = FakeKernel::new(4, 4, true);
    let (mut agent, now) = agent(&kernel, Config::default());
    ask(&mut agent, now, queues(2));
    // As the driver has spread those in use: irqs 25 to 28 are those of queues 0 and 1, 29 to 32 the others'.
    let irqs = || (25..=32).map(|n| kernel.get(&irq(n))).collect::<Vec<_>>();
    assert_eq!(irqs()[..4], ["0\n"; 4]);
    ask(&mut agent, now, vcpus(&[2, 3]));
    assert_eq!(irqs()[..4], ["2\n", "2\n", "3\n", "3\n"]);
    assert_eq!(irqs()[4..], ["0-3\n"; 4]);
    ask(&mut agent, now, queues(4));
    let steered = ["2\n", "2\n", "3\n", "3\n", "2\n", "2\n", "3\n", "3\n"];
    assert_eq!(irqs(), steered);
}

#[test]
fn a_transmit_choice_that_went_with_its_queue_comes_back_with_it() {
    let kernel = FakeKernel::new(4, 2, true);
    kernel.put(XPS1, "c\n");
    let before = kernel.world();
    for counts in [&[1][..], &[1, 2], &[1, 2, 1]] {
        let (mut agent, now) = agent(&kernel, Config::default());
        ask(&mut agent, now, vcpus(&[2, 3]));
        for &count in counts {
            assert_eq!(ask(&mut agent, now, queues(count)), ack(true, 0));
        }
        assert_eq!(agent.restore(now), 0);
        assert_eq!(kernel.world(), before, "{counts:?}");
    }
}

fn times_read(kernel: &FakeKernel, path: &str) -> u32 {
    kernel.reads.borrow().get(path).copied().unwrap_or(0)
}

#[test]
fn interrupts_are_looked_for_once_for_many_requests() {
    let kernel = FakeKernel::new(4, 4, true);
    let (mut agent, now) = agent(&kernel, Config::default());
    let get_state = request::Body::GetState(wire::GetState {});
    for count in 1..=4 {
        ask(&mut agent, now, get_state.clone());
        ask(&mut agent, now, vcpus(&[count - 1]));
        ask(&mut agent, now, queues(count));
        agent.tick(now + Duration::from_secs(count.into()));
    }
    assert_eq!(times_read(&kernel, "/proc/interrupts"), 1);
    let later = now + Duration::from_secs(10);
    ask(&mut agent, later, get_state);
    assert_eq!(times_read(&kernel, "/proc/interrupts"), 2);
}

#[test]
fn an_interrupt_that_became_anothers_is_left_to_it() {
    let kernel = FakeKernel::new(4, 2, true);
    let (mut agent, now) = agent(&kernel, Config::default());
    ask(&mut agent, now, vcpus(&[1]));
    // The guest was suspended: the queue's interrupt is 40 now, and 27 is a disk's.
    let (old, new) = (handler_path(27, "input", 1), handler_path(40, "input", 1));
    kernel.world.borrow_mut().files.remove(&old);
    kernel.put(&irq(27), "0\n");
    kernel.put(&new, "");
    kernel.put(&irq(40), "0\n");
    let table = kernel.get("/proc/interrupts");
    let moved = table.replace(" 27:", " 40:");
    assert_ne!(table, moved);
    kernel.put("/proc/interrupts", &moved);
    ask(&mut agent, now, vcpus(&[2]));
    assert_eq!(kernel.get(&irq(27)), "0\n");
    assert_eq!(kernel.get(&irq(28)), "2\n", "the others follow");
    agent.tick(now + Duration::from_secs(1));
    assert_eq!(kernel.get(&irq(40)), "2\n");
    assert_eq!(kernel.get(&irq(27)), "0\n");
}

#[test]
fn a_nic_in_the_place_of_another_is_not_taken_for_it() {
    let kernel = FakeKernel::new(4, 2, true);
    let (mut agent, now) = agent(&kernel, Config::default());
    assert_eq!(ask(&mut agent, now, queues(1)), ack(true, 0));
    kernel.put("/sys/class/net/eth0/address", "52:54:00:00:00:09\n");
    kernel.indices.borrow_mut().insert("eth0".into(), 7);
    let answer = ask(&mut agent, now, queues(2));
    assert_eq!(error_code(&answer), Some(ErrorCode::Invalid));
    assert_eq!(kernel.world().channels["eth0"], (1, 2));
}

#[test]
fn impossible_requests_change_nothing() {
    let kernel = FakeKernel::new(4, 2, true);
    let before = kernel.world();
    let (mut agent, now) = agent(&kernel, Config::default());
    let bad = [
        vcpus(&[]),
        vcpus(&[0, 4]),
        request::Body::SetVcpus(wire::SetVcpus {
            vcpus: vec![1, 0, 0],
        }),
        queues(0),
        queues(3),
        request::Body::SetQueues(wire::SetQueues {
            mac: vec![9; 4000],
            count: 1,
        }),
    ];
    for body in bad {
        let answer = ask(&mut agent, now, body.clone());
        assert_eq!(error_code(&answer), Some(ErrorCode::Invalid), "{body:?}");
    }
    let empty = agent.handle(now, &wire::Request::default()).body.unwrap();
    assert_eq!(error_code(&empty), Some(ErrorCode::Malformed));
    assert_eq!(kernel.world(), before);
    assert!(!agent.has_changes());
}

#[test]
fn no_act_reports_and_changes_nothing() {
    let kernel = FakeKernel::new(4, 2, true);
    let before = kernel.world();
    let config = Config {
        act: false,
        ..Config::default()
    };
    let (mut agent, now) = agent(&kernel, config);
    for body in [vcpus(&[0]), queues(1)] {
        let answer = ask(&mut agent, now, body);
        assert_eq!(error_code(&answer), Some(ErrorCode::Unsupported));
    }
    let reply::Body::Hello(hello) = ask(
        &mut agent,
        now,
        request::Body::Hello(wire::Hello::default()),
    ) else {
        panic!("not a hello");
    };
    assert!(hello.capabilities.is_empty());
    assert_eq!(kernel.world(), before);
}

#[test]
fn state_is_what_the_kernel_says() {
    let kernel = FakeKernel::new(4, 2, true);
    let (mut agent, now) = agent(&kernel, Config::default());
    ask(&mut agent, now, vcpus(&[3]));
    let reply::Body::State(state) =
        ask(&mut agent, now, request::Body::GetState(wire::GetState {}))
    else {
        panic!("not a state");
    };
    assert_eq!(state.online_vcpus, [0b1111]);
    assert_eq!(state.applied_vcpus, [0b1000]);
    assert!(state.confined);
    assert_eq!(
        state.nics.len(),
        1,
        "neither the bridge with the same MAC nor lo"
    );
    let nic = &state.nics[0];
    assert_eq!((nic.name.as_str(), &nic.mac[..]), ("eth0", &MAC[..]));
    assert_eq!((nic.combined_current, nic.combined_max), (2, 2));
    assert_eq!(nic.irqs.len(), 4);
    assert_eq!(
        nic.irqs[3],
        wire::QueueIrq {
            irq: 28,
            queue: 1,
            transmit: true,
            vcpus: vec![0b1000]
        }
    );
    // user + nice + system + irq + softirq of 100 1 20 900 5 3 4 7, in 10 ms.
    assert_eq!(state.vcpu_times[0].busy_ns, 1_280_000_000);
    assert_eq!(state.vcpu_times[0].steal_ns, 70_000_000);
}

#[test]
fn a_silent_host_is_as_good_as_a_restore() {
    let kernel = FakeKernel::new(4, 2, true);
    let before = kernel.world();
    let (mut agent, now) = agent(&kernel, Config::default());
    ask(&mut agent, now, vcpus(&[1]));
    ask(&mut agent, now, queues(1));
    agent.tick(now + Duration::from_millis(9_999));
    assert!(agent.has_changes());
    agent.tick(now + Duration::from_secs(10));
    assert!(!agent.has_changes());
    assert_eq!(kernel.world(), before);
}

#[test]
fn any_request_keeps_the_dead_man_away() {
    let kernel = FakeKernel::new(4, 2, true);
    let (mut agent, now) = agent(&kernel, Config::default());
    ask(&mut agent, now, vcpus(&[1]));
    let later = now + Duration::from_secs(9);
    ask(
        &mut agent,
        later,
        request::Body::GetState(wire::GetState {}),
    );
    agent.tick(now + Duration::from_secs(18));
    assert!(agent.has_changes());
}

#[test]
fn without_cgroups_threads_are_confined_and_their_children_freed() {
    let kernel = FakeKernel::new(4, 2, false);
    kernel.world.borrow_mut().affinities.insert(7, vec![0, 1]);
    let before = kernel.world();
    let (mut agent, now) = agent(&kernel, Config::default());
    ask(&mut agent, now, vcpus(&[1]));
    let affinities = kernel.world().affinities;
    assert_eq!(
        [7, 8, 9].map(|tid| affinities[&tid].clone()),
        [[1], [1], [1]]
    );
    assert_eq!(affinities[&2].len(), 4, "kernel threads stay");
    assert_eq!(affinities[&OWN_PID].len(), 4, "so does the agent");
    kernel.fork(7, 60);
    kernel.fork(60, 61);
    ask(&mut agent, now, request::Body::Restore(wire::Restore {}));
    let after = kernel.world();
    assert_eq!(after.affinities[&60], [0, 1], "its parent's");
    assert_eq!(after.affinities[&61], [0, 1], "its parent's parent's");
    for (tid, cpus) in &before.affinities {
        assert_eq!(&after.affinities[tid], cpus);
    }
}

#[test]
fn newcomers_are_confined_on_the_next_round() {
    let kernel = FakeKernel::new(4, 2, true);
    let (mut agent, now) = agent(&kernel, Config::default());
    ask(&mut agent, now, vcpus(&[1]));
    kernel.put(
        &format!("{CGROUP}/new.slice/cgroup.events"),
        "populated 1\n",
    );
    kernel.put(&format!("{CGROUP}/new.slice/cgroup.subtree_control"), "\n");
    kernel.put(&format!("{CGROUP}/new.slice/cpuset.cpus"), "\n");
    agent.tick(now + Duration::from_secs(1));
    assert_eq!(
        kernel.get(&format!("{CGROUP}/new.slice/cpuset.cpus")),
        "1\n"
    );
}

#[test]
fn what_others_changed_since_is_left_alone_and_counted() {
    let kernel = FakeKernel::new(4, 2, true);
    let before = kernel.world();
    let (mut agent, now) = agent(&kernel, Config::default());
    ask(&mut agent, now, vcpus(&[1]));
    kernel.put(&irq(25), "2-3\n");
    kernel.world.borrow_mut().affinities.insert(8, vec![3]);
    assert_eq!(
        ask(&mut agent, now, request::Body::Restore(wire::Restore {})),
        ack(true, 2)
    );
    let mut expected = before;
    expected.files.insert(irq(25), "2-3\n".into());
    expected.affinities.insert(8, vec![3]);
    assert_eq!(kernel.world(), expected);
}

#[test]
fn what_the_kernel_refuses_is_counted_and_the_rest_done() {
    let kernel = FakeKernel::new(4, 2, true);
    let before = kernel.world();
    let (mut agent, now) = agent(&kernel, Config::default());
    let app = format!("{CGROUP}/app.slice/cpuset.cpus");
    *kernel.refuse.borrow_mut() = BTreeSet::from([irq(26), XPS0.into(), app]);
    assert_eq!(ask(&mut agent, now, vcpus(&[1])), ack(true, 3));
    assert_eq!(kernel.get(&irq(25)), "1\n");
    assert_eq!(kernel.get(&irq(27)), "1\n");
    ask(&mut agent, now, request::Body::Restore(wire::Restore {}));
    assert_eq!(kernel.world(), before);
}

#[test]
fn confining_nothing_is_an_error_and_what_it_took_is_restored() {
    let kernel = FakeKernel::new(4, 2, true);
    let before = kernel.world();
    let (mut agent, now) = agent(&kernel, Config::default());
    *kernel.refuse.borrow_mut() = ["app.slice", "system.slice/web.service"]
        .map(|name| format!("{CGROUP}/{name}/cpuset.cpus"))
        .into();
    let answer = ask(&mut agent, now, vcpus(&[1]));
    assert_eq!(error_code(&answer), Some(ErrorCode::Kernel));
    assert!(agent.has_changes(), "the controller was enabled on the way");
    ask(&mut agent, now, request::Body::Restore(wire::Restore {}));
    assert_eq!(kernel.world(), before);
}

#[test]
fn named_cgroups_only() {
    let kernel = FakeKernel::new(4, 2, true);
    let config = Config {
        scope: Scope::Named(vec!["app.slice".into()]),
        ..Config::default()
    };
    let (mut agent, now) = agent(&kernel, config);
    ask(&mut agent, now, vcpus(&[2]));
    assert_eq!(
        kernel.get(&format!("{CGROUP}/app.slice/cpuset.cpus")),
        "2\n"
    );
    assert_eq!(
        kernel.get(&format!("{CGROUP}/system.slice/cpuset.cpus")),
        "\n"
    );
    assert_eq!(kernel.world().affinities[&7].len(), 4);
}

#[test]
fn the_way_out_of_the_tree_is_not_a_name() {
    let kernel = FakeKernel::new(4, 2, true);
    for name in ["../..", "", "/"] {
        let config = Config {
            scope: Scope::Named(vec![name.into()]),
            ..Config::default()
        };
        let (mut agent, now) = agent(&kernel, config);
        let answer = ask(&mut agent, now, vcpus(&[2]));
        assert_eq!(error_code(&answer), Some(ErrorCode::Kernel), "{name}");
    }
}

fn any_step() -> impl Strategy<Value = request::Body> {
    prop_oneof![
        prop::collection::btree_set(0_u32..9, 0..9)
            .prop_map(|set| vcpus(&set.into_iter().collect::<Vec<_>>())),
        (0_u32..6).prop_map(queues),
        Just(request::Body::GetState(wire::GetState {})),
    ]
}

proptest! {
    /// Whatever the host asks for, whatever the kernel refuses meanwhile, all is put back byte for byte.
    #[test]
    fn a_restore_leaves_the_guest_as_it_was_found(
        cgroup2 in any::<bool>(),
        steps in prop::collection::vec((any_step(), any::<Option<prop::sample::Index>>()), 1..12),
    ) {
        let kernel = FakeKernel::new(8, 4, cgroup2);
        let before = kernel.world();
        let (mut agent, now) = agent(&kernel, Config::default());
        let paths: Vec<String> = before.files.keys().cloned().collect();
        for (step, refuse) in steps {
            kernel.refuse.replace(refuse.map(|at| at.get(&paths).clone()).into_iter().collect());
            ask(&mut agent, now, step);
        }
        kernel.refuse.replace(BTreeSet::new());
        prop_assert_eq!(agent.restore(now), 0);
        prop_assert_eq!(kernel.world(), before);
        prop_assert!(!agent.has_changes());
    }

    /// The host may name any set: a guest is never left without a vCPU or a queue.
    #[test]
    fn one_vcpu_and_one_queue_always_stay(steps in prop::collection::vec(any_step(), 1..12)) {
        let kernel = FakeKernel::new(8, 4, true);
        let (mut agent, now) = agent(&kernel, Config::default());
        for step in steps {
            ask(&mut agent, now, step);
            let world = kernel.world();
            prop_assert!(world.channels["eth0"].0 >= 1);
            prop_assert!(world.affinities.values().all(|cpus| !cpus.is_empty()));
            prop_assert!(world.files.iter().all(|(path, text)| !path.ends_with("smp_affinity_list") || text.trim() != ""));
        }
    }
}

/// Read-only, on whatever runs the tests.
#[test]
fn a_real_kernel_is_described() {
    let now = Instant::now();
    let mut agent = Agent::new(Linux::new("/".as_ref()), Config::default(), now);
    let state = agent.state(now);
    let online = bits::to_ids(&state.online_vcpus, VCPUS_MAX).unwrap();
    let timed: Vec<u32> = state.vcpu_times.iter().map(|time| time.vcpu).collect();
    assert_eq!(timed, online);
    assert!(state.vcpu_times.iter().any(|time| time.busy_ns > 0));
    assert!(state.monotonic_ns > 0);
    assert!(state.nics.iter().all(|nic| nic.mac.len() == 6));
}

/// On the real kernel, but touching one process of our own only.
#[test]
fn a_real_process_is_confined_and_freed() {
    let kernel = Linux::new("/".as_ref());
    let mut child = std::process::Command::new("sleep")
        .arg("600")
        .spawn()
        .unwrap();
    let pid = i32::try_from(child.id()).unwrap();
    let before = kernel.affinity(pid).unwrap();
    let only = BTreeSet::from([pid]);
    let last = [*before.last().unwrap()];
    let mut threads = Threads::default();
    let confined = threads.confine(&kernel, Some(&only), &last, &before);
    let during = kernel.affinity(pid).unwrap();
    let left = threads.restore(&kernel, Some(&only), &before);
    let after = kernel.affinity(pid).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    if before.len() == 1 {
        println!("SKIP a_real_process_is_confined_and_freed: one CPU leaves nothing to confine");
        return;
    }
    assert!(confined.unwrap());
    assert_eq!(during, last);
    assert_eq!((after, left), (before, 0));
}
