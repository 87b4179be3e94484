use std::path::Path;

use crate::testing::Emulator;
use crate::{FaultKind, Scenario};

pub(super) const GOOD: &str = r#"name = "tiny"
summary = "A test."
[host]
cores = 4
memory = "2G"
under_test = "0-2"
client = "3"
pnic_queues = 2
[[guest]]
name = "lc"
class = "latency-critical"
vcpus = 2
memory = "256M"
queues = 2
workload = "memcached"
slo_p95 = "20ms"
[[load]]
guest = "lc"
steps = [{ rate = 100, seconds = 2 }]
[steward.a]
x = 1
y = 1
[[policy]]
name = "vanilla"
[[policy]]
name = "ours"
[policy.steward]
a.y = 2
"#;

#[test]
fn faults_are_checked() {
    let parse = |fault: &str| parse(&format!("{GOOD}[[fault]]\n{fault}"));
    let scenario =
        parse("kind = \"kill\"\ntimes = 50\nrate = 9\nsteward.a.y = 3\n").expect("a good fault");
    let fault = &scenario.faults[0];
    assert_eq!(
        (fault.kind, fault.times, fault.rate),
        (FaultKind::Kill, 50, 9)
    );
    assert_eq!(fault.steward.to_string(), "[a]\nx = 1\ny = 3\n");
    let cases = [
        (
            "kind = \"flood\"",
            "s.toml:30: there is no fault `flood`; write one of kill, guest-dies",
        ),
        (
            "kind = \"kill\"\ntimes = 0",
            "s.toml:31: times = 0; write 1 to 1000",
        ),
        (
            "kind = \"kill\"\nrate = 200000",
            "s.toml:31: rate = 200000; write 0 to 100000",
        ),
        (
            "kind = \"qmp-hangs\"",
            "s.toml:30: `qmp-hangs` is done to a best-effort guest, and there is none; add a [[guest]]",
        ),
        (
            "kind = \"kill\"\nprograms = [\"kernel\"]",
            "s.toml:31: `programs` names test programs, one at least, for `kernel-tests`",
        ),
        (
            "kind = \"kernel-tests\"\nprograms = []",
            "s.toml:31: `programs` names test programs, one at least, for `kernel-tests`",
        ),
    ];
    for (fault, refusal) in cases {
        let said = parse(fault).expect_err("this must be refused");
        assert!(said.contains(refusal), "`{said}` doesn't say `{refusal}`");
    }
}

pub(super) fn parse(text: &str) -> Result<Scenario, String> {
    Scenario::parse(text, Path::new("s.toml"), &Emulator).map_err(|e| e.to_string())
}

/// Changes one line of the good scenario and returns the refusal.
pub(super) fn refusal(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from), "the good scenario has no `{from}`");
    parse(&GOOD.replacen(from, to, 1)).expect_err("this must be refused")
}

#[test]
fn a_good_scenario_is_taken() {
    let scenario = parse(GOOD).expect("a good scenario");
    assert_eq!(scenario.guests[0].slo_p95_us, Some(20_000));
    assert_eq!(scenario.host.nodes.len(), 1);
    assert_eq!(scenario.rounds, 1);
    assert_eq!(scenario.policies[0].steward, None);
    let merged = scenario.policies[1]
        .steward
        .as_ref()
        .expect("a steward")
        .to_string();
    assert_eq!(
        merged, "[a]\nx = 1\ny = 2\n",
        "a policy's keys go over the common ones"
    );
}

