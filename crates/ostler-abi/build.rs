//! Compiles the guest protocol with a compiler that is a crate, so that a build needs no protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto/guest.proto");
    let descriptors = protox::compile(["proto/guest.proto"], ["proto"])?;
    prost_build::Config::new().compile_fds(descriptors)?;
    Ok(())
}
