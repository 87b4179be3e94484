use std::path::Path;

use super::*;

const INHERITED: Inherited = Inherited {
    memory: 7,
    page: 8,
    costs: None,
};

/// The words of a machine's command.
fn words(text: &str, number: usize) -> String {
    words_with(text, number, &INHERITED)
}

fn words_with(text: &str, number: usize, inherited: &Inherited) -> String {
    let world = World::parse(text, Path::new("/w/w.toml")).expect("it is good");
    let emulators = Emulators::in_tree(Path::new("/tree"), "/p,1/plugin.so".into());
    let command = command(&world, number, &emulators, inherited);
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}

const TWO: &str = r#"
[[machine]]
name = "x86"
isa = "x86-64"
kernel = "kx"
[[machine]]
name = "arm"
isa = "aarch64"
cores = 3
kernel = "ka"
instruction_ns = 0.5
[memory]
model = "shared"
[[memory.range]]
start = 0
size = "1G"
owner = "x86"
[[memory.range]]
start = "1G"
size = "3G"
owner = "arm"
[[memory.range]]
start = "4G"
size = "512M"
owner = "pool"
"#;

#[test]
fn what_both_see_is_one_file_at_its_own_address_and_the_rest_is_private() {
    let x86 = words(TWO, 0);
    for expected in [
        "-m 1536M",
        "-M q35,max-ram-below-4g=1073741824",
        "-smp 1,maxcpus=2",
        "memory-backend-ram,id=memory0,size=1073741824",
        "memory-backend-file,id=memory1,size=536870912,offset=4294967296,share=on,mem-path=/proc/self/fd/7",
        "-numa node,nodeid=0,memdev=memory0,cpus=0-1 -numa node,nodeid=1,memdev=memory1",
        "file=/p,,1/plugin.so,quantum=992,cost=1.000,page=/proc/self/fd/8,machine=0,latency=2000",
        "-kernel /w/kx",
    ] {
        assert!(x86.contains(expected), "{expected}\nisn't in\n{x86}");
    }
    let arm = words(TWO, 1);
    for expected in [
        "/tree/usr/bin/qemu-system-aarch64",
        "-m 3584M",
        "-M virt,gic-version=3 ",
        "-smp 3,maxcpus=3",
        "memory-backend-ram,id=memory0,size=3221225472",
        "cpus=0-2",
        "cost=0.500,page=/proc/self/fd/8,machine=1",
    ] {
        assert!(arm.contains(expected), "{expected}\nisn't in\n{arm}");
    }
}

#[test]
fn in_the_separated_model_each_sees_the_others_memory() {
    let text = TWO
        .replace("\"shared\"", "\"separated\"")
        .replace("\"pool\"", "\"x86\"");
    let arm = words(&text, 1);
    assert!(
        arm.contains("size=536870912,offset=4294967296,share=on"),
        "{arm}"
    );
    // It lies where x86-64 machines have devices, in part: nobody else sees any of it.
    assert!(arm.contains("memory-backend-ram,id=memory0"), "{arm}");
}

#[test]
fn a_machine_alone_has_ordinary_memory_and_drives_that_forget() {
    let text = "[[machine]]\nname = \"a\"\nisa = \"aarch64\"\nmemory = \"64M\"\nkernel = \"k\"\nappend = \"quiet x\"\n\
                [[machine.drive]]\nfile = \"d,1\"\n[[machine.drive]]\nfile = \"/e\"\nkeep = true\n";
    let one = words(text, 0);
    for expected in [
        "-m 64M",
        "-smp 1,maxcpus=1",
        "-append quiet x",
        "id=drive0,file=/w/d,,1,snapshot=on",
        "id=drive1,file=/e -device",
        "virtio-blk-pci,drive=drive1,ioeventfd=off",
    ] {
        assert!(one.contains(expected), "{expected}\nisn't in\n{one}");
    }
    assert!(!one.contains("numa") && !one.contains("page="), "{one}");
}

#[test]
fn machines_with_parts_share_a_block_of_what_memory_costs() {
    let parts = TWO
        .replace(
            "kernel = \"kx\"",
            "kernel = \"kx\"\npart = \"xeon-gold-6230r\"",
        )
        .replace("kernel = \"ka\"", "kernel = \"ka\"\npart = \"cortex-a72\"");
    let inherited = Inherited {
        costs: Some(Costs {
            topology: 9,
            block: Some(10),
        }),
        ..INHERITED
    };
    for (number, first) in [(0, 0), (1, 2)] {
        let words = words_with(&parts, number, &inherited);
        let expected = format!(
            ",timing=caches,topology=/proc/self/fd/9,block=/proc/self/fd/10,first={first} "
        );
        assert!(words.contains(&expected), "{expected}\nisn't in\n{words}");
    }
}
