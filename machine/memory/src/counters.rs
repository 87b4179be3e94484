//! What each core did, for whoever wants to know while it runs.
//!
//! A core's own counters are written by its thread alone, with a relaxed load and store: no read-modify-write, which would
//! cost more than the hit that it counts. What other cores do to it (snoops) is counted apart, on other cache lines, with
//! real additions. Readers see each counter at some recent moment, not all at the same one.
//!
//! On an L1 hit one counter moves. Everything that follows from others (accesses in all, time spent on hits) is added up
//! by the reader.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::block::{Area, Carver, Full};
use crate::part::LINE_BYTES;

/// What an access is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// A line of instructions.
    Fetch = 0,
    /// Reads data.
    Load = 1,
    /// Writes data.
    Store = 2,
    /// Reads and writes data in one.
    Atomic = 3,
}

impl Kind {
    /// All, in the order of [`Counts::served`]'s rows.
    pub const ALL: [Kind; 4] = [Kind::Fetch, Kind::Load, Kind::Store, Kind::Atomic];

    /// Whether it needs the line for itself.
    #[inline]
    pub fn writes(self) -> bool {
        // A bit of its number, where two comparisons would become jumps.
        self as u8 & 2 != 0
    }
}

/// What served an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The core's own first cache.
    L1,
    /// Its own second cache.
    L2,
    /// Its group's cache.
    L3,
    /// Another core's caches, or another group's L3, by a snoop.
    Peer,
    /// Memory of its own node.
    Local,
    /// Memory of another node that has cores.
    Remote,
    /// Memory of a node without cores: a CXL device or pool.
    Pool,
    /// Nothing: no node has the address. Devices' registers and the like; they cost nothing here.
    Nowhere,
}

impl Level {
    /// All, in the order of [`Counts::served`]'s columns.
    pub const ALL: [Level; 8] = [
        Level::L1,
        Level::L2,
        Level::L3,
        Level::Peer,
        Level::Local,
        Level::Remote,
        Level::Pool,
        Level::Nowhere,
    ];
}

/// What a core's thread counts beside; each stands in its area.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Count {
    /// Time charged beyond L1's latency.
    StallPs,
    QueuedPs,
    SnoopsSent,
    BackInvalidations,
}

/// Where lines read from, and written back to, each node are counted.
const LINES: usize = Count::BackInvalidations as usize + 1;

/// What a core's thread counts.
#[derive(Debug)]
pub(crate) struct Counters {
    served: Full<[[AtomicU64; Level::ALL.len()]; Kind::ALL.len()]>,
    others: Area<AtomicU64>,
}

/// By the one thread that writes it.
#[inline]
fn more(word: &AtomicU64, more: u64) {
    word.store(word.load(Relaxed).wrapping_add(more), Relaxed);
}

impl Counters {
    pub(crate) fn new(nodes: usize, carver: &mut Carver) -> Counters {
        Counters {
            served: carver.one(),
            others: carver.area(LINES + nodes),
        }
    }

    #[inline]
    pub(crate) fn served(&self, kind: Kind, level: Level) {
        more(&self.served.first()[kind as usize][level as usize], 1);
    }

    #[inline]
    pub(crate) fn add(&self, count: Count, by: u64) {
        more(&self.others[count as usize], by);
    }

    /// A line comes from a node or goes there.
    #[inline]
    pub(crate) fn line(&self, node: usize) {
        more(&self.others[LINES + node], 1);
    }

    fn get(&self, count: Count) -> u64 {
        self.others[count as usize].load(Relaxed)
    }
}

/// What others count of a core.
#[derive(Debug)]
pub(crate) struct Received(Area<AtomicU64>);

impl Received {
    pub(crate) fn new(carver: &mut Carver) -> Received {
        Received(carver.area(2))
    }

    /// Snoops.
    pub(crate) fn snoops(&self) -> &AtomicU64 {
        &self.0[0]
    }

    /// Lines lost to a full L3 or filter.
    pub(crate) fn back_invalidated(&self) -> &AtomicU64 {
        &self.0[1]
    }
}

/// What a core has done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Accesses by [`Kind`] and by the [`Level`] that served them.
    pub served: [[u64; Level::ALL.len()]; Kind::ALL.len()],
    /// Time charged in all, ps.
    pub charged_ps: u64,
    /// Of that, what L1 hits alone wouldn't have cost.
    pub stall_ps: u64,
    /// Of that, waiting for a busy memory device.
    pub queued_ps: u64,
    /// Other caches that this core's accesses asked for data or told to give a line up.
    pub snoops_sent: u64,
    /// Snoops that came to this core's caches.
    pub snoops_received: u64,
    /// Cached lines that a device's full filter took back for this core's accesses.
    pub back_invalidations: u64,
    /// Lines that this core lost to a full L3 or filter.
    pub back_invalidated: u64,
    /// Bytes read from and written back to each node.
    pub node_bytes: Vec<u64>,
}

impl Counts {
    pub(crate) fn read(own: &Counters, received: &Received, l1_ps: u64) -> Counts {
        let mut counts = Counts::default();
        counts.reread(own, received, l1_ps);
        counts
    }

    pub(crate) fn reread(&mut self, own: &Counters, received: &Received, l1_ps: u64) {
        let served = own.served.first().each_ref();
        self.served = served.map(|row| row.each_ref().map(|word| word.load(Relaxed)));
        self.stall_ps = own.get(Count::StallPs);
        let nowhere: u64 = self
            .served
            .iter()
            .map(|row| row[Level::Nowhere as usize])
            .sum();
        self.charged_ps = (self.accesses() - nowhere) * l1_ps + self.stall_ps;
        self.queued_ps = own.get(Count::QueuedPs);
        self.snoops_sent = own.get(Count::SnoopsSent);
        self.snoops_received = received.snoops().load(Relaxed);
        self.back_invalidations = own.get(Count::BackInvalidations);
        self.back_invalidated = received.back_invalidated().load(Relaxed);
        self.node_bytes.clear();
        let lines = own.others[LINES..].iter();
        self.node_bytes
            .extend(lines.map(|lines| lines.load(Relaxed) * LINE_BYTES));
    }

    /// Accesses in all.
    pub fn accesses(&self) -> u64 {
        self.served.iter().flatten().sum()
    }

    /// Accesses that a level served.
    pub fn at(&self, level: Level) -> u64 {
        self.served.iter().map(|row| row[level as usize]).sum()
    }
}
