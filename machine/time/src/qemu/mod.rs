//! The plugin itself: what QEMU calls, and what we call in QEMU. Everything unsafe is in this folder.
#![allow(
    unsafe_code,
    reason = "this is the border to a program in C: its callbacks come in, and its functions are called, by C's rules"
)]

mod accesses;
mod code;
mod cure;
mod device;
mod emulator;
mod layout;
mod mainloop;
mod mapping;
mod model;
mod page;
mod patch;
mod pmu;
mod profile;
mod stale;
mod symbols;
mod tlb;
mod vcpus;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Instant;

use self::accesses::Accesses;
use self::layout::{Cpu, Hooks, Offsets, Table};
use self::pmu::Pmu;
use self::profile::Profiler;
use self::symbols::{Devices, Faulty, Opaque, PerCore, Symbols};
use self::tlb::Tlb;
use crate::awake::{Awake, LATENCY};
use crate::machine::Machine;
use crate::options::{Clock, Idle, Options, Timing};
use crate::refusal::Refusal;
use crate::slices;
use crate::threads::{Role, become_role};
use crate::watch;

/// `QEMU_CLOCK_VIRTUAL`.
const VIRTUAL: c_int = 1;
/// `QEMU_TIMER_ATTR_ALL`.
const ALL_TIMERS: c_int = -1;
/// `QEMU_PLUGIN_CB_NO_REGS`.
const NO_REGISTERS: c_int = 0;
/// `QEMU_PLUGIN_COND_GE`.
const AT_LEAST: c_int = 7;
/// `QEMU_PLUGIN_INLINE_ADD_U64`.
const ADD: c_int = 0;

/// The version of the plugin interface that we speak.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "QEMU looks for it by this name")]
pub static qemu_plugin_version: c_int = 4;

/// `qemu_info_t`.
#[derive(Debug)]
#[repr(C)]
pub struct Info {
    target_name: *const c_char,
    interface: [c_int; 2],
    system_emulation: bool,
    cores_at_start: c_int,
    cores_at_most: c_int,
}

/// The instruction set that is emulated. All but QEMU's own faults is the same for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    X86_64,
    Aarch64,
}

impl Target {
    /// By QEMU's name for it.
    fn of(name: &str) -> Option<Target> {
        match name {
            "x86_64" => Some(Target::X86_64),
            "aarch64" => Some(Target::Aarch64),
            _ => None,
        }
    }
}

impl Target {
    /// Where its machines have their devices below 4 GiB, and never memory; another's may (`machine/launch`'s layout).
    fn devices(self) -> std::ops::Range<u64> {
        match self {
            Target::X86_64 => 0xb000_0000..1 << 32,
            Target::Aarch64 => 0..1 << 30,
        }
    }
}

/// QEMU, as the clock sees it.
#[derive(Debug)]
pub struct Qemu {
    target: Target,
    version: String,
    symbols: Symbols,
    offsets: Offsets,
    /// Instructions of the running quantum, per core.
    counter: PerCore,
    cpus: Box<[AtomicPtr<c_void>]>,
    /// What accesses to memory cost, where they cost anything.
    accesses: Option<Accesses>,
    /// Where it is shown what the cores do, if anywhere.
    pmu: Option<Pmu>,
    /// What counts where instructions go, if that is asked for.
    profiler: Option<Profiler>,
    /// For the doorbell, where there are other machines.
    devices: Option<Devices>,
}

// SAFETY: the pointers are QEMU's, live as long as the process, and are only used in ways that QEMU allows any thread.
unsafe impl Sync for Qemu {}
// SAFETY: as above.
unsafe impl Send for Qemu {}

/// The one machine of this process, and when it was made.
static MACHINE: OnceLock<(Machine<Qemu>, Instant)> = OnceLock::new();

/// Held until the process ends.
static AWAKE: OnceLock<Awake> = OnceLock::new();

/// Says something on QEMU's standard error.
fn say(text: &str) {
    eprintln!("machine time: {text}");
}

