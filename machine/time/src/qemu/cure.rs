//! Two faults of QEMU 10.0's TCG, mended in the running program. Both are QEMU's, in any kind of time; to be dropped when
//! QEMU has mended them itself.
//!
//! **A delivered event looks pending.** When TCG delivers an exception inside a guest of the emulated host, it clears only
//! the VALID bit of the VMCB's EVENTINJ field (`do_interrupt_all`), and the next exit copies the rest, the type bits among
//! it, to EXITINTINFO. KVM since 6.14 looks at the type bits alone, takes the event for one in flight, and refuses to
//! emulate the access to a device that comes next: "KVM internal error. Suberror: 3", and the guest is dead. The mended
//! instruction clears the whole field, as the processor manual has it.
//!
//! **A lost interrupt.** VMRUN with a virtual interrupt pending (`helper_vmrun`) sets a bit of the core's pending interrupts
//! by an ordinary read-modify-write and without QEMU's big lock, under which all others change that word. Whoever raises an
//! interrupt for that core at the same moment may see it overwritten. If it was the core's timer, the core hangs until
//! somebody else interrupts it. The mended instruction is atomic; the other side is ours anyway ([`super::interrupt`]).

use super::code;
use super::layout::Offsets;
use super::patch::Change;
use super::symbols::{Opaque, Symbols, code_of};
use crate::refusal::Refusal;

/// Mends both; returns what was done, in words. No core may exist yet.
pub fn mend(symbols: &Symbols, offsets: &Offsets) -> Result<Vec<String>, Refusal> {
    // All are found before any is made.
    let changes = [event(symbols)?, interrupt(symbols, offsets)?];
    let mut told = Vec::new();
    for change in changes {
        change.make()?;
        told.push(format!("mended {change}"));
    }
    Ok(told)
}

fn event(symbols: &Symbols) -> Result<Change, Refusal> {
    let (fault, function) = ("a delivered event looks pending", "do_interrupt_all");
    let address = symbols.do_interrupt_all as Opaque;
    let text = code_of(address).unwrap_or_default();
    let places = code::valid_bit_clears(text);
    let wrong = Refusal::Cure {
        fault,
        function,
        expected: "and $0x7fffffff,%reg",
        found: places.len(),
    };
    let [offset] = places[..] else {
        return Err(wrong);
    };
    let bytes = code::clears_all(&text[offset..]).ok_or(wrong)?.to_vec();
    Ok(Change {
        what: fault,
        function,
        address,
        offset,
        bytes,
    })
}

fn interrupt(symbols: &Symbols, offsets: &Offsets) -> Result<Change, Refusal> {
    let (fault, function) = ("a lost interrupt", "helper_vmrun");
    let address = symbols.helper_vmrun as Opaque;
    let text = code_of(address).unwrap_or_default();
    let places = code::virtual_interrupt_sets(text);
    let wrong = Refusal::Cure {
        fault,
        function,
        expected: "orl $0x100,interrupt_request",
        found: places.len(),
    };
    let [offset] = places[..] else {
        return Err(wrong);
    };
    // The helper is given the architectural part of the core's structure, which follows the common one at the next multiple
    // of 16 after the flag that we know: so the same word must come out.
    let environment = (offsets.leave + 2).next_multiple_of(16);
    let word = code::or_displacement(&text[offset..]).and_then(|displacement| {
        let at = i64::try_from(environment).ok()? + i64::from(displacement);
        usize::try_from(at).ok()
    });
    if word != Some(offsets.interrupts) {
        return Err(wrong);
    }
    let bytes = code::sets_atomically(&text[offset..])
        .ok_or(wrong)?
        .to_vec();
    Ok(Change {
        what: fault,
        function,
        address,
        offset,
        bytes,
    })
}
