use std::path::Path;

use super::*;

const ONE: &str = r#"[[machine]]
name = "a"
isa = "x86-64"
memory = "512M"
kernel = "k"
"#;

const X86: &str = r#"[[machine]]
name = "x86"
isa = "x86-64"
kernel = "k"
"#;

const ARM: &str = r#"[[machine]]
name = "arm"
isa = "aarch64"
kernel = "a/k"
"#;

/// Ranges as `start, size, owner`, in GiB.
fn two(model: &str, ranges: &[(&str, &str, &str)]) -> String {
    let range = |(start, size, owner): &(&str, &str, &str)| {
        format!("[[memory.range]]\nstart = {start}\nsize = \"{size}\"\nowner = \"{owner}\"\n")
    };
    let ranges: String = ranges.iter().map(range).collect();
    format!("{X86}{ARM}[memory]\nmodel = \"{model}\"\n{ranges}")
}

const SEPARATED: &[(&str, &str, &str)] = &[
    ("0", "1G", "x86"),
    ("0x4000_0000", "1G", "arm"),
    ("0x8000_0000", "2G", "arm"),
    ("\"4G\"", "1G", "x86"),
];
const SHARED: &[(&str, &str, &str)] = &[
    ("0", "1G", "x86"),
    ("0x4000_0000", "3G", "arm"),
    ("\"4G\"", "1G", "pool"),
];
const FULLY: &[(&str, &str, &str)] = &[
    ("0", "1G", "x86"),
    ("0x4000_0000", "1G", "pool"),
    ("0x8000_0000", "256M", "pool"),
];

fn parse(text: &str) -> Result<World, String> {
    World::parse(text, Path::new("dir/w.toml")).map_err(|error| error.to_string())
}

#[test]
fn the_example_in_the_documentation_is_good() {
    let world = parse(include_str!("../../../docs/machine.toml")).expect("it is good");
    assert_eq!((world.machines.len(), world.ranges.len()), (2, 3));
    assert_eq!(world.time.quantum_ns, 992);
}

#[test]
fn a_machine_alone_needs_little() {
    let world = parse(&format!("{ONE}initrd = \"i\"\nappend = \"quiet\"\n")).expect("it is good");
    let machine = &world.machines[0];
    assert_eq!((machine.cores, machine.instruction_ps), (1, 1000));
    assert_eq!(machine.kernel, Path::new("dir/k"), "beside the file");
    assert_eq!((world.time.quantum_ns, world.is_fused()), (10_000, false));
    assert_eq!(world.ranges[0].bytes, 512 << 20);
    // Above 2.75 GiB, what is left goes behind the devices.
    let large = parse(&ONE.replace("512M", "3G")).expect("it is good");
    let ranges: Vec<_> = large.ranges.iter().map(|r| (r.start, r.bytes)).collect();
    assert_eq!(ranges, [(0, 2 << 30), (4 << 30, 1 << 30)]);
}

#[test]
fn each_model_has_a_layout_and_a_quantum_that_fits() {
    for (model, ranges) in [
        ("separated", SEPARATED),
        ("shared", SHARED),
        ("fully-shared", FULLY),
    ] {
        let world = parse(&two(model, ranges)).unwrap_or_else(|error| panic!("{model}: {error}"));
        assert_eq!(world.ranges.len(), ranges.len());
        assert_eq!(
            (world.time.interrupt_ns, world.time.quantum_ns),
            (2000, 992)
        );
    }
}

#[test]
fn a_part_says_what_an_instruction_costs_unless_the_file_does() {
    let part = |more: &str| {
        let world = parse(&format!("{ONE}part = \"xeon-gold-6230r\"\n{more}"));
        world.expect("it is good").machines[0].instruction_ps
    };
    assert_eq!((part(""), part("instruction_ns = 0.25\n")), (476, 250));
}

/// What is written, and what is said of it.
fn refused(text: &str, expected: &str) {
    let error = parse(text).expect_err(text);
    assert!(error.contains(expected), "{error}\nshould say: {expected}");
}

