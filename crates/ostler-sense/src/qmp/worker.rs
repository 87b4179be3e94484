//! The one thread that holds all monitors' sockets.
//!
//! A period must never wait for a guest, so the loop that senses never touches a socket: this thread does, without
//! blocking on any, and leaves what it learnt where the loop picks it up. How it treats a monitor:
//!
//! - it asks for the threads when it is nudged, since the host saw some come or go, and every [`Timing::confirm`]; for everything when it meets
//!   the guest, when an event or the number of open descriptors says that devices changed, and every [`Timing::full`]. No more often, because to
//!   answer takes QEMU's threads a quarter of a million instructions, on the cores of vCPUs and before them;
//! - silence is no fault: a frozen guest's monitor is silent until it thaws, and then answers the one question it owes.
//!   Only when one that isn't frozen was silent for [`Timing::silence`] is the connection given up and made anew;
//! - what is not QMP, or more than four megabytes a second, ends the connection, and the next attempt comes after a
//!   pause that doubles up to [`RETRY_MAX`];
//! - a guest is told of once it was made to run (see [`Connection::report`]), and stays known for as long as its process
//!   lives, whatever its monitor does.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use ostler_model::{Nanos, Pid};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

use super::connection::{Connection, Timing};
use super::discover::Discovery;
use super::process::Process;
use crate::bell::Bell;
use crate::config::Roots;
use crate::error::SenseError;
use crate::guest_report::{Report, Source};
use crate::sys;

/// The first pause before a new attempt to connect, and the longest.
const RETRY_MIN: Nanos = Nanos::from_millis(10);
const RETRY_MAX: Nanos = Nanos::from_secs(5);
/// What the thread and the loop share.
#[derive(Default)]
struct Shared {
    reports: Mutex<BTreeMap<PathBuf, (Arc<Report>, Nanos)>>,
    nudges: Mutex<BTreeSet<Pid>>,
    stop: AtomicBool,
}

/// All guests with a QMP socket of ours. The thread ends when it is dropped.
pub(crate) struct QmpSource {
    shared: Arc<Shared>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl QmpSource {
    pub(crate) fn start(
        roots: &Roots,
        patterns: &[String],
        timing: Timing,
        bell: Bell,
    ) -> Result<QmpSource, SenseError> {
        let failed = |what| move |source: io::Error| SenseError::System { what, source };
        let shared = Arc::new(Shared::default());
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(io::Error::from)
            .map_err(failed("make an eventfd"))?;
        let wake = Arc::new(wake);
        let mut worker = Worker {
            roots: roots.clone(),
            timing,
            bell,
            discovery: Discovery::new(patterns)?,
            shared: Arc::clone(&shared),
            wake: Arc::clone(&wake),
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)
                .map_err(io::Error::from)
                .map_err(failed("make an epoll instance"))?,
            monitors: BTreeMap::new(),
            tokens: BTreeMap::new(),
            last_token: FIRST_TOKEN,
            next_look: Nanos::ZERO,
        };
        worker
            .register()
            .map_err(io::Error::from)
            .map_err(failed("watch the QMP folders"))?;
        let thread = std::thread::Builder::new()
            .name("ostler-qmp".to_owned())
            .spawn(move || worker.run())
            .map_err(failed("start a thread"))?;
        Ok(QmpSource {
            shared,
            wake,
            thread: Some(thread),
        })
    }

    fn wake(&self) {
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }
}

impl Drop for QmpSource {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.wake();
        if let Some(thread) = self.thread.take() {
            // It panicked, if it did, when it panicked; there is nothing more to say now.
            let _ = thread.join();
        }
    }
}

impl Source for QmpSource {
    fn reports(&mut self, out: &mut Vec<(Arc<Report>, Nanos)>) {
        out.extend(lock(&self.shared.reports).values().cloned());
    }

