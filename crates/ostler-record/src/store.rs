//! The file: its tables, what is appended, what is dropped.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ostler_model::{Facts, Intent, Plan};
use rusqlite::{Connection, ErrorCode, OpenFlags, params};

use crate::block::Codec;
use crate::{Limits, Period, RecordError};

/// A checkpoint of the state is written at least this often: 1 min at 100 ms.
pub const CHECKPOINT_PERIODS: u64 = 600;

/// The format of the file, in SQLite's `user_version`.
pub(crate) const FORMAT: i64 = 1;

/// "ostl": tells a record from any other SQLite file.
pub(crate) const APPLICATION_ID: i64 = 0x6f73_746c;

const TABLES: &str = "
create table run (id integer primary key, started integer not null);
create table context (id integer primary key, body blob not null);
create table block (
    id integer primary key,
    run integer not null,
    facts integer not null,
    intent integer not null,
    wall_first integer not null,
    wall_last integer not null,
    seq_first integer not null,
    seq_last integer not null,
    changes integer not null,
    body blob not null
);
create index block_by_wall on block (wall_last);
create table checkpoint (run integer not null, seq integer not null, body blob not null, primary key (run, seq)) without rowid;
";

/// SQLite counts in signed numbers; what doesn't fit is after the end of all records.
pub(crate) fn sql(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Back from SQLite; a record never holds negative numbers.
pub(crate) fn unsql(n: i64) -> u64 {
    u64::try_from(n).unwrap_or(0)
}

/// A context in force: its row and its value.
struct Context<T> {
    row: i64,
    value: Arc<T>,
}

/// The file, open for writing.
pub(crate) struct Store {
    db: Connection,
    writer: Writer,
}

/// What the next append builds on. Apart from the connection, which a transaction borrows meanwhile.
struct Writer {
    path: PathBuf,
    codec: Codec,
    limits: Limits,
    run: Option<i64>,
    facts: Option<Context<Facts>>,
    intent: Option<Context<Intent>>,
    /// Sequence number of the last period written, and of the last checkpoint.
    last_seq: Option<u64>,
    last_checkpoint: Option<u64>,
    last_plan: Option<Arc<Plan>>,
}

impl Store {
    /// Opens the file, making it where there is none. A file that SQLite can't read is moved aside: a steward must start all the same. Gives the
    /// path that it was moved to.
    pub fn open(path: &Path, limits: Limits) -> Result<(Store, Option<PathBuf>), RecordError> {
        let place = |source| RecordError::Place {
            path: path.to_owned(),
            source,
        };
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(place)?;
        }
        let (db, moved) = match prepare(path) {
            Ok(db) => (db, None),
            Err(RecordError::NotARecord { .. } | RecordError::Format { .. }) => {
                let aside = aside(path);
                std::fs::rename(path, &aside).map_err(place)?;
                for suffix in ["-wal", "-shm"] {
                    let mut extra = path.as_os_str().to_owned();
                    extra.push(suffix);
                    match std::fs::remove_file(&extra) {
                        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                            return Err(place(error));
                        }
                        _ => {}
                    }
                }
                (prepare(path)?, Some(aside))
            }
            Err(other) => return Err(other),
        };
        let writer = Writer {
            path: path.to_owned(),
            codec: Codec::new().map_err(place)?,
            limits,
            run: None,
            facts: None,
            intent: None,
            last_seq: None,
            last_checkpoint: None,
            last_plan: None,
        };
        let store = Store { db, writer };
        Ok((store, moved))
    }

    /// Appends periods in one transaction, as few blocks as their contexts allow. On an error nothing is appended, and the next append begins with
    /// fresh contexts and a checkpoint.
    pub fn append(&mut self, periods: &[Period]) -> Result<(), RecordError> {
        let result = self.try_append(periods);
        if result.is_err() {
            // The transaction took with it rows that we remember by their ids.
            self.writer.facts = None;
            self.writer.intent = None;
            self.writer.run = None;
        }
        result
    }

    fn try_append(&mut self, periods: &[Period]) -> Result<(), RecordError> {
        let Store { db, writer } = self;
        // `unchecked` only says that the compiler doesn't see that no other transaction is open: this is the one connection's one user.
        let transaction = db
            .unchecked_transaction()
            .map_err(|source| writer.fail("beginning to write", source))?;
        let mut rest = periods;
        while let Some(first) = rest.first() {
            let alike = 1 + rest
                .windows(2)
                .take_while(|pair| {
                    Arc::ptr_eq(&pair[1].facts, &first.facts)
                        && Arc::ptr_eq(&pair[1].intent, &first.intent)
                        && pair[1].snapshot.seq == pair[0].snapshot.seq + 1
                })
                .count();
            let (block, later) = rest.split_at(alike);
            writer.append_block(&transaction, block)?;
            rest = later;
        }
        writer.trim(&transaction, periods)?;
        transaction
            .commit()
            .map_err(|source| writer.fail("committing", source))
    }

    /// Bytes in use now.
    pub fn bytes(&self) -> u64 {
        used_bytes(&self.db).unwrap_or(0)
    }
}

