//! What can be set, how it is read and written, and when two values are the same.

use std::fmt;
use std::io;

use ostler_model::{CpuSet, CpuWeight, GuestId, IrqId, Pid, Tid};
use serde::{Deserialize, Serialize};

use crate::scheduler::SCHED_EXT;
use crate::text::{format_mask, parse_cgroup, parse_mask, parse_start};
use crate::{Host, Root};

/// Something that can be set. Cgroups are named by their path in the v2 tree: `/` is its root.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// Whether a cgroup hands a controller to its children (`cgroup.subtree_control`).
    Subtree {
        /// The cgroup.
        cgroup: String,
        /// The controller.
        controller: String,
    },
    /// That a cgroup exists, and its type.
    Dir {
        /// The cgroup.
        cgroup: String,
    },
    /// Whether a cgroup is frozen (`cgroup.freeze`).
    Freeze {
        /// The cgroup.
        cgroup: String,
    },
    /// The cgroup that a process is in.
    Process {
        /// The process.
        pid: Pid,
    },
    /// A cgroup's CPUs (`cpuset.cpus`).
    Cpus {
        /// The cgroup.
        cgroup: String,
    },
    /// A cgroup's CPU weight (`cpu.weight`). An idle cgroup has none; what it holds then is the weight that the kernel gives it when
    /// it is idle no more, the default.
    Weight {
        /// The cgroup.
        cgroup: String,
    },
    /// Whether a cgroup is idle (`cpu.idle`): its tasks run when nobody beside it wants the CPU.
    Idle {
        /// The cgroup.
        cgroup: String,
    },
    /// The threaded cgroup that a thread is in.
    Thread {
        /// Its process.
        pid: Pid,
        /// The thread.
        tid: Tid,
    },
    /// A thread's own affinity: where a cgroup can't be used.
    Affinity {
        /// Its process.
        pid: Pid,
        /// The thread.
        tid: Tid,
    },
    /// A thread's scheduling policy (`sched_setscheduler(2)`).
    Policy {
        /// Its process.
        pid: Pid,
        /// The thread.
        tid: Tid,
    },
    /// Where an interrupt may be delivered (`smp_affinity_list`).
    Irq {
        /// The line.
        irq: IrqId,
    },
    /// The CPUs that share a receive queue's softirq work (`rps_cpus`).
    Rps {
        /// The NIC.
        nic: String,
        /// The receive queue.
        queue: u32,
    },
    /// The CPUs that send by a transmit queue (`xps_cpus`).
    Xps {
        /// The NIC.
        nic: String,
        /// The transmit queue.
        queue: u32,
    },
    /// A NIC's RSS indirection table.
    Rss {
        /// The NIC.
        nic: String,
    },
    /// What was asked of a guest's agent. Held by the guest, so it is never read here.
    Agent {
        /// The guest.
        guest: GuestId,
    },
}

/// A value that a target may hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Value {
    /// The target isn't there.
    Absent,
    /// On or off.
    Flag(bool),
    /// CPUs; none at all means "as the parent" for a cgroup and "off" for RPS and XPS.
    Cpus(CpuSet),
    /// A CPU weight.
    Weight(u32),
    /// A scheduling policy, as `sched_getscheduler(2)` tells it. Not a real-time one: those have a priority, too.
    Policy(i32),
    /// A cgroup.
    Cgroup(String),
    /// A cgroup is there.
    Dir {
        /// Whether it is threaded.
        threaded: bool,
        /// Where tasks go that are found in it when it is to be removed; `None` where it holds none of its own.
        strays: Option<String>,
    },
    /// An RSS indirection table, bucket by bucket.
    Table(Vec<u32>),
    /// An RSS indirection table that spreads over the first so many queues in turn (`ethtool -X equal n`).
    Spread(u32),
    /// An agent was asked for something.
    Asked,
}

