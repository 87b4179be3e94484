//! As whose vCPU a core executes: what it does inside guests of the emulated host is counted for each vCPU apart.
//!
//! A core under SVM is the host's or a vCPU's, and QEMU keeps a flag of that (`HF_GUEST`) and the physical address of the VMCB that it
//! entered last. The hypervisor made that VMCB for one vCPU, so its address says whose time this is, and the hypervisor can be asked.
//! Each block of code is looked at before it is executed, which costs a load and a test; when the answer changes, what the core did
//! since the last change is added to whom it was for. An exit's own cost is the host's.
//!
//! Where QEMU keeps both is read from the code of VMRUN. In a QEMU where that isn't found, vCPUs aren't counted, and all else is.
#![allow(unsafe_code, reason = "fields of QEMU's structures are read in place")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ostler_abi::pmu::{self, Counts, VCPUS_MAX};

use super::code::Pattern;
use super::layout::Offsets;
use super::symbols::{Faulty, Opaque, code_of};

/// `HF_GUEST_MASK`.
const GUEST: u32 = 1 << 21;
/// `helper_vmrun`: the core becomes a vCPU.
const FLAGS: Pattern = Pattern {
    before: &[0x81, 0x8b],
    after: &[0x00, 0x00, 0x20, 0x00],
    written: "orl $0x200000,offset(%rbx)",
};
/// The same, before it loads the guest's CR0, 0x558 bytes into the VMCB.
const VMCB: Pattern = Pattern {
    before: &[0x48, 0x8b, 0x83],
    after: &[0x48, 0x8d, 0xb0, 0x58, 0x05, 0x00, 0x00],
    written: "mov offset(%rbx),%rax; lea 0x558(%rax),%rsi",
};

/// Where QEMU keeps it, in bytes from a core's structure's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    flags: usize,
    vmcb: usize,
}

impl Place {
    /// Reads it from the code of the running QEMU, if it is as expected.
    pub fn read(functions: &Faulty, offsets: &Offsets) -> Option<Place> {
        let code = code_of(functions.helper_vmrun as Opaque)?;
        Place::of(code, offsets.environment())
    }

    fn of(code: &[u8], environment: usize) -> Option<Place> {
        Some(Place {
            flags: environment + FLAGS.offset(code)?,
            vmcb: environment + VMCB.offset(code)?,
        })
    }

    /// The VMCB of the vCPU that a core is; 0 if it is the host's.
    ///
    /// # Safety
    /// `cpu` is a core of the QEMU that this was read from; only by its own thread.
    #[inline]
    pub unsafe fn vmcb(self, cpu: Opaque) -> u64 {
        // SAFETY: fields of the core's structure, which its own thread writes.
        unsafe {
            if cpu.byte_add(self.flags).cast::<u32>().read() & GUEST == 0 {
                return 0;
            }
            cpu.byte_add(self.vmcb).cast::<u64>().read()
        }
    }
}

/// What each core is, and since when.
#[derive(Debug, Default)]
struct Seat {
    vmcb: u64,
    /// What the core had done when it became that.
    since: Counts,
}

/// A vCPU's record.
#[derive(Clone, Copy, Debug, Default)]
struct Record {
    vmcb: u64,
    total: Counts,
    /// When it was last written, in some core's time.
    written_ns: u64,
}

/// All vCPUs' counts.
#[derive(Debug)]
pub struct Vcpus {
    /// By core: the VMCB that it was seen with last, for a look without a lock. Written by its own thread.
    now: Box<[AtomicU64]>,
    seats: Box<[Mutex<Seat>]>,
    records: Mutex<Vec<Record>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Vcpus {
    /// All cores are the host's.
    pub fn new(cores: usize) -> Vcpus {
        Vcpus {
            now: (0..cores).map(|_| AtomicU64::new(0)).collect(),
            seats: (0..cores).map(|_| Mutex::default()).collect(),
            records: Mutex::new(vec![Record::default(); VCPUS_MAX]),
        }
    }

    /// Whether a core isn't what it was seen as last. By its own thread.
    #[inline]
    pub fn changed(&self, core: usize, vmcb: u64) -> bool {
        self.now[core].load(Ordering::Relaxed) != vmcb
    }

    /// A core, which has done so much so far, is the vCPU with this VMCB from now on, or the host's if that is 0. What it did
    /// since the last time is counted for whom it was. By its own thread.
    pub fn become_vcpu(&self, pages: &[AtomicU64], core: usize, vmcb: u64, so_far: &Counts) {
        let mut seat = lock(&self.seats[core]);
        if seat.vmcb != 0 {
            let mut did = so_far.since(&seat.since);
            // A halted core is the host's.
            did.halted_ns = 0;
            self.add(pages, seat.vmcb, &did, so_far.time_ns);
        }
        *seat = Seat {
            vmcb,
            since: *so_far,
        };
        self.now[core].store(vmcb, Ordering::Relaxed);
    }

    /// The same without a change: what it did until now is shown. By its own thread.
    pub fn show(&self, pages: &[AtomicU64], core: usize, so_far: &Counts) {
        let vmcb = self.now[core].load(Ordering::Relaxed);
        if vmcb != 0 {
            self.become_vcpu(pages, core, vmcb, so_far);
        }
    }

    fn add(&self, pages: &[AtomicU64], vmcb: u64, did: &Counts, now_ns: u64) {
        let mut records = lock(&self.records);
        let known = records.iter().position(|record| record.vmcb == vmcb);
        let slot = known.unwrap_or_else(|| {
            // Nobody's, which was never written, or else the one that hasn't run for longest.
            let all = records.iter().enumerate();
            let oldest = all.min_by_key(|(_, record)| (record.vmcb != 0, record.written_ns));
            oldest.map_or(0, |(slot, _)| slot)
        });
        let record = &mut records[slot];
        if record.vmcb != vmcb {
            *record = Record {
                vmcb,
                ..Record::default()
            };
        }
        record.total.add(did);
        record.written_ns = now_ns;
        pmu::write_vcpu(pages, slot, vmcb, &record.total);
    }
}

#[cfg(test)]
mod tests {
    use ostler_abi::pmu::{BYTES, Header, begin, read_vcpus};

