//! What memory costs two machines that really run, each by its part's table; and that it keeps neither's doorbells from being on time.
//! They need the QEMUs that `ostler machine setup` fetches, and say so where they aren't there.

mod common;

use common::{Bench, children, emulators, of, options, two};
use ostler_machine_launch::{Ended, LaunchError, run};
use ostler_machine_memory::{Catalogue, Part};
use ostler_machine_programs::{BALL, DOORBELL, MEMORY, PAGES, figures};

const PARTS: [&str; 2] = ["xeon-gold-6230r", "thunderx2-cn9980"];
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Steps of a walk through memory.
const STEPS: u64 = 2000;
/// What a figure may be off its table by, in 1/1000: accesses of the program's own, and fractions of a nanosecond.
const OFF: u64 = 5;

/// Where a machine walks, and the machine whose memory it is, if it is one's.
type Walk = (u64, Option<usize>);

/// The same machines, as parts.
fn with_parts(text: &str) -> String {
    let mut text = text.to_owned();
    for (kernel, part) in [("x86_64", PARTS[0]), ("aarch64", PARTS[1])] {
        let kernel = format!("kernel = \"{kernel}\"\n");
        text = text.replace(&kernel, &format!("{kernel}part = \"{part}\"\n"));
    }
    text
}

fn part(machine: usize) -> Part {
    let part = Catalogue::built_in().part(PARTS[machine]).cloned();
    part.expect("it is known")
}

/// Cycles of a machine's part, ps.
fn ps(machine: usize, cycles: u32) -> u64 {
    u64::from(cycles) * 1_000_000 / u64::from(part(machine).clock_mhz)
}

/// What a line that the other machine has for itself costs a machine in a model, ps.
fn snoop(machine: usize, model: &str) -> u64 {
    let cycles = part(machine).snoop_data_cycles;
    match model {
        "fully-shared" => ps(machine, cycles.group),
        _ => ps(machine, cycles.remote),
    }
}

/// A figure in ps is what a table says.
fn is(found: u64, table: u64, what: &str) {
    let off = found.abs_diff(table);
    assert!(
        off * 1000 <= table * OFF,
        "{what}: {found} ps, and the table says {table}"
    );
}

/// Two runs print the same figures, but for the nanosecond that a clock may be about to come to: where in it a program begins isn't the same.
/// There are two clocks, and what one machine takes for the other's answer is rounded by both.
fn same(one: &[Ended], other: &[Ended], what: &str) {
    for (one, other) in one.iter().zip(other) {
        let [one, other] = [one, other].map(|ended| String::from_utf8_lossy(&ended.serial));
        let (one, other) = (figures(&one), figures(&other));
        let near = |((word, its), (same, others)): (&(&str, u64), &(&str, u64))| {
            word == same && its.abs_diff(*others) <= 2
        };
        assert!(
            one.len() == other.len() && one.iter().zip(&other).all(near),
            "{what}: {one:?}, and in another run {other:?}"
        );
    }
}

#[test]
fn a_load_costs_what_the_table_says_of_own_memory_the_others_and_the_pool() {
    let Some(emulators) =
        emulators("a_load_costs_what_the_table_says_of_own_memory_the_others_and_the_pool")
    else {
        return;
    };
    let walks = |model: &str, shared: u64| -> [Vec<Walk>; 2] {
        let (low, high) = (512 * MIB, GIB + 512 * MIB);
        match model {
            "separated" => [
                vec![(low, Some(0)), (high, Some(1)), (shared, Some(0))],
                vec![(high + 64 * MIB, Some(1)), (shared + 64 * MIB, Some(0))],
            ],
            "shared" => [
                vec![(low, Some(0)), (shared, None)],
                vec![(high, Some(1)), (shared + 64 * MIB, None)],
            ],
            _ => [
                vec![(low, Some(0)), (shared, Some(0))],
                vec![(high, Some(1)), (shared + 64 * MIB, Some(1))],
            ],
        }
    };
    let catalogue = Catalogue::built_in();
    let pool = catalogue.device("cxl3-pool").expect("it is known");
    for model in ["separated", "shared", "fully-shared"] {
        let (text, shared) = two(model);
        let bench = Bench::new(MEMORY, &[]);
        let walks = walks(model, shared);
        let parameters = |machine: usize| -> Vec<u64> {
            let from = walks[machine].iter().map(|(from, _)| *from);
            std::iter::once(STEPS).chain(from).collect()
        };
        bench.write("x86_64", MEMORY.x86_64(&parameters(0)));
        bench.write("aarch64", MEMORY.aarch64(&parameters(1)));
        let world = bench.world(&with_parts(&text));
        let both = run(&world, &emulators, &options()).expect("they ran");
        for (machine, ended) in both.iter().enumerate() {
            let cycles = part(machine).cycles;
            let warm = of(ended, "WARM")[0];
            for ((from, owner), word) in walks[machine].iter().zip(["FIRST", "SECOND", "THIRD"]) {
                let took = of(ended, word)[0] - warm;
                let load = took * 1000 / STEPS + ps(machine, cycles.l1);
                let table = match owner {
                    None => u64::from(pool.latency_ns) * 1000,
                    Some(owner) if *owner == machine || model == "fully-shared" => {
                        ps(machine, cycles.memory)
                    }
                    Some(_) => ps(machine, cycles.remote),
                };
                is(
                    load,
                    table,
                    &format!("{model}, {} at {from:#x}", ended.name),
                );
            }
            let placed = ended.said.contains("; 0 accesses couldn't be placed");
            assert!(placed, "{model}: {}", ended.said);
        }
        let again = run(&world, &emulators, &options()).expect("they ran");
        same(&both, &again, model);
    }
}

