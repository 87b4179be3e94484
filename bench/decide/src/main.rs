//! What a decision costs at 256 cores and 512 guests, beside a copy of the snapshot it rests on.

use bench_decide::{CORES, GUESTS, facts, intent, keep_freed, snapshot};
use bench_harness::{Args, compare, ns_per_call};
use ostler_model::{Intent, PartitionPolicy, Sample, State};
use ostler_policy::{Decision, decide};

fn main() {
    let args = Args::parse();
    keep_freed();
    let facts = facts();
    let intent = intent(PartitionPolicy::Resource);
    let snapshot = snapshot(&facts);
    let decide_by = |intent: &Intent, state: &State| -> Decision {
        let mut none = || 0;
        decide(&facts, &snapshot, intent, state, snapshot.at, &mut none)
    };
    let decide_from = |state: &State| decide_by(&intent, state);
    let mut steady = bench_decide::steady();
    let groups = steady.partition.previous;
    for _ in 0..499 {
        steady = decide_from(&steady).state;
    }
    assert_eq!(steady.partition.previous, groups, "no group changes");
    assert_eq!(
        steady.partition.samples.len(),
        499,
        "each period adds a sample"
    );
    // The next sample is the one that an exploration waits for, and all but the wasted ones violate.
    let mut full = steady.clone();
    full.partition.samples = (0..999_u32)
        .map(|at| Sample {
            p95_over_slo: if at % 4 == 0 { 0.5 } else { 1.5 },
            vcpu: f64::from(at * 7919 % 1000) / 1000.0,
            nq: f64::from(at * 104_729 % 1000) / 1000.0,
        })
        .collect();
    assert_eq!(decide_from(&full).state.partition.explorations, 1);

    // P gives all cores away, so that best-effort guests run on latency-critical ones' and what they used is to be taken off.
    let sharing = bench_decide::intent(PartitionPolicy::Performance);
    let mut shared = State::default();
    for _ in 0..499 {
        shared = decide_by(&sharing, &shared).state;
    }
    let after = decide_by(&sharing, &shared);
    assert_eq!(after.state.partition.previous, shared.partition.previous);
    assert!(after.plan.groups.best_effort.is_empty() && after.plan.groups.idle.is_empty());

    // Many short runs: most of them fit in a time slice, so that the median holds on a busy machine too.
    let runs = args.runs(1001, 3);
    let calls = if args.quick { 2 } else { 4 };
    let copy = || ns_per_call(calls, || snapshot.clone()) / 1e3;
    let case = |name: &str| format!("{name}, {CORES} cores, {GUESTS} guests");
    for (name, intent, state) in [
        ("steady", &intent, &steady),
        ("sharing", &sharing, &shared),
        ("exploring", &intent, &full),
    ] {
        compare(
            "decide",
            &case(name),
            "us",
            runs,
            || ns_per_call(calls, || decide_by(intent, state)) / 1e3,
            copy,
        )
        .print(&args);
    }
    let plan = decide_from(&steady).plan;
    let check = || ostler_check::check(&facts, &snapshot, &intent, None, &plan);
    assert_eq!(check(), []);
    compare(
        "decide",
        &case("check"),
        "us",
        runs,
        || ns_per_call(calls, check) / 1e3,
        copy,
    )
    .print(&args);
}
