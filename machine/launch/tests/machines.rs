//! Machines that really run: bare-metal programs on both instruction sets, alone and fused. They need the QEMUs that
//! `ostler machine setup` fetches, and say so where they aren't there.

mod common;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{Bench, HUNG, alone, children, emulators, of, options, two};
use ostler_lab::image::{Architecture, LabDir, System};
use ostler_machine_launch::{Emulators, LaunchError, Options, run};
use ostler_machine_programs::{CLOCK, DOORBELL, LITMUS, SORT};

/// From reading the clock to reading it again, and from an interrupt to the reading in its handler: instructions of the programs.
const AROUND: u64 = 60;

#[test]
fn a_counted_loop_takes_its_instructions_and_timers_come_on_time() {
    const ROUNDS: u64 = 500_000;
    const TIMER: u64 = 300_000;
    let Some(emulators) =
        emulators("a_counted_loop_takes_its_instructions_and_timers_come_on_time")
    else {
        return;
    };
    let bench = Bench::new(CLOCK, &[ROUNDS, 5, TIMER]);
    for (isa, kernel) in [("x86-64", "x86_64"), ("aarch64", "aarch64")] {
        let ended = run(&bench.world(&alone(isa, kernel)), &emulators, &options()).expect("it ran");
        let loops = of(&ended[0], "LOOP");
        let about = |from: u64| from..=from + AROUND;
        assert!(about(2 * ROUNDS).contains(&loops[0]), "{isa}: {loops:?}");
        assert!(
            loops.iter().all(|&took| took == loops[0]),
            "{isa}: {loops:?}"
        );
        for word in ["ASLEEP", "AWAKE"] {
            let timers = of(&ended[0], word);
            assert!(
                timers.iter().all(|took| about(TIMER).contains(took)),
                "{isa} {word}: {timers:?}"
            );
        }
    }
}

#[test]
fn a_machine_with_a_part_has_its_accesses_cost() {
    let Some(emulators) = emulators("a_machine_with_a_part_has_its_accesses_cost") else {
        return;
    };
    let bench = Bench::new(CLOCK, &[1000, 1, 100_000]);
    for (isa, kernel, part) in [
        ("x86-64", "x86_64", "xeon-gold-6230r"),
        ("aarch64", "aarch64", "cortex-a72"),
    ] {
        let text = format!("{}part = \"{part}\"\n", alone(isa, kernel));
        let ended = run(&bench.world(&text), &emulators, &options()).expect("it ran");
        let said = &ended[0].said;
        assert_eq!(of(&ended[0], "LOOP").len(), 1, "{isa}");
        assert!(said.contains("accesses: L1"), "{isa}: {said}");
        // Each of them was found in QEMU's tables, where its first ones were compared with what QEMU finds.
        assert!(
            said.contains("; 0 accesses couldn't be placed"),
            "{isa}: {said}"
        );
    }
}

/// What [`SORT`] is to find: a binary search's answer is how many numbers are less.
fn found(count: u64, times: u64) -> u64 {
    let mut seed = 88_172_645_463_325_252_u64;
    let mut next = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let mut sum = 0_u64;
    for _ in 0..times {
        let numbers: Vec<u64> = (0..count).map(|_| next()).collect();
        for _ in 0..count {
            let wanted = next();
            sum += numbers.iter().filter(|&&number| number < wanted).count() as u64;
        }
    }
    sum
}

#[test]
fn work_on_memory_comes_to_the_same_with_caches_and_without() {
    const NUMBERS: u64 = 1000;
    const TIMES: u64 = 2;
    let Some(emulators) = emulators("work_on_memory_comes_to_the_same_with_caches_and_without")
    else {
        return;
    };
    let sum = found(NUMBERS, TIMES);
    let bench = Bench::new(SORT, &[NUMBERS, TIMES]);
    for (isa, kernel, part) in [
        ("x86-64", "x86_64", "xeon-gold-6230r"),
        ("aarch64", "aarch64", "cortex-a72"),
    ] {
        for part in [String::new(), format!("part = \"{part}\"\n")] {
            let text = format!("{}{part}", alone(isa, kernel));
            let ended = run(&bench.world(&text), &emulators, &options()).expect("it ran");
            assert_eq!(of(&ended[0], "SUM"), [sum], "{isa}");
            let took = of(&ended[0], "SORT");
            assert_eq!(took.len(), 2, "{isa}: {took:?}");
            // A comparison at least for each number and halving of all.
            assert!(took.iter().all(|&ns| ns > NUMBERS * 10), "{isa}: {took:?}");
        }
    }
}

