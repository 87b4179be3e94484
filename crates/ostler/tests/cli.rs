//! The program itself, as its users meet it: exit codes, what it prints, and a steward that observes this very machine.
//!
//! Nothing here writes to the machine: the steward observes, and keeps its files in a temporary folder.

mod place;

use std::process::{Command, Stdio};

use place::{Place, json, ostler, request, text};
use rustix::process::Signal;
use serde_json::Value;

fn generation(status: &Value) -> u64 {
    status["generation"].as_u64().unwrap_or(0)
}

fn none() -> Value {
    Value::Array(Vec::new())
}

#[test]
fn the_top_level_help() {
    insta::assert_snapshot!(text(&ostler(&["--help"]).stdout));
}

#[test]
fn every_verb_explains_itself_with_examples() {
    for verb in [
        "run",
        "plan",
        "explain",
        "status",
        "top",
        "undo",
        "check-config",
        "replay",
        "calibrate",
        "guest",
        "lab",
    ] {
        let output = ostler(&[verb, "--help"]);
        let help = text(&output.stdout);
        assert!(output.status.success(), "{verb}");
        assert!(
            help.contains("Examples:"),
            "{verb} has no examples:\n{help}"
        );
        if verb != "lab" {
            assert!(
                help.contains("Exit codes:"),
                "{verb} has no exit codes:\n{help}"
            );
        }
    }
}

#[test]
fn a_wrong_option_is_wrong_usage() {
    assert_eq!(ostler(&["run", "--atc"]).status.code(), Some(2));
}

#[test]
fn a_configuration_is_refused_with_every_mistake_and_its_remedy() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("ostler.toml");
    std::fs::write(
        &file,
        "[steward]\nperoid = \"100ms\"\nmode = \"atc\"\n\n[cores]\nmanaged = \"0-3\"\nreserved = \"3\"\n\n\
         [partition]\nmargin = 0.5\n\n[[guest]]\nname = \"web\"\nclass = \"latency-critical\"\nslo = \"0ms\"\n",
    )
    .expect("a file");
    let output = ostler(&["check-config", &file.display().to_string()]);
    assert_eq!(output.status.code(), Some(4));
    let shown = text(&output.stderr).replace(&file.display().to_string(), "ostler.toml");
    insta::assert_snapshot!(shown);

    let output = ostler(&["check-config", "--json", &file.display().to_string()]);
    assert_eq!(output.status.code(), Some(4));
    let lines: Vec<u64> = json(&output)["errors"]
        .as_array()
        .expect("errors")
        .iter()
        .filter_map(|error| error["line"].as_u64())
        .collect();
    assert_eq!(lines, [2, 3, 7, 10, 15]);
}

