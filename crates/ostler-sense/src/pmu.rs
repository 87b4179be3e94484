//! The emulated machine's counters ([`ostler_abi::pmu`]), where this host is one: what each CPU did in a period.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use ostler_abi::pmu::{BYTES, CoreCounts, DEVICE, PmuError, RESOURCE, VENDOR, header, read};
use ostler_model::{Accesses, CpuId, CpuPmu, CpuSet, Nanos};

use crate::mapped::MappedArray;

/// Why a device that may have counters isn't read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoPmu {
    /// It can't be mapped.
    #[error(
        "the machine's counters can't be read from {file}; it takes root, and a kernel that isn't locked down"
    )]
    File {
        /// Its memory.
        file: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// It isn't what it should be.
    #[error("the machine's counters can't be read from {file}")]
    Pages {
        /// Its memory.
        file: PathBuf,
        /// What is wrong.
        source: PmuError,
    },
}

/// The counters, and what they were when they were last looked at.
#[derive(Debug)]
pub(crate) struct Pmu {
    pages: MappedArray,
    caches: bool,
    nodes: usize,
    /// Per core.
    last: Vec<Option<CoreCounts>>,
}

impl Pmu {
    /// Looks for the device. Most hosts have none; shared memory of another kind isn't ours, either.
    pub(crate) fn find(sys: &Path) -> Result<Option<Pmu>, NoPmu> {
        let Ok(devices) = fs::read_dir(sys.join("bus/pci/devices")) else {
            return Ok(None);
        };
        let mut devices: Vec<PathBuf> = devices.flatten().map(|device| device.path()).collect();
        devices.sort();
        for device in devices {
            let is = |file: &str, id: u16| {
                let text = fs::read_to_string(device.join(file)).unwrap_or_default();
                u16::from_str_radix(text.trim().trim_start_matches("0x"), 16) == Ok(id)
            };
            if !is("vendor", VENDOR) || !is("device", DEVICE) {
                continue;
            }
            let file = device.join(format!("resource{RESOURCE}"));
            let pages = match map(&file) {
                Ok(pages) => pages,
                Err(source) => return Err(NoPmu::File { file, source }),
            };
            match header(words(&pages)) {
                Ok(header) => {
                    return Ok(Some(Pmu {
                        pages,
                        caches: header.caches,
                        nodes: header.nodes,
                        last: vec![None; header.cores],
                    }));
                }
                Err(PmuError::NotOurs(_)) => {}
                Err(source) => return Err(NoPmu::Pages { file, source }),
            }
        }
        Ok(None)
    }

    /// What each online CPU did since the last time; nothing of one that is looked at for the first time.
    pub(crate) fn advance(&mut self, online: &CpuSet) -> Vec<CpuPmu> {
        let mut views = Vec::with_capacity(self.last.len());
        for (core, last) in self.last.iter_mut().enumerate() {
            let cpu = CpuId(u32::try_from(core).unwrap_or(u32::MAX));
            // Cores that can't be read now are read later, over a longer time.
            let Ok(now) = read(words(&self.pages), core) else {
                continue;
            };
            let before = last.replace(now);
            if let Some(before) = before.filter(|_| online.contains(cpu)) {
                views.push(view(cpu, &now.since(&before), self.caches, self.nodes));
            }
        }
        views
    }
}

fn words(pages: &MappedArray) -> &[AtomicU64] {
    pages.entry(0)
}

fn map(file: &Path) -> io::Result<MappedArray> {
    let opened = File::open(file)?;
    let bytes = usize::try_from(opened.metadata()?.len()).unwrap_or(usize::MAX);
    MappedArray::to_read(opened.as_fd(), bytes.min(BYTES) / size_of::<u64>())
}

fn view(cpu: CpuId, counts: &CoreCounts, caches: bool, nodes: usize) -> CpuPmu {
    let [l1, l2, l3, peer, local, remote, pool] = std::array::from_fn(|level| counts.at(level));
    CpuPmu {
        cpu,
        elapsed: Nanos(counts.time_ns),
        halted: Nanos(counts.halted_ns),
        instructions: counts.instructions,
        accesses: caches.then(|| Accesses {
            l1,
            l2,
            l3,
            peer,
            local,
            remote,
            pool,
            stall: Nanos(counts.stall_ps / 1000),
            queued: Nanos(counts.queued_ps / 1000),
            snoops_sent: counts.snoops_sent,
            snoops_received: counts.snoops_received,
            node_bytes: counts.node_bytes[..nodes].to_vec(),
        }),
    }
}

#[cfg(test)]
#[path = "pmu_tests.rs"]
mod tests;