#[test]
fn doorbells_come_exactly_on_time_in_every_model() {
    const ROUNDS: u64 = 400;
    let Some(emulators) = emulators("doorbells_come_exactly_on_time_in_every_model") else {
        return;
    };
    for (model, awake) in [("separated", 0), ("shared", 1), ("fully-shared", 0)] {
        let (text, shared) = two(model);
        let bench = Bench::new(DOORBELL, &[ROUNDS, awake, shared]);
        let both = run(&bench.world(&text), &emulators, &options()).expect("they ran");
        for ended in &both {
            assert_eq!(of(ended, "HEARD"), [ROUNDS], "{model}");
            let (least, most) = (of(ended, "LEAST")[0], of(ended, "MOST")[0]);
            // What is beyond the latency is instructions: the same each time but for the block that a running core is in.
            assert!(
                least > 2000 && most <= 2000 + AROUND,
                "{model}: {least} to {most}"
            );
            assert!(most - least <= 4, "{model}: {least} to {most}");
            assert!(
                ended.said.contains("delivered, 0 late"),
                "{model}: {}",
                ended.said
            );
        }
    }
}

#[test]
fn accesses_of_both_instruction_sets_are_atomic_and_in_order_in_every_model() {
    const TIMES: u64 = 30_000;
    let Some(emulators) =
        emulators("accesses_of_both_instruction_sets_are_atomic_and_in_order_in_every_model")
    else {
        return;
    };
    for model in ["separated", "shared", "fully-shared"] {
        let (text, shared) = two(model);
        let bench = Bench::new(LITMUS, &[TIMES, 300, shared]);
        let both = run(&bench.world(&text), &emulators, &options()).expect("they ran");
        for ended in &both {
            for word in ["ADDED", "EXCHANGED", "LOCKED"] {
                assert_eq!(of(ended, word), [2 * TIMES], "{model} {word}");
            }
            assert_eq!(
                of(ended, "BROKEN"),
                [0],
                "{model}: a message overtook its data"
            );
            assert_eq!(
                of(ended, "FENCED"),
                [0],
                "{model}: a fence let a store pass a load"
            );
        }
    }
}

