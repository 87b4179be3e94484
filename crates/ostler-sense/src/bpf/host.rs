//! `bpf/sense`: what CPUs and threads did.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::Ordering;

use libbpf_rs::{ErrorKind, Link, Object, ObjectBuilder, ProgramInput};
use ostler_abi::bpf::{
    ACCT_HARDIRQ, ACCT_SOFTIRQ, ACCT_STATE_BITS, ACCT_TASK, ACCT_YIELDS, AcctBucket, CpuAcct,
    ThreadArgs, ThreadSlot,
};
use ostler_model::{CpuId, CpuSet, Pid};

use crate::threads::ThreadKey;
use ostler_bpf::{
    BpfError, MappedArray, forget_warning, map, program, quiet_libbpf, require_btf, resize,
};

/// The most threads that one reading may name.
pub(crate) const THREADS_MAX: u32 = 16384;

/// How often a CPU is read again when it is in the middle of a change.
const READ_TRIES: u32 = 16;

/// `BPF_F_TEST_RUN_ON_CPU` of the kernel's interface.
const TEST_RUN_ON_CPU: u32 = 1;

/// Programs without which nothing is known.
const TRACED: [&str; 6] = [
    "on_switch",
    "on_migrate",
    "on_irq_entry",
    "on_irq_exit",
    "on_softirq_entry",
    "on_softirq_exit",
];

/// The processor's own interrupts, where the architecture traces them (x86's, then arm64's). An exit is attached
/// before its entry, so that no entry is seen without its exit.
const VECTORS: [&str; 10] = [
    "local_timer",
    "reschedule",
    "call_function",
    "call_function_single",
    "irq_work",
    "x86_platform_ipi",
    "thermal_apic",
    "threshold_apic",
    "deferred_error_apic",
    "ipi",
];

/// Which of a CPU's words counts its switches.
const ACCT_SWITCHES: usize = 7;

/// Where a CPU's time went since the programs were attached, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CpuTotals {
    pub(crate) idle: u64,
    pub(crate) task: u64,
    pub(crate) yielding: u64,
    pub(crate) softirq: u64,
    pub(crate) irq: u64,
    pub(crate) switches: u64,
    pub(crate) migrations: u64,
    pub(crate) irqs: u64,
    pub(crate) kvm_exits: u64,
}

/// What was read of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThreadReading {
    /// Tells it from a later thread of the same number.
    pub(crate) started: u64,
    pub(crate) run: u64,
    pub(crate) wait: u64,
    /// Not zero while it waits for a CPU; another value for each wait.
    pub(crate) queued: u64,
    pub(crate) allowed: CpuSet,
    /// Threads of its process; 0 where that was not asked for or can't be told.
    pub(crate) threads: u32,
    /// Its cgroup's number, where the reader can tell.
    pub(crate) cgroup_id: Option<u64>,
}

/// The loaded programs. They are detached when it is dropped.
pub(crate) struct HostBpf {
    object: Object,
    _links: Vec<Link>,
    kvm: Option<Link>,
    vectors: usize,
    cpus: MappedArray,
    threads: MappedArray,
}

