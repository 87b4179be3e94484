//! The doorbell of fused machines, as their programs see it: a page of registers at the same physical address in all of them.
//!
//! | offset | register | | |
//! |---|---|---|---|
//! | 0x00 | identity | read | "ostlbell" |
//! | 0x08 | machine | read | this machine's number |
//! | 0x10 | machines | read | how many may be fused |
//! | 0x18 | latency | read | from a ring to its interrupt, ns |
//! | 0x20 | address | both | x86-64: where interrupts are sent by message (0xfee00000); AArch64: unused |
//! | 0x28 | data | both | x86-64: the vector; AArch64: the first of the shared interrupts (SPI), one per core. 0: none is delivered |
//! | 0x30 | ring | write | the other machine's number in the upper 32 bits, its core in the lower |
//!
//! Registers have 64 bits, and are accessed in whole. The receiver decides by which interrupt it hears, the sender which core it rings;
//! an x86-64 core is addressed by its APIC's number, which goes into the message's address.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::fused::{Fused, MACHINES};

/// Where it is: above all memory that a machine may have, and below AArch64's upper devices.
pub const ADDRESS: u64 = 0x3f_0000_0000;
/// How many bytes it takes.
pub const BYTES: u64 = 4096;

const IDENTITY: u64 = u64::from_le_bytes(*b"ostlbell");

/// What the receiver has set.
#[derive(Debug, Default)]
pub struct Doorbell {
    address: AtomicU64,
    data: AtomicU64,
}

impl Doorbell {
    /// One by which nothing is heard yet.
    pub const fn new() -> Doorbell {
        Doorbell {
            address: AtomicU64::new(0),
            data: AtomicU64::new(0),
        }
    }

    /// A register is read.
    pub fn read(&self, fused: &Fused, offset: u64) -> u64 {
        match offset {
            0x00 => IDENTITY,
            0x08 => fused.me() as u64,
            0x10 => MACHINES as u64,
            0x18 => fused.latency_ns().unsigned_abs(),
            0x20 => self.address.load(Ordering::SeqCst),
            0x28 => self.data.load(Ordering::SeqCst),
            _ => 0,
        }
    }

    /// A register is written, at this time of the machine's. What makes no sense does nothing.
    pub fn write(&self, fused: &Fused, offset: u64, value: u64, time: i64) {
        match offset {
            0x20 => self.address.store(value, Ordering::SeqCst),
            0x28 => self.data.store(value, Ordering::SeqCst),
            0x30 => {
                let (machine, core) = (value >> 32, value & 0xffff_ffff);
                if let (Ok(machine), Ok(core)) = (usize::try_from(machine), usize::try_from(core)) {
                    fused.ring(machine, core, time);
                }
            }
            _ => {}
        }
    }

    /// By which interrupt the machine wants to hear: the address, and the data, if any.
    pub fn interrupt(&self) -> Option<(u64, u32)> {
        let data = u32::try_from(self.data.load(Ordering::SeqCst)).ok()?;
        (data != 0).then(|| (self.address.load(Ordering::SeqCst), data))
    }
}
