use super::*;

const GOOD: &str = "
    [[cores]]
    first = 0
    last = 3
    part = 'xeon-gold-6230r'
    node = 0

    [[cores]]
    first = 4
    last = 7
    part = 'epyc-7742'
    node = 1
    group_cores = 3

    [[nodes]]
    ranges = [{ start = 0, bytes = 0x8000_0000 }, { start = 0x1_0000_0000, bytes = 0x4000_0000 }]

    [[nodes]]
    ranges = [{ start = 0x1_4000_0000, bytes = 0x4000_0000 }]

    [[nodes]]
    ranges = [{ start = 0x2_0000_0000, bytes = 0x4000_0000 }]
    device = 'cxl2-e3s-x8'
    attached_to = 1
";

fn check(text: &str) -> Result<(Vec<usize>, usize), TopologyError> {
    let catalogue = Catalogue::built_in();
    let topology = Topology::parse(text)?;
    let plan = topology.check(&catalogue)?;
    let groups = plan.cores.iter().map(|core| core.group).collect();
    Ok((groups, plan.ranges.len()))
}

#[test]
fn a_good_topology_is_taken_and_cores_fall_into_their_groups() {
    assert_eq!(check(GOOD), Ok((vec![0, 0, 0, 0, 1, 1, 1, 2], 4)));
    let joined = GOOD.replace(
        "node = 1\n    group_cores = 3",
        "node = 0\n    group_of = 2",
    );
    let joined = joined.replace("attached_to = 1", "attached_to = 0");
    let with_memory = joined.replace(
        "start = 0x1_4000_0000, bytes = 0x4000_0000 }]",
        "start = 0x1_4000_0000, bytes = 0x4000_0000 }]\nlatency_ns = 200\nmb_per_s = 9000",
    );
    assert_eq!(check(&with_memory), Ok((vec![0; 8], 4)));
    let by_part = GOOD.replace("group_cores = 3", "");
    assert_eq!(check(&by_part), Ok((vec![0, 0, 0, 0, 1, 1, 1, 1], 4)));
}

/// The good topology with this in place of that is refused in words that have all of these.
fn refused(from: &str, to: &str, words: [&str; 3]) {
    let text = GOOD.replacen(from, to, 1);
    assert_ne!(text, GOOD, "{from} is there to be changed");
    let error = check(&text).expect_err(to).to_string();
    for word in words {
        assert!(error.contains(word), "{to}: `{word}` isn't in: {error}");
    }
}

#[test]
fn a_group_that_cant_be_joined_is_refused() {
    for (from, to, words) in [
        // Of another node; of nobody yet; and two ways at once.
        (
            "group_cores = 3",
            "group_of = 0",
            ["4 to 7", "core 0's cache group", "node 1"],
        ),
        (
            "group_cores = 3",
            "group_of = 5",
            ["4 to 7", "core 5's cache group", "before theirs"],
        ),
        (
            "node = 1\n    group_cores = 3",
            "node = 0\n    group_cores = 3\n    group_of = 0",
            ["4 to 7", "core 0's cache group", "leave group_cores out"],
        ),
    ] {
        refused(from, to, words);
    }
}

#[test]
fn what_cant_be_is_refused_and_named() {
    for (from, to, words) in [
        (
            "last = 3",
            "last = 2",
            ["core 4", "no core 3", "without gaps"],
        ),
        ("last = 3", "last = 4", ["core 4", "twice", "take it out"]),
        ("first = 0", "first = 5", ["5 to 3", "none", "lower"]),
        ("last = 7", "last = 700", ["697", "1 to 64", "cores"]),
        ("last = 7", "last = 64", ["65", "1 to 64", "cores"]),
        (
            "xeon-gold-6230r",
            "xeon",
            ["core 0", "`xeon`", "cortex-a72, epyc-7742"],
        ),
        (
            "cxl2-e3s-x8",
            "cxl",
            ["node 2", "`cxl`", "cxl2-e3s-x8, cxl3-pool"],
        ),
        ("node = 1", "node = 3", ["core 4", "node 3", "3 nodes"]),
        (
            "bytes = 0x4000_0000 }]

    [[nodes]]
    ranges = [{ start = 0x2",
            "bytes = 0x4000_0000 }]
device = 'cxl3-pool'
[[nodes]]
    ranges = [{ start = 0x2",
            ["node 1", "cores of its own", "node of its own"],
        ),
        (
            "group_cores = 3",
            "group_cores = 0",
            ["4 to 7", "by 0", "1 or more"],
        ),
        (
            "attached_to = 1",
            "attached_to = 2",
            ["node 2", "attached_to", "with cores"],
        ),
        (
            "device = 'cxl2-e3s-x8'\n    attached_to = 1",
            "",
            ["node 2", "no device", "latency_ns and mb_per_s"],
        ),
        (
            "device = 'cxl2-e3s-x8'",
            "latency_ns = 300",
            ["node 2", "no device", "mb_per_s"],
        ),
        (
            "device = 'cxl2-e3s-x8'",
            "latency_ns = 0\nmb_per_s = 5",
            ["node 2", "latency_ns is 0", "nanoseconds"],
        ),
        (
            "attached_to = 1",
            "mb_per_s = 0",
            ["node 2", "mb_per_s is 0", "millions"],
        ),
        (
            "start = 0x1_4000_0000",
            "start = 0x1_3fff_ff00",
            ["nodes 0 and 1", "0x13fffff00", "own ranges"],
        ),
        (
            "start = 0x1_4000_0000",
            "start = 0x1_4000_0001",
            ["node 1", "0x140000001", "align"],
        ),
        (
            "bytes = 0x8000_0000",
            "bytes = 0",
            ["node 0", "none", "align"],
        ),
        (
            "bytes = 0x8000_0000",
            "bytes = 0x7fff_ffff_ffff_ffc0",
            ["node 0", "2^52", "align"],
        ),
        (
            "[[nodes]]",
            "[[numa]]",
            ["can't be read", "numa", "unknown field"],
        ),
    ] {
        refused(from, to, words);
    }
    let none = "cores = []\nnodes = []";
    assert_eq!(check(none), Err(TopologyError::CoreCount(0)));
    let skewed = format!("skew_ns = 2_000_000\n{GOOD}");
    let error = check(&skewed).expect_err("too far apart").to_string();
    assert!(error.contains("skew_ns is 2000000"), "{error}");
}
