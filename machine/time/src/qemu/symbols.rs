//! QEMU's functions, looked up by name in the running program.
//!
//! None is linked against: the library loads anywhere, says what is missing, and its tests need no QEMU.
#![allow(
    unsafe_code,
    reason = "functions of another program are found by name, and their types are known from its headers only"
)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// `CPUState *`, `BlockBackend *` and the like: only ever handed back to QEMU, or read at offsets that `layout` found.
pub type Opaque = *mut c_void;

/// `qemu_plugin_u64`: one number per core.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PerCore {
    /// `struct qemu_plugin_scoreboard *`.
    pub scoreboard: Opaque,
    /// Offset in an element of it.
    pub offset: usize,
}

/// `qemu_plugin_vcpu_simple_cb_t`.
pub type CoreCallback = unsafe extern "C" fn(u64, c_uint);
/// `qemu_plugin_vcpu_udata_cb_t`.
pub type BlockCallback = unsafe extern "C" fn(c_uint, *mut c_void);
/// `qemu_plugin_vcpu_mem_cb_t`.
pub type AccessCallback = unsafe extern "C" fn(c_uint, u32, u64, *mut c_void);
/// `qemu_plugin_vcpu_tb_trans_cb_t`.
pub type TranslationCallback = unsafe extern "C" fn(u64, Opaque);
/// `qemu_plugin_udata_cb_t`.
pub type EndCallback = unsafe extern "C" fn(u64, *mut c_void);

/// Finds a symbol of the program that we are loaded into.
pub fn find(name: &CStr) -> Option<Opaque> {
    // SAFETY: RTLD_DEFAULT is always a valid handle, and the name ends with a zero byte.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!address.is_null()).then_some(address)
}

/// `struct qemu_plugin_hwaddr`: what an address leads to.
#[derive(Debug)]
#[repr(C)]
pub struct Looked {
    /// Whether it is a device's.
    pub device: bool,
    /// The physical address.
    pub physical: u64,
    /// `MemoryRegion *` of the device.
    pub region: Opaque,
}

macro_rules! symbols {
    ($(#[$about:meta])* $table:ident: $($name:ident: $type:ty,)*) => {
        $(#[$about])*
        #[derive(Clone, Copy)]
        pub struct $table {
            $(
                #[doc = concat!("QEMU's `", stringify!($name), "`.")]
                pub $name: $type,
            )*
        }

        impl $table {
            /// Finds all of them, or says which are missing.
            pub fn find() -> Result<$table, Vec<&'static str>> {
                let mut missing = Vec::new();
                $(
                    let name = CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes());
                    let $name = name.ok().and_then(find);
                    if $name.is_none() {
                        missing.push(stringify!($name));
                    }
                )*
                $(
                    let Some($name) = $name else { return Err(missing) };
                    // SAFETY: the type is the function's in the headers of QEMU 10.0; its version is checked before any is called.
                    let $name: $type = unsafe { std::mem::transmute::<Opaque, $type>($name) };
                )*
                Ok($table { $($name,)* })
            }
        }

        impl std::fmt::Debug for $table {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(stringify!($table))
            }
        }
    };
}

