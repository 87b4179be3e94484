//! What a world tells of a run: JSON lines, one event each, in a file that is all a report needs. The lab's emulated host tells all of them; the simulator,
//! which has no boot and no load generator, those that say what came of it.

use std::fmt;
use std::path::PathBuf;

use ostler_model::{CpuSet, GuestBoost};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::report::Clock;

fn wall() -> Clock {
    Clock::Wall
}

/// An event and when it happened.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Stamped {
    /// Milliseconds since the emulated host's boot, on its clock.
    pub t_ms: u64,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

/// One policy under one load in one round.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    /// Position in the program, from 0.
    pub index: u32,
    /// Round, from 0.
    pub round: u32,
    /// The policy's name.
    pub policy: String,
    /// Which of the scenario's loads.
    pub load: u32,
    /// The guest that it loads.
    pub guest: String,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} / {} / round {}",
            self.policy,
            self.guest,
            self.round + 1
        )
    }
}

/// What happened.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A run begins. Said by the lab itself, not by the host, as is the next.
    Run {
        /// Revision of the sources.
        revision: String,
        /// When, in words.
        started: String,
        /// What emulates the host.
        qemu: String,
        /// Whose time the host lives in. Records from before there was a choice lack it.
        #[serde(default = "wall")]
        clock: Clock,
    },
    /// What a simulated run is drawn from: whoever has the same has the same cells, and may go on with a run that was cut off.
    Simulates {
        /// The scenario's file, as it would be written.
        scenario: String,
        /// The seed.
        seed: u64,
        /// Whether its books are kept twice.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        audited: bool,
    },
    /// The lab had to boot the host again.
    BootRetry {
        /// Why.
        why: String,
        /// The serial log of the boot that failed.
        serial_log: PathBuf,
    },
    /// The emulated host runs our code.
    Up {
        /// `uname -r`.
        kernel: String,
        /// CPUs online.
        cpus: u32,
    },
    /// Set-up came to another stage.
    Stage {
        /// Which.
        name: String,
    },
    /// The pNIC is ready.
    Pnic {
        /// Its interface.
        name: String,
        /// Its queues.
        queues: u32,
        /// Its interrupt lines, as in `msi_irqs`, each with its name.
        irqs: Vec<(u32, String)>,
    },
    /// A guest is ready.
    GuestUp {
        /// Its name.
        name: String,
        /// QEMU's process.
        pid: u32,
        /// Its tap.
        tap: String,
        /// Seconds from start to ready.
        boot_s: f64,
        /// 1, or 2 where it had to be started again.
        attempt: u32,
    },
    /// A guest hung while booting, or ended; it is started again once.
    GuestLost {
        /// Its name.
        name: String,
        /// What happened, with its last words.
        why: String,
    },
    /// All set-up is done.
    Ready,
    /// A cell begins.
    CellStart {
        /// Which.
        cell: Cell,
        /// Unix time on the host's clock, so that records in that time can be laid beside events.
        unix_ms: u64,
    },
    /// A line from the load generator.
    Load {
        /// Index of the cell.
        cell: u32,
        /// [`ostler_load::lines::Line`].
        line: Value,
    },
    /// Response times of the loaded guest as the steward saw them on its tap.
    Tap {
        /// Index of the cell.
        cell: u32,
        /// P50 and P95 of each period under load that saw responses.
        periods_us: Vec<(f64, f64)>,
    },
    /// What the steward's scheduler of vCPUs had done by the end of some of its periods: of the last before the load, and of a choice of those
    /// under load, the last among them. Records from before it was told lack it.
    Boost {
        /// Index of the cell.
        cell: u32,
        /// In order.
        periods: Vec<BoostPeriod>,
    },
    /// A change of the steward's plan, from its record, told when the cell's load is over.
    Steward {
        /// Index of the cell.
        cell: u32,
        /// A line of `ostler explain --json`.
        record: Value,
    },
    /// Once a second: the host seen from outside the steward.
    Sample {
        /// Index of the cell; `None` between cells.
        cell: Option<u32>,
        /// Busy share of each CPU since the sample before.
        busy: Vec<f32>,
        /// Guests.
        guests: Vec<GuestSample>,
    },
    /// A cell ended.
    CellEnd {
        /// Index of the cell.
        cell: u32,
        /// What was counted in it.
        counters: Counters,
        /// What went wrong in it; empty for a good cell.
        problems: Vec<String>,
    },
    /// A fault begins.
    FaultStart {
        /// Position in the scenario, from 0.
        fault: u32,
        /// Its kind, by its name.
        kind: String,
    },
    /// A fault is done once more.
    FaultTime {
        /// Position in the scenario, from 0.
        fault: u32,
        /// How often it was done before.
        time: u32,
    },
    /// A fault is over.
    FaultEnd {
        /// Position in the scenario, from 0.
        fault: u32,
        /// Its kind, by its name.
        kind: String,
        /// How often all was as it should be.
        passed: u32,
        /// How often it was done.
        of: u32,
        /// Each time that something wasn't, what.
        failures: Vec<String>,
        /// What was seen, for a reader.
        notes: Vec<String>,
        /// How long it took, on the emulated host's clock.
        seconds: f64,
    },
    /// Something went wrong outside cells.
    Problem {
        /// What.
        what: String,
    },
    /// The program is complete.
    Done,
}

