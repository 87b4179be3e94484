//! Runs the program's cells: brings the host back to where every policy starts, starts the steward if the policy has one,
//! applies the load, and counts.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context;
use ostler_abi::pmu::Device;
use serde_json::Value;

use super::RESULTS;
use super::counters::Reading;
use super::guests::{self, RunningGuest};
use super::load;
use super::net::Pnic;
use super::profile::Profiler;
use super::sampler::Scene;
use super::say::Say;
use super::scheduler::RunningScheduler;
use super::steward::{self, Steward};
use super::trace::Tracer;
use super::turn::Turn;
use super::write;
use crate::child::wait_timeout;
use crate::profile::SYMBOLS;
use crate::program::Program;
use crate::scenario::{Load, Policy, Scenario, Workload};
use ostler_outcome::events::{Cell, Event};

/// Beyond the seconds of its steps, a load generator needs time to connect and to wait for late replies.
const LOAD_GRACE: Duration = Duration::from_mins(1);
struct Cells<'a> {
    program: &'a Program,
    pnic: &'a Pnic,
    running: Vec<RunningGuest>,
    scene: &'a Arc<Mutex<Scene>>,
    say: &'a Say,
    /// The machine's own counters, where it has any.
    pmu: Option<Device>,
    /// What writes down the kernel's events, if that is asked for.
    tracer: Option<Tracer>,
    /// What has the machine count where instructions go, likewise.
    profiler: Option<Profiler>,
    /// Guests that hold the keys of a seed.
    filled: BTreeSet<(usize, u64)>,
}

/// Runs every cell of the program. Returns the guests as they are then.
pub fn run(
    program: &Program,
    pnic: &Pnic,
    running: Vec<RunningGuest>,
    scene: &Arc<Mutex<Scene>>,
    say: &Say,
) -> anyhow::Result<Vec<RunningGuest>> {
    let tracer = match program.trace.as_slice() {
        [] => None,
        events => Some(Tracer::new(events)?),
    };
    let mut cells = Cells {
        program,
        pnic,
        running,
        scene,
        say,
        pmu: Device::find(Path::new("/sys"))?,
        tracer,
        profiler: program.profile.then(Profiler::new).transpose()?,
        filled: BTreeSet::new(),
    };
    for cell in program.cells() {
        cells.cell(&cell)?;
    }
    Ok(cells.running)
}