symbols! {
    /// The functions of QEMU that are used, by their names. Every target has them.
    Symbols:
    // The plugin interface.
    qemu_plugin_register_vcpu_init_cb: unsafe extern "C" fn(u64, CoreCallback),
    qemu_plugin_register_vcpu_idle_cb: unsafe extern "C" fn(u64, CoreCallback),
    qemu_plugin_register_vcpu_resume_cb: unsafe extern "C" fn(u64, CoreCallback),
    qemu_plugin_register_vcpu_tb_trans_cb: unsafe extern "C" fn(u64, TranslationCallback),
    qemu_plugin_register_vcpu_tb_exec_cond_cb:
        unsafe extern "C" fn(Opaque, BlockCallback, c_int, c_int, PerCore, u64, *mut c_void),
    qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu: unsafe extern "C" fn(Opaque, c_int, PerCore, u64),
    qemu_plugin_register_vcpu_tb_exec_cb: unsafe extern "C" fn(Opaque, BlockCallback, c_int, *mut c_void),
    qemu_plugin_register_vcpu_mem_cb: unsafe extern "C" fn(Opaque, AccessCallback, c_int, c_int, *mut c_void),
    qemu_plugin_insn_vaddr: unsafe extern "C" fn(Opaque) -> u64,
    qemu_plugin_insn_size: unsafe extern "C" fn(Opaque) -> usize,
    qemu_plugin_register_atexit_cb: unsafe extern "C" fn(u64, EndCallback, *mut c_void),
    qemu_plugin_tb_get_insn: unsafe extern "C" fn(Opaque, usize) -> Opaque,
    qemu_plugin_insn_data: unsafe extern "C" fn(Opaque, *mut c_void, usize) -> usize,
    qemu_plugin_insn_haddr: unsafe extern "C" fn(Opaque) -> *mut c_void,
    qemu_plugin_register_vcpu_insn_exec_cb: unsafe extern "C" fn(Opaque, BlockCallback, c_int, *mut c_void),
    qemu_plugin_tb_n_insns: unsafe extern "C" fn(Opaque) -> usize,
    qemu_plugin_scoreboard_new: unsafe extern "C" fn(usize) -> Opaque,
    qemu_plugin_u64_get: unsafe extern "C" fn(PerCore, c_uint) -> u64,
    qemu_plugin_u64_set: unsafe extern "C" fn(PerCore, c_uint, u64),
    qemu_plugin_request_time_control: unsafe extern "C" fn() -> *const c_void,
    // Inside QEMU, called.
    cpus_get_accel: unsafe extern "C" fn() -> Opaque,
    object_class_by_name: unsafe extern "C" fn(*const c_char) -> Opaque,
    bql_lock_impl: unsafe extern "C" fn(*const c_char, c_int),
    bql_unlock: unsafe extern "C" fn(),
    bql_locked: unsafe extern "C" fn() -> bool,
    qemu_clock_deadline_ns_all: unsafe extern "C" fn(c_int, c_int) -> i64,
    qemu_clock_run_timers: unsafe extern "C" fn(c_int) -> bool,
    qemu_clock_notify: unsafe extern "C" fn(c_int),
    qemu_get_cpu: unsafe extern "C" fn(c_int) -> Opaque,
    qemu_cpu_is_self: unsafe extern "C" fn(Opaque) -> bool,
    qemu_cpu_kick: unsafe extern "C" fn(Opaque),
    cpu_thread_is_idle: unsafe extern "C" fn(Opaque) -> bool,
    cpu_work_list_empty: unsafe extern "C" fn(Opaque) -> bool,
    tlb_plugin_lookup: unsafe extern "C" fn(Opaque, u64, c_int, bool, *mut Looked) -> bool,
    tb_flush: unsafe extern "C" fn(Opaque),
    cpu_loop_exit_restore: unsafe extern "C-unwind" fn(Opaque, usize) -> !,
    rcu_register_thread: unsafe extern "C" fn(),
    blk_all_next: unsafe extern "C" fn(Opaque) -> Opaque,
    blk_name: unsafe extern "C" fn(Opaque) -> *const c_char,
    // Inside QEMU, read.
    mttcg_kick_vcpu_thread: unsafe extern "C" fn(Opaque),
    tcg_handle_interrupt: unsafe extern "C" fn(Opaque, c_int),
    cpu_exit: unsafe extern "C" fn(Opaque),
    cpu_interrupt: unsafe extern "C" fn(Opaque, c_int),
    end_exclusive: unsafe extern "C" fn(),
    timerlistgroup_deadline_ns: unsafe extern "C" fn(Opaque) -> i64,
    blk_inc_in_flight: unsafe extern "C" fn(Opaque),
}

