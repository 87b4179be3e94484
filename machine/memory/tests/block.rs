//! One block for several systems: the second finds what the first has done, and one that doesn't fit is refused.

mod common;

use std::sync::atomic::{AtomicU64, Ordering};

use common::Random;
use ostler_machine_memory::{BlockError, Catalogue, Kind, Level, System, Topology};

/// Four cores and little memory, so that a block is small.
const MACHINE: &str = "
    [[cores]]
    first = 0
    last = 3
    part = 'epyc-7742'
    node = 0
    group_cores = 2

    [[nodes]]
    ranges = [{ start = 0, bytes = 0x10_0000 }]

    [[nodes]]
    ranges = [{ start = 0x100_0000, bytes = 0x10_0000 }]
    device = 'cxl3-pool'
";

fn topology() -> Topology {
    Topology::parse(MACHINE).expect("a good topology")
}

/// How long its block is, in words.
fn words() -> usize {
    let bytes = System::block_bytes(&topology(), &Catalogue::built_in());
    bytes.expect("a good machine").div_ceil(8)
}

/// Zeros, at a multiple of 128 bytes, for as long as the test runs.
fn block(words: usize) -> &'static [AtomicU64] {
    let all: Vec<AtomicU64> = (0..words + 16).map(|_| AtomicU64::new(0)).collect();
    let all: &'static [AtomicU64] = all.leak();
    let ahead = all.as_ptr().align_offset(128);
    &all[ahead..][..words]
}

fn attach(block: &'static [AtomicU64]) -> Result<System, BlockError> {
    System::attach(&topology(), &Catalogue::built_in(), block)
}

#[test]
fn who_comes_second_finds_what_the_first_has_done() {
    let block = block(words());
    let one = attach(block).expect("a good block");
    let alone = System::new(&topology(), &Catalogue::built_in()).expect("a good machine");
    let level =
        |system: &System, core, kind, address| system.access(core, kind, address, || 0).level;
    assert_eq!(level(&one, 0, Kind::Store, 4096), Level::Local);
    let other = attach(block).expect("the same machine");
    assert_eq!(
        level(&other, 3, Kind::Load, 4096),
        Level::Peer,
        "the first core has it modified"
    );
    assert_eq!(
        level(&one, 0, Kind::Store, 4096),
        Level::L1,
        "to read, and told the other"
    );
    assert_eq!(level(&other, 3, Kind::Load, 4096), Level::Peer);
    assert_eq!(other.counts(0), one.counts(0));
    assert_eq!(one.counts(0).snoops_received, 2);
    assert_eq!(
        level(&alone, 3, Kind::Load, 4096),
        Level::Local,
        "on the heap each is alone"
    );
    drop(one);
    assert_eq!(
        level(&other, 3, Kind::Load, 4096),
        Level::L1,
        "the block stays"
    );
}

/// Whatever is done by turns through either is as if one had done it.
#[test]
fn two_systems_of_one_block_are_one_system() {
    let block = block(words());
    let (one, other) = (attach(block).expect("good"), attach(block).expect("good"));
    let alone = System::new(&topology(), &Catalogue::built_in()).expect("a good machine");
    let mut random = Random(7);
    for step in 0..50_000 {
        let core = usize::try_from(random.below(4)).expect("small");
        let kind = Kind::ALL[usize::try_from(random.below(4)).expect("small")];
        let address = random.below(2) * 0x100_0000 + random.below(0x4000) * 64;
        let shared = if core < 2 { &one } else { &other };
        assert_eq!(
            shared.access(core, kind, address, || step * 1000),
            alone.access(core, kind, address, || step * 1000),
            "step {step}: core {core} {kind:?} {address:#x}"
        );
    }
    for core in 0..4 {
        assert_eq!(one.counts(core), alone.counts(core));
    }
    assert_eq!(one.forced_locks(), 0);
}

/// What is wrong with a block, in words.
fn refusal(block: &'static [AtomicU64]) -> String {
    attach(block).expect_err("it is wrong").to_string()
}