/// Snoops that a machine's cores have sent and received, by what its emulator said.
fn snoops(ended: &Ended) -> (u64, u64) {
    let word_before = |line: &str, what: &str| {
        let before = line.split(what).next()?;
        before.split_whitespace().next_back()?.parse::<u64>().ok()
    };
    let counts = ended.said.lines().filter_map(|line| {
        let sent = word_before(
            line.strip_suffix(line.split(" snoops sent, ").nth(1)?)?,
            " snoops sent, ",
        )?;
        let received = word_before(line.split(" snoops sent, ").nth(1)?, " received")?;
        Some((sent, received))
    });
    counts.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
}

#[test]
fn a_line_that_both_write_is_snooped_at_the_tables_cost() {
    const ROUNDS: u64 = 500;
    let Some(emulators) = emulators("a_line_that_both_write_is_snooped_at_the_tables_cost") else {
        return;
    };
    for model in ["separated", "shared", "fully-shared"] {
        let (text, shared) = two(model);
        let bench = Bench::new(BALL, &[ROUNDS, shared]);
        let world = bench.world(&with_parts(&text));
        let both = run(&world, &emulators, &options()).expect("they ran");
        for (machine, ended) in both.iter().enumerate() {
            assert_eq!(of(ended, "BROKEN"), [0], "{model}");
            let (least, most) = (of(ended, "LEAST")[0], of(ended, "MOST")[0]);
            let table = snoop(machine, model);
            let warm = of(ended, "WARM")[0] * 1000;
            let l1 = ps(machine, part(machine).cycles.l1);
            for took in [least, most] {
                let load = took * 1000 + l1 - warm;
                // Clocks have whole nanoseconds, and both readings are rounded.
                assert!(
                    load.abs_diff(table) <= 2000,
                    "{model}, {}: {load} ps, and the table says {table}",
                    ended.name
                );
            }
            let (sent, received) = snoops(ended);
            assert!(
                sent >= ROUNDS && received >= ROUNDS,
                "{model}, {}: {sent} snoops sent, {received} received: {}",
                ended.name,
                ended.said
            );
        }
        let again = run(&world, &emulators, &options()).expect("they ran");
        same(&both, &again, model);
    }
}

#[test]
fn doorbells_come_on_time_however_much_memory_costs() {
    const ROUNDS: u64 = 400;
    let Some(emulators) = emulators("doorbells_come_on_time_however_much_memory_costs") else {
        return;
    };
    for model in ["separated", "shared", "fully-shared"] {
        // Who waits sleeps, runs, or walks through memory that is the other's or the pool's.
        for awake in [0, 1, 2] {
            let (text, shared) = two(model);
            let bench = Bench::new(DOORBELL, &[ROUNDS, awake, shared, shared + 64 * MIB]);
            let world = bench.world(&with_parts(&text));
            let both = run(&world, &emulators, &options()).expect("they ran");
            for ended in &both {
                let what = format!("{model}, {awake}, {}: {}", ended.name, ended.said);
                assert_eq!(of(ended, "HEARD"), [ROUNDS], "{what}");
                let (least, most) = (of(ended, "LEAST")[0], of(ended, "MOST")[0]);
                assert!(ended.said.contains("delivered, 0 late"), "{what}");
                // Whoever walks has to end a block of sixteen misses first. Beyond that there are the handler's instructions, and once their
                // lines.
                let (block, once) = (if awake == 2 { 16 * 320 } else { 0 }, 1000);
                assert!(
                    (2001..=2100 + block).contains(&least) && most <= 2100 + block + once,
                    "{least} to {most}; {what}"
                );
            }
        }
    }
}

