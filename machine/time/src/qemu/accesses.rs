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
//! Most instructions of a guest come here, and nearly all find what they want in L1. So both callbacks first go the short way, in which nothing is
//! called and each instruction counts: what a core needs there lies together in its [`Seat`], the translation is
//! looked up by [`super::tlb::Own`], and the line by the model's [`Port`]. Whatever isn't found so, or isn't ordinary, goes the long way from the
//! beginning.
//!
//! What isn't seen: QEMU's own walks through page tables (a miss in the emulated TLB costs nothing), and what devices read and write.
#![allow(
    unsafe_code,
    reason = "callbacks come from QEMU with plain words that mean pointers"
)]

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use ostler_machine_memory::{Counts, Kind, Level, Port, System};

use super::symbols::{AccessCallback, BlockCallback, Looked, Opaque, Symbols};
use super::tlb::{Own, Place, Tlb, Use};
use super::{NO_REGISTERS, machine, number, say};
use crate::block::{Block, LINE_BYTES};
use crate::options::Options;
use crate::threads::{Role, role};

/// `QEMU_PLUGIN_MEM_RW`.
const READ_AND_WRITE: c_int = 3;
/// An emulated page, or a part of one: the code of a block is looked up once for each.
const PAGE: u64 = 4096;
/// So many of each core's first accesses are looked up by QEMU's own function too.
const CHECKED: u64 = 10_000;

/// What a core's thread needs for each access, and what it adds up.
#[derive(Debug)]
#[repr(align(128))]
struct Seat {
    port: Port<'static>,
    /// How far into its line an access may reach to go the short way: none while accesses are checked.
    within: AtomicU64,
    /// What an access that L1 serves costs beyond its instruction, ps.
    beyond_ps: u64,
    instruction_ps: u64,
    /// A core looks at the clock after so long.
    step_ps: u64,
    /// Since the count was last begun anew.
    elapsed_ps: AtomicU64,
    /// The same, at the start of the last block.
    begun_ps: AtomicU64,
    /// And when the core is to wait next, though it is within a block.
    hold_ps: AtomicU64,
    /// What lay between the starts of the last two blocks.
    uninterrupted_ps: AtomicU64,
    instructions: AtomicU64,
    /// Nobody's until it is made; until then nothing goes the short way.
    translations: UnsafeCell<Own>,
    /// Accesses whose translation was gone, and those that were compared with QEMU's.
    unknown: AtomicU64,
    checked: AtomicU64,
}

// SAFETY: the translations are set before anything is executed, by the core's thread; only it looks into them.
unsafe impl Sync for Seat {}
// SAFETY: what they point to belongs to QEMU, not to a thread.
unsafe impl Send for Seat {}

/// All cores' seats, for whom QEMU hands no pointer of ours.
static SEATS: AtomicPtr<Seat> = AtomicPtr::new(std::ptr::null_mut());

