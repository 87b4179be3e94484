//! Where an access went: QEMU's translation of the emulated core's addresses, read where QEMU keeps it.
//!
//! QEMU tells a plugin the physical address of an access by `qemu_plugin_get_hwaddr`, a call and a lock-step of checks that
//! costs as much as all the rest of the callback. What that function finally looks into are two tables of the core's own,
//! and right after an access, or while a block is being translated, the entry is there. Where the tables are is read from
//! the machine code of the function that looks into them (`tlb_plugin_lookup`), and what is found is compared with what
//! that function finds, for the first accesses of every core.
#![allow(
    unsafe_code,
    reason = "tables inside QEMU's structures are read in place"
)]

use super::code::{self, Pattern};
use super::symbols::{Opaque, Symbols, code_of};
use crate::refusal::Refusal;

/// Size of an emulated page, as QEMU's tables have it.
const PAGE: u64 = 4096;
/// Flags in an entry's address that don't make it another page's.
const FLAGS: u64 = 0x7ff;
/// The flag of an entry that leads to a device.
const DEVICE: u64 = 0x200;
/// Kinds of translation (privilege, nesting) that a core has tables for. `NB_MMU_MODES`.
pub const MODES: usize = 16;
/// Size of an entry, of one with everything in it, and of a kind's head; the first two are shifts and scales in the code.
const ENTRY: usize = 32;
const FULL_ENTRY: usize = 40;
const HEAD: usize = 16;
/// In an entry: what is added to an address to get our own.
const ADDEND: usize = 24;
/// In an entry with everything in it: the physical address.
const PHYSICAL: usize = 8;

/// What an address is used for: the position of its word in an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Use {
    /// To read data.
    Read = 0,
    /// To write data.
    Write = 1,
    /// To fetch instructions.
    Code = 2,
}

/// What a translation leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Memory, at this physical address.
    Memory(u64),
    /// A device's registers.
    Device,
}

/// Where a core keeps its translations, in bytes from its structure's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tlb {
    /// The first kind's head: a mask, and the entries.
    heads: usize,
    /// The first kind's entries with everything in them.
    full: usize,
    /// From one kind's `full` to the next.
    stride: usize,
}

/// `tlb_plugin_lookup`: the mask.
const MASK: Pattern = Pattern {
    before: &[0x48, 0x8b, 0x97],
    after: &[0x48, 0xc1, 0xea, 0x05],
    written: "mov offset(%rdi),%rdx; shr $5,%rdx",
};
/// The entries.
const ENTRIES: Pattern = Pattern {
    before: &[0x48, 0x03, 0x8f],
    after: &[],
    written: "add offset(%rdi),%rcx",
};
/// The distance between kinds.
const STRIDE: Pattern = Pattern {
    before: &[0x48, 0x69, 0xf6],
    after: &[],
    written: "imul $offset,%rsi,%rsi",
};
/// The entries with everything in them.
const FULL: Pattern = Pattern {
    before: &[0x49, 0x8b, 0x94, 0x31],
    after: &[],
    written: "mov offset(%r9,%rsi,1),%rdx",
};
/// What else must be there for the sizes above to be right.
const SIZES: &[(&[u8], &str)] = &[
    (&[0x49, 0xc1, 0xe0, 0x05], "shl $5,%r8"),
    (&[0x48, 0x8d, 0x3c, 0x92], "lea (%rdx,%rdx,4),%rdi"),
    (&[0x48, 0x8d, 0x14, 0xfa], "lea (%rdx,%rdi,8),%rdx"),
    (&[0x48, 0x0b, 0x42, 0x08], "or 8(%rdx),%rax"),
];

impl Tlb {
    /// Reads it from the code of the running QEMU.
    pub fn read(symbols: &Symbols, version: &str) -> Result<Tlb, Refusal> {
        let code = code_of(symbols.tlb_plugin_lookup as Opaque).unwrap_or_default();
        Tlb::of(code).map_err(|expected| Refusal::Shape {
            version: version.to_owned(),
            function: "tlb_plugin_lookup",
            expected,
            found: code::hex(code),
        })
    }

