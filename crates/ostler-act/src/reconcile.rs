//! One target after the other: is it as wanted, is it still ours, what is to be written.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use ostler_model::{Failure, ForeignChange, ForeignHandling, ForeignPolicy, GuestId, Outcome, Tid};

use crate::actuator::{Actuator, Owned, Wanted};
use crate::explain::explain;
use crate::journal::{JournalError, Row};
use crate::order;
use crate::settings::CPUSET;
use crate::target::{is_within, started, strip_children};
use crate::{Target, Value};

/// What to do about one target.
enum Verdict {
    /// It holds, and is ours already.
    Holds,
    /// It holds, and is taken on.
    Adopt(Row, Journaling),
    /// It is to be written.
    Write(Row),
    /// It was left to someone else.
    Cede(Row),
    /// There is nothing to set any more.
    Forget,
}

/// Whether a row goes into the journal.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Journaling {
    /// Undo needs it.
    With,
    /// Undo has no need of it.
    Without,
}

impl Actuator {
    /// Makes these targets hold. Returns guests whose threads can't be placed by cgroups, and why.
    pub(crate) fn reconcile(
        &mut self,
        todo: &BTreeSet<Target>,
        outcome: &mut Outcome,
    ) -> Result<BTreeMap<GuestId, String>, JournalError> {
        let mut adopted = Vec::new();
        let mut writes = Vec::new();
        let mut ceded = Vec::new();
        let mut forgotten = Vec::new();
        for target in todo {
            let Some(want) = self.wanted.get(target).cloned() else {
                continue;
            };
            match self.judge(target, &want, outcome) {
                Ok(Verdict::Holds) => {
                    self.failed.remove(target);
                    if let Some(owned) = self.owned.get_mut(target) {
                        owned.confirmed = Some(want.value);
                    }
                }
                Ok(Verdict::Adopt(row, journaling)) => adopted.push((row, journaling)),
                Ok(Verdict::Write(row)) => writes.push((row, want.guest)),
                Ok(Verdict::Cede(row)) => ceded.push(row),
                Ok(Verdict::Forget) => forgotten.push(target.clone()),
                Err(error) => self.fail(target, &want.value, &error, outcome),
            }
        }
        for (row, _) in &writes {
            if let Target::Dir { cgroup } = &row.target
                && row.previous == row.ours
            {
                forgotten.extend(self.below(cgroup));
                self.reopened = true;
            }
        }
        let put: Vec<&Row> = adopted
            .iter()
            .filter(|(_, journaling)| *journaling == Journaling::With)
            .map(|(row, _)| row)
            .chain(writes.iter().map(|(row, _)| row))
            .chain(&ceded)
            .collect();
        let take: Vec<&Target> = forgotten
            .iter()
            .filter(|target| self.owned.get(target).is_some_and(|owned| owned.journaled))
            .collect();
        if !put.is_empty() || !take.is_empty() {
            self.journal.commit(put, take)?;
        }
        for target in &forgotten {
            self.owned.remove(target);
            self.failed.remove(target);
        }
        for row in ceded {
            self.own(row, None, true);
        }
        for (row, journaling) in adopted {
            let confirmed = Some(row.ours.clone());
            self.failed.remove(&row.target);
            self.own(row, confirmed, journaling == Journaling::With);
        }
        writes
            .sort_by_cached_key(|(row, _)| order::key(&row.target, &row.ours, Some(&row.previous)));
        let mut unplaceable = BTreeMap::new();
        for (row, guest) in writes {
            self.own(row.clone(), None, true);
            if guest
                .as_ref()
                .is_some_and(|guest| unplaceable.contains_key(guest))
            {
                continue;
            }
            self.carry_out(row, guest, &mut unplaceable, outcome);
        }
        Ok(unplaceable)
    }

