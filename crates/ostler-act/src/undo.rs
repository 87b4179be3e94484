//! Taking back what was set: for `ostler undo`, at the steward's end, and for whatever a new plan no longer wants.
//!
//! Only a value that is still ours is taken back, whether it got there in the last write or the one before (see the
//! journal); anything else was set by someone else since, and stays. A task that is gone, or whose number was given to
//! another, needs nothing. Taking back is idempotent: rows leave the journal when all is done, so an undo that is killed
//! half-way is simply run again.
//!
//! Cgroups that we made are removed. Tasks found in them, those born since the last snapshot among them, go to where they
//! would have been without us (`strays`).

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use ostler_model::{GuestId, Pid, Tid};

use crate::explain::explain;
use crate::journal::{Journal, JournalError, Row};
use crate::layout::Origins;
use crate::order;
use crate::settings::CPUSET;
use crate::target::{is_absent, join, parent};
use crate::{GuestPort, Host, Root, Target, Value};

/// How often a cgroup is emptied before it is given up: threads may be born in it meanwhile.
const EMPTYING_ROUNDS: u32 = 8;

/// How often a process's threads are looked at for one that is born meanwhile, and how often nobody must be found, with the core given away between.
const BIRTH_ROUNDS: u32 = 32;
/// See there.
const QUIET_ROUNDS: u32 = 8;

/// The cgroup that threads step aside into while their own is changed.
const ASIDE: &str = "ostler.aside";

/// Whether this is a cgroup that threads step aside into: then an undo was killed while they did.
pub(crate) fn is_aside(target: &Target) -> bool {
    matches!(target, Target::Dir { cgroup } if cgroup.ends_with(ASIDE))
}

/// What came of taking back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UndoReport {
    /// Values put back.
    pub restored: u32,
    /// Values that held the original already.
    pub unchanged: u32,
    /// Targets that are no longer there: threads that ended, cgroups removed.
    pub gone: u32,
    /// Guests whose agents can't be told from here. They give their guests back by themselves, since nobody asks them
    /// for anything any more.
    pub by_themselves: u32,
    /// Values not put back.
    pub left: Vec<Left>,
}

/// A value that was not put back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// What it is: a path, or a device and its setting.
    pub target: String,
    /// What it was before us.
    pub original: String,
    /// What we had set.
    pub ours: String,
    /// What it is now, where that can be read.
    pub found: Option<String>,
    /// Why it was left, and what to do.
    pub why: String,
    /// Whether the journal keeps it, so that another undo tries again.
    pub kept: bool,
}

/// Takes back everything in a journal. The steward must not be running, which the journal's lock sees to. Guests' agents
/// are told through the port; without one, they are left to find out that nobody asks them any more.
pub fn undo(
    journal: &mut Journal,
    host: &dyn Host,
    port: Option<&dyn GuestPort>,
) -> Result<UndoReport, JournalError> {
    let rows = journal.rows()?;
    let made = made_by_us(&rows);
    put_back(journal, host, port, rows, &made).map(|(report, _)| report)
}

/// The cgroups that are there because of us.
pub(crate) fn made_by_us<'a>(rows: impl IntoIterator<Item = &'a Row>) -> BTreeSet<String> {
    rows.into_iter()
        .filter(|row| row.original == Value::Absent)
        .filter_map(|row| match &row.target {
            Target::Dir { cgroup } => Some(cgroup.clone()),
            _ => None,
        })
        .collect()
}

/// Where processes go back to that were moved.
pub(crate) fn origins<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Origins {
    rows.into_iter()
        .filter_map(|row| match (&row.target, &row.original) {
            (Target::Process { pid }, Value::Cgroup(origin)) => Some((*pid, origin.clone())),
            _ => None,
        })
        .collect()
}

