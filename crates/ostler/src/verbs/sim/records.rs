//! The stewards' records of a run's cells, each in a file of its own, as the lab leaves them.
//!
//! A record is under another name until its cell is over, so that one that is there is whole, and what a run that was cut off has left isn't taken for one. Times
//! are the world's, from 1970 on.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, bail};
use ostler_model::{Bytes, Nanos};
use ostler_outcome::events::Cell;
use ostler_record::{Limits, Period, RecordError, Recorder};

/// All is kept.
const ALL: Limits = Limits {
    size_max: Bytes(u64::MAX),
    age_max: Nanos(u64::MAX),
};

/// Those of cells that are under way.
pub struct Records {
    folder: PathBuf,
    open: Mutex<BTreeMap<u32, Result<Arc<Recorder>, RecordError>>>,
}

impl Records {
    /// None is there yet of these cells, or it stays, and nothing is run.
    pub fn new(folder: &Path, cells: &[Cell]) -> anyhow::Result<Records> {
        ready(folder, cells, record_of, "--records")?;
        Ok(Records {
            folder: folder.to_owned(),
            open: Mutex::new(BTreeMap::new()),
        })
    }

    /// A period of a cell, from the thread that runs it.
    pub fn keep(&self, cell: &Cell, period: Period) {
        let recorder = {
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            let recorder = open.entry(cell.index);
            match recorder.or_insert_with(|| self.start(cell).map(Arc::new)) {
                Ok(recorder) => Arc::clone(recorder),
                // It is told at the cell's end.
                Err(_) => return,
            }
        };
        recorder.keep(period);
    }

    fn start(&self, cell: &Cell) -> Result<Recorder, RecordError> {
        let path = part_of(&record_of(&self.folder, cell));
        for suffix in ["", "-wal", "-shm"] {
            let mut left = path.as_os_str().to_owned();
            left.push(suffix);
            // What isn't there needn't be removed; what can't be is told by whoever opens it.
            let _ = std::fs::remove_file(&left);
        }
        Recorder::start(&path, ALL)
    }

    /// A cell is over, and its record whole.
    pub fn ended(&self, cell: &Cell) -> anyhow::Result<()> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(recorder) = open.remove(&cell.index) else {
            // It has no steward.
            return Ok(());
        };
        drop(open);
        let record = record_of(&self.folder, cell);
        let doing = || format!("could not write {}", record.display());
        // Its thread has told all, so it is nobody else's.
        let recorder = Arc::into_inner(recorder.with_context(doing)?).with_context(doing)?;
        let stats = recorder.finish();
        if stats.failed > 0 {
            let why = stats.last_error.unwrap_or_default();
            bail!("{}: {} periods are lost: {why}", doing(), stats.failed);
        }
        std::fs::rename(part_of(&record), &record).with_context(doing)
    }
}

/// A folder in which a run's cells keep files: none is there yet, or it stays.
pub fn ready(
    folder: &Path,
    cells: &[Cell],
    file_of: fn(&Path, &Cell) -> PathBuf,
    flag: &str,
) -> anyhow::Result<()> {
    for cell in cells {
        let file = file_of(folder, cell);
        if file.symlink_metadata().is_ok() {
            bail!(
                "{} is there already; name another folder for {flag}, or remove it",
                file.display()
            );
        }
    }
    std::fs::create_dir_all(folder)
        .with_context(|| format!("could not create the folder {}", folder.display()))
}

fn record_of(folder: &Path, cell: &Cell) -> PathBuf {
    folder.join(format!("cell-{}/record.db", cell.index))
}

fn part_of(record: &Path) -> PathBuf {
    record.with_extension("db.part")
}
