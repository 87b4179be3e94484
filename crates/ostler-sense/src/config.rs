//! What a [`crate::Sensor`] is told.

use std::path::PathBuf;

use ostler_model::Nanos;

use crate::tap::Window;

/// Where the kernel's file systems are. Tests and benches put trees of their own here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roots {
    /// `/proc`.
    pub proc: PathBuf,
    /// `/sys`.
    pub sys: PathBuf,
    /// The root of the unified cgroup hierarchy.
    pub cgroup: PathBuf,
}

impl Default for Roots {
    fn default() -> Roots {
        let unified = PathBuf::from("/sys/fs/cgroup/unified");
        let plain = PathBuf::from("/sys/fs/cgroup");
        Roots {
            proc: "/proc".into(),
            sys: "/sys".into(),
            // Beside a v1 hierarchy, v2 is mounted one level below by custom.
            cgroup: if !plain.join("cgroup.procs").exists() && unified.exists() {
                unified
            } else {
                plain
            },
        }
    }
}

/// What a [`crate::Sensor`] is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SenseConfig {
    /// Where the kernel's file systems are.
    pub roots: Roots,
    /// Patterns of QMP sockets, as `/run/qemu/*.qmp`. A QMP socket serves one client at a time: give ostler one of its
    /// own.
    pub qmp_globs: Vec<String>,
    /// The libvirt connection to find guests by, as `qemu:///system`.
    pub libvirt: Option<String>,
    /// Physical NICs to look at, by interface name.
    pub nics: Vec<String>,
    /// Whether to use BPF where the kernel has it.
    pub bpf: bool,
    /// How often each guest's monitor is asked for its threads although none was seen to come or go.
    pub confirm: Nanos,
    /// How far percentiles of response times look back.
    pub latency_window: Window,
}

impl Default for SenseConfig {
    fn default() -> SenseConfig {
        SenseConfig {
            roots: Roots::default(),
            qmp_globs: Vec::new(),
            libvirt: None,
            nics: Vec::new(),
            bpf: true,
            confirm: Nanos::from_secs(30),
            latency_window: Window::default(),
        }
    }
}
