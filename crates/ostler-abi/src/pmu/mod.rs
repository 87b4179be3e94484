//! The emulated host's performance counters: pages that the machine writes and its host reads.
//!
//! A real processor has a performance monitoring unit; QEMU's emulated one has none. So the emulated machine shows what its
//! cores did in the memory of a PCI device ([`VENDOR`], [`DEVICE`], QEMU's `ivshmem-plain`; the pages are its
//! [`RESOURCE`]). It is read like memory, without an exit and at no cost in the machine's time.
//!
//! ## Layout
//!
//! Everything is a little-endian 64-bit word. First comes a header of [`HEADER_WORDS`] words (see [`Header`]), then [`CORES_MAX`] records
//! of [`RECORD_WORDS`] words, one for each core, then [`VCPUS_MAX`] such records of what cores did as vCPUs of guests:
//!
//! | word | what |
//! |---|---|
//! | 0 | sequence: how often the record was written |
//! | 8 + 60 x (sequence mod 2) | whose record it is: for a vCPU, the physical address of its VMCB; 0 where the record is nobody's |
//! | and on | the counts, in the order of [`Counts`]'s fields |
//!
//! The sequence is a latch: a writer fills the copy that nobody reads and then adds one. A reader is never kept waiting by a
//! writer, however long the real machine stops that one in the midst of a copy; it looks again only if a whole new copy was
//! written while it read. After Linux's `seqcount_latch` (include/linux/seqlock.h).
//!
//! Counts only grow. A core's record is true at one moment of its clock, `time_ns`, which is at most a quantum (10 us)
//! old, or when the core halted. A vCPU's is true when a core last left it, or at that core's last quantum; its `time_ns` is the time
//! that it has executed. The VMCB is where AMD's processors keep a vCPU's state (APM volume 2, 15.5); the hypervisor made it, and
//! knows whose it is. A record whose vCPU hasn't run for longest is given to another when there is none left; its counts begin
//! at 0 again then.
//!
//! One word of the header, [`MARK`], is the host's to write: it marks where what it wants to know of begins and ends, in the machine's
//! own time, for a machine that profiles (`machine/time`). Nobody else reads it.

mod device;

use std::sync::atomic::{AtomicU64, Ordering, fence};

pub use device::{Device, Marker, NoDevice};

/// PCI vendor of the device: Red Hat, as QEMU's devices have.
pub const VENDOR: u16 = 0x1af4;
/// PCI device: inter-VM shared memory.
pub const DEVICE: u16 = 0x1110;
/// The device's memory among its resources, as in sysfs's `resource2`.
pub const RESOURCE: u32 = 2;

/// The header's first word: what the pages are.
pub const MAGIC: u64 = u64::from_le_bytes(*b"ostlrPMU");
/// The layout told here.
pub const VERSION: u64 = 2;
/// Words of the header.
pub const HEADER_WORDS: usize = 64;
/// The header's word that the host writes: 0 at first, 2n + 1 where its window n begins, 2n + 2 where that ends.
pub const MARK: usize = 8;
/// Words of a core's record.
pub const RECORD_WORDS: usize = 128;
/// Words of one copy of the counts.
pub const COUNTS_WORDS: usize = 58;
/// Cores at most.
pub const CORES_MAX: usize = 64;
/// Memory nodes that are told apart; what goes to others isn't counted by node.
pub const NODES_MAX: usize = 16;
/// vCPUs that have records at the same time.
pub const VCPUS_MAX: usize = 128;
/// Size of the pages, bytes: a power of two, as a PCI resource's must be.
pub const BYTES: usize = 256 << 10;

/// Kinds of access: fetch of instructions, load, store, atomic.
pub const KINDS: usize = 4;
/// What served an access: L1, L2, L3, another core's cache, own node, another node, a pool, nothing.
pub const LEVELS: usize = 8;

const FIRST_COPY: usize = 8;
/// Words of a copy: whose it is, the counts, and one to spare.
const COPY_WORDS: usize = 60;
/// A copy that changes so often while it is read isn't one of a machine that works.
const TRIES: usize = 1000;

const _: () = assert!(BYTES.is_power_of_two());
const _: () = assert!(MARK > 4 && MARK < HEADER_WORDS);
const _: () = assert!((HEADER_WORDS + (CORES_MAX + VCPUS_MAX) * RECORD_WORDS) * 8 <= BYTES);
const _: () = assert!(FIRST_COPY + 2 * COPY_WORDS <= RECORD_WORDS);
const _: () = assert!(COUNTS_WORDS < COPY_WORDS);
const _: () = assert!(10 + KINDS * LEVELS + NODES_MAX == COUNTS_WORDS);

