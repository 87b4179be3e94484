//! Writes the record on a thread of its own, so that a slow disk costs periods of the record and never one of the loop.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ostler_model::{Bytes, Nanos};

use crate::store::Store;
use crate::{Period, RecordError};

/// Periods that may wait to be written: 25 s at 100 ms.
pub const QUEUE_PERIODS: usize = 256;

/// Periods in a block at the most.
const BLOCK_PERIODS_MAX: usize = 32;

/// How long a period waits for others to share its block. What a crash may lose.
const BLOCK_TIME: Duration = Duration::from_secs(1);

/// What is kept at the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the file.
    pub size_max: Bytes,
    /// Age of a period.
    pub age_max: Nanos,
}

/// How the recorder fares.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Stats {
    /// Periods written.
    pub written: u64,
    /// Periods dropped because the queue was full.
    pub dropped: u64,
    /// Periods lost to failures.
    pub failed: u64,
    /// Bytes of the file in use.
    pub bytes: u64,
    /// The last failure.
    pub last_error: Option<String>,
}

#[derive(Default)]
struct Counters {
    written: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
    bytes: AtomicU64,
    last_error: Mutex<Option<String>>,
}

/// Hands periods to the thread that writes them. Dropping it writes what is queued and ends the thread.
pub struct Recorder {
    queue: Option<SyncSender<Period>>,
    thread: Option<JoinHandle<()>>,
    counters: Arc<Counters>,
    moved: Option<PathBuf>,
}

impl Recorder {
    /// Opens the record, making it where there is none, and starts the thread.
    pub fn start(path: &Path, limits: Limits) -> Result<Recorder, RecordError> {
        let (store, moved) = Store::open(path, limits)?;
        let counters = Arc::new(Counters::default());
        let (queue, periods) = sync_channel(QUEUE_PERIODS);
        let thread = std::thread::Builder::new()
            .name("record".to_owned())
            .spawn({
                let counters = Arc::clone(&counters);
                move || write(store, &periods, &counters)
            })
            .map_err(RecordError::Thread)?;
        Ok(Recorder {
            queue: Some(queue),
            thread: Some(thread),
            counters,
            moved,
        })
    }

    /// Where a damaged file that stood in the way was moved to.
    pub fn moved_aside(&self) -> Option<&Path> {
        self.moved.as_deref()
    }

    /// Records a period; never waits. Says whether there was room.
    pub fn record(&self, period: Period) -> bool {
        let Some(queue) = &self.queue else {
            return false;
        };
        match queue.try_send(period) {
            Ok(()) => true,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.counters.dropped.fetch_add(1, Ordering::Relaxed);
                false
            }
        }
    }

    /// Records a period, and waits while there is no room: for whoever has no loop to keep. One that nobody writes has failed.
    pub fn keep(&self, period: Period) {
        let queue = self.queue.as_ref();
        if queue.is_none_or(|queue| queue.send(period).is_err()) {
            self.counters.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How it fares.
    pub fn stats(&self) -> Stats {
        let counters = &self.counters;
        Stats {
            written: counters.written.load(Ordering::Relaxed),
            dropped: counters.dropped.load(Ordering::Relaxed),
            failed: counters.failed.load(Ordering::Relaxed),
            bytes: counters.bytes.load(Ordering::Relaxed),
            last_error: counters
                .last_error
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone(),
        }
    }

    /// Writes what is queued, ends the thread, and says how it fared.
    pub fn finish(mut self) -> Stats {
        self.end();
        self.stats()
    }

    fn end(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed by its own hook; the record is the lesser loss.
            let _ = thread.join();
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.end();
    }
}

fn write(mut store: Store, periods: &Receiver<Period>, counters: &Counters) {
    counters.bytes.store(store.bytes(), Ordering::Relaxed);
    let mut block: Vec<Period> = Vec::with_capacity(BLOCK_PERIODS_MAX);
    while let Ok(first) = periods.recv() {
        let due = Instant::now() + BLOCK_TIME;
        block.push(first);
        while block.len() < BLOCK_PERIODS_MAX {
            match periods.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(period) => block.push(period),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        let count = block.len() as u64;
        match store.append(&block) {
            Ok(()) => {
                counters.written.fetch_add(count, Ordering::Relaxed);
            }
            Err(error) => {
                counters.failed.fetch_add(count, Ordering::Relaxed);
                let mut text = error.to_string();
                let mut source = std::error::Error::source(&error);
                while let Some(cause) = source {
                    text = format!("{text}: {cause}");
                    source = cause.source();
                }
                *counters
                    .last_error
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner) = Some(text);
            }
        }
        counters.bytes.store(store.bytes(), Ordering::Relaxed);
        block.clear();
    }
}
