//! What only a simulator has, and how each mistake in it is refused.

use std::path::Path;

use ostler_model::{CpuSet, Nanos};

use super::tests::{GOOD, parse, refusal};
use crate::testing::Simulator;
use crate::{
    Barrier, PageTiering, Program, Scenario, Time, TimedFault, TimedKind, Vms, Wait, Weights,
};

/// A world that only a simulator has, with one of everything.
const SIMULATED: &str = r#"name = "sim"
summary = "A test."
[host]
cores = 8
memory = "8G"
pnic_queues = 32
cache_group_cores = 4
[[guest]]
name = "web"
count = 3
class = "latency-critical"
vcpus = 2
memory = "256M"
workload = "nginx"
slo_p95 = "20ms"
halt_poll = "50us"
wakeups = "pload"
serve = { time = { mean = "80us" } }
heat = { repeat = "20s", phases = [{ hot = "64M" }, { at = "10s", cold = "128M" }] }
[[guest]]
name = "fw"
class = "unmanaged"
vcpus = 2
memory = "256M"
workload = "forward"
forward = { to = "fw2", work = "1us" }
[[guest]]
name = "fw2"
class = "unmanaged"
vcpus = 2
memory = "256M"
workload = "forward"
[[guest]]
name = "par"
class = "best-effort"
vcpus = 4
memory = "256M"
workload = "barrier"
barrier = { compute = "2ms", wait = "50us" }
[[load]]
guest = "fw"
arrivals = "even"
steps = [{ rate = 100, seconds = 2 }]
[[load]]
guest = "web"
background = true
steps = [{ rate = 100, seconds = 2 }]
[[fault]]
kind = "lost-interrupts"
guest = "web-2"
share = 0.5
at = "1s"
"#;

/// Changes a good scenario, one thing at a time, and says what must be said of it.
fn each_is_refused(cases: &[(&str, &str, &str)]) {
    for (from, to, wanted) in cases {
        let said = simulated_refusal(from, to);
        assert!(
            said.contains(wanted),
            "`{to}` was refused with:\n{said}\nbut should be with:\n{wanted}"
        );
    }
}

/// Changes one line of the simulated world and returns the refusal.
fn simulated_refusal(from: &str, to: &str) -> String {
    assert!(
        SIMULATED.contains(from),
        "the good scenario has no `{from}`"
    );
    simulated(&SIMULATED.replacen(from, to, 1)).expect_err("this must be refused")
}

fn simulated(text: &str) -> Result<Scenario, String> {
    Scenario::parse(text, Path::new("s.toml"), &Simulator).map_err(|e| e.to_string())
}

#[test]
fn a_simulated_world_is_taken() {
    let scenario = simulated(SIMULATED).expect("a good scenario");
    assert_eq!(scenario.host.under_test, CpuSet::range(0, 8));
    let web = &scenario.guests[0];
    assert_eq!(web.names().collect::<Vec<_>>(), ["web-1", "web-2", "web-3"]);
    assert_eq!(scenario.guests[1].names().collect::<Vec<_>>(), ["fw"]);
    assert_eq!(scenario.guests[1].sends_to(), Some("fw2"));
    assert_eq!(web.heat.as_ref().expect("heat").phases[1].cold_mib, 128);
    let barrier = Barrier {
        threads: 4,
        compute: Time::Fixed(Nanos::from_millis(2)),
        wait: Wait::SpinFor(Nanos::from_micros(50)),
    };
    assert_eq!(
        scenario.guests[3].program,
        Some(Program::Barrier(barrier)),
        "as many threads as vCPUs"
    );
    let own = "cpus = [\"0-1\", \"2-3\", \"4-5\"]\nmemory_waits = 0.25";
    let stays = simulated(&SIMULATED.replacen("halt_poll = \"50us\"", own, 1)).expect("a good one");
    assert_eq!(stays.guests[0].cpus[2], CpuSet::range(4, 6));
    assert!((stays.guests[0].memory_waits - 0.25).abs() < f64::EPSILON);
    let lost = TimedFault {
        at: Nanos::from_secs(1),
        lasts: None,
        kind: TimedKind::LostInterrupts {
            guest: Some("web-2".to_owned()),
            share: 0.5,
        },
    };
    assert_eq!(scenario.timed_faults, [lost]);
    assert!(scenario.loads[1].background && scenario.faults.is_empty());
}

