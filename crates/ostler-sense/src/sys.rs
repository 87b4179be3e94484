//! The few system calls for which rustix has no safe form, or one that trusts the kernel more than it may.
#![allow(unsafe_code)] // Raw system calls; each block says why it is sound.

use std::io;
use std::os::fd::AsRawFd;

use ostler_model::{CpuId, CpuSet, MAX_CPUS, Nanos, Pid, Tid};

/// The monotonic clock, which BPF's `bpf_ktime_get_ns` reads too.
pub fn now() -> Nanos {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let secs = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Nanos(secs.saturating_mul(1_000_000_000).saturating_add(nanos))
}

/// The process that listens at the other end of a unix socket; `None` when it is in a PID namespace that we don't see.
pub(crate) fn peer_pid(socket: &impl AsRawFd) -> io::Result<Option<Pid>> {
    let mut credentials = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut len = libc::socklen_t::try_from(size_of_val(&credentials)).unwrap_or(0);
    // SAFETY: both pointers are to live values of the types and sizes that SO_PEERCRED fills.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(u32::try_from(credentials.pid)
        .ok()
        .filter(|&pid| pid > 0)
        .map(Pid))
}

/// The CPUs that a thread may run on.
pub(crate) fn affinity(tid: Tid) -> io::Result<CpuSet> {
    let tid = i32::try_from(tid.0).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut words = [0u64; MAX_CPUS as usize / 64];
    // SAFETY: the kernel writes at most the size given, into an array that it may fill with any bits.
    let len = unsafe {
        libc::syscall(
            libc::SYS_sched_getaffinity,
            tid,
            size_of_val(&words),
            words.as_mut_ptr(),
        )
    };
    if len < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(cpu_set(words.into_iter()))
}

/// The CPUs whose bits are set.
pub(crate) fn cpu_set(words: impl Iterator<Item = u64>) -> CpuSet {
    let mut set = CpuSet::EMPTY;
    for (base, mut bits) in (0..).step_by(64).zip(words) {
        while bits != 0 {
            set.insert(CpuId(base + bits.trailing_zeros()));
            bits &= bits - 1;
        }
    }
    set
}

/// The number of a network interface, in the network namespace that we are in.
pub(crate) fn if_index(name: &std::ffi::CStr) -> Option<u32> {
    // SAFETY: a NUL-terminated string that lives throughout the call.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    (index != 0).then_some(index)
}
