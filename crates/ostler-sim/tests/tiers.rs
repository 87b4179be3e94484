//! Guests' memory beside cores and queues: what far memory costs in a scenario's world, and who has the near one under the tier layer.

use std::path::Path;

use ostler_outcome::events::{Counters, Event, MemoryCounters};
use ostler_scenario::Scenario;
use ostler_sim::run::{Run, Watch};
use ostler_sim::scenario::Simulated;

/// A guest that came first and has all near memory, and another whose memory is far; each computes on a core of its own.
const TWO: &str = r#"
name = "two"
summary = "Who came first has the near memory."
rounds = 1
settle_s = 0.5
[host]
cores = 4
pnic_queues = 1
instruction_ns = 1.0
[[host.node]]
memory = "8G"
cpus = "0-3"
latency_ns = 100
bandwidth_mib_per_s = 100000
[[host.node]]
memory = "16G"
latency_ns = 300
bandwidth_mib_per_s = 100000
[[guest]]
name = "first"
class = "best-effort"
vcpus = 1
memory = "8G"
workload = "spin"
heat = { mpki = FIRST, phases = [{ hot = "1G", cold = "7G" }] }
[[guest]]
name = "late"
class = "best-effort"
vcpus = 1
memory = "4G"
workload = "spin"
heat = { mpki = 2.0, phases = [{ hot = "4G" }] }
[[load]]
guest = "late"
steps = [{ rate = 0, seconds = SECONDS }]
[[policy]]
name = "p"
STEWARD
"#;

const TIER: &str = "[policy.steward.partition]\npolicy = \"time-sharing\"\n[policy.steward.tier]\nenabled = true\nreserve = \"512MiB\"\n";

const PAGES: &str = "pages = { demote = 0.1, rate = \"1G\" }\n";

const BOOKS: Watch = Watch {
    books: true,
    periods: false,
    trace: false,
};

/// Runs a cell with its books kept twice.
fn counted(first: &str, seconds: u32, steward: &str, more: &str) -> Counters {
    let text = TWO
        .replace("FIRST", first)
        .replace("SECONDS", &seconds.to_string())
        .replace("STEWARD", steward);
    let scenario = Scenario::parse(&(text + more), Path::new("two.toml"), &Simulated);
    let run = Run::new(scenario.expect("a scenario"), 1, BOOKS).expect("a run");
    let ran = run.cell(&run.cells()[0], &mut |_| {}).expect("a cell");
    let ends = ran.told.into_iter().find_map(|said| match said.event {
        Event::CellEnd {
            counters, problems, ..
        } => {
            assert_eq!(problems, Vec::<String>::new());
            Some(counters)
        }
        _ => None,
    });
    ends.expect("an end")
}

fn work(counters: &Counters, name: &str) -> f64 {
    let guest = counters.guests.iter().find(|guest| guest.name == name);
    guest.and_then(|guest| guest.work).expect("work")
}

fn memory(counters: &Counters) -> MemoryCounters {
    **counters.memory.as_ref().expect("a host with far memory")
}

#[test]
fn work_on_far_memory_takes_as_much_longer_as_its_loads_do() {
    let counted = counted("2.0", 4, "", "");
    // Two misses in a thousand instructions of a nanosecond, 200 ns longer each: 1.4 times as long.
    let ratio = work(&counted, "first") / work(&counted, "late");
    assert!((ratio - 1.4).abs() < 0.02, "{ratio}");
    let moved = memory(&counted);
    assert_eq!(moved.moved_bytes, 0, "nobody moves anything");
    assert!(moved.local_unused < 1e-9, "who came first has it all");
}

#[test]
fn near_memory_goes_to_who_presses_on_it_and_it_works_faster() {
    let vanilla = counted("0.1", 12, "", "");
    let tier = counted("0.1", 12, TIER, "");
    let gain = work(&tier, "late") / work(&vanilla, "late");
    // It has all its memory near after some eight seconds of moves at a gibibyte a second, four out and four in, and is 1.4 times as fast from then on.
    assert!((1.1..1.4).contains(&gain), "{gain}");
    let moved = memory(&tier).moved_bytes >> 20;
    assert!((8 * 1024..=10 * 1024).contains(&moved), "{moved} MiB");
    // Who goes far keeps what it uses near, and hardly uses what is far.
    let kept = work(&tier, "first") / work(&vanilla, "first");
    assert!((0.97..1.01).contains(&kept), "{kept}");
    let unused = memory(&tier).local_unused;
    assert!(
        unused < 0.16,
        "no more than the reserve and what is on its way: {unused}"
    );
}

#[test]
fn nothing_moves_for_whom_it_would_not_help() {
    // Both press: nobody makes way for an equal.
    let both = counted("2.0", 6, TIER, "");
    let reserve = memory(&both).moved_bytes >> 20;
    assert!(
        reserve <= 640,
        "the reserve is freed, and no more: {reserve} MiB"
    );
}

#[test]
fn pages_that_are_in_use_come_near_for_those_that_are_not() {
    let (vanilla, by_pages) = (counted("0.1", 12, "", ""), counted("0.1", 12, PAGES, ""));
    // Four gibibytes come near and as much goes far of what nobody uses, and the watermark's tenth; at a gibibyte a second that takes about nine seconds.
    let gain = work(&by_pages, "late") / work(&vanilla, "late");
    assert!((1.1..1.4).contains(&gain), "{gain}");
    let moved = memory(&by_pages).moved_bytes >> 20;
    assert!((8 * 1024..=9 * 1024 + 512).contains(&moved), "{moved} MiB");
    let kept = work(&by_pages, "first") / work(&vanilla, "first");
    assert!((0.99..1.01).contains(&kept), "{kept}");
    // What is free for who comes next: no less than cold pages make room for, once all is where it is to be.
    let unused = memory(&by_pages).local_unused;
    assert!((0.02..0.11).contains(&unused), "{unused}");
}