/// Adds to a word that only this thread writes.
#[inline]
fn add(word: &AtomicU64, more: u64) {
    word.store(word.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}

/// All cores' accesses.
#[derive(Debug)]
pub struct Accesses {
    /// What they cost. Like the seats, it stays until the process ends: QEMU's code has pointers to them.
    system: &'static System,
    /// The number that this machine's first core has there.
    first: usize,
    tlb: Tlb,
    seats: &'static [Seat],
    /// What QEMU calls for an access and for a block, as the real machine's instructions allow.
    on_access: AccessCallback,
    on_block: BlockCallback,
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
        let system: &'static System = Box::leak(Box::new(system));
        let instruction_ps = options.cost.ps();
        let seat = |core| {
            let port = system.port(first + core);
            Seat {
                port,
                within: AtomicU64::new(0),
                beyond_ps: port.l1_ps().saturating_sub(instruction_ps),
                instruction_ps,
                step_ps: options.quantum_ns.unsigned_abs() * 1000 / 2,
                elapsed_ps: AtomicU64::new(0),
                begun_ps: AtomicU64::new(0),
                hold_ps: AtomicU64::new(0),
                uninterrupted_ps: AtomicU64::new(0),
                instructions: AtomicU64::new(0),
                translations: UnsafeCell::new(Own::none()),
                unknown: AtomicU64::new(0),
                checked: AtomicU64::new(0),
            }
        };
        let seats: &'static [Seat] = Box::leak((0..cores).map(seat).collect());
        SEATS.store(seats.as_ptr().cast_mut(), Ordering::Release);
        let (on_access, on_block) = callbacks();
        let accesses = Accesses {
            seats,
            on_access,
            on_block,
            system,
            first,
            tlb,
            devices: if holds { devices } else { 0..0 },
            holds,
        };
        for core in 0..cores {
            accesses.restart(core, 0);
        }
        accesses
    }

    /// A core is made: QEMU knows by now what its pages are. By its own thread.
    pub fn settle(&self, core: usize, cpu: Opaque) {
        self.tlb.settle();
        // SAFETY: nobody else looks there, and this thread not now.
        unsafe { *self.seats[core].translations.get() = self.tlb.of(cpu) };
    }

    /// A core's time since its count was begun anew, ps.
    pub fn elapsed_ps(&self, core: usize) -> u64 {
        self.seats[core].elapsed_ps.load(Ordering::Relaxed)
    }

    /// Begins to count anew, as if so much had passed already. Between two blocks.
    pub fn restart(&self, core: usize, from_ps: u64) {
        let seat = &self.seats[core];
        seat.elapsed_ps.store(from_ps, Ordering::Relaxed);
        seat.begun_ps.store(from_ps, Ordering::Relaxed);
        let hold_ps = if self.holds { seat.step_ps } else { u64::MAX };
        seat.hold_ps.store(hold_ps, Ordering::Relaxed);
    }

    /// What lay between the starts of the last two blocks, ps.
    pub fn uninterrupted_ps(&self, core: usize) -> u64 {
        self.seats[core].uninterrupted_ps.load(Ordering::Relaxed)
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
        self.seats[core].instructions.load(Ordering::Relaxed)
    }

    /// Accesses of a core that couldn't be placed.
    pub fn unplaced(&self, core: usize) -> u64 {
        self.seats[core].unknown.load(Ordering::Relaxed)
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
        let charge = if physical % LINE_BYTES + bytes <= LINE_BYTES {
            self.system.access(number, kind, physical, now)
        } else {
            self.system.access_bytes(number, kind, physical, bytes, now)
        };
        let seat = &self.seats[core];
        let beyond = charge.picoseconds.saturating_sub(seat.instruction_ps);
        if beyond > 0 && seat.spend(beyond) {
            seat.hold(core);
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
                        self.on_block,
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
                    self.on_access,
                    NO_REGISTERS,
                    READ_AND_WRITE,
                    self.seats.as_ptr().cast_mut().cast(),
                );
            }
        }
    }
}

impl Seat {
    /// A core has waited for its memory. Returns whether it may have come too far.
    #[inline]
    fn spend(&self, ps: u64) -> bool {
        let elapsed = self.elapsed_ps.load(Ordering::Relaxed) + ps;
        self.elapsed_ps.store(elapsed, Ordering::Relaxed);
        elapsed >= self.hold_ps.load(Ordering::Relaxed)
    }

    /// It has: it waits for other machines.
    #[cold]
    fn hold(&self, core: usize) {
        let next = self.elapsed_ps.load(Ordering::Relaxed) + self.step_ps;
        self.hold_ps.store(next, Ordering::Relaxed);
        machine().hold(core);
    }

