//! The whole: a system of cores, caches and memory, and what an access costs in it.
//!
//! ## An access
//!
//! [`System::access`] is called by a core's own thread. What its L1 has is decided there without a lock ([`crate::cache`]).
//! What its L2 has, and needs nobody's leave for, is decided under the core's own lock ([`crate::private`]), which stays in the real
//! machine's nearest cache for as long as nobody snoops the core.
//! Everything else is a *transaction* ([`crate::transaction`]) under the lock of the line's shard.
//!
//! ## Locks
//!
//! A transaction changes its own core's caches under the shard's lock alone: only the core's own thread would be in its way, and that is
//! where it is. To change another core's it takes that core's own lock as well, for as long as that takes; it never has two of
//! those, and nobody who has one waits for a shard. That a line is *not* in a core's L2 the core's thread knows without any lock, as
//! nobody else brings lines there.
//!
//! ## Shards
//!
//! Every cache picks a line's set by the line's low bits. So if all lines are dealt out over S shards by their lowest log2 S
//! bits, and S is at most the number of sets of the smallest cache, then all lines of one set of one cache, whichever, are in
//! one shard. A line that is brought in and all the lines that must leave for it, from L1, L2, L3 and a device's filter, and
//! the directory's entries of all of them, are therefore behind the same lock: a transaction takes exactly one, and there is
//! no order of locks to keep. With 64 sets in an L1 there are 64 shards.
//!
//! ## What it charges
//!
//! The latency of the level that served it, from the core's part; for a line that another cache has for itself, a snoop's
//! (CXL's Snoop Data) instead; on top of either, a Snoop Invalidate if others must give up shared copies for a store, a
//! Back-Invalidate if a device's filter had to make room, and the wait for a busy device ([`crate::bandwidth`]).
//! Times are picoseconds, so that cores of different clocks add up. As in Stramash, the core waits for each access in full...
//!
//! ...but for streams. A core that walks through memory has many lines on their way at once, by prefetching or out of order. If
//! it were charged the full latency for each, sixty cores couldn't use up one memory channel, and bandwidth limits would mean
//! nothing. So a core has a few stream heads; a line from memory that is next to a head costs the latency over the part's
//! `outstanding_misses`, and its bandwidth in full. Pointers that are chased cost what they always do.
//! [`Topology::overlap`](crate::Topology) turns it off.
//!
//! ## What it doesn't know
//!
//! Threads of one core: each has caches of its own. Links between sockets have latency but no bandwidth. Stores wait like
//! loads. There is no translation: page walks are accesses that the caller makes, or doesn't.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::bandwidth::Bandwidth;
use crate::block::{ALIGN, Area, Carver};
use crate::cache::L1;
use crate::costs::Costs;
use crate::counters::{Count, Counters, Counts, Kind, Level, Received};
use crate::directory::Directory;
use crate::header::{BlockError, Header, hash};
use crate::lock::{Guard, lock};
use crate::map::{Map, Place};
use crate::part::{Catalogue, LINE_BYTES, Policy};
use crate::private::Second;
use crate::sets::{Sets, Slot};
use crate::topology::{Topology, TopologyError};
use crate::transaction::Transaction;

/// Streams that a core walks at once.
const STREAMS: usize = 8;

/// What an access costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// How long the core waits, ps.
    pub picoseconds: u64,
    /// What served it.
    pub level: Level,
}

/// A core.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Core {
    pub(crate) code: L1,
    pub(crate) data: L1,
    pub(crate) l2: Sets,
    pub(crate) costs: Costs,
    pub(crate) group: usize,
    pub(crate) node: usize,
    /// The last line of each stream from memory, all bits turned over; and which of them is replaced next.
    pub(crate) streams: Area<AtomicU64>,
    pub(crate) counters: Counters,
    pub(crate) received: Received,
    /// The core's own lock.
    pub(crate) lock: Area<AtomicU64>,
}