#[test]
fn pages_that_nobody_loads_from_stay_far() {
    // The same memory, of a guest that hardly anybody asks for anything: nothing is known of what it would use.
    let idle = TWO.replace(
        "memory = \"4G\"\nworkload = \"spin\"",
        "memory = \"4G\"\nworkload = \"memcached\"",
    );
    let idle = idle.replace("rate = 0,", "rate = 10,");
    let text = idle
        .replace("FIRST", "0.1")
        .replace("SECONDS", "12")
        .replace("STEWARD", PAGES);
    let scenario = Scenario::parse(&text, Path::new("idle.toml"), &Simulated);
    let run = Run::new(scenario.expect("a scenario"), 1, BOOKS).expect("a run");
    let ran = run.cell(&run.cells()[0], &mut |_| {}).expect("a cell");
    let ends = ran.told.into_iter().find_map(|said| match said.event {
        Event::CellEnd { counters, .. } => counters.memory,
        _ => None,
    });
    let moved = ends.expect("far memory").moved_bytes >> 20;
    // The watermark's tenth of eight gibibytes goes far, and a little comes for what a guest's own kernel does.
    assert!(moved < 900, "{moved} MiB");
}

#[test]
fn pages_know_no_guests() {
    // Both press, and nobody makes way for an equal: but the one's pages are cold, whoever it is.
    let (tier, by_pages) = (counted("2.0", 12, TIER, ""), counted("2.0", 12, PAGES, ""));
    let gain = work(&by_pages, "late") / work(&tier, "late");
    assert!(gain > 1.1, "{gain}");
    // Nothing is cold of memory that is used alike, and what is in use isn't taken.
    let alike = TWO.replace(
        "heat = { mpki = FIRST, phases = [{ hot = \"1G\", cold = \"7G\" }] }",
        "",
    );
    let text = alike.replace("SECONDS", "3").replace("STEWARD", PAGES);
    let scenario = Scenario::parse(&text, Path::new("alike.toml"), &Simulated);
    let run = Run::new(scenario.expect("a scenario"), 1, BOOKS).expect("a run");
    let ran = run.cell(&run.cells()[0], &mut |_| {}).expect("a cell");
    let ends = ran.told.into_iter().find_map(|said| match said.event {
        Event::CellEnd { counters, .. } => counters.memory,
        _ => None,
    });
    assert_eq!(ends.expect("far memory").moved_bytes, 0);
}

#[test]
fn memory_of_who_dies_is_free() {
    let dies = "[[fault]]\nkind = \"guest-dies\"\nguest = \"first\"\nat = \"2s\"\n";
    let dead = memory(&counted("2.0", 4, "", dies));
    assert!(
        (dead.local_unused - 0.5).abs() < 0.05,
        "{}",
        dead.local_unused
    );
}

#[test]
fn where_all_memory_is_near_nothing_is_told_of_it() {
    let near = TWO.replace(
        "\n[[host.node]]\nmemory = \"16G\"\nlatency_ns = 300\nbandwidth_mib_per_s = 100000",
        "",
    );
    let near = near.replace("memory = \"8G\"\ncpus", "memory = \"24G\"\ncpus");
    let text = near
        .replace("FIRST", "2.0")
        .replace("SECONDS", "1")
        .replace("STEWARD", "");
    let scenario = Scenario::parse(&text, Path::new("near.toml"), &Simulated).expect("a scenario");
    let said = ostler_sim::scenario::left_out(&scenario);
    assert!(said[0].contains("without a far node"), "{said:?}");
    let run = Run::new(scenario, 1, Watch::default()).expect("a run");
    let ran = run.cell(&run.cells()[0], &mut |_| {}).expect("a cell");
    let counted = ran.told.iter().any(
        |said| matches!(&said.event, Event::CellEnd { counters, .. } if counters.memory.is_some()),
    );
    assert!(!counted);
}

#[test]
fn files_in_the_host_take_near_memory_too() {
    let files = "[[guest]]\nname = \"files\"\nclass = \"best-effort\"\nvcpus = 1\nmemory = \"1G\"\nworkload = \"files\"\n\
        files = { count = 2048, size = \"1M\", cacheable = 0.5, time = \"1ms\", disk = \"8ms\" }\n";
    let text = |more: &str| {
        let roomy = TWO.replace("memory = \"8G\"\ncpus", "memory = \"16G\"\ncpus");
        let text = roomy.replace("FIRST", "1.0").replace("SECONDS", "1");
        text.replace("STEWARD", "") + more
    };
    let unused = |more: &str| {
        let scenario = Scenario::parse(&text(more), Path::new("files.toml"), &Simulated);
        let run = Run::new(scenario.expect("a scenario"), 1, Watch::default()).expect("a run");
        let ran = run.cell(&run.cells()[0], &mut |_| {}).expect("a cell");
        let ends = ran.told.into_iter().find_map(|said| match said.event {
            Event::CellEnd { counters, .. } => counters.memory,
            _ => None,
        });
        ends.expect("far memory").local_unused
    };
    // Of 16 GiB, guests have 12; this one has one more, and half of its two of files.
    assert!((unused("") - 4.0 / 16.0).abs() < 1e-9);
    assert!((unused(files) - 2.0 / 16.0).abs() < 1e-9);
}
