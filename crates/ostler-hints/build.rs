//! Compiles `bpf/core/hints.h` natively.

use std::path::Path;

fn main() {
    let core = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bpf/core");
    cc::Build::new()
        .file("src/native.c")
        .include(&core)
        .warnings_into_errors(true)
        .compile("ostler_hints");
    println!("cargo::rerun-if-changed=src/native.c");
    for header in ["hints.h", "types.h"] {
        println!("cargo::rerun-if-changed={}", core.join(header).display());
    }
}