    use super::*;

    fn pages() -> Vec<AtomicU64> {
        let pages: Vec<_> = (0..BYTES / 8).map(|_| AtomicU64::new(0)).collect();
        let header = Header {
            cores: 2,
            nodes: 0,
            caches: true,
        };
        begin(&pages, header);
        pages
    }

    fn at(time_ns: u64) -> Counts {
        Counts {
            time_ns,
            halted_ns: time_ns / 2,
            instructions: 2 * time_ns,
            ..Counts::default()
        }
    }

    fn told(pages: &[AtomicU64]) -> Vec<(u64, u64, u64)> {
        let all = read_vcpus(pages).expect("a machine's");
        assert!(all.iter().all(|(_, counts)| counts.halted_ns == 0));
        all.iter()
            .map(|(vmcb, counts)| (*vmcb, counts.time_ns, counts.instructions))
            .collect()
    }

    #[test]
    fn each_vcpu_is_counted_for_what_was_done_as_it_on_any_core() {
        let (pages, vcpus) = (pages(), Vcpus::new(2));
        assert!(!vcpus.changed(0, 0) && vcpus.changed(0, 0x1000));
        vcpus.become_vcpu(&pages, 0, 0x1000, &at(100));
        assert_eq!(told(&pages), [], "it has done nothing yet");
        vcpus.become_vcpu(&pages, 1, 0x2000, &at(50));
        vcpus.become_vcpu(&pages, 0, 0, &at(130));
        assert_eq!(told(&pages), [(0x1000, 30, 60)]);
        // The host's own time is nobody's.
        vcpus.become_vcpu(&pages, 0, 0x2000, &at(500));
        // Still running: shown as far as it is.
        vcpus.show(&pages, 1, &at(60));
        assert_eq!(told(&pages), [(0x1000, 30, 60), (0x2000, 10, 20)]);
        assert!(!vcpus.changed(1, 0x2000));
        vcpus.become_vcpu(&pages, 1, 0, &at(61));
        vcpus.become_vcpu(&pages, 0, 0, &at(503));
        vcpus.show(&pages, 0, &at(900));
        assert_eq!(told(&pages), [(0x1000, 30, 60), (0x2000, 14, 28)]);
    }

    #[test]
    fn who_has_not_run_for_longest_makes_room() {
        let (pages, vcpus) = (pages(), Vcpus::new(1));
        let mut now = 0;
        let mut run = |vmcb| {
            vcpus.become_vcpu(&pages, 0, vmcb, &at(now));
            now += 1;
            vcpus.become_vcpu(&pages, 0, 0, &at(now));
        };
        for vmcb in 1..=VCPUS_MAX as u64 {
            run(vmcb);
        }
        run(1);
        run(1000);
        let all = told(&pages);
        assert_eq!(all.len(), VCPUS_MAX);
        let of = |wanted: u64| all.iter().find(|(vmcb, ..)| *vmcb == wanted);
        assert_eq!(of(1).map(|one| one.1), Some(2));
        assert_eq!(of(2), None);
        assert_eq!(of(1000).map(|one| one.1), Some(1));
    }

    /// Of `helper_vmrun` in Debian's 10.0.13: where it makes the core a vCPU, and loads its CR0 and CR4.
    const VMRUN: &str = "41 83 e5 01 0f 85 79 05 00 00 81 8b b0 00 00 00 00 00 20 00 48 8b 83 58 34 00 00 48 89 ef 48 8d 70 50 \
        48 8b 83 58 34 00 00 48 8d b0 58 05 00 00 e8 ff 9a 04 00 49 89 c4 48 8b 83 58 34 00 00 48 89 ef 48 8d b0 50 05 00 00";

    #[test]
    fn where_qemu_keeps_it_is_read_from_its_code() {
        let code: Vec<u8> = VMRUN
            .split_whitespace()
            .map(|byte| u8::from_str_radix(byte, 16).expect("hexadecimal"))
            .collect();
        let expected = Place {
            flags: 0x2c70,
            vmcb: 0x6018,
        };
        assert_eq!(Place::of(&code, 0x2bc0), Some(expected));
        assert_eq!(Place::of(&code[12..], 0x2bc0), None);
        let twice = [&code[..], &code[..]].concat();
        assert_eq!(Place::of(&twice, 0x2bc0), None, "which one?");
    }

    #[test]
    fn a_core_is_a_vcpu_while_its_flag_says_so() {
        let place = Place { flags: 0, vmcb: 8 };
        let mut cpu = [u64::from(GUEST) | 5, 0x7000];
        let vmcb = |cpu: &mut [u64; 2]| {
            // SAFETY: the structure is laid out as the offsets say.
            unsafe { place.vmcb(cpu.as_mut_ptr().cast()) }
        };
        assert_eq!(vmcb(&mut cpu), 0x7000);
        cpu[0] = 5;
        assert_eq!(vmcb(&mut cpu), 0);
    }
}