#[test]
fn machines_that_cant_be_are_refused() {
    refused("", "missing field `machine`");
    refused("machine = []", "there is no machine");
    refused(&ONE.replace("x86-64", "riscv"), "unknown variant `riscv`");
    refused(&format!("{ONE}x = 1\n"), "unknown field `x`");
    refused(
        &ONE.replace("\"a\"", "\"A b\""),
        "w.toml:2: a machine is called \"A b\"",
    );
    refused(
        &format!("{ONE}cores = 65\n"),
        "w.toml:6: cores = 65; write 1 to 64",
    );
    refused(
        &format!("{ONE}instruction_ns = 0.0\n"),
        "instruction_ns = 0",
    );
    refused(&ONE.replace("512M", "31M"), "a multiple of 2 MiB");
    refused(
        &ONE.replace("512M", "30M"),
        "memory = 30 MiB; a machine needs at least 32 MiB",
    );
    refused(&ONE.replace("512M", "much"), "write it like \"512M\"");
    refused(X86, "machine x86 has no memory");
    refused(
        &format!("{ONE}part = \"z80\"\n"),
        "w.toml:6: part = \"z80\"",
    );
    refused(&format!("{ONE}part = \"z80\"\n"), "known are: ");
    refused(
        &format!("{ONE}{X86}{ARM}"),
        "3 machines; describe one or two",
    );
    refused(
        &format!("{X86}{}", X86.replace("x86\"", "b\"")),
        "both machines are x86-64",
    );
    refused(
        &format!("{X86}{}", ARM.replace("\"arm\"", "\"x86\"")),
        "two machines are called",
    );
    let log = "serial = \"log\"\n";
    refused(&format!("{X86}{log}{ARM}{log}"), "both machines log to log");
    refused(&format!("{X86}{ARM}"), "two machines, and no [memory]");
    refused(
        &format!("{ONE}[memory]\nmodel = \"shared\"\n"),
        "without ranges",
    );
}

#[test]
fn memory_that_doesnt_add_up_is_refused() {
    let with = |model: &str,
                ranges: &[(&str, &str, &str)],
                more: (&'static str, &'static str, &'static str)| {
        let mut all = ranges.to_vec();
        all.push(more);
        two(model, &all)
    };
    refused(
        &with("shared", SHARED, ("\"4608M\"", "1G", "pool")),
        "overlap; give each address to one",
    );
    refused(
        &with("shared", SHARED, ("\"5G\"", "1G", "arm2")),
        "there is no machine \"arm2\"; write x86, arm, or pool",
    );
    refused(
        &with("shared", SHARED, ("\"5G\"", "0M", "pool")),
        "ranges have some bytes",
    );
    refused(
        &with("shared", SHARED, ("\"251G\"", "2G", "pool")),
        "end at 0x3f00000000 at the latest",
    );
    refused(
        &with("shared", SHARED, ("\"5G\"", "3M", "pool")),
        "a multiple of 2 MiB",
    );
    refused(
        &with("shared", SHARED, ("\"6G\"", "1G", "pool")),
        "and none from 0x140000000 to there",
    );
    refused(
        &with("separated", SEPARATED, ("\"5G\"", "1G", "pool")),
        "has no pool",
    );
    refused(
        &with("fully-shared", FULLY, ("\"4G\"", "1G", "x86")),
        "would be one machine's",
    );
    refused(&two("shared", &SHARED[..2]), "no range is the pool's");
    refused(
        &two("separated", &SEPARATED[1..]),
        "machine x86 sees memory from 0x40000000 on, and none from 0x0",
    );
    // The second machine boots at 1 GiB, which is the first's here.
    let foreign = [SEPARATED[0], ("0x4000_0000", "1G", "x86"), SEPARATED[2]];
    refused(
        &two("separated", &foreign),
        "machine arm boots in its memory from 0x40000000 on, and has 0 MiB",
    );
    let blind = [("0", "1G", "arm"), SHARED[1], SHARED[2]];
    refused(
        &two("shared", &blind),
        "machine arm can't have memory at 0x0 to 0x3fffffff",
    );
    let blind = [SHARED[0], ("0x4000_0000", "3G", "pool")];
    refused(
        &two("shared", &blind),
        "machine x86 can't have memory at 0x40000000",
    );
}

