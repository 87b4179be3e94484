//! QEMU's main loop sleeps until the next timer is due, and takes the virtual clock's time for real time: a tick that is a
//! millisecond away may take ten to come. So it wakes, finds nothing due, sleeps for the rest, and so on ever faster; and each
//! time it takes the big lock and a real core from the emulated ones. On two real cores that was half of all work.
//!
//! When QEMU counts instructions itself (`-icount`), it leaves the virtual clock's timers out of that sum, since whoever moves the
//! clock on fires them (`qemu_clock_use_for_deadline`). That is just our case. So the sum is made to believe it. Timers of the block
//! layer, which only the main loop may run, are looked at whenever it is woken, and we wake it for them
//! ([`crate::machine::Machine`]).

use super::code;
use super::patch::Change;
use super::symbols::{Opaque, Symbols, code_of};
use crate::refusal::Refusal;

/// Makes the main loop leave the virtual clock's timers to us. Returns whether its code was as expected; if it isn't, the machine
/// is slower and otherwise the same.
pub fn leave_timers(symbols: &Symbols) -> Result<bool, Refusal> {
    let address = symbols.timerlistgroup_deadline_ns as Opaque;
    let places = code::virtual_deadline_jumps(code_of(address).unwrap_or_default());
    let [offset] = places[..] else {
        return Ok(false);
    };
    let change = Change {
        what: "the main loop sleeps by the virtual clock",
        function: "timerlistgroup_deadline_ns",
        address,
        offset,
        bytes: code::NO_JUMP.to_vec(),
    };
    change.make()?;
    Ok(true)
}
