//! The order of writes. Each period's writes are sorted by it, so that on the way from one plan to the next
//!
//! - a guest that is to be suspended stops before its cores are given away, and one that is to run again is thawed last;
//! - a cgroup is there, with its controller and its CPUs, before a thread enters it;
//! - a group of cores lets go before another takes them, so that two groups never hold the same core;
//! - a guest that is to yield does so before it comes to the cores where it has to, and until it has left them;
//! - a NIC's interrupts are where they should be before packets are spread over more queues.
//!
//! No cpuset is ever empty, and no thread ever without a core: sets are replaced whole, in one write each, never emptied
//! first; and where a child's CPUs are for a moment outside its parent's, the kernel lets it use the parent's.
//!
//! Taking back goes the other way: thaw, threads home, processes home, values, controllers from the deepest cgroup up, and
//! last the cgroups, from the deepest up.

use crate::target::{Target, Value, depth};
use crate::undo::is_aside;

/// Where a write comes in the order; `from` is the value before it, where it is known.
pub(crate) fn key(target: &Target, value: &Value, from: Option<&Value>) -> (u8, usize) {
    let grows = match (from, value) {
        (Some(Value::Cpus(from)), Value::Cpus(to)) => from.is_empty() || !to.is_subset(from),
        _ => true,
    };
    match target {
        // In a cgroup that is yet to be made, it comes once the guest is in it.
        Target::Freeze { .. } if matches!(from, None | Some(Value::Absent)) => (2, 1),
        Target::Freeze { .. } => (0, 0),
        Target::Dir { cgroup } => (1, depth(cgroup) * 2),
        Target::Subtree { cgroup, .. } => (1, depth(cgroup) * 2 + 1),
        Target::Process { .. } => (2, 0),
        // An idle cgroup takes no weight.
        Target::Weight { .. } => (2, 2),
        Target::Idle { .. } => (2, 3),
        Target::Cpus { cgroup } => (if grows { 4 } else { 3 }, depth(cgroup)),
        Target::Thread { .. } => (5, 0),
        Target::Affinity { .. } => (6, usize::from(grows)),
        // Where it may run is known by then.
        Target::Policy { .. } => (6, 2),
        Target::Irq { .. } | Target::Rps { .. } | Target::Xps { .. } => (7, 0),
        Target::Rss { .. } => (8, 0),
        Target::Agent { .. } => (9, 0),
    }
}

/// Where taking a value back comes in the order.
pub(crate) fn undo_key(target: &Target) -> (u8, usize) {
    let deepest_first = |cgroup: &str| usize::MAX - depth(cgroup);
    match target {
        Target::Agent { .. } => (0, 0),
        Target::Freeze { .. } => (1, 0),
        target if is_aside(target) => (1, 1),
        Target::Thread { .. } | Target::Affinity { .. } | Target::Policy { .. } => (2, 0),
        Target::Process { .. } => (3, 0),
        Target::Rss { .. } => (4, 0),
        Target::Irq { .. } | Target::Rps { .. } | Target::Xps { .. } => (5, 0),
        Target::Cpus { .. } | Target::Idle { .. } => (6, 0),
        Target::Weight { .. } => (6, 1),
        Target::Subtree { cgroup, .. } => (7, deepest_first(cgroup)),
        Target::Dir { cgroup } => (8, deepest_first(cgroup)),
    }
}