impl Core {
    /// A line comes from memory: whether it is next in a stream. By the core's own thread.
    #[allow(clippy::cast_possible_truncation, reason = "only its remainder counts")]
    pub(crate) fn streams(&self, line: u64) -> bool {
        let Some((turn, heads)) = self.streams.split_last() else {
            return false;
        };
        for head in heads {
            let last = !head.load(Relaxed);
            if last.abs_diff(line) == 1 {
                head.store(!line, Relaxed);
                return true;
            }
        }
        let next = turn.load(Relaxed);
        heads[next as usize % STREAMS].store(!line, Relaxed);
        turn.store(next.wrapping_add(1), Relaxed);
        false
    }

    /// Words of [`Core::streams`].
    pub(crate) const STREAM_WORDS: usize = STREAMS + 1;
}

/// Cores that share an L3, or that would.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) cores: u64,
    pub(crate) node: usize,
    pub(crate) l3: Option<(Policy, Sets)>,
}

impl Group {
    pub(crate) fn policy(&self) -> Option<Policy> {
        self.l3.as_ref().map(|(policy, _)| *policy)
    }

    pub(crate) fn cache(&self) -> Option<&Sets> {
        self.l3.as_ref().map(|(_, cache)| cache)
    }
}

/// Memory.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) bandwidth: Bandwidth,
    pub(crate) back_invalidate_ps: u64,
    pub(crate) filter: Option<Sets>,
}

/// A machine's caches and memory. See the module.
#[derive(Debug)]
pub struct System {
    pub(crate) header: Header,
    pub(crate) cores: Box<[Core]>,
    pub(crate) groups: Box<[Group]>,
    pub(crate) memory: Box<[Memory]>,
    pub(crate) map: Map,
    pub(crate) directory: Directory,
    /// Each in real cache lines of its own.
    pub(crate) shards: Area<[AtomicU64; ALIGN / 8]>,
}

impl System {
    /// A system whose caches are all empty.
    pub fn new(topology: &Topology, catalogue: &Catalogue) -> Result<System, TopologyError> {
        let plan = topology.check(catalogue)?;
        let mut measuring = Carver::measuring();
        System::build(topology, &plan, &mut measuring)?;
        let bytes = measuring.bytes();
        let mut carver = Carver::heap(bytes).ok_or(TopologyError::NoRoom(bytes))?;
        System::build(topology, &plan, &mut carver)
    }

    /// A system in a block that others may share: a mapping of a file, say, that another process has mapped too. All of them
    /// work on the same caches, and each core is still one thread's. A block of zeros is a system whose caches are all empty; one
    /// that was used goes on where it was left, its devices' queues included, so give each run of a machine a new one. It is as long as [`System::block_bytes`] says or longer.
    ///
    /// A process that is killed may leave a lock held. The others then wait for it for some twenty seconds, take it by force, and go on
    /// with caches that are no longer coherent: see [`System::forced_locks`]. What a process writes into the block by other means
    /// makes figures wrong, or accesses panic.
    pub fn attach(
        topology: &Topology,
        catalogue: &Catalogue,
        block: &'static [AtomicU64],
    ) -> Result<System, BlockError> {
        let plan = topology.check(catalogue)?;
        let mut measuring = Carver::measuring();
        System::build(topology, &plan, &mut measuring)?;
        let (found, needed) = (size_of_val(block), measuring.bytes());
        if found < needed {
            return Err(BlockError::Short { found, needed });
        }
        let start = block.as_ptr().addr();
        if !start.is_multiple_of(ALIGN) {
            return Err(BlockError::Misaligned(start));
        }
        let system = System::build(topology, &plan, &mut Carver::of(block))?;
        // The plan as it prints has all that the layout and the costs depend on.
        let (skew, overlap) = (topology.skew_ns, topology.overlap);
        system
            .header
            .begin(hash(&format!("{skew} {overlap} {plan:?}")))?;
        Ok(system)
    }

    /// How long a block for [`System::attach`] must be.
    pub fn block_bytes(topology: &Topology, catalogue: &Catalogue) -> Result<usize, TopologyError> {
        let plan = topology.check(catalogue)?;
        let mut measuring = Carver::measuring();
        System::build(topology, &plan, &mut measuring)?;
        Ok(measuring.bytes())
    }

    /// How many locks were taken by force from whoever died with them. Where it isn't 0, no figure is worth anything.
    pub fn forced_locks(&self) -> u64 {
        self.header.forced().load(Relaxed)
    }