#[test]
fn the_lab_refuses_what_only_a_simulator_has() {
    let cases = [
        ("cores = 4", "cores = 300", "an emulated host has 2 to 255"),
        (
            "vcpus = 2",
            "vcpus = 2\ncount = 3",
            "s.toml:13: a guest many times over can only be simulated; leave it out, or run the scenario by `ostler sim`",
        ),
        (
            "slo_p95 = \"20ms\"",
            "slo_p95 = \"20ms\"\nserve = { time = \"1us\" }",
            "s.toml:17: the time that requests take can only",
        ),
        (
            "slo_p95 = \"20ms\"",
            "slo_p95 = \"20ms\"\nheat = { phases = [{ hot = \"1M\" }] }",
            "s.toml:17: the heat of memory can only",
        ),
        (
            "slo_p95 = \"20ms\"",
            "slo_p95 = \"20ms\"\nhalt_poll = \"1us\"",
            "s.toml:17: how long idle vCPUs spin can only",
        ),
        (
            "slo_p95 = \"20ms\"",
            "slo_p95 = \"20ms\"\nwakeups = \"pvm\"",
            "s.toml:17: how a guest's kernel chooses vCPUs can only",
        ),
        (
            "slo_p95 = \"20ms\"",
            "slo_p95 = \"20ms\"\ncpus = [\"0\"]",
            "s.toml:17: the cores that a guest stays on can only",
        ),
        (
            "slo_p95 = \"20ms\"",
            "slo_p95 = \"20ms\"\nmemory_waits = 0.5",
            "s.toml:17: how long vCPUs wait for memory can only",
        ),
        (
            "workload = \"memcached\"",
            "workload = \"lock\"",
            "s.toml:15: `lock` can only",
        ),
        (
            "guest = \"lc\"",
            "guest = \"lc\"\nbackground = true",
            "s.toml:19: a load in the background of others can only",
        ),
        (
            "guest = \"lc\"",
            "guest = \"lc\"\npackets = 2",
            "s.toml:19: requests of several packets can only",
        ),
        (
            "guest = \"lc\"",
            "guest = \"lc\"\narrivals = \"etc\"",
            "s.toml:19: arrivals other than Poisson's can only",
        ),
        (
            "pnic_queues = 2",
            "pnic_queues = 2\ncache_group_cores = 2",
            "s.toml:9: `cache_group_cores` without a `part` can only",
        ),
        (
            "[[guest]]",
            "[fleet]\nhosts = 1\noversubscription = 1.0\nlasts = \"1s\"\ngenerate = 1\nslo_p95 = \"1ms\"\n[[guest]]",
            "s.toml:9: a fleet can only",
        ),
        (
            "[[policy]]",
            "[[fault]]\nkind = \"guest-dies\"\nguest = \"lc\"\nat = \"1s\"\n[[policy]]",
            "s.toml:26: a fault at a time can only",
        ),
        (
            "client = \"3\"\n",
            "",
            "s.toml:4: the host has no `client`; add cores to it, like client = \"0-3\"",
        ),
    ];
    for (from, to, wanted) in cases {
        let said = refusal(from, to);
        assert!(
            said.contains(wanted),
            "`{to}` was refused with:\n{said}\nbut should be with:\n{wanted}"
        );
        // A simulator has no quarrel with any of it, but for a lock that requests are asked of, and a guest beside a fleet.
        if !to.contains("fleet") && !to.contains("lock") {
            simulated(&GOOD.replacen(from, to, 1)).unwrap_or_else(|e| panic!("{e}"));
        }
    }
}

