//! Scenarios' cells: run with their books kept twice, and told in the words of the lab.

use std::ops::ControlFlow;
use std::path::Path;

use ostler_outcome::events::{Event, Stamped};
use ostler_outcome::gather::{self, JsonLine};
use ostler_scenario::Scenario;
use ostler_sim::run::{self, Meanwhile, Run, RunError, Watch};
use ostler_sim::scenario::Simulated;
use proptest::prelude::*;

const BOOKS: Watch = Watch {
    books: true,
    periods: false,
    trace: false,
};

fn scenario(text: &str) -> Scenario {
    Scenario::parse(text, Path::new("test.toml"), &Simulated).expect("a scenario")
}

fn watched(text: &str, seed: u64) -> Run {
    Run::new(scenario(text), seed, BOOKS).expect("a run")
}

fn told(run: &Run) -> Vec<Stamped> {
    let mut events = run.begins("test", "now").to_vec();
    for cell in run.cells() {
        let ran = run.cell(&cell, &mut |_| {}).expect("a cell");
        events.extend(ran.told);
    }
    events
}

/// What was wrong in any cell.
fn problems(events: &[Stamped]) -> Vec<&String> {
    let of_cells = events.iter().filter_map(|stamped| match &stamped.event {
        Event::CellEnd { problems, .. } => Some(problems),
        _ => None,
    });
    of_cells.flatten().collect()
}

fn lines(run: &Run) -> Vec<JsonLine> {
    let events = told(run);
    assert_eq!(problems(&events), Vec::<&String>::new());
    let summaries = gather::summaries(run.scenario(), &events);
    summaries.iter().flat_map(gather::Summary::lines).collect()
}

const RAMP: &str = r#"
name = "ramp"
summary = "A memcached guest whose load goes up and down beside one that computes."
rounds = 1
settle_s = 0.5
[host]
cores = 8
memory = "3G"
under_test = "0-5"
client = "6-7"
instruction_ns = 10.0
pnic_queues = 4
[[guest]]
name = "lc"
class = "latency-critical"
vcpus = 4
queues = 4
memory = "256M"
workload = "memcached"
slo_p95 = "10ms"
[[guest]]
name = "be"
class = "best-effort"
vcpus = 4
memory = "192M"
workload = "spin"
[[load]]
guest = "lc"
connections = 16
steps = [{ rate = 400, seconds = 2 }, { rate = 1600, seconds = 2 }, { rate = 400, seconds = 2 }]
[[policy]]
name = "vanilla"
[[policy]]
name = "energy"
[policy.steward.partition]
policy = "energy"
[[policy]]
name = "resource"
[policy.steward.partition]
policy = "resource"
[[policy]]
name = "boost"
[policy.steward.partition]
policy = "time-sharing"
queues = "one"
[policy.steward.cores]
managed = "0-3"
[policy.steward.boost]
mode = "io"
"#;

/// One that computes on a core of its own isn't stopped there until the cell is over, nor are those whose neighbours float elsewhere: what they have done counts all the same.
#[test]
fn what_is_done_without_a_break_counts() {
    let text = r#"
name = "alone"
summary = "A guest that computes, and nobody else."
settle_s = 0.5
[host]
cores = 4
memory = "2G"
instruction_ns = 0.5
pnic_queues = 1
[[guest]]
name = "g"
class = "best-effort"
vcpus = 2
memory = "128M"
workload = "spin"
[[load]]
guest = "g"
steps = [{ rate = 0, seconds = 3 }]
[[policy]]
name = "vanilla"
"#;
    let events = told(&watched(text, 1));
    assert_eq!(problems(&events), Vec::<&String>::new());
    let counters = events.iter().find_map(|stamped| match &stamped.event {
        Event::CellEnd { counters, .. } => Some(counters),
        _ => None,
    });
    let guest = &counters.expect("a cell").guests[0];
    assert!((guest.cpu_seconds - 6.0).abs() < 0.06, "{guest:?}");
    // A round takes a millisecond.
    let rounds = guest.work.expect("it counts");
    assert!((rounds / 1e3 - guest.cpu_seconds).abs() < 0.06, "{guest:?}");
    let samples: Vec<f64> = events
        .iter()
        .filter_map(|stamped| match &stamped.event {
            Event::Sample { guests, .. } => guests[0].work.map(|work| work as f64),
            _ => None,
        })
        .collect();
    assert!(samples.len() > 2, "{samples:?}");
    let even = samples
        .windows(2)
        .all(|two| ((two[1] - two[0]) / 2e3 - 1.0).abs() < 0.02);
    assert!(even, "{samples:?}");
}

