//! The guest's network devices: how many queues each uses, and which vCPUs serve them.
//!
//! With `V` the vCPUs that workloads use, queue `k`, if it is in use, interrupts vCPU `V[k mod |V|]`, and what runs on vCPU `V[i]`
//! transmits by queue `i mod n`: with as many queues as vCPUs each pair stays on its vCPU.
//!
//! The order matters: virtio_net spreads interrupts and XPS over all vCPUs anew whenever its queue count changes. So steering follows
//! every change of the count, and a restore sets the count first and the rest after.
//!
//! The agent's work is done on vCPUs that the guest is short of just then, so what stays the same while a device does is learned once
//! ([`Nics`]): /proc/interrupts alone takes the kernel longer to write than the rest of an answer to the host.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use ostler_abi::guest::{IRQS_MAX, NICS_MAX};
use tracing::warn;

use super::Done;
use super::kernel::{Channels, Kernel};
use super::ledger::Ledger;
use crate::cpulist;

const NET: &str = "/sys/class/net";

/// For how long what was learned of devices is believed: someone may give one another MAC, and a guest that was suspended may have
/// got other interrupts.
const LEARNED_FOR: Duration = Duration::from_secs(10);

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

    /// Whether the interrupt still is that queue's of `device`: the kernel has a folder there by each handler's name.
    fn holds(&self, kernel: &impl Kernel, device: &str) -> bool {
        let direction = if self.transmit { "output" } else { "input" };
        let (irq, queue) = (self.irq, self.queue);
        kernel.exists(&format!("/proc/irq/{irq}/{device}-{direction}.{queue}"))
    }
}

/// A device with hardware, or what passes for it, behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nic {
    pub name: String,
    pub mac: [u8; 6],
    /// The hardware, by the name it has on its bus.
    device: String,
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

/// What is known of the devices.
#[derive(Debug, Default)]
pub struct Nics {
    /// By name, with the interface's index, which the kernel gives to no other. What has no hardware is remembered as nothing.
    known: BTreeMap<String, (u32, Option<Nic>)>,
    learned: Option<Instant>,
}

impl Nics {
    /// All devices as they are now. Bridges, bonds and VLANs aren't among them, though they may carry a device's MAC.
    pub fn all(&mut self, kernel: &impl Kernel, now: Instant) -> Vec<Nic> {
        if self
            .learned
            .is_none_or(|learned| now.saturating_duration_since(learned) >= LEARNED_FOR)
        {
            self.forget();
            self.learned = Some(now);
        }
        let names = kernel.list(NET).unwrap_or_default();
        self.known.retain(|name, _| names.contains(name));
        let mut by_device = None;
        let mut nics = Vec::new();
        for name in names {
            // None has number 0: what is gone, or was never there but in a tree of files, is looked at, not believed to be as it was.
            let index = kernel.interface_index(&name).unwrap_or(0);
            if self
                .known
                .get(&name)
                .is_none_or(|(known, _)| index == 0 || *known != index)
            {
                let nic = learn(kernel, &name, &mut by_device);
                self.known.insert(name.clone(), (index, nic));
            }
            let Some((_, Some(nic))) = self.known.get(&name) else {
                continue;
            };
            if nics.len() == NICS_MAX {
                break;
            }
            nics.push(Nic {
                channels: kernel.channels(&name).ok(),
                ..nic.clone()
            });
        }
        nics
    }

    /// What was learned didn't hold, or is old.
    pub fn forget(&mut self) {
        self.known.clear();
        self.learned = None;
    }
}

/// All of `name` but its queue count, if there is hardware behind it. The interrupts are asked for once for all.
fn learn(
    kernel: &impl Kernel,
    name: &str,
    by_device: &mut Option<BTreeMap<String, Vec<QueueIrq>>>,
) -> Option<Nic> {
    let device = kernel.link_name(&format!("{NET}/{name}/device")).ok()?;
    let address = kernel.read(&format!("{NET}/{name}/address")).ok()?;
    let irqs = by_device
        .get_or_insert_with(|| queue_irqs(kernel))
        .get(&device);
    Some(Nic {
        name: name.to_owned(),
        mac: parse_mac(&address)?,
        irqs: irqs.cloned().unwrap_or_default(),
        device,
        channels: None,
    })
}

/// Steers the interrupts and the transmit choice of the queues of `nic` that are in use to `vcpus`: each of others would cost what
/// one in use does, and nobody would have anything of it. What the kernel refuses is counted and passed over: a queue
/// served from afar costs speed, and is no reason not to do the rest. An interrupt that isn't the queue's any more is left alone, and
/// says that `nics` must be learned anew.
pub fn steer(
    kernel: &impl Kernel,
    ledger: &mut Ledger,
    nics: &mut Nics,
    nic: &Nic,
    vcpus: &[u32],
) -> Done {
    let mut done = Done::default();
    for irq in nic.irqs_in_use() {
        let path = irq.path();
        let Ok(current) = kernel.read(&path) else {
            continue;
        };
        let wanted = vcpus[irq.queue as usize % vcpus.len()];
        if cpulist::parse_list(&current) == Some(vec![wanted]) {
            continue;
        }
        if irq.holds(kernel, &nic.device) {
            done.count(ledger.write(kernel, &path, &current, &wanted.to_string()));
        } else {
            nics.forget();
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
        let before = snapshot(kernel, nic, count);
        kernel.set_channels(&nic.name, count)?;
        for (path, found) in before {
            let now = kernel.read(&path).ok();
            match (found, now) {
                (Some(found), now) => ledger.record(&path, &found, now),
                (None, Some(now)) => ledger.returned(&path, &now),
                (None, None) => {}
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

    /// Goes back to the counts found, `nics` being the devices now; the count returned is of those left alone. What the driver resets
    /// on the way is as it was before after it.
    pub fn restore(&mut self, kernel: &impl Kernel, nics: &[Nic]) -> u32 {
        let mut left = 0;
        for (name, (found, ours)) in std::mem::take(&mut self.entries) {
            let Some(nic) = nics.iter().find(|nic| nic.name == name) else {
                continue; // Unplugged.
            };
            let Some(channels) = nic.channels.filter(|now| now.combined != found) else {
                continue;
            };
            let before = snapshot(kernel, nic, found);
            if channels.combined != ours || kernel.set_channels(&name, found).is_err() {
                warn!(nic = name, "queue count left alone");
                left += 1;
                continue;
            }
            for (path, before) in before {
                let now = kernel.read(&path).ok();
                if let (Some(before), Some(now)) = (before, now)
                    && before != now
                    && let Err(error) = kernel.write(&path, &before)
                {
                    warn!(path, %error, "couldn't be put back");
                    left += 1;
                }
            }
        }
        left
    }
}

/// All settings of `nic` that a change to `count` pairs may reset: the driver spreads the interrupts of queues that will be in use
/// (virtnet_set_affinity() of drivers/net/virtio_net.c), and the kernel forgets the transmit choice of those that won't be
/// (netif_set_real_num_tx_queues() of net/core/dev.c), and has no file for it until they are. `None` is such a file.
fn snapshot(kernel: &impl Kernel, nic: &Nic, count: u32) -> Vec<(String, Option<String>)> {
    let queues = nic.channels.map_or(0, |channels| channels.combined_max) as usize;
    nic.irqs
        .iter()
        .filter(|irq| irq.queue < count)
        .map(QueueIrq::path)
        .chain((0..queues.min(IRQS_MAX)).map(|queue| xps_path(&nic.name, queue)))
        .map(|path| {
            let found = kernel.read(&path).ok();
            (path, found)
        })
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