#[test]
fn the_example_configuration_is_accepted_and_spelt_out() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/ostler.toml");
    let output = ostler(&["check-config", "--print", example]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    insta::assert_snapshot!(text(&output.stdout));
    let missing = ostler(&["check-config", "/nonexistent/ostler.toml"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(text(&missing.stderr).contains("/nonexistent/ostler.toml"));
}

#[test]
fn a_plan_divides_this_machine_and_writes_nothing() {
    let place = Place::new("");
    let config = place.shown("ostler.toml");
    let output = ostler(&[
        "plan",
        "--json",
        "--settle-ms",
        "0",
        "--interval-ms",
        "50",
        "--config",
        &config,
    ]);
    let plan = json(&output);
    assert!(output.status.success());
    assert_eq!(plan["violations"], none());
    assert!(!plan["reasons"].as_array().expect("reasons").is_empty());
    assert!(plan["snapshot"]["interval"].as_u64().expect("an interval") >= 50_000_000);
    assert_eq!(place.files(), ["ostler.toml"]);
}

#[test]
fn without_a_steward_its_verbs_say_so() {
    let place = Place::new("");
    let config = place.shown("ostler.toml");
    for verb in [&["status"][..], &["top", "--count", "1"], &["explain"]] {
        let mut args = verb.to_vec();
        args.extend(["--config", &config]);
        let output = ostler(&args);
        assert_eq!(
            output.status.code(),
            Some(3),
            "{verb:?}: {}",
            text(&output.stderr)
        );
        assert!(text(&output.stderr).contains("ostler run"), "{verb:?}");
    }
    // Where nothing was written, there is nothing to take back.
    let undo = ostler(&["undo", "--json", "--config", &config]);
    assert!(undo.status.success());
    assert_eq!(json(&undo)["put_back"], 0);
}

#[test]
fn a_steward_observes_and_answers() {
    let place = Place::new("[steward]\nperiod = \"20ms\"\n");
    let config = place.shown("ostler.toml");
    let mut steward = place.start(&[]);
    let status = steward.until("its fifth plan", |status| generation(status) >= 5);
    assert_eq!(status["mode"], "observe");
    assert_eq!(status["period"], 20_000_000);
    assert_eq!(status["violations"], none());

    let filled = |path: &str, key: &str| {
        let body = place.get_json(path);
        let value = body.pointer(key).and_then(Value::as_array).map(Vec::len);
        assert!(value > Some(0), "{path} has no {key}: {body}");
    };
    let plan = place.get_json("/v1/plan");
    assert_eq!(plan["acting"], false);
    assert!(plan["plan"]["generation"].as_u64() >= Some(5));
    filled("/v1/snapshot", "/cpus");
    filled("/v1/facts", "/topology/cpus");
    filled("/v1/explain", "/reasons");
    assert_eq!(place.get_json("/v1/intent")["period"], 20_000_000);
    let refused = |path| place.get(path).map(|(status, _)| status);
    assert_eq!(refused("/v1/nothing"), Some(404));
    assert_eq!(refused("/v1/explain?at=soon"), Some(400));
    assert_eq!(refused("/v1/explain?at=2001-01-01T00:00:00Z"), Some(404));

    let (_, metrics) = place.get("/metrics").expect("metrics");
    for series in [
        "ostler_decisions_total ",
        "ostler_cores{group=\"vcpu\"} ",
        "ostler_plan_generation ",
        "ostler_phase_seconds_bucket{le=\"+Inf\",phase=\"decide\"} ",
        "ostler_period_lateness_seconds_count ",
        "ostler_cpu_busy_seconds_total{cpu=\"0\"} ",
        "ostler_acting 0",
        "# EOF",
    ] {
        assert!(metrics.contains(series), "no {series} in\n{metrics}");
    }

    let shown = ostler(&["status", "--config", &config]);
    assert!(shown.status.success());
    assert!(text(&shown.stdout).contains("observing (nothing is written)"));
    let top = ostler(&["top", "--count", "1", "--config", &config]);
    assert!(top.status.success());
    assert!(text(&top.stdout).contains("WHY"));

    let second = ostler(&["run", "--once", "--config", &config]);
    assert_eq!(second.status.code(), Some(1));
    let refusal = text(&second.stderr);
    assert!(
        refusal.contains(&format!("process {}", steward.id())),
        "{refusal}"
    );

    steward.end();
    assert!(!place.path("api.sock").exists(), "the socket stays behind");
    assert!(
        !place.path("journal.db").exists(),
        "an observing steward began a journal"
    );
}

#[test]
fn a_steward_leaves_a_record_that_explains_and_replays() {
    let place = Place::new("[steward]\nperiod = \"20ms\"\n");
    let config = place.shown("ostler.toml");
    let ran = ostler(&["run", "--periods", "9", "--config", &config]);
    assert!(ran.status.success(), "{}", text(&ran.stderr));

    let output = ostler(&["replay", "--json", &place.shown("record.db")]);
    assert!(output.status.success(), "{}", text(&output.stdout));
    let replay = json(&output);
    assert_eq!(
        (&replay["replayed"], &replay["skipped"]),
        (&9.into(), &0.into())
    );
    assert_eq!(replay["difference"], Value::Null);

    let explained = ostler(&["explain", "--json", "--config", &config]);
    assert!(explained.status.success(), "{}", text(&explained.stderr));
    assert_eq!(json(&explained)["plan"]["generation"], 9);
    let changes = ostler(&["explain", "--since", "-1h", "--config", &config]);
    let changes = text(&changes.stdout);
    assert!(changes.starts_with("plan 1 at "), "{changes}");
    let early = ostler(&[
        "explain",
        "--at",
        "2001-01-01T00:00:00Z",
        "--config",
        &config,
    ]);
    assert_eq!(early.status.code(), Some(3));
    assert!(
        text(&early.stderr).contains("the record covers"),
        "{}",
        text(&early.stderr)
    );
    // Nobody has seen packets here.
    let nothing = ostler(&["calibrate", &place.shown("record.db")]);
    assert_eq!(nothing.status.code(), Some(1));
    let why = text(&nothing.stderr);
    assert!(
        why.contains("9 periods tell too little: of softirqs 0 samples"),
        "{why}"
    );
    for verb in ["replay", "calibrate"] {
        let no_record = ostler(&[verb, &place.shown("ostler.toml")]);
        assert_eq!(no_record.status.code(), Some(1));
        assert!(
            text(&no_record.stderr).contains("not a record"),
            "{}",
            text(&no_record.stderr)
        );
    }
}

#[test]
fn a_bad_configuration_is_refused_while_running_and_the_old_one_stays() {
    let place = Place::new("[steward]\nperiod = \"20ms\"\n");
    let mut steward = place.start(&[]);
    steward.until("a plan", |status| generation(status) >= 1);
    let reload = || request(&place.path("api.sock"), "POST", "/v1/reload").expect("an answer");

    place.write("[steward]\nperiod = \"20\"\n");
    let (status, body) = reload();
    assert_eq!(status, 422, "{body}");
    assert!(body.contains("has no unit"), "{body}");
    let status = steward.until("the refusal", |status| {
        !status["config"]["refused"].is_null()
    });
    assert_eq!(status["period"], 20_000_000);

    place.write("[steward]\nperiod = \"30ms\"\n[partition]\npolicy = \"resource\"\n");
    steward.signal(Signal::HUP);
    let status = steward.until("the new one", |status| status["period"] == 30_000_000);
    assert_eq!(status["policy"], "resource");
    assert!(status["config"]["refused"].is_null());
    let before = generation(&status);
    steward.until("plans by it", |status| generation(status) > before + 2);

    // What only a start can change is said to need one.
    place.write("[metrics]\nenabled = false\n");
    assert_eq!(reload().0, 200);
    let status = place.get_json("/v1/status");
    assert_eq!(status["config"]["needs_restart"][0], "[metrics]");
    let log = steward.end();
    assert!(log.contains("the old one stays in force"), "{log}");

    // The record spans three intents, and replays over all of them.
    let replay = ostler(&["replay", &place.shown("record.db")]);
    assert!(replay.status.success(), "{}", text(&replay.stdout));
}

#[test]
fn a_steward_killed_at_once_leaves_nothing_in_the_next_ones_way() {
    let place = Place::new("[steward]\nperiod = \"20ms\"\n");
    let mut first = place.start(&[]);
    first.until("a plan", |status| generation(status) >= 1);
    first.kill();
    assert!(
        place.path("api.sock").exists(),
        "a killed steward can't remove its socket"
    );
    let mut second = place.start(&[]);
    second.until("a plan", |status| generation(status) >= 1);
    second.end();
    let replay = ostler(&["replay", &place.shown("record.db")]);
    assert!(replay.status.success(), "{}", text(&replay.stdout));
}

#[test]
fn a_bad_configuration_is_refused_at_the_start() {
    let place = Place::new("[partition]\nmargin = 0\n");
    let output = ostler(&["run", "--once", "--config", &place.shown("ostler.toml")]);
    assert_eq!(output.status.code(), Some(4), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("outside 1 to 10"));
}

#[test]
fn so_many_periods_make_so_many_lines() {
    let place = Place::new("[steward]\nperiod = \"10ms\"\n");
    let config = place.shown("ostler.toml");
    let output = ostler(&["run", "--json", "--periods", "7", "--config", &config]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines: Vec<Value> = text(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let generations: Vec<u64> = lines.iter().map(generation).collect();
    assert_eq!(generations, [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(lines[0]["changed"], true);
    for line in &lines {
        assert_eq!(
            (&line["acting"], &line["violations"]),
            (&false.into(), &none())
        );
    }
}

/// A reader that has seen enough (`| head`) is no failure, whoever prints.
#[test]
fn results_that_nobody_reads_are_no_failure() {
    let smoke = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/smoke.toml");
    for args in [
        &["lab", "check", smoke][..],
        &["sim", smoke, "--json"],
        &["plan", "--json"],
    ] {
        let (reads, writes) = std::io::pipe().expect("a pipe");
        drop(reads);
        let child = Command::new(env!("CARGO_BIN_EXE_ostler"))
            .args(args)
            .stdout(writes)
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program runs");
        let output = child.wait_with_output().expect("a child");
        assert!(
            output.status.success(),
            "{args:?}: {}",
            text(&output.stderr)
        );
        // Nor is it where what is said beside them goes the same way (`2>&1 | head`).
        let (reads, writes) = std::io::pipe().expect("a pipe");
        drop(reads);
        let status = Command::new(env!("CARGO_BIN_EXE_ostler"))
            .args(args)
            .stdout(writes.try_clone().expect("a pipe"))
            .stderr(writes)
            .status()
            .expect("the program runs");
        assert!(status.success(), "{args:?}, both: {status}");
    }
}

/// Undoing nothing because of a slip in a path would look like a success.
#[test]
fn a_journal_that_is_named_and_absent_is_no_success() {
    let undo = ostler(&["undo", "--journal", "/nonexistent/journal.db"]);
    assert_eq!(undo.status.code(), Some(1));
    let said = text(&undo.stderr);
    assert!(
        said.contains("no journal /nonexistent/journal.db"),
        "{said}"
    );
}

/// What docs/sim.md has for whoever wants to know how near both worlds are: the lab's run, here a recorded one, and the same file simulated beside it.
#[test]
fn a_scenario_is_simulated_beside_what_the_lab_made_of_it() {
    let root = env!("CARGO_MANIFEST_DIR");
    let scenario = format!("{root}/../../scenarios/vspace-ramp.toml");
    let lab = format!("{root}/tests/recorded/0048-vspace-ramp");
    let folder = tempfile::tempdir().expect("a folder");
    let report = folder.path().join("both.html");
    let run = |beside: &str, more: &[&str]| {
        let policies = "nvcpu-nnq,static-4-2,vspace-e";
        let mut args = vec!["sim", &scenario, "--policy", policies, "--rounds", "1"];
        args.extend(["--beside", beside]);
        args.extend(more);
        ostler(&args)
    };
    let shown = report.display().to_string();
    let both = run(&lab, &["--json", "--report", &shown]);
    let pairs: Vec<serde_json::Value> = text(&both.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).expect("a pair"))
        .collect();
    let of = |policy: &str, figure: &str| {
        let mut all = pairs.iter();
        let found = all.find(|pair| pair["policy"] == policy && pair["figure"] == figure);
        found.unwrap_or_else(|| panic!("{figure} of {policy}: {}", text(&both.stderr)))
    };
    for policy in ["nvcpu-nnq", "static-4-2", "vspace-e"] {
        for figure in [
            "core_seconds",
            "be_core_seconds",
            "p95_us",
            "ctx_switches_per_s",
        ] {
            of(policy, figure);
        }
    }
    // The lab's as they are recorded; cores are saved in both worlds, and by splits in neither.
    let cores = of("vspace-e", "core_seconds");
    assert!((cores["one"].as_f64().expect("a figure") - 62.7).abs() < 0.1);
    assert_eq!(cores["agree"], true);
    assert!(cores["other_by_first"].as_f64().expect("a ratio") < 0.8);
    let split = of("static-4-2", "core_seconds");
    assert_eq!(
        (&split["one"], &split["agree"]),
        (&120.0.into(), &true.into())
    );
    assert_eq!(
        of("static-4-2", "p95_us")["agree"],
        true,
        "it loses in both"
    );
    let page = std::fs::read_to_string(&report).expect("a report");
    for said in ["0048-vspace-ramp beside simulated", "revision 44cb3418d852"] {
        assert!(page.contains(said), "{said}");
    }
    // What can't be read is refused before anything is run for it.
    let refused = run(&format!("{root}/tests/recorded"), &[]);
    assert_eq!(refused.status.code(), Some(1));
    let said = text(&refused.stderr);
    assert!(
        said.contains("summary.jsonl") && !said.contains("1 of 3"),
        "{said}"
    );
}

const FLEET: &str = r#"
name = "fleet"
summary = "VMs that come and go on three hosts."
[host]
cores = 4
memory = "64G"
pnic_queues = 1
instruction_ns = 0.3333
[fleet]
hosts = 3
oversubscription = 2
placement = "worst-fit"
slo_p95 = "100ms"
generate = 12
lasts = "2s"
[[policy]]
name = "vanilla"
[[policy]]
name = "boost"
[policy.steward.partition]
policy = "time-sharing"
[policy.steward.boost]
mode = "io"
[[policy]]
name = "bpfland"
host_scheduler = "scx_bpfland@1.1.4"
"#;

#[test]
fn a_fleet_that_was_cut_off_goes_on_to_the_same_bytes() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("fleet.toml"), FLEET).expect("a scenario");
    let (scenario, events) = (path("fleet.toml"), path("events.jsonl"));
    let run = |more: &[&str]| {
        let scenario = scenario.display().to_string();
        let mut args = vec!["sim", &scenario, "--oversubscription", "1,2", "--json"];
        args.extend(more);
        ostler(&args)
    };
    let shown = events.display().to_string();
    let kept = ["--audit", "--events", &shown];
    let whole = run(&kept);
    assert!(whole.status.success(), "{}", text(&whole.stderr));
    let file = std::fs::read(&events).expect("events");
    // A line that says what is run, and one for each of three hosts under two policies at two ratios.
    let ends: Vec<usize> = (1..=file.len())
        .filter(|at| file[at - 1] == b'\n')
        .collect();
    assert_eq!(ends.len(), 1 + 3 * 2 * 2);
    // Nothing but its own first line, torn in a host, and all but the last.
    for cut in [ends[0], ends[4] + 100, ends[11]] {
        std::fs::write(&events, &file[..cut]).expect("cut off");
        let again = run(&kept);
        assert_eq!(
            (again.status.code(), &again.stdout),
            (Some(0), &whole.stdout)
        );
        assert_eq!(std::fs::read(&events).expect("events"), file);
    }
    // Audits change nothing, and neither does keeping what came of hosts.
    assert_eq!(run(&[]).stdout, whole.stdout);
    // But hosts that weren't audited are no part of an audited run, and the other way round.
    let unlike = run(&["--events", &shown]);
    assert_eq!(unlike.status.code(), Some(1));
    assert!(
        text(&unlike.stderr).contains("--audit"),
        "{}",
        text(&unlike.stderr)
    );
    // A report that can't be written is told before anything is run, and leaves none.
    let nowhere = scenario.join("report.html").display().to_string();
    let refused = run(&["--report", &nowhere]);
    assert_eq!((refused.status.code(), refused.stdout.len()), (Some(1), 0));
    let said = text(&refused.stderr);
    assert!(
        said.contains(&nowhere) || said.contains("could not create"),
        "{said}"
    );
    assert!(!said.contains("sim:"), "{said}");
    // Two runs of a fleet are laid side by side.
    let [one, other] = ["one.jsonl", "other.jsonl"].map(path);
    std::fs::write(&one, &whole.stdout).expect("a run");
    std::fs::write(&other, run(&["--seed", "2"]).stdout).expect("a run");
    let paths = [&one, &other].map(|path| path.display().to_string());
    let beside = ostler(&["sim", "compare", &paths[0], &paths[1], "--json"]);
    assert!(beside.status.success(), "{}", text(&beside.stderr));
    let pairs = text(&beside.stdout);
    assert!(
        pairs.contains("a fleet at 2:1") && pairs.contains("p95_median_us"),
        "{pairs}"
    );
    // Another run isn't gone on with.
    let other = run(&["--events", &shown, "--seed", "2"]);
    assert_eq!(other.status.code(), Some(1));
    assert!(text(&other.stderr).contains("another seed"));
    let left_out = run(&["--policy", "bpfland"]);
    assert_eq!(left_out.status.code(), Some(4));
    let said = text(&left_out.stderr);
    assert!(
        said.contains("can't be simulated") && said.contains("scx_bpfland@1.1.4"),
        "{said}"
    );
}

/// An operator's own trace, as it is published but for lines' ends, with a line that is damaged, a VM twice, and times out of order.
#[test]
fn vms_that_miss_the_objective_are_named_as_their_trace_names_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let vm = |name: &str, created: u32, mean: u32| {
        format!("{name},s,d,{created},9000,100,{mean},100,Interactive,4,8\r\n")
    };
    let table = [
        vm("late/x+y==", 600, 90),
        vm("busy/a+b==", 0, 100),
        vm("calm/c+d==", 0, 5),
        vm("busy/a+b==", 0, 1),
        "calm,s,d,0\r\n".to_owned(),
    ];
    std::fs::write(path("vmtable.csv"), table.concat()).expect("a trace");
    let scenario = "name = \"own\"\nsummary = \"Of a trace.\"\n[host]\ncores = 2\nmemory = \"64G\"\npnic_queues = 1\n[fleet]\nhosts = 1\noversubscription = 4\n\
        slo_p95 = \"60ms\"\ntrace = \"vmtable.csv\"\nlasts = \"5s\"\n[[policy]]\nname = \"vanilla\"\n";
    std::fs::write(path("own.toml"), scenario).expect("a scenario");
    let (own, report) = (path("own.toml"), path("own.html"));
    let [own, report] = [own, report].map(|path| path.display().to_string());
    let run = ostler(&["sim", &own, "--json", "--report", &report]);
    let said = text(&run.stderr);
    assert!(run.status.success(), "{said}");
    assert!(
        said.contains("2 of 5 lines of vmtable.csv") && said.contains("line 4 names a VM"),
        "{said}"
    );
    let lines: Vec<Value> = text(&run.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(lines[0]["vms"], 2);
    let missed: Vec<_> = lines[1..].iter().map(|line| &line["name"]).collect();
    assert!(missed.contains(&&Value::from("busy/a+b==")), "{lines:?}");
    let page = std::fs::read_to_string(&report).expect("a report");
    assert!(page.contains("busy/a+b=="));
}

/// What `ostler sim --help` has as an example.
#[test]
fn what_simulated_stewards_decided_is_replayed_and_explained() {
    let smoke = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/smoke.toml");
    let folder = tempfile::tempdir().expect("a folder");
    let kept = folder.path().join("kept");
    let sim = || ostler(&["sim", smoke, "--records", &kept.display().to_string()]);
    let ran = sim();
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let record = |cell: u32| kept.join(format!("cell-{cell}/record.db"));
    for cell in 0..5 {
        let Ok(left) = std::fs::read_dir(kept.join(format!("cell-{cell}"))) else {
            assert!(
                cell < 2,
                "the first two have no steward, and {cell} has one"
            );
            continue;
        };
        let left: Vec<_> = left.map(|file| file.expect("a file").file_name()).collect();
        assert_eq!(left, ["record.db"], "nothing is under way any more");
        let replayed = ostler(&["replay", &record(cell).display().to_string(), "--json"]);
        assert!(replayed.status.success(), "{}", text(&replayed.stderr));
        let said: Value = serde_json::from_str(&text(&replayed.stdout)).expect("JSON");
        assert!(said["replayed"].as_u64() > Some(40), "{said}");
        assert_eq!(
            (&said["skipped"], &said["difference"]),
            (&0.into(), &Value::Null)
        );
    }
    // Times are the world's: three seconds after it began.
    let of = record(2).display().to_string();
    let explained = ostler(&["explain", "--record", &of, "--at", "@3", "--json"]);
    let said: Value = serde_json::from_str(&text(&explained.stdout)).expect("JSON");
    let at = said["time"].as_str().unwrap_or_default();
    assert!(at.starts_with("1970-01-01T00:00:0"), "{said}");
    // What is there stays, and nothing is run.
    let before = std::fs::read(&of).expect("a record");
    let again = sim();
    assert_eq!(again.status.code(), Some(1));
    let said = text(&again.stderr);
    assert!(
        said.contains("record.db is there already") && !said.contains("1 of 5"),
        "{said}"
    );
    assert_eq!(std::fs::read(&of).expect("a record"), before);
}

/// The same lines as the lab's, of the same threads as the record's.
#[test]
fn simulated_hosts_are_traced_as_the_labs_are() {
    let smoke = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/smoke.toml");
    let folder = tempfile::tempdir().expect("a folder");
    let kept = folder.path().join("kept").display().to_string();
    let sim = || {
        ostler(&[
            "sim",
            smoke,
            "--policy",
            "energy",
            "--rounds",
            "1",
            "--records",
            &kept,
            "--trace",
            &kept,
        ])
    };
    let ran = sim();
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let cell = folder.path().join("kept/cell-0");
    let left = std::fs::read_dir(&cell).expect("a folder");
    let mut left: Vec<_> = left.map(|file| file.expect("a file").file_name()).collect();
    left.sort();
    assert_eq!(left, ["record.db", "trace.txt"]);
    let trace = std::fs::read_to_string(cell.join("trace.txt")).expect("a trace");
    let lines: Vec<&str> = trace.lines().skip_while(|l| l.starts_with('#')).collect();
    assert!(lines.len() > 10_000, "{}", lines.len());
    let mut events = std::collections::BTreeMap::<&str, u32>::new();
    let mut before = 0.0;
    for line in lines {
        let (head, what) = line.split_once(": ").expect("an event");
        let (event, _) = what.split_once(": ").expect("what it is of");
        *events.entry(event).or_default() += 1;
        let mut head = head.split_whitespace().rev();
        let at: f64 = head.next().and_then(|at| at.parse().ok()).expect("a time");
        assert!(at >= before, "{line}");
        before = at;
        let flags = head.next().expect("flags");
        assert!(flags.len() == 5 && flags.is_ascii(), "{line}");
        let cpu = head.next().expect("a core");
        assert!(cpu.starts_with('[') && cpu.ends_with(']'), "{line}");
    }
    for event in [
        "sched_switch",
        "sched_waking",
        "net_dev_start_xmit",
        "kvm_msi_set_irq",
        "irq_handler_entry",
        "irq_handler_exit",
        "softirq_entry",
        "softirq_exit",
    ] {
        assert!(events.get(event) > Some(&100), "{event}: {events:?}");
    }
    // What is there stays, and nothing is run.
    std::fs::remove_file(cell.join("record.db")).expect("it was there");
    let again = sim();
    assert_eq!(again.status.code(), Some(1));
    let said = text(&again.stderr);
    assert!(said.contains("trace.txt is there already"), "{said}");
    let there = std::fs::read_to_string(cell.join("trace.txt")).expect("a trace");
    assert_eq!(there, trace);
}

/// A record or a trace that can't be written ends the run, and leaves none that isn't whole.
/// They can be read well enough: what is wrong is what they say, and where.
#[test]
fn files_that_are_no_text_are_refused_where_they_stand() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("noise.toml");
    std::fs::write(&file, b"name = \"noise\"\n\xff\xfe\x00 = 1\n").expect("written");
    let file = file.display().to_string();
    for verb in [&["sim"][..], &["machine", "run"], &["check-config"]] {
        let args: Vec<&str> = verb.iter().copied().chain([file.as_str()]).collect();
        let out = ostler(&args);
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(4), "{verb:?}: {said}");
        assert!(said.contains(&file), "{verb:?}: {said}");
        let line = ["line 2", ":2:"].iter().any(|line| said.contains(line));
        assert!(line, "{verb:?}: {said}");
        assert!(!said.contains("permissions"), "{verb:?}: {said}");
    }
}

#[test]
fn records_and_traces_that_cant_be_written_are_told() {
    let smoke = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/smoke.toml");
    let folder = tempfile::tempdir().expect("a folder");
    let kept = folder.path();
    // In place of the cell's folder.
    std::fs::write(kept.join("cell-2"), "in the way").expect("a file");
    for (flag, file) in [("--records", "record.db"), ("--trace", "trace.txt")] {
        let ran = ostler(&["sim", smoke, flag, &kept.display().to_string()]);
        assert_eq!(ran.status.code(), Some(1));
        let said = text(&ran.stderr);
        assert!(
            said.contains("could not write") && said.contains(&format!("cell-2/{file}")),
            "{said}"
        );
        let there = std::fs::read(kept.join("cell-2")).expect("a file");
        assert_eq!(there, b"in the way");
    }
}