/// What Debian's machines do: each writes a word of its own into the pool, waits for the other's, prints it, and turns itself off.
const EXCHANGE: &str = r#"#!/bin/sh
b=/bin/busybox
$b mount -t devtmpfs none /dev
$b mount -t proc none /proc
for word in $($b cat /proc/cmdline); do case $word in
	pool=*) pool=${word#pool=} ;;
	me=*) me=${word#me=} ;;
esac; done
mine=$($b printf 0x%x $((pool + me * 8)))
theirs=$($b printf 0x%x $((pool + (1 - me) * 8)))
$b devmem $mine 64 $((4242 + me))
tries=0
while [ $(($($b devmem $theirs 64))) = 0 ] && [ $tries -lt 200 ]; do
	$b sleep 0.1
	tries=$((tries + 1))
done
echo
echo "SEEN $(($($b devmem $theirs 64)))"
$b sleep 0.5
$b poweroff -f
"#;

/// Debian's kernels, side by side, as parts or not.
fn debians(name: &str, parts: Option<[&str; 2]>) {
    let Some(emulators) = emulators(name) else {
        return;
    };
    let lab = LabDir::detect();
    let systems = Architecture::ALL.map(|architecture| System::find(&lab, architecture));
    let [Some(amd64), Some(arm64)] = systems else {
        println!("SKIP {name}: there are no kernels; `cargo xtask test` fetches them");
        return;
    };
    let (mut text, shared) = two("shared");
    let bench = Bench::new(CLOCK, &[]);
    for (number, (system, kernel, append)) in [
        (amd64, "x86_64", "console=ttyS0 tsc=reliable mem=1G me=0"),
        (arm64, "aarch64", "console=ttyAMA0 mem=3G me=1"),
    ]
    .into_iter()
    .enumerate()
    {
        let initrd = format!("{kernel}.cpio");
        system
            .initial_root(EXCHANGE, &bench.folder.path().join(&initrd))
            .expect("a file");
        let part = parts.map_or_else(String::new, |parts| {
            format!("part = \"{}\"\n", parts[number])
        });
        text = text.replace(
            &format!("kernel = \"{kernel}\"\n"),
            &format!(
                "{part}kernel = \"{}\"\ninitrd = \"{initrd}\"\nappend = \"quiet panic=-1 pool={shared:#x} {append}\"\n",
                system.kernel().display()
            ),
        );
    }
    // Nobody interrupts anybody here: they need not be as near to each other as that takes.
    text.push_str("[time]\ninterrupt_ns = 20000\n");
    // With what memory costs, it is a hundred times what the other tests execute.
    let patient = Options {
        timeout: Some(6 * HUNG),
        ..options()
    };
    let both = run(&bench.world(&text), &emulators, &patient).expect("they ran");
    assert_eq!(of(&both[0], "SEEN"), [4243], "the other's word");
    assert_eq!(of(&both[1], "SEEN"), [4242], "the other's word");
    for ended in both {
        let counted = ended.said.contains("accesses: L1");
        assert_eq!(counted, parts.is_some(), "{}", ended.said);
        // As QEMU placed them, where any were placed.
        let placed = ended.said.contains("; 0 accesses couldn't be placed");
        assert!(placed || parts.is_none(), "{}", ended.said);
    }
}

#[test]
fn debians_kernels_of_both_run_side_by_side_and_share_a_pool() {
    debians(
        "debians_kernels_of_both_run_side_by_side_and_share_a_pool",
        None,
    );
}

#[test]
fn debians_kernels_run_side_by_side_where_memory_costs_what_their_parts_say() {
    debians(
        "debians_kernels_run_side_by_side_where_memory_costs_what_their_parts_say",
        Some(["xeon-gold-6230r", "thunderx2-cn9980"]),
    );
}

#[test]
fn when_one_machine_dies_the_other_is_ended_and_it_is_told() {
    let Some(emulators) = emulators("when_one_machine_dies_the_other_is_ended_and_it_is_told")
    else {
        return;
    };
    // Waits for a doorbell that never comes, since the other machine's program isn't one.
    let (text, shared) = two("shared");
    let bench = Bench::new(DOORBELL, &[1, 0, shared]);
    std::fs::write(bench.folder.path().join("x86_64"), "no program").expect("a file");
    let error = run(&bench.world(&text), &emulators, &options()).expect_err("it can't boot");
    let LaunchError::Failed {
        machine,
        last_words,
        ..
    } = &error
    else {
        panic!("{error}");
    };
    assert_eq!(machine, "x86", "{error}");
    assert!(last_words.contains("kernel"), "{error}");
    assert_eq!(children(), Vec::<String>::new());
}

#[test]
fn a_run_that_is_interrupted_or_takes_too_long_leaves_nothing() {
    let Some(emulators) = emulators("a_run_that_is_interrupted_or_takes_too_long_leaves_nothing")
    else {
        return;
    };
    // The second machine's program waits for the first's for ever: that one only measures its clock.
    let (text, shared) = two("shared");
    let bench = Bench::new(DOORBELL, &[1, 0, shared]);
    let clock = CLOCK.x86_64(&[1000, 1, 1000]);
    std::fs::write(bench.folder.path().join("x86_64"), clock).expect("a file");
    let world = bench.world(&text);
    let short = Options {
        timeout: Some(Duration::from_secs(2)),
        ..options()
    };
    let error = run(&world, &emulators, &short).expect_err("it waits for ever");
    assert!(matches!(error, LaunchError::TooLong(2)), "{error}");
    let interrupted = Arc::new(AtomicBool::new(true));
    let stopped = Options {
        interrupted: Arc::clone(&interrupted),
        ..options()
    };
    let error = run(&world, &emulators, &stopped).expect_err("it is asked to end");
    assert!(matches!(error, LaunchError::Interrupted), "{error}");
    assert!(interrupted.load(Ordering::Relaxed));
    assert_eq!(children(), Vec::<String>::new());
}

/// A tree in which everything but the version is as it should be.
fn tree_of(version: &str, without: &str) -> (tempfile::TempDir, Emulators) {
    use std::os::unix::fs::PermissionsExt as _;
    let tree = tempfile::tempdir().expect("a folder");
    let file = |path: &str, text: &str| -> PathBuf {
        let path = tree.path().join(path);
        std::fs::create_dir_all(path.parent().expect("below the tree")).expect("a folder");
        if without.is_empty() || !path.ends_with(without) {
            std::fs::write(&path, text).expect("a file");
        }
        path
    };
    let says = file(
        "qemu",
        &format!("#!/bin/sh\necho 'QEMU emulator version {version}'\n"),
    );
    std::fs::set_permissions(&says, std::fs::Permissions::from_mode(0o755)).expect("ours");
    for name in [
        "bios-256k.bin",
        "kvmvapic.bin",
        "linuxboot_dma.bin",
        "pvh.bin",
    ] {
        file(&format!("fw/{name}"), "");
    }
    let mut emulators = Emulators::in_tree(tree.path(), file("plugin.so", ""));
    for emulator in [&mut emulators.x86_64, &mut emulators.aarch64] {
        emulator.command = vec![says.clone().into()];
        emulator.firmware = vec![tree.path().join("fw")];
    }
    (tree, emulators)
}

#[test]
fn what_is_missing_is_told_before_anything_starts() {
    const DEBIAN: &str = "10.0.13 (Debian 1:10.0.13+ds-0+deb13u1)";
    let bench = Bench::new(CLOCK, &[]);
    let refused = |emulators: &Emulators, text: &str, expected: &str| {
        let error = run(&bench.world(text), emulators, &options()).expect_err(expected);
        let error = error.to_string();
        assert!(error.contains(expected), "{error}\nshould say: {expected}");
    };
    let x86 = alone("x86-64", "x86_64");
    let (_kept, old) = tree_of("9.2.0 (Debian 1:9.2.0)", "");
    refused(&old, &x86, "QEMU emulator version 9.2.0");
    let (_kept, foreign) = tree_of("10.0.2", "");
    refused(&foreign, &x86, "Debian's QEMU 10.0 only");
    let (_kept, no_firmware) = tree_of(DEBIAN, "pvh.bin");
    refused(&no_firmware, &x86, "needs QEMU's firmware pvh.bin");
    let (_kept, no_plugin) = tree_of(DEBIAN, "plugin.so");
    refused(&no_plugin, &x86, "plugin.so; build it with");
    let (tree, good) = tree_of(DEBIAN, "");
    let nowhere = Emulators::in_tree(&tree.path().join("nowhere"), good.plugin.clone());
    refused(&nowhere, &x86, "qemu-system-x86_64, which isn't there");
    refused(&good, &alone("x86-64", "nothing"), "needs its kernel");
    refused(
        &good,
        &format!("{x86}firmware = \"f\"\n"),
        "needs its firmware",
    );
    refused(
        &good,
        &format!("{x86}initrd = \"i\"\n"),
        "needs its initial root",
    );
    refused(
        &good,
        &format!("{x86}serial = \"no/log\"\n"),
        "folder for its serial log",
    );
    refused(
        &good,
        &format!("{x86}[[machine.drive]]\nfile = \"d\"\n"),
        "needs its drive",
    );
    refused(&good, &x86.replace("64M", "252G"), "this machine has");
    let large = std::fs::File::create(bench.folder.path().join("large")).expect("a file");
    large.set_len(60 << 20).expect("it is sparse");
    refused(
        &good,
        &alone("aarch64", "large"),
        "need 84 MiB; give it more",
    );
}
