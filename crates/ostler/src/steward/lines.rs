//! `ostler run --json`: a line for each period on standard output, for whoever runs the steward as a child.
//!
//! A reader that is slow must not hold the loop up, so the lines go through a bounded queue and a thread; what doesn't fit is dropped, and the next line
//! says how many were.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use anyhow::Context as _;
use ostler_model::{BoostOutcome, ForeignChange, Groups, Nanos};
use ostler_record::{Cost, Period, Wall};
use serde::Serialize;

use super::view::{Busy, GuestStatus, View};

/// Lines that may wait to be written.
const QUEUE_LINES: usize = 256;

/// For how long a reader may take nothing before he is given up, once the steward ends: he mustn't hold that up either.
const PATIENCE: Duration = Duration::from_secs(2);

/// A period in short.
#[derive(Serialize)]
pub(super) struct Line<'a> {
    wall: Wall,
    at: Nanos,
    seq: u64,
    generation: u64,
    /// Whether the plan asks for something new.
    changed: bool,
    acting: bool,
    groups: Groups,
    busy: Busy,
    guests: Vec<GuestStatus>,
    /// Why, as sentences.
    reasons: Vec<String>,
    violations: Vec<String>,
    written: u32,
    failures: Vec<String>,
    /// Values that others changed, and what was done about it.
    foreign: Vec<ForeignChange>,
    /// What the scheduler of vCPUs has done so far, while there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    boost: Option<&'a BoostOutcome>,
    cost: Cost,
    missed_periods: u64,
    dropped_lines: u64,
}

/// Writes lines. Dropping it writes what is queued, as long as somebody reads.
pub struct Lines {
    queue: Option<SyncSender<String>>,
    /// Where the thread says that it has ended.
    ended: Receiver<()>,
    written: Arc<AtomicU64>,
    dropped: u64,
    last_seq: u64,
}

impl Lines {
    /// Starts the thread, for standard output.
    pub fn start() -> anyhow::Result<Lines> {
        Lines::to(std::io::stdout())
    }

    fn to(mut out: impl Write + Send + 'static) -> anyhow::Result<Lines> {
        let (queue, lines) = sync_channel::<String>(QUEUE_LINES);
        let (ends, ended) = sync_channel(1);
        let written = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&written);
        std::thread::Builder::new()
            .name("lines".to_owned())
            .spawn(move || {
                // Hung up on when the thread ends, however it does.
                let _ends = ends;
                for line in lines {
                    // A reader that closed its end has seen enough; the steward goes on.
                    if out
                        .write_all(line.as_bytes())
                        .and_then(|()| out.flush())
                        .is_err()
                    {
                        return;
                    }
                    counter.fetch_add(1, Ordering::Relaxed);
                }
            })
            .context("could not start the thread that prints periods")?;
        Ok(Lines {
            queue: Some(queue),
            ended,
            written,
            dropped: 0,
            last_seq: 0,
        })
    }

    /// Offers the last period; one that was offered already, or could not be sensed, makes no line.
    pub fn offer(&mut self, view: &View) {
        let Some(last) = view.last.as_deref() else {
            return;
        };
        if last.snapshot.seq == self.last_seq {
            return;
        }
        self.last_seq = last.snapshot.seq;
        if let Ok(text) = serde_json::to_string(&line(view, last, self.dropped)) {
            self.write(text);
        }
    }

    fn write(&mut self, mut text: String) {
        text.push('\n');
        let queue = self.queue.as_ref();
        if let Some(Err(TrySendError::Full(_))) = queue.map(|queue| queue.try_send(text)) {
            self.dropped += 1;
        }
    }
}

/// The line of a period.
pub(super) fn line<'a>(view: &View, last: &'a Period, dropped_lines: u64) -> Line<'a> {
    let status = view.status();
    let outcome = last.outcome.as_ref();
    Line {
        wall: last.wall,
        at: last.snapshot.at,
        seq: last.snapshot.seq,
        generation: last.plan.generation,
        changed: view
            .last_change
            .as_ref()
            .is_some_and(|change| change.snapshot.seq == last.snapshot.seq),
        acting: view.acting,
        groups: status.groups,
        busy: status.busy,
        guests: status.guests,
        reasons: last.reasons.iter().map(ToString::to_string).collect(),
        violations: last.violations.clone(),
        written: outcome.map_or(0, |outcome| outcome.written),
        failures: outcome.map_or_else(Vec::new, |outcome| {
            outcome
                .failures
                .iter()
                .map(|failure| {
                    format!("{} to {}: {}", failure.target, failure.value, failure.error)
                })
                .collect()
        }),
        foreign: outcome.map_or_else(Vec::new, |outcome| outcome.foreign.clone()),
        boost: outcome.and_then(|outcome| outcome.boost.as_ref()),
        cost: last.cost,
        missed_periods: status.missed_periods,
        dropped_lines,
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.queue = None;
        let mut before = None;
        // A thread that waits for such a reader ends with the process.
        while self.ended.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            let written = self.written.load(Ordering::Relaxed);
            if before.replace(written) == Some(written) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, BufRead as _, BufReader};
    use std::sync::mpsc;

    use super::*;

    /// Whether it ends, instead of waiting for ever.
    fn ends(drops: Lines) -> bool {
        let (told, heard) = mpsc::channel();
        std::thread::spawn(move || {
            drop(drops);
            let _ = told.send(()); // who asked may have given up
        });
        heard.recv_timeout(Duration::from_mins(1)).is_ok()
    }

    #[test]
    fn what_is_queued_is_written_at_the_end_though_the_reader_is_slow() {
        let (reads, writes) = io::pipe().expect("a pipe");
        let mut lines = Lines::to(writes).expect("a thread");
        // More than a pipe holds.
        let long = "x".repeat(4096);
        for number in 0..QUEUE_LINES {
            lines.write(format!("{number} {long}"));
        }
        let reader = std::thread::spawn(move || {
            let numbers = BufReader::new(reads).lines().map_while(Result::ok);
            numbers
                .map(|line| {
                    std::thread::yield_now();
                    line.split(' ').next().map(str::to_owned)
                })
                .collect::<Vec<_>>()
        });
        assert!(ends(lines));
        let numbers = reader.join().expect("a reader");
        let all = (0..QUEUE_LINES).map(|number| Some(number.to_string()));
        assert!(numbers.into_iter().eq(all));
    }

    #[test]
    fn a_reader_that_takes_nothing_holds_nobody_up() {
        let (reads, writes) = io::pipe().expect("a pipe");
        let mut lines = Lines::to(writes).expect("a thread");
        let long = "x".repeat(4096);
        for _ in 0..2 * QUEUE_LINES {
            lines.write(long.clone());
        }
        assert!(lines.dropped > 0, "there was no room for all");
        assert!(ends(lines), "it waits for a reader that takes nothing");
        drop(reads);
    }

    #[test]
    fn a_reader_that_has_gone_holds_nobody_up() {
        let (reads, writes) = io::pipe().expect("a pipe");
        let mut lines = Lines::to(writes).expect("a thread");
        drop(reads);
        lines.write("a line".to_owned());
        assert!(ends(lines));
    }
}
