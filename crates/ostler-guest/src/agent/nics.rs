//! The guest's network devices: how many queues each uses, and which vCPUs serve them.
//!
//! With `V` the vCPUs that workloads use, queue `k`, if it is in use, interrupts vCPU `V[k mod |V|]`, and what runs on vCPU `V[i]`
//! transmits by queue `i mod n`: with as many queues as vCPUs each pair stays on its vCPU.
//!
//! The order matters: virtio_net spreads interrupts and XPS over all vCPUs anew whenever its queue count changes. So steering follows
//! every change of the count, and a restore sets the count first and the rest after.

use std::collections::BTreeMap;
use std::io;

use ostler_abi::guest::{IRQS_MAX, NICS_MAX};
use tracing::warn;

use super::Done;
use super::kernel::{Channels, Kernel};
use super::ledger::Ledger;
use crate::cpulist;

const NET: &str = "/sys/class/net";

/// A queue's interrupt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueIrq {
    pub irq: u32,
    pub queue: u32,
    pub transmit: bool,
}

impl QueueIrq {
    pub fn path(&self) -> String {
        format!("/proc/irq/{}/smp_affinity_list", self.irq)
    }
}

/// A device with hardware, or what passes for it, behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nic {
    pub name: String,
    pub mac: [u8; 6],
    /// Absent where the driver doesn't say.
    pub channels: Option<Channels>,
    /// Empty where the device isn't virtio's or shares one interrupt among its queues.
    pub irqs: Vec<QueueIrq>,
}

impl Nic {
    /// The interrupts of queues that are in use.
    pub fn irqs_in_use(&self) -> impl Iterator<Item = &QueueIrq> {
        let count = self.channels.map_or(u32::MAX, |channels| channels.combined);
        self.irqs.iter().filter(move |irq| irq.queue < count)
    }
}

/// All devices. Bridges, bonds and VLANs aren't among them, though they may carry a device's MAC.
pub fn discover(kernel: &impl Kernel) -> Vec<Nic> {
    let by_device = queue_irqs(kernel);
    let mut nics = Vec::new();
    for name in kernel.list(NET).unwrap_or_default() {
        let Ok(device) = kernel.link_name(&format!("{NET}/{name}/device")) else {
            continue;
        };
        let address = kernel.read(&format!("{NET}/{name}/address"));
        let Some(mac) = address.ok().as_deref().and_then(parse_mac) else {
            continue;
        };
        if nics.len() == NICS_MAX {
            break;
        }
        nics.push(Nic {
            channels: kernel.channels(&name).ok(),
            irqs: by_device.get(&device).cloned().unwrap_or_default(),
            name,
            mac,
        });
    }
    nics
}

/// Steers the interrupts and the transmit choice of the queues of `nic` that are in use to `vcpus`: each of others would cost what one in use does, and
/// nobody would have anything of it. What the kernel refuses is counted and passed over: a queue
/// served from afar costs speed, and is no reason not to do the rest.
pub fn steer(kernel: &impl Kernel, ledger: &mut Ledger, nic: &Nic, vcpus: &[u32]) -> Done {
    let mut done = Done::default();
    for irq in nic.irqs_in_use() {
        let path = irq.path();
        let Ok(current) = kernel.read(&path) else {
            continue;
        };
        let wanted = vcpus[irq.queue as usize % vcpus.len()];
        if cpulist::parse_list(&current) != Some(vec![wanted]) {
            done.count(ledger.write(kernel, &path, &current, &wanted.to_string()));
        }
    }
    let queues = nic.channels.map_or(1, |channels| channels.combined) as usize;
    // With one queue there is no choice, and the kernel refuses the file.
    for queue in (0..queues).filter(|_| queues > 1) {
        let path = xps_path(&nic.name, queue);
        let Ok(current) = kernel.read(&path) else {
            continue;
        };
        let mut wanted: Vec<u32> = vcpus.iter().copied().skip(queue).step_by(queues).collect();
        if wanted.is_empty() {
            wanted.push(vcpus[queue % vcpus.len()]);
        }
        if cpulist::parse_mask(&current).as_deref() != Some(&wanted) {
            done.count(ledger.write(kernel, &path, &current, &cpulist::format_mask(&wanted)));
        }
    }
    done
}

