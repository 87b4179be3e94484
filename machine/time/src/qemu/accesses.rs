//! `timing=caches`: what each core's accesses to memory cost, told to the model in `machine/memory` as they happen.
//!
//! An instruction costs what it does without caches, `cost`, and an access as much more as its latency exceeds that: a
//! pointer chased through L2 takes L2's latency a step, neither more nor less. Fetches that L1 has cost nothing of their own, as they go
//! on beside the execution. Latencies are in the parts' own time, whatever `cost` is.
//!
//! A core's count is in picoseconds then, and the look at the clock comes at the start of a block. A block's own accesses come
//! after that look, so a core may be a block's misses further ahead than the quantum allows; all of it is known at the next block.
//!
//! What isn't seen: QEMU's own walks through page tables (a miss in the emulated TLB costs nothing), and what devices read and write.
#![allow(
    unsafe_code,
    reason = "callbacks come from QEMU with plain words that mean pointers"
)]

use std::ffi::{c_int, c_uint, c_void};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use ostler_machine_memory::{Catalogue, Counts, Kind, Level, System, Topology};

use super::symbols::{Looked, Opaque, Symbols};
use super::tlb::{Place, Tlb, Use};
use super::{NO_REGISTERS, Target, machine, number, say};
use crate::block::Block;
use crate::clock::Cost;
use crate::options::Options;
use crate::refusal::Refusal;
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
    pub system: System,
    tlb: Tlb,
    meters: Box<[Meter]>,
    instruction_ps: u64,
    /// A core looks at the clock after so long.
    step_ps: u64,
}

impl Accesses {
    /// Of cores whose instructions cost so much, and that look at the clock every half quantum.
    pub fn new(system: System, tlb: Tlb, cost: Cost, quantum_ns: i64) -> Accesses {
        Accesses {
            meters: (0..system.cores()).map(|_| Meter::default()).collect(),
            system,
            tlb,
            instruction_ps: cost.ps(),
            step_ps: quantum_ns.unsigned_abs() * 1000 / 2,
        }
    }

    /// A core is made: QEMU knows by now what its pages are.
    pub fn settle(&self) {
        self.tlb.settle();
    }

    /// A core's time since its count was begun anew, ps.
    pub fn elapsed_ps(&self, core: usize) -> u64 {
        self.meters[core].elapsed_ps.load(Ordering::Relaxed)
    }

    /// Begins to count anew, as if so much had passed already.
    pub fn restart(&self, core: usize, from_ps: u64) {
        self.meters[core]
            .elapsed_ps
            .store(from_ps, Ordering::Relaxed);
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
            words(&self.system.counts(core)),
            self.unplaced(core),
        )
    }

    /// A core touches memory.
    #[inline]
    fn charge(&self, core: usize, kind: Kind, physical: u64, bytes: u64) {
        let meter = &self.meters[core];
        let now = || now_ps(core);
        let charge = if physical % 64 + bytes <= 64 {
            self.system.access(core, kind, physical, now)
        } else {
            self.system.access_bytes(core, kind, physical, bytes, now)
        };
        let beyond = charge.picoseconds.saturating_sub(self.instruction_ps);
        if beyond > 0 {
            add(&meter.elapsed_ps, beyond);
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

/// The model of what accesses cost, from the file that describes the machine.
pub fn model(
    file: &Path,
    cores: usize,
    options: &Options,
    symbols: &Symbols,
    target: Target,
    version: &str,
) -> Result<Accesses, Refusal> {
    let refuse = |problem: String| Refusal::Topology {
        file: file.display().to_string(),
        problem,
    };
    let text = std::fs::read_to_string(file)
        .map_err(|error| refuse(format!("it can't be read: {error}")))?;
    let mut topology = Topology::parse(&text).map_err(|error| refuse(error.to_string()))?;
    topology.skew_ns = options.quantum_ns.unsigned_abs();
    let system = System::new(&topology, &Catalogue::built_in())
        .map_err(|error| refuse(error.to_string()))?;
    if system.cores() != cores {
        return Err(refuse(format!(
            "it has {} cores, and this machine has {cores}; make them agree",
            system.cores()
        )));
    }
    let tlb = Tlb::read(symbols, target, version)?;
    Ok(Accesses::new(system, tlb, options.cost, options.quantum_ns))
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
    let mut ps = block.instructions * accesses.instruction_ps;
    for line in block.first_line..block.first_line + block.lines {
        let charge =
            accesses
                .system
                .access(core, Kind::Fetch, line * crate::block::LINE_BYTES, || {
                    now_ps(core)
                });
        if charge.level != Level::L1 {
            ps += charge.picoseconds;
        }
    }
    add(&meter.instructions, block.instructions);
    let elapsed = meter.elapsed_ps.load(Ordering::Relaxed) + ps;
    meter.elapsed_ps.store(elapsed, Ordering::Relaxed);
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
    format!("{total} accesses: {}", shares.join(", "))
}
