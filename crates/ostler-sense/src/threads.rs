//! How long each thread ran and waited, and where it may run.
//!
//! Hundreds of threads are read each period, so it must be cheap. With BPF one call reads them all (about a tenth of
//! a microsecond each). Without it, `/proc/PID/task/TID/schedstat` is read through files that stay open, and the
//! affinity by `sched_getaffinity`: two system calls per thread.
//!
//! The kernel brings a running thread's time up to date at each tick, so up to one tick of a period's time is
//! told in the next period.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ostler_model::{CpuSet, Nanos, Pid, ThreadUsage, Tid};

use crate::bpf::host::{HostBpf, ThreadReading};
use crate::files::{self, KeptFile};
use crate::sys;

/// A thread to be read: its process and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ThreadKey {
    pub(crate) pid: Pid,
    pub(crate) tid: Tid,
}

/// Reads threads by `/proc`.
#[derive(Debug)]
pub(crate) struct ProcThreads {
    proc: PathBuf,
    open: BTreeMap<ThreadKey, Open>,
    round: u64,
}

#[derive(Debug)]
struct Open {
    schedstat: KeptFile,
    started: u64,
    /// The last round in which it was asked for.
    round: u64,
}

impl ProcThreads {
    pub(crate) fn new(proc: &Path) -> ProcThreads {
        ProcThreads {
            proc: proc.to_owned(),
            open: BTreeMap::new(),
            round: 0,
        }
    }

    pub(crate) fn read(&mut self, keys: &[ThreadKey], out: &mut Vec<Option<ThreadReading>>) {
        self.round += 1;
        out.clear();
        out.extend(keys.iter().map(|&key| self.read_one(key)));
        let round = self.round;
        self.open.retain(|_, open| open.round == round);
    }

    fn read_one(&mut self, key: ThreadKey) -> Option<ThreadReading> {
        if !self.open.contains_key(&key) {
            let folder = task(&self.proc, key);
            let open = Open {
                started: start_ticks(&folder.join("stat"))?,
                schedstat: KeptFile::open(&folder.join("schedstat")).ok()?,
                round: 0,
            };
            self.open.insert(key, open);
        }
        let open = self.open.get_mut(&key)?;
        let mut buffer = [0; 96];
        let (run, wait) = parse_schedstat(open.schedstat.read(&mut buffer).ok()?)?;
        open.round = self.round;
        Some(ThreadReading {
            started: open.started,
            run,
            wait,
            queued: 0,
            allowed: sys::affinity(key.tid).unwrap_or(CpuSet::EMPTY),
            threads: 0,
            cgroup_id: None,
        })
    }
}

/// `/proc/PID/task/TID`.
fn task(proc: &Path, key: ThreadKey) -> PathBuf {
    proc.join(format!("{}/task/{}", key.pid, key.tid))
}

