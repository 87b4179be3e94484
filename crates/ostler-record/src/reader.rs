//! Finds periods in a record, also while it is being written.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ostler_model::{Facts, Intent, State};
use rusqlite::{Connection, OptionalExtension, Row};

use crate::store::{classify, open_to_read, sql, unsql};
use crate::{Period, RecordError, Wall, block};

/// What a record covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Span {
    /// Its first period.
    pub first: Wall,
    /// Its last period.
    pub last: Wall,
}

/// A record, open for reading.
pub struct Reader {
    path: PathBuf,
    db: Connection,
}

/// A block's row, its body still compressed.
struct Raw {
    id: i64,
    run: i64,
    facts: i64,
    intent: i64,
    body: Vec<u8>,
}

const COLUMNS: &str = "id, run, facts, intent, body";

impl Raw {
    fn read(row: &Row<'_>) -> rusqlite::Result<Raw> {
        Ok(Raw {
            id: row.get(0)?,
            run: row.get(1)?,
            facts: row.get(2)?,
            intent: row.get(3)?,
            body: row.get(4)?,
        })
    }
}

impl Reader {
    /// Opens a record.
    pub fn open(path: &Path) -> Result<Reader, RecordError> {
        Ok(Reader {
            path: path.to_owned(),
            db: open_to_read(path)?,
        })
    }

    /// What it covers; `None` when it is empty.
    pub fn span(&self) -> Result<Option<Span>, RecordError> {
        self.db
            .query_row(
                "select min(wall_first), max(wall_last) from block",
                [],
                |row| {
                    let first: Option<i64> = row.get(0)?;
                    let last: Option<i64> = row.get(1)?;
                    Ok(first.zip(last).map(|(first, last)| Span {
                        first: Wall(unsql(first)),
                        last: Wall(unsql(last)),
                    }))
                },
            )
            .map_err(|source| self.fail(source))
    }

    /// The last period at or before this time.
    pub fn at(&self, wall: Wall) -> Result<Option<Period>, RecordError> {
        let raw = self
            .db
            .query_row(
                &format!(
                    "select {COLUMNS} from block where wall_first <= ?1 order by id desc limit 1"
                ),
                [sql(wall.0)],
                Raw::read,
            )
            .optional()
            .map_err(|source| self.fail(source))?;
        let Some(raw) = raw else {
            return Ok(None);
        };
        let mut periods = self.decode(&raw, &mut Contexts::default())?;
        periods.retain(|period| period.wall <= wall);
        Ok(periods.pop())
    }

