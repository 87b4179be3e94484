//! The emulated machine's counters ([`ostler_abi::pmu`]), where this host is one: what each CPU did in a period.

use std::collections::BTreeMap;
use std::path::Path;

use ostler_abi::pmu::{Counts, Device, NoDevice, PmuError};
use ostler_model::{Accesses, CpuId, CpuPmu, CpuSet, GuestPmu, GuestView, Nanos, Tid};

use crate::bpf::vcpus::VcpuBpf;
use ostler_bpf::BpfError;

/// The counters, and what they were when they were last looked at.
#[derive(Debug)]
pub(crate) struct Pmu {
    device: Device,
    /// Per core.
    last: Vec<Option<Counts>>,
    /// Who knows whose vCPU is whose, once it could be loaded.
    threads: Option<VcpuBpf>,
    /// Per vCPU, by its VMCB.
    last_vcpus: Option<BTreeMap<u64, Counts>>,
}

impl Pmu {
    /// The machine's, if it has any.
    pub(crate) fn find(sys: &Path) -> Result<Option<Pmu>, NoDevice> {
        Ok(Device::find(sys)?.map(|device| Pmu {
            last: vec![None; device.header().cores],
            device,
            threads: None,
            last_vcpus: None,
        }))
    }

    /// What each online CPU did since the last time; nothing of one that is looked at for the first time.
    pub(crate) fn advance(&mut self, online: &CpuSet) -> Vec<CpuPmu> {
        let device = &self.device;
        advance(
            &mut self.last,
            online,
            |core| device.read(core),
            |cpu, counts| {
                let header = device.header();
                view(cpu, counts, header.caches, header.nodes)
            },
        )
    }
}

impl Pmu {
    /// Whether it can be told whose vCPUs are counted, if the machine counts them at all.
    pub(crate) fn counts_guests(&self) -> bool {
        self.threads.is_some() || !self.device.header().caches
    }

    /// Learns from now on which thread runs which vCPU. Fails as long as KVM isn't loaded.
    pub(crate) fn follow_threads(&mut self, sys: &Path) -> Result<(), BpfError> {
        if !self.counts_guests() {
            self.threads = Some(VcpuBpf::load(sys)?);
        }
        Ok(())
    }

    /// What each guest's vCPUs did since the last time.
    pub(crate) fn advance_guests(&mut self, guests: &[GuestView]) -> Vec<GuestPmu> {
        let (Some(threads), Ok(now)) = (&self.threads, self.device.read_vcpus()) else {
            return Vec::new();
        };
        let header = self.device.header();
        let last = self.last_vcpus.replace(now.iter().copied().collect());
        let Some(last) = last else {
            return Vec::new();
        };
        by_guest(guests, &now, &last, header.nodes, |vmcb| {
            threads.thread(vmcb)
        })
    }
}

/// What each guest did from `last` to `now`.
fn by_guest(
    guests: &[GuestView],
    now: &[(u64, Counts)],
    last: &BTreeMap<u64, Counts>,
    nodes: usize,
    thread: impl Fn(u64) -> Option<Tid>,
) -> Vec<GuestPmu> {
    let mut sums: BTreeMap<usize, GuestPmu> = BTreeMap::new();
    for (vmcb, counts) in now {
        let did = match last.get(vmcb) {
            // A record that began anew is another vCPU's, or the same one's after a long rest.
            Some(before) if before.time_ns <= counts.time_ns => counts.since(before),
            _ => *counts,
        };
        let Some(tid) = thread(*vmcb) else { continue };
        let owner = guests
            .iter()
            .position(|guest| guest.vcpus.iter().any(|vcpu| vcpu.tid == tid));
        let Some(owner) = owner else { continue };
        let sum = sums
            .entry(owner)
            .or_insert_with(|| GuestPmu::new(guests[owner].id.clone()));
        sum.add(&GuestPmu {
            id: guests[owner].id.clone(),
            executed: Nanos(did.time_ns),
            instructions: did.instructions,
            accesses: accesses(&did, nodes),
        });
    }
    // Guests are in order of their ids.
    sums.into_values().collect()
}

fn advance(
    last: &mut [Option<Counts>],
    online: &CpuSet,
    read: impl Fn(usize) -> Result<Counts, PmuError>,
    view: impl Fn(CpuId, &Counts) -> CpuPmu,
) -> Vec<CpuPmu> {
    let mut views = Vec::with_capacity(last.len());
    for (core, last) in last.iter_mut().enumerate() {
        let cpu = CpuId(u32::try_from(core).unwrap_or(u32::MAX));
        // A core that can't be read now is read later, over a longer time.
        let Ok(now) = read(core) else {
            continue;
        };
        let before = last.replace(now);
        if let Some(before) = before.filter(|_| online.contains(cpu)) {
            views.push(view(cpu, &now.since(&before)));
        }
    }
    views
}

fn view(cpu: CpuId, counts: &Counts, caches: bool, nodes: usize) -> CpuPmu {
    CpuPmu {
        cpu,
        elapsed: Nanos(counts.time_ns),
        halted: Nanos(counts.halted_ns),
        instructions: counts.instructions,
        accesses: caches.then(|| accesses(counts, nodes)),
    }
}

fn accesses(counts: &Counts, nodes: usize) -> Accesses {
    let [l1, l2, l3, peer, local, remote, pool] = std::array::from_fn(|level| counts.at(level));
    Accesses {
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
    }
}

#[cfg(test)]
#[path = "pmu_tests.rs"]
mod tests;