/// What QEMU calls when it has loaded the library. Anything but 0 keeps it from starting.
///
/// # Safety
/// Only for QEMU, with the arguments that its plugin interface promises.
#[unsafe(no_mangle)]
#[allow(clippy::similar_names, reason = "their names in C since there is C")]
pub unsafe extern "C" fn qemu_plugin_install(
    id: u64,
    info: *const Info,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    let words: Vec<String> = (0..usize::try_from(argc).unwrap_or(0))
        // SAFETY: QEMU passes `argc` strings.
        .map(|i| {
            unsafe { CStr::from_ptr(*argv.add(i)) }
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    // SAFETY: QEMU passes a valid structure.
    match unsafe { install(id, &*info, &words) } {
        Ok(()) => 0,
        Err(refusal) => {
            say(&format!("refused: {refusal}"));
            1
        }
    }
}

/// # Safety
/// Only from [`qemu_plugin_install`].
unsafe fn install(id: u64, info: &Info, words: &[String]) -> Result<(), Refusal> {
    let options = Options::parse(words.iter().map(String::as_str))?;
    let Some(((10, 0), version)) = symbols::version() else {
        let found = symbols::version().map_or_else(
            || "of an unknown version (it doesn't export qmp_query_version)".to_owned(),
            |(_, version)| version,
        );
        return Err(Refusal::Version { found });
    };
    if !info.system_emulation {
        return Err(Refusal::NoMachine);
    }
    // SAFETY: QEMU passes the target's name.
    let target = unsafe { CStr::from_ptr(info.target_name) }.to_string_lossy();
    let Some(target) = Target::of(&target) else {
        return Err(Refusal::Target {
            found: target.into_owned(),
        });
    };
    let lacks = |missing: Vec<&'static str>| Refusal::Symbols {
        version: version.clone(),
        missing: missing.join(", "),
    };
    let symbols = Symbols::find().map_err(lacks)?;
    let offsets = Offsets::read(&symbols, &version)?;
    layout::check_setting()?;
    // SAFETY: QEMU's own plugin interface, at the time for it.
    let scoreboard = unsafe { (symbols.qemu_plugin_scoreboard_new)(size_of::<u64>()) };
    let own = options.clock == Clock::Own;
    // SAFETY: likewise.
    if own && unsafe { (symbols.qemu_plugin_request_time_control)() }.is_null() {
        return Err(Refusal::Setting {
            found: "another plugin controls time",
            needed: "to be the only one",
        });
    }
    let mended = match target {
        Target::Aarch64 => Vec::new(),
        Target::X86_64 if options.cure => cure::mend(&Faulty::find().map_err(lacks)?, &offsets)?,
        Target::X86_64 => vec!["cure=off: guests may die or hang by QEMU's own faults".to_owned()],
    };

    let cores = usize::try_from(info.cores_at_most).unwrap_or(1).max(1);
    let accesses = match &options.topology {
        Some(file) if own => {
            let model = model::build(file, cores, &options)?;
            let tlb = Tlb::read(&symbols, target, &version)?;
            let devices = target.devices();
            Some(Accesses::new(model, tlb, cores, &options, devices))
        }
        _ => None,
    };
    let pmu = match &options.pmu {
        Some(file) if own => Some(counters(file, cores, accesses.as_ref(), target, &offsets)?),
        _ => None,
    };
    let qemu = Qemu {
        target,
        version: version.clone(),
        symbols,
        offsets,
        counter: PerCore {
            scoreboard,
            offset: 0,
        },
        cpus: (0..cores).map(|_| AtomicPtr::default()).collect(),
        accesses,
        pmu,
        profiler: Profiler::wanted(&options, &symbols, target, &offsets),
        devices: match options.fusion {
            Some(_) => Some(Devices::find().map_err(lacks)?),
            None => None,
        },
    };
    let fused = match &options.fusion {
        Some(fusion) => Some(page::join(fusion, cores, &options)?),
        None => None,
    };
    let (machine, _) = MACHINE.get_or_init(|| {
        let mut machine = Machine::new(qemu, cores, options);
        if let Some(fused) = fused {
            machine = machine.among(fused);
        }
        (machine, Instant::now())
    });
    let told = if own {
        // SAFETY: we are within the installation that the id is for.
        unsafe { keep_time(id, machine) }?
    } else {
        // SAFETY: QEMU's own plugin interface; the callbacks have the types that it asks for.
        unsafe {
            (symbols.qemu_plugin_register_vcpu_init_cb)(id, core_made);
            if machine.emulator.looks_for_stale_code(&machine.options) {
                (symbols.qemu_plugin_register_vcpu_tb_trans_cb)(id, translated_for_cure);
                (symbols.qemu_plugin_register_atexit_cb)(id, ended, std::ptr::null_mut());
            }
        }
        "the real machine's clock".to_owned()
    };
    say(&format!("QEMU {version}; {told}"));
    for mended in mended {
        say(&mended);
    }
    Ok(())
}

/// Where the emulated host is shown what its cores do.
fn counters(
    file: &Path,
    cores: usize,
    accesses: Option<&Accesses>,
    target: Target,
    offsets: &Offsets,
) -> Result<Pmu, Refusal> {
    let vcpus = accesses.is_some() && target == Target::X86_64;
    let place = Faulty::find()
        .ok()
        .filter(|_| vcpus)
        .and_then(|functions| vcpus::Place::read(&functions, offsets));
    if vcpus && place.is_none() {
        say("the code of VMRUN isn't as expected, so guests' vCPUs aren't counted apart");
    }
    Pmu::open(file, cores, accesses, place)
}

/// Sets up all that owning the clock takes, as far as it can be before there are cores. Returns what there is to say of it.
///
/// # Safety
/// Only while the plugin with this id is being installed.
unsafe fn keep_time(id: u64, machine: &'static Machine<Qemu>) -> Result<String, Refusal> {
    let symbols = &machine.emulator.symbols;
    let options = &machine.options;
    if !mainloop::leave_timers(symbols)? {
        say(
            "the main loop's code isn't as expected, so it will wake for timers that aren't its own: slower, and nothing else",
        );
    }
    if options.awake && options.idle == Idle::Skip {
        match Awake::ask(Path::new(LATENCY)) {
            Ok(awake) => {
                AWAKE.get_or_init(|| awake);
            }
            Err(error) => say(&format!(
                "idle real cores aren't kept awake: slower, and nothing else: {LATENCY}: {error}"
            )),
        }
    }
    start("skip", move || {
        // Timers that it fires deliver interrupts, and those look memory up under QEMU's read-copy-update.
        // SAFETY: once, by the thread itself, which ends with the process.
        unsafe { (symbols.rcu_register_thread)() };
        machine.skip_idle_time();
    })?;
    start("watch", || watch::watch(machine, say))?;
    if let Some(fused) = &machine.fused {
        start("peers", || {
            while !machine.ends_within(watch::PERIOD) {
                if let Some((number, process)) = fused.lost() {
                    say(&format!(
                        "machine {number} (process {process}) is gone without having ended; this one can't go on without it"
                    ));
                    // SAFETY: an ordinary exit would wait for cores that may be waiting for the other machine.
                    unsafe { libc::_exit(1) };
                }
            }
        })?;
    }
    // SAFETY: QEMU's own plugin interface; the callbacks have the types that it asks for.
    unsafe {
        (symbols.qemu_plugin_register_vcpu_init_cb)(id, core_made);
        (symbols.qemu_plugin_register_vcpu_idle_cb)(id, core_idle);
        (symbols.qemu_plugin_register_vcpu_resume_cb)(id, core_resumed);
        (symbols.qemu_plugin_register_vcpu_tb_trans_cb)(id, translated);
        (symbols.qemu_plugin_register_atexit_cb)(id, ended, std::ptr::null_mut());
    }
    Ok(format!(
        "{} cores, quantum {} ns, {} ps per instruction{}, idle time {}{}",
        machine.lockstep.cores(),
        options.quantum_ns,
        options.cost.ps(),
        match options.timing {
            Timing::Instructions => "",
            Timing::Caches => " and more by where its data lies",
        },
        match options.idle {
            Idle::Skip => "skipped",
            Idle::Pace => "at the pace of real time",
        },
        match &options.fusion {
            Some(fusion) => format!(
                "; machine {} of several, {} ns from another",
                fusion.machine, fusion.latency_ns
            ),
            None => String::new(),
        }
    ))
}

/// Starts a thread of ours.
fn start(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), Refusal> {
    std::thread::Builder::new()
        .name(format!("time/{name}"))
        .spawn(move || {
            become_role(Role::Ours);
            let _ = slices::ask(); // a matter of speed alone
            body();
        })
        .map(|_| ())
        .map_err(|error| Refusal::Thread {
            error: error.to_string(),
        })
}

fn machine() -> &'static Machine<Qemu> {
    // Every caller is a hook or a callback, and those are set after the machine is.
    &MACHINE
        .get()
        .expect("the machine is made before it is hooked in")
        .0
}

