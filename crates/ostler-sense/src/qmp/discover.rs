//! Finds QMP sockets by patterns such as `/run/qemu/*.qmp`.
//!
//! Folders are watched by inotify, so that nothing is read while nothing changes; where a folder doesn't exist yet or
//! can't be watched, it is looked at each time.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

use crate::error::SenseError;
use crate::files;

/// Sockets in all; a folder of more is cut, in order of name.
pub(crate) const SOCKETS_MAX: usize = 1024;
/// Names looked at per folder.
const NAMES_MAX: usize = 8192;
/// Folders that a pattern may go through.
const FOLDERS_MAX: usize = 1024;

/// The patterns, and what they watch.
#[derive(Debug)]
pub(crate) struct Discovery {
    patterns: Vec<Vec<String>>,
    inotify: Option<OwnedFd>,
    watched: BTreeMap<PathBuf, i32>,
    /// Whether some folder could not be watched at the last look.
    blind: bool,
}

impl Discovery {
    pub(crate) fn new(patterns: &[String]) -> Result<Discovery, SenseError> {
        let patterns = patterns
            .iter()
            .map(|pattern| {
                let parts: Vec<String> = pattern
                    .split('/')
                    .filter(|part| !part.is_empty())
                    .map(str::to_owned)
                    .collect();
                let refused = !pattern.starts_with('/')
                    || parts.is_empty()
                    || parts.iter().any(|part| part == "." || part == "..");
                if refused {
                    return Err(SenseError::Pattern {
                        pattern: pattern.clone(),
                    });
                }
                Ok(parts)
            })
            .collect::<Result<_, _>>()?;
        Ok(Discovery {
            patterns,
            inotify: inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok(),
            watched: BTreeMap::new(),
            blind: true,
        })
    }

    /// Becomes readable when a watched folder changes.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inotify.as_ref().map(AsFd::as_fd)
    }

    /// Whether a look is due without any notification, because some folder can't be watched.
    pub(crate) fn is_blind(&self) -> bool {
        self.blind
    }

    /// The sockets there are now. Also forgets all notifications so far.
    pub(crate) fn look(&mut self) -> BTreeSet<PathBuf> {
        self.drain();
        let mut folders = BTreeSet::new();
        let mut found = BTreeSet::new();
        for pattern in &self.patterns {
            expand(Path::new("/"), pattern, &mut folders, &mut found);
        }
        self.watch(folders);
        found
    }

    fn drain(&mut self) {
        let Some(inotify) = &self.inotify else { return };
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(inotify, &mut buffer);
        let mut gone = Vec::new();
        // Bounded by the kernel's own queue (16384 events by default).
        while let Ok(event) = reader.next() {
            if event.events().contains(inotify::ReadFlags::IGNORED) {
                gone.push(event.wd());
            }
        }
        self.watched.retain(|_, wd| !gone.contains(wd));
    }

    fn watch(&mut self, folders: BTreeSet<PathBuf>) {
        let Some(inotify) = &self.inotify else { return };
        self.watched.retain(|folder, wd| {
            let wanted = folders.contains(folder);
            if !wanted {
                let _ = inotify::remove_watch(inotify, *wd);
            }
            wanted
        });
        self.blind = false;
        for folder in folders {
            if self.watched.contains_key(&folder) {
                continue;
            }
            let flags = WatchFlags::CREATE
                | WatchFlags::DELETE
                | WatchFlags::MOVE
                | WatchFlags::DELETE_SELF
                | WatchFlags::MOVE_SELF
                | WatchFlags::ONLYDIR;
            // A folder watched just now may have changed between the look and the watch: look once more.
            self.blind = true;
            if let Ok(wd) = inotify::add_watch(inotify, &folder, flags) {
                self.watched.insert(folder, wd);
            }
        }
    }
}

/// Adds the sockets that match below a folder, and the folders whose contents decide.
fn expand(
    folder: &Path,
    parts: &[String],
    folders: &mut BTreeSet<PathBuf>,
    found: &mut BTreeSet<PathBuf>,
) {
    let Some((part, rest)) = parts.split_first() else {
        return;
    };
    // The plain folders at the start are taken for granted, but for the last: it is the one to be watched.
    if !part.contains('*') && !rest.is_empty() {
        return expand(&folder.join(part), rest, folders, found);
    }
    if folders.len() >= FOLDERS_MAX {
        return;
    }
    folders.insert(folder.to_owned());
    let mut names = if part.contains('*') {
        files::names(folder, NAMES_MAX)
    } else {
        vec![part.clone()]
    };
    names.sort_unstable();
    for name in names.iter().filter(|name| matches(part, name)) {
        let path = folder.join(name);
        if !rest.is_empty() {
            expand(&path, rest, folders, found);
        } else if found.len() < SOCKETS_MAX
            && !is_libvirts_own(&path)
            && std::fs::metadata(&path).is_ok_and(|meta| meta.file_type().is_socket())
        {
            found.insert(path);
        }
    }
}

/// Whether it is libvirt's socket to a monitor, `domain-ID-NAME/monitor.sock`. A monitor serves one client at a time: were it us, libvirt
/// could not start the domain, and else we'd wait for as long as it runs.
fn is_libvirts_own(path: &Path) -> bool {
    let folder = path.parent().and_then(Path::file_name);
    path.file_name().is_some_and(|name| name == "monitor.sock")
        && folder.is_some_and(|name| name.as_encoded_bytes().starts_with(b"domain-"))
}

/// `*` stands for any text, which for a name starting with a dot must be written out.
fn matches(pattern: &str, name: &str) -> bool {
    if name.starts_with('.') && !pattern.starts_with('.') {
        return false;
    }
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else {
        return false;
    };
    let Some(last) = parts.next_back() else {
        return rest.is_empty();
    };
    for part in parts {
        let Some(at) = rest.find(part) else {
            return false;
        };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}
