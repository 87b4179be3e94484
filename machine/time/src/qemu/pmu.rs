//! The emulated host's performance counters, written into a file that QEMU shows that host as a device's memory. Their layout, and how they are
//! read, is [`ostler_abi::pmu`]'s.
//!
//! Each core's record is written by its own thread at times of its own clock, so what the host reads, and when, doesn't
//! depend on the real machine.

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use ostler_abi::pmu::{self, BYTES, CORES_MAX, Header, MARK, NODES_MAX};

use ostler_machine_memory::Counts;

use super::Qemu;
use super::accesses::Accesses;
use super::symbols::Opaque;
use super::vcpus::{Place, Vcpus};
use crate::machine::SoFar;
use crate::refusal::Refusal;

/// The pages, mapped as long as the process lives.
#[derive(Debug)]
pub struct Pmu {
    pages: &'static [AtomicU64],
    /// What each core's thread reads the model's counts into: nothing is allocated each quantum.
    counts: Box<[Mutex<Counts>]>,
    /// With caches: whose vCPUs cores are.
    vcpus: Option<(Place, Vcpus)>,
}

impl Pmu {
    /// Makes the file what the layout says, for so many cores and, with caches, the nodes of their memory; `place` is where it
    /// is seen whose vCPU a core is. What is in the file is lost.
    pub fn open(
        file: &Path,
        cores: usize,
        memory: Option<&Accesses>,
        place: Option<Place>,
    ) -> Result<Pmu, Refusal> {
        let refuse = |problem: String| Refusal::Pmu {
            file: file.display().to_string(),
            problem,
        };
        if cores > CORES_MAX {
            return Err(refuse(format!(
                "it has room for {CORES_MAX} cores, and this machine has {cores}; leave pmu= out"
            )));
        }
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(file);
        let opened = opened.map_err(|error| refuse(format!("it can't be opened: {error}")))?;
        opened
            .set_len(BYTES as u64)
            .map_err(|error| refuse(format!("it can't have {BYTES} bytes: {error}")))?;
        // SAFETY: a new mapping of a file that is as long, at an address of the kernel's choice, never unmapped.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                opened.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            let error = std::io::Error::last_os_error();
            return Err(refuse(format!("it can't be mapped: {error}")));
        }
        // SAFETY: it is mapped for good, page-aligned, and everyone who has it mapped reads and writes whole words.
        let pages = unsafe { std::slice::from_raw_parts(start.cast::<AtomicU64>(), BYTES / 8) };
        let nodes = memory.map_or(0, |memory| memory.counts(0).node_bytes.len());
        let header = Header {
            cores,
            nodes: nodes.min(NODES_MAX),
            caches: memory.is_some(),
        };
        pmu::begin(pages, header);
        let counts = (0..cores).map(|_| Mutex::default()).collect();
        Ok(Pmu {
            pages,
            counts,
            vcpus: place.map(|place| (place, Vcpus::new(cores))),
        })
    }

    /// Shows what a core has done so far. By its own thread.
    pub fn show(&self, core: usize, so_far: SoFar, accesses: Option<&Accesses>) {
        let mut counts = pmu::Counts {
            time_ns: so_far.time_ns.unsigned_abs(),
            halted_ns: so_far.halted_ns.unsigned_abs(),
            instructions: so_far.executed,
            ..pmu::Counts::default()
        };
        if let Some(accesses) = accesses {
            self.count(core, accesses, &mut counts);
        }
        pmu::write(self.pages, core, &counts);
        if let Some((_, vcpus)) = &self.vcpus {
            vcpus.show(self.pages, core, &counts);
        }
    }

    /// What the emulated host has marked.
    pub fn mark(&self) -> u64 {
        self.pages[MARK].load(Ordering::Acquire)
    }

    /// Whether a core that is about to execute a block isn't whom it was seen as last. By its own thread.
    ///
    /// # Safety
    /// That core is one of this QEMU's.
    #[inline]
    pub unsafe fn is_another(&self, core: usize, qemu: &Qemu) -> bool {
        let (Some((place, vcpus)), Some(cpu)) = (&self.vcpus, qemu.cpu(core)) else {
            return false;
        };
        // SAFETY: the caller's.
        vcpus.changed(core, unsafe { place.vmcb(cpu.0) })
    }

    /// A core is about to execute a block, at `now_ns` of its own time: as the host, or as a guest's vCPU. By its own thread.
    ///
    /// # Safety
    /// `cpu` is that core.
    #[inline]
    pub unsafe fn executes(
        &self,
        core: usize,
        cpu: Opaque,
        accesses: &Accesses,
        now_ns: impl FnOnce() -> i64,
    ) {
        if let Some((place, vcpus)) = &self.vcpus {
            // SAFETY: the caller's.
            let vmcb = unsafe { place.vmcb(cpu) };
            if vcpus.changed(core, vmcb) {
                let mut counts = pmu::Counts {
                    time_ns: now_ns().unsigned_abs(),
                    ..pmu::Counts::default()
                };
                self.count(core, accesses, &mut counts);
                vcpus.become_vcpu(self.pages, core, vmcb, &counts);
            }
        }
    }

    /// Adds what the model of accesses knows of a core.
    fn count(&self, core: usize, accesses: &Accesses, counts: &mut pmu::Counts) {
        counts.instructions = accesses.instructions(core);
        counts.unplaced = accesses.unplaced(core);
        let mut seen = self.counts[core]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        accesses.recount(core, &mut seen);
        counts.stall_ps = seen.stall_ps;
        counts.queued_ps = seen.queued_ps;
        counts.snoops_sent = seen.snoops_sent;
        counts.snoops_received = seen.snoops_received;
        counts.back_invalidations = seen.back_invalidations;
        counts.back_invalidated = seen.back_invalidated;
        counts.served = seen.served;
        for (bytes, seen) in counts.node_bytes.iter_mut().zip(&seen.node_bytes) {
            *bytes = *seen;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the plugin shows is in the file, for whoever reads it by the layout.
    #[test]
    fn what_is_shown_is_in_the_file() {
        let folder = std::env::temp_dir().join(format!("ostler-pmu-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let file = folder.join("pmu");
        std::fs::write(&file, vec![7; 2 * BYTES]).expect("what was there before");
        let shown = Pmu::open(&file, 2, None, None).expect("it can be mapped");
        let so_far = SoFar {
            time_ns: 1_000,
            halted_ns: 400,
            executed: 600,
        };
        shown.show(1, so_far, None);
        let bytes = std::fs::read(&file).expect("it is there");
        std::fs::remove_dir_all(&folder).expect("the folder goes");
        assert_eq!(bytes.len(), BYTES);
        let (words, _) = bytes.as_chunks::<8>();
        let pages: Vec<AtomicU64> = words
            .iter()
            .map(|word| AtomicU64::new(u64::from_le_bytes(*word)))
            .collect();
        let header = pmu::header(&pages).expect("a header");
        assert_eq!((header.cores, header.nodes, header.caches), (2, 0, false));
        let expected = pmu::Counts {
            time_ns: 1_000,
            halted_ns: 400,
            instructions: 600,
            ..pmu::Counts::default()
        };
        assert_eq!(pmu::read(&pages, 1), Ok(expected));
        assert_eq!(pmu::read(&pages, 0), Ok(pmu::Counts::default()));
    }

    #[test]
    fn what_cant_be_is_refused_with_the_file() {
        let refusal = |file: &str, cores| {
            Pmu::open(Path::new(file), cores, None, None)
                .expect_err("it can't be")
                .to_string()
        };
        let nowhere = refusal("/nonexistent/pmu", 1);
        assert!(nowhere.contains("/nonexistent/pmu"), "{nowhere}");
        let many = refusal("/nonexistent/pmu", 65);
        assert!(many.contains("65") && many.contains("64"), "{many}");
    }
}