impl Target {
    /// Whether `found` is as good as `want`. Lists and masks are compared as sets.
    pub fn holds(&self, found: &Value, want: &Value) -> bool {
        match (found, want) {
            (Value::Dir { threaded: a, .. }, Value::Dir { threaded: b, .. }) => a == b,
            (Value::Table(table), Value::Spread(n)) | (Value::Spread(n), Value::Table(table)) => {
                *n > 0 && table.iter().zip((0..*n).cycle()).all(|(&a, b)| a == b)
            }
            // A process whose leader was put into one of our threaded children is still where we put it.
            (Value::Cgroup(found), Value::Cgroup(want))
                if matches!(self, Target::Process { .. }) =>
            {
                strip_children(found) == want
            }
            _ => found == want,
        }
    }

    /// The cgroup that the target is a file or directory of.
    pub(crate) fn cgroup(&self) -> Option<&str> {
        match self {
            Target::Subtree { cgroup, .. }
            | Target::Dir { cgroup }
            | Target::Freeze { cgroup }
            | Target::Cpus { cgroup }
            | Target::Weight { cgroup }
            | Target::Idle { cgroup } => Some(cgroup),
            _ => None,
        }
    }

    /// The task that the target is about.
    pub(crate) fn task(&self) -> Option<(Pid, Option<Tid>)> {
        match self {
            Target::Process { pid } => Some((*pid, None)),
            Target::Thread { pid, tid }
            | Target::Affinity { pid, tid }
            | Target::Policy { pid, tid } => Some((*pid, Some(*tid))),
            _ => None,
        }
    }

    /// When the task that the target is about started, so that a recycled number isn't taken for it.
    pub(crate) fn identity(&self, host: &dyn Host) -> Option<u64> {
        let (pid, tid) = self.task()?;
        started(host, pid, tid)
    }

    /// Reads the value that the target holds; [`Value::Absent`] where there is none.
    pub fn read(&self, host: &dyn Host) -> io::Result<Value> {
        match self.read_present(host) {
            Err(error) if is_absent(&error) => Ok(Value::Absent),
            result => result,
        }
    }

