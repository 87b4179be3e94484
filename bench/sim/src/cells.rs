//! What runs of the lab tell of their cells: the seconds of a load, whose threads are whose, and where a trace is.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use ostler_load::schedule::{Arrival, Plan, Schedule, Step};
use ostler_outcome::events::{Cell, Event, Stamped};
use ostler_record::{Reader, Wall};
use serde_json::Value;

use super::tails::Kind;

/// A trace's.
pub type Lines = std::io::Lines<BufReader<File>>;

/// A second of a load.
#[derive(Clone, Copy)]
pub struct Window {
    /// When it began and ended, s on the host's clock.
    pub from: f64,
    pub to: f64,
    /// Requests due a second, and how many were answered of it.
    pub rate: f64,
    pub answers: f64,
    /// It is its step's first.
    pub first: bool,
}

/// When a sample was taken, s, and the CPU time of each guest since the one before, s.
pub type Taken = (f64, BTreeMap<String, f64>);

/// A cell's load and samples.
pub struct Told {
    pub cell: Cell,
    pub windows: Vec<Window>,
    pub samples: Vec<Taken>,
    /// The load's seed.
    pub seed: u64,
}

/// The cells of a run's events, with what their loads and samples were.
pub fn told(file: &Path) -> Result<Vec<Told>> {
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("could not read {}", file.display()))?;
    let mut cells: BTreeMap<u32, Told> = BTreeMap::new();
    let mut starts: BTreeMap<u32, f64> = BTreeMap::new();
    for line in text.lines() {
        // A newer or older version may say more.
        let Ok(Stamped { t_ms, event }) = serde_json::from_str(line) else {
            continue;
        };
        match event {
            Event::CellStart { cell, .. } => {
                let (windows, samples) = (Vec::new(), Vec::new());
                let index = cell.index;
                let told = Told {
                    cell,
                    windows,
                    samples,
                    seed: 0,
                };
                cells.insert(index, told);
            }
            Event::Load { cell, line } => {
                let number = |key: &str| line.get(key).and_then(Value::as_f64);
                match line.get("kind").and_then(Value::as_str) {
                    Some("start") => {
                        let at = number("start_monotonic_ns").context("a start without a time")?;
                        starts.insert(cell, at / 1e9);
                        if let Some(told) = cells.get_mut(&cell) {
                            told.seed = line.get("seed").and_then(Value::as_u64).unwrap_or(0);
                        }
                    }
                    Some("window") => {
                        let (Some(told), Some(at)) = (cells.get_mut(&cell), starts.get_mut(&cell))
                        else {
                            continue;
                        };
                        let seconds = number("seconds").context("a window without a length")?;
                        let window = Window {
                            from: *at,
                            to: *at + seconds,
                            rate: number("rate_per_s").unwrap_or(0.0),
                            answers: number("completed").unwrap_or(0.0),
                            first: number("window") == Some(0.0),
                        };
                        *at = window.to;
                        told.windows.push(window);
                    }
                    _ => {}
                }
            }
            Event::Sample {
                cell: Some(cell),
                guests,
                ..
            } => {
                if let Some(told) = cells.get_mut(&cell) {
                    let time = |ms: u64| ms as f64 / 1e3;
                    let guests = guests.into_iter().map(|g| (g.name, time(g.cpu_ms)));
                    told.samples.push((time(t_ms), guests.collect()));
                }
            }
            _ => {}
        }
    }
    Ok(cells.into_values().collect())
}

/// When the requests of a load were due, of a generator of one thread.
pub fn due(told: &Told) -> Result<Vec<f64>> {
    let Some(first) = told.windows.first() else {
        return Ok(Vec::new());
    };
    let steps = told
        .windows
        .chunk_by(|one, next| !next.first && whole(one.rate) == whole(next.rate));
    let seconds = |step: &[Window]| {
        let length =
            step.last().map_or(0.0, |last| last.to) - step.first().map_or(0.0, |first| first.from);
        Duration::from_secs_f64(length.max(0.0)).as_nanos()
    };
    let steps = steps.map(|step| {
        Ok(Step {
            rate_per_s: step[0].rate,
            duration_ns: u64::try_from(seconds(step))?,
        })
    });
    let plan = Plan::new(steps.collect::<Result<_>>()?)?;
    let at = |arrival: Arrival| first.from + arrival.intended_ns as f64 / 1e9;
    Ok(Schedule::new(plan, told.seed, 0).map(at).collect())
}