#[test]
fn refusals_name_the_line_and_the_remedy() {
    let cases = [
        (
            "client = \"3\"",
            "client = \"2-3\"",
            "s.toml:7: cores 2 are under test and the client's; give each core to one of them",
        ),
        (
            "client = \"3\"",
            "client = \"3-5\"",
            "s.toml:7: `client` names cores 4-5 that the host lacks; its cores are 0-3",
        ),
        (
            "cores = 4",
            "cores = 1",
            "s.toml:4: 1 sockets of 1 cores of 1 threads make 1 CPUs; an emulated host has 2 to 255",
        ),
        (
            "vcpus = 2",
            "vcpus = 5",
            "s.toml:12: vcpus = 5; write 1 to 4",
        ),
        (
            "queues = 2\nworkload",
            "queues = 3\nworkload",
            "s.toml:14: queues = 3; write 1 to 2",
        ),
        (
            "memory = \"256M\"",
            "memory = \"256\"",
            "s.toml:13: `256` is no size",
        ),
        (
            "memory = \"2G\"",
            "memory = \"1000M\"",
            "s.toml:13: guests and host need 1024 MiB of the host's 1000",
        ),
        (
            "slo_p95 = \"20ms\"",
            "slo_p95 = \"20\"",
            "s.toml:16: `20` is no time",
        ),
        (
            "slo_p95 = \"20ms\"\n",
            "",
            "s.toml:11: a latency-critical guest without an objective",
        ),
        (
            "guest = \"lc\"",
            "guest = \"db\"",
            "s.toml:18: no guest is named `db`; there are: lc",
        ),
        (
            "workload = \"memcached\"",
            "workload = \"idle\"",
            "s.toml:18: `lc` runs `idle`, which answers no requests",
        ),
        (
            "guest = \"lc\"",
            "guest = \"lc\"\nconnections = 0",
            "s.toml:19: connections = 0; write 1 to 4096",
        ),
        (
            "guest = \"lc\"",
            "guest = \"lc\"\nargs = [\"--depth\", \"x\"]",
            "s.toml:19: --depth x; write --depth and 1 to 1024",
        ),
        (
            "rate = 100",
            "rate = 0",
            "s.toml:19: a step of rate 0 for 2 seconds",
        ),
        (
            "name = \"ours\"",
            "name = \"vanilla\"",
            "s.toml:26: two policies are named `vanilla`",
        ),
        (
            "name = \"lc\"",
            "name = \"L C\"",
            "s.toml:10: `L C` is no name",
        ),
    ];
    for (from, to, wanted) in cases {
        let said = refusal(from, to);
        assert!(
            said.starts_with(wanted),
            "`{to}` was refused with:\n{said}\nbut should be with:\n{wanted}"
        );
    }
}

#[test]
fn work_that_nobody_asks_for_is_measured_by_a_load_of_nothing_and_waits_for_its_turn() {
    let works = GOOD
        .replace("workload = \"memcached\"", "workload = \"disk-read\"")
        .replace("rate = 100", "rate = 0");
    let spinner = "[[guest]]\nname = \"be\"\nclass = \"best-effort\"\nvcpus = 1\nmemory = \"160M\"\nworkload = \"spin\"\n[[load]]";
    let scenario = parse(&works.replace("[[load]]", spinner)).expect("a good scenario");
    let in_turn = |name: &str| scenario.guests.iter().any(|g| g.name == name && g.in_turn);
    assert!(in_turn("lc"), "its work rests but for its load");
    assert!(!in_turn("be"), "no load names it");
    assert_eq!(scenario.loads[0].steps_text(), "0x2");

    let asked = parse(&works.replace("rate = 0", "rate = 5")).expect_err("refused");
    assert!(
        asked.contains("s.toml:19: `lc` runs `disk-read`, which answers no requests, and 5 a second are asked of it; write rate = 0"),
        "{asked}"
    );
    // 256M of its own, 32M that hold its disk, and the host's 768M.
    for (memory, fits) in [("1056M", true), ("1055M", false)] {
        let tight = works.replace("memory = \"2G\"", &format!("memory = \"{memory}\""));
        assert_eq!(parse(&tight).is_ok(), fits, "{memory}");
    }
    let mixed = GOOD.replace("workload = \"memcached\"", "workload = \"mixed\"");
    let mixed = parse(&mixed).expect("it answers requests");
    assert!(mixed.guests[0].in_turn, "and works, in its turn");
}

#[test]
fn an_instruction_costs_something() {
    for cost in ["0", "-1.0", "nan", "101.0"] {
        let said = refusal(
            "pnic_queues = 2",
            &format!("pnic_queues = 2\ninstruction_ns = {cost}"),
        );
        assert!(said.contains("; write 0.05 to 100 nanoseconds"), "{said}");
    }
}