/// A guest at one instant.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct GuestSample {
    /// Its name.
    pub name: String,
    /// CPU time of its cgroup since the sample before.
    pub cpu_ms: u64,
    /// The cores its cgroup may use.
    pub cpus: CpuSet,
    /// Whether its cgroup is frozen.
    pub frozen: bool,
    /// Whether its cgroup has only what others leave (`cpu.idle`).
    #[serde(default)]
    pub idle: bool,
    /// Rounds of work that it says it has done, if it counts.
    pub work: Option<u64>,
}

/// What the scheduler of vCPUs had done by the end of a period.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct BoostPeriod {
    /// Unix time on the host's clock.
    pub unix_ms: u64,
    /// For and to each guest, since it came. Delays are kept of the first and the last period only.
    pub guests: Vec<GuestBoost>,
}

/// What was counted in a cell, from procfs and cgroups, independent of the steward.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct Counters {
    /// Length of the cell's load.
    pub seconds: f64,
    /// Times that cores under test began to run a task.
    pub context_switches: u64,
    /// Interrupts on cores under test: devices, and IPIs and timers apart.
    pub device_irqs: u64,
    /// Rescheduling and function-call IPIs on cores under test.
    pub ipis: u64,
    /// Local timer interrupts on cores under test.
    pub timer_irqs: u64,
    /// `NET_RX` softirqs on cores under test.
    pub net_rx_softirqs: u64,
    /// KVM exits of all guests; `None` where debugfs doesn't tell.
    pub kvm_exits: Option<u64>,
    /// Busy time of the cores under test.
    pub busy_core_seconds: f64,
    /// Energy of all cores, J; `None` where nobody counts it.
    #[serde(default)]
    pub energy_j: Option<f64>,
    /// Of a host with far memory; `None` where nobody looks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Box<MemoryCounters>>,
    /// Per guest.
    pub guests: Vec<GuestCounters>,
    /// What the emulated machine counted on cores under test; `None` on wall time, where nobody counts it.
    #[serde(default)]
    pub machine: Option<MachineCounters>,
}

/// What became of a host's near memory.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct MemoryCounters {
    /// Bytes that moved between near and far.
    pub moved_bytes: u64,
    /// The share of near memory that nobody had, in the mean.
    pub local_unused: f64,
}

/// What the emulated machine counted itself (`docs/host-pmu.md`), over several cores.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct MachineCounters {
    /// The cores' own times, added up.
    pub core_seconds: f64,
    /// Of them, halted.
    pub halted_s: f64,
    /// Instructions executed.
    pub instructions: u64,
    /// Accesses by what served them, in the order of [`SERVED`]; `None` where caches aren't modelled.
    pub served: Option<[u64; SERVED.len()]>,
    /// Time that accesses took beyond hits of the first cache.
    pub stall_s: f64,
    /// Of it, waiting for memory whose bandwidth was used up.
    pub queued_s: f64,
    /// Snoops that the accesses took.
    pub snoops: u64,
    /// Bytes read from and written back to each memory node.
    pub node_bytes: Vec<u64>,
}

/// What serves an access, nearest first.
pub const SERVED: [&str; 7] = ["L1", "L2", "L3", "peer", "local", "remote", "pool"];

impl MachineCounters {
    /// Adds others: another core's, or another round's.
    pub fn add(&mut self, more: &MachineCounters) {
        self.core_seconds += more.core_seconds;
        self.halted_s += more.halted_s;
        self.instructions += more.instructions;
        if let Some(more) = &more.served {
            let mine = self.served.get_or_insert_default();
            for (mine, more) in mine.iter_mut().zip(more) {
                *mine += more;
            }
        }
        self.stall_s += more.stall_s;
        self.queued_s += more.queued_s;
        self.snoops += more.snoops;
        let nodes = self.node_bytes.len().max(more.node_bytes.len());
        self.node_bytes.resize(nodes, 0);
        for (mine, more) in self.node_bytes.iter_mut().zip(&more.node_bytes) {
            *mine += more;
        }
    }
}

/// What was counted of a guest in a cell.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct GuestCounters {
    /// Its name.
    pub name: String,
    /// CPU time of its threads.
    pub cpu_seconds: f64,
    /// Migrations of its threads.
    pub migrations: u64,
    /// Context switches of its threads.
    pub context_switches: u64,
    /// Work it did, if it counts it, in its own unit. Of a guest that says so now and then, by how much it did in the time between its words.
    pub work: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A flattened event goes through a buffer that knows no numeric keys.
    #[test]
    fn interrupts_read_back() {
        let stamped = Stamped {
            t_ms: 5,
            event: Event::Pnic {
                name: "eth0".into(),
                queues: 1,
                irqs: vec![(55, "eth0-rx-0".into())],
            },
        };
        let line = serde_json::to_string(&stamped).expect("JSON");
        assert_eq!(
            serde_json::from_str::<Stamped>(&line).expect("an event"),
            stamped
        );
    }

    #[test]
    fn a_line_is_flat_and_reads_back() {
        let stamped = Stamped {
            t_ms: 5,
            event: Event::GuestLost {
                name: "lc".into(),
                why: "hung".into(),
            },
        };
        let line = serde_json::to_string(&stamped).expect("JSON");
        assert_eq!(
            line,
            r#"{"t_ms":5,"event":"guest_lost","name":"lc","why":"hung"}"#
        );
        assert_eq!(
            serde_json::from_str::<Stamped>(&line).expect("an event"),
            stamped
        );
    }
}