/// The threads of a guest, as the steward saw them.
pub fn threads(record: &Path, guest: &str) -> Result<HashMap<u32, Kind>> {
    let reader = Reader::open(record)?;
    let mut all = HashMap::new();
    for period in reader.range(Wall::MIN, Wall::MAX) {
        let period = period?;
        let found = period.snapshot.guests.iter().find(|g| g.name == guest);
        let Some(found) = found else { continue };
        all.extend(found.vcpus.iter().map(|vcpu| (vcpu.tid.0, Kind::Vcpu)));
        let queues = found.vhost.iter().filter(|vhost| vhost.queue.is_some());
        all.extend(queues.map(|vhost| (vhost.tid.0, Kind::Worker)));
    }
    Ok(all)
}

/// Has each step of cells' loads read from their traces: told which run, cell, policy and rate it is, the guest's threads, the trace, and the step's time.
pub fn each_step(
    runs: &[PathBuf],
    mut read: impl FnMut(&str, &HashMap<u32, Kind>, Lines, std::ops::Range<f64>) -> Result<()>,
) -> Result<()> {
    for run in runs {
        for told in told(&run.join("events.jsonl"))? {
            let cell = run.join(format!("results/cell-{}", told.cell.index));
            let record = cell.join("record.db");
            if !record.exists() {
                // Without a steward nobody has said whose threads are whose.
                continue;
            }
            let threads = threads(&record, &told.cell.guest)?;
            let trace = cell.join("trace.txt");
            let steps = told
                .windows
                .chunk_by(|one, next| whole(one.rate) == whole(next.rate));
            for step in steps {
                let (Some(first), Some(last)) = (step.first(), step.last()) else {
                    continue;
                };
                let file = File::open(&trace)
                    .with_context(|| {
                        format!(
                            "could not read {}; name runs that were traced (`ostler lab run SCENARIO --trace sched_switch,sched_waking`)",
                            trace.display()
                        )
                    })?;
                let which = format!(
                    "{} / {} / {}, {} a second",
                    run.display(),
                    told.cell.index,
                    told.cell.policy,
                    first.rate
                );
                let lines = BufReader::new(file).lines();
                read(&which, &threads, lines, first.from..last.to)?;
            }
        }
    }
    Ok(())
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "rates are whole and positive where they are compared"
)]
pub fn whole(rate: f64) -> u64 {
    rate as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_were_due_when_the_generator_has_them() {
        let cell = Cell {
            index: 0,
            round: 0,
            policy: "p".to_owned(),
            load: 0,
            guest: "lc".to_owned(),
        };
        let window = |from: f64, to: f64, rate, first| Window {
            from,
            to,
            rate,
            answers: 0.0,
            first,
        };
        // The second step has the first's rate, and ends within a second.
        let windows = vec![
            window(57.0, 58.0, 400.0, true),
            window(58.0, 59.0, 400.0, false),
            window(59.0, 59.5, 400.0, true),
            window(59.5, 60.5, 900.0, true),
        ];
        let told = Told {
            cell,
            windows,
            samples: Vec::new(),
            seed: 7,
        };
        let plan = Plan::parse("400x2,400x0.5,900x1").expect("a plan");
        let wanted: Vec<f64> = Schedule::new(plan, 7, 0)
            .map(|arrival| 57.0 + arrival.intended_ns as f64 / 1e9)
            .collect();
        assert!(wanted.len() > 1500);
        assert_eq!(due(&told).expect("a plan"), wanted);
    }
}
