//! Which cgroup a guest is in, and whether it is frozen.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::event::epoll::{self, EventData, EventFlags};

use crate::files::{self, KeptFile};

/// The unified hierarchy's path of a process, relative to its root.
pub(crate) fn of_process(proc: &Path, pid: u32) -> Option<String> {
    let text = files::text(&proc.join(format!("{pid}/cgroup"))).ok()?;
    text.lines()
        .find_map(|line| line.strip_prefix("0::"))
        .map(str::to_owned)
}

/// Whether a process is frozen now, read anew.
pub(crate) fn is_frozen(proc: &Path, root: &Path, pid: u32) -> bool {
    let path = of_process(proc, pid).unwrap_or_default();
    let events = root
        .join(path.trim_start_matches('/'))
        .join("cgroup.events");
    files::text(&events).is_ok_and(|text| says_frozen(&text))
}

fn says_frozen(events: &str) -> bool {
    events.lines().any(|line| line == "frozen 1")
}

/// A cgroup's `cgroup.events`, kept open. The kernel notifies of changes, so that nothing is read while nothing
/// changes; a file that can't notify is read each time.
#[derive(Debug)]
pub(crate) struct Events {
    file: KeptFile,
    notifies: bool,
    frozen: bool,
}

impl Events {
    /// Opens the events of the cgroup at `path` below `root`, and has `epoll` tell of changes by `token`.
    pub(crate) fn open(
        root: &Path,
        path: &str,
        epoll: impl AsFd,
        token: u64,
    ) -> io::Result<Events> {
        let file: PathBuf = root
            .join(path.trim_start_matches('/'))
            .join("cgroup.events");
        let file = KeptFile::open(&file)?;
        let flags = EventFlags::PRI | EventFlags::ET;
        let notifies = epoll::add(epoll, file.file(), EventData::new_u64(token), flags).is_ok();
        let mut events = Events {
            file,
            notifies,
            frozen: false,
        };
        events.reread()?;
        Ok(events)
    }

    fn reread(&mut self) -> io::Result<()> {
        let mut buffer = [0; 256];
        let text = self.file.read(&mut buffer)?;
        self.frozen = says_frozen(text);
        Ok(())
    }

    /// Whether the cgroup is frozen; an error when it is gone.
    pub(crate) fn frozen(&mut self, notified: bool) -> io::Result<bool> {
        if notified || !self.notifies {
            self.reread()?;
        }
        Ok(self.frozen)
    }
}
