//! Faults: what may go wrong with the steward, its guests and its host is made to go wrong, and what must hold then is
//! looked at from outside, by the kernel's own files. The steward is the real program, acting on real guests.
//!
//! Nothing here waits for a time to pass: it waits for something to be so, for a bounded time. The only exception is the
//! random moment at which a steward is killed, which is the point.

mod agent;
mod cgroup;
mod code;
mod dice;
mod foreign;
mod found;
mod guest;
mod kernel_tests;
mod kill;
mod overload;
mod subject;
mod traffic;

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context;
use ostler_model::Class;
use toml::Table;

use super::RESULTS;
use super::guests::{self, RunningGuest};
use super::net::Pnic;
use super::say::Say;
use crate::child::wait_timeout;
use crate::program::Program;
use crate::scenario::{Fault, FaultKind};
use found::{Found, guest_queues};
use ostler_outcome::events::Event;
use subject::Subject;
use traffic::Traffic;

/// The steward's program.
const OSTLER: &str = "/lab/bin/ostler";

/// Undo writes a hundred values at the most.
const UNDO_WITHIN: Duration = Duration::from_mins(1);

/// Agents put things back after ten seconds without a word from a steward.
const GIVEN_BACK_WITHIN: Duration = Duration::from_mins(1);

/// What came of a fault.
#[derive(Debug, Default)]
struct Verdict {
    passed: u32,
    failures: Vec<String>,
    notes: Vec<String>,
    /// Times that the fault came while a guest was frozen.
    frozen: u32,
}

impl Verdict {
    /// Counts one time that the fault was done.
    fn count(&mut self, result: anyhow::Result<()>) {
        match result {
            Ok(()) => self.passed += 1,
            Err(e) => self.failures.push(format!("{e:#}")),
        }
    }
}

/// The host that faults happen on.
struct Ground<'a> {
    program: &'a Program,
    pnic: &'a Pnic,
    running: Vec<RunningGuest>,
    say: &'a Say,
    /// Where the present fault's files go.
    out: PathBuf,
    fault: &'a Fault,
    index: usize,
}

/// Does every fault of the program.
pub fn run(
    program: &Program,
    pnic: &Pnic,
    running: Vec<RunningGuest>,
    say: &Say,
) -> anyhow::Result<()> {
    let mut running = running;
    for (index, fault) in program.scenario.faults.iter().enumerate() {
        let number = u32::try_from(index)?;
        say.say(Event::FaultStart {
            fault: number,
            kind: fault.kind.to_string(),
        });
        let since = Instant::now();
        let out = PathBuf::from(RESULTS).join(format!("fault-{index}-{}", fault.kind));
        std::fs::create_dir_all(&out)
            .with_context(|| format!("could not create {}", out.display()))?;
        let mut ground = Ground {
            program,
            pnic,
            running,
            say,
            out,
            fault,
            index,
        };
        let verdict = ground.done();
        say.say(Event::FaultEnd {
            fault: number,
            kind: fault.kind.to_string(),
            passed: verdict.passed,
            of: fault.times,
            failures: verdict.failures,
            notes: verdict.notes,
            seconds: since.elapsed().as_secs_f64(),
        });
        running = ground.running;
    }
    Ok(())
}