fn number(core: c_uint) -> usize {
    core as usize
}

extern "C" fn get_clock() -> i64 {
    machine().read()
}

/// QEMU may only move time on, and does so only in functions that we don't call.
extern "C" fn set_clock(time: i64) {
    machine().lockstep.advance(time);
}

/// In place of `mttcg_kick_vcpu_thread`.
extern "C" fn kick(cpu: Opaque) {
    let machine = machine();
    let qemu = &machine.emulator;
    let core = qemu.core_of(cpu);
    if let Some(core) = core {
        machine.kicked(core);
    }
    // SAFETY: this is what the slot held.
    unsafe { (qemu.symbols.mttcg_kick_vcpu_thread)(cpu) };
    if let Some(core) = core {
        machine.asked(core);
    }
}

/// In place of `tcg_handle_interrupt`, and the same but that the word is changed atomically: see [`cure`].
extern "C" fn interrupt(cpu: Opaque, mask: c_int) {
    let machine = machine();
    let qemu = &machine.emulator;
    if machine.options.clock == Clock::Own
        && let Some(core) = qemu.core_of(cpu)
    {
        machine.interrupted(core);
    }
    Cpu(cpu)
        .interrupts(&qemu.offsets)
        .fetch_or(mask.cast_unsigned(), Ordering::SeqCst);
    // SAFETY: QEMU passes one of its cores.
    unsafe {
        if (qemu.symbols.qemu_cpu_is_self)(cpu) {
            Cpu(cpu).leave(&qemu.offsets).store(-1, Ordering::SeqCst);
        } else {
            (qemu.symbols.qemu_cpu_kick)(cpu);
        }
    }
}

