//! Everything the agent asks of the guest's kernel, behind one trait, so that its logic runs in tests against a kernel
//! that lies, refuses and forgets on demand.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use rustix::thread::CpuSet;

use super::ethtool;

/// The largest file read: /proc/interrupts of a guest with 1024 vCPUs and a few hundred interrupts.
const FILE_BYTES_MAX: u64 = 8 << 20;

/// The most entries taken from one directory.
const DIR_ENTRIES_MAX: usize = 65_536;

/// Queue pairs of a network device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Channels {
    /// In use.
    pub combined: u32,
    /// There are.
    pub combined_max: u32,
}

/// The guest's kernel, as far as the agent needs it. Paths are absolute.
pub trait Kernel {
    /// A whole file, as text.
    fn read(&self, path: &str) -> io::Result<String>;
    /// Replaces a setting, in one write.
    fn write(&self, path: &str, text: &str) -> io::Result<()>;
    /// The names in a directory, sorted.
    fn list(&self, path: &str) -> io::Result<Vec<String>>;
    /// The last component of what a symbolic link points to.
    fn link_name(&self, path: &str) -> io::Result<String>;
    /// Whether there is such a file or folder.
    fn exists(&self, path: &str) -> bool;
    /// The number of a network interface, which no other gets while the kernel runs.
    fn interface_index(&self, name: &str) -> io::Result<u32>;
    /// The queue pairs of a network device.
    fn channels(&self, nic: &str) -> io::Result<Channels>;
    /// Sets the count of queue pairs in use.
    fn set_channels(&self, nic: &str, combined: u32) -> io::Result<()>;
    /// Where a thread may run, ascending.
    fn affinity(&self, tid: i32) -> io::Result<Vec<u32>>;
    /// Confines a thread.
    fn set_affinity(&self, tid: i32, cpus: &[u32]) -> io::Result<()>;
    /// CLOCK_MONOTONIC.
    fn monotonic_ns(&self) -> u64;
    /// The agent's own process.
    fn own_pid(&self) -> i32;
}

/// The running kernel, with its file systems below a folder (`/`, but for tests and benches).
#[derive(Debug)]
pub struct Linux {
    root: PathBuf,
}

impl Linux {
    /// The kernel whose /proc and /sys are below `root`.
    pub fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

    fn resolve(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }
}

impl Kernel for Linux {
    fn read(&self, path: &str) -> io::Result<String> {
        let mut text = String::new();
        File::open(self.resolve(path))?
            .take(FILE_BYTES_MAX)
            .read_to_string(&mut text)?;
        Ok(text)
    }

    fn write(&self, path: &str, text: &str) -> io::Result<()> {
        // The kernel's files ignore truncation; a regular file in a test tree needs it. Never create: a setting that isn't
        // there is one this kernel doesn't have.
        let mut file = OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(self.resolve(path))?;
        file.write_all(text.as_bytes())
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.resolve(path))?.take(DIR_ENTRIES_MAX) {
            // A name that isn't UTF-8 is none of the kernel's settings.
            names.extend(entry?.file_name().into_string());
        }
        names.sort_unstable();
        Ok(names)
    }

    fn link_name(&self, path: &str) -> io::Result<String> {
        let target = fs::read_link(self.resolve(path))?;
        target
            .file_name()
            .and_then(|name| name.to_str())
            .map(str::to_owned)
            .ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn exists(&self, path: &str) -> bool {
        self.resolve(path).exists()
    }

    fn interface_index(&self, name: &str) -> io::Result<u32> {
        ethtool::interface_index(name)
    }

    fn channels(&self, nic: &str) -> io::Result<Channels> {
        ethtool::channels(nic)
    }

    fn set_channels(&self, nic: &str, combined: u32) -> io::Result<()> {
        ethtool::set_channels(nic, combined)
    }

    fn affinity(&self, tid: i32) -> io::Result<Vec<u32>> {
        let set = rustix::thread::sched_getaffinity(to_pid(tid)?)?;
        Ok((0..CpuSet::MAX_CPU)
            .filter(|&cpu| set.is_set(cpu))
            .filter_map(|cpu| u32::try_from(cpu).ok())
            .collect())
    }

    fn set_affinity(&self, tid: i32, cpus: &[u32]) -> io::Result<()> {
        let mut set = CpuSet::new();
        for &cpu in cpus {
            set.set(cpu as usize);
        }
        Ok(rustix::thread::sched_setaffinity(to_pid(tid)?, &set)?)
    }

    fn monotonic_ns(&self) -> u64 {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        // The monotonic clock starts at zero and runs forward.
        now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
    }

    fn own_pid(&self) -> i32 {
        rustix::process::getpid().as_raw_nonzero().get()
    }
}

/// A thread's id as rustix wants it. Zero would mean "myself", so it is refused rather than passed on.
fn to_pid(tid: i32) -> io::Result<Option<rustix::thread::Pid>> {
    match rustix::thread::Pid::from_raw(tid) {
        Some(pid) if tid > 0 => Ok(Some(pid)),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}