/// A guest of one vCPU and three of four that compute without end share four cores by what their cgroups weigh, and by vCPU under the boost; a steward that leaves
/// weights alone leaves them as they were found.
#[test]
fn guests_have_cores_by_what_their_cgroups_weigh() {
    let text = r#"
name = "weights"
summary = "A small guest beside three large ones."
settle_s = 0.5
[host]
cores = 4
memory = "2G"
instruction_ns = 0.5
pnic_queues = 1
[[guest]]
name = "small"
class = "best-effort"
vcpus = 1
memory = "128M"
workload = "spin"
[[guest]]
name = "large"
count = 3
class = "best-effort"
vcpus = 4
memory = "128M"
workload = "spin"
[[load]]
guest = "small"
steps = [{ rate = 0, seconds = 10 }]
[[policy]]
name = "as-usual"
[[policy]]
name = "by-vcpus"
weights = "vcpus"
[[policy]]
name = "steered-by-vcpus"
weights = "vcpus"
[policy.steward.partition]
policy = "time-sharing"
queues = "one"
[[policy]]
name = "boost"
[policy.steward.partition]
policy = "time-sharing"
queues = "one"
[policy.steward.boost]
mode = "io"
"#;
    let events = told(&watched(text, 1));
    assert_eq!(problems(&events), Vec::<&String>::new());
    let had = events.iter().filter_map(|stamped| match &stamped.event {
        Event::CellEnd { counters, .. } => Some(
            counters.guests[0].cpu_seconds
                / counters.guests.iter().map(|g| g.cpu_seconds).sum::<f64>(),
        ),
        _ => None,
    });
    let had: Vec<f64> = had.collect();
    let due = [0.25, 1.0 / 13.0, 1.0 / 13.0, 1.0 / 13.0];
    assert_eq!(had.len(), due.len());
    let near = had
        .iter()
        .zip(due)
        .all(|(had, due)| (had - due).abs() < 0.02);
    assert!(near, "{had:?}");
}

#[test]
fn policies_do_what_they_are_for() {
    let lines = lines(&watched(RAMP, 1));
    let of = |name: &str| {
        let line = lines.iter().find(|line| line.line.policy == name);
        line.expect("a policy")
    };
    let (vanilla, energy, resource) = (of("vanilla"), of("energy"), of("resource"));
    let less = |one: Option<f64>, other: Option<f64>, times: f64| {
        one.expect("measured") < other.expect("measured") * times
    };
    assert!(less(
        energy.line.core_seconds,
        vanilla.line.core_seconds,
        0.8
    ));
    assert!(less(
        energy.line.migrations_per_s,
        vanilla.line.migrations_per_s,
        0.5
    ));
    assert!(less(energy.line.energy_j, vanilla.line.energy_j, 1.0));
    assert!(energy.line.slo_met_share > Some(0.8), "{:?}", energy.line);
    assert!(energy.behaviour.vcpu_cores_max > energy.behaviour.vcpu_cores_min);
    assert!(energy.behaviour.tap_periods > 50);
    assert!(resource.behaviour.be_cores_s > 3.0);
    for line in [vanilla, energy] {
        let answers = line.line.ops_per_s.expect("measured");
        assert!((answers / 800.0 - 1.0).abs() < 0.1, "{answers}");
        assert!(line.work_per_s["be"] > 0.0);
    }
    let boost = of("boost");
    assert!(boost.line.irq_to_run_p99_us.is_some());
    assert!(
        boost
            .line
            .fairness_error_10s
            .is_some_and(|error| error < 0.5)
    );
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "the repository's scenarios are files"
)]
fn the_scenarios_of_the_repository_can_be_simulated() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let mut seen = 0;
    for file in std::fs::read_dir(folder)
        .expect("the folder scenarios")
        .flatten()
    {
        if file.path().extension().is_some_and(|e| e == "toml") {
            let scenario =
                ostler_sim::scenario::load(&file.path()).unwrap_or_else(|e| panic!("{e}"));
            if scenario.fleet.is_none() {
                Run::new(scenario, 1, Watch::default()).unwrap_or_else(|e| panic!("{e}"));
                seen += 1;
            }
        }
    }
    assert!(seen >= 10, "{seen}");
}