    fn nudge(&mut self, pid: Pid) {
        lock(&self.shared.nudges).insert(pid);
        self.wake();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Both sides only replace whole values under the lock, so a panic in between leaves nothing half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

const TOKEN_WAKE: u64 = 0;
const TOKEN_FOLDERS: u64 = 1;
const FIRST_TOKEN: u64 = 2;

struct Worker {
    roots: Roots,
    timing: Timing,
    bell: Bell,
    discovery: Discovery,
    shared: Arc<Shared>,
    wake: Arc<OwnedFd>,
    epoll: OwnedFd,
    monitors: BTreeMap<PathBuf, Monitor>,
    tokens: BTreeMap<u64, PathBuf>,
    last_token: u64,
    next_look: Nanos,
}

/// One socket.
#[derive(Default)]
struct Monitor {
    connection: Option<Connection>,
    /// The process whose guest it last told of.
    process: Option<Process>,
    /// When to connect again, and the pause after the next failure.
    retry_at: Nanos,
    pause: Nanos,
}

impl Worker {
    fn register(&mut self) -> rustix::io::Result<()> {
        epoll::add(
            &self.epoll,
            &*self.wake,
            EventData::new_u64(TOKEN_WAKE),
            EventFlags::IN,
        )?;
        if let Some(folders) = self.discovery.descriptor() {
            epoll::add(
                &self.epoll,
                folders,
                EventData::new_u64(TOKEN_FOLDERS),
                EventFlags::IN,
            )?;
        }
        Ok(())
    }

    fn run(&mut self) {
        while !self.shared.stop.load(Ordering::Acquire) {
            let now = sys::now();
            if now >= self.next_look {
                self.look(now);
            }
            self.tend(now);
            let wait = self.next_due().saturating_sub(sys::now());
            self.wait(wait);
        }
    }

    /// Waits for something to happen, and hears what sockets say.
    fn wait(&mut self, wait: Nanos) {
        let timeout = rustix::event::Timespec {
            tv_sec: i64::try_from(wait.0 / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(wait.0 % 1_000_000_000).unwrap_or(0),
        };
        let mut buffer = [const { MaybeUninit::<epoll::Event>::uninit() }; 64];
        let ready: Vec<(u64, EventFlags)> =
            match epoll::wait(&self.epoll, &mut buffer[..], Some(&timeout)) {
                Ok((events, _)) => events
                    .iter()
                    .map(|event| (event.data.u64(), event.flags))
                    .collect(),
                Err(rustix::io::Errno::INTR) => return,
                Err(error) => {
                    // It can't happen with our own descriptors; should it, don't burn a core.
                    tracing::error!(%error, "waiting for QMP sockets failed");
                    std::thread::sleep(Duration::from_millis(100));
                    return;
                }
            };
        let now = sys::now();
        for (token, flags) in ready {
            match token {
                TOKEN_WAKE => {
                    let mut count = [0; 8];
                    let _ = rustix::io::read(&*self.wake, &mut count);
                }
                TOKEN_FOLDERS => self.next_look = Nanos::ZERO,
                token => self.ready(token, flags, now),
            }
        }
    }

    fn next_due(&self) -> Nanos {
        let monitors = self.monitors.values().map(|monitor| {
            let connection = monitor.connection.as_ref();
            connection.map_or(monitor.retry_at, |connection| connection.due(self.timing))
        });
        monitors.fold(self.next_look, Nanos::min)
    }

    fn look(&mut self, now: Nanos) {
        let found = self.discovery.look();
        let pause = if self.discovery.is_blind() {
            self.timing.look
        } else {
            Nanos(self.timing.look.0.saturating_mul(100))
        };
        self.next_look = now.saturating_add(pause);
        for path in &found {
            self.monitors.entry(path.clone()).or_default();
        }
        let gone: Vec<PathBuf> = self
            .monitors
            .iter()
            .filter(|(path, monitor)| {
                !found.contains(*path)
                    && monitor.connection.is_none()
                    && !monitor.process.as_ref().is_some_and(Process::lives)
            })
            .map(|(path, _)| path.clone())
            .collect();
        for path in gone {
            self.monitors.remove(&path);
            self.forget(&path);
        }
    }

    /// Connects, asks and gives up, wherever it is time to.
    fn tend(&mut self, now: Nanos) {
        let nudged = std::mem::take(&mut *lock(&self.shared.nudges));
        let mut close = Vec::new();
        let mut connect = Vec::new();
        for (path, monitor) in &mut self.monitors {
            if let Some(connection) = &mut monitor.connection {
                if nudged.contains(&connection.process.pid) {
                    connection.nudge(now);
                }
                if connection.session.take_changed() {
                    connection.changed(now);
                }
                if let Err(why) = connection.tend(now, self.timing, &self.roots) {
                    close.push((path.clone(), why));
                }
            } else if now >= monitor.retry_at {
                connect.push(path.clone());
            }
        }
        for (path, why) in close {
            self.close(&path, now, &why);
        }
        for path in connect {
            self.connect(&path, now);
        }
    }

    fn connect(&mut self, path: &Path, now: Nanos) {
        self.last_token += 1;
        let token = self.last_token;
        match Connection::open(&self.roots.proc, path, token, now) {
            Ok(connection) => {
                let added = epoll::add(
                    &self.epoll,
                    connection.stream.as_fd(),
                    EventData::new_u64(token),
                    EventFlags::IN | EventFlags::RDHUP,
                );
                if let Err(error) = added {
                    tracing::error!(%error, path = %path.display(), "can't watch a QMP socket");
                    return self.fail(path, now);
                }
                self.tokens.insert(token, path.to_owned());
                if let Some(monitor) = self.monitors.get_mut(path) {
                    monitor.connection = Some(connection);
                }
            }
            Err(error) => {
                tracing::debug!(%error, path = %path.display(), "can't connect to a QMP socket");
                self.fail(path, now);
            }
        }
    }

    /// Sets the time of the next attempt, and forgets a guest whose process is gone.
    fn fail(&mut self, path: &Path, now: Nanos) {
        let Some(monitor) = self.monitors.get_mut(path) else {
            return;
        };
        monitor.pause = Nanos(
            monitor
                .pause
                .0
                .saturating_mul(2)
                .clamp(RETRY_MIN.0, RETRY_MAX.0),
        );
        monitor.retry_at = now.saturating_add(monitor.pause);
        if monitor.process.as_ref().is_some_and(|p| !p.lives()) {
            monitor.process = None;
            self.forget(path);
        }
    }

    /// Tells no longer of a guest that is gone.
    fn forget(&self, path: &Path) {
        if lock(&self.shared.reports).remove(path).is_some() {
            self.bell.ring();
        }
    }

    fn close(&mut self, path: &Path, now: Nanos, why: &str) {
        tracing::warn!(path = %path.display(), why, "closing a QMP connection");
        let monitor = self.monitors.get_mut(path);
        if let Some(connection) = monitor.and_then(|monitor| monitor.connection.take()) {
            self.tokens.remove(&connection.token);
            let _ = epoll::delete(&self.epoll, connection.stream.as_fd());
        }
        self.fail(path, now);
        // Its folder may have lost it meanwhile, without our being told again.
        self.next_look = self.next_look.min(now.saturating_add(self.timing.look));
    }

    fn ready(&mut self, token: u64, flags: EventFlags, now: Nanos) {
        let Some(path) = self.tokens.get(&token).cloned() else {
            return;
        };
        let Some(monitor) = self.monitors.get_mut(&path) else {
            return;
        };
        let Some(connection) = &mut monitor.connection else {
            return;
        };
        let mut outcome = connection.hear(now);
        if outcome.is_ok() && flags.intersects(EventFlags::HUP | EventFlags::ERR) {
            outcome = Err("the other end is gone".to_owned());
        }
        if let Some(answers) = connection.session.take_answers() {
            // Only a whole good round shows that it is worth trying again soon.
            monitor.pause = Nanos::ZERO;
            let mut reports = lock(&self.shared.reports);
            match reports.get_mut(&path) {
                Some((report, confirmed)) if connection.confirms(&answers, report) => {
                    *confirmed = now;
                }
                before => {
                    let before = before.map(|(report, _)| &**report);
                    let stale = before.is_some_and(|before| !connection.is_of(before));
                    if let Some(report) = connection.report(&path, before, answers) {
                        reports.insert(path.clone(), (Arc::new(report), now));
                        self.bell.ring();
                    } else if stale {
                        reports.remove(&path);
                        self.bell.ring();
                    }
                }
            }
            monitor.process = Some(connection.process.clone());
        }
        if let Err(why) = outcome {
            self.close(&path, now, &why);
        }
    }
}
