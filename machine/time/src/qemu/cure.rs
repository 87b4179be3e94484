//! Four faults of QEMU 10.0's TCG, mended in the running program. All are its x86-64 target's, in any kind of time; to be dropped when
//! QEMU has mended them itself. None is known of its AArch64 target.
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
//!
//! **The first core's mode undone.** Whichever core loads an x87 state, as every switch between tasks and every entry of a guest
//! does (FXRSTOR, XRSTOR), clears a flag that tells the *first* core to ignore errors of its coprocessor, a matter of the PC/AT
//! (`cpu_clear_ignne`): by an ordinary read-modify-write, from any thread, of the word that also says whether that core has its
//! interrupts open (GIF), whether it is under nested paging, and how its guest's interrupts are masked (`hflags2`). If the first core
//! enters or leaves a guest at that moment, it finds its old mode again. Without GIF it runs its guest for ever and takes no
//! interrupt: it hangs, and with it whichever device interrupts that core. With nested paging left on after an exit, the host's own
//! state is stored as the guest's; with it off after an entry, the guest's addresses are taken for the host's: the guest dies of a
//! triple fault and says nothing. All three were seen, a few minutes of work apart, on eight cores. The mended
//! instruction is atomic; as the flag it clears is never set by a system of this century, the word stays as its core has it.
//!
//! **An interrupt delivered twice.** VMRUN delivers an interrupt that the hypervisor injects right away, but has noted its vector
//! before as that of an exception still to come (`exception_index`), and leaves the note there. If the core's thread is then asked to
//! leave its guest's code for a reason that is no interrupt, or by a kick that comes late, it finds the note and delivers
//! the vector once more, whether the guest has its interrupts off or not. Found by reading, not by seeing it happen. The mended
//! instruction makes no note; whatever else needs one makes its own.

use super::code;
use super::layout::Offsets;
use super::patch::Change;
use super::symbols::{Faulty, Opaque, code_of};
use crate::refusal::Refusal;

/// Mends all; returns what was done, in words. No core may exist yet.
pub fn mend(symbols: &Faulty, offsets: &Offsets) -> Result<Vec<String>, Refusal> {
    // All are found before any is made.
    let changes = [
        event(symbols)?,
        interrupt(symbols, offsets)?,
        first_core(symbols)?,
        twice(symbols)?,
    ];
    let mut told = Vec::new();
    for change in changes {
        change.make()?;
        told.push(format!("mended {change}"));
    }
    Ok(told)
}

fn event(symbols: &Faulty) -> Result<Change, Refusal> {
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

fn interrupt(symbols: &Faulty, offsets: &Offsets) -> Result<Change, Refusal> {
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
    // The helper is given the architectural part of the core's structure: so the same word must come out.
    let environment = offsets.environment();
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

fn first_core(symbols: &Faulty) -> Result<Change, Refusal> {
    let (fault, function) = ("the first core's mode undone", "cpu_clear_ignne");
    let address = symbols.cpu_clear_ignne as Opaque;
    let text = code_of(address).unwrap_or_default();
    let places = code::ignne_clears(text);
    let wrong = Refusal::Cure {
        fault,
        function,
        expected: "andl $0xffffff7f,hflags2",
        found: places.len(),
    };
    let [offset] = places[..] else {
        return Err(wrong);
    };
    let bytes = code::clears_atomically(&text[offset..])
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

fn twice(symbols: &Faulty) -> Result<Change, Refusal> {
    let (fault, function) = ("an interrupt delivered twice", "helper_vmrun");
    let address = symbols.helper_vmrun as Opaque;
    let text = code_of(address).unwrap_or_default();
    let delivers = (symbols.do_interrupt_x86_hardirq as Opaque).addr();
    let places = code::vector_notes(text, address.addr(), delivers);
    let [offset] = places[..] else {
        return Err(Refusal::Cure {
            fault,
            function,
            expected: "mov %reg,exception_index before the delivery",
            found: places.len(),
        });
    };
    Ok(Change {
        what: fault,
        function,
        address,
        offset,
        bytes: code::NO_STORE.to_vec(),
    })
}
