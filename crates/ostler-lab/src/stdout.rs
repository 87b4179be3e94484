//! Results, on standard output, and what is said beside them, on standard error: whoever reads them may have seen enough at any time (`| head`), which is no
//! error.

use std::io::{self, Write as _};

use anyhow::Context as _;

/// Prints text.
pub fn print(text: &str) -> anyhow::Result<()> {
    io::stdout()
        .lock()
        .write_all(text.as_bytes())
        .or_else(quiet_pipe)
}

/// Says something on standard error. Nobody need listen: `eprintln!` panics where its reader has gone.
pub fn tell(said: std::fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "{said}");
}

/// [`tell`] with a format's arguments.
#[macro_export]
macro_rules! tell {
    ($($said:tt)*) => { $crate::stdout::tell(format_args!($($said)*)) };
}

/// A reader that closed its end has seen enough: no error.
pub fn quiet_pipe(error: io::Error) -> anyhow::Result<()> {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return Ok(());
    }
    Err(error).context("could not write to standard output")
}