#[test]
fn each_mistake_in_a_simulated_guest_is_refused_with_its_line_and_the_remedy() {
    let cases = [
        (
            "cores = 8",
            "cores = 2000",
            "s.toml:4: 1 sockets of 2000 cores of 1 threads make 2000 CPUs; a simulated host has 2 to 1024",
        ),
        (
            "cores = 8",
            "sockets = 4294967295\nthreads = 4294967295\ncores = 4294967295",
            "s.toml:6: 4294967295 sockets",
        ),
        (
            "cache_group_cores = 4",
            "cache_group_cores = 9",
            "s.toml:7: cache_group_cores = 9; write 1 to 8",
        ),
        (
            "cache_group_cores = 4",
            "client = \"0-7\"",
            "s.toml:7: all cores are the client's; leave at least one",
        ),
        (
            "count = 3",
            "count = 0",
            "s.toml:10: count = 0; write 1 to 10000",
        ),
        (
            "name = \"fw\"",
            "name = \"web-2\"",
            "s.toml:21: two guests are named `web-2`; give each its own name",
        ),
        (
            "halt_poll = \"50us\"",
            "halt_poll = \"50\"",
            "s.toml:16: `50` is no time; write a whole number of ns, us, ms, s, min or h",
        ),
        ("wakeups = \"pload\"", "wakeups = \"fast\"", "line 17"),
        (
            "{ mean = \"80us\" }",
            "{ mode = \"80us\" }",
            "s.toml:18: `{ mode = \"80us\" }` says no times; write one time, like \"50us\", or { mean = \"50us\" }",
        ),
        ("{ mean = \"80us\" }", "80", "s.toml:18: `80` is no time"),
        (
            "{ mean = \"80us\" }",
            "{ median = \"80us\", sigma = 11 }",
            "s.toml:18: `{ median = \"80us\", sigma = 11 }` says no times",
        ),
        (
            "{ mean = \"80us\" }",
            "{ usual = \"1us\", rare = \"2us\", share = 2 }",
            "(sigma 0 to 10)",
        ),
        ("serve = {", "files = {", "line 18"),
        (
            "at = \"10s\", cold",
            "cold",
            "s.toml:19: a phase that begins at 0s, and one before it at 0 ns; list phases by rising `at`",
        ),
        (
            "[{ hot",
            "[{ at = \"1s\", hot",
            "s.toml:19: the first phase begins at 1s; it begins with the cell: leave its `at` out",
        ),
        (
            "repeat = \"20s\"",
            "repeat = \"10s\"",
            "s.toml:19: repeat = \"10s\"; it begins anew after the last phase: write more than its `at`",
        ),
        (
            "cold = \"128M\"",
            "cold = \"128M\", hot = \"129M\"",
            "s.toml:19: a phase uses 257 MiB of a memory of 256; hot, warm and cold together",
        ),
        (
            "[{ hot = \"64M\" }, { at = \"10s\", cold = \"128M\" }]",
            "[]",
            "s.toml:19: 0 phases; write 1 to 10000",
        ),
    ];
    each_is_refused(&cases);
}

#[test]
fn each_mistake_in_how_a_simulated_guest_uses_cores_and_memory_is_refused_with_its_line_and_the_remedy()
 {
    let cases = [
        (
            "halt_poll = \"50us\"",
            "cpus = [\"0-1\", \"4-5\"]",
            "s.toml:16: 2 sets of cores for 3 guests; write one for each, like [\"0-1\", \"2-3\"]",
        ),
        (
            "halt_poll = \"50us\"",
            "cpus = [\"0-1\", \"7-8\", \"4-5\"]",
            "s.toml:16: `7-8` isn't within the cores under test, 0-7; write some of these for each guest",
        ),
        (
            "workload = \"barrier\"",
            "cpus = [\"0-3\"]\nworkload = \"barrier\"",
            "s.toml:38: cores for a guest that isn't latency-critical, which a steward has where there is room; take `cpus` out, or change the class",
        ),
        (
            "arrivals = \"even\"",
            "packets = 65",
            "s.toml:42: packets = 65; write 1 to 64",
        ),
        (
            "halt_poll = \"50us\"",
            "memory_waits = 0.0",
            "s.toml:16: memory_waits = 0; write above 0 to 1: it is a share",
        ),
        (
            "repeat = \"20s\"",
            "repeat = \"20s\", mpki = -1.0",
            "s.toml:19: mpki = -1; write 0 to 500 misses for each thousand instructions",
        ),
        (
            "repeat = \"20s\"",
            "repeat = \"20s\", mpki = nan",
            "s.toml:19: mpki = NaN; write 0 to 500",
        ),
    ];
    each_is_refused(&cases);
}