    fn carry_out(
        &mut self,
        row: Row,
        guest: Option<GuestId>,
        unplaceable: &mut BTreeMap<GuestId, String>,
        outcome: &mut Outcome,
    ) {
        match row.target.write(&*self.host, &row.ours) {
            Ok(()) => {
                outcome.written = outcome.written.saturating_add(1);
                self.failed.remove(&row.target);
                let ours = row.ours.clone();
                self.own(row, Some(ours), true);
            }
            Err(error) => {
                // Threads and whole guests end while they are being placed; the next snapshot won't have them.
                let gone = match (row.target.task(), &guest) {
                    (Some((pid, tid)), _) => started(&*self.host, pid, tid) != row.identity,
                    (None, Some(guest)) => !self.guests.lives(&*self.host, guest),
                    (None, None) => false,
                };
                if gone {
                    return;
                }
                self.fail(&row.target, &row.ours, &error, outcome);
                if let Some(guest) =
                    guest.filter(|guest| placing(&row.target) && self.guests.by_cgroup(guest))
                {
                    unplaceable.insert(guest, explain(&row.target, &error));
                }
            }
        }
    }

    /// Compares what a target holds with what is wanted and what was ours.
    fn judge(
        &mut self,
        target: &Target,
        want: &Wanted,
        outcome: &mut Outcome,
    ) -> io::Result<Verdict> {
        let found = target.read(&*self.host)?;
        if found == Value::Absent && target.task().is_some() {
            return Ok(Verdict::Forget);
        }
        let Some(owned) = self.owned.get(target) else {
            return Ok(self.adopt(target, want, found));
        };
        let row = &owned.row;
        let holds = |value: &Value| target.holds(&found, value);
        let is_dir = matches!(target, Target::Dir { .. });
        let still_ours = match &owned.confirmed {
            // Killed between making a cgroup and setting its type, we left it without: it is ours all the same.
            _ if is_dir => found != Value::Absent || owned.confirmed.is_none(),
            Some(value) => holds(value),
            // After a restart only the journal's word is there. The original is not foreign either: that write never was.
            None => {
                holds(&row.previous)
                    || holds(&row.ours)
                    || holds(&row.before())
                    || self.is_home(target, &found)
            }
        };
        if holds(&want.value) {
            return Ok(Verdict::Holds);
        }
        let mut next = Row {
            previous: found.clone(),
            ours: want.value.clone(),
            ..row.clone()
        };
        if matches!(target, Target::Thread { .. }) {
            next.original = thread_home(&row.original, &want.value);
        }
        if still_ours {
            return Ok(Verdict::Write(next));
        }
        // From here on, someone else had a hand in it, or it is another thing by the same name, or its guest ended and its
        // cgroups with it: the next snapshot won't have it.
        if let Some(guest) = &want.guest
            && !self.guests.lives(&*self.host, guest)
        {
            return Ok(Verdict::Forget);
        }
        if row.identity != target.identity(&*self.host) {
            return Ok(self.adopt(target, want, found));
        }
        if found == Value::Absent && !is_dir {
            return Ok(self.adopt(target, want, found));
        }
        // A cgroup that was removed is made again in any case: there is no value of theirs to respect, and what should be in
        // it could not be set.
        let handling = match self.foreign {
            ForeignPolicy::Respect if !is_dir => ForeignHandling::Respected,
            _ => ForeignHandling::Reowned,
        };
        let ours = owned.confirmed.as_ref().unwrap_or(&row.ours);
        outcome.foreign.push(ForeignChange {
            target: target.to_string(),
            ours: ours.to_string(),
            found: found.to_string(),
            handling,
        });
        match handling {
            ForeignHandling::Respected => {
                let mut row = row.clone();
                row.ceded = true;
                Ok(Verdict::Cede(row))
            }
            ForeignHandling::Reowned => {
                if is_dir {
                    // This tells it from one that is made for the first time: what was known of its files is forgotten.
                    next.previous = row.ours.clone();
                } else if matches!(target, Target::Thread { .. }) {
                    next.original = thread_home(&found, &want.value);
                } else {
                    next.original = found;
                }
                Ok(Verdict::Write(next))
            }
        }
    }

