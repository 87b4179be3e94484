//! Where an access went: QEMU's translation of the emulated core's addresses, read where QEMU keeps it.
//!
//! QEMU tells a plugin the physical address of an access by `qemu_plugin_get_hwaddr`, a call and a lock-step of checks that
//! costs as much as all the rest of the callback. What that function finally looks into are two tables of the core's own,
//! and right after an access, or while a block is being translated, the entry is there. Where the tables are is read from
//! the machine code of the function that looks into them (`tlb_plugin_lookup`), and what is found is compared with what
//! that function finds, for the first accesses of every core.
//!
//! An x86-64 core's pages have 4 KiB. An AArch64 one's may have other sizes, of which QEMU chooses one when it has made the machine, and keeps
//! it in a variable (`target_page`); flags in an entry's address are below the smallest, and so at other bits.
#![allow(
    unsafe_code,
    reason = "tables inside QEMU's structures are read in place"
)]

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

use super::Target;
use super::code::{self, Pattern};
use super::symbols::{self, Opaque, Symbols, code_of};
use crate::refusal::Refusal;

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

/// Where a core keeps its translations, in bytes from its structure's start, and how its entries are flagged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    /// The first kind's head: a mask, and the entries.
    heads: usize,
    /// The first kind's entries with everything in them.
    full: usize,
    /// From one kind's `full` to the next.
    stride: usize,
    /// The flag of an entry that is no more. Others below the page don't make it another page's.
    invalid: u64,
    /// The flag of an entry that leads to a device.
    device: u64,
}

/// QEMU's `TargetPageBits`.
#[derive(Debug)]
#[repr(C)]
struct TargetPage {
    decided: bool,
    bits: c_int,
    mask: u64,
}

/// A machine's translations.
#[derive(Debug)]
pub struct Tlb {
    layout: Layout,
    /// Of an address within its page.
    page_bits: AtomicU32,
    /// Where QEMU keeps that once it has decided it; `None` where it is always the same.
    decides: Option<&'static TargetPage>,
}

/// A core's translations that lead to memory: [`Tlb::find`] with as few instructions as it takes.
#[derive(Debug)]
pub struct Own {
    /// As the layout has it, of this core.
    heads: *const u64,
    full: *const *const u64,
    stride: usize,
    /// From an address to its page's number, times an entry's size.
    shift: u32,
    /// Bits of an address within its page.
    within: u64,
    /// Bits of an entry's word that are a page's address, or mean that it doesn't lead to memory.
    plain: u64,
}

impl Own {
    /// None at all, to be looked into by nobody.
    pub fn none() -> Own {
        Own {
            heads: std::ptr::null(),
            full: std::ptr::null(),
            stride: 0,
            shift: 0,
            within: 0,
            plain: 0,
        }
    }

    /// The physical address of one of the core's, if the translation is at hand and leads to memory.
    ///
    /// # Safety
    /// As [`Tlb::find`].
    #[allow(
        clippy::cast_possible_truncation,
        reason = "a table's entries are in memory, so where one is in it is a usize"
    )]
    #[inline]
    pub unsafe fn find(&self, address: u64, mode: usize, usage: usize) -> Option<u64> {
        // SAFETY: as in `Tlb::find`. A mask is the number of entries less one, times an entry's size.
        unsafe {
            let head = self.heads.byte_add(mode * HEAD);
            let entries = head.add(1).cast::<*const u64>().read();
            let at = (address >> self.shift & head.read()) as usize;
            let tag = entries
                .byte_add(at + usage * size_of::<u64>())
                .read_volatile();
            if tag & self.plain != address & !self.within {
                return None;
            }
            let full = self.full.byte_add(mode * self.stride).read();
            // Of entries with everything in them, as many bytes further as they are larger.
            let physical = full.byte_add(at + at / ENTRY * (FULL_ENTRY - ENTRY) + PHYSICAL);
            Some(physical.read() | address & self.within)
        }
    }
}

