//! Compiles each program for both instruction sets, by the system's two C compilers.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What every program consists of.
const COMMON: &str = "machine.c";
/// A name, its compiler, the package that has it, and flags of its own.
const TARGETS: &[(&str, &str, &str, &[&str])] = &[
    (
        "x86_64",
        "x86_64-linux-gnu-gcc",
        "gcc",
        &["-m64", "-mno-red-zone"],
    ),
    (
        "aarch64",
        "aarch64-linux-gnu-gcc",
        "gcc-aarch64-linux-gnu",
        &["-march=armv8.1-a", "-mno-outline-atomics"],
    ),
];
/// Flags for all: no operating system, no library, no vector registers in interrupt handlers.
const FLAGS: &[&str] = &[
    "-O2",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-ffreestanding",
    "-fno-pic",
    "-fno-pie",
    "-no-pie",
    "-mgeneral-regs-only",
    "-fno-stack-protector",
    "-nostdlib",
    "-static",
    "-Wl,--build-id=none",
    "-Wl,-z,noexecstack",
    "-Wl,--no-warn-rwx-segments",
];
const PROGRAMS: &[&str] = &[
    "ball", "clock", "doorbell", "litmus", "memory", "pages", "sort",
];

fn main() {
    let folder = Path::new("c");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    println!("cargo::rerun-if-changed=c");
    for (target, compiler, package, flags) in TARGETS {
        for program in PROGRAMS {
            let mut command = Command::new(compiler);
            command
                .args(FLAGS)
                .args(*flags)
                .arg(format!(
                    "-Wl,-T,{}",
                    folder.join(target).with_extension("ld").display()
                ))
                .arg(folder.join(format!("start_{target}.S")))
                .arg(folder.join(COMMON))
                .arg(folder.join(program).with_extension("c"))
                .arg("-o")
                .arg(out.join(format!("{program}.{target}")));
            let status = command.status().unwrap_or_else(|error| {
                panic!("could not start {compiler}: {error}; install the package {package} (`cargo xtask setup` does)")
            });
            assert!(
                status.success(),
                "{compiler} could not build {program} ({status}); its messages are above"
            );
        }
    }
}
