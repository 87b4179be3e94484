//! `timing=caches`: what each core's accesses to memory cost, told to the model in `machine/memory` as they happen.
//!
//! An instruction costs what it does without caches, `cost`, and an access as much more as its latency exceeds that: a
//! pointer chased through L2 takes L2's latency a step, neither more nor less. Fetches that L1 has cost nothing of their own, as they go
//! on beside the execution. Latencies are in the parts' own time, whatever `cost` is.
//!
//! A core's count is in picoseconds then, and the look at the clock comes at the start of a block. A block's own accesses come
//! after that look, so a core may be a block's misses further ahead than the quantum allows; all of it is known at the next block. But
//! a core of fused machines waits behind each access that brings it too far ([`crate::fused`]).
//!
//! Fused machines have one model for all, in a block that they share: what the caches of one hold, the others' accesses find there. What a
//! machine has where its devices are, its firmware say, is no memory of that model, though another machine may have memory at that address.
//!
//! What isn't seen: QEMU's own walks through page tables (a miss in the emulated TLB costs nothing), and what devices read and write.
#![allow(
    unsafe_code,
    reason = "callbacks come from QEMU with plain words that mean pointers"
)]

use std::ffi::{c_int, c_uint, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use ostler_machine_memory::{Counts, Kind, Level, System};

use super::symbols::{Looked, Opaque, Symbols};
use super::tlb::{Place, Tlb, Use};
use super::{NO_REGISTERS, machine, number, say};
use crate::block::Block;
use crate::options::Options;
use crate::threads::{Role, role};

/// `QEMU_PLUGIN_MEM_RW`.
const READ_AND_WRITE: c_int = 3;
/// An emulated page, or a part of one: the code of a block is looked up once for each.
const PAGE: u64 = 4096;
/// So many of each core's first accesses are looked up by QEMU's own function too.
const CHECKED: u64 = 10_000;

/// What a core's thread adds up.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Meter {
    /// Since the count was last begun anew.
    elapsed_ps: AtomicU64,
    /// The same, at the start of the last block.
    begun_ps: AtomicU64,
    /// And when the core is to wait next, though it is within a block.
    hold_ps: AtomicU64,
    /// What lay between the starts of the last two blocks.
    uninterrupted_ps: AtomicU64,
    instructions: AtomicU64,
    /// Accesses whose translation was gone, and those that were compared with QEMU's.
    unknown: AtomicU64,
    checked: AtomicU64,
}

