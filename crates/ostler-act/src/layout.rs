//! Where a guest's threads are in the cgroup v2 tree, and so where its cpusets go.
//!
//! A cgroup's cpuset holds for all threads in it, so threads that are to run on different cores need cgroups of their own:
//! *threaded* ones, below the cgroup that the process lives in (its domain). Three cases occur:
//!
//! - the process has a cgroup to itself: threaded children are made in it;
//! - it shares one, with a shell or other guests: it is moved to `/ostler/<guest>` first, and moved home by undo. Until then
//!   it is outside the limits of the cgroup it came from;
//! - libvirt keeps it, and made threaded children itself: their cpusets are written. vhost workers, which libvirt leaves
//!   among the emulator's threads, get a child of their own. Nothing of such a guest is moved out of its domain: libvirt
//!   gives up on a domain that starts when it can't put a vCPU's thread where it wants it.
//!
//! Where none of that can be (no cpuset controller in the v2 tree, a cgroup that hands domain controllers to its children),
//! each thread's own affinity is set instead. It is weaker: anyone in the guest's own user id may reset it.

use std::collections::BTreeMap;

use ostler_model::{GuestView, Pid};

use crate::target::{join, parent, strip_children};
use crate::text::{parse_cgroup, sanitised};
use crate::{Host, Root, Target, Value};

/// The cgroup under which guests are put that shared one.
pub(crate) const HOME: &str = "/ostler";

/// What libvirt calls the cgroup that it makes within a guest's scope.
const NESTED: &str = "/libvirt";

/// Where a guest's threads are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The cgroup that holds the process and no other guest: where it is frozen. `None` when there is none.
    pub domain: Option<String>,
    /// The cgroup whose weight is the guest's against others: `domain`, or the scope around it that holds nothing else.
    pub weighed: Option<String>,
    /// The cgroup that the process was found in, when `domain` is one that we make for it.
    pub moved_from: Option<String>,
    /// How its threads are placed.
    pub placement: Placement,
}

impl Layout {
    /// The cgroup that a guest which is not to be frozen is in, once it is placed: without cpusets it is not moved.
    pub(crate) fn home(&self) -> Option<&str> {
        match (&self.placement, &self.moved_from) {
            (Placement::Affinity { .. }, Some(from)) => Some(from),
            _ => self.domain.as_deref(),
        }
    }

    /// Whether each of the guest's vCPUs has its place. libvirt makes a vCPU's cgroup some time after QEMU has made its
    /// thread, when the domain starts as when a vCPU is plugged in; until then the thread is among the emulator's.
    pub(crate) fn is_complete(&self, guest: &GuestView) -> bool {
        match &self.placement {
            Placement::Libvirt { vcpus, .. } => guest
                .vcpus
                .iter()
                .all(|vcpu| vcpus.contains_key(&vcpu.index)),
            Placement::Children | Placement::Affinity { .. } => true,
        }
    }
}

/// How a guest's threads are placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// By threaded cgroups that we make in the domain.
    Children,
    /// By libvirt's threaded cgroups in the domain.
    Libvirt {
        /// Cgroups of emulator and io threads, with threads in them.
        emulator: Vec<String>,
        /// Cgroups of vCPUs with their threads in them, by index.
        vcpus: BTreeMap<u32, String>,
    },
    /// By each thread's own affinity.
    Affinity {
        /// Why not by cgroups.
        why: String,
    },
}

/// The cgroups that processes were moved from, as the journal says: each goes back there once it is no longer placed.
pub type Origins = BTreeMap<Pid, String>;