    /// A block begins, of which all that is fetched has been charged. Returns whether it is time to look at the clock.
    #[inline]
    fn begin(&self, instructions: u64) -> bool {
        add(&self.instructions, instructions);
        let ps = instructions * self.instruction_ps;
        let elapsed = self.elapsed_ps.load(Ordering::Relaxed) + ps;
        self.elapsed_ps.store(elapsed, Ordering::Relaxed);
        // Not a swap, which would have the real core wait for all of its stores, each block anew.
        let begun = self.begun_ps.load(Ordering::Relaxed);
        self.begun_ps.store(elapsed, Ordering::Relaxed);
        self.uninterrupted_ps
            .store(elapsed - begun, Ordering::Relaxed);
        elapsed >= self.step_ps
    }
}

/// A core's time, for the queues of memory devices.
fn now_ps(core: usize) -> u64 {
    machine().local(core).unsigned_abs() * 1000
}

/// Both callbacks, for the real machine's processor. Shifts by a number of bits that isn't known take a third of the instructions where
/// there is BMI2, as on nearly all of today's.
fn callbacks() -> (AccessCallback, BlockCallback) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("bmi1") && is_x86_feature_detected!("bmi2") {
        return (accessed_bmi2, executed_bmi2);
    }
    (accessed, executed)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "bmi1,bmi2")]
unsafe extern "C" fn accessed_bmi2(core: c_uint, info: u32, address: u64, seats: *mut c_void) {
    // SAFETY: the same callback.
    unsafe { access(core, info, address, seats) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "bmi1,bmi2")]
unsafe extern "C" fn executed_bmi2(core: c_uint, word: *mut c_void) {
    // SAFETY: the same callback.
    unsafe { execute(core, word) }
}

unsafe extern "C" fn accessed(core: c_uint, info: u32, address: u64, seats: *mut c_void) {
    // SAFETY: the same callback.
    unsafe { access(core, info, address, seats) }
}

unsafe extern "C" fn executed(core: c_uint, word: *mut c_void) {
    // SAFETY: the same callback.
    unsafe { execute(core, word) }
}

/// A block is about to be executed.
#[allow(
    clippy::inline_always,
    reason = "each of the callbacks is to be this, compiled for its processor"
)]
#[inline(always)]
unsafe fn execute(core: c_uint, word: *mut c_void) {
    // SAFETY: QEMU numbers its cores below the most it told of, and for each there is a seat.
    let seat = unsafe { &*SEATS.load(Ordering::Relaxed).add(number(core)) };
    let qemu = &machine().emulator;
    // SAFETY: this is the core's own thread.
    if let Some(pmu) = &qemu.pmu
        && unsafe { pmu.is_another(number(core), qemu) }
    {
        return executed_by_another(core, word);
    }
    let block = Block::of(word.addr() as u64);
    for line in block.first_line..block.first_line + block.lines {
        if !seat.port.fetch(line) {
            return fetched(core, word, line);
        }
    }
    if seat.begin(block.instructions) {
        machine().quantum(number(core));
    }
}

/// The same as the host or a guest's vCPU, which isn't what the core was last.
#[inline(never)]
extern "C" fn executed_by_another(core: c_uint, word: *mut c_void) {
    let machine = machine();
    let qemu = &machine.emulator;
    let own = number(core);
    if let (Some(pmu), Some(cpu), Some(accesses)) = (&qemu.pmu, qemu.cpu(own), &qemu.accesses) {
        // SAFETY: this is the core's own thread.
        unsafe { pmu.executes(own, cpu.0, accesses, || machine.local(own)) };
    }
    fetched(core, word, Block::of(word.addr() as u64).first_line);
}

/// A block is about to be executed, of which all before a line has been fetched.
#[inline(never)]
extern "C" fn fetched(core: c_uint, word: *mut c_void, from: u64) {
    let machine = machine();
    let Some(accesses) = &machine.emulator.accesses else {
        return;
    };
    let core = number(core);
    let seat = &accesses.seats[core];
    let block = Block::of(word.addr() as u64);
    for line in from..block.first_line + block.lines {
        let address = line * LINE_BYTES;
        let number = accesses.first + core;
        let charge = accesses
            .system
            .access(number, Kind::Fetch, address, || now_ps(core));
        if charge.level != Level::L1 && seat.spend(charge.picoseconds) {
            seat.hold(core);
        }
    }
    if seat.begin(block.instructions) {
        machine.quantum(core);
    }
}