/// In the core's own thread, before it executes anything, and under the big lock.
unsafe extern "C" fn core_made(_: u64, core: c_uint) {
    static HOOKED: OnceLock<()> = OnceLock::new();
    let qemu = &machine().emulator;
    HOOKED.get_or_init(
        || match Table::find(&qemu.symbols, &qemu.offsets, &qemu.version) {
            Ok(table) if machine().options.clock == Clock::Own => table.hook(Hooks {
                get: get_clock,
                set: set_clock,
                kick,
                interrupt,
            }),
            Ok(table) if machine().options.cure => table.hook_interrupts(interrupt),
            Ok(_) => {}
            Err(refusal) => {
                say(&format!("refused: {refusal}"));
                // SAFETY: nothing is lost: the machine hasn't begun. An ordinary exit would wait for this very thread.
                unsafe { libc::_exit(1) };
            }
        },
    );
    if let Some(devices) = &qemu.devices {
        static MADE: OnceLock<()> = OnceLock::new();
        MADE.get_or_init(|| device::make(devices));
    }
    become_role(Role::Core(number(core)));
    let _ = slices::ask(); // a matter of speed alone
    let index = c_int::try_from(core).unwrap_or(c_int::MAX);
    // SAFETY: it only looks the core up.
    let cpu = unsafe { (qemu.symbols.qemu_get_cpu)(index) };
    if let Some(accesses) = &qemu.accesses {
        accesses.settle(number(core), cpu);
    }
    qemu.cpus[number(core)].store(cpu, Ordering::SeqCst);
}