#[test]
fn each_mistake_in_chains_and_faults_is_refused_with_its_line_and_the_remedy() {
    let cases = [
        (
            "to = \"fw2\"",
            "to = \"fw3\"",
            "s.toml:26: no guest is named `fw3`; there are: web, fw, fw2, par",
        ),
        (
            "to = \"fw2\"",
            "to = \"fw\"",
            "s.toml:26: packets that pass more than 8 guests, or run in a circle; shorten the chain",
        ),
        (
            "to = \"fw2\"",
            "to = \"par\"",
            "s.toml:26: packets of 1 `fw` for 1 `par`, which runs `barrier`; send them to as many guests that answer",
        ),
        (
            "to = \"fw2\"",
            "to = \"web\"",
            "s.toml:26: packets of 1 `fw` for 3 `web`",
        ),
        ("barrier = {", "lock = {", "line 39"),
        (
            "workload = \"barrier\"",
            "workload = \"spin\"",
            "s.toml:39: `barrier` for a guest whose workload is `spin`; remove it, or change the workload",
        ),
        (
            "wait = \"50us\"",
            "wait = \"never\"",
            "s.toml:39: wait = \"never\"; write \"block\", \"spin\", or how long to spin",
        ),
        (
            "wait = \"50us\"",
            "threads = 0",
            "s.toml:39: threads = 0; write 1 to 4096",
        ),
        (
            "kind = \"lost-interrupts\"",
            "kind = \"kill\"",
            "s.toml:49: there is no fault `kill` that happens at a time; leave `at` out, or write one of lost-interrupts",
        ),
        (
            "kind = \"lost-interrupts\"",
            "kind = \"agent-lies\"",
            "s.toml:51: `share` of `agent-lies`; remove it",
        ),
        (
            "guest = \"web-2\"",
            "guest = \"web-4\"",
            "s.toml:50: no guest is named `web-4`; there are: web, fw, fw2, par; of several alike",
        ),
        (
            "share = 0.5",
            "share = 0.0",
            "s.toml:51: share = 0; write above 0 to 1",
        ),
        (
            "share = 0.5",
            "times = 2",
            "s.toml:49: `lost-interrupts` at a time has neither times, rate, programs nor steward",
        ),
        (
            "at = \"1s\"",
            "rate = 0",
            "s.toml:49: `lost-interrupts` without a time; add at = \"10s\"",
        ),
        (
            "at = \"1s\"",
            "at = \"1s\"\nlasts = \"0s\"",
            "s.toml:53: `lost-interrupts` that lasts 0s; leave `lasts` out",
        ),
        (
            "at = \"1s\"",
            "at = \"1s\"\nhost = 0",
            "s.toml:53: `host` of `lost-interrupts`; remove it",
        ),
        (
            "guest = \"web-2\"\nshare = 0.5\nat = \"1s\"",
            "at = \"1s\"\n[[fault]]\nkind = \"guest-dies\"\nat = \"1s\"",
            "s.toml:52: `guest-dies`, and to nobody; add guest = \"NAME\"",
        ),
        (
            "kind = \"lost-interrupts\"\nguest = \"web-2\"\nshare = 0.5",
            "kind = \"host-fails\"",
            "s.toml:49: a host that fails, and no fleet that could go on; add a [fleet], or have a guest die",
        ),
    ];
    each_is_refused(&cases);
}

/// A fleet with one line changed.
fn fleet(from: &str, to: &str) -> Result<Scenario, String> {
    let good = "name = \"f\"\nsummary = \"\"\n[host]\ncores = 8\nmemory = \"8G\"\npnic_queues = 1\n[fleet]\nhosts = 4\noversubscription = 3.0\nslo_p95 = \"20ms\"\n\
        trace = \"vms.csv\"\nfrom = \"1h\"\nlasts = \"30min\"\n";
    assert!(good.contains(from));
    simulated(&good.replacen(from, to, 1))
}