    /// Takes on a target that isn't ours yet.
    fn adopt(&self, target: &Target, want: &Wanted, found: Value) -> Verdict {
        let holds = target.holds(&found, &want.value);
        let original = match (target, &found) {
            (Target::Thread { .. }, _) => thread_home(&found, &want.value),
            // Threads born with an affinity of ours would have had their process's.
            (Target::Affinity { pid, .. }, _) => {
                let leader = Target::Affinity {
                    pid: *pid,
                    tid: Tid(pid.0),
                };
                match self.owned.get(&leader).map(|leader| &leader.row) {
                    Some(row) if leader.holds(&found, &row.ours) => row.original.clone(),
                    Some(row) if leader.holds(&found, &row.previous) => row.original.clone(),
                    _ => found.clone(),
                }
            }
            _ => found.clone(),
        };
        let row = Row {
            target: target.clone(),
            identity: target.identity(&*self.host),
            original,
            previous: found,
            ours: want.value.clone(),
            ceded: false,
        };
        if row.target.task().is_some() && row.identity.is_none() {
            return Verdict::Forget;
        }
        if !holds {
            return Verdict::Write(row);
        }
        // A thread that is already in a cgroup of ours leaves with it.
        let journaling = if matches!(target, Target::Thread { .. }) {
            Journaling::Without
        } else {
            Journaling::With
        };
        Verdict::Adopt(row, journaling)
    }

    /// Whether a thread is where its process was before it was moved: a steward was killed after it had put both back.
    fn is_home(&self, target: &Target, found: &Value) -> bool {
        matches!(target, Target::Thread { pid, .. }
            if self.owned.get(&Target::Process { pid: *pid }).is_some_and(|owned| owned.row.original == *found))
    }

    fn own(&mut self, row: Row, confirmed: Option<Value>, journaled: bool) {
        self.owned.insert(
            row.target.clone(),
            Owned {
                row,
                confirmed,
                journaled,
            },
        );
    }

    /// What was in a cgroup that was removed behind our back, and is lost with it.
    fn below(&self, cgroup: &str) -> Vec<Target> {
        self.owned
            .keys()
            .filter(|target| !matches!(target, Target::Dir { .. }))
            .filter(|target| target.cgroup().is_some_and(|path| is_within(path, cgroup)))
            .cloned()
            .collect()
    }

    fn fail(&mut self, target: &Target, value: &Value, error: &io::Error, outcome: &mut Outcome) {
        outcome.failures.push(Failure {
            target: target.to_string(),
            value: value.to_string(),
            error: explain(target, error),
        });
        let never = matches!(
            (error.raw_os_error(), target),
            (Some(libc::EIO), Target::Irq { .. })
                | (Some(libc::EOPNOTSUPP), Target::Rss { .. })
                | (Some(libc::ENOENT), Target::Rps { .. } | Target::Xps { .. })
        );
        self.put_off(target.clone(), never);
    }
}

/// Where a thread goes home to. Not into a cgroup of ours, where it may have been born; and never out of its process's domain,
/// which the kernel refuses: where the process itself is moved, undo takes it home with all its threads.
fn thread_home(from: &Value, want: &Value) -> Value {
    let (Value::Cgroup(from), Value::Cgroup(want)) = (from, want) else {
        return from.clone();
    };
    let (home, domain) = (strip_children(from), strip_children(want));
    Value::Cgroup(
        if is_within(home, domain) {
            home
        } else {
            domain
        }
        .to_owned(),
    )
}

/// Whether a guest's threads can't be placed by cgroups without this.
fn placing(target: &Target) -> bool {
    match target {
        Target::Subtree { controller, .. } => controller == CPUSET,
        Target::Dir { .. }
        | Target::Process { .. }
        | Target::Cpus { .. }
        | Target::Thread { .. } => true,
        _ => false,
    }
}