fn assert_words(error: &str, words: &[&str]) {
    for word in words {
        assert!(error.contains(word), "`{word}` isn't in: {error}");
    }
}

#[test]
fn a_block_that_is_too_short_is_refused() {
    let needed = (words() * 8).to_string();
    let error = refusal(block(words() - 1));
    assert_words(&error, &[&needed, "block_bytes"]);
    assert_words(&refusal(&[]), &["0 bytes", &needed]);
    assert!(attach(block(words() + 100)).is_ok(), "a longer one does");
}

#[test]
fn more_memory_than_the_model_takes_is_refused() {
    let mut topology = topology();
    topology.nodes[0].ranges[0].start = 1 << 40;
    topology.nodes[0].ranges[0].bytes = 1 << 47;
    let catalogue = Catalogue::built_in();
    for error in [
        System::new(&topology, &catalogue)
            .expect_err("too much")
            .to_string(),
        System::block_bytes(&topology, &catalogue)
            .expect_err("too much")
            .to_string(),
    ] {
        assert_words(&error, &["131073 GiB", "32768 GiB", "smaller"]);
    }
}

#[test]
fn memory_that_a_first_cache_cannot_name_is_refused() {
    let mut topology = topology();
    let system = |topology: &Topology| System::new(topology, &Catalogue::built_in());
    let last = (1 << 42) - 2 * 0x10_0000;
    topology.nodes[1].ranges[0].start = last;
    let far = system(&topology).expect("just below 4 TiB");
    let line = last + 0x10_0000 - 64;
    let levels = [0; 2].map(|_| far.access(0, Kind::Load, line, || 0).level);
    assert_eq!(levels, [Level::Pool, Level::L1]);
    topology.nodes[1].ranges[0].start = 1 << 42;
    let error = system(&topology).expect_err("too far").to_string();
    assert_words(&error, &["4097 GiB", "4095 GiB", "lower"]);
}

#[test]
fn a_block_that_begins_within_a_cache_line_is_refused() {
    let block = block(words() + 16);
    assert_words(&refusal(&block[1..]), &["multiple of 128", "page"]);
    assert_eq!(block[1].load(Ordering::Relaxed), 0, "and left alone");
}

#[test]
fn a_block_of_something_else_is_refused() {
    let block = block(words());
    block[0].store(0x7f45_4c46_0201_0100, Ordering::Relaxed);
    assert_words(&refusal(block), &["0x7f454c4602010100", "zeros"]);
}

#[test]
fn a_block_of_another_builds_layout_is_refused() {
    let block = block(words());
    drop(attach(block).expect("a good block"));
    block[0].fetch_add(1, Ordering::Relaxed);
    let error = attach(block).expect_err("another version");
    assert!(matches!(error, BlockError::Version { .. }), "{error}");
    assert_words(&error.to_string(), &["version 3", "same build"]);
}

#[test]
fn a_block_of_another_machine_is_refused() {
    let catalogue = Catalogue::built_in();
    let block = block(2 * words());
    drop(attach(block).expect("a good block"));
    let mut slower = topology();
    slower.nodes[1].latency_ns = Some(300);
    let mut further = topology();
    further.skew_ns += 1;
    let mut apart = topology();
    apart.nodes[1].ranges[0].start += 0x10_0000;
    let mut part = topology();
    part.cores[0].part = "cortex-a72".to_owned();
    for other in [slower, further, apart, part] {
        let error = System::attach(&other, &catalogue, block).expect_err("another machine");
        assert!(matches!(error, BlockError::OtherMachine { .. }), "{error}");
        assert_words(&error.to_string(), &["same topology", "new block"]);
    }
    assert!(attach(block).is_ok(), "it is still the first one's");
    let mut none = topology();
    none.cores.clear();
    let error = System::attach(&none, &catalogue, block).expect_err("no machine");
    assert!(matches!(error, BlockError::Topology(_)), "{error}");
}