#[test]
fn mistakes_in_a_fleet_are_refused() {
    let good = fleet("hosts = 4", "hosts = 4").expect("a good fleet");
    let vms = Vms::Trace {
        table: "vms.csv".to_owned(),
        readings: Vec::new(),
        one_of: 1,
        from: Nanos::from_secs(3600),
        lasts: Nanos::from_secs(1800),
    };
    assert_eq!(good.fleet.expect("a fleet").vms, vms);
    let cases = [
        (
            "hosts = 4",
            "hosts = 0",
            "s.toml:8: hosts = 0; write 1 to 100000",
        ),
        (
            "3.0",
            "0.0",
            "s.toml:9: oversubscription = 0; write 0.1 to 100 vCPUs to a core",
        ),
        (
            "trace = \"vms.csv\"\n",
            "",
            "s.toml:7: a fleet without VMs; add trace = \"FILE\"",
        ),
        (
            "trace = \"vms.csv\"",
            "trace = \"vms.csv\"\ngenerate = 5",
            "s.toml:11: VMs from a trace, and generated ones; keep `trace` or `generate`",
        ),
        (
            "trace = \"vms.csv\"",
            "generate = 5",
            "s.toml:12: `readings`, `one_of` and `from` are of a trace, and VMs are generated",
        ),
        (
            "trace = \"vms.csv\"",
            "trace = \"\"",
            "s.toml:11: a path of nothing; name the file",
        ),
        (
            "30min",
            "0s",
            "s.toml:13: lasts = \"0s\"; write for how long VMs are watched",
        ),
        ("30min", "9000000h", "s.toml:13: `9000000h` is no time"),
        (
            "[fleet]",
            "[[load]]\nguest = \"a\"\nsteps = []\n[fleet]",
            "s.toml:8: a load beside a fleet, whose VMs bring their own; remove the [[load]] or the [fleet]",
        ),
        (
            "[fleet]",
            "[[guest]]\nname = \"a\"\nclass = \"unmanaged\"\nvcpus = 1\nmemory = \"1G\"\nworkload = \"idle\"\n[fleet]",
            "s.toml:8: a guest beside a fleet, whose VMs are the guests; remove the [[guest]] or the [fleet]",
        ),
        (
            "lasts = \"30min\"",
            "lasts = \"30min\"\n[[fault]]\nkind = \"host-fails\"\nat = \"1s\"",
            "s.toml:15: a host fails, but which?; add host = 0 to 3",
        ),
        (
            "lasts = \"30min\"",
            "lasts = \"30min\"\n[[fault]]\nkind = \"host-fails\"\nat = \"1s\"\nhost = 4",
            "s.toml:17: host = 4; write 0 to 3",
        ),
    ];
    for (from, to, wanted) in cases {
        let said = fleet(from, to).expect_err("this must be refused");
        assert!(
            said.contains(wanted),
            "`{to}` was refused with:\n{said}\nbut should be with:\n{wanted}"
        );
    }
}

const README: &str = include_str!("../../../../scenarios/README.md");

#[test]
fn the_simulated_examples_in_the_readme_are_good() {
    let examples: Vec<_> = README.split("```toml\n").skip(2).collect();
    assert_eq!(examples.len(), 2);
    for example in examples {
        let (example, _) = example.split_once("```").expect("its end");
        let scenario = simulated(example).unwrap_or_else(|e| panic!("{e}"));
        assert!(parse(example).is_err(), "the lab refuses {}", scenario.name);
    }
}

#[test]
fn policies_with_a_scheduler_of_others_are_left_out_of_a_simulated_world() {
    let with = |scheduler: &str| {
        let policy =
            format!("[[policy]]\nname = \"others\"\n{scheduler}[[policy]]\nname = \"own\"\n");
        simulated(&format!("{SIMULATED}{policy}"))
    };
    let names = |scenario: &Scenario| -> Vec<String> {
        scenario.policies.iter().map(|p| p.name.clone()).collect()
    };
    let scenario = with("host_scheduler = \"scx_bpfland@1.1.4\"\n").expect("a good scenario");
    assert_eq!(names(&scenario), ["own"]);
    assert_eq!(scenario.left_out.len(), 1);
    let told = scenario.left_out[0].host_scheduler.as_ref();
    assert_eq!(
        told.map(ToString::to_string).as_deref(),
        Some("scx_bpfland@1.1.4")
    );
    // It is said again where the scenario is kept, and nothing is expected of it.
    let expects = |policy: &str, of: &str| {
        format!("[[expect]]\nfigure = \"core_seconds\"\npolicy = \"{policy}\"\n{of}at_most = 1\n")
    };
    let expected = [
        expects("others", ""),
        expects("own", ""),
        expects("own", "of = \"others\"\n"),
    ];
    let expecting = with(&format!(
        "host_scheduler = \"scx_bpfland@1.1.4\"\n{}",
        expected.concat()
    ));
    let expecting = expecting.expect("a good scenario");
    let of_whom: Vec<_> = expecting
        .expectations
        .iter()
        .map(|e| (e.policy.as_str(), e.of.as_deref()))
        .collect();
    assert_eq!(of_whom, [("own", None)]);
    assert_eq!(
        simulated(&expecting.to_toml()).expect("its text"),
        expecting
    );
    let whole = with("").expect("a good scenario");
    assert_eq!(names(&whole), ["others", "own"]);
    assert_eq!(whole.left_out, []);
    let said = with("host_scheduler = \"scx_bpfland\"\n").expect_err("it is no version");
    assert!(said.contains("is no crate and version"), "{said}");
}

