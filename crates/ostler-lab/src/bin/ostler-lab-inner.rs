//! The lab's side inside the emulated host. Statically linked; started as its first program by the initial root.

use std::process::ExitCode;

fn main() -> ExitCode {
    ostler_lab::inner::main(std::env::args().nth(1).as_deref())
}
