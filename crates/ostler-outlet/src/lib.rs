//! What a process says, for readers who may take nothing: lines of results, and a log.
//!
//! A pipe holds 64 KB; once it is full, whoever writes waits for its reader. A loop that looks after a host mustn't, nor may its end, at which all is put
//! back. So lines go through a bounded queue to a thread that waits instead. What doesn't fit is dropped and counted, and a reader who takes
//! nothing any more is given up at the end. A reader that has gone is no failure.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

/// Lines that may wait to be written.
pub const QUEUE_LINES: usize = 256;

/// For how long a reader may take nothing before he is given up, once the process ends.
const PATIENCE: Duration = Duration::from_secs(2);

/// A way out for lines. Dropping it closes it.
#[derive(Debug)]
pub struct Outlet {
    /// Gone once it is closed.
    queue: Mutex<Option<SyncSender<Vec<u8>>>>,
    /// Hung up on when the thread has ended.
    ended: Mutex<Receiver<()>>,
    written: Arc<AtomicU64>,
}

impl Outlet {
    /// Starts the thread that writes to `out`, called `name`.
    ///
    /// # Errors
    ///
    /// The kernel gives no thread.
    pub fn start(name: &str, mut out: impl Write + Send + 'static) -> io::Result<Self> {
        let (queue, lines) = sync_channel::<Vec<u8>>(QUEUE_LINES);
        let (ends, ended) = sync_channel(1);
        let written = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&written);
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                // Hung up on when the thread ends, however it does.
                let _ends = ends;
                for line in lines {
                    // A reader that closed its end has seen enough; the process goes on.
                    if out.write_all(&line).and_then(|()| out.flush()).is_err() {
                        return;
                    }
                    counter.fetch_add(1, Ordering::Relaxed);
                }
            })?;
        Ok(Self {
            queue: Mutex::new(Some(queue)),
            ended: Mutex::new(ended),
            written,
        })
    }

    /// Queues `line`, its end included; false if there was no room for it. It never waits. Once the reader has gone or this is closed, lines go nowhere.
    pub fn offer(&self, line: Vec<u8>) -> bool {
        let queue = hold(&self.queue);
        let offered = queue.as_ref().map(|queue| queue.try_send(line));
        !matches!(offered, Some(Err(TrySendError::Full(_))))
    }

    /// Writes what is queued, as long as somebody reads, and takes no more.
    pub fn close(&self) {
        *hold(&self.queue) = None;
        let ended = hold(&self.ended);
        let mut before = None;
        // A thread that waits for a reader who takes nothing ends with the process.
        while ended.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            let written = self.written.load(Ordering::Relaxed);
            if before.replace(written) == Some(written) {
                return;
            }
        }
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        self.close();
    }
}

/// Whoever panicked holding it left a whole value.
fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A log through an outlet, for `tracing_subscriber`: how many lines were dropped is told before the next one that isn't.
#[derive(Debug)]
pub struct Log {
    outlet: Arc<Outlet>,
    dropped: AtomicU64,
}

impl Log {
    /// A log by `outlet`. Who closes that has all of it written.
    #[must_use]
    pub fn by(outlet: Arc<Outlet>) -> Self {
        Self {
            outlet,
            dropped: AtomicU64::new(0),
        }
    }
}

impl Write for &Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        let mut text = Vec::with_capacity(line.len());
        if dropped > 0 {
            writeln!(text, "{dropped} lines are missing here: nobody read them")?;
        }
        text.extend_from_slice(line);
        if !self.outlet.offer(text) {
            self.dropped.fetch_add(dropped + 1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = &'a Log;

    fn make_writer(&'a self) -> &'a Log {
        self
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::sync::mpsc;

    use super::*;

    /// Whether it ends, instead of waiting for ever.
    fn ends(outlet: impl Send + 'static) -> bool {
        let (told, heard) = mpsc::channel();
        std::thread::spawn(move || {
            drop(outlet);
            let _ = told.send(()); // who asked may have given up
        });
        heard.recv_timeout(Duration::from_mins(1)).is_ok()
    }

    #[test]
    fn what_is_queued_is_written_at_the_end_though_the_reader_is_slow() {
        let (reads, writes) = io::pipe().expect("a pipe");
        let outlet = Outlet::start("test", writes).expect("a thread");
        // More than a pipe holds.
        let long = "x".repeat(4096);
        for number in 0..QUEUE_LINES {
            assert!(outlet.offer(format!("{number} {long}\n").into_bytes()));
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
        assert!(ends(outlet));
        let numbers = reader.join().expect("a reader");
        let all = (0..QUEUE_LINES).map(|number| Some(number.to_string()));
        assert!(numbers.into_iter().eq(all));
    }

    #[test]
    fn a_reader_that_takes_nothing_holds_nobody_up() {
        let (reads, writes) = io::pipe().expect("a pipe");
        let outlet = Outlet::start("test", writes).expect("a thread");
        let long = "x".repeat(4096);
        let taken = (0..2 * QUEUE_LINES).filter(|_| outlet.offer(long.clone().into_bytes()));
        assert!(taken.count() < 2 * QUEUE_LINES, "there was no room for all");
        assert!(ends(outlet), "it waits for a reader that takes nothing");
        drop(reads);
    }

    #[test]
    fn a_reader_that_has_gone_holds_nobody_up() {
        let (reads, writes) = io::pipe().expect("a pipe");
        let outlet = Outlet::start("test", writes).expect("a thread");
        drop(reads);
        assert!(outlet.offer(b"a line\n".to_vec()));
        assert!(ends(outlet));
    }

    #[test]
    fn a_log_tells_how_many_of_its_lines_nobody_read() {
        let (reads, writes) = io::pipe().expect("a pipe");
        let outlet = Arc::new(Outlet::start("test", writes).expect("a thread"));
        let log = Log::by(Arc::clone(&outlet));
        let mut said = 0;
        let mut say = |line: &str| {
            (&log).write_all(line.as_bytes()).expect("never fails");
            said += 1;
            log.dropped.load(Ordering::Relaxed)
        };
        let filler = format!("{}\n", "x".repeat(4096));
        while say(&filler) == 0 {}
        // Once there is room again, the next line tells.
        let reader = std::thread::spawn(move || io::read_to_string(reads).expect("lines"));
        while say("short\n") > 0 {
            std::thread::yield_now();
        }
        outlet.close();
        let text = reader.join().expect("a reader");
        let (mut whole, mut missing, mut last) = (0, 0, "");
        for line in text.lines() {
            match line.split_once(" lines are missing here") {
                Some((count, _)) => missing += count.parse::<u64>().expect("a count"),
                None => whole += 1,
            }
            last = line;
        }
        assert!(missing >= 1, "{missing} of {said}");
        assert_eq!((whole + missing, last), (said, "short"));
    }
}
