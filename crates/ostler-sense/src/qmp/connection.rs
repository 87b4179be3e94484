//! A connection to one monitor: when it asks what, and what it bears with.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use ostler_model::{GuestSource, Nanos};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::process::{self, Process};
use super::session::{Answers, Depth, Session};
use crate::cgroup;
use crate::config::Roots;
use crate::guest_report::Report;
use crate::sys;

/// The most that a monitor may send in a second. An answer about 256 vCPUs has 80 kB.
const BYTES_PER_SECOND_MAX: u64 = 4 * 1024 * 1024;
/// The most that is read from one socket before the others' turn.
const BYTES_PER_TURN: usize = 256 * 1024;
/// Confirmations are asked for on a grid this wide.
const GRID: Nanos = Nanos::from_millis(50);
/// The shortest time between two rounds with one guest, however many events it sends.
const ROUND_MIN: Nanos = Nanos::from_millis(20);
/// Between looks at how many descriptors a guest's process has open.
const LOOK: Nanos = Nanos::from_secs(1);

/// Between the questions of a full round that nothing has given cause for: QEMU's threads go before vCPUs as they answer, and all of a round at once
/// keeps these from their cores for many turns.
const PAUSE: Nanos = Nanos::from_millis(100);
/// Between full rounds, at most, with a guest of which the kernel doesn't tell how many descriptors are open: a device may come or go unseen.
const FULL_UNSEEN: Nanos = Nanos::from_secs(30);

/// How often what is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timing {
    /// Between looks for sockets where folders can't be watched.
    pub(crate) look: Nanos,
    /// Between questions for a guest's threads of which the host saw none come or go.
    pub(crate) confirm: Nanos,
    /// Between full rounds.
    pub(crate) full: Nanos,
    /// After so much silence a connection is made anew.
    pub(crate) silence: Nanos,
}

/// A connection to one monitor.
pub(super) struct Connection {
    pub(super) stream: UnixStream,
    pub(super) token: u64,
    pub(super) process: Process,
    pub(super) session: Session,
    /// What could not be sent at once.
    unsent: Vec<u8>,
    /// When it last said anything.
    heard: Nanos,
    /// Bytes since `counted`.
    bytes: u64,
    counted: Nanos,
    next_look: Nanos,
    next_confirm: Nanos,
    /// Whether it was asked before.
    asked: bool,
    pub(super) next_full: Nanos,
    /// No round begins before.
    next_round: Nanos,
    /// Between this round's questions, and when the next one is due.
    pause: Nanos,
    next_question: Nanos,
    /// Something was said or seen to have changed since the last full round began.
    hurries: bool,
    descriptors: u64,
    /// There is no guest to tell of yet, by what was said last: everything is asked each time.
    waits: bool,
}

/// The first pause between rounds that come so often: guests that were met together are asked in turns. An answer takes QEMU's threads a quarter of
/// a million instructions and more, on the cores of vCPUs and before them: to have all guests of a host answer at once is to have all wait for as many.
///
/// The part of a period that each pause is comes by golden ratio from the last: however many there are, no two of n are nearer than a third of an
/// n-th part of the period (three-distance theorem), and nobody has to be told how many will come.
fn first_pause(period: Nanos, token: u64) -> Nanos {
    /// 2^64 over the golden ratio.
    const STRIDE: u64 = 0x9e37_79b9_7f4a_7c15;
    let part = (u128::from(token.wrapping_mul(STRIDE)) * u128::from(period.0)) >> 64;
    Nanos(u64::try_from(part).unwrap_or(period.0))
        .max(GRID)
        .min(period)
}

/// The next point on a grid of [`GRID`], so that one wake-up serves all guests that are due at about the same time.
fn on_grid(at: Nanos) -> Nanos {
    Nanos(at.0.div_ceil(GRID.0).saturating_mul(GRID.0))
}