impl Cells<'_> {
    fn scenario(&self) -> &Scenario {
        &self.program.scenario
    }

    /// Puts every key into a guest that stores them, so that gets find something. The seed decides the keys.
    fn fill(&mut self, load: &Load, seed: u64) -> anyhow::Result<()> {
        let (index, guest) = load::target(self.program, load)?;
        let stores = matches!(guest.workload, Workload::Memcached | Workload::Redis);
        if !stores || self.filled.contains(&(index, seed)) {
            return Ok(());
        }
        self.say.stage(format!("filling {}", load.guest));
        let output = load::command(self.program, load, "1x1", seed)?
            .arg("--preload")
            .output()
            .context("could not start the load generator")?;
        let said = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(
            output.status.success(),
            "filling {} failed: {}",
            load.guest,
            said.trim()
        );
        self.filled.insert((index, seed));
        Ok(())
    }

    fn cell(&mut self, cell: &Cell) -> anyhow::Result<()> {
        let policy = self
            .scenario()
            .policies
            .iter()
            .find(|p| p.name == cell.policy)
            .context("no such policy")?
            .clone();
        let load = self
            .scenario()
            .loads
            .get(cell.load as usize)
            .context("no such load")?
            .clone();
        let mut problems = Vec::new();
        self.reset(&policy)?;
        self.fill(&load, self.program.seed_of(cell))?;
        self.scene(Some(cell.index));
        self.say.say(Event::CellStart {
            cell: cell.clone(),
            unix_ms: steward::unix_ms(),
        });
        let out = PathBuf::from(RESULTS).join(format!("cell-{}", cell.index));
        std::fs::create_dir_all(&out)
            .with_context(|| format!("could not create {}", out.display()))?;
        // As of a steward: what doesn't start is said of the cell, and is no reason to end the run.
        let scheduler = match &policy.host_scheduler {
            Some(named) => match RunningScheduler::start(&named.name, &out) {
                Ok(scheduler) => Some(scheduler),
                Err(e) => {
                    problems.push(format!("{e:#}"));
                    None
                }
            },
            None => None,
        };
        let mut steward = match &policy.steward {
            Some(own) => Some(Steward::start(self.program, own, &self.pnic.name, &out)?),
            None => None,
        };
        if let Some(Err(e)) = steward.as_mut().map(|s| s.wait_ready(self.program)) {
            problems.push(format!("{e:#}"));
        }
        let mut turns = Vec::new();
        for (index, begun) in Turn::begin_all(&self.program.working(&load)) {
            match begun {
                Ok(turn) => turns.push((index, turn)),
                Err(e) => problems.push(format!("{e:#}")),
            }
        }
        // Not for synchronisation: policies get the same time to settle before they are measured.
        std::thread::sleep(Duration::from_secs_f64(self.scenario().settle_s));
        // Whoever is measured by its work says to the instant what it has done; to ask the others would wake them all at once.
        let mut said = |turns: &mut [(usize, Turn)]| {
            let measured = turns
                .iter_mut()
                .find(|(index, _)| self.scenario().guests[*index].in_turn);
            if let Some((index, turn)) = measured {
                match turn.work() {
                    Ok(work) => self.running[*index].said(work),
                    Err(e) => problems.push(format!("{e:#}")),
                }
            }
        };
        said(&mut turns);
        let tracing = self.tracer.as_ref().map_or(Ok(()), Tracer::begin);
        let before = self.reading()?;
        let from_ms = steward::unix_ms();
        if let Some(profiler) = &self.profiler {
            profiler.begin(cell.index);
        }
        let loaded = self.load(&load, cell, &out);
        let profiled = match &self.profiler {
            Some(profiler) => {
                profiler.end(cell.index);
                Profiler::symbols().and_then(|code| write(out.join(SYMBOLS), &code))
            }
            None => Ok(()),
        };
        said(&mut turns);
        let after = self.reading()?;
        let traced = tracing.and_then(|()| match &self.tracer {
            Some(tracer) => tracer.end(&out),
            None => Ok(()),
        });
        problems.extend(profiled.err().map(|e| format!("{e:#}")));
        problems.extend(traced.err().map(|e| format!("{e:#}")));
        drop(turns);
        problems.extend(loaded.err().map(|e| format!("{e:#}")));
        let to_ms = steward::unix_ms();
        if let Some(steward) = steward {
            problems.extend(self.dismiss(steward, cell, from_ms, to_ms));
        }
        problems.extend(scheduler.and_then(RunningScheduler::end));
        problems.extend(self.running.iter().filter_map(RunningGuest::epitaph));
        self.say.say(Event::CellEnd {
            cell: cell.index,
            counters: after.since(&before),
            problems,
        });
        self.scene(None);
        Ok(())
    }

    /// Ends a cell's steward, and says what it saw and decided while the load was on. Returns what went wrong.
    fn dismiss(&self, steward: Steward, cell: &Cell, from_ms: u64, to_ms: u64) -> Vec<String> {
        let decisions = steward.decisions_command();
        let periods = steward.periods().to_owned();
        let mut problems: Vec<String> = steward.end().into_iter().collect();
        self.say.say(Event::Tap {
            cell: cell.index,
            periods_us: steward::tap_times(&periods, &cell.guest, from_ms, to_ms),
        });
        let boost = steward::boost_periods(&periods, from_ms, to_ms);
        if !boost.is_empty() {
            self.say.say(Event::Boost {
                cell: cell.index,
                periods: boost,
            });
        }
        let told = steward::json_values(&decisions, |record| {
            self.say.say(Event::Steward {
                cell: cell.index,
                record,
            });
        });
        problems.extend(told.err().map(|e| format!("{e:#}")));
        problems
    }

    fn reading(&self) -> anyhow::Result<Reading> {
        let under_test = self.scenario().host.under_test;
        let mut scene = self
            .scene
            .lock()
            .map_err(|_| anyhow::anyhow!("the sampler failed"))?;
        Reading::take(
            &under_test,
            &self.running,
            &mut scene.meter,
            self.pmu.as_ref(),
        )
    }

    fn scene(&self, cell: Option<u32>) {
        if let Ok(mut scene) = self.scene.lock() {
            scene.cell = cell;
            scene.guests.clone_from(&self.running);
        }
    }

    /// Where every cell starts: all guests alive and free on the cores under test, all queues in use, interrupts spread.
    fn reset(&mut self, policy: &Policy) -> anyhow::Result<()> {
        let host = &self.program.scenario.host;
        let lost: Vec<usize> = self
            .running
            .iter()
            .enumerate()
            .filter(|(_, g)| !g.alive())
            .map(|(i, _)| i)
            .collect();
        if !lost.is_empty() {
            for &index in &lost {
                let guest = &self.running[index];
                let told = guest.epitaph().unwrap_or_default();
                self.say.say(Event::GuestLost {
                    name: guest.name.clone(),
                    why: format!("{told}\nit is started again before the next cell"),
                });
            }
            let fresh = guests::start(self.program, &lost, self.say)?;
            for (&index, guest) in lost.iter().zip(fresh) {
                self.running[index] = guest;
                self.filled.retain(|(filled, _)| *filled != index);
            }
        }
        for guest in &self.running {
            guests::reset(&guest.name)?;
        }
        self.pnic
            .set_queues(policy.pnic_queues.unwrap_or(host.pnic_queues))?;
        self.pnic.spread(host)
    }

    fn load(&self, load: &Load, cell: &Cell, out: &Path) -> anyhow::Result<()> {
        let (_, guest) = load::target(self.program, load)?;
        if guest.workload.service().is_none() {
            return load::wait(load, |line| {
                // A struct of numbers and strings always serialises.
                let line = serde_json::to_value(line).unwrap_or_default();
                self.say.say(Event::Load {
                    cell: cell.index,
                    line,
                });
            });
        }
        let log_path = out.join("load.log");
        let log = File::create(&log_path)?;
        let steps = load.steps_text();
        let mut child = load::command(self.program, load, &steps, self.program.seed_of(cell))?
            .stdout(Stdio::piped())
            .stderr(log.try_clone()?)
            .spawn()
            .context("could not start the load generator")?;
        let reader = child.stdout.take().map(|stdout| {
            let (say, index) = (self.say.clone(), cell.index);
            std::thread::spawn(move || {
                forward(BufReader::new(stdout), log, |line| {
                    say.say(Event::Load { cell: index, line });
                });
            })
        });
        let seconds: f64 = load.steps.iter().map(|s| s.seconds).sum();
        let status = wait_timeout(&mut child, Duration::from_secs_f64(seconds) + LOAD_GRACE);
        if status.is_none() {
            let _ = child.kill();
            let _ = child.wait();
        }
        // The pipe is closed now, so the reader ends.
        if let Some(reader) = reader {
            let _ = reader.join();
        }
        match status {
            Some(status) if status.success() => Ok(()),
            Some(status) => anyhow::bail!(
                "the load generator failed ({status}): {}",
                crate::tail::last_lines(&log_path, 3).trim()
            ),
            None => anyhow::bail!("the load generator did not end in time"),
        }
    }
}

/// JSON lines go to `json`, everything else to the log.
fn forward(reader: impl BufRead, mut log: impl Write, mut json: impl FnMut(Value)) {
    for line in reader.lines() {
        let Ok(line) = line else { return };
        match serde_json::from_str::<Value>(&line) {
            Ok(value) if value.is_object() => json(value),
            _ => {
                // A full disk loses the log, not the run.
                let _ = writeln!(log, "{line}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_objects_are_forwarded_and_the_rest_is_logged() {
        let input = "{\"a\":1}\nhello\n[1]\n{broken\n{\"b\":2}\n";
        let (mut log, mut seen) = (Vec::new(), Vec::new());
        forward(input.as_bytes(), &mut log, |value| seen.push(value));
        assert_eq!(
            seen,
            [serde_json::json!({"a": 1}), serde_json::json!({"b": 2})]
        );
        assert_eq!(
            String::from_utf8(log).expect("text"),
            "hello\n[1]\n{broken\n"
        );
    }
}
