//! The emulated machine's counters ([`ostler_abi::pmu`]), where this host is one: what each CPU did in a period.

use std::path::Path;

use ostler_abi::pmu::{Counts, Device, NoDevice, PmuError};
use ostler_model::{Accesses, CpuId, CpuPmu, CpuSet, Nanos};

/// The counters, and what they were when they were last looked at.
#[derive(Debug)]
pub(crate) struct Pmu {
    device: Device,
    /// Per core.
    last: Vec<Option<Counts>>,
}

impl Pmu {
    /// The machine's, if it has any.
    pub(crate) fn find(sys: &Path) -> Result<Option<Pmu>, NoDevice> {
        Ok(Device::find(sys)?.map(|device| Pmu {
            last: vec![None; device.header().cores],
            device,
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