#[test]
fn what_cgroups_weigh_is_simulated_only() {
    let weights = |policy: &str| {
        let told = simulated(&format!("{SIMULATED}[[policy]]\nname = \"w\"\n{policy}"))?;
        assert_eq!(simulated(&told.to_toml()).expect("its text"), told);
        Ok::<_, String>(told.policies[0].weights)
    };
    assert_eq!(weights(""), Ok(Weights::Equal));
    assert_eq!(weights("weights = \"equal\""), Ok(Weights::Equal));
    assert_eq!(weights("weights = \"vcpus\""), Ok(Weights::Vcpus));
    let said = weights("weights = \"heavy\"").expect_err("no such weights");
    assert!(said.contains("heavy") && said.contains("vcpus"), "{said}");
    let lab = |weights: &str| {
        parse(&format!(
            "{GOOD}[[policy]]\nname = \"w\"\nweights = \"{weights}\"\n"
        ))
    };
    assert!(lab("equal").is_ok());
    let said = lab("vcpus").expect_err("the lab's are the usual");
    assert!(said.contains("simulated only"), "{said}");
    // As the kernel has it: 1 to 10,000.
    let of_vcpus = [1, 16, 100, 1024].map(|vcpus| Weights::Vcpus.of(vcpus));
    assert_eq!(of_vcpus, [100, 1600, 10_000, 10_000]);
}

#[test]
fn mistakes_in_how_a_kernel_moves_pages_are_refused() {
    let far = "[[host.node]]\nmemory = \"8G\"\ncpus = \"0-7\"\n[[host.node]]\nmemory = \"8G\"\n";
    let with = |node: &str, policy: &str| {
        let text = SIMULATED.replace(
            "memory = \"8G\"\npnic_queues = 32\ncache_group_cores = 4\n",
            &format!("pnic_queues = 32\ncache_group_cores = 4\n{node}"),
        );
        simulated(&format!("{text}[[policy]]\nname = \"pages\"\n{policy}"))
    };
    let pages = |policy: &str| with(far, policy).expect("a good scenario").policies[0].pages;
    let usual = PageTiering::default();
    assert_eq!(pages(""), None);
    assert_eq!(pages("pages = {}"), Some(usual));
    let told = with(
        far,
        "pages = { demote = 0.1, promote = 0.05, rate = \"256M\" }",
    );
    let told = told.expect("a good scenario");
    assert_eq!(
        told.policies[0].pages,
        Some(PageTiering {
            demote: 0.1,
            promote: 0.05,
            rate: ostler_model::Bytes(256 << 20),
        })
    );
    assert_eq!(simulated(&told.to_toml()).expect("its text"), told);
    let near = "[[host.node]]\nmemory = \"8G\"\ncpus = \"0-7\"\n";
    for (node, policy, why) in [
        (near, "pages = {}", "the host has none"),
        (far, "pages = { demote = 2.0 }", "demote"),
        (far, "pages = { promote = 0.5 }", "nothing would come near"),
        (far, "pages = { rate = \"fast\" }", "fast"),
        (
            far,
            "pages = {}\n[policy.steward.tier]\nenabled = true",
            "`[tier]` moves",
        ),
    ] {
        let said = with(node, policy).expect_err("a mistake");
        assert!(said.contains(why), "{said}");
    }
    let lab = format!("{GOOD}[[policy]]\nname = \"pages\"\npages = {{}}\n");
    let said = parse(&lab).expect_err("the lab's hosts do as their kernels do");
    assert!(said.contains("simulated only"), "{said}");
}
