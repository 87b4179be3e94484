//! One steward per journal, and one per host that acts: two would undo each other's writes.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rustix::fs::{FlockOperation, flock};

/// Held for as long as it lives; the kernel lets go of it when the process ends, however it ends.
#[derive(Debug)]
pub struct InstanceLock {
    _file: File,
}

/// Why the lock was not taken.
#[derive(Debug)]
pub enum LockError {
    /// Another process has it: its pid, where it could be read.
    Held(Option<u32>),
    /// Another process acts on this host.
    HostHeld,
    /// The file can't be used.
    Failed(anyhow::Error),
}

/// Where the lock of a journal is.
pub fn path_for(journal: &Path) -> PathBuf {
    let mut name = journal.as_os_str().to_owned();
    name.push(".lock");
    PathBuf::from(name)
}

impl InstanceLock {
    /// Takes the lock beside a journal, without waiting.
    pub fn take(journal: &Path) -> Result<InstanceLock, LockError> {
        let path = path_for(journal);
        let open = || -> anyhow::Result<File> {
            if let Some(folder) = path.parent() {
                std::fs::create_dir_all(folder).with_context(|| {
                    format!(
                        "could not make the folder {}; run as root, or set [journal] path",
                        folder.display()
                    )
                })?;
            }
            // Not truncated: until the lock is ours, the pid in it is another's.
            OpenOptions::new()
                .create(true)
                .truncate(false)
                .read(true)
                .write(true)
                .open(&path)
                .with_context(|| {
                    format!(
                        "could not open the lock {}; run as root, or set [journal] path",
                        path.display()
                    )
                })
        };
        let mut file = open().map_err(LockError::Failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut pid = String::new();
                let _ = (&file).take(16).read_to_string(&mut pid);
                return Err(LockError::Held(pid.trim().parse().ok()));
            }
            Err(error) => {
                return Err(LockError::Failed(
                    anyhow::Error::new(error).context(format!("could not lock {}", path.display())),
                ));
            }
        }
        // The pid is for people; whether the lock is held is the kernel's word alone.
        let _ = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(InstanceLock { _file: file })
    }
}

/// The right to change a host's settings, whatever journal they are written to. The kernel lets go of it when the process ends.
#[derive(Debug)]
pub struct HostLock {
    _proc: File,
}

impl HostLock {
    /// Takes it, without waiting. The lock is on the root of the host's process tree, `/proc`: whoever acts on these processes
    /// sees the same one.
    pub fn take(proc: &Path) -> Result<HostLock, LockError> {
        let failed = |error: std::io::Error| {
            LockError::Failed(
                anyhow::Error::new(error).context(format!("could not lock {}", proc.display())),
            )
        };
        let file = File::open(proc).map_err(failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(HostLock { _proc: file }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(LockError::HostHeld),
            Err(error) => Err(failed(error.into())),
        }
    }
}

impl LockError {
    /// As an error for whoever wanted to do `what`.
    pub fn into_error(self, what: &str) -> anyhow::Error {
        match self {
            LockError::Failed(error) => error,
            LockError::HostHeld => anyhow::anyhow!(
                "another steward acts on this host, with another journal: stop it before you {what}, or let this one observe (without --act, and with [steward] mode = \"observe\")"
            ),
            LockError::Held(pid) => {
                let who = pid.map_or_else(
                    || "another process".to_owned(),
                    |pid| format!("process {pid}"),
                );
                anyhow::anyhow!(
                    "a steward is running already ({who}): stop it before you {what}, or give this one its own [journal] path"
                )
            }
        }
    }
}
