//! Instructions of QEMU's that are changed in the running program.
#![allow(
    unsafe_code,
    reason = "instructions of the running program are changed"
)]

use std::fmt;

use super::code;
use super::symbols::Opaque;
use crate::refusal::Refusal;

/// A change of one function's code.
#[derive(Debug)]
pub struct Change {
    /// What it is about, in words.
    pub what: &'static str,
    /// The function's name.
    pub function: &'static str,
    /// Where the function is.
    pub address: Opaque,
    /// Where in it the new bytes go.
    pub offset: usize,
    /// The new bytes.
    pub bytes: Vec<u8>,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "\"{}\" in {}+{:#x}: now {}",
            self.what,
            self.function,
            self.offset,
            code::hex(&self.bytes)
        )
    }
}

impl Change {
    /// Writes the instructions into code that is mapped read-only. No core may exist yet.
    pub fn make(&self) -> Result<(), Refusal> {
        const PAGE: usize = 4096;
        let at = self.address.wrapping_byte_add(self.offset).cast::<u8>();
        let page = at.map_addr(|address| address & !(PAGE - 1));
        let length = at.addr() - page.addr() + self.bytes.len();
        let protect = |protection| {
            // SAFETY: the pages are mapped, as they hold the function; only their protection changes, and execution stays
            // allowed throughout, since other threads may run code in them.
            let done = unsafe { libc::mprotect(page.cast(), length, protection) };
            if done == 0 {
                return Ok(());
            }
            Err(Refusal::Protected {
                error: std::io::Error::last_os_error().to_string(),
            })
        };
        protect(libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC)?;
        // SAFETY: the bytes lie within the function, and nobody executes them: only cores do, and there are none yet.
        unsafe { std::ptr::copy_nonoverlapping(self.bytes.as_ptr(), at, self.bytes.len()) };
        protect(libc::PROT_READ | libc::PROT_EXEC)
    }
}