impl HostBpf {
    /// Loads and attaches, for CPUs below `possible`.
    pub(crate) fn load(sys: &Path, possible: u32) -> Result<HostBpf, BpfError> {
        quiet_libbpf();
        require_btf(sys)?;
        let mut open = ObjectBuilder::default()
            .open_memory(ostler_bpf::SENSE)
            .map_err(|error| BpfError::step("open the sensing programs", &error, "6.2"))?;
        resize(&mut open, "cpus", possible)?;
        resize(&mut open, "threads", THREADS_MAX)?;
        let mut object = open
            .load()
            .map_err(|error| BpfError::step("load the sensing programs", &error, "6.2"))?;

        let cpus = {
            let map = map(&mut object, "cpus");
            MappedArray::new(map.as_fd(), possible as usize, size_of::<CpuAcct>() / 8)
        }
        .map_err(|source| BpfError::Map {
            map: "cpus",
            source,
        })?;
        let threads = {
            let map = map(&mut object, "threads");
            MappedArray::new(
                map.as_fd(),
                THREADS_MAX as usize,
                size_of::<ThreadSlot>() / 8,
            )
        }
        .map_err(|source| BpfError::Map {
            map: "threads",
            source,
        })?;

        let mut links = Vec::new();
        for name in TRACED {
            let link = program(&object, name).attach_trace().map_err(|error| {
                BpfError::step(format!("attach the program {name}"), &error, "5.5")
            })?;
            links.push(link);
        }
        // Not before switches are traced: a CPU that falls asleep in between would be taken to be busy for as long as it sleeps.
        for cpu in 0..possible {
            // A CPU that is offline can't run it; its first switch will tell.
            let _ = program(&object, "start").test_run(ProgramInput {
                cpu,
                flags: TEST_RUN_ON_CPU,
                ..ProgramInput::default()
            });
        }
        let mut vectors = 0;
        for name in VECTORS {
            let exit =
                program(&object, "on_vector_exit").attach_raw_tracepoint(format!("{name}_exit"));
            let entry = exit.and_then(|exit| {
                let entry = program(&object, "on_vector_entry")
                    .attach_raw_tracepoint(format!("{name}_entry"))?;
                Ok([exit, entry])
            });
            match entry {
                Ok(pair) => {
                    vectors += 1;
                    links.extend(pair);
                }
                Err(error) => tracing::debug!(vector = name, %error, "not traced here"),
            }
        }
        forget_warning();

        let mut host = HostBpf {
            object,
            _links: links,
            kvm: None,
            vectors,
            cpus,
            threads,
        };
        host.attach_kvm();
        Ok(host)
    }

    /// Counts exits from guests from now on, if KVM is loaded. Says whether they are counted.
    pub(crate) fn attach_kvm(&mut self) -> bool {
        if self.kvm.is_none() {
            match program(&self.object, "on_kvm_exit").attach_raw_tracepoint("kvm_exit") {
                Ok(link) => self.kvm = Some(link),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => tracing::debug!(%error, "exits from guests are not counted"),
            }
            forget_warning();
        }
        self.kvm.is_some()
    }

    /// Whether exits from guests are counted.
    pub(crate) fn counts_kvm_exits(&self) -> bool {
        self.kvm.is_some()
    }

    /// How many kinds of the processor's own interrupts are traced.
    pub(crate) fn vectors(&self) -> usize {
        self.vectors
    }

    /// A CPU's time up to `now_ns`, its open span included. `None` when it was never seen, or could not be read
    /// between two changes.
    pub(crate) fn cpu(&self, cpu: CpuId, now_ns: u64) -> Option<CpuTotals> {
        let index = cpu.0 as usize;
        if index >= self.cpus.entries() {
            return None;
        }
        let words = self.cpus.entry(index);
        for _ in 0..READ_TRIES {
            let at = |index: usize| words[index].load(Ordering::Acquire);
            let word = at(0);
            if word == 0 {
                return None;
            }
            let started = at(1);
            let mut ns = [at(2), at(3), at(4), at(5), at(6)];
            let since = word >> ACCT_STATE_BITS;
            // In the middle of a change the sum is behind (see bpf/core/acct.h).
            if at(0) != word || started.wrapping_add(ns.iter().sum::<u64>()) != since {
                std::hint::spin_loop();
                continue;
            }
            ns[bucket(word) as usize] += now_ns.saturating_sub(since);
            return Some(CpuTotals {
                idle: ns[AcctBucket::Idle as usize],
                task: ns[AcctBucket::Task as usize],
                yielding: ns[AcctBucket::Yielding as usize],
                softirq: ns[AcctBucket::Softirq as usize],
                irq: ns[AcctBucket::Hardirq as usize],
                switches: at(ACCT_SWITCHES),
                migrations: at(ACCT_SWITCHES + 1),
                irqs: at(ACCT_SWITCHES + 2),
                kvm_exits: at(ACCT_SWITCHES + 3),
            });
        }
        None
    }

