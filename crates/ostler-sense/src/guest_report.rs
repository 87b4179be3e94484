//! What a source tells of a guest, before the host adds what it sees itself.

use std::sync::Arc;

use ostler_model::{GuestSource, Nanos, Pid, TapView, Tid};

/// A guest as told by QMP or libvirt and verified against `/proc`: every thread in it belongs to the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    /// Who told it.
    pub(crate) source: GuestSource,
    /// Its name; chosen by whoever runs it.
    pub(crate) name: String,
    /// Its UUID, unless it has none.
    pub(crate) uuid: Option<String>,
    /// Labels, in order of key.
    pub(crate) metadata: Vec<(String, String)>,
    /// The QEMU process.
    pub(crate) pid: Pid,
    /// When that process started, in ticks: tells it from a later process of the same number.
    pub(crate) started: u64,
    /// vCPU index and thread, in order of index.
    pub(crate) vcpus: Vec<(u32, Tid)>,
    /// Tap interfaces in the order of the guest's vNICs.
    pub(crate) taps: Vec<TapView>,
    /// The vsock context id.
    pub(crate) vsock_cid: Option<u32>,
}

/// Someone who knows of guests. Asking never waits for a guest: a source keeps what it was last told.
pub(crate) trait Source: Send {
    /// The guests known now, each with the time at which its thread lists were last confirmed, on the monotonic clock.
    /// As long as nothing else changes it is the same `Arc`.
    fn reports(&mut self, out: &mut Vec<(Arc<Report>, Nanos)>);

    /// Something changed in this process: ask about it soon.
    fn nudge(&mut self, pid: Pid);
}
