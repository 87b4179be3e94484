//! Physical NICs: their queues, and the interrupts of their queues.
//!
//! Interrupts come from `/sys/class/net/X/device/msi_irqs`, and which queue each serves from its action's name. Counts
//! and affinities are read through files that stay open, per interrupt: `/proc/interrupts` has every interrupt of
//! every CPU, which on a large host takes longer to format than our whole period's budget.

use std::path::{Path, PathBuf};

use ostler_model::{CpuSet, IrqId, IrqView, Nanos, NicFacts, NicView, NodeId, Ring};

use crate::ethtool::Ethtool;
use crate::files::{self, KeptFile};

/// Interrupts of one NIC that are looked at.
const IRQS_MAX: usize = 2048;
/// How often a NIC's interrupts are looked up again: a driver makes new ones when its queues change.
const LOOK_AGE_MAX: Nanos = Nanos::from_secs(1);

/// A NIC that is watched.
#[derive(Debug)]
pub(crate) struct Nic {
    name: String,
    rss_size: usize,
    irqs: Vec<Irq>,
    looked: Option<Nanos>,
}

#[derive(Debug)]
struct Irq {
    id: IrqId,
    ring: Ring,
    queue: u32,
    affinity: KeptFile,
    counts: KeptFile,
    previous: Option<u64>,
}

/// What a NIC is. `None` when there is none of this name.
pub(crate) fn facts(sys: &Path, ethtool: Option<&Ethtool>, name: &str) -> Option<NicFacts> {
    let folder = sys.join("class/net").join(name);
    if name.contains('/') || !folder.exists() {
        return None;
    }
    let told = ethtool.and_then(|ethtool| {
        ethtool
            .channels(name)
            .map(|channels| channels.rx_max)
            .or_else(|_| ethtool.rx_rings(name))
            .ok()
    });
    let node: Option<i64> = files::parsed(&folder.join("device/numa_node"));
    Some(NicFacts {
        name: name.to_owned(),
        queues_max: told
            .filter(|&n| n > 0)
            .unwrap_or_else(|| rx_queues(&folder))
            .max(1),
        rss_settable: ethtool
            .and_then(|ethtool| ethtool.rss_size(name).ok())
            .is_some_and(|size| size > 0),
        node: node.and_then(|node| u32::try_from(node).ok()).map(NodeId),
    })
}

fn rx_queues(folder: &Path) -> u32 {
    let queues = files::names(&folder.join("queues"), 4096);
    let rx = queues.iter().filter(|name| name.starts_with("rx-")).count();
    u32::try_from(rx).unwrap_or(1)
}

impl Nic {
    pub(crate) fn new(name: &str) -> Nic {
        Nic {
            name: name.to_owned(),
            rss_size: 0,
            irqs: Vec::new(),
            looked: None,
        }
    }

    /// The NIC in this period; `None` while there is none of its name.
    pub(crate) fn view(
        &mut self,
        proc: &Path,
        sys: &Path,
        ethtool: Option<&Ethtool>,
        now: Nanos,
    ) -> Option<NicView> {
        let folder = sys.join("class/net").join(&self.name);
        if self
            .looked
            .is_none_or(|at| now.saturating_sub(at) >= LOOK_AGE_MAX)
        {
            if !folder.exists() {
                self.irqs.clear();
                self.looked = None;
                return None;
            }
            self.look(&folder, proc, sys);
            self.rss_size = ethtool
                .and_then(|ethtool| ethtool.rss_size(&self.name).ok())
                .unwrap_or(0);
            self.looked = Some(now);
        }
        let rss = ethtool
            .filter(|_| self.rss_size > 0)
            .and_then(|ethtool| ethtool.rss_queues(&self.name, self.rss_size).ok());
        let in_use = || ethtool.and_then(|ethtool| Some(ethtool.channels(&self.name).ok()?.rx));
        let queues = rss.or_else(in_use).unwrap_or_else(|| rx_queues(&folder));
        let mut stale = false;
        let irqs = self
            .irqs
            .iter_mut()
            .filter_map(|irq| {
                let view = irq.view();
                stale |= view.is_none();
                view
            })
            .collect();
        if stale {
            self.looked = None;
        }
        Some(NicView {
            name: self.name.clone(),
            queues,
            irqs,
        })
    }