    /// How many CPUs there can be.
    pub(crate) fn possible(&self) -> usize {
        self.cpus.entries()
    }

    /// Switches of all CPUs that were traced so far, also of those that are offline now.
    pub(crate) fn switches(&self) -> u64 {
        let of = |cpu| self.cpus.entry(cpu)[ACCT_SWITCHES].load(Ordering::Acquire);
        (0..self.cpus.entries()).map(of).fold(0, u64::wrapping_add)
    }

    /// Reads threads, at most [`THREADS_MAX`], in one call. `out` gets one entry per thread named: `None` when it is
    /// not, or no longer, a thread of that process.
    pub(crate) fn read_threads(
        &self,
        keys: &[ThreadKey],
        out: &mut Vec<Option<ThreadReading>>,
    ) -> Result<(), BpfError> {
        out.clear();
        let keys = &keys[..keys.len().min(THREADS_MAX as usize)];
        for (index, key) in keys.iter().enumerate() {
            let tid = key.tid.0.to_ne_bytes();
            let leader = u32::from(key.tid.0 == key.pid.0).to_ne_bytes();
            let word = [
                tid[0], tid[1], tid[2], tid[3], leader[0], leader[1], leader[2], leader[3],
            ];
            self.threads.entry(index)[0].store(u64::from_ne_bytes(word), Ordering::Relaxed);
        }
        let args = ThreadArgs {
            count: u32::try_from(keys.len()).unwrap_or(0),
            allowed_bytes: u32::try_from(self.cpus.entries().div_ceil(64) * 8).unwrap_or(0),
        };
        let mut bytes = [0; size_of::<ThreadArgs>()];
        bytes[..4].copy_from_slice(&args.count.to_ne_bytes());
        bytes[4..].copy_from_slice(&args.allowed_bytes.to_ne_bytes());
        program(&self.object, "read_threads")
            .test_run(ProgramInput {
                context_in: Some(&mut bytes),
                ..ProgramInput::default()
            })
            .map_err(|error| BpfError::step("read threads", &error, "6.2"))?;
        let readings = keys.iter().enumerate();
        out.extend(readings.map(|(index, key)| self.reading(index, key.pid)));
        Ok(())
    }

    fn reading(&self, index: usize, pid: Pid) -> Option<ThreadReading> {
        let words = self.threads.entry(index);
        let at = |index: usize| words[index].load(Ordering::Relaxed);
        // Pairs of 32-bit fields share a word: { tid, leader }, { found, tgid } and { threads, spare }.
        let [_, leader] = halves(at(0));
        let [found, tgid] = halves(at(1));
        let [threads, _] = halves(at(2));
        (found == 1 && tgid == pid.0).then(|| ThreadReading {
            started: at(3),
            run: at(4),
            wait: at(5),
            queued: at(6),
            cgroup_id: (leader == 1).then(|| at(7)),
            allowed: crate::sys::cpu_set((8..24).map(at)),
            threads: if leader == 1 { threads } else { 0 },
        })
    }
}

fn bucket(word: u64) -> AcctBucket {
    if word & ACCT_HARDIRQ != 0 {
        AcctBucket::Hardirq
    } else if word & ACCT_SOFTIRQ != 0 {
        AcctBucket::Softirq
    } else if word & ACCT_YIELDS != 0 {
        AcctBucket::Yielding
    } else if word & ACCT_TASK != 0 {
        AcctBucket::Task
    } else {
        AcctBucket::Idle
    }
}

/// The two 32-bit fields of a word, in the order they have in memory.
pub(super) fn halves(word: u64) -> [u32; 2] {
    let bytes = word.to_ne_bytes();
    [0, 4].map(|at| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]))
}