    /// A core touches a line. Called by the core's own thread: not by two at once, or counts and the order of use get lost.
    /// `now_ps` is the core's time; it is asked only if memory may be, and may be a quantum off others' times.
    ///
    /// # Panics
    /// When there is no such core.
    #[inline]
    pub fn access(
        &self,
        core: usize,
        kind: Kind,
        address: u64,
        now_ps: impl FnOnce() -> u64,
    ) -> Charge {
        let own = &self.cores[core];
        let line = address / LINE_BYTES;
        let l1 = if kind == Kind::Fetch {
            &own.code
        } else {
            &own.data
        };
        if l1.hit(line, kind.writes()) {
            own.counters.served(kind, Level::L1);
            return Charge {
                picoseconds: own.costs.l1,
                level: Level::L1,
            };
        }
        let mut now_ps = Some(now_ps);
        let mut now_ps = || now_ps.take().map_or(0, |now_ps| now_ps());
        self.beyond(core, kind, line, &mut now_ps)
    }

    /// The same where L1 doesn't have what is needed. Apart, so that what is compiled into each caller is small.
    #[inline(never)]
    fn beyond(
        &self,
        core: usize,
        kind: Kind,
        line: u64,
        now_ps: &mut dyn FnMut() -> u64,
    ) -> Charge {
        match self.second(core, kind, line) {
            Second::Served(charge) => charge,
            Second::Missed(place, slot) => self.miss(core, kind, place, slot, now_ps()),
        }
    }

    /// A core touches some bytes: each line of them, one after the other. Returns what they cost together, and the level
    /// that served the dearest.
    pub fn access_bytes(
        &self,
        core: usize,
        kind: Kind,
        address: u64,
        bytes: u64,
        now_ps: impl Fn() -> u64,
    ) -> Charge {
        let first = address / LINE_BYTES;
        let last = address.saturating_add(bytes.saturating_sub(1)) / LINE_BYTES;
        let mut all = self.access(core, kind, address, &now_ps);
        let mut dearest = all.picoseconds;
        for line in first + 1..=last {
            let one = self.access(core, kind, line * LINE_BYTES, || now_ps() + all.picoseconds);
            if one.picoseconds > dearest {
                dearest = one.picoseconds;
                all.level = one.level;
            }
            all.picoseconds += one.picoseconds;
        }
        all
    }

    #[inline]
    pub(crate) fn miss(
        &self,
        core: usize,
        kind: Kind,
        place: Place,
        slot: Option<Slot>,
        now_ps: u64,
    ) -> Charge {
        let charge = Transaction::new(self, core, place, now_ps).run(kind, slot);
        self.cores[core].charged(kind, charge);
        charge
    }

    /// Takes a core's own lock.
    #[inline]
    pub(crate) fn lock_core<'a>(&'a self, core: &'a Core) -> Guard<'a> {
        lock(&core.lock[0], self.header.forced())
    }

    /// Takes the lock of a line's shard.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "only its lowest bits count"
    )]
    #[inline]
    pub(crate) fn lock_shard(&self, index: u64) -> Guard<'_> {
        let shard = &self.shards[index as usize & (self.shards.len() - 1)];
        lock(&shard[0], self.header.forced())
    }

    /// How many cores there are.
    pub fn cores(&self) -> usize {
        self.cores.len()
    }

    /// What a core has done so far. By anybody, at any time.
    ///
    /// # Panics
    /// When there is no such core.
    pub fn counts(&self, core: usize) -> Counts {
        let core = &self.cores[core];
        Counts::read(&core.counters, &core.received, core.costs.l1)
    }

    /// The same into counts of before, without allocating.
    ///
    /// # Panics
    /// When there is no such core.
    pub fn recount(&self, core: usize, counts: &mut Counts) {
        let core = &self.cores[core];
        counts.reread(&core.counters, &core.received, core.costs.l1);
    }
}

impl Core {
    /// Counts an access beyond L1.
    #[inline]
    pub(crate) fn charged(&self, kind: Kind, charge: Charge) {
        self.counters.served(kind, charge.level);
        let stall = charge.picoseconds.saturating_sub(self.costs.l1);
        self.counters.add(Count::StallPs, stall);
    }
}