/// How a target's `tlb_plugin_lookup` is written.
struct Shape {
    mask: Pattern,
    entries: Pattern,
    stride: Pattern,
    full: Pattern,
    /// What else must be there for sizes and flags to be right.
    rest: &'static [(&'static [u8], &'static str)],
    invalid: u64,
    device: u64,
}

/// x86-64's.
const X86_64: Shape = Shape {
    mask: Pattern {
        before: &[0x48, 0x8b, 0x97],
        after: &[0x48, 0xc1, 0xea, 0x05],
        written: "mov offset(%rdi),%rdx; shr $5,%rdx",
    },
    entries: Pattern {
        before: &[0x48, 0x03, 0x8f],
        after: &[],
        written: "add offset(%rdi),%rcx",
    },
    stride: Pattern {
        before: &[0x48, 0x69, 0xf6],
        after: &[],
        written: "imul $offset,%rsi,%rsi",
    },
    full: Pattern {
        before: &[0x49, 0x8b, 0x94, 0x31],
        after: &[],
        written: "mov offset(%r9,%rsi,1),%rdx",
    },
    rest: &[
        (&[0x49, 0xc1, 0xe0, 0x05], "shl $5,%r8"),
        (&[0x48, 0x8d, 0x3c, 0x92], "lea (%rdx,%rdx,4),%rdi"),
        (&[0x48, 0x8d, 0x14, 0xfa], "lea (%rdx,%rdi,8),%rdx"),
        (&[0x48, 0x0b, 0x42, 0x08], "or 8(%rdx),%rax"),
        (
            &[0x49, 0x81, 0xe0, 0x00, 0xf8, 0xff, 0xff],
            "and $0xfffffffffffff800,%r8",
        ),
    ],
    invalid: 0x800,
    device: 0x200,
};

/// AArch64's.
const AARCH64: Shape = Shape {
    mask: Pattern {
        before: &[0x48, 0x8b, 0x96],
        after: &[0x48, 0xc1, 0xea, 0x05],
        written: "mov offset(%rsi),%rdx; shr $5,%rdx",
    },
    entries: Pattern {
        before: &[0x48, 0x03, 0x8e],
        after: &[],
        written: "add offset(%rsi),%rcx",
    },
    stride: Pattern {
        before: &[0x48, 0x69, 0xff],
        after: &[],
        written: "imul $offset,%rdi,%rdi",
    },
    full: Pattern {
        before: &[0x49, 0x8b, 0x94, 0x39],
        after: &[],
        written: "mov offset(%r9,%rdi,1),%rdx",
    },
    rest: &[
        (&[0x48, 0xc1, 0xe1, 0x05], "shl $5,%rcx"),
        (&[0x48, 0x8d, 0x0c, 0x92], "lea (%rdx,%rdx,4),%rcx"),
        (&[0x48, 0x8d, 0x14, 0xca], "lea (%rdx,%rcx,8),%rdx"),
        (&[0x48, 0x0b, 0x42, 0x08], "or 8(%rdx),%rax"),
        (&[0x80, 0xcd, 0x02], "or $0x2,%ch"),
        (
            &[0x41, 0x81, 0xe0, 0x80, 0x00, 0x00, 0x00],
            "and $0x80,%r8d",
        ),
    ],
    invalid: 0x200,
    device: 0x80,
};

/// Bits of an address within an x86-64 page.
const X86_64_PAGE_BITS: u32 = 12;

impl Shape {
    fn read(&self, code: &[u8]) -> Result<Layout, &'static str> {
        let read = |pattern: Pattern| pattern.offset(code).ok_or(pattern.written);
        for &(bytes, written) in self.rest {
            if !code.windows(bytes.len()).any(|window| window == bytes) {
                return Err(written);
            }
        }
        let heads = read(self.mask)?;
        if read(self.entries)? != heads + 8 {
            return Err("the entries right after the mask");
        }
        Ok(Layout {
            heads,
            full: read(self.full)?,
            stride: read(self.stride)?,
            invalid: self.invalid,
            device: self.device,
        })
    }
}

