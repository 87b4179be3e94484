//! Where memory is, and which machine sees what of it.
//!
//! All machines see the same memory at the same physical address. But each has its devices somewhere: an x86-64 machine between
//! [`X86_HOLE`] and 4 GiB, an AArch64 one below 1 GiB. So what lies there can be seen by the other alone. And QEMU lays a
//! machine's memory out without gaps, from 0 up to its devices and on from 4 GiB, or from 1 GiB on. What a machine sees must be that.

use std::fmt;

use crate::world::{Isa, Model};

/// Memory of an x86-64 machine ends here at the latest, and goes on at 4 GiB.
pub const X86_HOLE: u64 = 0xb000_0000;
/// Where an x86-64 machine's memory goes on.
pub const X86_HIGH: u64 = 1 << 32;
/// Where an AArch64 machine's memory begins.
pub const AARCH64_BASE: u64 = 1 << 30;
/// Memory ends here: the doorbell comes next (`machine/time`).
pub const END: u64 = 0x3f_0000_0000;
/// Ranges begin and end at multiples of this.
pub const ALIGNMENT: u64 = 2 << 20;

/// Whose a range is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// This machine's, by its position.
    Machine(usize),
    /// Everyone's.
    Pool,
}

/// Some memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Its first physical address.
    pub start: u64,
    /// How many bytes it has.
    pub bytes: u64,
    /// Whose it is.
    pub owner: Owner,
}

impl Range {
    /// The first address behind it.
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.bytes)
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x} to {:#x}", self.start, self.end() - 1)
    }
}

impl Isa {
    /// Where its memory begins.
    pub fn base(self) -> u64 {
        match self {
            Isa::X86_64 => 0,
            Isa::Aarch64 => AARCH64_BASE,
        }
    }

    /// Whether a machine can have memory there.
    pub fn can_see(self, range: &Range) -> bool {
        match self {
            Isa::X86_64 => range.end() <= X86_HOLE || range.start >= X86_HIGH,
            Isa::Aarch64 => range.start >= AARCH64_BASE,
        }
    }
}

/// Whether a machine sees a range.
pub fn sees(range: &Range, machine: usize, isa: Isa, model: Option<Model>) -> bool {
    isa.can_see(range)
        && match range.owner {
            Owner::Pool => true,
            Owner::Machine(owner) => owner == machine || model == Some(Model::Separated),
        }
}

/// What a machine sees, in order of address.
pub fn seen(ranges: &[Range], machine: usize, isa: Isa, model: Option<Model>) -> Vec<Range> {
    let seen = ranges.iter().copied();
    seen.filter(|range| sees(range, machine, isa, model))
        .collect()
}

/// The first address at which what a machine sees has a gap that QEMU can't leave, and where it goes on.
pub fn gap(seen: &[Range], isa: Isa) -> Option<(u64, u64)> {
    let mut at = isa.base();
    for range in seen {
        if range.start != at {
            // The one gap that there may be: an x86-64 machine's devices, behind memory from 0 on.
            let devices = isa == Isa::X86_64 && at > 0 && at <= X86_HOLE;
            if !(devices && range.start == X86_HIGH) {
                return Some((at, range.start));
            }
        }
        at = range.end();
    }
    None
}

/// How much memory a machine has where it boots: from its base on without a gap, as far as it is its own or everyone's.
pub fn boot_bytes(seen: &[Range], machine: usize, isa: Isa) -> u64 {
    let mut at = isa.base();
    for range in seen {
        let foreign = matches!(range.owner, Owner::Machine(owner) if owner != machine);
        if range.start != at || foreign {
            break;
        }
        at = range.end();
    }
    at - isa.base()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn range(start: u64, bytes: u64, owner: Owner) -> Range {
        Range {
            start,
            bytes,
            owner,
        }
    }

    #[test]
    fn each_machine_sees_what_its_devices_leave_and_its_model_allows() {
        let (x86, arm) = (Owner::Machine(0), Owner::Machine(1));
        let ranges = [
            range(0, GIB, x86),
            range(GIB, GIB, arm),
            range(2 * GIB, 2 * GIB, arm),
            range(4 * GIB, GIB, x86),
            range(5 * GIB, GIB, Owner::Pool),
        ];
        let seen = |machine, isa, model| -> Vec<u64> {
            let seen = super::seen(&ranges, machine, isa, Some(model));
            seen.iter().map(|range| range.start / GIB).collect()
        };
        assert_eq!(seen(0, Isa::X86_64, Model::Separated), [0, 1, 4, 5]);
        assert_eq!(seen(1, Isa::Aarch64, Model::Separated), [1, 2, 4, 5]);
        assert_eq!(seen(0, Isa::X86_64, Model::Shared), [0, 4, 5]);
        assert_eq!(seen(1, Isa::Aarch64, Model::Shared), [1, 2, 5]);
    }

    #[test]
    fn gaps_are_found_but_for_the_devices_of_x86() {
        let own = Owner::Machine(0);
        let x86 = |ranges: &[Range]| gap(ranges, Isa::X86_64);
        assert_eq!(x86(&[range(0, GIB, own), range(4 * GIB, GIB, own)]), None);
        assert_eq!(x86(&[range(4 * GIB, GIB, own)]), Some((0, 4 * GIB)));
        assert_eq!(
            x86(&[range(0, GIB, own), range(5 * GIB, GIB, own)]),
            Some((GIB, 5 * GIB))
        );
        let arm = |ranges: &[Range]| gap(ranges, Isa::Aarch64);
        assert_eq!(arm(&[range(GIB, GIB, own), range(2 * GIB, GIB, own)]), None);
        assert_eq!(
            arm(&[range(GIB, GIB, own), range(4 * GIB, GIB, own)]),
            Some((2 * GIB, 4 * GIB))
        );
    }

    #[test]
    fn a_machine_boots_from_its_own_memory_or_everyones() {
        let (own, other) = (Owner::Machine(0), Owner::Machine(1));
        let ranges = [range(0, GIB, own), range(GIB, GIB, other)];
        assert_eq!(boot_bytes(&ranges, 0, Isa::X86_64), GIB);
        assert_eq!(boot_bytes(&ranges[1..], 0, Isa::Aarch64), 0);
        let pool = [range(GIB, GIB, Owner::Pool)];
        assert_eq!(boot_bytes(&pool, 0, Isa::Aarch64), GIB);
    }
}
