//! Compiles the helper-free C that BPF programs share with the tests.

use std::path::Path;

fn main() {
    let core = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bpf/core");
    cc::Build::new()
        .file("src/core_native.c")
        .include(&core)
        .warnings_into_errors(true)
        .compile("ostler_core");
    println!("cargo::rerun-if-changed={}", core.display());
    println!("cargo::rerun-if-changed=src/core_native.c");
}
