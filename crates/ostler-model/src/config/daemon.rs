//! Where the daemon finds guests and keeps its files: what the operator sets but no decision depends on.

use serde::{Deserialize, Serialize};

use crate::{Bytes, Nanos};

/// Where the daemon finds and keeps things.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonConfig {
    /// How guests are found.
    pub discovery: DiscoveryConfig,
    /// How agents in guests are reached.
    pub agent: AgentConfig,
    /// The HTTP API.
    pub api: ApiConfig,
    /// The record of snapshots and plans.
    pub record: RecordConfig,
    /// The journal of writes.
    pub journal: JournalConfig,
}

/// How guests are found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiscoveryConfig {
    /// Patterns of QMP sockets' paths, where `*` stands for any text without a slash.
    pub qmp: Vec<String>,
    /// libvirt's connection URI; `None` doesn't ask libvirt.
    pub libvirt: Option<String>,
}

/// How agents in guests are reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentConfig {
    /// Whether agents are asked at all.
    pub enabled: bool,
    /// The vsock port that they listen on.
    pub port: u32,
}

/// The HTTP API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiConfig {
    /// Path of its unix socket.
    pub socket: String,
    /// Name or number of the group whose members may use it; `None` is root alone.
    pub group: Option<String>,
    /// Users, by number, who may use it besides root.
    pub uids: Vec<u32>,
    /// Whether `/metrics` is served.
    pub metrics: bool,
}

/// The record of snapshots and plans.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordConfig {
    /// Whether anything is recorded.
    pub enabled: bool,
    /// Path of the file.
    pub path: String,
    /// The oldest rows are dropped above this size.
    pub max_size: Bytes,
    /// Rows older than this are dropped.
    pub max_age: Nanos,
}

/// The journal of writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalConfig {
    /// Path of the file.
    pub path: String,
}

impl Default for DiscoveryConfig {
    fn default() -> DiscoveryConfig {
        DiscoveryConfig {
            qmp: vec!["/run/qemu/*.qmp".to_owned()],
            libvirt: None,
        }
    }
}

impl Default for AgentConfig {
    fn default() -> AgentConfig {
        AgentConfig {
            enabled: true,
            port: 1077,
        }
    }
}

impl Default for ApiConfig {
    fn default() -> ApiConfig {
        ApiConfig {
            socket: "/run/ostler/ostler.sock".to_owned(),
            group: None,
            uids: Vec::new(),
            metrics: true,
        }
    }
}

impl Default for RecordConfig {
    fn default() -> RecordConfig {
        RecordConfig {
            enabled: true,
            path: "/var/lib/ostler/record.db".to_owned(),
            max_size: Bytes(256 << 20),
            max_age: Nanos::from_secs(7 * 24 * 3600),
        }
    }
}

impl Default for JournalConfig {
    fn default() -> JournalConfig {
        JournalConfig {
            path: "/var/lib/ostler/journal.db".to_owned(),
        }
    }
}
