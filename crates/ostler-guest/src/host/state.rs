//! What a guest says of itself, and whether it can be so.
//!
//! The guest may be anyone's, so a State is taken apart here, once, and everything that comes out is within the bounds the host knows: the
//! guest's vCPUs, its devices' queues. What's impossible is a lie, named and reported; what's merely false can't be told
//! apart here, which is why nothing the host charges or guarantees may rest on it.

use ostler_abi::guest::{IRQS_MAX, NICS_MAX, bits, wire};
use thiserror::Error;

use super::GuestLimits;

/// A network device's address, by which host and guest know it.
pub type Mac = [u8; 6];

/// A guest as its agent describes it; possible, but not proven.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestState {
    /// vCPUs that are online, ascending.
    pub online_vcpus: Vec<u32>,
    /// vCPUs workloads may use, ascending; all that are online when nothing is confined.
    pub applied_vcpus: Vec<u32>,
    /// Whether the agent confines workloads.
    pub confined: bool,
    /// Network devices.
    pub nics: Vec<GuestNic>,
    /// Where each vCPU's time went, by vCPU, ascending.
    pub vcpu_times: Vec<VcpuTime>,
    /// The guest's monotonic clock when it looked.
    pub monotonic_ns: u64,
    /// The grain of the vCPU times.
    pub time_resolution_ns: u64,
    /// Whether the agent may change anything.
    pub acts: bool,
}

/// A network device of a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestNic {
    /// Its name in the guest.
    pub name: String,
    /// Its address.
    pub mac: Mac,
    /// Its queue pairs; absent where the device doesn't say.
    pub queues: Option<QueueCount>,
    /// Its queues' interrupts.
    pub irqs: Vec<QueueIrq>,
}

/// Queue pairs of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueCount {
    /// In use.
    pub current: u32,
    /// There are.
    pub max: u32,
}

/// A queue's interrupt in the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueIrq {
    /// Its number.
    pub irq: u32,
    /// The queue pair's index.
    pub queue: u32,
    /// Whether it is the transmit half.
    pub transmit: bool,
    /// The vCPUs it may go to, ascending.
    pub vcpus: Vec<u32>,
}

/// A vCPU's time since the guest booted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VcpuTime {
    /// The vCPU.
    pub vcpu: u32,
    /// Running anything.
    pub busy_ns: u64,
    /// Waiting for a pCPU.
    pub steal_ns: u64,
}

/// What can't be so.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Lie {
    /// The stream isn't in our frames.
    #[error("it doesn't speak the protocol: {0}")]
    Frame(#[from] ostler_abi::guest::frame::FrameError),
    /// A reply that nobody asked for, or to something else.
    #[error("a reply that was never asked for")]
    Unasked,
    /// A reply of the wrong kind.
    #[error("the reply doesn't fit the request")]
    WrongReply,
    /// A set of vCPUs that can't be.
    #[error("{what}: {error}")]
    Vcpus {
        /// Which set.
        what: &'static str,
        /// What is wrong with it.
        error: bits::BitsError,
    },
    /// Nothing runs nowhere.
    #[error("{what} names no vCPU")]
    NoVcpu {
        /// Which set.
        what: &'static str,
    },
    /// More queues than the host gave the device.
    #[error("NIC with {current} of {max} queue pairs; the host gave its devices at most {limit}")]
    Queues {
        /// Claimed to be in use.
        current: u32,
        /// Claimed to be there.
        max: u32,
        /// What the host knows.
        limit: u32,
    },
    /// More of something than a State may carry, or a field that isn't what it should be.
    #[error("malformed {what}")]
    Malformed {
        /// Of what.
        what: &'static str,
    },
    /// Time doesn't.
    #[error("{what} went back from {before_ns} ns to {after_ns} ns")]
    ClockBack {
        /// Which clock.
        what: &'static str,
        /// Said first.
        before_ns: u64,
        /// Said later.
        after_ns: u64,
    },
}