/// Takes these rows back and out of the journal; returns the targets of those that are done with.
pub(crate) fn put_back(
    journal: &mut Journal,
    host: &dyn Host,
    port: Option<&dyn GuestPort>,
    mut rows: Vec<Row>,
    made: &BTreeSet<String>,
) -> Result<(UndoReport, Vec<Target>), JournalError> {
    rows.sort_by_cached_key(|row| order::undo_key(&row.target));
    let homes: BTreeMap<Pid, Value> = rows
        .iter()
        .filter_map(|row| match row.target {
            Target::Process { pid } => Some((pid, row.original.clone())),
            _ => None,
        })
        .collect();
    let heirs = Heirs::of(&rows);
    let mut report = UndoReport::default();
    let mut done = Vec::new();
    for row in rows {
        let mut step = Step {
            journal,
            host,
            port,
            made,
            homes: &homes,
        };
        let kept = match step.take_back(&row)? {
            Fate::Restored => {
                report.restored += 1;
                false
            }
            Fate::Unchanged => {
                report.unchanged += 1;
                false
            }
            Fate::Gone => {
                report.gone += 1;
                false
            }
            Fate::ByItself => {
                report.by_themselves += 1;
                false
            }
            Fate::Left { found, why, kept } => {
                report.left.push(Left {
                    target: row.target.to_string(),
                    original: row.original.to_string(),
                    ours: row.ours.to_string(),
                    found: found.map(|found| found.to_string()),
                    why,
                    kept,
                });
                kept
            }
        };
        if !kept {
            done.push(row.target);
        }
    }
    report.restored = report.restored.saturating_add(heirs.put_back(host));
    journal.commit([], &done)?;
    Ok((report, done))
}

/// Threads that were born with an affinity of ours, from one that had it, and that nobody has looked at since. They are
/// given back once no thread is left from which more of them could be born.
struct Heirs {
    /// By process: what its first thread had before us, and the affinities that were ours.
    by_process: BTreeMap<Pid, (Value, Vec<Value>)>,
    /// Threads with a row of their own.
    known: BTreeSet<Target>,
}

impl Heirs {
    fn of(rows: &[Row]) -> Heirs {
        let mut heirs = Heirs {
            by_process: BTreeMap::new(),
            known: BTreeSet::new(),
        };
        let by_affinity = |row: &&Row| matches!(row.target, Target::Affinity { .. }) && !row.ceded;
        for row in rows.iter().filter(by_affinity) {
            heirs.known.insert(row.target.clone());
            if let Some((pid, Some(tid))) = row.target.task()
                && tid.0 == pid.0
            {
                heirs
                    .by_process
                    .insert(pid, (row.original.clone(), Vec::new()));
            }
        }
        for row in rows.iter().filter(by_affinity) {
            if let Some((pid, _)) = row.target.task()
                && let Some((_, ours)) = heirs.by_process.get_mut(&pid)
            {
                ours.extend([row.ours.clone(), row.previous.clone()]);
            }
        }
        heirs
    }

    fn put_back(&self, host: &dyn Host) -> u32 {
        let mut restored = 0;
        for (pid, (original, ours)) in &self.by_process {
            // One that was being born while its maker was given back has what that had when it began, and shows up when it is born: its maker may have to have its core first, or may wait for us, who move its process (cgroup_threadgroup_rwsem).
            let mut quiet = 0;
            for _ in 0..BIRTH_ROUNDS {
                // One that is gone has no more of them.
                let Ok(found) = self.restore(host, *pid, original, ours) else {
                    break;
                };
                restored += found;
                quiet = if found == 0 { quiet + 1 } else { 0 };
                if quiet > QUIET_ROUNDS {
                    break;
                }
                std::thread::yield_now();
            }
        }
        restored
    }

    fn restore(
        &self,
        host: &dyn Host,
        pid: Pid,
        original: &Value,
        ours: &[Value],
    ) -> std::io::Result<u32> {
        let threads = host.dirs(Root::Proc, &format!("{pid}/task"))?;
        let mut restored = 0;
        for tid in threads {
            let Ok(tid) = tid.parse().map(Tid) else {
                continue;
            };
            let heir = Target::Affinity { pid, tid };
            if self.known.contains(&heir) {
                continue;
            }
            // One that ends meanwhile needs nothing.
            let inherited = heir.read(host).is_ok_and(|found| {
                !heir.holds(&found, original) && ours.iter().any(|ours| heir.holds(&found, ours))
            });
            if inherited && heir.write(host, original).is_ok() {
                restored += 1;
            }
        }
        Ok(restored)
    }
}

