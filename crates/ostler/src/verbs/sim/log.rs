//! What a run has told so far, in a file that it can be gone on with.
//!
//! A cell is written when it is over, whole; so what a run that was cut off has left is whole cells, and perhaps one that is torn, which is run again.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use ostler_outcome::events::{Event, Stamped};

/// What a run has told.
pub struct Log {
    file: Option<(PathBuf, File)>,
    events: Vec<Stamped>,
    ended: BTreeSet<u32>,
}

impl Log {
    /// One that nothing is kept of.
    pub fn in_memory(begins: &[Stamped]) -> Log {
        Log {
            file: None,
            events: begins.to_vec(),
            ended: BTreeSet::new(),
        }
    }

    /// One in a file: a new one, or what is there of the same run by the same program.
    pub fn open(path: &Path, begins: &[Stamped]) -> anyhow::Result<Log> {
        let mut log = Log::in_memory(begins);
        if path.exists() {
            log.read(path, begins)?;
        }
        // What was torn goes, and nothing is lost if we are cut off meanwhile.
        let new = path.with_extension("new");
        let wrong = || format!("could not write {}", path.display());
        let mut file = File::create(&new).with_context(wrong)?;
        file.write_all(lines(&log.events)?.as_bytes())
            .and_then(|()| file.sync_all())
            .with_context(wrong)?;
        std::fs::rename(&new, path).with_context(wrong)?;
        let file = OpenOptions::new()
            .append(true)
            .open(path)
            .with_context(wrong)?;
        log.file = Some((path.to_owned(), file));
        Ok(log)
    }

    fn read(&mut self, path: &Path, begins: &[Stamped]) -> anyhow::Result<()> {
        let told = || format!("could not read {}", path.display());
        let file = File::open(path).with_context(told)?;
        let mut there = Vec::new();
        for line in BufReader::new(file).lines() {
            let line = line.with_context(told)?;
            // The last line of a run that was cut off may be torn; nothing after it counts.
            let Ok(event) = serde_json::from_str::<Stamped>(&line) else {
                break;
            };
            there.push(event);
        }
        // Cut off before it had said what it is.
        if there.len() < begins.len() {
            return Ok(());
        }
        let named = |events: &[Stamped]| {
            let revision = events.iter().find_map(|event| match &event.event {
                Event::Run { revision, .. } => Some(revision.clone()),
                _ => None,
            });
            let drawn = events.iter().find_map(|event| match &event.event {
                Event::Simulates { scenario, seed } => Some((scenario.clone(), *seed)),
                _ => None,
            });
            (revision, drawn)
        };
        let (then, now) = (named(&there), named(begins));
        if then.1 != now.1 {
            bail!(
                "{} keeps a run of another scenario, other policies or another seed; name another file, or remove it",
                path.display()
            );
        }
        if then.0 != now.0 {
            bail!(
                "{} keeps a run by revision {}, and this is {}: cells of both can't be compared; name another file, or remove it",
                path.display(),
                then.0.unwrap_or_default(),
                now.0.unwrap_or_default()
            );
        }
        // Whole cells, as they follow each other.
        let mut cell = Vec::new();
        for event in there.into_iter().skip(begins.len()) {
            let end = match &event.event {
                Event::CellEnd { cell, .. } => Some(*cell),
                _ => None,
            };
            cell.push(event);
            if let Some(index) = end {
                self.ended.insert(index);
                self.events.append(&mut cell);
            }
        }
        Ok(())
    }

    /// Adds a cell's.
    pub fn add(&mut self, told: Vec<Stamped>) -> anyhow::Result<()> {
        if let Some((path, file)) = &mut self.file {
            file.write_all(lines(&told)?.as_bytes())
                .with_context(|| format!("could not write {}", path.display()))?;
        }
        for event in &told {
            if let Event::CellEnd { cell, .. } = &event.event {
                self.ended.insert(*cell);
            }
        }
        self.events.extend(told);
        Ok(())
    }

    /// Whether a cell is there.
    pub fn has(&self, cell: u32) -> bool {
        self.ended.contains(&cell)
    }

    /// How many are.
    pub fn cells(&self) -> usize {
        self.ended.len()
    }

    /// All of it.
    pub fn events(&self) -> &[Stamped] {
        &self.events
    }
}

fn lines(events: &[Stamped]) -> anyhow::Result<String> {
    let mut text = String::new();
    for event in events {
        text.push_str(&serde_json::to_string(event).context("an event is always JSON")?);
        text.push('\n');
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use ostler_outcome::events::Counters;

    use super::*;

    fn begins(seed: u64, revision: &str) -> Vec<Stamped> {
        let run = Event::Run {
            revision: revision.to_owned(),
            started: String::new(),
            qemu: String::new(),
            clock: ostler_outcome::report::Clock::Simulated,
        };
        let drawn = Event::Simulates {
            scenario: "name = \"t\"".to_owned(),
            seed,
        };
        [run, drawn]
            .map(|event| Stamped { t_ms: 0, event })
            .to_vec()
    }

    fn cell(index: u32) -> Vec<Stamped> {
        let stage = Event::Stage {
            name: format!("of cell {index}"),
        };
        let end = Event::CellEnd {
            cell: index,
            counters: Counters::default(),
            problems: Vec::new(),
        };
        [stage, end]
            .map(|event| Stamped { t_ms: 5, event })
            .to_vec()
    }

    #[test]
    fn a_run_that_was_cut_off_anywhere_goes_on_with_its_whole_cells() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.jsonl");
        let mut log = Log::open(&path, &begins(1, "a")).unwrap();
        for index in [0, 2, 1] {
            log.add(cell(index)).unwrap();
        }
        let whole = std::fs::read(&path).unwrap();
        for cut in 0..=whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let again = Log::open(&path, &begins(1, "a")).unwrap();
            let kept = again.events().len() - 2;
            assert_eq!(kept % 2, 0, "whole cells");
            assert_eq!(again.events()[2..], log.events()[2..2 + kept]);
            assert_eq!(again.cells(), kept / 2);
            let text = std::fs::read_to_string(&path).unwrap();
            assert_eq!(text, lines(again.events()).unwrap());
        }
        assert_eq!(std::fs::read(&path).unwrap(), whole);
    }

    #[test]
    fn a_file_of_another_run_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.jsonl");
        let mut log = Log::open(&path, &begins(1, "a")).unwrap();
        log.add(cell(0)).unwrap();
        let before = std::fs::read(&path).unwrap();
        for (begins, why) in [(begins(2, "a"), "seed"), (begins(1, "b"), "revision a")] {
            let error = Log::open(&path, &begins).err().unwrap().to_string();
            assert!(
                error.contains(why) && error.contains("name another file"),
                "{error}"
            );
            assert_eq!(std::fs::read(&path).unwrap(), before);
        }
    }
}