#[test]
fn the_same_seed_tells_the_same_and_another_one_something_else() {
    let events = |seed| {
        let run = watched(RAMP, seed)
            .only(&["resource".to_owned()])
            .expect("it is there");
        told(&run)[3..].to_vec()
    };
    assert_eq!(events(7), events(7));
    assert_ne!(events(7), events(8));
}

#[test]
fn cells_come_to_the_same_on_any_number_of_threads_and_in_order() {
    let run = Run::new(scenario(RAMP), 3, Watch::default()).expect("a run");
    let cells = run.cells();
    let came = |threads| {
        let mut came = Vec::new();
        run::all(&run, &cells, threads, &|_, _| {}, &mut |cell, ran| {
            came.push((cell.clone(), ran));
            ControlFlow::Continue(())
        })
        .expect("cells");
        came
    };
    let one = came(1);
    assert_eq!(
        one.iter().map(|(cell, _)| cell).collect::<Vec<_>>(),
        cells.iter().collect::<Vec<_>>()
    );
    assert_eq!(one, came(4));
    // One that panics keeps nobody waiting.
    let panicked = std::panic::catch_unwind(|| {
        let all: Vec<_> = cells.iter().cycle().take(40).cloned().collect();
        let on = |_: &_, _: Meanwhile| panic!("on purpose");
        run::all(&run, &all, 3, &on, &mut |_, _| ControlFlow::Continue(()))
    });
    assert!(panicked.is_err());
    let mut seen = 0;
    let ended = run::all(&run, &cells, 2, &|_, _| {}, &mut |_, _| {
        seen += 1;
        ControlFlow::Break(())
    });
    assert!(ended.is_ok() && seen == 1, "{seen}");
}

#[test]
fn each_period_of_a_steward_is_told_where_that_is_wanted() {
    let tells = Watch {
        periods: true,
        ..Watch::default()
    };
    let run = Run::new(scenario(RAMP), 1, tells).expect("a run");
    let silent = Run::new(scenario(RAMP), 1, Watch::default()).expect("a run");
    for cell in run.cells() {
        let mut periods = Vec::new();
        let ran = run.cell(&cell, &mut |what| {
            if let Meanwhile::Period(period) = what {
                periods.push(*period);
            }
        });
        let without = silent.cell(&cell, &mut |what| {
            assert!(matches!(what, Meanwhile::Done(_)), "{what:?}");
        });
        let told = ran.expect("a cell").told;
        assert_eq!(told, without.expect("a cell").told, "it changes nothing");
        // One each 100 ms, from the first on.
        let at: Vec<u64> = periods.iter().map(|p| p.now.0 / 100_000_000).collect();
        assert!(at.iter().copied().eq(0..at.len() as u64), "{at:?}");
        let changes = periods.iter().enumerate().filter(|(at, period)| {
            let before = at.checked_sub(1).map(|at| &periods[at].plan);
            before.is_none_or(|before| !before.same_wishes(&period.plan))
        });
        let changes =
            changes.map(|(_, period)| serde_json::to_value(&*period.plan).expect("a plan"));
        let decided = told.iter().filter_map(|stamped| match &stamped.event {
            Event::Steward { record, .. } => Some(record["plan"].clone()),
            _ => None,
        });
        let decided: Vec<_> = decided.collect();
        assert_eq!(changes.collect::<Vec<_>>(), decided);
        let changes_much = cell.policy == "energy" || cell.policy == "resource";
        assert_eq!(decided.len() > 2, changes_much, "{}", cell.policy);
        let steered = cell.policy != "vanilla";
        assert_eq!(at.len() > 65, steered, "{}: {}", cell.policy, at.len());
    }
}

