//! A fifth fault of QEMU's, and the costliest for a host that traces: breakpoints that are executed after they were taken away.
//!
//! Linux changes its own running code (static keys, tracepoints, trampolines) by putting a breakpoint over an instruction, then
//! its tail, then its first byte back, and making all cores notice after each step (`smp_text_poke_batch_finish`). When a store
//! hits a page that has been translated, QEMU drops the translations of those bytes first and stores then (`notdirty_write` in
//! accel/tcg/cputlb.c). A core that comes by between the two translates the old byte again, and nothing ever drops that
//! translation. If the old byte was the breakpoint, the next core that comes there takes a trap of which its kernel
//! knows nothing: "Oops: int3", and the host is dead. The functions that handle interrupts between cores are where this
//! happens, since each step of a change has every core run through them.
//!
//! The cure: a breakpoint looks, each time before it is executed, whether it is still there in memory. If it isn't, all translations are
//! dropped, and the core goes on with what is there now. A translation with a breakpoint ends with it, so that only the
//! last instruction of each needs a look when it is made.

use std::arch::naked_asm;
use std::ffi::{c_uint, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use super::symbols::{Opaque, Symbols};

/// `int3`.
const BREAKPOINT: u8 = 0xcc;
/// `QEMU_PLUGIN_CB_RW_REGS`: all of the core's registers are in memory during the call, so that it need not return.
const ALL_REGISTERS: i32 = 2;

/// How often a breakpoint was met that was there no more.
pub static MET: AtomicU64 = AtomicU64::new(0);

/// Has a block's breakpoint, if it ends with one, look at itself.
///
/// # Safety
/// Only within the callback for translations, with its block.
pub unsafe fn watch(symbols: &Symbols, block: Opaque, instructions: usize) {
    let Some(last) = instructions.checked_sub(1) else {
        return;
    };
    let mut first_byte = 0_u8;
    // SAFETY: QEMU's own plugin interface; the instruction exists, and one byte is asked for.
    unsafe {
        let instruction = (symbols.qemu_plugin_tb_get_insn)(block, last);
        (symbols.qemu_plugin_insn_data)(instruction, (&raw mut first_byte).cast(), 1);
        if first_byte != BREAKPOINT {
            return;
        }
        // Where the byte is in our own memory; null for code in a device.
        let at = (symbols.qemu_plugin_insn_haddr)(instruction);
        if !at.is_null() {
            (symbols.qemu_plugin_register_vcpu_insn_exec_cb)(
                instruction,
                reached,
                ALL_REGISTERS,
                at,
            );
        }
    }
}

/// A breakpoint is about to be executed. From here on the place in the translation that we were called from is known, which
/// QEMU needs to tell how far the core has got.
#[unsafe(naked)]
unsafe extern "C" fn reached(core: c_uint, at: *mut c_void) {
    naked_asm!("mov rdx, [rsp]", "jmp {}", sym reached_from)
}

unsafe extern "C" fn reached_from(core: c_uint, at: *mut c_void, from: usize) {
    // SAFETY: it is a byte of the emulated machine's memory, which stays mapped as long as there are cores.
    if unsafe { at.cast::<u8>().read_volatile() } == BREAKPOINT {
        return;
    }
    MET.fetch_add(1, Ordering::Relaxed);
    let qemu = &super::machine().emulator;
    let Some(cpu) = qemu.cpu(core as usize) else {
        return;
    };
    // SAFETY: this is the core's own thread, in translated code, with all of its registers in memory; the flush is put off
    // until the core has left that code, which it does right here, by a jump over this frame and the one above, neither
    // of which has anything to undo.
    unsafe {
        (qemu.symbols.tb_flush)(cpu.0);
        (qemu.symbols.cpu_loop_exit_restore)(cpu.0, from);
    }
}
