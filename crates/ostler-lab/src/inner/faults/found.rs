//! The host as the kernel shows it: everything that a steward may write, read without any of the steward's code.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Context;

use super::super::guests::RunningGuest;
use super::super::{MACHINE_CGROUP, sh};

/// Where the steward puts guests that have no cgroup to themselves.
const OWN_CGROUP: &str = "/sys/fs/cgroup/ostler";
const ROOT_CGROUP: &str = "/sys/fs/cgroup";

/// What is read of each cgroup.
const CGROUP_FILES: &[&str] = &[
    "cpuset.cpus",
    "cpu.weight",
    "cpu.idle",
    "cgroup.freeze",
    "cgroup.type",
    "cgroup.subtree_control",
    "cgroup.procs",
];

/// Differences told of; a host that is wholly otherwise needs no more to be looked into.
const TOLD_AT_MOST: usize = 6;

/// Characters of a value that are shown.
const SHOWN_CHARS: usize = 200;

/// Where a thread is, and where it may run.
type Place = (String, String);

/// The host at one moment.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Files and tables, by name.
    values: BTreeMap<String, String>,
    /// By process, by thread.
    threads: BTreeMap<u32, BTreeMap<u32, Place>>,
}

impl Found {
    /// Reads it.
    pub fn now(pnic: &str, guests: &[RunningGuest]) -> anyhow::Result<Found> {
        let mut found = Found::default();
        found.read(Path::new(ROOT_CGROUP).join("cgroup.subtree_control"));
        for root in [MACHINE_CGROUP, OWN_CGROUP] {
            found.cgroups(Path::new(root));
        }
        for line in entries(Path::new("/proc/irq")) {
            found.read(Path::new("/proc/irq").join(line).join("smp_affinity_list"));
        }
        // Guests' own interfaces are their agents' affair: see `guest_queues`.
        let nics = entries(Path::new("/sys/class/net"));
        for nic in nics.iter().filter(|nic| !nic.starts_with("tap-")) {
            let queues = Path::new("/sys/class/net").join(nic).join("queues");
            for queue in entries(&queues) {
                for file in ["rps_cpus", "xps_cpus"] {
                    found.read(queues.join(&queue).join(file));
                }
            }
        }
        let rss = sh("ethtool", &["-x", pnic])?;
        found.values.insert(format!("RSS of {pnic}"), rss);
        for guest in guests.iter().filter(|guest| guest.alive()) {
            let threads = threads(guest.pid)
                .with_context(|| format!("could not read the threads of {}", guest.name))?;
            found.threads.insert(guest.pid, threads);
        }
        Ok(found)
    }

    /// A file that isn't there, or can't be read, is a value too: it must be so again.
    fn read(&mut self, path: impl AsRef<Path>) {
        let path = path.as_ref();
        let value = match std::fs::read_to_string(path) {
            Ok(text) => text.trim().to_owned(),
            Err(e) => format!("({})", e.kind()),
        };
        self.values.insert(path.display().to_string(), value);
    }

    fn cgroups(&mut self, folder: &Path) {
        if !folder.is_dir() {
            return;
        }
        for file in CGROUP_FILES {
            self.read(folder.join(file));
        }
        for name in entries(folder) {
            let child = folder.join(name);
            if child.is_dir() {
                self.cgroups(&child);
            }
        }
    }

    /// One value; for what someone else is to have changed.
    pub fn set(&mut self, name: &str, value: &str) {
        self.values.insert(name.to_owned(), value.to_owned());
    }

    /// Forgets a process that is to be gone.
    pub fn without(mut self, guest: &RunningGuest) -> Found {
        self.threads.remove(&guest.pid);
        let procs = format!("{MACHINE_CGROUP}/{}/cgroup.procs", guest.name);
        if let Some(value) = self.values.get_mut(&procs) {
            value.clear();
        }
        self
    }

    /// Cgroups that are frozen.
    pub fn frozen(&self) -> usize {
        let freezers = |name: &&String| name.ends_with("/cgroup.freeze");
        let names = self.values.keys().filter(freezers);
        names.filter(|name| self.values[*name] == "1").count()
    }

    /// Fails where this isn't as before, and says what isn't.
    pub fn must_be(&self, before: &Found) -> anyhow::Result<()> {
        let differences = self.differences(before);
        let told: Vec<_> = differences.iter().take(TOLD_AT_MOST).cloned().collect();
        anyhow::ensure!(
            differences.is_empty(),
            "the host is not as it was found, in {} values: {}",
            differences.len(),
            told.join("; ")
        );
        Ok(())
    }