impl Writer {
    fn fail(&self, doing: &'static str, source: rusqlite::Error) -> RecordError {
        RecordError::Database {
            path: self.path.clone(),
            doing,
            source,
        }
    }

    fn append_block(&mut self, db: &Connection, block: &[Period]) -> Result<(), RecordError> {
        let (Some(first), Some(last)) = (block.first(), block.last()) else {
            return Ok(());
        };
        let path = self.path.clone();
        let fail = |source| RecordError::Database {
            path: path.clone(),
            doing: "writing a block",
            source,
        };
        let run = match self.run {
            // A sequence that runs backwards is another run of the sensor.
            Some(run) if self.last_seq.is_some_and(|seq| first.snapshot.seq > seq) => run,
            _ => {
                db.execute("insert into run (started) values (?1)", [sql(first.wall.0)])
                    .map_err(fail)?;
                self.last_seq = None;
                self.last_checkpoint = None;
                self.last_plan = None;
                *self.run.insert(db.last_insert_rowid())
            }
        };
        let facts = context(db, &mut self.codec, &mut self.facts, &first.facts, fail)?;
        let intent = context(db, &mut self.codec, &mut self.intent, &first.intent, fail)?;

        let gap = self
            .last_seq
            .is_none_or(|seq| first.snapshot.seq != seq + 1);
        for (at, period) in block.iter().enumerate() {
            let due = self
                .last_checkpoint
                .is_none_or(|seq| period.snapshot.seq >= seq + CHECKPOINT_PERIODS);
            if let Some(state) = period.before.as_ref().filter(|_| due || (gap && at == 0)) {
                let body = self.codec.encode_one(&**state)?;
                db.execute(
                    "insert or replace into checkpoint (run, seq, body) values (?1, ?2, ?3)",
                    params![run, sql(period.snapshot.seq), body],
                )
                .map_err(fail)?;
                self.last_checkpoint = Some(period.snapshot.seq);
            }
        }

        let mut changes = 0_i64;
        for period in block {
            let same = self
                .last_plan
                .as_ref()
                .is_some_and(|last| last.same_wishes(&period.plan));
            changes += i64::from(!same);
            self.last_plan = Some(Arc::clone(&period.plan));
        }
        let body = self.codec.encode(block)?;
        db.execute(
            "insert into block (run, facts, intent, wall_first, wall_last, seq_first, seq_last, changes, body)
             values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
            params![
                run,
                facts,
                intent,
                sql(first.wall.0),
                sql(last.wall.0),
                sql(first.snapshot.seq),
                sql(last.snapshot.seq),
                changes,
                body
            ],
        )
        .map_err(fail)?;
        self.last_seq = Some(last.snapshot.seq);
        Ok(())
    }

    /// Drops the oldest blocks above the limits, and what only they named.
    fn trim(&self, db: &Connection, periods: &[Period]) -> Result<(), RecordError> {
        let fail = |source| self.fail("dropping old blocks", source);
        let newest = periods.last().map_or(0, |period| period.wall.0);
        let oldest_kept = newest.saturating_sub(self.limits.age_max.0);
        let mut dropped = db
            .execute("delete from block where wall_last < ?1", [sql(oldest_kept)])
            .map_err(fail)?;
        // Each round drops an eighth, so that dropping is rare and the rounds are few.
        for _ in 0..32 {
            if used_bytes(db).map_err(fail)? <= self.limits.size_max.0 {
                break;
            }
            let gone = db
                .execute(
                    "delete from block where id in (select id from block order by id limit max(1, (select count(*) from block) / 8))",
                    [],
                )
                .map_err(fail)?;
            if gone == 0 {
                break;
            }
            dropped += gone;
        }
        if dropped > 0 {
            db.execute_batch(
                "delete from checkpoint where not exists
                     (select 1 from block where block.run = checkpoint.run and block.seq_last >= checkpoint.seq);
                 delete from run where not exists (select 1 from block where block.run = run.id);",
            )
            .map_err(fail)?;
            let kept = |context: Option<i64>| context.unwrap_or(-1);
            db.execute(
                "delete from context where id not in (select facts from block union select intent from block) and id not in (?1, ?2)",
                [
                    kept(self.facts.as_ref().map(|context| context.row)),
                    kept(self.intent.as_ref().map(|context| context.row)),
                ],
            )
            .map_err(fail)?;
        }
        Ok(())
    }
}

