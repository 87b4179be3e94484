//! The steward under a fault: the real program, acting, with what it says of each period.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Pid, Signal};
use serde_json::Value;
use toml::Table;

use super::OSTLER;
use crate::child::wait_timeout;
use crate::tail::last_lines;

/// Periods that may wait to be looked at; older ones are forgotten.
const PERIODS_KEPT: usize = 4096;
/// A period is a tenth of a second; an emulated host on a busy machine may take much longer to start a program.
const PERIOD_WITHIN: Duration = Duration::from_mins(1);
/// A steward that is told to end puts back what it set.
const END_WITHIN: Duration = Duration::from_mins(1);

/// A steward that runs, until it is dropped.
#[derive(Debug)]
pub struct Subject {
    child: Child,
    said: Arc<Said>,
    config: PathBuf,
    log: PathBuf,
}

#[derive(Debug, Default)]
struct Said {
    periods: Mutex<(VecDeque<Value>, bool)>,
    more: Condvar,
}

impl Subject {
    /// Starts it.
    pub fn start(config: &Table, out: &Path) -> anyhow::Result<Subject> {
        let path = out.join("steward.toml");
        write_config(&path, config)?;
        let log = out.join("steward.log");
        let errors = File::options().create(true).append(true).open(&log)?;
        let mut child = Command::new(OSTLER)
            .args(["run", "--act", "--json", "--config"])
            .arg(&path)
            .env("RUST_BACKTRACE", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .context("could not start the steward")?;
        let said = Arc::new(Said::default());
        let stdout = child.stdout.take().context("the steward has no output")?;
        let listener = Arc::clone(&said);
        std::thread::spawn(move || listener.listen(BufReader::new(stdout)));
        Ok(Subject {
            child,
            said,
            config: path,
            log,
        })
    }

    /// Waits for a period that is so; returns it.
    pub fn until(&self, what: &str, mut test: impl FnMut(&Value) -> bool) -> anyhow::Result<Value> {
        let due = Instant::now() + PERIOD_WITHIN;
        loop {
            let period = self.next(due, what)?;
            if test(&period) {
                return Ok(period);
            }
        }
    }

    /// The next so many periods.
    pub fn periods(&self, count: usize) -> anyhow::Result<Vec<Value>> {
        let due = Instant::now() + PERIOD_WITHIN;
        (0..count).map(|_| self.next(due, "periods")).collect()
    }

    fn next(&self, due: Instant, what: &str) -> anyhow::Result<Value> {
        let poisoned = || anyhow::anyhow!("the steward's listener failed");
        let mut periods = self.said.periods.lock().map_err(|_| poisoned())?;
        loop {
            if let Some(period) = periods.0.pop_front() {
                return Ok(period);
            }
            let last = || last_lines(&self.log, 3).trim().to_owned();
            anyhow::ensure!(
                !periods.1,
                "waiting for {what}: the steward ended; its last words: {}",
                last()
            );
            let left = due.saturating_duration_since(Instant::now());
            anyhow::ensure!(
                !left.is_zero(),
                "waiting for {what}: not within {} s; its last words: {}",
                PERIOD_WITHIN.as_secs(),
                last()
            );
            (periods, _) = self
                .said
                .more
                .wait_timeout(periods, left)
                .map_err(|_| poisoned())?;
        }
    }

    /// Waits until it has settled: it acts, and has nothing left to write.
    pub fn settled(&self, guests: usize) -> anyhow::Result<()> {
        let mut quiet = 0;
        self.until("the steward to settle", |period| {
            let seen = period["guests"].as_array().map_or(0, Vec::len);
            let acts =
                period["acting"] == true && seen == guests && period["seq"].as_u64() > Some(2);
            quiet = if acts && period["written"] == 0 {
                quiet + 1
            } else {
                0
            };
            quiet == 5
        })?;
        Ok(())
    }

    /// Has it read another configuration.
    pub fn reload(&self, config: &Table) -> anyhow::Result<()> {
        write_config(&self.config, config)?;
        self.signal(Signal::HUP)
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.context("the steward has no process number")?;
        rustix::process::kill_process(pid, signal).context("could not signal the steward")
    }

    /// Kills it: it has no chance to put anything back. It must have been alive until now.
    pub fn kill(mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            anyhow::bail!(
                "the steward ended by itself ({status}); its last words: {}",
                last_lines(&self.log, 3).trim()
            );
        }
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Tells it to end.
    pub fn tell_to_end(&self) -> anyhow::Result<()> {
        self.signal(Signal::TERM)
    }

    /// Tells it to end, once more where it was told already, and waits for that.
    pub fn end(mut self) -> anyhow::Result<()> {
        self.signal(Signal::TERM)?;
        let status = wait_timeout(&mut self.child, END_WITHIN);
        let status = status.context("the steward did not end when told to")?;
        anyhow::ensure!(
            status.success(),
            "the steward ended with {status}; its last words: {}",
            last_lines(&self.log, 3).trim()
        );
        Ok(())
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        // After an error; otherwise it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Said {
    fn listen(&self, lines: impl BufRead) {
        for line in lines.lines().map_while(Result::ok) {
            let Ok(period) = serde_json::from_str(&line) else {
                continue;
            };
            let Ok(mut periods) = self.periods.lock() else {
                return;
            };
            if periods.0.len() == PERIODS_KEPT {
                periods.0.pop_front();
            }
            periods.0.push_back(period);
            self.more.notify_all();
        }
        if let Ok(mut periods) = self.periods.lock() {
            periods.1 = true;
            self.more.notify_all();
        }
    }
}

/// By a rename, so that the steward never reads half of it.
fn write_config(path: &Path, config: &Table) -> anyhow::Result<()> {
    let fresh = path.with_extension("new");
    std::fs::write(&fresh, config.to_string())
        .and_then(|()| std::fs::rename(&fresh, path))
        .with_context(|| format!("could not write {}", path.display()))
}
