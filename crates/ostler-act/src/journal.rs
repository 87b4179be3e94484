//! The journal: what every value was before us, and what we made it.
//!
//! One row per target, in SQLite. A row is committed *before* its write: a steward killed in between leaves either the old
//! value (nothing was written) or the new one, and the row names both. So a row holds three values: the original, the one
//! that was ours before, and the one that is or is about to be ours. A value is ours when it is either of the last two.
//!
//! All rows of a period are committed in one transaction, in WAL mode with `synchronous=NORMAL`: a commit is then a write to
//! the page cache and no fsync. That is enough, because what must survive is the death of a process. When the host itself
//! goes down, the cgroups, affinities and tables that the rows speak of are gone too: rows of another boot are dropped.
//!
//! The journal is opened with an exclusive lock, so that no two stewards act on a host at once, nor `undo` beside one. The
//! kernel drops the lock with the process.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ostler_model::{CpuSet, CpuWeight};
use rusqlite::{Connection, OptionalExtension, params};
use serde::de::DeserializeOwned;

use crate::{Host, Root, Target, Value};

/// The layout of the tables. A journal with another is refused: guessing could undo the wrong thing.
const VERSION: i64 = 1;

/// How long to wait for a steward that is just ending.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);

/// A journal.
#[derive(Debug)]
pub struct Journal {
    db: Connection,
    path: PathBuf,
}

/// What is known of one target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// What was set.
    pub target: Target,
    /// When the task that it is about started, where it is about one.
    pub identity: Option<u64>,
    /// Its value before us; what undo restores.
    pub original: Value,
    /// The value that was ours before the last write, or the original before the first.
    pub previous: Value,
    /// The value of the last write, whether or not it got there.
    pub ours: Value,
    /// Whether someone else changed it and it was left to them: undo doesn't touch it.
    pub ceded: bool,
}

/// What may go wrong with a journal.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// It can't be opened.
    #[error("can't open the journal {path}: check that its directory exists and is writable")]
    Open {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: rusqlite::Error,
    },
    /// Someone else has it.
    #[error(
        "the journal {path} is in use: another steward or undo is acting on this host; end it first"
    )]
    InUse {
        /// Which file.
        path: PathBuf,
    },
    /// It was written by another release.
    #[error(
        "the journal {path} has layout {found}, this release reads {VERSION}: run `ostler undo` of the release that wrote it"
    )]
    Version {
        /// Which file.
        path: PathBuf,
        /// Its layout.
        found: i64,
    },
    /// A row can't be read or written.
    #[error(
        "can't {what} the journal {path}: check the disk, and keep the file, since undo needs it"
    )]
    Row {
        /// What was tried.
        what: &'static str,
        /// Which file.
        path: PathBuf,
        /// Why.
        source: rusqlite::Error,
    },
    /// The boot's id can't be read.
    #[error("can't read the boot's id from /proc/sys/kernel/random/boot_id")]
    Boot(#[source] std::io::Error),
}

impl Row {
    /// The value to go back to. In a cgroup that wasn't there when the row was written, that is what a new one begins with.
    pub(crate) fn before(&self) -> Value {
        match (&self.target, &self.original) {
            (
                Target::Subtree { .. } | Target::Freeze { .. } | Target::Idle { .. },
                Value::Absent,
            ) => Value::Flag(false),
            (Target::Weight { .. }, Value::Absent) => Value::Weight(CpuWeight::DEFAULT),
            (Target::Cpus { .. }, Value::Absent) => Value::Cpus(CpuSet::EMPTY),
            (_, original) => original.clone(),
        }
    }
}