/// What the pages hold. Words 1 to 4 of the header, in this order; word 0, [`MAGIC`], is written last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Cores that have records.
    pub cores: usize,
    /// Memory nodes of the machine; 0 where accesses cost nothing and aren't counted.
    pub nodes: usize,
    /// Whether accesses are counted, and cost time by where their data lies.
    pub caches: bool,
}

/// What a core, or a vCPU, did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The core's own clock when all of this was true, ns; of a vCPU, the time that it has executed.
    pub time_ns: u64,
    /// Of it, halted.
    pub halted_ns: u64,
    /// Instructions executed.
    pub instructions: u64,
    /// Time that accesses took beyond what L1 hits would have, ps.
    pub stall_ps: u64,
    /// Of it, waiting for a memory device whose bandwidth was used up.
    pub queued_ps: u64,
    /// Other caches that the core's accesses asked for data or told to give a line up.
    pub snoops_sent: u64,
    /// Snoops that came to its caches.
    pub snoops_received: u64,
    /// Lines that a device's full snoop filter took back for the core's accesses.
    pub back_invalidations: u64,
    /// Lines that the core lost to a full L3 or filter.
    pub back_invalidated: u64,
    /// Accesses that couldn't be placed, and so cost nothing.
    pub unplaced: u64,
    /// Accesses by kind and by what served them. See [`KINDS`] and [`LEVELS`].
    pub served: [[u64; LEVELS]; KINDS],
    /// Bytes read from and written back to each memory node.
    pub node_bytes: [u64; NODES_MAX],
}

/// Why pages aren't a machine's counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PmuError {
    /// Somebody else's shared memory, or a machine that hasn't begun to write.
    #[error("there are no counters of an emulated machine in it (it begins with {0:#018x})")]
    NotOurs(u64),
    /// Another layout.
    #[error(
        "its layout is version {0}, and this program knows version {VERSION}; use the ostler that the machine came with"
    )]
    Version(u64),
    /// It says that it holds more than fits in.
    #[error("it says that it has records of {cores} cores in {bytes} bytes, which can't be")]
    Size {
        /// Cores that it claims.
        cores: u64,
        /// How large it is.
        bytes: usize,
    },
    /// A record that is rewritten faster than it can be read.
    #[error("the record of core {0} never stood still")]
    Restless(usize),
    /// A core that the machine hasn't.
    #[error("there is no core {0}")]
    NoCore(usize),
}

impl Counts {
    fn words(&self) -> [u64; COUNTS_WORDS] {
        let mut words = [0; COUNTS_WORDS];
        let first = [
            self.time_ns,
            self.halted_ns,
            self.instructions,
            self.stall_ps,
            self.queued_ps,
            self.snoops_sent,
            self.snoops_received,
            self.back_invalidations,
            self.back_invalidated,
            self.unplaced,
        ];
        let all = first
            .iter()
            .chain(self.served.iter().flatten())
            .chain(&self.node_bytes);
        for (word, value) in words.iter_mut().zip(all) {
            *word = *value;
        }
        words
    }

    fn of(words: &[u64; COUNTS_WORDS]) -> Counts {
        let mut counts = Counts {
            time_ns: words[0],
            halted_ns: words[1],
            instructions: words[2],
            stall_ps: words[3],
            queued_ps: words[4],
            snoops_sent: words[5],
            snoops_received: words[6],
            back_invalidations: words[7],
            back_invalidated: words[8],
            unplaced: words[9],
            ..Counts::default()
        };
        let rest = counts
            .served
            .iter_mut()
            .flatten()
            .chain(&mut counts.node_bytes);
        for (value, word) in rest.zip(&words[10..]) {
            *value = *word;
        }
        counts
    }

    /// Adds what was done later, or elsewhere.
    pub fn add(&mut self, more: &Counts) {
        let (mine, more) = (self.words(), more.words());
        *self = Counts::of(&std::array::from_fn(|at| mine[at].wrapping_add(more[at])));
    }

    /// What was done since an earlier reading.
    #[must_use]
    pub fn since(&self, earlier: &Counts) -> Counts {
        let (now, then) = (self.words(), earlier.words());
        Counts::of(&std::array::from_fn(|at| now[at].saturating_sub(then[at])))
    }

    /// Accesses in all.
    pub fn accesses(&self) -> u64 {
        self.served.iter().flatten().sum()
    }

    /// Accesses that a level served.
    pub fn at(&self, level: usize) -> u64 {
        self.served.iter().map(|row| row[level]).sum()
    }
}

