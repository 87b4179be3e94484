//! The Refer-Table: what a guest is shown of its host, and the page by which it asks (`bpf/core/hints.h` has the same in C).
//!
//! The host writes [`Table`], whole pages that its guest maps read-only; the guest writes [`PINS_WORDS`] words, which the host reads by
//! [`PinReader`]: a bounded copy, at most once in an interval, of which each word says no more than yes or no.
//!
//! Two levels (CPS, section 4.1): a vCPU's row says which row of which block tells of it, so that blocks can be added and rows shared.

use std::sync::atomic::{AtomicU32, Ordering};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// What a table begins with.
pub const MAGIC: u32 = 0x4350_5331;
/// The layout's.
pub const VERSION: u32 = 1;
/// The most vCPUs that a table tells of.
pub const VCPUS_MAX: usize = 1024;
/// Groups are numbered below this at the most.
pub const GROUPS_MAX: usize = 256;
/// In place of a group: nobody knows. In C also in place of a vCPU.
pub const NONE: u32 = u32::MAX;
/// Words of the page that a guest writes, one for each vCPU.
pub const PINS_WORDS: usize = VCPUS_MAX;

/// BLK-0.
pub const BLOCK_TOPOLOGY: u16 = 0;
/// BLK-1.
pub const BLOCK_LOAD: u16 = 1;
/// BLK-2, the page that the guest writes.
pub const BLOCK_PIN: u16 = 2;

/// What a table is, `struct hints_header`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: u32,
    /// [`VERSION`].
    pub version: u32,
    /// Odd while the host writes; from 2 on when it has.
    pub sequence: u32,
    /// Rows in use.
    pub vcpus: u32,
    /// What groups are numbered below.
    pub groups: u32,
    /// Nothing.
    pub spare: [u32; 11],
}

/// A row of a block, `struct hints_ref`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Reference {
    /// Which block.
    pub block: u16,
    /// Which of its rows.
    pub row: u16,
}

/// A vCPU's row, `struct hints_row`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct VcpuRow {
    /// Where its virtual cache group is.
    pub topology: Reference,
    /// Where its core's load is.
    pub load: Reference,
    /// Where the guest asks that it is pinned.
    pub pin: Reference,
    /// For a block to come.
    pub spare: Reference,
}

/// What is told of a vCPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Its virtual cache group, where that is known.
    pub group: Option<u16>,
    /// The first of the guest's vCPUs that is on the same core, where that is known.
    pub core: Option<u16>,
    /// Whether few of other guests' vCPUs want that core.
    pub low: bool,
}

/// What the host writes, `struct hints_table`: seven pages.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Table {
    /// What it is.
    pub header: Header,
    /// The rest of the first page.
    pub spare: [u32; 1008],
    /// The first level.
    pub vcpu: [VcpuRow; VCPUS_MAX],
    /// BLK-0: virtual cache groups, or [`NONE`].
    pub topology: [u32; VCPUS_MAX],
    /// BLK-1: 0 for a low load of others, 1 for a high one. vCPUs on one core have one row.
    pub load: [u32; VCPUS_MAX],
}

const _: () = {
    assert!(size_of::<Header>() == 64);
    assert!(size_of::<VcpuRow>() == 16);
    assert!(size_of::<Table>() == 7 * 4096);
    assert!(std::mem::offset_of!(Table, vcpu) == 4096);
    assert!(std::mem::offset_of!(Table, topology) == 5 * 4096);
};

/// Why nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// More vCPUs than there are rows.
    #[error(
        "a Refer-Table has rows for {VCPUS_MAX} vCPUs, not for {0}; leave the guest without hints"
    )]
    Vcpus(usize),
    /// Groups beyond what can be named.
    #[error(
        "a Refer-Table numbers {GROUPS_MAX} cache groups, not {0}; leave the guest without hints"
    )]
    Groups(u32),
}