/// What QEMU's numbers of what was done mean: bit 0 that it was read, bit 1 that it was written.
const KINDS: [Kind; 4] = [Kind::Fetch, Kind::Load, Kind::Store, Kind::Atomic];

/// Takes apart what QEMU tells of an access as `qemu_plugin_mem_size_shift` and `_is_store` do: kind of translation, bytes, what was done.
#[inline]
fn apart(info: u32) -> (usize, u64, Kind) {
    // A look into a table, and not a jump that the real core must guess: whether the next access is a store, nobody can foretell.
    let kind = KINDS[(info >> 16 & 3) as usize];
    ((info & 0xf) as usize, 1 << (info >> 4 & 7), kind)
}

/// An instruction has read or written memory.
#[allow(
    clippy::inline_always,
    reason = "each of the callbacks is to be this, compiled for its processor"
)]
#[inline(always)]
unsafe fn access(core: c_uint, info: u32, address: u64, seats: *mut c_void) {
    let (mode, bytes, kind) = apart(info);
    // SAFETY: as for blocks. The translations are of this core, and this is its thread.
    unsafe {
        let seat = &*seats.cast::<Seat>().add(number(core));
        let usage = usize::from(kind.writes());
        if address % LINE_BYTES + bytes <= seat.within.load(Ordering::Relaxed)
            && let Some(physical) = (*seat.translations.get()).find(address, mode, usage)
            && seat.port.touch(kind, physical / LINE_BYTES)
        {
            if seat.spend(seat.beyond_ps) {
                return seat.hold(number(core));
            }
            return;
        }
    }
    accessed_beyond(core, info, address);
}

/// The same where anything isn't ordinary.
#[inline(never)]
extern "C" fn accessed_beyond(core: c_uint, info: u32, address: u64) {
    let qemu = &machine().emulator;
    let core = number(core);
    let (Some(accesses), Some(cpu)) = (&qemu.accesses, qemu.cpu(core)) else {
        return;
    };
    let (mode, bytes, kind) = apart(info);
    let usage = if kind.writes() { Use::Write } else { Use::Read };
    // SAFETY: this is the core's own thread.
    let found = unsafe { accesses.tlb.find(cpu.0, address, mode, usage) };
    let seat = &accesses.seats[core];
    if seat.checked.load(Ordering::Relaxed) < CHECKED {
        add(&seat.checked, 1);
        // SAFETY: likewise.
        unsafe { check(seat, cpu.0, address, mode, usage, found) };
    } else {
        seat.within.store(LINE_BYTES, Ordering::Relaxed);
    }
    match found {
        Some(Place::Memory(physical)) => accesses.charge(core, kind, physical, bytes),
        Some(Place::Device) => {}
        None => add(&seat.unknown, 1),
    }
}

/// Compares one access with what QEMU finds, on either way.
///
/// # Safety
/// As [`Tlb::find`].
unsafe fn check(
    seat: &Seat,
    cpu: Opaque,
    address: u64,
    mode: usize,
    usage: Use,
    found: Option<Place>,
) {
    let mut looked = Looked {
        device: false,
        physical: 0,
        region: std::ptr::null_mut(),
    };
    let writes = usage == Use::Write;
    // SAFETY: the caller's; the core has been made.
    let own = unsafe { (*seat.translations.get()).find(address, mode, usage as usize) };
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
    let memory = match theirs {
        Some(Place::Memory(physical)) => Some(physical),
        Some(Place::Device) | None => None,
    };
    if found != theirs || own != memory {
        say(&format!(
            "refused: an access to {address:#x} was taken for {found:x?} and {own:x?}, and QEMU takes it for {theirs:x?}; this QEMU's tables \
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