#[test]
fn interrupts_that_could_come_late_are_refused() {
    let time = |time: &str| format!("{}[time]\n{time}\n", two("shared", SHARED));
    refused(&time("quantum_ns = 993"), "write 992 or less");
    refused(&time("quantum_ns = 99"), "write 100 to");
    refused(
        &time("interrupt_ns = 600"),
        "a block of 512 instructions 512 ns",
    );
    refused(&time("interrupt_ns = 99"), "interrupt_ns = 99; write 100");
    let world = parse(&time("interrupt_ns = 20000")).expect("it is good");
    assert_eq!(world.time.quantum_ns, 10_000, "no larger than is any use");
    // A slower core takes longer over a block.
    let slow = two("shared", SHARED).replacen("kernel", "instruction_ns = 2.0\nkernel", 1);
    assert_eq!(parse(&slow).expect("it is good").time.quantum_ns, 650);
}

/// Two machines with these parts, and more for `[memory]`.
fn parts(model: &str, ranges: &[(&str, &str, &str)], parts: [&str; 2], memory: &str) -> String {
    let text = two(model, ranges).replacen(
        "kernel = \"k\"\n",
        &format!("kernel = \"k\"\n{}", parts[0]),
        1,
    );
    let text = text.replacen(
        "kernel = \"a/k\"\n",
        &format!("kernel = \"a/k\"\n{}", parts[1]),
        1,
    );
    text.replacen("[memory]\n", &format!("[memory]\n{memory}"), 1)
}

#[test]
fn what_memory_costs_is_told_of_both_machines_or_of_neither() {
    const X86: &str = "part = \"xeon-gold-6230r\"\n";
    const ARM: &str = "part = \"thunderx2-cn9980\"\n";
    let pool = "pool = \"cxl3-pool\"\n";
    let both = parts("shared", SHARED, [X86, ARM], pool);
    let world = parse(&both).expect("it is good");
    assert!(world.models_memory());
    // A cycle of the slower, 500 ps: a block takes 256 ns.
    assert_eq!(world.time.quantum_ns, 1162);
    assert!(
        !parse(&two("shared", SHARED))
            .expect("it is good")
            .models_memory()
    );
    for (model, ranges) in [("separated", SEPARATED), ("fully-shared", FULLY)] {
        let world = parse(&parts(model, ranges, [X86, ARM], ""));
        assert!(world.expect(model).models_memory());
        refused(
            &parts(model, ranges, [X86, ARM], pool),
            &format!("the model is {model}, and has no pool that is a device"),
        );
    }
    refused(
        &parts("shared", SHARED, [X86, ""], ""),
        "w.toml:7: machine arm has no part, and machine x86 is a xeon-gold-6230r",
    );
    refused(
        &parts("shared", SHARED, ["", ARM], ""),
        "w.toml:2: machine x86 has no part, and machine arm is a thunderx2-cn9980",
    );
    refused(
        &parts("shared", SHARED, ["", ""], pool),
        "w.toml:10: pool = \"cxl3-pool\" says what the pool costs, and no machine has a part",
    );
    refused(
        &parts("shared", SHARED, [X86, ARM], "pool = \"swap\"\n"),
        "w.toml:12: pool = \"swap\": node 2 is a `swap`, which isn't known; known are: cxl2-e3s-x8, cxl3-pool; or leave `pool` out",
    );
    refused(
        &parts("shared", SHARED, [X86, "part = \"z80\"\n"], ""),
        "w.toml:10: part = \"z80\"",
    );
    refused(
        &parts("shared", SHARED, [X86, &format!("{ARM}cores = 63\n")], ""),
        "w.toml:11: with what memory costs, both machines' cores are 65",
    );
}