/// Run and wait time in nanoseconds, then a count that we don't need.
fn parse_schedstat(text: &str) -> Option<(u64, u64)> {
    let mut words = text.split_ascii_whitespace();
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

/// When a thread or process started, in ticks since boot: with its number, it names it for good. `None` also when it
/// has ended and only waits for its parent.
pub(crate) fn start_ticks(stat: &Path) -> Option<u64> {
    // The name comes second, in parentheses, and may itself hold parentheses and blanks: count from the last one.
    let text = files::text(stat).ok()?;
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Reads threads the cheapest way there is. `out` gets one entry per key; `None` where there is no such thread.
pub(crate) fn read(
    bpf: Option<&HostBpf>,
    proc: &mut ProcThreads,
    keys: &[ThreadKey],
    out: &mut Vec<Option<ThreadReading>>,
) {
    if let Some(bpf) = bpf {
        match bpf.read_threads(keys, out) {
            Ok(()) => {
                out.resize(keys.len(), None);
                return;
            }
            Err(error) => tracing::warn!(%error, "threads are read from /proc this time"),
        }
    }
    proc.read(keys, out);
}

/// Turns one thread's totals into what happened since the reading before.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ThreadMeter {
    previous: Option<Previous>,
}

#[derive(Clone, Copy, Debug)]
struct Previous {
    started: u64,
    run: u64,
    /// Waits that ended, and what we saw of the one that had not.
    wait: u64,
    /// The wait that had not ended, and when we first saw it.
    open: Option<(u64, Nanos)>,
}

impl ThreadMeter {
    /// A thread seen for the first time, or another of the same number, has done nothing yet.
    ///
    /// The kernel adds a wait to its total only when it ends; a thread that is kept from running for a second would
    /// seem not to have waited at all, and then for longer than a period lasts. So a wait that we have seen before
    /// counts up to now; what had passed when it was first seen, which is less than a period, comes when it ends.
    pub(crate) fn advance(&mut self, reading: &ThreadReading, now: Nanos) -> ThreadUsage {
        let previous = self.previous.filter(|p| p.started == reading.started);
        let open = (reading.queued != 0).then(|| {
            previous
                .and_then(|p| p.open)
                .filter(|(queued, _)| *queued == reading.queued)
                .unwrap_or((reading.queued, now))
        });
        let waiting = open.map_or(Nanos::ZERO, |(_, since)| now.saturating_sub(since));
        let wait = reading.wait.saturating_add(waiting.0);
        let usage = previous.map_or(ThreadUsage::default(), |previous| ThreadUsage {
            run: Nanos(reading.run.saturating_sub(previous.run)),
            wait: Nanos(wait.saturating_sub(previous.wait)),
        });
        self.previous = Some(Previous {
            started: reading.started,
            run: reading.run,
            wait,
            open,
        });
        usage
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn reading(started: u64, run: u64, wait: u64, queued: u64) -> ThreadReading {
        ThreadReading {
            started,
            run,
            wait,
            queued,
            allowed: CpuSet::EMPTY,
            threads: 0,
            cgroup_id: None,
        }
    }

    proptest! {
        /// A thread is kept waiting, runs, is kept waiting...: as the kernel tells it (a wait is added when it ends),
        /// period by period. All its waiting is told, and no more than there was, however periods fall.
        #[test]
        fn waits_are_told_as_they_pass(spans in prop::collection::vec((1u64..500, 1u64..500), 1..30), period in 1u64..300) {
            let mut meter = ThreadMeter::default();
            meter.advance(&reading(1, 0, 0, 0), Nanos(0));
            let (mut clock, mut run, mut waited, mut told, mut next) = (0, 0, 0, 0, period);
            for (wait, runs) in spans {
                let queued = clock + 1;
                for _ in 0..wait {
                    clock += 1;
                    if clock == next {
                        let usage = meter.advance(&reading(1, run, waited, queued), Nanos(clock));
                        prop_assert!(usage.wait.0 <= 2 * period, "what passed before it was seen comes late");
                        told += usage.wait.0;
                        next += period;
                    }
                }
                waited += wait;
                for _ in 0..runs {
                    clock += 1;
                    run += 1;
                    if clock == next {
                        told += meter.advance(&reading(1, run, waited, 0), Nanos(clock)).wait.0;
                        next += period;
                    }
                }
                prop_assert!(told <= waited);
            }
            told += meter.advance(&reading(1, run, waited, 0), Nanos(clock + 1)).wait.0;
            prop_assert_eq!(told, waited);
        }

        #[test]
        fn totals_that_go_back_tell_nothing(readings in prop::collection::vec((0u64..3, any::<u64>(), any::<u64>(), 0u64..3), 1..20)) {
            let mut meter = ThreadMeter::default();
            for (now, (started, run, wait, queued)) in (0..).zip(readings) {
                meter.advance(&reading(started, run, wait, queued), Nanos(now));
            }
        }
    }

    #[test]
    fn another_thread_of_the_same_number_begins_anew() {
        let mut meter = ThreadMeter::default();
        meter.advance(&reading(1, 100, 100, 0), Nanos(0));
        let usage = meter.advance(&reading(2, 900, 900, 0), Nanos(1));
        assert_eq!(usage, ThreadUsage::default());
    }

    #[test]
    fn a_name_with_parentheses_and_blanks_hides_no_field() {
        let folder = tempfile::tempdir().unwrap();
        let stat = folder.path().join("stat");
        let rest = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20";
        std::fs::write(&stat, format!("7 (a) S 1) b) S {rest}\n")).unwrap();
        assert_eq!(start_ticks(&stat), Some(4242));
        std::fs::write(&stat, format!("7 (a) Z {rest}\n")).unwrap();
        assert_eq!(start_ticks(&stat), None);
    }
}
