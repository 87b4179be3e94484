//! Compiles `bpf/core/boost.h` natively.

use std::path::Path;

fn main() {
    // Asked for when run, not when compiled: a build folder may be shared by, or outlive, a checkout.
    let here = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    let core = Path::new(&here).join("../../bpf/core");
    cc::Build::new()
        .file("src/native.c")
        .include(&core)
        .warnings_into_errors(true)
        .compile("ostler_boost");
    println!("cargo::rerun-if-changed=src/native.c");
    for header in ["boost.h", "types.h"] {
        println!("cargo::rerun-if-changed={}", core.join(header).display());
    }
}
