//! The network of the emulated host: the client's end of the cable in a namespace of its own; the pNIC, a bridge and the
//! guests' taps in the host's. Packets go pNIC queue -> softirq -> bridge -> tap -> vhost -> guest, as on real hosts.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use ostler_model::{CpuId, CpuSet};

use super::{read, sh, write};
use crate::machine;
use crate::scenario::{Guest, Host};

/// The client's network namespace.
pub const CLIENT: &str = "client";
/// The bridge.
const BRIDGE: &str = "br0";
/// The client's address; guests follow from `machine::guest_address`.
const CLIENT_ADDRESS: &str = "10.77.0.1/24";

/// The pNIC.
#[derive(Clone, Debug)]
pub struct Pnic {
    /// Its interface.
    pub name: String,
    client: String,
}

impl Pnic {
    /// Finds the two ends of the cable and sets them up.
    pub fn set_up(host: &Host) -> anyhow::Result<Pnic> {
        let mut ends = igb_interfaces()?;
        anyhow::ensure!(
            ends.len() == 2,
            "there are {} igb interfaces, not 2: {ends:?}",
            ends.len()
        );
        let client = ends.remove(1);
        let pnic = Pnic {
            name: ends.remove(0),
            client,
        };

        let ip = |words: &str| sh("ip", &words.split(' ').collect::<Vec<_>>());
        ip("link set lo up")?;
        ip(&format!(
            "link add {BRIDGE} type bridge stp_state 0 forward_delay 0 mcast_snooping 0"
        ))?;
        ip(&format!("link set {} master {BRIDGE}", pnic.name))?;
        ip(&format!("netns add {CLIENT}"))?;
        ip(&format!("link set {} netns {CLIENT}", pnic.client))?;
        ip(&format!("-n {CLIENT} link set lo up"))?;
        ip(&format!(
            "-n {CLIENT} addr add {CLIENT_ADDRESS} dev {}",
            pnic.client
        ))?;
        let client = |words: &[&str]| sh("ip", &[&["netns", "exec", CLIENT], words].concat());
        client(&["ethtool", "-L", &pnic.client, "combined", "1"])?;
        // Sockets for ICMP echo, which by default nobody may open.
        client(&["sysctl", "-qw", "net.ipv4.ping_group_range=0 0"])?;
        pnic.set_queues(host.pnic_queues)?;
        for up in [
            format!("link set {} up", pnic.name),
            format!("link set {BRIDGE} up"),
            format!("-n {CLIENT} link set {} up", pnic.client),
        ] {
            ip(&up)?;
        }
        pnic.spread(host)?;
        Ok(pnic)
    }

    /// Makes this many queues, and lets RSS use all of them alike.
    pub fn set_queues(&self, queues: u32) -> anyhow::Result<()> {
        let spread = || sh("ethtool", &["-X", &self.name, "equal", &queues.to_string()]);
        let now = self.queues()?;
        // igb refuses fewer queues than its indirection table names, so the table shrinks first and grows last.
        if queues < now {
            spread()?;
        }
        if queues != now {
            sh(
                "ethtool",
                &["-L", &self.name, "combined", &queues.to_string()],
            )?;
        }
        spread()?;
        Ok(())
    }

    /// The queues there are.
    pub fn queues(&self) -> anyhow::Result<u32> {
        let folder = format!("/sys/class/net/{}/queues", self.name);
        let entries =
            std::fs::read_dir(&folder).with_context(|| format!("could not list {folder}"))?;
        let rx = entries
            .flatten()
            .filter(|e| e.file_name().to_string_lossy().starts_with("rx-"))
            .count();
        Ok(u32::try_from(rx)?)
    }

    /// Interrupt lines and their names. Lines without a handler have none.
    pub fn irqs(&self) -> anyhow::Result<BTreeMap<u32, String>> {
        irqs_of(&format!("/sys/class/net/{}/device/msi_irqs", self.name))
    }

    /// The core that one of its interrupts starts out on.
    pub fn home(&self, irq: u32, host: &Host) -> anyhow::Result<Option<CpuId>> {
        let names = self.irqs()?;
        names.get(&irq).map(|name| home(name, host)).transpose()
    }

