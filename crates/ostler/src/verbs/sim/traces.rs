//! What Linux's tracer would have written of a run's cells, each in a file of its own, as the lab leaves them.
//!
//! As a record, a trace is under another name until its cell is over ([`super::records`]).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::Context as _;
use ostler_outcome::events::Cell;

use super::records::ready;

/// What readers of traces look for.
const HEADER: &str = "# tracer: nop\n#\n";

/// Those of cells that are under way.
pub struct Traces {
    folder: PathBuf,
    open: Mutex<BTreeMap<u32, io::Result<BufWriter<File>>>>,
}

impl Traces {
    /// None is there yet of these cells, or it stays, and nothing is run.
    pub fn new(folder: &Path, cells: &[Cell]) -> anyhow::Result<Traces> {
        ready(folder, cells, trace_of, "--trace")?;
        Ok(Traces {
            folder: folder.to_owned(),
            open: Mutex::new(BTreeMap::new()),
        })
    }

    /// More of a cell's, from the thread that runs it. That it can't be written is told at the cell's end.
    pub fn keep(&self, cell: &Cell, text: &str) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let file = open.entry(cell.index).or_insert_with(|| self.start(cell));
        if let Ok(writer) = file
            && let Err(error) = writer.write_all(text.as_bytes())
        {
            *file = Err(error);
        }
    }

    fn start(&self, cell: &Cell) -> io::Result<BufWriter<File>> {
        let part = part_of(&trace_of(&self.folder, cell));
        part.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        let mut writer = BufWriter::new(File::create(part)?);
        writer.write_all(HEADER.as_bytes())?;
        Ok(writer)
    }

    /// A cell is over, and its trace whole.
    pub fn ended(&self, cell: &Cell) -> anyhow::Result<()> {
        let file = {
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            open.remove(&cell.index)
        };
        let Some(file) = file else {
            return Ok(());
        };
        let trace = trace_of(&self.folder, cell);
        let doing = || format!("could not write {}", trace.display());
        file.and_then(|mut writer| writer.flush())
            .with_context(doing)?;
        std::fs::rename(part_of(&trace), &trace).with_context(doing)
    }
}

fn trace_of(folder: &Path, cell: &Cell) -> PathBuf {
    folder.join(format!("cell-{}/trace.txt", cell.index))
}

fn part_of(trace: &Path) -> PathBuf {
    trace.with_extension("txt.part")
}
