//! What the way of a packet costs, and what a guest's kernel does: nanoseconds of a core at its full speed, each with its source.
//!
//! The papers print few costs, but print where things saturate, and that says as much: whoever is the bottleneck of a way takes one over the rate. What
//! no source tells is marked as *assumed*, and is small beside what one does. No constant exists to make a figure match.
//!
//! What the host's scheduler costs (a switch, a wake-up, a migration) isn't here: whoever runs threads charges it.
//!
//! | what | ns | source |
//! |---|---|---|
//! | softirq of a request and of its answer's completion | 3800 | vSPACE, fig. 11: a core that does this alone is busy for 95.3 % at 250,000 requests/s |
//! | vhost, a direction | 2250 | vSPACE, fig. 2: one core with both queues saturates at 120,000 requests/s, so 8333 for softirq and vhost both ways |
//! | the guest, a request | 32,000 | vSPACE, fig. 4: 8 vCPUs saturate at 250,000 requests/s |
//! | of it the guest's kernel, a direction | 1900 | *assumed*: as the host's for the same packet, half of 3800 |
//! | nginx to memcached | 1.67 | vSPACE, fig. 11: that core is busy for 95.4 % at 150,000 requests/s |
//! | a packet, in bulk, a stage | 585 | vFlowComb, fig. 5: 1.71 million packets/s with all stages near |
//! | softirq away from its NIC's node | 248 | the same: 1.20 million (mapping G), so 833 |
//! | vhost or vCPU away from the stage before | 105 | the same: 1.45 million (mapping E), so 690 |
//! | the same with five guests at it | x 3.8 | the same: 1.02 million; told by whoever knows memory ([`crate::tenants::Tenants::set_pressure`]) |
//! | a cache line between cores of a group, a node, a socket, two sockets | 141, 210, 225, 337 | CPS, table 1: 7.08, 4.76, 4.45, 2.97 million increments/s |
//! | vCPU choice: HVM, PVM, Pload, CGsched | 103, 1835, 707, 1091 | CPS, table 2 |
//! | an exit that tells a device | 619 | Dall et al., ISCA 2016, table II: hypercall, 1300 cycles at 2.1 GHz |
//! | an interrupt in a guest | 741 | the same: virtual IRQ completion, 1556 cycles |
//! | to send an IPI in a guest | 1135 | the same: interrupt controller trap, 2384 cycles |
//! | a hard interrupt on the host | 683 | Landau et al., `HotOS` 2011: an exit's direct cost, 2000 cycles at 2.93 GHz, which it is for a core with a guest; *assumed* for others |
//! | the wire, one way | 5000 | *assumed*: a switch and two cables of 10 Gbit/s |
//! | what RPS leaves to the interrupt's core | 1900 | *assumed*: half of the softirq |
//! | a disk's block of 4 KiB | 100,000 | *assumed*: a data centre's NVMe |

use ostler_model::{CpuId, Nanos, NodeId, Topology};

/// How near two cores are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    /// The same core.
    Same,
    /// They share a last-level cache.
    Group,
    /// Or only a node.
    Node,
    /// Or nothing.
    Far,
}

/// Costs of a packet's way and of a guest's kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// One way between a client and the NIC.
    pub wire: Nanos,
    /// A hard interrupt.
    pub hardirq: Nanos,
    /// Softirq of a message: driver, stack, switch, tap; and the completion of what is sent back.
    pub softirq: Nanos,
    /// Of it, what is left to the interrupt's core if another core does the rest (RPS).
    pub steer: Nanos,
    /// Its penalty on another node than the NIC's.
    pub nic_far: Nanos,
    /// A message into a guest.
    pub vhost_rx: Nanos,
    /// A message out of a guest, with the host's stack and the driver.
    pub vhost_tx: Nanos,
    /// What a message costs more if the stage before was on a core of this distance.
    pub handoff: [Nanos; 4],
    /// An exit of a guest by which it tells a device.
    pub exit: Nanos,
    /// An interrupt in a guest.
    pub interrupt: Nanos,
    /// What sending an IPI takes of the sender.
    pub ipi: Nanos,
    /// A message through a guest's softirq.
    pub guest_rx: Nanos,
    /// A message's sending in a guest.
    pub guest_tx: Nanos,
    /// To choose a vCPU for a woken task, by rule: HVM, PVM, Pload, `CGsched`.
    pub choose: [Nanos; 4],
    /// To have a cache line from a core of this distance.
    pub line: [Nanos; 4],
    /// What a disk takes for a block.
    pub disk: Nanos,
    /// What a guest's kernel takes to ask for a block, and again when it comes.
    pub block: Nanos,
}

