//! The BPF programs, compiled, and what loading any of them takes: errors that say what to do, libbpf's own words in the
//! log, arrays in our memory. What a program is for is told where it is loaded.
//!
//! May depend on: nothing of ostler.

mod mapped;

use std::fs;
use std::path::Path;
use std::sync::{Mutex, Once, PoisonError};

use libbpf_rs::btf::{Btf, types::Func};
use libbpf_rs::{MapCore, MapMut, Object, OpenObject, PrintLevel, ProgramMut};

pub use mapped::MappedArray;

/// Why the kernel doesn't run a program of ours.
#[derive(Debug, thiserror::Error)]
pub enum BpfError {
    /// The kernel carries no type information, without which fields can't be found.
    #[error(
        "the kernel has no BTF at {0}; boot one built with CONFIG_DEBUG_INFO_BTF (every current distribution's is)"
    )]
    NoBtf(std::path::PathBuf),
    /// A step of loading or attaching failed.
    #[error(
        "can't {what} ({source_text}); it takes CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN, and Linux {kernel_min} or later"
    )]
    Step {
        /// What was tried.
        what: String,
        /// What the kernel or libbpf said.
        source_text: String,
        /// The oldest kernel that has it.
        kernel_min: &'static str,
    },
    /// A map could not be mapped.
    #[error("can't map the BPF map {map} into memory")]
    Map {
        /// The map's name.
        map: &'static str,
        /// Why.
        source: std::io::Error,
    },
    /// Threads that the kernel numbers differently from us.
    #[error(
        "ostler is not in the host's PID namespace, so the kernel's thread numbers aren't its own; run it in the host's (`--pid=host`)"
    )]
    PidNamespace,
    /// All slots for taps are in use.
    #[error("{0} taps are watched already, which is the most")]
    TooManyTaps(u32),
}

impl BpfError {
    /// A step of a program that takes a kernel from `kernel_min` on, and what libbpf said of it.
    pub fn step(
        what: impl Into<String>,
        error: &libbpf_rs::Error,
        kernel_min: &'static str,
    ) -> Self {
        let warning =
            std::mem::take(&mut *FIRST_WARNING.lock().unwrap_or_else(PoisonError::into_inner));
        BpfError::Step {
            what: what.into(),
            source_text: if warning.is_empty() {
                error.to_string()
            } else {
                format!("{error}; {warning}")
            },
            kernel_min,
        }
    }
}

/// The first of libbpf's warnings since the last error: its error numbers alone seldom tell what is wrong.
static FIRST_WARNING: Mutex<String> = Mutex::new(String::new());
/// As much of it as fits in a sentence.
const WARNING_MAX: usize = 300;

/// Forgets what libbpf said of something that may well fail.
pub fn forget_warning() {
    FIRST_WARNING
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clear();
}

/// libbpf speaks through one callback per process: what it says goes to the log.
pub fn quiet_libbpf() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        libbpf_rs::set_print(Some((PrintLevel::Info, |level, text| {
            let text = text.trim_end();
            match level {
                PrintLevel::Debug => tracing::trace!(target: "libbpf", "{text}"),
                PrintLevel::Info => tracing::debug!(target: "libbpf", "{text}"),
                PrintLevel::Warn => {
                    tracing::debug!(target: "libbpf", "{text}");
                    let mut first = FIRST_WARNING.lock().unwrap_or_else(PoisonError::into_inner);
                    if first.is_empty() {
                        first.extend(text.chars().take(WARNING_MAX));
                    }
                }
            }
        })));
    });
}

/// Fails where the kernel at `sys` has no type information.
///
/// # Errors
///
/// That there is none, and what to do.
pub fn require_btf(sys: &Path) -> Result<(), BpfError> {
    let btf = sys.join("kernel/btf/vmlinux");
    match fs::metadata(&btf) {
        Ok(_) => Ok(()),
        Err(_) => Err(BpfError::NoBtf(btf)),
    }
}

/// The program of [`BOOST`] that only some kernels have a use for: see `bpf/boost/kept.h`.
pub const BOOST_ON_TICK: &str = "boost_on_tick";

/// Whether the kernel that runs here has a use for [`BOOST_ON_TICK`].
///
/// # Errors
///
/// Why its types can't be read.
pub fn boost_wants_ticks() -> Result<bool, libbpf_rs::Error> {
    let kernel = Btf::from_vmlinux()?;
    let function = kernel.type_by_name::<Func<'_>>("scx_bpf_reenqueue_local___v2");
    Ok(function.is_some())
}

/// Has a map hold so many entries.
///
/// # Errors
///
/// What libbpf said.
///
/// # Panics
///
/// If the object has no such map.
pub fn resize(object: &mut OpenObject, map: &'static str, entries: u32) -> Result<(), BpfError> {
    for mut each in object.maps_mut() {
        if each.name() == map {
            return each
                .set_max_entries(entries)
                .map_err(|error| BpfError::step(format!("size the map {map}"), &error, "5.11"));
        }
    }
    unreachable!("{map} is in the object that build.rs compiled");
}

/// One of the object's maps. The name is one of our own source's, so it is there.
///
/// # Panics
///
/// If it isn't.
pub fn map<'a>(object: &'a mut Object, name: &str) -> MapMut<'a> {
    object
        .maps_mut()
        .find(|map| map.name() == name)
        .unwrap_or_else(|| unreachable!("{name} is in the object that build.rs compiled"))
}

/// One of the object's programs, likewise.
///
/// # Panics
///
/// If it isn't there.
pub fn program<'a>(object: &'a Object, name: &str) -> ProgramMut<'a> {
    object
        .progs_mut()
        .find(|program| program.name() == name)
        .unwrap_or_else(|| unreachable!("{name} is in the object that build.rs compiled"))
}

/// An object file that build.rs compiled, aligned as an ELF reader needs it.
#[repr(C, align(8))]
struct Aligned<T: ?Sized>(T);

macro_rules! objects {
    ($($name:ident: $file:literal, $what:literal;)*) => {$(
        #[doc = $what]
        pub static $name: &[u8] = {
            static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), $file)));
            &OBJECT.0
        };
    )*};
}

objects! {
    BOOST: "/boost.bpf.o", "`bpf/boost`: a scheduler for vCPUs.";
    LEAST: "/least.bpf.o", "`bpf/least`: what `bench/boost` lays beside it.";
    SENSE: "/sense.bpf.o", "`bpf/sense`: where CPUs' time goes.";
    TAP: "/tap.bpf.o", "`bpf/tap`: response times on guests' taps.";
    VCPUS: "/vcpus.bpf.o", "`bpf/vcpus`: which thread runs which vCPU.";
}