    /// Where the machine starts out: each queue's interrupts on a core under test in turn, the client's on the client's
    /// cores, no receive or transmit steering.
    pub fn spread(&self, host: &Host) -> anyhow::Result<()> {
        for (irq, name) in self.irqs()? {
            set_affinity(irq, &CpuSet::single(home(&name, host)?))?;
        }
        let queues = format!("/sys/class/net/{}/queues", self.name);
        for queue in std::fs::read_dir(&queues)
            .with_context(|| format!("could not list {queues}"))?
            .flatten()
        {
            for file in ["rps_cpus", "xps_cpus"] {
                let path = queue.path().join(file);
                if path.exists() {
                    // An empty mask means no steering. igb with one queue has no XPS and refuses; then there is none.
                    let _ = write(&path, "0");
                }
            }
        }
        let text = read("/proc/interrupts")?;
        for (irq, _) in named_irqs(&text)
            .filter(|(_, name)| name.split('-').next() == Some(self.client.as_str()))
        {
            set_affinity(irq, &host.client)?;
        }
        Ok(())
    }
}

/// The core that a queue's interrupts start out on, by the interrupt's name.
fn home(name: &str, host: &Host) -> anyhow::Result<CpuId> {
    let queue = name
        .rsplit('-')
        .next()
        .and_then(|n| n.parse::<usize>().ok())
        .unwrap_or(0);
    let cores = host.under_test.len() as usize;
    let core = host.under_test.iter().nth(queue % cores);
    core.context("no core under test")
}

fn set_affinity(irq: u32, cpus: &CpuSet) -> anyhow::Result<()> {
    write(
        format!("/proc/irq/{irq}/smp_affinity_list"),
        &cpus.to_string(),
    )
}

/// Interfaces driven by igb, in the order of their slots.
fn igb_interfaces() -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/sys/class/net")
        .context("could not list /sys/class/net")?
        .flatten()
    {
        let device = entry.path().join("device");
        let driver = std::fs::read_link(device.join("driver")).unwrap_or_default();
        if driver.ends_with("igb") {
            let slot = std::fs::canonicalize(&device)?;
            found.push((slot, entry.file_name().to_string_lossy().into_owned()));
        }
    }
    found.sort();
    Ok(found.into_iter().map(|(_, name)| name).collect())
}

fn irqs_of(folder: &str) -> anyhow::Result<BTreeMap<u32, String>> {
    let text = read("/proc/interrupts")?;
    let named: BTreeMap<u32, String> = named_irqs(&text).collect();
    let entries = std::fs::read_dir(folder).with_context(|| format!("could not list {folder}"))?;
    Ok(entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter_map(|irq| Some((irq, named.get(&irq)?.clone())))
        .collect())
}

/// Numbered lines of `/proc/interrupts` and what their last word calls them.
fn named_irqs(text: &str) -> impl Iterator<Item = (u32, String)> + '_ {
    text.lines().filter_map(|line| {
        let (irq, rest) = line.trim_start().split_once(':')?;
        Some((
            irq.parse().ok()?,
            rest.split_whitespace().last()?.to_owned(),
        ))
    })
}

/// Makes a guest's tap and puts it onto the bridge.
pub fn make_tap(guest: &Guest) -> anyhow::Result<String> {
    let tap = machine::tap(guest);
    if Path::new("/sys/class/net").join(&tap).exists() {
        return Ok(tap); // of an earlier start of the guest
    }
    let mut words = vec!["tuntap", "add", &tap, "mode", "tap", "vnet_hdr"];
    if guest.queues > 1 {
        words.push("multi_queue");
    }
    sh("ip", &words)?;
    sh("ip", &["link", "set", &tap, "master", BRIDGE, "up"])?;
    Ok(tap)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupts_are_named_by_their_last_word() {
        let text = "           CPU0       CPU1\n  45:   3   9  PCI-MSIX-0000:01:00.0    1-edge      eth0-rx-0\n\
                    LOC:  100  200   Local timer interrupts\n";
        assert_eq!(
            named_irqs(text).collect::<Vec<_>>(),
            [(45, "eth0-rx-0".to_owned())]
        );
    }
}
