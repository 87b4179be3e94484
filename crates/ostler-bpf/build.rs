//! Compiles the BPF programs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use libbpf_cargo::SkeletonBuilder;

/// The oldest clang whose BPF output we rely on.
const CLANG_MAJOR_MIN: u32 = 15;

/// A folder each.
const PROGRAMS: [&str; 5] = ["boost", "least", "sense", "tap", "vcpus"];

fn main() {
    let root = Path::new(&env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo")).join("../..");
    let bpf = root.join("bpf");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    let clang = clang();
    let arch = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("aarch64") => "arm64",
        Ok("riscv64") => "riscv",
        _ => "x86",
    };

    for name in PROGRAMS {
        let source = bpf.join(name).join(format!("{name}.bpf.c"));
        SkeletonBuilder::new()
            .source(&source)
            .obj(out.join(format!("{name}.bpf.o")))
            .clang(&clang)
            .clang_args([
                "-mcpu=v3".to_owned(),
                "-Wall".to_owned(),
                "-Werror".to_owned(),
                format!("-D__TARGET_ARCH_{arch}"),
                format!("-I{}", bpf.join("include").display()),
                format!("-I{}", bpf.join("core").display()),
            ])
            .build()
            .unwrap_or_else(|error| panic!("{}: {error:?}", source.display()));
    }

    for folder in ["include", "core"].into_iter().chain(PROGRAMS) {
        let folder = bpf.join(folder);
        println!("cargo::rerun-if-changed={}", folder.display());
        for entry in fs::read_dir(&folder).expect("the folder is in the repository") {
            let path = entry.expect("readable").path();
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
}

/// `$CLANG`, else clang-19, else a `clang` that is new enough.
fn clang() -> PathBuf {
    println!("cargo::rerun-if-env-changed=CLANG");
    if let Some(clang) = env::var_os("CLANG") {
        return clang.into();
    }
    ["clang-19", "clang"]
        .into_iter()
        .find(|clang| major(clang).is_some_and(|major| major >= CLANG_MAJOR_MIN))
        .unwrap_or_else(|| {
            panic!(
                "the BPF programs need clang {CLANG_MAJOR_MIN} or later; install clang-19, or set CLANG"
            )
        })
        .into()
}

fn major(clang: &str) -> Option<u32> {
    let output = Command::new(clang).arg("-dumpversion").output().ok()?;
    let version = String::from_utf8(output.stdout).ok()?;
    version.trim().split('.').next()?.parse().ok()
}