    /// Finds the queues' interrupts; those that stay keep their counts.
    fn look(&mut self, folder: &Path, proc: &Path, sys: &Path) {
        // A virtio NIC's interrupts are its PCI device's.
        let found = ["device/msi_irqs", "device/../msi_irqs"]
            .iter()
            .map(|path| files::numbers(&folder.join(path), IRQS_MAX))
            .find(|numbers| !numbers.is_empty())
            .unwrap_or_default();
        let mut irqs: Vec<Irq> = found
            .into_iter()
            .filter_map(|number| {
                let own = sys.join("kernel/irq").join(number.to_string());
                let (ring, queue) = served(&files::value(&own.join("actions")).ok()?)?;
                let affinity: PathBuf = proc.join(format!("irq/{number}/smp_affinity_list"));
                let id = IrqId(number);
                let previous = self
                    .irqs
                    .iter()
                    .find(|irq| irq.id == id && (irq.ring, irq.queue) == (ring, queue))
                    .and_then(|irq| irq.previous);
                Some(Irq {
                    id,
                    ring,
                    queue,
                    affinity: KeptFile::open(&affinity).ok()?,
                    counts: KeptFile::open(&own.join("per_cpu_count")).ok()?,
                    previous,
                })
            })
            .collect();
        irqs.sort_by_key(|irq| (irq.ring, irq.queue, irq.id));
        self.irqs = irqs;
    }
}

impl Irq {
    fn view(&mut self) -> Option<IrqView> {
        // 1024 CPUs of 10 digits and a comma.
        let mut buffer = [0; 12 * 1024];
        let affinity: CpuSet = self.affinity.read(&mut buffer).ok()?.trim().parse().ok()?;
        let total = total(self.counts.read(&mut buffer).ok()?);
        let before = self.previous.replace(total);
        Some(IrqView {
            irq: self.id,
            queue: self.queue,
            ring: self.ring,
            affinity,
            // Counts are 32 bits per CPU in the kernel and wrap; such a period counts nothing.
            count: before.map_or(0, |before| total.saturating_sub(before)),
        })
    }
}

/// The sum of `per_cpu_count`.
fn total(text: &str) -> u64 {
    text.trim()
        .split(',')
        .filter_map(|count| count.parse::<u64>().ok())
        .fold(0, u64::saturating_add)
}

/// The ring and queue that an interrupt serves, by its action's name: `eth0-TxRx-3`, `eth0-rx-3`, `eth0-tx-3`, `mlx5_comp3@pci:...`,
/// `virtio2-input.3`, `virtio2-output.3`, `i40e-eth0-TxRx-3`, `eth0-fp-3`. The device's own, as for its link, serves none.
fn served(actions: &str) -> Option<(Ring, u32)> {
    let name = actions.split(',').next()?;
    let name = name.split('@').next()?.to_ascii_lowercase();
    let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let (stem, number) = name.split_at(name.len() - digits);
    let stem = stem.trim_end_matches(['-', '.', '_']);
    // A whole word: `prx` isn't `rx`.
    let before = |kind: &&str| {
        let rest = stem.strip_suffix(kind)?;
        (!rest.ends_with(|c: char| c.is_ascii_lowercase())).then_some(rest)
    };
    let receives = [
        "rx", "txrx", "rxtx", "rx-tx", "input", "comp", "queue", "ring", "q", "fp",
    ];
    let ring = if receives.iter().find_map(before).is_some() {
        Ring::Receive
    } else {
        ["tx", "output"].iter().find_map(before)?;
        Ring::Transmit
    };
    Some((ring, number.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_names_for_their_vectors_are_understood() {
        let both = [
            ("eth0-TxRx-3", 3),
            ("i40e-eth0-TxRx-11", 11),
            ("eth0-rx-0", 0),
            ("eth0-Tx-Rx-7", 7),
            ("eth0-rx-tx-7", 7),
            ("eth0-rxtx-2", 2),
            ("ens1f0-fp-4", 4),
            ("virtio2-input.3", 3),
            ("mlx5_comp12@pci:0000:3b:00.0", 12),
            ("nvlan-q-1,other", 1),
        ];
        for (name, queue) in both {
            assert_eq!(served(name), Some((Ring::Receive, queue)), "{name}");
        }
        for (name, queue) in [
            ("eth0-tx-1", 1),
            ("enp3s0f1-Tx-9", 9),
            ("virtio2-output.3", 3),
        ] {
            assert_eq!(served(name), Some((Ring::Transmit, queue)), "{name}");
        }
        let none = [
            "",
            "eth0",
            "eth0-tx",
            "eth0-tx-",
            "virtio2-config",
            "mlx5_async0@pci:0000",
            "vertex-3",
            "tx-99999999999",
            "prx1",
        ];
        for name in none {
            assert_eq!(served(name), None, "{name}");
        }
    }
}