    fn read_present(&self, host: &dyn Host) -> io::Result<Value> {
        let bad = |text: &str| {
            let head: String = text.trim().chars().take(80).collect();
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("it holds `{head}`, which ostler can't read"),
            )
        };
        let list = |text: String| match text.parse::<CpuSet>() {
            Ok(cpus) => Ok(Value::Cpus(cpus)),
            Err(_) => Err(bad(&text)),
        };
        match self {
            Target::Subtree { controller, .. } => {
                let text = self.read_file(host)?;
                Ok(Value::Flag(
                    text.split_ascii_whitespace().any(|on| on == controller),
                ))
            }
            Target::Dir { .. } => {
                let text = self.read_file(host)?;
                Ok(Value::Dir {
                    threaded: text.trim() == "threaded",
                    strays: None,
                })
            }
            Target::Freeze { .. } | Target::Idle { .. } => {
                let text = self.read_file(host)?;
                match text.trim() {
                    "0" => Ok(Value::Flag(false)),
                    "1" => Ok(Value::Flag(true)),
                    _ => Err(bad(&text)),
                }
            }
            Target::Weight { .. } => {
                let text = self.read_file(host)?;
                let Ok(weight) = text.trim().parse::<u32>() else {
                    return Err(bad(&text));
                };
                // Of an idle cgroup, Linux tells 0 before 6.12, and 1 since: as of one that weighs so little.
                let idle = weight <= 1 && self.is_idle(host);
                Ok(Value::Weight(if idle {
                    CpuWeight::DEFAULT
                } else {
                    weight
                }))
            }
            Target::Process { .. } | Target::Thread { .. } => {
                let text = self.read_file(host)?;
                parse_cgroup(&text)
                    .map(|path| Value::Cgroup(path.to_owned()))
                    .ok_or_else(|| bad(&text))
            }
            Target::Cpus { .. } | Target::Irq { .. } => list(self.read_file(host)?),
            Target::Rps { .. } | Target::Xps { .. } => {
                let text = self.read_file(host)?;
                parse_mask(&text).map(Value::Cpus).ok_or_else(|| bad(&text))
            }
            Target::Affinity { tid, .. } => host.affinity(*tid).map(Value::Cpus),
            Target::Policy { tid, .. } => host.policy(*tid).map(Value::Policy),
            Target::Rss { nic } => host.rss(nic).map(|rss| Value::Table(rss.table)),
            Target::Agent { .. } => Ok(Value::Asked),
        }
    }

    /// Whether the cgroup that the target is of is idle.
    fn is_idle(&self, host: &dyn Host) -> bool {
        self.cgroup().is_some_and(|cgroup| {
            host.read(Root::Cgroup, &join(cgroup, "cpu.idle"))
                .is_ok_and(|text| text.trim() == "1")
        })
    }

    fn read_file(&self, host: &dyn Host) -> io::Result<String> {
        let (root, path) = self.file();
        host.read(root, &path)
    }

    /// The file that holds the value, or the one that shows it.
    fn file(&self) -> (Root, String) {
        match self {
            Target::Subtree { cgroup, .. } => {
                (Root::Cgroup, join(cgroup, "cgroup.subtree_control"))
            }
            Target::Dir { cgroup } => (Root::Cgroup, join(cgroup, "cgroup.type")),
            Target::Freeze { cgroup } => (Root::Cgroup, join(cgroup, "cgroup.freeze")),
            Target::Cpus { cgroup } => (Root::Cgroup, join(cgroup, "cpuset.cpus")),
            Target::Weight { cgroup } => (Root::Cgroup, join(cgroup, "cpu.weight")),
            Target::Idle { cgroup } => (Root::Cgroup, join(cgroup, "cpu.idle")),
            Target::Process { pid } => (Root::Proc, format!("{pid}/cgroup")),
            Target::Thread { pid, tid }
            | Target::Affinity { pid, tid }
            | Target::Policy { pid, tid } => (Root::Proc, format!("{pid}/task/{tid}/cgroup")),
            Target::Irq { irq } => (Root::Proc, format!("irq/{irq}/smp_affinity_list")),
            Target::Rps { nic, queue } => (
                Root::Sys,
                format!("class/net/{nic}/queues/rx-{queue}/rps_cpus"),
            ),
            Target::Xps { nic, queue } => (
                Root::Sys,
                format!("class/net/{nic}/queues/tx-{queue}/xps_cpus"),
            ),
            Target::Rss { nic } => (Root::Sys, format!("class/net/{nic}")),
            Target::Agent { .. } => (Root::Proc, String::new()),
        }
    }

    /// Writes a value. A pair of target and value that makes no sense is an error, not a panic: journals are read from disk.
    pub(crate) fn write(&self, host: &dyn Host, value: &Value) -> io::Result<()> {
        let (root, path) = self.file();
        match (self, value) {
            (Target::Subtree { controller, .. }, Value::Flag(on)) => {
                let sign = if *on { '+' } else { '-' };
                host.write(root, &path, &format!("{sign}{controller}"))
            }
            (Target::Dir { cgroup }, Value::Dir { threaded, .. }) => {
                match host.create_dir(Root::Cgroup, cgroup) {
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                    result => result?,
                }
                // The type goes one way only, from domain to threaded.
                if *threaded {
                    host.write(root, &path, "threaded")?;
                }
                Ok(())
            }
            (Target::Dir { cgroup }, Value::Absent) => host.remove_dir(Root::Cgroup, cgroup),
            (Target::Weight { .. }, Value::Weight(weight)) => {
                host.write(root, &path, &weight.to_string())
            }
            (Target::Freeze { .. } | Target::Idle { .. }, Value::Flag(on)) => {
                host.write(root, &path, if *on { "1" } else { "0" })
            }
            (Target::Process { pid }, Value::Cgroup(to)) => {
                host.write(Root::Cgroup, &join(to, "cgroup.procs"), &pid.to_string())
            }
            (Target::Thread { tid, .. }, Value::Cgroup(to)) => {
                host.write(Root::Cgroup, &join(to, "cgroup.threads"), &tid.to_string())
            }
            (Target::Cpus { .. } | Target::Irq { .. }, Value::Cpus(cpus)) => {
                host.write(root, &path, &cpus.to_string())
            }
            (Target::Rps { .. } | Target::Xps { .. }, Value::Cpus(cpus)) => {
                host.write(root, &path, &format_mask(cpus))
            }
            (Target::Affinity { tid, .. }, Value::Cpus(cpus)) => host.set_affinity(*tid, cpus),
            (Target::Policy { tid, .. }, Value::Policy(policy)) => host.set_policy(*tid, *policy),
            (Target::Rss { nic }, Value::Spread(n)) if *n > 0 => {
                let buckets = host.rss(nic)?.table.len();
                let table: Vec<u32> = (0..*n).cycle().take(buckets).collect();
                host.set_rss(nic, Some(&table))
            }
            (Target::Rss { nic }, Value::Table(table)) => restore_rss(host, nic, table),
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{value} is no value for it"),
            )),
        }
    }
}