impl Tlb {
    /// Reads it from the code of the running QEMU.
    pub fn read(symbols: &Symbols, target: Target, version: &str) -> Result<Tlb, Refusal> {
        let code = code_of(symbols.tlb_plugin_lookup as Opaque).unwrap_or_default();
        let refuse = |expected| Refusal::Shape {
            version: version.to_owned(),
            function: "tlb_plugin_lookup",
            expected,
            found: code::hex(code),
        };
        let (shape, decides) = match target {
            Target::X86_64 => (X86_64, None),
            Target::Aarch64 => {
                let page = symbols::find(c"target_page");
                let page = page.ok_or_else(|| refuse("a variable target_page"))?;
                // SAFETY: QEMU's own variable, which lives as long as the process, and is written before there are cores.
                (AARCH64, Some(unsafe { &*page.cast::<TargetPage>() }))
            }
        };
        Ok(Tlb::new(shape.read(code).map_err(refuse)?, decides))
    }

    fn new(layout: Layout, decides: Option<&'static TargetPage>) -> Tlb {
        Tlb {
            layout,
            page_bits: AtomicU32::new(X86_64_PAGE_BITS),
            decides,
        }
    }

    /// A core is made: QEMU has decided by now how large pages are.
    pub fn settle(&self) {
        if let Some(page) = self.decides {
            let bits = u32::try_from(page.bits).unwrap_or(X86_64_PAGE_BITS);
            self.page_bits.store(bits, Ordering::Relaxed);
        }
    }

    /// What one of a core's addresses leads to, if its translation is at hand. `mode` is the kind of translation.
    ///
    /// # Safety
    /// `cpu` is a core of the QEMU that this was read from; only by its own thread.
    #[inline]
    pub unsafe fn find(&self, cpu: Opaque, address: u64, mode: usize, usage: Use) -> Option<Place> {
        // SAFETY: QEMU's own function reads the same words; only this thread moves the tables.
        unsafe {
            let layout = &self.layout;
            let (entry, index) = self.entry(cpu, address, mode);
            let tag = entry.add(usage as usize).read_volatile();
            let within = (1 << self.page_bits.load(Ordering::Relaxed)) - 1;
            if tag & (!within | layout.invalid) != address & !within {
                return None;
            }
            if tag & layout.device != 0 {
                return Some(Place::Device);
            }
            let full = cpu
                .byte_add(layout.full + mode * layout.stride)
                .cast::<*const u64>()
                .read();
            let physical = full.byte_add(index * FULL_ENTRY + PHYSICAL).read();
            Some(Place::Memory(physical | address & within))
        }
    }

