//! What a run has told so far, in a file that it can be gone on with.
//!
//! A cell, or a fleet's host, is written when it is over, whole, and in its turn; so what a run that was cut off has left is the first of them, and perhaps one that is torn, which is run again.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use ostler_outcome::events::{Event, Stamped};
use ostler_outcome::fleet::{FleetEvent, HostOutcome};
use serde::Serialize;
use serde::de::DeserializeOwned;

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
        log.file = Some((path.to_owned(), begin(path, &log.events)?));
        Ok(log)
    }

    fn read(&mut self, path: &Path, begins: &[Stamped]) -> anyhow::Result<()> {
        let there: Vec<Stamped> = whole_lines(path)?;
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
                Event::Simulates {
                    scenario,
                    seed,
                    audited,
                } => Some((scenario.clone(), *seed, *audited)),
                _ => None,
            });
            (revision, drawn)
        };
        let (then, now) = (named(&there), named(begins));
        if then.1 != now.1 {
            bail!(
                "{} keeps a run of another scenario, other policies or another seed, or one with --audit where this is without, or the other way round; name another file, or remove it",
                path.display()
            );
        }
        same_revision(
            path,
            &then.0.unwrap_or_default(),
            &now.0.unwrap_or_default(),
        )?;
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

/// What came of a fleet's hosts so far.
pub struct Hosts {
    file: Option<(PathBuf, File)>,
    told: Vec<(String, f64, HostOutcome)>,
}

impl Hosts {
    /// Those that nothing is kept of.
    pub fn in_memory() -> Hosts {
        Hosts {
            file: None,
            told: Vec::new(),
        }
    }

    /// In a file: a new one, or what is there of the same run by the same program.
    pub fn open(path: &Path, begins: &FleetEvent) -> anyhow::Result<Hosts> {
        let mut events = vec![begins.clone()];
        if path.exists() {
            let mut there = whole_lines::<FleetEvent>(path)?.into_iter();
            // Otherwise it was cut off before it had said what it is.
            if let Some(first) = there.next() {
                same_fleet(path, &first, begins)?;
                events.extend(there);
            }
        }
        let file = begin(path, &events)?;
        let told = events.into_iter().filter_map(|event| match event {
            FleetEvent::Host {
                policy,
                oversubscription,
                outcome,
            } => Some((policy, oversubscription, outcome)),
            FleetEvent::Fleet { .. } => None,
        });
        Ok(Hosts {
            told: told.collect(),
            file: Some((path.to_owned(), file)),
        })
    }

    /// Adds a host's.
    pub fn add(&mut self, policy: &str, ratio: f64, outcome: HostOutcome) -> anyhow::Result<()> {
        if let Some((path, file)) = &mut self.file {
            let event = FleetEvent::Host {
                policy: policy.to_owned(),
                oversubscription: ratio,
                outcome: outcome.clone(),
            };
            file.write_all(lines(&[event])?.as_bytes())
                .with_context(|| format!("could not write {}", path.display()))?;
        }
        self.told.push((policy.to_owned(), ratio, outcome));
        Ok(())
    }

    /// Those under a policy at an oversubscription, in order.
    pub fn of(&self, policy: &str, ratio: f64) -> Vec<HostOutcome> {
        let mine = |told: &&(String, f64, HostOutcome)| {
            told.0 == policy && told.1.to_bits() == ratio.to_bits()
        };
        let mine = self.told.iter().filter(mine);
        let mut hosts: Vec<_> = mine.map(|(.., outcome)| outcome.clone()).collect();
        hosts.sort_by_key(|outcome| outcome.host);
        hosts.dedup_by_key(|outcome| outcome.host);
        hosts
    }
}

/// Whether a file's first line says what is to be run.
fn same_fleet(path: &Path, then: &FleetEvent, now: &FleetEvent) -> anyhow::Result<()> {
    let (
        FleetEvent::Fleet {
            revision: then_by, ..
        },
        FleetEvent::Fleet { revision: by, .. },
    ) = (then, now)
    else {
        bail!(
            "{} keeps no fleet's run; name another file, or remove it",
            path.display()
        );
    };
    let mut by_us = then.clone();
    if let FleetEvent::Fleet { revision, .. } = &mut by_us {
        revision.clone_from(by);
    }
    if by_us != *now {
        bail!(
            "{} keeps a run of another scenario, other policies, oversubscriptions or VMs, or another seed, or one with --audit where this is without, or the other way round; name another file, or remove it",
            path.display()
        );
    }
    same_revision(path, then_by, by)
}

fn same_revision(path: &Path, then: &str, now: &str) -> anyhow::Result<()> {
    if then != now {
        bail!(
            "{} keeps a run by revision {then}, and this is {now}: what came of both can't be compared; name another file, or remove it",
            path.display()
        );
    }
    Ok(())
}