/// Puts a table back. A table that looks like the driver's default is asked for as such, so that the NIC again follows
/// changes of its channel count, as it does until someone sets a table.
fn restore_rss(host: &dyn Host, nic: &str, table: &[u32]) -> io::Result<()> {
    let rings = host.rss(nic)?.rings;
    let default = rings > 0 && table.iter().zip((0..rings).cycle()).all(|(&a, b)| a == b);
    if default && host.set_rss(nic, None).is_ok() && host.rss(nic)?.table == table {
        return Ok(());
    }
    host.set_rss(nic, Some(table))
}

/// When a task started; `None` when it is gone.
pub(crate) fn started(host: &dyn Host, pid: Pid, tid: Option<Tid>) -> Option<u64> {
    let path = match tid {
        Some(tid) => format!("{pid}/task/{tid}/stat"),
        None => format!("{pid}/stat"),
    };
    parse_start(&host.read(Root::Proc, &path).ok()?)
}

/// Whether the error says that what was named isn't there.
pub(crate) fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOENT | libc::ESRCH | libc::ENODEV)
    ) || error.kind() == io::ErrorKind::NotFound
}

/// A path within a cgroup.
pub(crate) fn join(cgroup: &str, name: &str) -> String {
    format!("{}/{name}", cgroup.trim_end_matches('/'))
}

/// The cgroup that holds this one; `None` for the root.
pub(crate) fn parent(cgroup: &str) -> Option<&str> {
    let (parent, name) = cgroup.rsplit_once('/')?;
    if name.is_empty() {
        return None;
    }
    Some(if parent.is_empty() { "/" } else { parent })
}

/// How deep a cgroup is: 0 for the root.
pub(crate) fn depth(cgroup: &str) -> usize {
    cgroup.split('/').filter(|part| !part.is_empty()).count()
}

