//! What the kernel's error numbers mean for a target, and what to do about them.

use std::io;

use crate::Target;

/// The error as a sentence, with what the user can do where that is known.
pub(crate) fn explain(target: &Target, error: &io::Error) -> String {
    let hint = match (error.raw_os_error(), target) {
        (Some(libc::EACCES | libc::EPERM | libc::EROFS), _) => {
            "run the steward as root, with the cgroup tree mounted writable"
        }
        (Some(libc::EIO), Target::Irq { .. }) => {
            "the kernel manages this interrupt by itself and lets nobody move it; it is left alone"
        }
        (Some(libc::EOPNOTSUPP), Target::Dir { .. } | Target::Thread { .. }) => {
            "the cgroup can't hold threaded children: it hands domain controllers such as memory or io to its children, or its \
             parent is no valid domain; give the guest a leaf cgroup of its own (systemd-run --scope, or libvirt)"
        }
        (Some(libc::EBUSY | libc::EOPNOTSUPP), Target::Subtree { .. }) => {
            "processes live in that cgroup itself, so it can't hand controllers down, or its children still use them; move them \
             into a cgroup below it"
        }
        (Some(libc::ENOENT), Target::Subtree { .. }) => {
            "its parent doesn't hand the controller down"
        }
        (Some(libc::EBUSY | libc::ENOTEMPTY), Target::Dir { .. }) => {
            "tasks or cgroups of others are in it; it can be removed once they are gone"
        }
        (Some(libc::EINVAL), Target::Subtree { .. }) => {
            "the kernel groups real-time tasks too (CONFIG_RT_GROUP_SCHED), and some are outside the root cgroup: it turns the cpu \
             controller on only when all are in it"
        }
        (Some(libc::ENOENT), Target::Weight { .. } | Target::Idle { .. }) => {
            "the cgroup has none: its parent doesn't hand the cpu controller down, or the kernel is older than 5.15 and has no \
             cpu.idle (choose a weight instead: [partition] best_effort)"
        }
        (Some(libc::EINVAL), Target::Weight { .. }) => {
            "the cgroup is idle (cpu.idle), which takes no weight and is less than any"
        }
        (Some(libc::ENOENT), Target::Cpus { .. }) => {
            "the cgroup has no cpuset: its parent doesn't hand the controller down"
        }
        (Some(libc::EOPNOTSUPP), Target::Rss { .. }) => {
            "the NIC's driver has no RSS indirection table to set"
        }
        (Some(libc::EINVAL), Target::Rss { .. }) => {
            "the NIC has fewer receive queues than asked for; see `ethtool -l`"
        }
        (
            Some(libc::ENOENT | libc::ENODEV),
            Target::Rps { .. } | Target::Xps { .. } | Target::Rss { .. },
        ) => "the NIC or its queue is gone, or it has a single queue",
        (Some(libc::EINVAL), Target::Policy { .. }) => {
            "this kernel has no sched_ext, or a cgroup above the thread has a real-time share"
        }
        (Some(libc::EINVAL), Target::Affinity { .. }) => {
            "none of these CPUs is within the thread's cpuset"
        }
        _ => return error.to_string(),
    };
    format!("{error}: {hint}")
}