unsafe extern "C" fn core_idle(_: u64, core: c_uint) {
    machine().rest(number(core));
}

unsafe extern "C" fn core_resumed(_: u64, core: c_uint) {
    machine().resume(number(core));
}

/// Each translated block counts its instructions, and comes to us once enough have gathered.
unsafe extern "C" fn translated(_: u64, block: Opaque) {
    let machine = machine();
    let (symbols, counter) = (&machine.emulator.symbols, machine.emulator.counter);
    // SAFETY: QEMU's own plugin interface, within the callback that it is for.
    unsafe {
        let instructions = (symbols.qemu_plugin_tb_n_insns)(block);
        if machine.emulator.looks_for_stale_code(&machine.options) {
            stale::watch(symbols, block, instructions);
        }
        if let Some(profiler) = &machine.emulator.profiler {
            profiler.watch(symbols, block, instructions);
        }
        if let Some(accesses) = &machine.emulator.accesses {
            accesses.watch(symbols, block, instructions);
            return;
        }
        (symbols.qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu)(
            block,
            ADD,
            counter,
            instructions as u64,
        );
        (symbols.qemu_plugin_register_vcpu_tb_exec_cond_cb)(
            block,
            quantum,
            NO_REGISTERS,
            AT_LEAST,
            counter,
            machine.options.step(),
            std::ptr::null_mut(),
        );
    }
}

/// Without a clock of ours, only the cure looks at translations.
unsafe extern "C" fn translated_for_cure(_: u64, block: Opaque) {
    let symbols = &machine().emulator.symbols;
    // SAFETY: QEMU's own plugin interface, within the callback that it is for.
    unsafe {
        let instructions = (symbols.qemu_plugin_tb_n_insns)(block);
        stale::watch(symbols, block, instructions);
    }
}

unsafe extern "C" fn quantum(core: c_uint, _: *mut c_void) {
    machine().quantum(number(core));
}

/// QEMU ends: the sums are told, and our threads leave it alone.
unsafe extern "C" fn ended(_: u64, _: *mut c_void) {
    let Some((machine, since)) = MACHINE.get() else {
        return;
    };
    machine.end();
    let met = stale::MET.load(Ordering::Relaxed);
    if met > 0 {
        say(&format!(
            "breakpoints that were there no more were met {met} times, and passed over"
        ));
    }
    if machine.options.clock == Clock::Wall {
        return;
    }
    let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let counts = &machine.counts;
    say(&format!(
        "ended at {} after {:.1} s of real time: timers fired {} times by cores, {} idle skips, {} waits for disks, {} cores excused",
        watch::seconds(machine.lockstep.now()),
        since.elapsed().as_secs_f64(),
        load(&counts.fires),
        load(&counts.skips),
        load(&counts.disk_waits),
        load(&counts.excused),
    ));
    if let Some(fused) = &machine.fused {
        let rings = &fused.rings;
        say(&format!(
            "doorbells: {} delivered, {} late, the latest by {} ns, {} rung while too many were on their way",
            load(&rings.delivered),
            load(&rings.late),
            rings.most_late_ns.load(Ordering::Relaxed),
            load(&rings.merged),
        ));
    }
    let forced = machine.emulator.accesses.as_ref();
    let forced = forced.map_or(0, Accesses::forced_locks);
    if forced > 0 {
        say(&format!(
            "another machine died within an access, and {forced} of its locks were taken by force: figures from then on are worth nothing"
        ));
    }
    for core in 0..machine.lockstep.cores() {
        let own = machine.own(core);
        let executed = match &machine.emulator.accesses {
            Some(accesses) => accesses.words(core),
            None => format!("{} instructions", load(&own.executed)),
        };
        say(&format!(
            "core {core}: {executed}, halted for {}, waited {} times, gave way {}, slept {}, left {}",
            watch::seconds(own.offset_ns.load(Ordering::Relaxed)),
            load(&own.waits),
            load(&own.yields),
            load(&own.sleeps),
            load(&own.left),
        ));
    }
}