/// Whether a cgroup is this other one or below it.
pub(crate) fn is_within(cgroup: &str, other: &str) -> bool {
    cgroup
        .strip_prefix(other.trim_end_matches('/'))
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The path without the threaded children that we make, whose names all begin with `ostler.`.
pub(crate) fn strip_children(cgroup: &str) -> &str {
    match cgroup.find("/ostler.") {
        Some(0) => "/",
        Some(at) => &cgroup[..at],
        None => cgroup,
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Subtree { cgroup, controller } => {
                write!(
                    f,
                    "{} ({controller})",
                    join(cgroup, "cgroup.subtree_control")
                )
            }
            Target::Dir { cgroup } => f.write_str(cgroup),
            Target::Freeze { cgroup } => f.write_str(&join(cgroup, "cgroup.freeze")),
            Target::Cpus { cgroup } => f.write_str(&join(cgroup, "cpuset.cpus")),
            Target::Weight { cgroup } => f.write_str(&join(cgroup, "cpu.weight")),
            Target::Idle { cgroup } => f.write_str(&join(cgroup, "cpu.idle")),
            Target::Process { pid } => write!(f, "cgroup of process {pid}"),
            Target::Thread { pid, tid } => write!(f, "cgroup of thread {tid} of process {pid}"),
            Target::Affinity { pid, tid } => {
                write!(f, "affinity of thread {tid} of process {pid}")
            }
            Target::Policy { pid, tid } => write!(f, "policy of thread {tid} of process {pid}"),
            Target::Irq { .. } => write!(f, "/proc/{}", self.file().1),
            Target::Rps { .. } | Target::Xps { .. } => write!(f, "/sys/{}", self.file().1),
            Target::Rss { nic } => write!(f, "RSS indirection table of {nic}"),
            Target::Agent { guest } => write!(f, "agent of guest {guest}"),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Absent => f.write_str("absent"),
            Value::Flag(true) => f.write_str("on"),
            Value::Flag(false) => f.write_str("off"),
            Value::Cpus(cpus) if cpus.is_empty() => f.write_str("no CPUs named"),
            Value::Cpus(cpus) => cpus.fmt(f),
            Value::Weight(weight) => weight.fmt(f),
            Value::Policy(policy) => f.write_str(policy_name(*policy)),
            Value::Cgroup(path) => f.write_str(path),
            Value::Dir { threaded: true, .. } => f.write_str("a threaded cgroup"),
            Value::Dir { .. } => f.write_str("a cgroup"),
            Value::Table(table) => {
                let queues = table
                    .iter()
                    .max()
                    .map_or(0, |&queue| queue.saturating_add(1));
                write!(f, "{} buckets over {queues} queues", table.len())
            }
            Value::Spread(n) => write!(f, "spread over {n} queues"),
            Value::Asked => f.write_str("asked"),
        }
    }
}

/// The kernel's names, without what it does to children.
fn policy_name(policy: i32) -> &'static str {
    match policy & !libc::SCHED_RESET_ON_FORK {
        libc::SCHED_OTHER => "SCHED_OTHER",
        libc::SCHED_FIFO => "SCHED_FIFO",
        libc::SCHED_RR => "SCHED_RR",
        libc::SCHED_BATCH => "SCHED_BATCH",
        libc::SCHED_IDLE => "SCHED_IDLE",
        libc::SCHED_DEADLINE => "SCHED_DEADLINE",
        SCHED_EXT => "SCHED_EXT",
        _ => "one that ostler doesn't know",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_compared_as_sets() {
        let target = Target::Irq { irq: IrqId(7) };
        let a = Value::Cpus("0,1".parse().expect("a list"));
        let b = Value::Cpus("0-1".parse().expect("a list"));
        assert!(target.holds(&a, &b));
    }

    #[test]
    fn a_table_in_turn_is_a_spread() {
        let target = Target::Rss { nic: "eth0".into() };
        assert!(target.holds(&Value::Table(vec![0, 1, 2, 0, 1]), &Value::Spread(3)));
        assert!(!target.holds(&Value::Table(vec![0, 1, 2, 0, 2]), &Value::Spread(3)));
        assert!(!target.holds(&Value::Table(vec![0]), &Value::Spread(0)));
    }

    #[test]
    fn paths_of_cgroups() {
        assert_eq!(parent("/a/b"), Some("/a"));
        assert_eq!(parent("/a"), Some("/"));
        assert_eq!(parent("/"), None);
        assert_eq!(depth("/"), 0);
        assert_eq!(depth("/a/b"), 2);
        assert_eq!(strip_children("/a/ostler.vcpu/0"), "/a");
        assert_eq!(strip_children("/ostler/x"), "/ostler/x");
        assert_eq!(join("/", "x"), "/x");
        assert!(is_within("/a/b", "/a") && is_within("/a", "/a") && is_within("/a", "/"));
        assert!(!is_within("/ab", "/a") && !is_within("/a", "/a/b"));
    }
}