    /// The periods of a range of time, both ends included, in order. A damaged block is an item of its own, and those after it follow.
    pub fn range(&self, from: Wall, to: Wall) -> Periods<'_> {
        self.periods(from, to, "")
    }

    /// Those periods of a range whose plan asks for something new.
    pub fn changes(
        &self,
        from: Wall,
        to: Wall,
    ) -> impl Iterator<Item = Result<Period, RecordError>> {
        let mut last: Option<Arc<ostler_model::Plan>> = None;
        // The last plan before the range says whether the first of it is new.
        if let Ok(Some(before)) = self.at(Wall(from.0.saturating_sub(1))) {
            last = Some(before.plan);
        }
        self.periods(from, to, "and changes > 0")
            .filter(move |period| match period {
                Err(_) => true,
                Ok(period) => {
                    let new = last
                        .as_ref()
                        .is_none_or(|last| !last.same_wishes(&period.plan));
                    last = Some(Arc::clone(&period.plan));
                    new
                }
            })
    }

    fn periods(&self, from: Wall, to: Wall, filter: &str) -> Periods<'_> {
        Periods {
            reader: self,
            sql: format!(
                "select {COLUMNS} from block where id > ?1 and wall_last >= ?2 and wall_first <= ?3 {filter} order by id limit 1"
            ),
            after: 0,
            from,
            to,
            contexts: Contexts::default(),
            ready: Vec::new().into_iter(),
            done: false,
        }
    }

    fn fail(&self, source: rusqlite::Error) -> RecordError {
        classify(&self.path, "reading", source)
    }

    fn decode(&self, raw: &Raw, contexts: &mut Contexts) -> Result<Vec<Period>, RecordError> {
        let facts = self.context("facts", raw.facts, &mut contexts.facts)?;
        let intent = self.context("intent", raw.intent, &mut contexts.intents)?;
        let mut periods = block::decode(&format!("block {}", raw.id), &raw.body, &facts, &intent)?;
        let (Some(first), Some(last)) = (periods.first(), periods.last()) else {
            return Ok(periods);
        };
        let mut statement = self
            .db
            .prepare_cached(
                "select seq, body from checkpoint where run = ?1 and seq between ?2 and ?3",
            )
            .map_err(|source| self.fail(source))?;
        let span = (sql(first.snapshot.seq), sql(last.snapshot.seq));
        let rows = statement
            .query_map((raw.run, span.0, span.1), |row| {
                Ok((row.get::<_, i64>(0)?, row.get::<_, Vec<u8>>(1)?))
            })
            .map_err(|source| self.fail(source))?;
        for row in rows {
            let (seq, body) = row.map_err(|source| self.fail(source))?;
            let state: State = block::decode_one(&format!("checkpoint {seq}"), &body)?;
            if let Some(period) = periods.iter_mut().find(|p| p.snapshot.seq == unsql(seq)) {
                period.before = Some(Arc::new(state));
            }
        }
        Ok(periods)
    }

    fn context<T: serde::de::DeserializeOwned>(
        &self,
        kind: &str,
        row: i64,
        known: &mut BTreeMap<i64, Arc<T>>,
    ) -> Result<Arc<T>, RecordError> {
        if let Some(context) = known.get(&row) {
            return Ok(Arc::clone(context));
        }
        let what = format!("{kind} {row}");
        let body: Option<Vec<u8>> = self
            .db
            .query_row("select body from context where id = ?1", [row], |row| {
                row.get(0)
            })
            .optional()
            .map_err(|source| self.fail(source))?;
        let Some(body) = body else {
            return Err(RecordError::Damaged {
                what,
                why: "it is missing".to_owned(),
            });
        };
        let context: Arc<T> = Arc::new(block::decode_one(&what, &body)?);
        // The contexts of a long range are few at a time: forget all rather than grow without end.
        if known.len() >= 64 {
            known.clear();
        }
        known.insert(row, Arc::clone(&context));
        Ok(context)
    }
}

#[derive(Default)]
struct Contexts {
    facts: BTreeMap<i64, Arc<Facts>>,
    intents: BTreeMap<i64, Arc<Intent>>,
}

/// Periods of a range, read a block at a time.
pub struct Periods<'r> {
    reader: &'r Reader,
    sql: String,
    after: i64,
    from: Wall,
    to: Wall,
    contexts: Contexts,
    ready: std::vec::IntoIter<Period>,
    done: bool,
}

impl Iterator for Periods<'_> {
    type Item = Result<Period, RecordError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(period) = self
                .ready
                .find(|period| (self.from..=self.to).contains(&period.wall))
            {
                return Some(Ok(period));
            }
            if self.done {
                return None;
            }
            let reader = self.reader;
            let next = reader
                .db
                .prepare_cached(&self.sql)
                .and_then(|mut statement| {
                    statement
                        .query_row((self.after, sql(self.from.0), sql(self.to.0)), Raw::read)
                        .optional()
                });
            let raw = match next {
                Ok(Some(raw)) => raw,
                Ok(None) => {
                    self.done = true;
                    return None;
                }
                Err(source) => {
                    // The tree of the table itself is broken: nothing after it can be found.
                    self.done = true;
                    return Some(Err(reader.fail(source)));
                }
            };
            self.after = raw.id;
            match reader.decode(&raw, &mut self.contexts) {
                Ok(periods) => self.ready = periods.into_iter(),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}