impl Ground<'_> {
    /// Does the present fault as often as it is asked for.
    fn done(&mut self) -> Verdict {
        let mut verdict = Verdict::default();
        let mut traffic = Traffic::default();
        let mut again = false;
        for time in 0..self.fault.times {
            self.say.say(Event::FaultTime {
                fault: u32::try_from(self.index).unwrap_or(u32::MAX),
                time,
            });
            let mut result = self.once(time, &mut traffic, &mut verdict);
            let ended = self.ended();
            let by_itself = self.fault.kind != FaultKind::GuestDies && !ended.is_empty();
            if let (Err(error), true, false) = (&result, by_itself, again) {
                // Guests of an emulated host die by the emulator's faults too. One that we are the death of dies again.
                again = true;
                verdict.notes.push(format!(
                    "time {} was done again, since a guest ended by itself: {} ({error:#})",
                    time + 1,
                    ended.join("; ")
                ));
                result = self.once(time, &mut traffic, &mut verdict);
            }
            let ended = self.ended();
            verdict.count(result.with_context(|| {
                let time = format!("time {}", time + 1);
                if ended.is_empty() {
                    time
                } else {
                    format!("{time} ({})", ended.join("; "))
                }
            }));
        }
        drop(traffic);
        if self.fault.kind == FaultKind::Kill {
            kill::reckon(self.fault.times, &mut verdict);
        }
        if let Err(e) = self.given_back() {
            verdict.failures.push(format!("{e:#}"));
        }
        verdict
    }

    /// Does it one time.
    fn once(
        &mut self,
        time: u32,
        traffic: &mut Traffic,
        verdict: &mut Verdict,
    ) -> anyhow::Result<()> {
        self.prepare(time == 0)?;
        traffic.keep_up(self)?;
        match self.fault.kind {
            FaultKind::Kill => kill::once(self, time, verdict),
            FaultKind::GuestDies => guest::dies(self, verdict),
            FaultKind::QmpHangs => guest::hangs(self, verdict),
            FaultKind::CgroupVanishes => cgroup::vanishes(self, verdict),
            FaultKind::ForeignAffinity => foreign::affinity(self, verdict),
            FaultKind::AgentMisbehaves => agent::misbehaves(self, verdict),
            FaultKind::Overload => overload::end(self, verdict),
            FaultKind::CodeChanges => code::changes(self, verdict),
            FaultKind::KernelTests => kernel_tests::run(self, verdict),
        }
    }

    /// Guests that have ended, and what they said last.
    fn ended(&self) -> Vec<String> {
        let running = self.running.iter();
        running.filter_map(RunningGuest::epitaph).collect()
    }

    /// Waits until agents have given their guests back: nobody asks them for anything any more.
    fn given_back(&self) -> anyhow::Result<()> {
        for (guest, running) in self.program.scenario.guests.iter().zip(&self.running) {
            let tap = crate::machine::tap(guest);
            wait_until(
                &format!(
                    "{} to use all of its {} queues and vCPUs again",
                    guest.name, guest.queues
                ),
                GIVEN_BACK_WITHIN,
                || {
                    let queues = guest_queues(&tap) == guest.queues as usize;
                    Ok(!running.alive() || (queues && running.has_its_vcpus()))
                },
            )?;
        }
        Ok(())
    }

    /// Every guest lives; and at first, their agents are done with what came before.
    fn prepare(&mut self, first: bool) -> anyhow::Result<()> {
        let dead: Vec<usize> = (0..self.running.len())
            .filter(|&at| !self.running[at].alive())
            .collect();
        let fresh = guests::start(self.program, &dead, self.say)?;
        for (&at, guest) in dead.iter().zip(fresh) {
            self.running[at] = guest;
        }
        if first { self.given_back() } else { Ok(()) }
    }

    /// The first guest of a class.
    fn guest(&self, class: Class) -> anyhow::Result<&RunningGuest> {
        let guests = self.program.scenario.guests.iter().zip(&self.running);
        guests
            .into_iter()
            .find(|(guest, _)| guest.class == class)
            .map(|(_, running)| running)
            .with_context(|| format!("there is no {class} guest"))
    }

    /// The host as it is.
    fn found(&self) -> anyhow::Result<Found> {
        Found::now(&self.pnic.name, &self.running)
    }

    /// Starts the steward with these keys over the fault's own.
    fn start(&self, own: &str) -> anyhow::Result<Subject> {
        Subject::start(&self.config(own)?, &self.out)
    }

    fn config(&self, own: &str) -> anyhow::Result<Table> {
        let own: Table = own
            .parse()
            .with_context(|| format!("`{own}` is no configuration"))?;
        let mut config = super::steward::facts(self.program, &self.pnic.name, &self.out);
        crate::scenario::merge(&mut config, &self.fault.steward);
        crate::scenario::merge(&mut config, &own);
        Ok(config)
    }

    /// `ostler undo`, which must leave nothing.
    fn undo(&self) -> anyhow::Result<()> {
        let log = std::fs::File::create(self.out.join("undo.log"))?;
        let mut child = Command::new(OSTLER)
            .args(["undo", "--config"])
            .arg(self.out.join("steward.toml"))
            .stdin(std::process::Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("could not start ostler undo")?;
        let status = wait_timeout(&mut child, UNDO_WITHIN);
        if status.is_none() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let said = crate::tail::last_lines(&self.out.join("undo.log"), 6);
        match status {
            Some(status) if status.success() => Ok(()),
            Some(status) => anyhow::bail!("ostler undo ended with {status}: {}", said.trim()),
            None => anyhow::bail!(
                "ostler undo did not end within {} s: {}",
                UNDO_WITHIN.as_secs(),
                said.trim()
            ),
        }
    }

    /// Undo, after which the host must be as it was.
    fn undo_to(&self, before: &Found) -> anyhow::Result<()> {
        self.undo()?;
        self.found()?.must_be(before)
    }
}

/// Waits until something is so.
fn wait_until(
    what: &str,
    within: Duration,
    mut test: impl FnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let due = Instant::now() + within;
    while !test()? {
        anyhow::ensure!(
            Instant::now() < due,
            "{what}: not within {} s",
            within.as_secs()
        );
        std::thread::sleep(Duration::from_micros(500));
    }
    Ok(())
}