    fn of(code: &[u8]) -> Result<Tlb, &'static str> {
        let read = |pattern: Pattern| pattern.offset(code).ok_or(pattern.written);
        for &(bytes, written) in SIZES {
            if !code.windows(bytes.len()).any(|window| window == bytes) {
                return Err(written);
            }
        }
        let heads = read(MASK)?;
        if read(ENTRIES)? != heads + 8 {
            return Err("the entries right after the mask");
        }
        Ok(Tlb {
            heads,
            full: read(FULL)?,
            stride: read(STRIDE)?,
        })
    }

    /// What one of a core's addresses leads to, if its translation is at hand. `mode` is the kind of translation.
    ///
    /// # Safety
    /// `cpu` is a core of the QEMU that this was read from; only by its own thread.
    #[inline]
    pub unsafe fn find(&self, cpu: Opaque, address: u64, mode: usize, usage: Use) -> Option<Place> {
        // SAFETY: QEMU's own function reads the same words; only this thread moves the tables.
        unsafe {
            let (entry, index) = self.entry(cpu, address, mode);
            let tag = entry.add(usage as usize).read_volatile();
            if tag & !FLAGS != address & !(PAGE - 1) {
                return None;
            }
            if tag & DEVICE != 0 {
                return Some(Place::Device);
            }
            let full = cpu
                .byte_add(self.full + mode * self.stride)
                .cast::<*const u64>()
                .read();
            let physical = full.byte_add(index * FULL_ENTRY + PHYSICAL).read();
            Some(Place::Memory(physical | address & (PAGE - 1)))
        }
    }

    /// The physical address of code that is at `host` in our own memory: it is in the table of one of the kinds, since it has
    /// just been read.
    ///
    /// # Safety
    /// As [`Tlb::find`].
    pub unsafe fn find_code(&self, cpu: Opaque, address: u64, host: usize) -> Option<u64> {
        (0..MODES).find_map(|mode| {
            // SAFETY: as in `find`.
            unsafe {
                let (entry, _) = self.entry(cpu, address, mode);
                match self.find(cpu, address, mode, Use::Code)? {
                    Place::Memory(physical) => {
                        let addend = entry.byte_add(ADDEND).read();
                        (address.wrapping_add(addend) == host as u64).then_some(physical)
                    }
                    Place::Device => None,
                }
            }
        })
    }

    /// The entry that an address would have, and its number.
    ///
    /// # Safety
    /// As [`Tlb::find`].
    #[inline]
    unsafe fn entry(&self, cpu: Opaque, address: u64, mode: usize) -> (*const u64, usize) {
        // SAFETY: the caller's.
        unsafe {
            let head = cpu.byte_add(self.heads + mode * HEAD).cast::<u64>();
            let mask = head.read() / ENTRY as u64;
            let entries = head.add(1).cast::<*const u64>().read();
            let index = ((address / PAGE) & mask) as usize;
            (entries.byte_add(index * ENTRY), index)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The function as it is in Debian's 10.0.13, to where it has found what it wants.
    const LOOKUP: &str = "f3 0f 1e fa 48 89 f0 48 63 f2 49 89 f9 53 48 89 f7 4c 89 c3 49 89 c0 0f b6 c9 48 c1 e7 04 49 c1 e8 0c 4c 01 cf \
        48 8b 97 a0 2a 00 00 48 c1 ea 05 4c 21 c2 49 89 d0 49 c1 e0 05 49 8d 0c c8 48 03 8f a8 2a 00 00 48 89 c7 48 8b 09 \
        48 81 e7 00 f0 ff ff 49 89 c8 49 81 e0 00 f8 ff ff 49 39 f8 75 77 48 69 f6 78 02 00 00 48 8d 3c 92 25 ff 0f 00 00 \
        49 8b 94 31 90 05 00 00 48 8d 14 fa 48 0b 42 08";

    fn bytes(text: &str) -> Vec<u8> {
        text.split_whitespace()
            .map(|byte| u8::from_str_radix(byte, 16).expect("hexadecimal"))
            .collect()
    }

    #[test]
    fn a_known_build_is_read() {
        let expected = Tlb {
            heads: 0x2aa0,
            full: 0x590,
            stride: 0x278,
        };
        assert_eq!(Tlb::of(&bytes(LOOKUP)), Ok(expected));
    }

    #[test]
    fn another_layout_is_none() {
        assert!(Tlb::of(&[]).is_err());
        let moved = LOOKUP.replace("48 03 8f a8 2a", "48 03 8f b0 2a");
        assert_eq!(
            Tlb::of(&bytes(&moved)),
            Err("the entries right after the mask")
        );
        let larger = LOOKUP.replace("49 c1 e0 05", "49 c1 e0 06");
        assert_eq!(Tlb::of(&bytes(&larger)), Err("shl $5,%r8"));
        let elsewhere = LOOKUP.replace("48 0b 42 08", "48 0b 42 10");
        assert_eq!(Tlb::of(&bytes(&elsewhere)), Err("or 8(%rdx),%rax"));
    }

    /// A core's structure with one kind of translation, of one entry, made by hand.
    #[test]
    fn an_entry_leads_to_memory_or_a_device_or_nowhere() {
        let tlb = Tlb {
            heads: 0,
            full: 64,
            stride: 8,
        };
        let entry: [u64; 4] = [0x7000 | 0x400, u64::MAX, 0x7000, 0x10_0000];
        let device: [u64; 4] = [0x8000 | DEVICE, u64::MAX, u64::MAX, 0];
        let entries = [device, entry];
        let full: [u64; 10] = [0, 0, 0, 0, 0, 0, 0xabc_0000, 0, 0, 0];
        let mut cpu = [0_u64; 16];
        cpu[0] = 32; // two entries
        cpu[1] = entries.as_ptr() as u64;
        cpu[8] = full.as_ptr() as u64;
        let cpu = cpu.as_mut_ptr().cast();
        let find = |address, usage| {
            // SAFETY: the structure is laid out as the offsets say.
            unsafe { tlb.find(cpu, address, 0, usage) }
        };
        assert_eq!(find(0x7123, Use::Read), Some(Place::Memory(0xabc_0123)));
        assert_eq!(find(0x7123, Use::Write), None);
        assert_eq!(find(0x8010, Use::Read), Some(Place::Device));
        assert_eq!(find(0x9123, Use::Read), None, "another page");
    }
}
