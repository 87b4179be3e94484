//! What goes wrong: to the steward and its guests once the cells are over, or in every cell at a time.

use std::fmt;

use ostler_model::{Class, Nanos};
use serde::{Deserialize, Serialize};

/// A kind of fault.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// The steward is killed at random moments while it acts; `ostler undo` must leave the host as it was found.
    Kill,
    /// A guest's QEMU is killed.
    GuestDies,
    /// A guest's QEMU is stopped, and with it its QMP monitor.
    QmpHangs,
    /// Someone takes a guest's threads out of the steward's cgroups and removes these.
    CgroupVanishes,
    /// Someone sets an interrupt's affinity and a cpuset that are the steward's.
    ForeignAffinity,
    /// The guest's agent is silent, slow, sends noise, or lies.
    AgentMisbehaves,
    /// The steward is told to end while the host is overloaded.
    Overload,
    /// The host's kernel changes its own running code, over and over, while its cores interrupt each other.
    CodeChanges,
    /// Not a fault: tests of crates that need this host's kernel run in it.
    KernelTests,
}

impl FaultKind {
    /// Every kind, by the name that scenarios and events use.
    pub const ALL: [(&'static str, FaultKind); 9] = [
        ("kill", FaultKind::Kill),
        ("guest-dies", FaultKind::GuestDies),
        ("qmp-hangs", FaultKind::QmpHangs),
        ("cgroup-vanishes", FaultKind::CgroupVanishes),
        ("foreign-affinity", FaultKind::ForeignAffinity),
        ("agent-misbehaves", FaultKind::AgentMisbehaves),
        ("overload", FaultKind::Overload),
        ("code-changes", FaultKind::CodeChanges),
        ("kernel-tests", FaultKind::KernelTests),
    ];

    /// The class of guest that it is done to.
    pub fn needs(self) -> Option<Class> {
        match self {
            FaultKind::GuestDies | FaultKind::QmpHangs => Some(Class::BestEffort),
            FaultKind::Kill
            | FaultKind::CgroupVanishes
            | FaultKind::ForeignAffinity
            | FaultKind::AgentMisbehaves
            | FaultKind::Overload => Some(Class::LatencyCritical),
            FaultKind::CodeChanges | FaultKind::KernelTests => None,
        }
    }

    /// Seconds that it takes each time, on a machine that isn't quiet.
    pub(crate) fn expected_s(self) -> f64 {
        match self {
            FaultKind::Kill => 5.0,
            FaultKind::GuestDies => 40.0,
            FaultKind::QmpHangs | FaultKind::CgroupVanishes | FaultKind::ForeignAffinity => 20.0,
            FaultKind::AgentMisbehaves
            | FaultKind::Overload
            | FaultKind::CodeChanges
            | FaultKind::KernelTests => 60.0,
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = FaultKind::ALL.iter().find(|(_, kind)| kind == self);
        f.write_str(named.map_or("fault", |(name, _)| name))
    }
}

/// Something that goes wrong, and must not do harm.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Fault {
    /// What.
    pub kind: FaultKind,
    /// How often.
    pub times: u32,
    /// Requests per second that guests which answer any get meanwhile; 0 for none.
    pub rate: u32,
    /// Of kernel tests, the programs to run, by the names that cargo knows them by; all unless given.
    #[serde(default)]
    pub programs: Option<Vec<String>>,
    /// The steward's configuration: the scenario's `[steward]` with this fault's own keys over it.
    pub steward: toml::Table,
}

/// Something that goes wrong in every cell, at a time: simulated only.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct TimedFault {
    /// When, since the cell's load began.
    pub at: Nanos,
    /// For how long; until the cell's end where not given.
    pub lasts: Option<Nanos>,
    /// What.
    pub kind: TimedKind,
}

/// What may go wrong at a time.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub enum TimedKind {
    /// Interrupts are lost.
    LostInterrupts {
        /// Those of this guest; the NIC's where none is named.
        guest: Option<String>,
        /// The share that is lost, above 0 up to 1.
        share: f64,
    },
    /// A guest is no more.
    GuestDies {
        /// Which.
        guest: String,
    },
    /// A guest's agent does nothing that it is asked, and says what isn't so.
    AgentLies {
        /// Whose.
        guest: String,
    },
    /// A guest's agent does and says nothing.
    AgentSilent {
        /// Whose.
        guest: String,
    },
    /// A host is no more, with all its guests.
    HostFails {
        /// Which of the fleet's, from 0.
        host: u32,
    },
}

impl TimedKind {
    /// Every kind's name.
    pub const NAMES: [&str; 5] = [
        "lost-interrupts",
        "guest-dies",
        "agent-lies",
        "agent-silent",
        "host-fails",
    ];

    /// Its name in scenarios.
    pub fn name(&self) -> &'static str {
        let at = match self {
            TimedKind::LostInterrupts { .. } => 0,
            TimedKind::GuestDies { .. } => 1,
            TimedKind::AgentLies { .. } => 2,
            TimedKind::AgentSilent { .. } => 3,
            TimedKind::HostFails { .. } => 4,
        };
        TimedKind::NAMES[at]
    }
}