/// Bytes of pages in use: the file's size but for pages that will be used again.
fn used_bytes(db: &Connection) -> rusqlite::Result<u64> {
    let pragma = |name| db.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let pages = pragma("page_count")? - pragma("freelist_count")?;
    Ok(unsql(pages) * unsql(pragma("page_size")?))
}

/// The row of a context; writes one where the value is not the one in force.
fn context<T: PartialEq + serde::Serialize>(
    db: &Connection,
    codec: &mut Codec,
    in_force: &mut Option<Context<T>>,
    value: &Arc<T>,
    fail: impl Fn(rusqlite::Error) -> RecordError,
) -> Result<i64, RecordError> {
    if let Some(context) = in_force
        && (Arc::ptr_eq(&context.value, value) || context.value == *value)
    {
        context.value = Arc::clone(value);
        return Ok(context.row);
    }
    let body = codec.encode_one(&**value)?;
    db.execute("insert into context (body) values (?1)", [body])
        .map_err(fail)?;
    let row = db.last_insert_rowid();
    *in_force = Some(Context {
        row,
        value: Arc::clone(value),
    });
    Ok(row)
}

/// A name beside `path` that is free; the last of them is used again when a thousand are taken.
fn aside(path: &Path) -> PathBuf {
    let name = |n: u32| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".damaged-{n}"));
        PathBuf::from(name)
    };
    (1..1000)
        .map(name)
        .find(|path| !path.exists())
        .unwrap_or_else(|| name(1000))
}

/// Opens the file for writing and makes its tables where there are none.
fn prepare(path: &Path) -> Result<Connection, RecordError> {
    let fail = |source| classify(path, "preparing it", source);
    let db = Connection::open(path).map_err(|source| RecordError::Open {
        path: path.to_owned(),
        source,
    })?;
    db.busy_timeout(std::time::Duration::from_secs(2))
        .map_err(fail)?;
    let tables: i64 = db
        .query_row("select count(*) from sqlite_master", [], |row| row.get(0))
        .map_err(fail)?;
    if tables == 0 {
        db.pragma_update(None, "application_id", APPLICATION_ID)
            .map_err(fail)?;
        db.pragma_update(None, "user_version", FORMAT)
            .map_err(fail)?;
        db.execute_batch(TABLES).map_err(fail)?;
    }
    verify(&db, path)?;
    db.pragma_update(None, "journal_mode", "wal")
        .map_err(fail)?;
    // In WAL mode, NORMAL can lose the last commits to a power cut but never the file.
    db.pragma_update(None, "synchronous", "normal")
        .map_err(fail)?;
    db.pragma_update(None, "journal_size_limit", 4 << 20)
        .map_err(fail)?;
    Ok(db)
}

/// Opens the file for reading.
pub(crate) fn open_to_read(path: &Path) -> Result<Connection, RecordError> {
    let db = Connection::open_with_flags(
        path,
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )
    .map_err(|source| RecordError::Open {
        path: path.to_owned(),
        source,
    })?;
    db.busy_timeout(std::time::Duration::from_secs(2))
        .map_err(|source| classify(path, "preparing it", source))?;
    verify(&db, path)?;
    Ok(db)
}

fn verify(db: &Connection, path: &Path) -> Result<(), RecordError> {
    let pragma = |name| {
        db.pragma_query_value(None, name, |row| row.get::<_, i64>(0))
            .map_err(|source| classify(path, "reading its header", source))
    };
    if pragma("application_id")? != APPLICATION_ID {
        return Err(RecordError::NotARecord {
            path: path.to_owned(),
        });
    }
    let found = pragma("user_version")?;
    if found != FORMAT {
        return Err(RecordError::Format {
            path: path.to_owned(),
            found,
            known: FORMAT,
        });
    }
    Ok(())
}

/// Tells a file that is no database from other failures.
pub(crate) fn classify(path: &Path, doing: &'static str, source: rusqlite::Error) -> RecordError {
    match source.sqlite_error_code() {
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => RecordError::NotARecord {
            path: path.to_owned(),
        },
        _ => RecordError::Database {
            path: path.to_owned(),
            doing,
            source,
        },
    }
}