symbols! {
    /// Functions of the x86-64 target that have faults.
    Faulty:
    do_interrupt_all: unsafe extern "C" fn(),
    do_interrupt_x86_hardirq: unsafe extern "C" fn(),
    helper_vmrun: unsafe extern "C" fn(),
    cpu_clear_ignne: unsafe extern "C" fn(),
}

symbols! {
    /// What only a machine among several needs: a device's functions.
    Devices:
    get_system_memory: unsafe extern "C" fn() -> Opaque,
    memory_region_init_io: unsafe extern "C" fn(Opaque, Opaque, *const c_void, *mut c_void, *const c_char, u64),
    memory_region_add_subregion_overlap: unsafe extern "C" fn(Opaque, u64, Opaque, c_int),
    cpu_physical_memory_rw: unsafe extern "C" fn(u64, *mut c_void, u64, bool),
    object_resolve_path_type: unsafe extern "C" fn(*const c_char, *const c_char, *mut bool) -> Opaque,
    qdev_get_gpio_in: unsafe extern "C" fn(Opaque, c_int) -> Opaque,
    qemu_set_irq: unsafe extern "C" fn(Opaque, c_int),
}

/// QAPI's `VersionTriple`.
#[derive(Debug)]
#[repr(C)]
pub struct VersionTriple {
    major: i64,
    minor: i64,
    micro: i64,
}

/// QAPI's `VersionInfo`.
#[derive(Debug)]
#[repr(C)]
pub struct VersionInfo {
    qemu: *mut VersionTriple,
    package: *const c_char,
}

/// The name of the function by which QEMU tells its version: the one thing that is called before the version is known.
/// Both its structures have been the same since QEMU 2.4.
const QUERY_VERSION: &CStr = c"qmp_query_version";

/// Asks QEMU for its version: the numbers, and all of it in words.
pub fn version() -> Option<((i64, i64), String)> {
    let query = find(QUERY_VERSION)?;
    // SAFETY: the function's type is that of its QAPI definition; it ignores its argument, and what it returns is ours.
    // It is leaked: a hundred bytes, once.
    unsafe {
        let query: unsafe extern "C" fn(*mut Opaque) -> *mut VersionInfo =
            std::mem::transmute::<Opaque, _>(query);
        let info = query(std::ptr::null_mut()).as_ref()?;
        let numbers = info.qemu.as_ref()?;
        let package = if info.package.is_null() {
            String::new()
        } else {
            format!(" ({})", CStr::from_ptr(info.package).to_string_lossy())
        };
        let words = format!(
            "{}.{}.{}{package}",
            numbers.major, numbers.minor, numbers.micro
        );
        Some(((numbers.major, numbers.minor), words))
    }
}

/// The machine code of an exported function, by the size that the program's symbol table gives it.
pub fn code_of(function: Opaque) -> Option<&'static [u8]> {
    const RTLD_DL_SYMENT: c_int = 1;
    // SAFETY: all three are plain numbers and pointers, for which zero is a value.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    let mut entry: *mut c_void = std::ptr::null_mut();
    // SAFETY: both out parameters are valid for writes.
    let found = unsafe { libc::dladdr1(function, &raw mut info, &raw mut entry, RTLD_DL_SYMENT) };
    if found == 0 || entry.is_null() || info.dli_saddr != function {
        return None;
    }
    // SAFETY: with RTLD_DL_SYMENT, the loader has stored a pointer to the symbol's entry in the mapped symbol table.
    let size = unsafe { (*entry.cast::<libc::Elf64_Sym>()).st_size };
    let size = usize::try_from(size)
        .ok()
        .filter(|size| (1..1 << 16).contains(size))?;
    // SAFETY: the symbol table says that the function's code has this size. It is mapped, readable, and never unmapped; the
    // only writes to it are those of `cure`, which holds no such slice while it writes.
    Some(unsafe { std::slice::from_raw_parts(function.cast_const().cast(), size) })
}
