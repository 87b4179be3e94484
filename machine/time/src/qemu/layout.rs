//! Where QEMU keeps what we need, and whether this is a QEMU that we know.
#![allow(
    unsafe_code,
    reason = "QEMU's table of accelerator functions and fields of its structures are read and written in place"
)]

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI16, AtomicI32, AtomicU32, Ordering};

use super::code::{self, Pattern};
use super::symbols::{self, Opaque, Symbols, code_of};
use crate::refusal::Refusal;

/// Functions in QEMU's table (`AccelOpsClass`), counted from the one that handles interrupts, whose place is read from
/// `cpu_interrupt`: the kick is seven before it, the clock's three come after it.
const KICK: isize = -7;
const GET_CLOCK: isize = 1;
const SET_CLOCK: isize = 2;
const GET_TICKS: isize = 3;

/// Where things are in QEMU's structures, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offsets {
    /// In `CPUState`: asked to leave for good (a byte).
    pub exit_request: usize,
    /// In `CPUState`: asked to leave its block of code (16 bits, 0 or -1).
    pub leave: usize,
    /// In `CPUState`: depth of exclusive sections (an int).
    pub exclusive: usize,
    /// In `CPUState`: pending interrupts (32 bits).
    pub interrupts: usize,
    /// In `AccelOpsClass`: the function that handles interrupts.
    pub interrupt_slot: usize,
    /// In `BlockBackend`: requests on their way (an int).
    pub in_flight: usize,
}

impl Offsets {
    /// Reads them from the code of the functions that use them.
    pub fn read(symbols: &Symbols, version: &str) -> Result<Offsets, Refusal> {
        let read = |function: &'static str, address: Opaque, pattern: Pattern| {
            let code = code_of(address).unwrap_or_default();
            pattern.offset(code).ok_or_else(|| Refusal::Shape {
                version: version.to_owned(),
                function,
                expected: pattern.written,
                found: code::hex(code),
            })
        };
        let s = symbols;
        Ok(Offsets {
            exit_request: read("cpu_exit", s.cpu_exit as Opaque, code::EXIT_REQUEST)?,
            leave: read("cpu_exit", s.cpu_exit as Opaque, code::LEAVE)?,
            exclusive: read("end_exclusive", s.end_exclusive as Opaque, code::EXCLUSIVE)?,
            interrupts: read(
                "tcg_handle_interrupt",
                s.tcg_handle_interrupt as Opaque,
                code::INTERRUPTS,
            )?,
            interrupt_slot: read(
                "cpu_interrupt",
                s.cpu_interrupt as Opaque,
                code::INTERRUPT_SLOT,
            )?,
            in_flight: read(
                "blk_inc_in_flight",
                s.blk_inc_in_flight as Opaque,
                code::IN_FLIGHT,
            )?,
        })
    }
}

impl Offsets {
    /// Where the architectural part of a core's structure begins: after the common one, which ends with the flag that is looked
    /// at by each block, at the next multiple of 16.
    pub fn environment(&self) -> usize {
        (self.leave + 2).next_multiple_of(16)
    }
}

/// Functions that take the places of QEMU's.
#[derive(Clone, Copy, Debug)]
pub struct Hooks {
    /// `get_virtual_clock` and `get_elapsed_ticks`.
    pub get: extern "C" fn() -> i64,
    /// `set_virtual_clock`.
    pub set: extern "C" fn(i64),
    /// `kick_vcpu_thread`.
    pub kick: extern "C" fn(Opaque),
    /// `handle_interrupt`.
    pub interrupt: extern "C" fn(Opaque, c_int),
}

/// QEMU's table of accelerator functions.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    interrupt: *mut *const c_void,
}

/// How QEMU was told to emulate: three variables of its own.
pub fn check_setting() -> Result<(), Refusal> {
    // SAFETY: two `bool`s and an `enum` of QEMU's, set before plugins are loaded and never after.
    let set = |name| symbols::find(name).is_some_and(|at| unsafe { *at.cast::<u8>() != 0 });
    let refuse = |found, needed| Err(Refusal::Setting { found, needed });
    if !set(c"tcg_allowed") {
        return refuse(
            "QEMU runs with another accelerator than TCG",
            "-accel tcg,thread=multi",
        );
    }
    if !set(c"mttcg_enabled") {
        return refuse(
            "QEMU runs all cores in one thread",
            "-accel tcg,thread=multi",
        );
    }
    if set(c"use_icount") {
        return refuse(
            "QEMU counts instructions itself (-icount)",
            "to be the only one",
        );
    }
    Ok(())
}