    /// A core's translations, for its own thread to find at once.
    pub fn of(&self, cpu: Opaque) -> Own {
        let bits = self.page_bits.load(Ordering::Relaxed);
        let within = (1 << bits) - 1;
        Own {
            heads: cpu.wrapping_byte_add(self.layout.heads).cast(),
            full: cpu.wrapping_byte_add(self.layout.full).cast(),
            stride: self.layout.stride,
            shift: bits - ENTRY.trailing_zeros(),
            within,
            plain: !within | self.layout.invalid | self.layout.device,
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
    #[allow(
        clippy::cast_possible_truncation,
        reason = "a table's entries are in memory, so their number is a usize"
    )]
    #[inline]
    unsafe fn entry(&self, cpu: Opaque, address: u64, mode: usize) -> (*const u64, usize) {
        // SAFETY: the caller's.
        unsafe {
            let head = cpu.byte_add(self.layout.heads + mode * HEAD).cast::<u64>();
            let mask = head.read() / ENTRY as u64;
            let entries = head.add(1).cast::<*const u64>().read();
            let page = address >> self.page_bits.load(Ordering::Relaxed);
            let index = (page & mask) as usize;
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

    /// Of AArch64's, likewise.
    const LOOKUP_AARCH64: &str = "48 8b 96 a0 2a 00 00 48 c1 ea 05 4c 21 da 48 89 d1 48 c1 e1 05 4a 8d 0c d1 48 03 8e a8 2a 00 00 49 89 c2 \
        4c 8b 01 48 8b 35 4d 8c 40 01 48 89 f1 49 21 f2 80 cd 02 4c 21 c1 49 39 ca 75 74 48 69 ff 78 02 00 00 48 8d 0c 92 48 f7 d6 \
        48 21 f0 49 8b 94 39 90 05 00 00 48 8d 14 ca 48 0b 42 08 41 81 e0 80 00 00 00";

    #[test]
    fn known_builds_are_read() {
        let expected = Layout {
            heads: 0x2aa0,
            full: 0x590,
            stride: 0x278,
            invalid: 0x800,
            device: 0x200,
        };
        assert_eq!(X86_64.read(&bytes(LOOKUP)), Ok(expected));
        let expected = Layout {
            invalid: 0x200,
            device: 0x80,
            ..expected
        };
        assert_eq!(AARCH64.read(&bytes(LOOKUP_AARCH64)), Ok(expected));
        // Neither is taken for the other.
        assert!(X86_64.read(&bytes(LOOKUP_AARCH64)).is_err());
        assert!(AARCH64.read(&bytes(LOOKUP)).is_err());
    }

    #[test]
    fn another_layout_is_none() {
        assert!(X86_64.read(&[]).is_err());
        let moved = LOOKUP.replace("48 03 8f a8 2a", "48 03 8f b0 2a");
        assert_eq!(
            X86_64.read(&bytes(&moved)),
            Err("the entries right after the mask")
        );
        let larger = LOOKUP.replace("49 c1 e0 05", "49 c1 e0 06");
        assert_eq!(X86_64.read(&bytes(&larger)), Err("shl $5,%r8"));
        let elsewhere = LOOKUP.replace("48 0b 42 08", "48 0b 42 10");
        assert_eq!(X86_64.read(&bytes(&elsewhere)), Err("or 8(%rdx),%rax"));
    }

    /// A core's structure with one kind of translation, of two entries, made by hand.
    #[test]
    fn an_entry_leads_to_memory_or_a_device_or_nowhere() {
        let layout = Layout {
            heads: 0,
            full: 64,
            stride: 8,
            invalid: 0x800,
            device: 0x200,
        };
        let tlb = Tlb::new(layout, None);
        let entry: [u64; 4] = [0x7000 | 0x400, u64::MAX, 0x7000, 0x10_0000];
        let device: [u64; 4] = [0x8000 | layout.device, u64::MAX, u64::MAX, 0];
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
        let at_once = |address, usage: Use| {
            // SAFETY: likewise.
            unsafe { tlb.of(cpu).find(address, 0, usage as usize) }
        };
        assert_eq!(at_once(0x7123, Use::Read), Some(0xabc_0123));
        assert_eq!(at_once(0x7123, Use::Write), None);
        assert_eq!(at_once(0x8010, Use::Read), None, "a device");
        assert_eq!(at_once(0x9123, Use::Read), None, "another page");
        assert_eq!(find(0x7123, Use::Read), Some(Place::Memory(0xabc_0123)));
        assert_eq!(find(0x7123, Use::Write), None);
        assert_eq!(find(0x8010, Use::Read), Some(Place::Device));
        assert_eq!(find(0x9123, Use::Read), None, "another page");
    }

    /// The same where pages have 64 KiB, which QEMU decides late.
    #[test]
    fn pages_are_as_large_as_qemu_decides() {
        static PAGE: TargetPage = TargetPage {
            decided: true,
            bits: 16,
            mask: !0xffff,
        };
        assert!(PAGE.decided && PAGE.mask == !((1 << PAGE.bits) - 1));
        let layout = Layout {
            heads: 0,
            full: 64,
            stride: 8,
            invalid: 0x200,
            device: 0x80,
        };
        let tlb = Tlb::new(layout, Some(&PAGE));
        tlb.settle();
        // Flags below the page that mean neither: still the page's.
        let entries: [[u64; 4]; 2] = [[0; 4], [0x1_0000 | 0x100, u64::MAX, 0x1_0000 | 0x200, 0]];
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
        assert_eq!(find(0x1_9123, Use::Read), Some(Place::Memory(0xabc_9123)));
        assert_eq!(find(0x1_9123, Use::Code), None, "no more");
        assert_eq!(find(0x3_9123, Use::Read), None, "another page");
    }
}