impl Connection {
    pub(super) fn open(proc: &Path, path: &Path, token: u64, now: Nanos) -> io::Result<Connection> {
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        // Fails at once, rather than waits, when the other end's backlog is full.
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        let stream = UnixStream::from(socket);
        let pid = sys::peer_pid(&stream)?.ok_or_else(|| {
            io::Error::other("the process behind it is in a PID namespace that ostler doesn't see")
        })?;
        let process = Process::of(proc, pid)
            .ok_or_else(|| io::Error::other("the process that opened it is gone"))?;
        Ok(Connection {
            stream,
            token,
            session: Session::new(),
            unsent: Vec::new(),
            heard: now,
            bytes: 0,
            counted: now,
            next_look: now,
            next_confirm: now,
            asked: false,
            next_full: now,
            next_round: now,
            pause: Nanos::ZERO,
            next_question: now,
            hurries: false,
            descriptors: process.descriptors(),
            waits: true,
            process,
        })
    }

    /// Threads came or went: they are due. Where the kernel doesn't tell how many descriptors are open (before 6.2), a device may have, too.
    pub(super) fn nudge(&mut self, now: Nanos) {
        self.next_confirm = now;
        if self.process.descriptors() == 0 {
            self.changed(now);
        }
        self.hurry(now);
    }

    /// Something about its devices or vCPUs changed: all is asked anew.
    pub(super) fn changed(&mut self, now: Nanos) {
        self.next_full = now;
        self.hurries = true;
        self.hurry(now);
    }

    /// What is asked at leisure stands in the way of what is due now.
    fn hurry(&mut self, now: Nanos) {
        (self.pause, self.next_question) = (Nanos::ZERO, now);
    }

    /// Asks what is due.
    pub(super) fn tend(&mut self, now: Nanos, timing: Timing, roots: &Roots) -> Result<(), String> {
        if now < self.due(timing) {
            return Ok(());
        }
        if self.session.is_idle() {
            self.next_look = on_grid(now.saturating_add(LOOK.min(timing.confirm)));
            let descriptors = self.process.descriptors();
            let cause = descriptors != self.descriptors || self.waits;
            let full = now >= self.next_full || cause;
            self.descriptors = descriptors;
            if !full && now < self.next_confirm {
                return Ok(());
            }
            // The first rounds after the one in which it is met come in turns.
            let first = !std::mem::replace(&mut self.asked, true);
            let hurries = full && std::mem::take(&mut self.hurries);
            let calm = full && !first && !cause && !hurries;
            self.pause = if calm { PAUSE } else { Nanos::ZERO };
            self.next_question = now;
            self.session.ask(if full {
                let period = if descriptors == 0 {
                    timing.full.min(FULL_UNSEEN)
                } else {
                    timing.full
                };
                let turn = first.then(|| first_pause(period, self.token));
                self.next_full = now.saturating_add(turn.unwrap_or(period));
                Depth::Full
            } else {
                Depth::Threads
            });
            let turn = first.then(|| first_pause(timing.confirm, self.token));
            let pause = turn.unwrap_or(timing.confirm);
            self.next_confirm = on_grid(now.saturating_add(pause));
            self.next_round = now.saturating_add(ROUND_MIN);
            self.heard = now;
            return self.speak(now);
        }
        if self.session.has_question() {
            return self.speak(now);
        }
        if cgroup::is_frozen(&roots.proc, &roots.cgroup, self.process.pid.0) {
            // We may have frozen it ourselves, and for long: it has an excuse until it thaws.
            self.heard = now;
            return Ok(());
        }
        Err(format!("silent for {:.0} s", timing.silence.as_secs_f64()))
    }

    /// When there is something to do about it unless it speaks: the next round or question, or losing patience.
    pub(super) fn due(&self, timing: Timing) -> Nanos {
        if self.session.is_idle() {
            let soonest = self.next_look.min(self.next_confirm).min(self.next_full);
            soonest.max(self.next_round)
        } else if self.session.has_question() {
            self.next_question
        } else {
            self.heard.saturating_add(timing.silence)
        }
    }

