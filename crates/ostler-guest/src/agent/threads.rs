//! Confining by thread affinity what no cgroup can confine: everything where there is no cgroup v2 cpuset, and else what runs in the
//! root cgroup (in a guest that is an initrd with a shell, all of it).
//!
//! Affinity is inherited, so what a confined process starts is confined too, but such a child has no value of its own
//! from before. It gets back its parent's, if that is known, and all vCPUs otherwise. (A thread that someone pins to our
//! very set meanwhile can't be told from such a child, and is freed with them.)

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use tracing::warn;

use super::kernel::Kernel;

/// The most threads confined.
const THREADS_MAX: usize = 65_536;

/// Kernel threads carry this in their flags. Most can't be moved, and those that can aren't workload.
const PF_KTHREAD: u32 = 0x0020_0000;

#[derive(Debug)]
struct Entry {
    start_ticks: u64,
    found: Vec<u32>,
    ours: Vec<u32>,
}

/// The threads confined, by id.
#[derive(Debug, Default)]
pub struct Threads {
    entries: BTreeMap<i32, Entry>,
}

/// A user thread.
struct Thread {
    pid: i32,
    tid: i32,
    stat: Stat,
}

/// What /proc says of a thread.
struct Stat {
    parent: i32,
    flags: u32,
    start_ticks: u64,
}

impl Threads {
    /// Whether nothing is changed.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Confines the threads of `processes` (of all, for `None`) to `vcpus`; true if that changed anything.
    pub fn confine(
        &mut self,
        kernel: &impl Kernel,
        processes: Option<&BTreeSet<i32>>,
        vcpus: &[u32],
        online: &[u32],
    ) -> io::Result<bool> {
        let threads = scan(kernel, processes)?;
        self.adopt_newborn(kernel, &threads, online);
        let mut changed = false;
        for Thread { tid, stat, .. } in &threads {
            // A thread may end at any moment; that is no failure.
            let Ok(current) = kernel.affinity(*tid) else {
                continue;
            };
            let found = match self.entries.get(tid) {
                Some(entry) if entry.ours == current => entry.found.clone(),
                _ => current.clone(),
            };
            if current != vcpus {
                match kernel.set_affinity(*tid, vcpus) {
                    Ok(()) => changed = true,
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => continue,
                    Err(error) => {
                        warn!(tid, %error, "a thread couldn't be confined");
                        continue;
                    }
                }
            }
            if found != vcpus || self.entries.contains_key(tid) {
                let entry = Entry {
                    start_ticks: stat.start_ticks,
                    found,
                    ours: vcpus.to_vec(),
                };
                self.entries.insert(*tid, entry);
            }
        }
        Ok(changed)
    }

    /// Gives all threads back what they had; the count is of those that others have changed since.
    pub fn restore(
        &mut self,
        kernel: &impl Kernel,
        processes: Option<&BTreeSet<i32>>,
        online: &[u32],
    ) -> u32 {
        if self.entries.is_empty() {
            return 0;
        }
        // A last look for threads born confined. Without it they would stay so for good.
        if let Ok(threads) = scan(kernel, processes) {
            self.adopt_newborn(kernel, &threads, online);
        }
        let mut left = 0;
        for (tid, entry) in std::mem::take(&mut self.entries) {
            let Some(stat) = read_stat(kernel, &format!("/proc/{tid}")) else {
                continue;
            };
            let Ok(current) = kernel.affinity(tid) else {
                continue;
            };
            if stat.start_ticks != entry.start_ticks || current == entry.found {
                continue;
            }
            if current != entry.ours || kernel.set_affinity(tid, &entry.found).is_err() {
                left += 1;
            }
        }
        left
    }

    /// Forgets threads that are gone, and gives those born confined a value to go back to.
    fn adopt_newborn(&mut self, kernel: &impl Kernel, threads: &[Thread], online: &[u32]) {
        let alive: BTreeMap<i32, u64> = threads
            .iter()
            .map(|thread| (thread.tid, thread.stat.start_ticks))
            .collect();
        let sets: BTreeSet<Vec<u32>> = self.entries.values().map(|e| e.ours.clone()).collect();
        self.entries
            .retain(|tid, entry| alive.get(tid) == Some(&entry.start_ticks));
        for Thread { pid, tid, stat } in threads {
            if self.entries.contains_key(tid) {
                continue;
            }
            let Ok(ours) = kernel.affinity(*tid) else {
                continue;
            };
            if !sets.contains(&ours) {
                continue;
            }
            let kin = [pid, &stat.parent];
            let found = kin
                .iter()
                .find_map(|kin| self.entries.get(kin))
                .map_or_else(|| online.to_vec(), |entry| entry.found.clone());
            let entry = Entry {
                start_ticks: stat.start_ticks,
                found,
                ours,
            };
            self.entries.insert(*tid, entry);
        }
    }
}

/// All user threads but the agent's.
fn scan(kernel: &impl Kernel, processes: Option<&BTreeSet<i32>>) -> io::Result<Vec<Thread>> {
    let mut threads = Vec::new();
    for name in kernel.list("/proc")? {
        let Ok(pid) = name.parse::<i32>() else {
            continue;
        };
        if pid == kernel.own_pid() || processes.is_some_and(|only| !only.contains(&pid)) {
            continue;
        }
        for task in kernel
            .list(&format!("/proc/{pid}/task"))
            .unwrap_or_default()
        {
            let Ok(tid) = task.parse::<i32>() else {
                continue;
            };
            let Some(stat) = read_stat(kernel, &format!("/proc/{pid}/task/{tid}")) else {
                continue;
            };
            if stat.flags & PF_KTHREAD == 0 && threads.len() < THREADS_MAX {
                threads.push(Thread { pid, tid, stat });
            }
        }
    }
    // A process before its threads and, mostly, a parent before its children.
    threads.sort_by_key(|thread| (thread.pid, thread.tid));
    Ok(threads)
}

fn read_stat(kernel: &impl Kernel, folder: &str) -> Option<Stat> {
    let text = kernel.read(&format!("{folder}/stat")).ok()?;
    // The name, in parentheses, may hold anything, parentheses and spaces too.
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    // proc(5) numbers fields from 1; the first one after the name is the third.
    let field = |number: usize| fields.get(number - 3).copied();
    Some(Stat {
        parent: field(4)?.parse().ok()?,
        flags: field(9)?.parse().ok()?,
        start_ticks: field(22)?.parse().ok()?,
    })
}