enum Fate {
    Restored,
    Unchanged,
    Gone,
    ByItself,
    Left {
        found: Option<Value>,
        why: String,
        kept: bool,
    },
}

struct Step<'a> {
    journal: &'a mut Journal,
    host: &'a dyn Host,
    port: Option<&'a dyn GuestPort>,
    made: &'a BTreeSet<String>,
    homes: &'a BTreeMap<Pid, Value>,
}

impl Step<'_> {
    fn take_back(&mut self, row: &Row) -> Result<Fate, JournalError> {
        if row.ceded {
            return Ok(Fate::Unchanged);
        }
        if let Target::Agent { guest } = &row.target {
            return Ok(self.tell_agent(guest));
        }
        if row.target.task().is_some() && row.identity != row.target.identity(self.host) {
            return Ok(Fate::Gone);
        }
        let found = match row.target.read(self.host) {
            Ok(found) => found,
            Err(error) => return Ok(failed(None, &row.target, &error)),
        };
        let original = row.before();
        if row.target.holds(&found, &original) {
            return Ok(Fate::Unchanged);
        }
        if found == Value::Absent {
            return Ok(Fate::Gone);
        }
        if let Target::Dir { cgroup } = &row.target {
            return Ok(self.remove(cgroup, row, found));
        }
        // CPUs of a cgroup that we made go with it. Its weight doesn't: it may be taken back while the guest stays. And a
        // controller must be off below before it can be above.
        let ours = |cgroup: &str| self.made.contains(cgroup);
        if matches!(row.target, Target::Cpus { .. }) && row.target.cgroup().is_some_and(ours) {
            return Ok(Fate::Unchanged);
        }
        // A thread adopted in the same period as its process, which then never moved, is at the process's home.
        if let Target::Thread { pid, .. } = row.target
            && self.homes.get(&pid) == Some(&found)
        {
            return Ok(Fate::Unchanged);
        }
        let holds = |value: &Value| row.target.holds(&found, value);
        if !holds(&row.ours) && !holds(&row.previous) {
            return Ok(Fate::Left {
                found: Some(found),
                why: "someone else changed it since; it is theirs".into(),
                kept: false,
            });
        }
        if let Target::Subtree { cgroup, controller } = &row.target
            && let Some(user) = self.user_of(cgroup, controller)
        {
            return Ok(Fate::Left {
                found: Some(found),
                why: format!(
                    "{user} has come to use the controller; turning it off would lose its settings"
                ),
                kept: false,
            });
        }
        let written = match row.target.write(self.host, &original) {
            Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => match &row.target {
                Target::Cpus { cgroup } => self.empty_cpus(cgroup, row, &original)?,
                _ => Err(error),
            },
            result => result,
        };
        Ok(match written {
            Ok(()) => Fate::Restored,
            Err(error)
                if row.target.task().is_some() && error.raw_os_error() == Some(libc::ESRCH) =>
            {
                Fate::Gone
            }
            // Someone made it idle, after us or before: that is theirs, and this can't be had beside it.
            Err(error)
                if matches!(row.target, Target::Weight { .. })
                    && error.raw_os_error() == Some(libc::EINVAL) =>
            {
                Fate::Left {
                    found: Some(found),
                    why: explain(&row.target, &error),
                    kept: false,
                }
            }
            Err(error) => failed(Some(found), &row.target, &error),
        })
    }

    fn tell_agent(&self, guest: &GuestId) -> Fate {
        match self.port {
            Some(port) => {
                port.restore(guest);
                Fate::Restored
            }
            // Its row has no use any more: no later undo could tell it either.
            None => Fate::ByItself,
        }
    }

    /// Empties a cgroup and removes it.
    fn remove(&self, cgroup: &str, row: &Row, found: Value) -> Fate {
        if let Value::Dir {
            threaded,
            strays: Some(strays),
        } = &row.ours
        {
            let file = if *threaded {
                "cgroup.threads"
            } else {
                "cgroup.procs"
            };
            // What can't be moved shows when the cgroup can't be removed.
            let _ = self.move_all(cgroup, strays, file);
        }
        match self.host.remove_dir(Root::Cgroup, cgroup) {
            Ok(()) => Fate::Restored,
            Err(error) if is_absent(&error) => Fate::Gone,
            Err(error) => failed(Some(found), &row.target, &error),
        }
    }

    fn move_all(&self, from: &str, to: &str, file: &str) -> io::Result<()> {
        for _ in 0..EMPTYING_ROUNDS {
            let tasks = self.host.read(Root::Cgroup, &join(from, file))?;
            if tasks.trim().is_empty() {
                break;
            }
            for task in tasks.split_ascii_whitespace() {
                match self.host.write(Root::Cgroup, &join(to, file), task) {
                    Err(error) if error.raw_os_error() != Some(libc::ESRCH) => return Err(error),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Who else among a cgroup's children uses a controller.
    fn user_of(&self, cgroup: &str, controller: &str) -> Option<String> {
        let children = self.host.dirs(Root::Cgroup, cgroup).ok()?;
        children
            .iter()
            .map(|name| join(cgroup, name))
            .filter(|path| !self.made.contains(path))
            .find(|path| {
                let text = |file| {
                    let text = self.host.read(Root::Cgroup, &join(path, file));
                    text.unwrap_or_default()
                };
                let hands_down = text("cgroup.subtree_control")
                    .split_ascii_whitespace()
                    .any(|on| on == controller);
                let differs = |file, default: &str| {
                    let found = text(file);
                    !found.is_empty() && !found.starts_with(default)
                };
                hands_down
                    || match controller {
                        CPUSET => !text("cpuset.cpus").trim().is_empty(),
                        _ => {
                            // That of an idle one is 0 or 1.
                            differs("cpu.weight", "100\n")
                                || differs("cpu.max", "max ")
                                || differs("cpu.uclamp.min", "0.00\n")
                                || differs("cpu.uclamp.max", "max\n")
                        }
                    }
            })
    }

    /// Puts "no CPUs named" back where the kernel takes that only for a cgroup without tasks (7.3 takes it in any case): its
    /// threads step aside into a cgroup beside it for a moment. That cgroup is journaled like any other: were we killed now, the next undo would bring
    /// the threads back from it.
    fn empty_cpus(
        &mut self,
        cgroup: &str,
        row: &Row,
        original: &Value,
    ) -> Result<io::Result<()>, JournalError> {
        let Some(up) = parent(cgroup) else {
            return Ok(Err(io::Error::from_raw_os_error(libc::ENOSPC)));
        };
        let aside = join(up, ASIDE);
        let threaded = Value::Dir {
            threaded: true,
            strays: Some(cgroup.to_owned()),
        };
        let dir = Row {
            target: Target::Dir {
                cgroup: aside.clone(),
            },
            identity: None,
            original: Value::Absent,
            previous: Value::Absent,
            ours: threaded.clone(),
            ceded: false,
        };
        self.journal.commit([&dir], [])?;
        let swap = || -> io::Result<()> {
            dir.target.write(self.host, &threaded)?;
            self.move_all(cgroup, &aside, "cgroup.threads")?;
            row.target.write(self.host, original)
        };
        let result = swap();
        let back = self.move_all(&aside, cgroup, "cgroup.threads");
        let removed = self.host.remove_dir(Root::Cgroup, &aside);
        if removed.is_ok() {
            self.journal.commit([], [&dir.target])?;
        }
        Ok(result.and(back).and(removed))
    }
}

fn failed(found: Option<Value>, target: &Target, error: &io::Error) -> Fate {
    Fate::Left {
        found,
        why: explain(target, error),
        kept: true,
    }
}