/// The queue counts the agent changed, by device.
#[derive(Debug, Default)]
pub struct Queues {
    entries: BTreeMap<String, (u32, u32)>,
}

impl Queues {
    /// Whether nothing is changed.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Makes `nic` use `count` pairs; true if that changed anything. What the driver resets on the way is recorded, to be
    /// put back as well.
    pub fn set(
        &mut self,
        kernel: &impl Kernel,
        ledger: &mut Ledger,
        nic: &Nic,
        count: u32,
    ) -> io::Result<bool> {
        let current = kernel.channels(&nic.name)?.combined;
        if current == count {
            return Ok(false);
        }
        let before = snapshot(kernel, nic);
        kernel.set_channels(&nic.name, count)?;
        for (path, found) in before {
            if let Ok(now) = kernel.read(&path) {
                ledger.record(&path, &found, now);
            }
        }
        self.entries
            .entry(nic.name.clone())
            .and_modify(|(found, ours)| {
                if *ours != current {
                    *found = current;
                }
                *ours = count;
            })
            .or_insert((current, count));
        Ok(true)
    }

    /// Goes back to the counts found; the count returned is of those left alone.
    pub fn restore(&mut self, kernel: &impl Kernel) -> u32 {
        let mut left = 0;
        for (nic, (found, ours)) in std::mem::take(&mut self.entries) {
            let Ok(channels) = kernel.channels(&nic) else {
                continue; // Unplugged.
            };
            if channels.combined == found {
                continue;
            }
            if channels.combined != ours || kernel.set_channels(&nic, found).is_err() {
                warn!(nic, "queue count left alone");
                left += 1;
            }
        }
        left
    }
}

/// All settings of `nic` that the driver may reset.
fn snapshot(kernel: &impl Kernel, nic: &Nic) -> Vec<(String, String)> {
    let queues = nic.channels.map_or(0, |channels| channels.combined_max) as usize;
    nic.irqs
        .iter()
        .map(QueueIrq::path)
        .chain((0..queues.min(IRQS_MAX)).map(|queue| xps_path(&nic.name, queue)))
        .filter_map(|path| kernel.read(&path).ok().map(|found| (path, found)))
        .collect()
}

fn xps_path(nic: &str, queue: usize) -> String {
    format!("{NET}/{nic}/queues/tx-{queue}/xps_cpus")
}

/// The queues' interrupts, by virtio device.
fn queue_irqs(kernel: &impl Kernel) -> BTreeMap<String, Vec<QueueIrq>> {
    let mut by_device = BTreeMap::<String, Vec<QueueIrq>>::new();
    let table = kernel.read("/proc/interrupts").unwrap_or_default();
    for (device, irq) in table.lines().filter_map(parse_irq_line).take(IRQS_MAX) {
        by_device.entry(device).or_default().push(irq);
    }
    by_device
}

/// `  25:  0  17  PCI-MSIX-0000:00:03.0  1-edge  virtio0-input.0`
fn parse_irq_line(line: &str) -> Option<(String, QueueIrq)> {
    let (irq, rest) = line.trim_start().split_once(':')?;
    let (device, queue) = rest.split_whitespace().last()?.split_once('-')?;
    let (direction, queue) = queue.split_once('.')?;
    let transmit = match direction {
        "input" => false,
        "output" => true,
        _ => return None,
    };
    device.strip_prefix("virtio")?.parse::<u32>().ok()?;
    let irq = QueueIrq {
        irq: irq.parse().ok()?,
        queue: queue.parse().ok()?,
        transmit,
    };
    Some((device.to_owned(), irq))
}

fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut parts = text.trim().split(':');
    for byte in &mut mac {
        *byte = u8::from_str_radix(parts.next()?, 16).ok()?;
    }
    parts.next().is_none().then_some(mac)
}

/// `mac` as people write it.
pub fn format_mac(mac: &[u8]) -> String {
    let parts: Vec<String> = mac.iter().map(|byte| format!("{byte:02x}")).collect();
    parts.join(":")
}
