//! Everything that acting reads and writes on a host, behind one trait: tests put a model of the kernel there, count
//! operations, and stop the actuator dead at any of them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use ostler_model::{CpuId, CpuSet, MAX_CPUS, Tid};

use crate::rss;

/// The longest file that is read. The kernel's own are far shorter, save `cgroup.procs` of a crowded cgroup.
const READ_MAX_BYTES: u64 = 1 << 20;

/// One of the trees that settings live in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Root {
    /// The cgroup v2 hierarchy, most often at `/sys/fs/cgroup`.
    Cgroup,
    /// `/proc`.
    Proc,
    /// `/sys`.
    Sys,
}

/// A NIC's receive side scaling, as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RssView {
    /// The indirection table: the receive queue of each bucket.
    pub table: Vec<u32>,
    /// How many receive queues the NIC has.
    pub rings: u32,
}

/// What acting needs of a host. Paths are relative to their root and begin with a slash or not, alike.
pub trait Host {
    /// A file's text.
    fn read(&self, root: Root, path: &str) -> io::Result<String>;
    /// Writes to a file that exists, in a single `write`.
    fn write(&self, root: Root, path: &str, text: &str) -> io::Result<()>;
    /// Creates one directory.
    fn create_dir(&self, root: Root, path: &str) -> io::Result<()>;
    /// Removes one directory.
    fn remove_dir(&self, root: Root, path: &str) -> io::Result<()>;
    /// Names of the directories in a directory.
    fn dirs(&self, root: Root, path: &str) -> io::Result<Vec<String>>;
    /// The CPUs a thread asked to run on (`sched_getaffinity`).
    fn affinity(&self, tid: Tid) -> io::Result<CpuSet>;
    /// Sets them.
    fn set_affinity(&self, tid: Tid, cpus: &CpuSet) -> io::Result<()>;
    /// A thread's scheduling policy (`sched_getscheduler`).
    fn policy(&self, tid: Tid) -> io::Result<i32>;
    /// Sets it, to one that isn't a real-time policy.
    fn set_policy(&self, tid: Tid, policy: i32) -> io::Result<()>;
    /// A NIC's RSS indirection table.
    fn rss(&self, nic: &str) -> io::Result<RssView>;
    /// Sets it; `None` has the driver go back to its default.
    fn set_rss(&self, nic: &str, table: Option<&[u32]>) -> io::Result<()>;
}

/// This Linux host.
#[derive(Clone, Debug)]
pub struct LinuxHost {
    cgroup: PathBuf,
    proc: PathBuf,
    sys: PathBuf,
}

impl LinuxHost {
    /// A host whose trees are at these places.
    pub fn new(
        cgroup: impl Into<PathBuf>,
        proc: impl Into<PathBuf>,
        sys: impl Into<PathBuf>,
    ) -> Self {
        LinuxHost {
            cgroup: cgroup.into(),
            proc: proc.into(),
            sys: sys.into(),
        }
    }

    /// This host, with its cgroup v2 tree where `/proc/self/mounts` says: on hosts that still mount v1 controllers too it is
    /// not at `/sys/fs/cgroup` but at `/sys/fs/cgroup/unified`.
    pub fn detect() -> Self {
        let cgroup = fs::read_to_string("/proc/self/mounts")
            .ok()
            .and_then(|mounts| {
                mounts.lines().find_map(|line| {
                    let mut fields = line.split(' ').skip(1);
                    let at = fields.next()?;
                    (fields.next()? == "cgroup2").then(|| PathBuf::from(at))
                })
            })
            .unwrap_or_else(|| PathBuf::from("/sys/fs/cgroup"));
        LinuxHost::new(cgroup, "/proc", "/sys")
    }

    fn path(&self, root: Root, path: &str) -> PathBuf {
        let root: &Path = match root {
            Root::Cgroup => &self.cgroup,
            Root::Proc => &self.proc,
            Root::Sys => &self.sys,
        };
        root.join(path.trim_start_matches('/'))
    }
}

impl Host for LinuxHost {
    fn read(&self, root: Root, path: &str) -> io::Result<String> {
        let mut text = String::new();
        File::open(self.path(root, path))?
            .take(READ_MAX_BYTES)
            .read_to_string(&mut text)?;
        Ok(text)
    }

    fn write(&self, root: Root, path: &str, text: &str) -> io::Result<()> {
        // Neither created nor truncated: kernel files take no O_TRUNC in earnest, and a missing one must stay missing.
        let mut file = OpenOptions::new().write(true).open(self.path(root, path))?;
        // The kernel parses each write(2) by itself, and an empty buffer never reaches it: a line end stands for "nothing".
        let text = if text.is_empty() { "\n" } else { text };
        let written = file.write(text.as_bytes())?;
        if written < text.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        Ok(())
    }

    fn create_dir(&self, root: Root, path: &str) -> io::Result<()> {
        fs::create_dir(self.path(root, path))
    }

    fn remove_dir(&self, root: Root, path: &str) -> io::Result<()> {
        fs::remove_dir(self.path(root, path))
    }

    fn dirs(&self, root: Root, path: &str) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.path(root, path))? {
            let entry = entry?;
            if entry.file_type()?.is_dir()
                && let Ok(name) = entry.file_name().into_string()
            {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn affinity(&self, tid: Tid) -> io::Result<CpuSet> {
        let set = rustix::thread::sched_getaffinity(task(tid)?)?;
        Ok((0..MAX_CPUS)
            .filter(|&cpu| set.is_set(cpu as usize))
            .map(CpuId)
            .collect())
    }

    fn set_affinity(&self, tid: Tid, cpus: &CpuSet) -> io::Result<()> {
        let mut set = rustix::thread::CpuSet::new();
        for cpu in cpus {
            set.set(cpu.0 as usize);
        }
        Ok(rustix::thread::sched_setaffinity(task(tid)?, &set)?)
    }

    #[allow(
        unsafe_code,
        reason = "no safe wrapper knows all policies that sched_getscheduler(2) tells"
    )]
    fn policy(&self, tid: Tid) -> io::Result<i32> {
        let tid = number(tid)?;
        // SAFETY: it takes a number and returns one.
        match unsafe { libc::sched_getscheduler(tid) } {
            -1 => Err(io::Error::last_os_error()),
            policy => Ok(policy),
        }
    }

    #[allow(
        unsafe_code,
        reason = "no safe wrapper knows all policies that sched_setscheduler(2) takes"
    )]
    fn set_policy(&self, tid: Tid, policy: i32) -> io::Result<()> {
        let tid = number(tid)?;
        let param = libc::sched_param { sched_priority: 0 };
        // SAFETY: it reads one structure, which lives.
        match unsafe { libc::sched_setscheduler(tid, policy, &raw const param) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn rss(&self, nic: &str) -> io::Result<RssView> {
        rss::get(nic)
    }

    fn set_rss(&self, nic: &str, table: Option<&[u32]>) -> io::Result<()> {
        rss::set(nic, table)
    }
}

/// A thread for the scheduler's system calls. Zero would mean the caller itself, so it is no thread here.
fn task(tid: Tid) -> io::Result<Option<rustix::thread::Pid>> {
    number(tid).map(rustix::thread::Pid::from_raw)
}

/// Likewise, as a number.
fn number(tid: Tid) -> io::Result<i32> {
    i32::try_from(tid.0)
        .ok()
        .filter(|tid| *tid > 0)
        .ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))
}
