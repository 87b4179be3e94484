//! What a choice of a vCPU, and of a cache group and a vCPU, costs: see the README.

use std::hint::black_box;

use bench_harness::{Args, compare, ns_per_call};
use ostler_abi::hints::{Table, Told, VCPUS_MAX};
use ostler_hints::{Cores, Map, Rule, Sets, Tree, choose_vcpu};

const VCPUS: u32 = 128;

/// A plain scan, from the vCPU that the task ran on: the first that is idle and online.
fn scan(sets: &Sets, prev: u32) -> Option<u32> {
    let bit = |set: &[u64; VCPUS_MAX / 64], at: u32| set[at as usize / 64] >> (at % 64) & 1 == 1;
    (prev..VCPUS).chain(0..prev).find(|&vcpu| {
        bit(&sets.allowed, vcpu) && bit(&sets.idle, vcpu) && !bit(&sets.preempted, vcpu)
    })
}

fn main() {
    let args = Args::parse();
    let mut table = Table::empty();
    // 32 groups of four, as in the paper's machine; the last vCPU alone is on a core of low load, and all are preempted.
    let rows = (0..128_u16).map(|vcpu| Told {
        group: Some(vcpu / 4),
        core: Some(vcpu),
        low: vcpu == 127,
    });
    table.tell(32, rows).expect("128 vCPUs have rows");
    let sets = Sets {
        allowed: [!0; VCPUS_MAX / 64],
        idle: [!0; VCPUS_MAX / 64],
        preempted: [!0; VCPUS_MAX / 64],
    };
    let online = Sets {
        preempted: [0; VCPUS_MAX / 64],
        ..sets.clone()
    };
    let mut cores = Cores::default();
    cores.recount(&table, &sets, VCPUS);
    let (mut tree, mut map) = (Tree::default(), Map::default());
    assert!(tree.refresh(&table), "the table is new");
    for _ in 0..64 {
        let to = tree.choose(&map, None);
        assert!(tree.moves(&mut map, None, to), "there is room");
    }
    assert_eq!(
        choose_vcpu(&table, &sets, &cores, Rule::Pload, VCPUS, 0, None),
        Some(127)
    );
    let (runs, calls) = (args.runs(301, 3), if args.quick { 2 } else { 1000 });
    let case = |name: &str, ours: &dyn Fn() -> Option<u32>, sets: &Sets| {
        compare(
            "hints",
            name,
            "ns",
            runs,
            || ns_per_call(calls, ours),
            || ns_per_call(calls, || scan(black_box(sets), 0)),
        )
        .print(&args);
    };
    let choose = |sets, group| {
        choose_vcpu(
            &table,
            black_box(sets),
            black_box(&cores),
            Rule::Pload,
            VCPUS,
            0,
            group,
        )
    };
    let pload = |sets| choose(sets, None);
    case("pload, first of 128 vCPUs", &|| pload(&online), &online);
    case("pload, last of 128 vCPUs", &|| pload(&sets), &sets);
    let cgsched = || {
        let group = tree.choose(black_box(&map), None);
        choose(&online, group)
    };
    case("cgsched, 128 vCPUs in 32 groups", &cgsched, &online);
}