impl Table {
    /// A table that tells of nothing yet: no vCPU.
    pub fn empty() -> Box<Table> {
        let mut table = Box::new(Table {
            header: Header {
                magic: MAGIC,
                version: VERSION,
                ..Header::default()
            },
            spare: [0; 1008],
            vcpu: [VcpuRow::default(); VCPUS_MAX],
            topology: [NONE; VCPUS_MAX],
            load: [1; VCPUS_MAX],
        });
        for (at, row) in (0_u16..).zip(&mut table.vcpu) {
            let to = |block| Reference { block, row: at };
            row.topology = to(BLOCK_TOPOLOGY);
            row.load = to(BLOCK_LOAD);
            row.pin = to(BLOCK_PIN);
        }
        table
    }

    /// Tells of each vCPU; groups are below `groups`. Rows of vCPUs that are no more tell nothing.
    pub fn tell(
        &mut self,
        groups: u32,
        vcpus: impl ExactSizeIterator<Item = Told>,
    ) -> Result<(), TableError> {
        if vcpus.len() > VCPUS_MAX {
            return Err(TableError::Vcpus(vcpus.len()));
        }
        if groups as usize > GROUPS_MAX {
            return Err(TableError::Groups(groups));
        }
        self.header.sequence |= 1;
        let mut count = 0;
        let rows = self.topology.iter_mut().zip(&mut self.load);
        for ((own, row), (blocks, told)) in (0_u16..).zip(&mut self.vcpu).zip(rows.zip(vcpus)) {
            *blocks.0 = told
                .group
                .map(u32::from)
                .filter(|group| *group < groups)
                .unwrap_or(NONE);
            *blocks.1 = u32::from(!told.low);
            // One before it, of which as much was told.
            row.load.row = told.core.filter(|core| *core < own).unwrap_or(own);
            count += 1;
        }
        self.topology[count..].fill(NONE);
        self.load[count..].fill(1);
        for (own, row) in (0_u16..).zip(&mut self.vcpu).skip(count) {
            row.load.row = own;
        }
        self.header.groups = groups;
        self.header.vcpus = u32::try_from(count).unwrap_or(0);
        // Even again, and never 0, which says that nothing was written yet.
        self.header.sequence = self.header.sequence.wrapping_add(1).max(2);
        Ok(())
    }
}

/// Reads what a guest asks for. Whatever the guest does to its page meanwhile, each word is read once, and as many as it has vCPUs.
#[derive(Clone, Debug)]
pub struct PinReader {
    interval_ns: u64,
    read_ns: Option<u64>,
    wishes: [u64; VCPUS_MAX / 64],
    nonsense: u64,
}

impl PinReader {
    /// One that looks at most once in `interval_ns`.
    pub fn new(interval_ns: u64) -> PinReader {
        PinReader {
            interval_ns,
            read_ns: None,
            wishes: [0; VCPUS_MAX / 64],
            nonsense: 0,
        }
    }

    /// Looks, unless it has in this interval. `vcpus` is what the host knows the guest to have. Returns whether it looked.
    pub fn read(&mut self, page: &[AtomicU32; PINS_WORDS], vcpus: usize, now_ns: u64) -> bool {
        let early = |then: u64| now_ns.saturating_sub(then) < self.interval_ns;
        if self.read_ns.is_some_and(early) {
            return false;
        }
        self.read_ns = Some(now_ns);
        self.wishes.fill(0);
        for (at, word) in page.iter().take(vcpus).enumerate() {
            match word.load(Ordering::Relaxed) {
                0 => {}
                1 => self.wishes[at / 64] |= 1 << (at % 64),
                _ => self.nonsense = self.nonsense.saturating_add(1),
            }
        }
        true
    }

    /// Whether the guest asked, when it was last looked, that a vCPU be pinned.
    pub fn wishes(&self, vcpu: usize) -> bool {
        self.wishes
            .get(vcpu / 64)
            .is_some_and(|word| word >> (vcpu % 64) & 1 == 1)
    }

    /// Words of all time that were neither yes nor no: a guest that has them is broken or probing.
    pub fn nonsense(&self) -> u64 {
        self.nonsense
    }
}

#[cfg(test)]
#[path = "hints_tests.rs"]
mod tests;
