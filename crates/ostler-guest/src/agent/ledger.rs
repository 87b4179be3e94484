//! What the agent changed, and what was there before.
//!
//! A setting is put back only while it still holds what we wrote: if someone in the guest changed it since, theirs is the
//! newer wish, and the agent is a guest's guest. By the same rule a foreign value that we overwrite becomes the one to
//! go back to.

use std::collections::BTreeMap;
use std::io;

use tracing::warn;

use super::kernel::Kernel;

/// The most settings one agent keeps; past it, it changes no more.
const ENTRIES_MAX: usize = 8192;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    found: String,
    /// `None` while the setting isn't there, since a change of ours took it away: those of a queue that isn't in use.
    ours: Option<String>,
}

/// Settings changed, by path.
#[derive(Debug, Default)]
pub struct Ledger {
    entries: BTreeMap<String, Entry>,
}

/// A setting judged fit to be put back.
#[derive(Debug)]
pub struct Due {
    path: String,
    found: String,
}

impl Ledger {
    /// Whether nothing is changed.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Writes `text` where `current` is, and keeps what there is to undo. What is recorded as ours is what the kernel
    /// made of `text`, since it may spell it otherwise.
    pub fn write(
        &mut self,
        kernel: &impl Kernel,
        path: &str,
        current: &str,
        text: &str,
    ) -> io::Result<()> {
        if self.entries.len() >= ENTRIES_MAX && !self.entries.contains_key(path) {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        kernel.write(path, text)?;
        // Written but unreadable: record what was asked, so that the change isn't forgotten.
        let ours = kernel.read(path).unwrap_or_else(|_| text.to_owned());
        self.record(path, current, Some(ours));
        Ok(())
    }

    /// Records a change the kernel made as a side effect of one of ours: `found` is `ours` now, or isn't there.
    pub fn record(&mut self, path: &str, found: &str, ours: Option<String>) {
        match self.entries.get_mut(path) {
            Some(entry) => {
                if entry.ours.as_deref().is_some_and(|ours| ours != found) {
                    found.clone_into(&mut entry.found);
                }
                entry.ours = ours;
            }
            None if Some(found) != ours.as_deref() => {
                let found = found.to_owned();
                self.entries.insert(path.to_owned(), Entry { found, ours });
            }
            None => {}
        }
    }

    /// Records that what a change of ours had taken away is there again by another of ours.
    pub fn returned(&mut self, path: &str, ours: &str) {
        if let Some(entry) = self.entries.get_mut(path)
            && entry.ours.is_none()
        {
            entry.ours = Some(ours.to_owned());
        }
    }

    /// Takes all entries, and splits them into those to be put back and a count of those that others have changed since.
    /// A setting that is gone with its thread, cgroup or device needs nothing; one that we took away is due, if it comes back.
    pub fn take_due(&mut self, kernel: &impl Kernel) -> (Vec<Due>, u32) {
        let (mut due, mut foreign) = (Vec::new(), 0);
        for (path, entry) in std::mem::take(&mut self.entries) {
            match kernel.read(&path) {
                Ok(current) if Some(&current) == entry.ours.as_ref() => due.push(Due {
                    path,
                    found: entry.found,
                }),
                Ok(current) if current == entry.found => {}
                Ok(_) => {
                    warn!(path, "left alone: someone else changed it since");
                    foreign += 1;
                }
                Err(_) if entry.ours.is_none() => due.push(Due {
                    path,
                    found: entry.found,
                }),
                Err(_) => {}
            }
        }
        (due, foreign)
    }
}

/// Puts settings back; the count is of those that couldn't be written. One that went with the queue whose it was is none of them.
pub fn put_back(kernel: &impl Kernel, due: Vec<Due>) -> u32 {
    let mut failed = 0;
    for Due { path, found } in due {
        if let Err(error) = kernel.write(&path, &found)
            && kernel.exists(&path)
        {
            warn!(path, %error, "couldn't be put back");
            failed += 1;
        }
    }
    failed
}