#[test]
fn unknown_keys_are_refused() {
    let said = refusal("pnic_queues = 2", "pnic_queues = 2\nnic_queues = 4");
    assert!(
        said.contains("line 9") && said.contains("unknown field `nic_queues`"),
        "{said}"
    );
}

#[test]
fn every_core_is_on_one_node() {
    let with_nodes = |nodes: &str| parse(&(GOOD.replace("memory = \"2G\"\n", "") + nodes));
    let node = |cpus: &str, memory| format!("[[host.node]]\nmemory = \"{memory}\"\n{cpus}\n");
    let good = with_nodes(
        &(node("cpus = \"0-1\"", "1G") + &node("cpus = \"2-3\"", "1G") + &node("", "512M")),
    )
    .expect("good nodes");
    assert_eq!(
        good.host.nodes[2].latency_ns, 400,
        "a node without cores is far"
    );
    let twice = with_nodes(&(node("cpus = \"0-2\"", "1G") + &node("cpus = \"2-3\"", "1G")));
    assert!(
        twice
            .expect_err("refused")
            .contains("cores 2 are on two nodes")
    );
    let partly = with_nodes(&node("cpus = \"0-2\"", "1G"));
    assert!(
        partly
            .expect_err("refused")
            .contains("the nodes hold cores 0-2 of 0-3")
    );
}

#[test]
fn what_only_a_world_can_know_is_asked_of_it() {
    let with = |host: &str, rest: &str| {
        let text = GOOD.replace("pnic_queues = 2", &format!("pnic_queues = 2\n{host}"));
        parse(&format!("{text}[[expect]]\n{rest}"))
    };
    let good = "figure = \"core_seconds\"\npolicy = \"ours\"\nat_most = 1.0\n";
    let part = with("part = \"z80\"", good).expect("a good scenario");
    assert!((part.host.instruction_ns - 250.0).abs() < 1e-9);
    assert_eq!(part.expectations[0].at_most, Some(1.0));

    let crowded = with("part = \"z80\"\ncache_group_cores = 4", good).expect_err("refused");
    assert_eq!(
        crowded,
        "s.toml:9: part = \"z80\": no z80 shares a cache with three others; or leave `part` out, and every access costs nothing"
    );
    let counted = with("", &good.replace("core_seconds", "joy")).expect_err("refused");
    assert!(
        counted.starts_with("s.toml:30: there is no figure `joy`; write one of core_seconds"),
        "{counted}"
    );
    let alone = with("", &format!("{good}same_slo = true\n")).expect_err("refused");
    assert_eq!(
        alone,
        "s.toml:30: same_slo without another policy; write of = \"POLICY\", or leave same_slo out"
    );
}

#[test]
fn a_policys_scheduler_is_a_programs_name_and_the_only_one() {
    let with = |scheduler: &str| format!("name = \"vanilla\"\nhost_scheduler = {scheduler}");
    let good = GOOD.replacen("name = \"vanilla\"", &with("\"scx_bpfland@1.1.4\""), 1);
    let scenario = parse(&good).expect("a good scenario");
    let policy = &scenario.policies[0];
    assert_eq!(policy.scheduler().as_deref(), Some("scx_bpfland@1.1.4"));
    assert_eq!(scenario.policies[1].scheduler(), None);
    let written = parse(&scenario.to_toml()).expect("what is written is read");
    assert_eq!(written, scenario);
    for name in [
        "",
        "scx_rusty",
        "../x@1.1.4",
        "-x@1.1.4",
        "a b@1.1.4",
        "a@1.1",
        "a@1.1.-4",
        "a@1.1.4.5",
    ] {
        let said = refusal("name = \"vanilla\"", &with(&format!("\"{name}\"")));
        let wanted = format!("s.toml:25: `{name}` is no crate and version; write it as cargo does");
        assert!(said.contains(&wanted), "{said}");
    }
    let both = "host_scheduler = \"scx_bpfland@1.1.4\"\n[policy.steward]\nboost.mode = \"io\"";
    let said = refusal("[policy.steward]", both);
    let wanted = "`scx_bpfland@1.1.4` would be there beside the steward's own scheduler, and a kernel has one at a time; leave out";
    assert!(said.contains(wanted), "{said}");
}