/// What a file's lines say. The last line of a run that was cut off may be torn; nothing after it counts.
fn whole_lines<T: DeserializeOwned>(path: &Path) -> anyhow::Result<Vec<T>> {
    let told = || format!("could not read {}", path.display());
    let mut file = BufReader::new(File::open(path).with_context(told)?);
    let mut there = Vec::new();
    let mut line = Vec::new();
    while file.read_until(b'\n', &mut line).with_context(told)? > 0 {
        let whole = line.strip_suffix(b"\n");
        match whole.and_then(|line| serde_json::from_slice(line).ok()) {
            Some(event) => there.push(event),
            // What is no run of this kind isn't ours to begin anew.
            None if there.is_empty() && (whole.is_some() || !line.starts_with(b"{")) => bail!(
                "{} keeps something else than such a run; name another file, or remove it",
                path.display()
            ),
            None => break,
        }
        line.clear();
    }
    Ok(there)
}

/// Begins a file again with what of it counts, and goes on with it: what was torn goes, and nothing is lost if we are cut off meanwhile.
fn begin<T: Serialize>(path: &Path, events: &[T]) -> anyhow::Result<File> {
    let new = path.with_extension("new");
    let wrong = || format!("could not write {}", path.display());
    let mut file = File::create(&new).with_context(wrong)?;
    file.write_all(lines(events)?.as_bytes())
        .and_then(|()| file.sync_all())
        .with_context(wrong)?;
    std::fs::rename(&new, path).with_context(wrong)?;
    OpenOptions::new()
        .append(true)
        .open(path)
        .with_context(wrong)
}

fn lines<T: Serialize>(events: &[T]) -> anyhow::Result<String> {
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
            audited: false,
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
        // Cells whose books weren't kept twice are no part of a run whose are.
        let mut audit = begins(1, "a");
        if let Event::Simulates { audited, .. } = &mut audit[1].event {
            *audited = true;
        }
        let error = Log::open(&path, &audit).err().unwrap().to_string();
        assert!(error.contains("--audit"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }

    fn fleet(seed: u64, revision: &str, vms: &str) -> FleetEvent {
        FleetEvent::Fleet {
            revision: revision.to_owned(),
            scenario: "name = \"f\"".to_owned(),
            seed,
            oversubscription: vec![1.0, 0.1 + 0.2],
            vms: vms.to_owned(),
            audited: false,
        }
    }

    fn host(host: u32) -> HostOutcome {
        HostOutcome {
            host,
            // Of those that are read as their neighbour where digits aren't read to the last bit.
            busy: 0.1 + 0.2 + f64::from(host) / 3.0,
            energy_j: 1e-9 / 7.0 * f64::from(host + 1),
            ..HostOutcome::default()
        }
    }

    #[test]
    fn a_fleet_that_was_cut_off_anywhere_goes_on_with_its_whole_hosts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fleet.jsonl");
        let ratios = [1.0, 0.1 + 0.2];
        let order = || {
            let policies = ratios
                .into_iter()
                .flat_map(|ratio| ["a", "b"].map(|p| (p, ratio)));
            policies.flat_map(|(policy, ratio)| (0..2).map(move |at| (policy, ratio, at)))
        };
        let play = |path: &Path| {
            let mut log = Hosts::open(path, &fleet(1, "a", "v")).unwrap();
            for (policy, ratio, at) in order() {
                let there = log.of(policy, ratio);
                if there.iter().all(|outcome| outcome.host != at) {
                    log.add(policy, ratio, host(at)).unwrap();
                }
            }
            log
        };
        let all = play(&path);
        assert_eq!(all.of("b", ratios[1]), [host(0), host(1)]);
        assert_eq!(all.of("c", 1.0), []);
        let whole = std::fs::read(&path).unwrap();
        for cut in 0..whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let again = play(&path);
            assert_eq!(again.told, all.told);
            assert_eq!(std::fs::read(&path).unwrap(), whole, "cut at {cut}");
        }
    }

    #[test]
    fn a_file_of_another_fleet_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fleet.jsonl");
        let mut log = Hosts::open(&path, &fleet(1, "a", "v")).unwrap();
        log.add("a", 1.0, host(0)).unwrap();
        let before = std::fs::read(&path).unwrap();
        for (begins, why) in [
            (fleet(2, "a", "v"), "seed"),
            (fleet(1, "b", "v"), "revision a"),
            (fleet(1, "a", "w"), "VMs"),
        ] {
            let error = Hosts::open(&path, &begins).err().unwrap().to_string();
            assert!(
                error.contains(why) && error.contains("name another file"),
                "{error}"
            );
            assert_eq!(std::fs::read(&path).unwrap(), before);
        }
        // Cells are no hosts, hosts no cells, and other people's files neither.
        let cells = dir.path().join("cells.jsonl");
        drop(Log::open(&cells, &begins(1, "a")).unwrap());
        let notes = dir.path().join("notes");
        std::fs::write(&notes, "to be bought: hay").unwrap();
        for (kept, fleets) in [
            (&cells, true),
            (&path, false),
            (&notes, true),
            (&notes, false),
        ] {
            let before = std::fs::read(kept).unwrap();
            let error = if fleets {
                Hosts::open(kept, &fleet(1, "a", "v")).err()
            } else {
                Log::open(kept, &begins(1, "a")).err()
            };
            let error = error.unwrap().to_string();
            assert!(error.contains("something else"), "{error}");
            assert_eq!(std::fs::read(kept).unwrap(), before);
        }
    }
}