/// Adds to a word that only this thread writes.
#[inline]
fn add(word: &AtomicU64, more: u64) {
    word.store(word.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}

/// All cores' accesses.
#[derive(Debug)]
pub struct Accesses {
    /// What they cost.
    system: System,
    /// The number that this machine's first core has there.
    first: usize,
    tlb: Tlb,
    meters: Box<[Meter]>,
    instruction_ps: u64,
    /// A core looks at the clock after so long.
    step_ps: u64,
    /// Where this machine's devices are and another's memory may be; nowhere for a machine alone.
    devices: Range<u64>,
    /// Whether cores wait within blocks.
    holds: bool,
}

impl Accesses {
    /// Of so many cores, the first of which is number `first` of the model. `devices` is where the machine has its devices.
    pub fn new(
        (system, first): (System, usize),
        tlb: Tlb,
        cores: usize,
        options: &Options,
        devices: Range<u64>,
    ) -> Accesses {
        let holds = options.fusion.is_some();
        let accesses = Accesses {
            meters: (0..cores).map(|_| Meter::default()).collect(),
            system,
            first,
            tlb,
            instruction_ps: options.cost.ps(),
            step_ps: options.quantum_ns.unsigned_abs() * 1000 / 2,
            devices: if holds { devices } else { 0..0 },
            holds,
        };
        for core in 0..cores {
            accesses.restart(core, 0);
        }
        accesses
    }

    /// A core is made: QEMU knows by now what its pages are.
    pub fn settle(&self) {
        self.tlb.settle();
    }

    /// A core's time since its count was begun anew, ps.
    pub fn elapsed_ps(&self, core: usize) -> u64 {
        self.meters[core].elapsed_ps.load(Ordering::Relaxed)
    }

    /// Begins to count anew, as if so much had passed already. Between two blocks.
    pub fn restart(&self, core: usize, from_ps: u64) {
        let meter = &self.meters[core];
        meter.elapsed_ps.store(from_ps, Ordering::Relaxed);
        meter.begun_ps.store(from_ps, Ordering::Relaxed);
        let hold_ps = if self.holds { self.step_ps } else { u64::MAX };
        meter.hold_ps.store(hold_ps, Ordering::Relaxed);
    }

    /// What lay between the starts of the last two blocks, ps.
    pub fn uninterrupted_ps(&self, core: usize) -> u64 {
        self.meters[core].uninterrupted_ps.load(Ordering::Relaxed)
    }

    /// What the model has counted of a core.
    pub fn counts(&self, core: usize) -> Counts {
        self.system.counts(self.first + core)
    }

    /// The same into counts of before, without allocating.
    pub fn recount(&self, core: usize, counts: &mut Counts) {
        self.system.recount(self.first + core, counts);
    }

    /// How many of the model's locks were taken by force: if any, no figure is worth anything.
    pub fn forced_locks(&self) -> u64 {
        self.system.forced_locks()
    }

    /// Instructions that a core has executed.
    pub fn instructions(&self, core: usize) -> u64 {
        self.meters[core].instructions.load(Ordering::Relaxed)
    }

    /// Accesses of a core that couldn't be placed.
    pub fn unplaced(&self, core: usize) -> u64 {
        self.meters[core].unknown.load(Ordering::Relaxed)
    }

    /// What a core has done, in words.
    pub fn words(&self, core: usize) -> String {
        format!(
            "{} instructions, {}; {} accesses couldn't be placed",
            self.instructions(core),
            words(&self.counts(core)),
            self.unplaced(core),
        )
    }

    /// A core touches memory.
    #[inline]
    fn charge(&self, core: usize, kind: Kind, physical: u64, bytes: u64) {
        if self.devices.contains(&physical) {
            return;
        }
        let now = || now_ps(core);
        let number = self.first + core;
        let charge = if physical % 64 + bytes <= 64 {
            self.system.access(number, kind, physical, now)
        } else {
            self.system.access_bytes(number, kind, physical, bytes, now)
        };
        let beyond = charge.picoseconds.saturating_sub(self.instruction_ps);
        if beyond > 0 {
            self.spend(core, beyond);
        }
    }

    /// A core has waited for its memory: it may have come too far.
    #[inline]
    fn spend(&self, core: usize, ps: u64) {
        let meter = &self.meters[core];
        let elapsed = meter.elapsed_ps.load(Ordering::Relaxed) + ps;
        meter.elapsed_ps.store(elapsed, Ordering::Relaxed);
        if elapsed >= meter.hold_ps.load(Ordering::Relaxed) {
            meter
                .hold_ps
                .store(elapsed + self.step_ps, Ordering::Relaxed);
            machine().hold(core);
        }
    }

    /// Has a block's code and its instructions' accesses come to us.
    ///
    /// # Safety
    /// Only within the callback for translations, with its block.
    pub unsafe fn watch(&self, symbols: &Symbols, block: Opaque, instructions: usize) {
        let cpu = match role() {
            Role::Core(core) => machine().emulator.cpu(core),
            Role::Ours | Role::Other => None,
        };
        // SAFETY: QEMU's own plugin interface; all instructions asked for exist.
        unsafe {
            let instruction = |at| (symbols.qemu_plugin_tb_get_insn)(block, at);
            let address = |at| (symbols.qemu_plugin_insn_vaddr)(instruction(at));
            let mut counted = instructions;
            let mut from = 0;
            // The part in each page: a block has one or two.
            while from < instructions {
                let page = address(from) / PAGE;
                let to = (from..instructions)
                    .take_while(|&at| address(at) / PAGE == page)
                    .last()
                    .unwrap_or(from);
                let bytes = address(to) - address(from)
                    + (symbols.qemu_plugin_insn_size)(instruction(to)) as u64;
                let host = (symbols.qemu_plugin_insn_haddr)(instruction(from)).addr();
                let physical = cpu.and_then(|cpu| self.tlb.find_code(cpu.0, address(from), host));
                let physical = physical.filter(|physical| !self.devices.contains(physical));
                let part = match physical {
                    Some(physical) => Block::at(counted, physical, bytes),
                    None => Block {
                        instructions: counted as u64,
                        first_line: 0,
                        lines: 0,
                    },
                };
                if part.instructions > 0 || part.lines > 0 {
                    (symbols.qemu_plugin_register_vcpu_tb_exec_cb)(
                        block,
                        executed,
                        NO_REGISTERS,
                        part.word() as *mut c_void,
                    );
                }
                counted = 0;
                from = to + 1;
            }
            for at in 0..instructions {
                (symbols.qemu_plugin_register_vcpu_mem_cb)(
                    instruction(at),
                    accessed,
                    NO_REGISTERS,
                    READ_AND_WRITE,
                    std::ptr::null_mut(),
                );
            }
        }
    }
}

/// A core's time, for the queues of memory devices.
fn now_ps(core: usize) -> u64 {
    machine().local(core).unsigned_abs() * 1000
}

/// A block is about to be executed.
unsafe extern "C" fn executed(core: c_uint, word: *mut c_void) {
    let machine = machine();
    let Some(accesses) = &machine.emulator.accesses else {
        return;
    };
    let core = number(core);
    if let (Some(pmu), Some(cpu)) = (&machine.emulator.pmu, machine.emulator.cpu(core)) {
        // SAFETY: this is the core's own thread.
        unsafe { pmu.executes(core, cpu.0, accesses, || machine.local(core)) };
    }
    let block = Block::of(word.addr() as u64);
    let meter = &accesses.meters[core];
    for line in block.first_line..block.first_line + block.lines {
        let address = line * crate::block::LINE_BYTES;
        let number = accesses.first + core;
        let charge = accesses
            .system
            .access(number, Kind::Fetch, address, || now_ps(core));
        if charge.level != Level::L1 {
            accesses.spend(core, charge.picoseconds);
        }
    }
    add(&meter.instructions, block.instructions);
    let ps = block.instructions * accesses.instruction_ps;
    let elapsed = meter.elapsed_ps.load(Ordering::Relaxed) + ps;
    meter.elapsed_ps.store(elapsed, Ordering::Relaxed);
    // Not a swap, which would have the real core wait for all of its stores, each block anew.
    let begun = meter.begun_ps.load(Ordering::Relaxed);
    meter.begun_ps.store(elapsed, Ordering::Relaxed);
    meter
        .uninterrupted_ps
        .store(elapsed - begun, Ordering::Relaxed);
    if elapsed >= accesses.step_ps {
        machine.quantum(core);
    }
}

/// An instruction has read or written memory.
unsafe extern "C" fn accessed(core: c_uint, info: u32, address: u64, _: *mut c_void) {
    let qemu = &machine().emulator;
    let core = number(core);
    let (Some(accesses), Some(cpu)) = (&qemu.accesses, qemu.cpu(core)) else {
        return;
    };
    // The word as `qemu_plugin_mem_size_shift` and `_is_store` take it apart: kind of translation, size, what was done.
    let mode = (info & 0xf) as usize;
    let bytes = 1_u64 << (info >> 4 & 7);
    let (kind, usage) = match info >> 16 & 3 {
        1 => (Kind::Load, Use::Read),
        2 => (Kind::Store, Use::Write),
        _ => (Kind::Atomic, Use::Write),
    };
    // SAFETY: this is the core's own thread.
    let found = unsafe { accesses.tlb.find(cpu.0, address, mode, usage) };
    let meter = &accesses.meters[core];
    if meter.checked.load(Ordering::Relaxed) < CHECKED {
        add(&meter.checked, 1);
        // SAFETY: likewise.
        unsafe { check(cpu.0, address, mode, usage == Use::Write, found) };
    }
    match found {
        Some(Place::Memory(physical)) => accesses.charge(core, kind, physical, bytes),
        Some(Place::Device) => {}
        None => add(&meter.unknown, 1),
    }
}

/// Compares one access with what QEMU finds.
///
/// # Safety
/// As [`Tlb::find`].
unsafe fn check(cpu: Opaque, address: u64, mode: usize, writes: bool, found: Option<Place>) {
    let mut looked = Looked {
        device: false,
        physical: 0,
        region: std::ptr::null_mut(),
    };
    let mode = c_int::try_from(mode).unwrap_or(c_int::MAX);
    // SAFETY: QEMU's own function, called as its plugin interface calls it.
    let theirs = unsafe {
        (machine().emulator.symbols.tlb_plugin_lookup)(cpu, address, mode, writes, &raw mut looked)
    };
    let theirs = theirs.then_some(if looked.device {
        Place::Device
    } else {
        Place::Memory(looked.physical)
    });
    if found != theirs {
        say(&format!(
            "refused: an access to {address:#x} was taken for {found:x?}, and QEMU takes it for {theirs:x?}; this QEMU's tables \
             are others than its code told; say timing=instructions"
        ));
        // SAFETY: figures that are wrong from here on are worth less than none.
        unsafe { libc::_exit(1) };
    }
}

/// Where a core's accesses were served, in words.
fn words(counts: &Counts) -> String {
    let total = counts.accesses();
    let share = |level: Level| {
        #[expect(
            clippy::cast_precision_loss,
            reason = "shares are shown with two decimals"
        )]
        let share = counts.at(level) as f64 * 100.0 / total.max(1) as f64;
        format!("{level:?} {share:.2} %")
    };
    let shares: Vec<_> = Level::ALL.into_iter().map(share).collect();
    format!(
        "{total} accesses: {}; {} snoops sent, {} received",
        shares.join(", "),
        counts.snoops_sent,
        counts.snoops_received
    )
}