#[test]
fn faults_at_a_time_happen_then() {
    let dies = format!("{RAMP}\n[[fault]]\nkind = \"guest-dies\"\nguest = \"be\"\nat = \"3s\"\n");
    let run = watched(&dies, 1)
        .only(&["vanilla".to_owned()])
        .expect("it is there");
    let events = told(&run);
    assert_eq!(problems(&events), Vec::<&String>::new());
    for stamped in &events {
        if let Event::Sample { guests, .. } = &stamped.event {
            let be = guests
                .iter()
                .find(|guest| guest.name == "be")
                .expect("it was there");
            // It settles for half a second, and dies 3 s later.
            assert_eq!(
                be.cpu_ms == 0,
                stamped.t_ms > 4000,
                "{} {be:?}",
                stamped.t_ms
            );
        }
    }
}

#[test]
fn a_policy_whose_configuration_is_wrong_is_refused_before_anything_runs() {
    let wrong = RAMP.replace("policy = \"resource\"", "policy = \"resouce\"");
    let error = Run::new(scenario(&wrong), 1, Watch::default()).expect_err("it is wrong");
    let text = error.to_string();
    assert!(
        text.contains("policy `resource`") && text.contains("resouce"),
        "{text}"
    );
    let error = watched(RAMP, 1)
        .only(&["none".to_owned()])
        .expect_err("it isn't there");
    assert!(matches!(error, RunError::NoPolicy(_)));
    assert!(error.to_string().contains("vanilla"), "{error}");
}

#[test]
fn a_policy_that_is_the_labs_is_there_and_says_why_it_is_not_simulated() {
    let others = "[[policy]]\nname = \"bpfland\"\nhost_scheduler = \"scx_bpfland@1.1.4\"\n";
    let with = scenario(&format!("{RAMP}{others}"));
    let said = ostler_sim::scenario::left_out(&with).join("\n");
    assert!(
        said.contains("policy `bpfland`") && said.contains("scx_bpfland@1.1.4"),
        "{said}"
    );
    let run = Run::new(with, 1, Watch::default()).expect("a scenario");
    let error = run.only(&["bpfland".to_owned()]).expect_err("a program");
    let text = error.to_string();
    for told in [
        "`bpfland`",
        "can't be simulated",
        "scx_bpfland@1.1.4",
        "ostler lab run",
        "vanilla",
    ] {
        assert!(text.contains(told), "{text}");
    }
}

const STEWARDS: [Option<&str>; 7] = [
    None,
    Some("partition.policy = \"performance\""),
    Some("partition.policy = \"energy\""),
    Some("partition.policy = \"resource\""),
    Some("partition = { policy = \"time-sharing\", queues = \"one\" }\nboost.mode = \"io\""),
    Some(
        "partition.policy = \"time-sharing\"\nboost = { mode = \"io\", workers = false, slice = \"500us\" }\nhints = {}",
    ),
    Some("partition.policy = \"performance\"\nplacement = {}\nhints = {}"),
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever a scenario says: its cells run to their end, no plan is refused, and all books are right. What fails shrinks to a scenario's file, which is
    /// printed.
    #[test]
    fn books_are_right_in_every_scenario(scenario in ostler_scenario::testing::scenario(), first in 0..STEWARDS.len(), seed in any::<u64>()) {
        let mut short = scenario;
        short.rounds = 1;
        short.loads.truncate(2);
        for load in &mut short.loads {
            load.steps.truncate(2);
            for step in &mut load.steps {
                step.seconds = step.seconds.min(0.2);
                step.rate = step.rate.min(5000.0);
            }
        }
        short.settle_s = short.settle_s.min(0.3);
        short.expectations.clear();
        for (at, policy) in short.policies.iter_mut().enumerate() {
            let own = STEWARDS[(at + first) % STEWARDS.len()];
            // A steward refuses to divide a single core.
            let own = own.filter(|_| short.host.under_test.len() > 1);
            policy.steward = own.map(|own| toml::from_str(own).expect("a steward's configuration"));
        }
        let file = short.to_toml();
        let run = Run::new(short, seed, BOOKS);
        let run = run.map_err(|error| TestCaseError::fail(format!("{error}\n{file}")))?;
        let events = told(&run);
        let wrong = problems(&events);
        prop_assert!(wrong.is_empty(), "{wrong:?} with seed {seed} in\n{file}");
    }
}