    /// Sends what is to be sent, as far as the socket takes it.
    fn speak(&mut self, now: Nanos) -> Result<(), String> {
        loop {
            if self.unsent.is_empty() {
                if now < self.next_question {
                    return Ok(());
                }
                match self.session.next_request() {
                    Some(line) => {
                        self.unsent = line;
                        self.next_question = now.saturating_add(self.pause);
                    }
                    None => return Ok(()),
                }
            }
            match self.stream.write(&self.unsent) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                // One short line is all that is ever on its way, so this is a peer that reads nothing: as good as
                // silent.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// Reads what is there, and goes on with the conversation.
    pub(super) fn hear(&mut self, now: Nanos) -> Result<(), String> {
        if now.saturating_sub(self.counted) >= Nanos::from_secs(1) {
            self.counted = now;
            self.bytes = 0;
        }
        let owed = self.session.owes();
        let mut buffer = [0; 16 * 1024];
        let mut turn = 0;
        while turn < BYTES_PER_TURN {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err("closed by the other end".to_owned()),
                Ok(read) => {
                    turn += read;
                    self.bytes += read as u64;
                    if self.bytes > BYTES_PER_SECOND_MAX {
                        return Err(format!(
                            "more than {BYTES_PER_SECOND_MAX} bytes in a second"
                        ));
                    }
                    self.session
                        .receive(&buffer[..read])
                        .map_err(|error| error.to_string())?;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        // Only answers count as a sign of life: events alone would keep a monitor that never answers.
        self.speak(now)?;
        if self.session.owes() != owed {
            self.heard = now;
        }
        Ok(())
    }

    /// Whether a short round says what is known already.
    pub(super) fn confirms(&self, answers: &Answers, known: &Report) -> bool {
        !answers.full
            && self.is_of(known)
            && answers
                .vcpus
                .as_ref()
                .is_some_and(|vcpus| *vcpus == known.vcpus)
    }

    /// Whether the report is of the process at the other end.
    pub(super) fn is_of(&self, report: &Report) -> bool {
        (report.pid, report.started) == (self.process.pid, self.process.started)
    }

    /// What is known after a round: the answers, checked against the process, over what was known before. `None` when
    /// they are no use.
    ///
    /// Nor is there a guest before it was first made to run. Until then somebody is putting it together: libvirt and others
    /// start QEMU with `-S`, place its threads one by one, set its weight, and give up on a guest of which any of that fails,
    /// as it does where someone else moved, froze or idled it meanwhile. Nothing is lost by waiting: what doesn't run needs no
    /// cores, and an event tells when it does. A guest that was told of stays, whatever it is in.
    pub(super) fn report(
        &mut self,
        path: &Path,
        before: Option<&Report>,
        answers: Answers,
    ) -> Option<Report> {
        let before = before.filter(|before| self.is_of(before));
        self.waits = before.is_none();
        if self.waits && answers.started == Some(false) {
            return None;
        }
        let threads = self.process.threads();
        if threads.is_empty() {
            return None;
        }
        let (vcpus, others): (Vec<_>, Vec<_>) = answers
            .vcpus?
            .into_iter()
            .partition(|(_, tid)| threads.binary_search(tid).is_ok());
        if !others.is_empty() {
            tracing::warn!(
                path = %path.display(),
                ?others,
                "a guest named threads that are not its own; they are left out"
            );
        }
        if let (Some(before), false) = (before, answers.full) {
            return Some(Report {
                vcpus,
                ..before.clone()
            });
        }
        self.waits = false;
        let descriptors = self.process.tap_descriptors();
        Some(Report {
            source: GuestSource::Qmp,
            name: answers
                .name
                .or_else(|| Some(path.file_stem()?.to_string_lossy().into_owned()))
                .unwrap_or_default(),
            uuid: answers.uuid,
            metadata: Vec::new(),
            pid: self.process.pid,
            started: self.process.started,
            vcpus,
            taps: process::taps(&descriptors, answers.network.as_deref().unwrap_or(&[])),
            vsock_cid: answers.cid,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// When each question of a round came, ms, that begins at a time; a change is seen after so many.
    fn round(
        connection: &mut Connection,
        monitor: &mut UnixStream,
        from: Nanos,
        changed_after: Option<usize>,
    ) -> Vec<u64> {
        let timing = Timing {
            look: GRID,
            confirm: Nanos::from_secs(5),
            full: Nanos::from_secs(30),
            silence: Nanos::from_secs(30),
        };
        let roots = Roots::default();
        let mut asked = Vec::new();
        let mut unread = String::new();
        for step in 0..200 {
            let now = from.saturating_add(Nanos::from_millis(10 * step));
            if changed_after == Some(asked.len()) {
                connection.changed(now);
            }
            connection.tend(now, timing, &roots).unwrap();
            let mut buffer = [0; 4096];
            while let Ok(read) = monitor.read(&mut buffer) {
                unread += std::str::from_utf8(&buffer[..read]).unwrap();
                let Some(end) = unread.find('\n') else { break };
                let line: String = unread.drain(..=end).collect();
                let id = serde_json::from_str::<serde_json::Value>(&line).unwrap()["id"].clone();
                asked.push(now.saturating_sub(from).0 / 1_000_000);
                let answer = serde_json::json!({"return": [], "id": id});
                writeln!(monitor, "{answer}").unwrap();
                connection.hear(now).unwrap();
            }
            if connection.session.take_answers().is_some() {
                break;
            }
        }
        asked
    }

    #[test]
    fn what_nothing_gives_cause_for_is_asked_at_leisure() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("qmp");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        // Its own folder of this process: other tests open files meanwhile.
        let own = dir.path().join(std::process::id().to_string());
        std::fs::create_dir_all(own.join("fd")).unwrap();
        std::fs::copy("/proc/self/stat", own.join("stat")).unwrap();
        let mut connection = Connection::open(dir.path(), &path, 1, Nanos::ZERO).unwrap();
        let (mut monitor, _) = listener.accept().unwrap();
        monitor.set_nonblocking(true).unwrap();
        writeln!(monitor, "{{\"QMP\": {{}}}}").unwrap();
        connection.hear(Nanos::ZERO).unwrap();
        // Capabilities, and all of the first round at once.
        let first = round(&mut connection, &mut monitor, Nanos::ZERO, None);
        assert!(
            first.len() > 7 && first.iter().all(|at| *at <= 20),
            "{first:?}"
        );
        connection.waits = false;
        let begin = |connection: &mut Connection, at: u64| {
            let now = Nanos::from_secs(at);
            connection.next_full = now;
            now
        };
        let now = begin(&mut connection, 60);
        let calm = round(&mut connection, &mut monitor, now, None);
        assert!(calm.len() >= 7, "{calm:?}");
        assert!(
            calm.windows(2).all(|two| two[1] - two[0] >= 100),
            "{calm:?}"
        );
        // What has changed isn't waited for.
        let now = begin(&mut connection, 120);
        let hurried = round(&mut connection, &mut monitor, now, Some(3));
        assert!(hurried[2] >= 200, "{hurried:?}");
        assert!(hurried[6] - hurried[3] <= 20, "{hurried:?}");
    }

    proptest! {
        /// However many are met in a row: any two are asked a third of what there is for each apart, but for what the grid takes of it.
        #[test]
        fn guests_met_together_are_asked_in_turns(
            met in 1u64..1_000_000,
            guests in 2u64..120,
            seconds in 5u64..400,
        ) {
            let period = Nanos::from_secs(seconds);
            let tokens = met..met + guests;
            let mut turns: Vec<u64> = tokens.map(|token| first_pause(period, token).0).collect();
            turns.sort_unstable();
            prop_assert!(turns[0] >= GRID.0 && turns[turns.len() - 1] <= period.0);
            let around = turns[0] + period.0 - turns[turns.len() - 1];
            let apart = turns.windows(2).map(|two| two[1] - two[0]).chain([around]).min();
            let least = (period.0 / guests / 3).saturating_sub(GRID.0);
            prop_assert!(apart.unwrap_or(0) >= least, "{turns:?}");
        }
    }
}