impl Default for Costs {
    fn default() -> Costs {
        Costs {
            wire: Nanos(5000),
            hardirq: Nanos(683),
            softirq: Nanos(3800),
            steer: Nanos(1900),
            nic_far: Nanos(248),
            vhost_rx: Nanos(2250),
            vhost_tx: Nanos(2250),
            // Within a node by the share that a line's way has there of its way between sockets: (210 - 141) / (337 - 141) of 105.
            handoff: [Nanos(0), Nanos(0), Nanos(37), Nanos(105)],
            exit: Nanos(619),
            interrupt: Nanos(741),
            ipi: Nanos(1135),
            guest_rx: Nanos(1900),
            guest_tx: Nanos(1900),
            choose: [Nanos(103), Nanos(1835), Nanos(707), Nanos(1091)],
            line: [Nanos(0), Nanos(141), Nanos(210), Nanos(337)],
            disk: Nanos(100_000),
            block: Nanos(1900),
        }
    }
}

impl Costs {
    /// Costs of bulk packets: those of a stage in which interrupts and wake-ups are shared by many.
    pub fn bulk() -> Costs {
        let stage = Nanos(585);
        Costs {
            softirq: stage,
            steer: Nanos(292),
            vhost_rx: stage,
            vhost_tx: stage,
            guest_rx: Nanos(292),
            guest_tx: Nanos(292),
            ..Costs::default()
        }
    }
}

/// Which core is where, by number.
#[derive(Clone, Debug, Default)]
pub struct Ground {
    cores: Vec<(u32, u32, bool)>,
}

impl Ground {
    /// Of a host.
    pub fn new(topology: &Topology) -> Ground {
        let count = topology.cpus.iter().map(|cpu| cpu.id.0 + 1).max();
        let mut cores = vec![(0, 0, false); count.unwrap_or(0) as usize];
        for cpu in &topology.cpus {
            cores[cpu.id.0 as usize] = (cpu.node.0, cpu.cache_group.0, true);
        }
        Ground { cores }
    }

    /// One past the highest core.
    pub fn len(&self) -> usize {
        self.cores.len()
    }

    /// Whether there are no cores.
    pub fn is_empty(&self) -> bool {
        self.cores.is_empty()
    }

    /// Whether there is such a core.
    pub fn has(&self, cpu: CpuId) -> bool {
        self.cores.get(cpu.0 as usize).is_some_and(|core| core.2)
    }

    /// The node of a core; the first where nobody knows it.
    pub fn node(&self, cpu: CpuId) -> NodeId {
        NodeId(self.cores.get(cpu.0 as usize).map_or(0, |core| core.0))
    }

    /// How near two cores are; as far as can be where one isn't known.
    pub fn distance(&self, a: CpuId, b: CpuId) -> Distance {
        let (Some(first), Some(second)) =
            (self.cores.get(a.0 as usize), self.cores.get(b.0 as usize))
        else {
            return Distance::Far;
        };
        if a == b {
            Distance::Same
        } else if first.0 != second.0 {
            Distance::Far
        } else if first.1 == second.1 {
            Distance::Group
        } else {
            Distance::Node
        }
    }
}