/// Looks where a guest is. A cgroup is not its own where another is to come back to: that one would be frozen and weighed with
/// it then.
pub fn survey(host: &dyn Host, guest: &GuestView, origins: &Origins) -> Layout {
    let read = || {
        let text = host
            .read(Root::Proc, &format!("{}/cgroup", guest.pid))
            .ok()?;
        parse_cgroup(&text).map(str::to_owned)
    };
    let Some(path) = guest.cgroup.clone().or_else(read) else {
        return Layout {
            domain: None,
            weighed: None,
            moved_from: None,
            placement: Placement::Affinity {
                why: "its process is in no cgroup v2 tree".into(),
            },
        };
    };
    let controllers = host
        .read(Root::Cgroup, "cgroup.controllers")
        .unwrap_or_default();
    let placement = if controllers.split_ascii_whitespace().any(|c| c == "cpuset") {
        Placement::Children
    } else {
        Placement::Affinity {
            why: "the cgroup v2 tree has no cpuset controller; a v1 tree may hold it (boot with systemd.unified_cgroup_hierarchy=1)".into(),
        }
    };
    let path = strip_children(&path).to_owned();
    let ours = join(HOME, &sanitised(&guest.id));
    if path == ours {
        return Layout {
            weighed: Some(path.clone()),
            domain: Some(path),
            // Without a word from the journal, it was started there by someone; then it is not ours to move away.
            moved_from: origins.get(&guest.pid).cloned(),
            placement,
        };
    }
    let (domain, children) = climb(host, &path);
    if let Some(libvirt) = libvirt(host, guest, &domain, &children) {
        return Layout {
            weighed: Some(whole(host, &domain)),
            domain: Some(domain),
            moved_from: None,
            placement: match placement {
                Placement::Children => libvirt,
                affinity => affinity,
            },
        };
    }
    let awaited = origins
        .iter()
        .any(|(pid, origin)| *pid != guest.pid && *origin == domain);
    if !awaited && has_to_itself(host, guest.pid, &domain, &children) {
        return Layout {
            weighed: Some(domain.clone()),
            domain: Some(domain),
            moved_from: None,
            placement,
        };
    }
    Layout {
        weighed: Some(ours.clone()),
        domain: Some(ours),
        moved_from: Some(path),
        placement,
    }
}

/// From a threaded cgroup up to its domain; and the names of the domain's children.
fn climb(host: &dyn Host, path: &str) -> (String, Vec<String>) {
    let mut at = path;
    while host
        .read(Root::Cgroup, &join(at, "cgroup.type"))
        .is_ok_and(|kind| kind.trim() == "threaded")
        && let Some(up) = parent(at)
    {
        at = up;
    }
    (
        at.to_owned(),
        host.dirs(Root::Cgroup, at).unwrap_or_default(),
    )
}

/// Where systemd is, libvirt's tree is in a cgroup of its own within the guest's scope, with nothing beside it. A weight counts
/// against the neighbours, so it belongs on the scope.
fn whole(host: &dyn Host, domain: &str) -> String {
    let scope = parent(domain).filter(|up| *up != "/" && domain.ends_with(NESTED));
    let alone = |up: &str| {
        let procs = host.read(Root::Cgroup, &join(up, "cgroup.procs"));
        host.dirs(Root::Cgroup, up)
            .is_ok_and(|children| children.len() == 1)
            && procs.is_ok_and(|procs| procs.trim().is_empty())
    };
    scope.filter(|up| alone(up)).unwrap_or(domain).to_owned()
}

/// libvirt's children, told by their names: `emulator`, `vcpuN`, `iothreadN`. libvirt makes one, sets what the domain's
/// description says of it, and only then puts the thread there: one that doesn't hold its thread yet is still on its way, and
/// what we set in it would be overwritten and look like someone else's wish.
fn libvirt(
    host: &dyn Host,
    guest: &GuestView,
    domain: &str,
    children: &[String],
) -> Option<Placement> {
    // While a domain starts there is no more than `emulator` yet; it is libvirt's already, and must be left where it is.
    children.iter().find(|name| *name == "emulator")?;
    let has = |name: &String| children.contains(name);
    let vcpus = guest.vcpus.iter().filter_map(|vcpu| {
        let name = Some(format!("vcpu{}", vcpu.index)).filter(has)?;
        let path = join(domain, &name);
        let (pid, tid) = (guest.pid, vcpu.tid);
        let at = Target::Thread { pid, tid }.read(host).ok()?;
        (at == Value::Cgroup(path.clone())).then_some((vcpu.index, path))
    });
    let is_iothread = |name: &str| {
        let number = name.strip_prefix("iothread");
        number.is_some_and(|number| number.parse::<u32>().is_ok())
    };
    let holds_any = |path: &String| {
        let threads = host.read(Root::Cgroup, &join(path, "cgroup.threads"));
        threads.is_ok_and(|threads| !threads.trim().is_empty())
    };
    let emulator = children
        .iter()
        .filter(|name| *name == "emulator" || is_iothread(name))
        .map(|name| join(domain, name))
        .filter(holds_any);
    Some(Placement::Libvirt {
        emulator: emulator.collect(),
        vcpus: vcpus.collect(),
    })
}

/// Whether the process is alone in its cgroup, our own children apart.
fn has_to_itself(host: &dyn Host, pid: Pid, domain: &str, children: &[String]) -> bool {
    let alone = host
        .read(Root::Cgroup, &join(domain, "cgroup.procs"))
        .is_ok_and(|procs| {
            procs
                .split_ascii_whitespace()
                .eq([pid.to_string().as_str()])
        });
    alone && domain != "/" && children.iter().all(|name| name.starts_with("ostler."))
}