    fn differences(&self, before: &Found) -> Vec<String> {
        let names: BTreeSet<_> = self.values.keys().chain(before.values.keys()).collect();
        let mut differences = Vec::new();
        for name in names {
            let (was, is) = (before.values.get(name), self.values.get(name));
            if was != is {
                let (was, is) = (shown(was), shown(is));
                differences.push(format!("{name} was {was} and is {is}"));
            }
        }
        let none = BTreeMap::new();
        for (pid, was) in &before.threads {
            let is = self.threads.get(pid).unwrap_or(&none);
            if is.is_empty() {
                differences.push(format!("process {pid} is gone"));
            }
            for (tid, place) in is {
                // QEMU's workers come and go: a thread that is new must be where its process was.
                let was = was.get(tid).or_else(|| was.get(pid));
                if was != Some(place) {
                    differences.push(format!("thread {tid} was at {was:?} and is at {place:?}"));
                }
            }
        }
        differences
    }
}

/// A value in a line; of a long one, like a table, the beginning.
fn shown(value: Option<&String>) -> String {
    let Some(value) = value else {
        return "not there".to_owned();
    };
    let mut words = value.split_whitespace().collect::<Vec<_>>().join(" ");
    if words.chars().count() > SHOWN_CHARS {
        words = words.chars().take(SHOWN_CHARS).collect::<String>() + "...";
    }
    format!("`{words}`")
}

/// Names in a folder; none where there is no such folder.
pub fn entries(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

/// Queue pairs that a guest uses, as its tap shows them: what its agent was asked for, seen from outside.
pub fn guest_queues(tap: &str) -> usize {
    let queues = Path::new("/sys/class/net").join(tap).join("queues");
    let names = entries(&queues);
    names.iter().filter(|name| name.starts_with("tx-")).count()
}

fn threads(pid: u32) -> anyhow::Result<BTreeMap<u32, Place>> {
    let folder = format!("/proc/{pid}/task");
    let mut threads = BTreeMap::new();
    for name in entries(Path::new(&folder)) {
        let read = |file: &str| std::fs::read_to_string(format!("{folder}/{name}/{file}"));
        // One that ended since it was listed is no thread.
        let (Ok(cgroup), Ok(status)) = (read("cgroup"), read("status")) else {
            continue;
        };
        let allowed = status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
            .context("a thread's status has no Cpus_allowed_list")?;
        let place = (cgroup.trim().to_owned(), allowed.trim().to_owned());
        threads.insert(name.parse()?, place);
    }
    anyhow::ensure!(!threads.is_empty(), "process {pid} has no threads");
    Ok(threads)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(values: &[(&str, &str)], threads: &[(u32, &str)]) -> Found {
        let text = |text: &str| text.to_owned();
        Found {
            values: values.iter().map(|(n, v)| (text(n), text(v))).collect(),
            threads: [(
                1,
                threads
                    .iter()
                    .map(|(tid, cgroup)| (*tid, (text(cgroup), text("0-2"))))
                    .collect(),
            )]
            .into(),
        }
    }

    #[test]
    fn every_difference_is_seen_and_workers_may_come_and_go() {
        let before = host(&[("a", "1")], &[(1, "/lc"), (2, "/lc")]);
        let same = |after: &Found| after.must_be(&before).is_ok();
        assert!(same(&before));
        assert!(same(&host(&[("a", "1")], &[(1, "/lc"), (9, "/lc")])));
        assert!(!same(&host(&[("a", "2")], &[(1, "/lc")])), "a value");
        assert!(!same(&host(&[], &[(1, "/lc")])), "a value that is gone");
        let more = [("a", "1"), ("b", "")];
        assert!(!same(&host(&more, &[(1, "/lc")])), "a value that came");
        let moved = [(1, "/lc"), (2, "/lc/ostler.vcpu")];
        assert!(!same(&host(&[("a", "1")], &moved)), "a thread that moved");
        let born = [(1, "/lc"), (9, "/lc/ostler.vcpu")];
        assert!(
            !same(&host(&[("a", "1")], &born)),
            "a thread born elsewhere"
        );
        assert!(!same(&host(&[("a", "1")], &[])), "a process that is gone");
    }
}