impl Journal {
    /// Opens a journal, creating it where there is none. Rows of an earlier boot are dropped: nothing of them holds.
    pub fn open(path: &Path, host: &dyn Host) -> Result<Journal, JournalError> {
        let boot = host
            .read(Root::Proc, "sys/kernel/random/boot_id")
            .map_err(JournalError::Boot)?;
        let fail = |source: rusqlite::Error| {
            let path = path.to_owned();
            if source.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy) {
                JournalError::InUse { path }
            } else {
                JournalError::Open { path, source }
            }
        };
        let db = Connection::open(path).map_err(fail)?;
        db.busy_timeout(BUSY_TIMEOUT).map_err(fail)?;
        // The lock comes first: with it held, WAL needs no shared memory file either.
        db.pragma_update(None, "locking_mode", "EXCLUSIVE")
            .map_err(fail)?;
        db.pragma_update(None, "journal_mode", "WAL")
            .map_err(fail)?;
        db.pragma_update(None, "synchronous", "NORMAL")
            .map_err(fail)?;
        let found: i64 = db
            .pragma_query_value(None, "user_version", |row| row.get(0))
            .map_err(fail)?;
        if found != 0 && found != VERSION {
            let path = path.to_owned();
            return Err(JournalError::Version { path, found });
        }
        db.execute_batch(&format!(
            "BEGIN EXCLUSIVE;
             CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
             CREATE TABLE IF NOT EXISTS row (
                 target TEXT PRIMARY KEY, identity INTEGER, original TEXT NOT NULL,
                 previous TEXT NOT NULL, ours TEXT NOT NULL, ceded INTEGER NOT NULL
             ) WITHOUT ROWID;
             PRAGMA user_version = {VERSION};
             COMMIT;"
        ))
        .map_err(fail)?;
        let before: Option<String> = db
            .query_row("SELECT value FROM meta WHERE key = 'boot'", [], |row| {
                row.get(0)
            })
            .optional()
            .map_err(fail)?;
        if before.as_deref() != Some(boot.trim()) {
            let dropped = db.execute("DELETE FROM row", []).map_err(fail)?;
            if dropped > 0 {
                tracing::info!(
                    dropped,
                    "the host was started anew: nothing of the journal holds"
                );
            }
            db.execute(
                "INSERT OR REPLACE INTO meta (key, value) VALUES ('boot', ?1)",
                [boot.trim()],
            )
            .map_err(fail)?;
        }
        Ok(Journal {
            db,
            path: path.to_owned(),
        })
    }

    /// All rows, in order of target.
    pub fn rows(&self) -> Result<Vec<Row>, JournalError> {
        let read = || -> rusqlite::Result<Vec<Row>> {
            self.db
                .prepare_cached(
                    "SELECT target, identity, original, previous, ours, ceded FROM row",
                )?
                .query_map([], |row| {
                    Ok(Row {
                        target: column(row, 0)?,
                        identity: row.get::<_, Option<i64>>(1)?.map(i64::cast_unsigned),
                        original: column(row, 2)?,
                        previous: column(row, 3)?,
                        ours: column(row, 4)?,
                        ceded: row.get(5)?,
                    })
                })?
                .collect()
        };
        let mut rows = read().map_err(|source| self.row_error("read", source))?;
        rows.sort_by(|a, b| a.target.cmp(&b.target));
        Ok(rows)
    }

    /// Puts rows in and takes others out, all or nothing.
    pub fn commit<'a>(
        &mut self,
        put: impl IntoIterator<Item = &'a Row>,
        take: impl IntoIterator<Item = &'a Target>,
    ) -> Result<(), JournalError> {
        let path = self.path.clone();
        let write = || -> rusqlite::Result<()> {
            let batch = self.db.transaction()?;
            {
                let mut statement = batch.prepare_cached("DELETE FROM row WHERE target = ?1")?;
                for target in take {
                    statement.execute([json(target)?])?;
                }
                let mut statement = batch.prepare_cached(
                    "INSERT OR REPLACE INTO row (target, identity, original, previous, ours, ceded)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                )?;
                for row in put {
                    statement.execute(params![
                        json(&row.target)?,
                        row.identity.map(u64::cast_signed),
                        json(&row.original)?,
                        json(&row.previous)?,
                        json(&row.ours)?,
                        row.ceded,
                    ])?;
                }
            }
            batch.commit()
        };
        write().map_err(|source| JournalError::Row {
            what: "write",
            path,
            source,
        })
    }

    fn row_error(&self, what: &'static str, source: rusqlite::Error) -> JournalError {
        JournalError::Row {
            what,
            path: self.path.clone(),
            source,
        }
    }
}

fn json(value: &impl serde::Serialize) -> rusqlite::Result<String> {
    serde_json::to_string(value)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
}

fn column<T: DeserializeOwned>(row: &rusqlite::Row<'_>, at: usize) -> rusqlite::Result<T> {
    let text = row.get_ref(at)?.as_str()?;
    serde_json::from_str(text).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(at, rusqlite::types::Type::Text, error.into())
    })
}
