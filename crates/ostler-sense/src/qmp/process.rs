//! A QEMU process as its host sees it, by which what QEMU says is checked.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ostler_model::{Pid, TapView, Tid};

pub(crate) use super::reply::{Network, TapRef};
use crate::files;
use crate::threads::start_ticks;

/// Descriptors of one process that are looked at. A guest with 64 queues has some 300.
const DESCRIPTORS_MAX: usize = 16384;
/// Threads of one process that are looked at.
pub(crate) const TASKS_MAX: usize = 16384;

/// A process, for as long as it lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: Pid,
    pub(crate) started: u64,
    folder: PathBuf,
}

/// What a thread of a guest's process does, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// It runs the vCPU of this number.
    Vcpu(u32),
    /// It serves a queue in the kernel, which names it for the process that asked for it.
    Vhost,
    /// All else: the monitor's loop, I/O threads, disks' helpers.
    Emulator,
}

impl Process {
    /// The process that has this number now.
    pub(crate) fn of(proc: &Path, pid: Pid) -> Option<Process> {
        let folder = proc.join(pid.to_string());
        Some(Process {
            pid,
            started: start_ticks(&folder.join("stat"))?,
            folder,
        })
    }

    /// Whether the number is still this process's.
    pub(crate) fn lives(&self) -> bool {
        start_ticks(&self.folder.join("stat")) == Some(self.started)
    }

    /// Its threads, ascending.
    pub(crate) fn threads(&self) -> Vec<Tid> {
        files::numbers(&self.folder.join("task"), TASKS_MAX)
            .into_iter()
            .map(Tid)
            .collect()
    }

    /// A thread's name.
    pub(crate) fn comm(&self, tid: Tid) -> Option<String> {
        files::value(&self.folder.join(format!("task/{tid}/comm"))).ok()
    }

    /// What a thread of this name does for the guest.
    pub(crate) fn role_of(&self, comm: &str) -> Role {
        let worker_of = comm.strip_prefix("vhost-").map(str::parse);
        if worker_of == Some(Ok(self.pid.0)) {
            return Role::Vhost;
        }
        vcpu_of(comm).map_or(Role::Emulator, Role::Vcpu)
    }

    /// The interface behind each descriptor of `/dev/net/tun` that it has open.
    pub(crate) fn tap_descriptors(&self) -> BTreeMap<u32, String> {
        let infos = self.folder.join("fdinfo");
        files::numbers(&self.folder.join("fd"), DESCRIPTORS_MAX)
            .into_iter()
            .filter_map(|fd| {
                let target = std::fs::read_link(self.folder.join(format!("fd/{fd}"))).ok()?;
                if target != Path::new("/dev/net/tun") {
                    return None;
                }
                let info = files::text(&infos.join(fd.to_string())).ok()?;
                let name = info
                    .lines()
                    .find_map(|line| line.strip_prefix("iff:"))?
                    .trim();
                (!name.is_empty()).then(|| (fd, name.to_owned()))
            })
            .collect()
    }

    /// How many descriptors it has open, where the kernel tells (6.2 and later). A change says that a device came
    /// or went.
    pub(crate) fn descriptors(&self) -> u64 {
        std::fs::metadata(self.folder.join("fd")).map_or(0, |folder| folder.len())
    }
}

/// The guest's taps in the order of its vNICs, as the monitor tells it, but none that the process doesn't have open;
/// then those that the monitor didn't tell of, by name. A queue of a tap is a descriptor of it.
pub(crate) fn taps(descriptors: &BTreeMap<u32, String>, network: &[Network]) -> Vec<TapView> {
    let queues = |name: &str| {
        u32::try_from(descriptors.values().filter(|open| *open == name).count()).unwrap_or(u32::MAX)
    };
    let mut taps: Vec<TapView> = Vec::new();
    let mut add = |name: &str, mac: Option<&String>| {
        let queues = queues(name);
        if queues > 0 && !taps.iter().any(|tap| tap.name == name) {
            taps.push(TapView {
                name: name.to_owned(),
                guest_mac: mac.cloned(),
                queues,
            });
        }
    };
    for told in network {
        let name = match &told.tap {
            TapRef::Name(name) => Some(name),
            TapRef::Fd(fd) => descriptors.get(fd),
        };
        if let Some(name) = name {
            add(name, told.mac.as_ref());
        }
    }
    let mut rest: Vec<&String> = descriptors.values().collect();
    rest.sort_unstable();
    for name in rest {
        add(name, None);
    }
    taps
}

/// The vCPU that a thread of this name is, as QEMU names its threads when it is told to: `CPU 3/KVM` is vCPU 3, `CPU 0/TCG` vCPU 0.
fn vcpu_of(comm: &str) -> Option<u32> {
    let (index, accelerator) = comm.strip_prefix("CPU ")?.split_once('/')?;
    matches!(accelerator, "KVM" | "TCG").then(|| index.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threads_name_tells_what_it_does() {
        let pid = Pid(std::process::id());
        let process = Process::of(Path::new("/proc"), pid).unwrap();
        let role = |comm: &str| process.role_of(comm);
        assert_eq!(role("CPU 12/KVM"), Role::Vcpu(12));
        assert_eq!(role(&format!("vhost-{pid}")), Role::Vhost);
        for other in [
            &format!("vhost-{}", pid.0 + 1),
            "vhost-",
            "vhost",
            "worker",
            "CPU",
        ] {
            assert_eq!(role(other), Role::Emulator, "{other}");
        }
    }

    #[test]
    fn a_vcpus_name_tells_its_number() {
        assert_eq!(vcpu_of("CPU 12/KVM"), Some(12));
        assert_eq!(vcpu_of("CPU 0/TCG"), Some(0));
        for other in [
            "CPU /KVM",
            "CPU 1",
            "worker",
            "IO mon_iothread",
            "CPU -1/KVM",
        ] {
            assert_eq!(vcpu_of(other), None, "{other}");
        }
    }
}