#[test]
fn the_others_page_costs_its_lines_where_it_lies_and_all_of_it_as_a_copy() {
    const COUNT: u64 = 16;
    let Some(emulators) =
        emulators("the_others_page_costs_its_lines_where_it_lies_and_all_of_it_as_a_copy")
    else {
        return;
    };
    for model in ["separated", "shared", "fully-shared"] {
        let (text, shared) = two(model);
        // x86's pages and arm's, in memory that both see.
        let [x86, arm] = [shared + 64 * MIB, shared + 128 * MIB];
        let bench = Bench::new(PAGES, &[]);
        let own = [512 * MIB, GIB + 512 * MIB];
        bench.write("x86_64", PAGES.x86_64(&[COUNT, shared, x86, arm, own[0]]));
        bench.write("aarch64", PAGES.aarch64(&[COUNT, shared, arm, x86, own[1]]));
        let world = bench.world(&with_parts(&text));
        let both = run(&world, &emulators, &options()).expect("they ran");
        for (machine, ended) in both.iter().enumerate() {
            let what = format!("{model}, {}", ended.name);
            assert_eq!(of(ended, "BROKEN"), [0], "{what}");
            let snoop = snoop(machine, model);
            let lines = of(ended, "LINES");
            assert_eq!(lines, [1, 2, 4, 8, 16, 32, 64]);
            let (direct, copied) = (of(ended, "LINES-DIRECT"), of(ended, "LINES-COPIED"));
            // Between two numbers of lines nothing differs but a snoop for each and seven words that L1 serves.
            for (pair, ns) in lines.windows(2).zip(direct.windows(2)) {
                let a_line = (ns[1] - ns[0]) * 1000 / (pair[1] - pair[0]);
                let instructions = 8 * 8 * ps(machine, part(machine).cycles.l1);
                assert!(
                    (snoop - 1000..snoop + instructions).contains(&a_line),
                    "{what}: {a_line} ps a line, {snoop} for the snoop"
                );
            }
            // A copy is of all lines, with two doorbells, however few are used.
            let whole = 64 * snoop / 1000 + 2 * 2000;
            assert!(copied.iter().all(|&ns| ns > whole), "{what}: {copied:?}");
            assert!(
                direct
                    .iter()
                    .zip(&copied)
                    .all(|(direct, copied)| direct < copied),
                "{what}: {direct:?} ns, and {copied:?} by copies"
            );
            let [direct, copied, replica, own] =
                ["DIRECT", "COPIED", "REPLICA", "OWN"].map(|word| of(ended, word)[0]);
            assert!(direct < copied, "{what}: {direct} ns, {copied} by copies");
            // All of it is in its caches by then.
            assert!(
                replica.abs_diff(own) * 100 <= own,
                "{what}: {replica} ns and {own}"
            );
        }
        let again = run(&world, &emulators, &options()).expect("they ran");
        same(&both, &again, model);
    }
}

/// An emulator that does something before it starts: `$block` is the block of what memory costs.
fn meddler(emulators: &mut ostler_machine_launch::Emulators, folder: &std::path::Path, with: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    let script = folder.join("meddler");
    let text = format!(
        "#!/bin/sh\nblock=$(echo \"$*\" | sed -n 's/.*block=\\([^, ]*\\).*/\\1/p')\n{with}\nexec \"$@\"\n"
    );
    std::fs::write(&script, text).expect("a file");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("ours");
    emulators.aarch64.command.insert(0, script.into());
}

#[test]
fn a_block_that_doesnt_fit_is_refused_and_ends_both_machines() {
    let Some(emulators) = emulators("a_block_that_doesnt_fit_is_refused_and_ends_both_machines")
    else {
        return;
    };
    for (with, expected) in [
        (
            "printf something | dd of=$block conv=notrunc status=none",
            "something else is in it; give one of zeros",
        ),
        ("truncate -s 4096 $block", "it has 4096 bytes and needs"),
    ] {
        let (text, shared) = two("shared");
        // Each waits for the other: nobody ends by itself.
        let bench = Bench::new(DOORBELL, &[1, 0, shared, 0]);
        let mut emulators = emulators.clone();
        meddler(&mut emulators, bench.folder.path(), with);
        let world = bench.world(&with_parts(&text));
        let error = run(&world, &emulators, &options()).expect_err("it is refused");
        assert!(matches!(error, LaunchError::Failed { .. }), "{error}");
        let told = error.to_string();
        assert!(told.contains("the block /proc/self/fd/"), "{told}");
        assert!(told.contains(expected), "{told}\nshould say: {expected}");
        assert_eq!(children(), Vec::<String>::new());
    }
}