impl Table {
    /// Finds it, and checks that it is as TCG with several threads leaves it. QEMU fills it in right before it makes the
    /// first core.
    pub fn find(symbols: &Symbols, offsets: &Offsets, version: &str) -> Result<Table, Refusal> {
        // SAFETY: both only look things up; the accelerator's functions have been chosen before the first core is made.
        let (class, tcg) = unsafe {
            (
                (symbols.cpus_get_accel)(),
                (symbols.object_class_by_name)(c"tcg-accel-ops".as_ptr()),
            )
        };
        let shape = |expected, found: String| Refusal::Shape {
            version: version.to_owned(),
            function: "the table of accelerator functions",
            expected,
            found,
        };
        if class.is_null() || class != tcg {
            return Err(shape(
                "the class tcg-accel-ops",
                format!("{class:p}, not {tcg:p}"),
            ));
        }
        // SAFETY: `cpu_interrupt` itself loads a pointer from this offset of this class.
        let interrupt = unsafe { class.byte_add(offsets.interrupt_slot) }.cast();
        let table = Table { interrupt };
        let known = [
            (
                KICK,
                symbols.mttcg_kick_vcpu_thread as *const c_void,
                "mttcg_kick_vcpu_thread as the kick",
            ),
            (
                0,
                symbols.tcg_handle_interrupt as *const c_void,
                "tcg_handle_interrupt",
            ),
        ];
        for (slot, function, expected) in known {
            if table.slot(slot) != function {
                return Err(shape(expected, format!("{:p}", table.slot(slot))));
            }
        }
        for slot in [GET_CLOCK, SET_CLOCK, GET_TICKS] {
            if !table.slot(slot).is_null() {
                return Err(shape(
                    "nothing as the clock",
                    format!("{:p}", table.slot(slot)),
                ));
            }
        }
        Ok(table)
    }

    fn slot(self, index: isize) -> *const c_void {
        // SAFETY: the table is one structure of function pointers, and all indices lie within it: five before and nine
        // after the one for interrupts, since QEMU 7.
        unsafe { *self.interrupt.offset(index) }
    }

    /// Puts our functions in. No core may have executed anything yet, and QEMU's big lock is held.
    pub fn hook(self, hooks: Hooks) {
        self.put(GET_CLOCK, hooks.get as *const c_void);
        self.put(SET_CLOCK, hooks.set as *const c_void);
        self.put(GET_TICKS, hooks.get as *const c_void);
        self.put(KICK, hooks.kick as *const c_void);
        self.hook_interrupts(hooks.interrupt);
    }

    /// Puts the function for interrupts in alone. On the same terms.
    pub fn hook_interrupts(self, interrupt: extern "C" fn(Opaque, c_int)) {
        self.put(0, interrupt as *const c_void);
    }

    fn put(self, index: isize, function: *const c_void) {
        // SAFETY: as in `slot`; the class lies in writable memory, and whoever calls through it holds the big lock as our callers do.
        unsafe { *self.interrupt.offset(index) = function }
    }
}

/// A `CPUState`, of which some fields are read while its thread runs.
#[derive(Clone, Copy, Debug)]
pub struct Cpu(pub Opaque);

impl Cpu {
    /// Asked to leave its block of code.
    pub fn leave(self, offsets: &Offsets) -> &'static AtomicI16 {
        // SAFETY: `cpu_exit` stores 16 bits at this offset; cores are never freed while the machine runs.
        unsafe { &*self.0.byte_add(offsets.leave).cast() }
    }

    /// Asked to leave for good.
    pub fn exit_request(self, offsets: &Offsets) -> bool {
        // SAFETY: `cpu_exit` stores a byte at this offset.
        unsafe {
            self.0
                .byte_add(offsets.exit_request)
                .cast::<u8>()
                .read_volatile()
                != 0
        }
    }

    /// Depth of exclusive sections. Only the core's own thread changes it.
    pub fn exclusive(self, offsets: &Offsets) -> i32 {
        // SAFETY: `end_exclusive` counts an int at this offset.
        let depth: &AtomicI32 = unsafe { &*self.0.byte_add(offsets.exclusive).cast() };
        depth.load(Ordering::Relaxed)
    }

    /// Pending interrupts.
    pub fn interrupts(self, offsets: &Offsets) -> &'static AtomicU32 {
        // SAFETY: `tcg_handle_interrupt` changes 32 bits at this offset.
        unsafe { &*self.0.byte_add(offsets.interrupts).cast() }
    }
}

/// Requests on their way to a disk.
pub fn in_flight(backend: Opaque, offsets: &Offsets) -> i32 {
    // SAFETY: `blk_inc_in_flight` counts an int at this offset, atomically.
    let count: &AtomicI32 = unsafe { &*backend.byte_add(offsets.in_flight).cast() };
    count.load(Ordering::SeqCst)
}