/// The state in `wire`, where it is possible for a guest of these limits that was in `earlier` before, on the same connection.
pub fn validate(
    wire: &wire::State,
    acts: bool,
    limits: GuestLimits,
    earlier: Option<&GuestState>,
) -> Result<GuestState, Lie> {
    if wire.nics.len() > NICS_MAX {
        return Err(Lie::Malformed { what: "NIC list" });
    }
    if wire.nics.iter().map(|nic| nic.irqs.len()).sum::<usize>() > IRQS_MAX {
        return Err(Lie::Malformed {
            what: "interrupt list",
        });
    }
    let state = GuestState {
        online_vcpus: vcpu_set("online set", &wire.online_vcpus, limits)?,
        applied_vcpus: vcpu_set("applied set", &wire.applied_vcpus, limits)?,
        confined: wire.confined,
        nics: wire
            .nics
            .iter()
            .map(|nic| validate_nic(nic, limits))
            .collect::<Result<_, _>>()?,
        vcpu_times: validate_times(&wire.vcpu_times, limits)?,
        monotonic_ns: wire.monotonic_ns,
        time_resolution_ns: wire.time_resolution_ns,
        acts,
    };
    if let Some(earlier) = earlier {
        forward("the clock", earlier.monotonic_ns, state.monotonic_ns)?;
        for time in &state.vcpu_times {
            let at = earlier
                .vcpu_times
                .binary_search_by_key(&time.vcpu, |earlier| earlier.vcpu);
            if let Ok(at) = at {
                let before = earlier.vcpu_times[at];
                forward("a vCPU's busy time", before.busy_ns, time.busy_ns)?;
                forward("a vCPU's steal time", before.steal_ns, time.steal_ns)?;
            }
        }
    }
    Ok(state)
}

fn vcpu_set(what: &'static str, map: &[u8], limits: GuestLimits) -> Result<Vec<u32>, Lie> {
    let vcpus = bits::to_ids(map, limits.vcpus).map_err(|error| Lie::Vcpus { what, error })?;
    if vcpus.is_empty() {
        return Err(Lie::NoVcpu { what });
    }
    Ok(vcpus)
}

fn validate_nic(nic: &wire::Nic, limits: GuestLimits) -> Result<GuestNic, Lie> {
    // The kernel's own rule for names, less what a terminal might act on.
    let named =
        (1..=15).contains(&nic.name.len()) && nic.name.bytes().all(|b| b.is_ascii_graphic());
    if !named {
        return Err(Lie::Malformed { what: "NIC name" });
    }
    let mac = Mac::try_from(nic.mac.as_slice()).map_err(|_| Lie::Malformed { what: "MAC" })?;
    let (current, max) = (nic.combined_current, nic.combined_max);
    let queues = match (current, max) {
        (0, 0) => None,
        _ if current == 0 || current > max || max > limits.max_queues => {
            return Err(Lie::Queues {
                current,
                max,
                limit: limits.max_queues,
            });
        }
        _ => Some(QueueCount { current, max }),
    };
    let irqs = nic.irqs.iter().map(|irq| {
        Ok(QueueIrq {
            irq: irq.irq,
            queue: irq.queue,
            transmit: irq.transmit,
            // An interrupt may be set to vCPUs that could be plugged in later; those aren't ours to judge.
            vcpus: bits::to_ids(&irq.vcpus, ostler_abi::guest::VCPUS_MAX)
                .map_err(|error| Lie::Vcpus {
                    what: "interrupt's set",
                    error,
                })?
                .into_iter()
                .filter(|&vcpu| vcpu < limits.vcpus)
                .collect(),
        })
    });
    Ok(GuestNic {
        name: nic.name.clone(),
        mac,
        queues,
        irqs: irqs.collect::<Result<_, Lie>>()?,
    })
}

fn validate_times(times: &[wire::VcpuTime], limits: GuestLimits) -> Result<Vec<VcpuTime>, Lie> {
    let ascending = times.is_sorted_by(|a, b| a.vcpu < b.vcpu);
    if !ascending || times.last().is_some_and(|last| last.vcpu >= limits.vcpus) {
        return Err(Lie::Malformed {
            what: "vCPU time list",
        });
    }
    Ok(times
        .iter()
        .map(|time| VcpuTime {
            vcpu: time.vcpu,
            busy_ns: time.busy_ns,
            steal_ns: time.steal_ns,
        })
        .collect())
}

fn forward(what: &'static str, before_ns: u64, after_ns: u64) -> Result<(), Lie> {
    if after_ns < before_ns {
        return Err(Lie::ClockBack {
            what,
            before_ns,
            after_ns,
        });
    }
    Ok(())
}
