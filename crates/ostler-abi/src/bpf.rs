//! What user space shares with the programs in `bpf/`; `bpf/core/abi.h` says the same in C.

/// CPUs that an affinity in [`ThreadSlot`] can name.
pub const CPUS_MAX: usize = 1024;

/// Buckets of a tap's histogram (`HIST_BUCKETS` in `bpf/core/hist.h`).
pub const HIST_BUCKETS: usize = 368;

/// [`CpuAcct::word`]'s low bits that hold the state; the rest is the time since which it holds.
pub const ACCT_STATE_BITS: u32 = 4;
/// A task other than the idle task is current.
pub const ACCT_TASK: u64 = 1;
/// A softirq runs.
pub const ACCT_SOFTIRQ: u64 = 2;
/// A hard interrupt runs.
pub const ACCT_HARDIRQ: u64 = 4;
/// With [`ACCT_TASK`]: the task yields to all others.
pub const ACCT_YIELDS: u64 = 8;

/// Indices into [`CpuAcct::ns`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum AcctBucket {
    /// The idle task.
    Idle = 0,
    /// A task that yields to nobody.
    Task = 1,
    /// Softirqs.
    Softirq = 2,
    /// Hard interrupts.
    Hardirq = 3,
    /// A task whose cgroup is idle for the scheduler, so that it yields to all others.
    Yielding = 4,
}

/// One CPU's time and events since the programs were attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CpuAcct {
    /// The time since which the present state holds, and that state; see `bpf/core/acct.h`.
    pub word: u64,
    /// When counting began.
    pub started_ns: u64,
    /// Time charged per [`AcctBucket`].
    pub ns: [u64; 5],
    /// Context switches.
    pub switches: u64,
    /// Tasks moved to another CPU, counted where the move was made.
    pub migrations: u64,
    /// Interrupts of all kinds.
    pub irqs: u64,
    /// Exits from guests.
    pub kvm_exits: u64,
    /// Fills two cache lines.
    pub spare: [u64; 5],
}

/// A thread to be read, and what was read of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct ThreadSlot {
    /// Which thread; set by user space.
    pub tid: u32,
    /// 1 to read what its process as a whole has, too (`threads` and `cgroup_id`); set by user space.
    pub leader: u32,
    /// 1 when there is such a thread; else nothing below holds.
    pub found: u32,
    /// Its process.
    pub tgid: u32,
    /// Threads of its process.
    pub threads: u32,
    /// Nothing.
    pub spare: u32,
    /// When it started, on the boot clock: tells a thread from a later one of the same number.
    pub start_boottime_ns: u64,
    /// Time on a CPU.
    pub run_ns: u64,
    /// Time runnable and waiting for a CPU.
    pub wait_ns: u64,
    /// When it was queued if it waits for a CPU now, on the run queue's clock; `wait_ns` is without that wait.
    pub queued_ns: u64,
    /// Its cgroup in the unified hierarchy.
    pub cgroup_id: u64,
    /// The CPUs it may run on.
    pub allowed: [u64; CPUS_MAX / 64],
}

/// The argument of the program that reads threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ThreadArgs {
    /// How many slots to read.
    pub count: u32,
    /// Bytes of an affinity that can be other than zero on this host.
    pub allowed_bytes: u32,
}

/// The samples of one tap since it was attached; counts wrap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct TapHist {
    /// Samples taken.
    pub samples: u64,
    /// Of them, per bucket.
    pub counts: [u32; HIST_BUCKETS],
}

const _: () = {
    assert!(size_of::<CpuAcct>() == 128);
    assert!(size_of::<ThreadSlot>() == 192);
    assert!(size_of::<ThreadArgs>() == 8);
    assert!(size_of::<TapHist>() == 8 + 4 * HIST_BUCKETS);
};