/// The machine begins: says what the pages hold. Records are all zeros then.
///
/// # Panics
/// When there are more than [`CORES_MAX`] cores, or the pages are smaller than [`BYTES`].
pub fn begin(pages: &[AtomicU64], header: Header) {
    assert!(header.cores <= CORES_MAX, "more cores than have records");
    assert!(pages.len() * 8 >= BYTES, "pages are too small");
    let words = [
        VERSION,
        header.cores as u64,
        header.nodes as u64,
        u64::from(header.caches),
    ];
    for (place, word) in pages[1..].iter().zip(words) {
        place.store(word, Ordering::Relaxed);
    }
    pages[0].store(MAGIC, Ordering::Release);
}

/// A core writes its record. By one thread at a time for each core.
///
/// # Panics
/// When there is no such record.
pub fn write(pages: &[AtomicU64], core: usize, counts: &Counts) {
    assert!(core < CORES_MAX, "no such record");
    put(record(pages, core), 0, counts);
}

/// A vCPU's record is written; `vmcb` says whose it is. By one thread at a time for each record.
///
/// # Panics
/// When there is no such record.
pub fn write_vcpu(pages: &[AtomicU64], slot: usize, vmcb: u64, counts: &Counts) {
    assert!(slot < VCPUS_MAX, "no such record");
    put(record(pages, CORES_MAX + slot), vmcb, counts);
}

fn record(pages: &[AtomicU64], index: usize) -> &[AtomicU64] {
    &pages[HEADER_WORDS + index * RECORD_WORDS..][..RECORD_WORDS]
}

fn put(record: &[AtomicU64], whose: u64, counts: &Counts) {
    let next = record[0].load(Ordering::Relaxed).wrapping_add(1);
    // Whoever sees a word of this copy sees that the one before it was done, too, and so that it read an old one.
    fence(Ordering::Release);
    let place = copy(record, next);
    place[0].store(whose, Ordering::Relaxed);
    for (place, word) in place[1..].iter().zip(counts.words()) {
        place.store(word, Ordering::Relaxed);
    }
    record[0].store(next, Ordering::Release);
}

/// What a record holds, and whose it is; `None` if it never stood still.
fn get(record: &[AtomicU64]) -> Option<(u64, Counts)> {
    for _ in 0..TRIES {
        let before = record[0].load(Ordering::Acquire);
        let place = copy(record, before);
        let whose = place[0].load(Ordering::Relaxed);
        let words = std::array::from_fn(|at| place[1 + at].load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        if record[0].load(Ordering::Relaxed) == before {
            return Some((whose, Counts::of(&words)));
        }
    }
    None
}

/// What the pages hold.
pub fn header(pages: &[AtomicU64]) -> Result<Header, PmuError> {
    let word = |at: usize| pages.get(at).map_or(0, |word| word.load(Ordering::Acquire));
    if word(0) != MAGIC {
        return Err(PmuError::NotOurs(word(0)));
    }
    if word(1) != VERSION {
        return Err(PmuError::Version(word(1)));
    }
    let fits = pages.len().saturating_sub(HEADER_WORDS) / RECORD_WORDS;
    match usize::try_from(word(2)) {
        Ok(cores) if cores <= fits.min(CORES_MAX) => Ok(Header {
            cores,
            nodes: usize::try_from(word(3)).unwrap_or(NODES_MAX).min(NODES_MAX),
            caches: word(4) != 0,
        }),
        _ => Err(PmuError::Size {
            cores: word(2),
            bytes: pages.len() * 8,
        }),
    }
}

/// What a core did so far.
pub fn read(pages: &[AtomicU64], core: usize) -> Result<Counts, PmuError> {
    if core >= header(pages)?.cores {
        return Err(PmuError::NoCore(core));
    }
    let found = get(record(pages, core)).ok_or(PmuError::Restless(core))?;
    Ok(found.1)
}

/// What vCPUs did so far, by the physical address of each one's VMCB.
pub fn read_vcpus(pages: &[AtomicU64]) -> Result<Vec<(u64, Counts)>, PmuError> {
    header(pages)?;
    let there = pages.len().saturating_sub(HEADER_WORDS) / RECORD_WORDS;
    let records = CORES_MAX..there.min(CORES_MAX + VCPUS_MAX);
    // One that is written without a pause isn't told of this time.
    let found = records.filter_map(|index| get(record(pages, index)));
    Ok(found.filter(|(vmcb, _)| *vmcb != 0).collect())
}

/// The copy that is good when the sequence is `sequence`.
fn copy(record: &[AtomicU64], sequence: u64) -> &[AtomicU64] {
    let second = usize::from(sequence % 2 == 1);
    &record[FIRST_COPY + second * COPY_WORDS..][..COPY_WORDS]
}

#[cfg(test)]
mod tests;
