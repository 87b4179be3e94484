//! A running emulated host: started, followed by its events, ended. A boot that hangs or dies is tried once more, and
//! that is reported; serial logs are kept whatever happens.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::binaries::Binaries;
use crate::child;
use crate::error::{IoContext, LabError, Result};
use crate::image::Image;
use crate::machine::{self, Time, files};
use crate::program::Program;
use crate::progress::{Progress, Step};
use crate::pulse::Pulse;
use crate::share;
use crate::tail::{Tail, last_lines};
use ostler_outcome::events::{Event, Stamped};
use ostler_outcome::report::Clock;

/// From the start to our code running in the host: 5 s on a quiet machine of two cores.
/// On machine time, a host that is past this or the next bound isn't taken to hang while it is within it by its own clock, and its cores execute.
const UP_WITHIN: Duration = Duration::from_secs(150);
/// From there to all guests ready: 10 to 30 s. Guests are retried inside the host, within this bound.
const READY_WITHIN: Duration = Duration::from_mins(7);
/// Once up, the host says something every second; silence this long is a hang. No shorter than a boot may take.
const SILENCE: Duration = UP_WITHIN;
/// Times a boot is tried.
const ATTEMPTS: u32 = 2;

/// Whether a host is ours for the length of a command, or stays up when we end.
#[derive(Clone, Copy)]
pub enum Life<'a> {
    /// Ends with us, whatever ends us.
    Bound,
    /// May stay up when we end, once it was left so ([`Vm::leave`]). What ends us at once before that leaves it, too: so its process is
    /// told as soon as there is one, to be written down where `ostler lab down` finds it.
    Background(&'a dyn Fn(u32) -> Result<()>),
}

/// A running emulated host.
#[derive(Debug)]
pub struct Vm {
    child: Child,
    /// Whether it is to live on when this is dropped.
    stays: bool,
    run: PathBuf,
    events: Tail,
    pending: VecDeque<Stamped>,
    started: Instant,
    heard: Instant,
    silence: Duration,
}

/// What to boot.
#[derive(Clone, Copy)]
pub struct Boot<'a> {
    /// The image.
    pub image: &'a Image,
    /// The programs.
    pub binaries: &'a Binaries,
    /// What the host is to do.
    pub program: &'a Program,
    /// The run's folder.
    pub run: &'a Path,
    /// Whose time it lives in.
    pub time: &'a Time,
    /// Whether it ends with us.
    pub life: Life<'a>,
}

impl Vm {
    /// Boots until all guests are ready, and hands every event to `on_event`. Tries once more if that fails, and says so.
    pub fn boot(
        boot: Boot<'_>,
        progress: Progress,
        on_event: &mut dyn FnMut(&Stamped),
    ) -> Result<Vm> {
        let mut attempt = 1;
        loop {
            let step = progress.step("boot the emulated host");
            match Vm::try_boot(boot, &step, on_event) {
                Ok(vm) => {
                    step.done(&format!(
                        "serial log in {}",
                        boot.run.join(files::SERIAL).display()
                    ));
                    return Ok(vm);
                }
                Err(LabError::Host {
                    why,
                    waiting_for,
                    after_s,
                    serial_log,
                    ..
                }) if attempt < ATTEMPTS => {
                    let kept = keep_logs(boot.run, attempt).unwrap_or(serial_log);
                    let why = format!("it {why} while {waiting_for}, after {after_s} s");
                    step.note(&format!("the emulated host did not come up ({why}); serial log: {}; trying once more", kept.display()));
                    on_event(&Stamped {
                        t_ms: 0,
                        event: Event::BootRetry {
                            why,
                            serial_log: kept,
                        },
                    });
                }
                Err(error) => return Err(error),
            }
            attempt += 1;
        }
    }

    fn try_boot(boot: Boot<'_>, step: &Step, on_event: &mut dyn FnMut(&Stamped)) -> Result<Vm> {
        share::make_disks(boot.run, boot.image, boot.binaries, boot.program)?;
        let mut vm = Vm::start(boot)?;
        let slowness = boot.time.slowness();
        let mut within = UP_WITHIN;
        let mut deadline = Instant::now() + within * slowness;
        let mut pulse = Pulse::of(boot.run.join(files::PMU));
        let mut waiting_for = "booting its kernel".to_owned();
        loop {
            let Some(stamped) = vm.next(deadline, &waiting_for)? else {
                if boot.time.clock() == Clock::Machine && pulse.is_slow(within) {
                    vm.heard = Instant::now();
                    deadline = vm.heard + within * slowness;
                    continue;
                }
                return Err(vm.failure("hung", &waiting_for));
            };
            on_event(&stamped);
            match &stamped.event {
                Event::Up { .. } => {
                    within = READY_WITHIN;
                    deadline = Instant::now() + within * slowness;
                    pulse.begin();
                    "setting up".clone_into(&mut waiting_for);
                }
                Event::Stage { name } => {
                    step.detail(name);
                    waiting_for.clone_from(name);
                }
                Event::GuestLost { name, why } => {
                    step.note(&format!(
                        "guest {name} did not come up and is started again: {why}"
                    ));
                }
                Event::Problem { what } => {
                    return Err(vm.failure(&format!("reported: {what}"), &waiting_for));
                }
                Event::Ready => return Ok(vm),
                _ => {}
            }
        }
    }

    fn start(boot: Boot<'_>) -> Result<Vm> {
        let mut command =
            machine::host(boot.image, &boot.program.scenario.host, boot.run, boot.time);
        if let Some(caches) = &boot.program.scenario.host.caches {
            let topology = crate::memory::topology(&boot.program.scenario.host, caches);
            let file = boot.run.join(files::TOPOLOGY);
            let text = toml::to_string(&topology).map_err(std::io::Error::other);
            std::fs::write(&file, text.on("describe", &file)?).on("write", &file)?;
        }
        let log = boot.run.join(files::QEMU);
        let output = std::fs::File::create(&log).on("create", &log)?;
        let errors = output.try_clone().on("open", &log)?;
        let events = boot.run.join(files::EVENTS);
        let _ = std::fs::remove_file(&events); // of an earlier attempt
        write_command_line(boot.run, &command)?;
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        match boot.life {
            Life::Bound => child::bind_to_us(&mut command),
            Life::Background(_) => child::detach(&mut command),
        };
        let child = child::spawn(&mut command)?;
        let now = Instant::now();
        let vm = Vm {
            child,
            stays: false,
            run: boot.run.to_owned(),
            events: Tail::new(events),
            pending: VecDeque::new(),
            started: now,
            heard: now,
            silence: SILENCE * boot.time.slowness(),
        };
        if let Life::Background(note) = boot.life {
            note(vm.pid())?;
        }
        Ok(vm)
    }

    /// The next event; `None` if none came by the deadline. An error if the host ended, or if we were interrupted.
    pub fn next(&mut self, deadline: Instant, waiting_for: &str) -> Result<Option<Stamped>> {
        loop {
            if let Some(stamped) = self.pending.pop_front() {
                return Ok(Some(stamped));
            }
            // In this order: what the host said before it ended is read before its end is noticed.
            let ended = self.child.try_wait().on("wait for QEMU in", &self.run)?;
            let lines = self
                .events
                .lines()
                .on("read", self.run.join(files::EVENTS))?;
            for line in &lines {
                self.heard = Instant::now();
                match serde_json::from_str(line) {
                    Ok(stamped) => self.pending.push_back(stamped),
                    Err(e) => {
                        tracing::warn!(line, error = %e, "the host said something that is no event");
                    }
                }
            }
            if !self.pending.is_empty() {
                continue;
            }
            if crate::interrupted() {
                return Err(LabError::Interrupted);
            }
            if let Some(status) = ended {
                return Err(self.failure(&format!("ended ({status})"), waiting_for));
            }
            let now = Instant::now();
            if now >= deadline {
                return Ok(None);
            }
            if now - self.heard > self.silence {
                return Err(self.failure("fell silent", waiting_for));
            }
            std::thread::sleep(Duration::from_millis(20).min(deadline - now));
        }
    }

    /// An error that names the serial log and shows its end.
    pub fn failure(&self, why: &str, waiting_for: &str) -> LabError {
        let serial_log = self.run.join(files::SERIAL);
        let last_words = last_lines(&serial_log, 12) + &last_lines(&self.run.join(files::QEMU), 4);
        LabError::Host {
            why: why.to_owned(),
            waiting_for: waiting_for.to_owned(),
            after_s: self.started.elapsed().as_secs(),
            serial_log,
            last_words,
        }
    }

    /// QEMU's process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Leaves a host up that was begun to stay ([`Life::Background`]).
    pub fn leave(mut self) {
        self.stays = true;
    }

    /// Waits for the host to power itself off, then ends it.
    pub fn finish(mut self, patience: Duration) {
        child::wait_timeout(&mut self.child, patience);
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        if !self.stays {
            child::end(&mut self.child, Duration::from_secs(3));
        }
    }
}

/// Keeps the logs of a failed attempt under names of their own.
fn keep_logs(run: &Path, attempt: u32) -> Option<PathBuf> {
    let mut kept = None;
    for name in [files::QEMU, files::EVENTS, files::SERIAL] {
        let as_name = run.join(format!("attempt-{attempt}-{name}"));
        if std::fs::rename(run.join(name), &as_name).is_ok() {
            kept = Some(as_name);
        }
    }
    kept
}

/// Writes the exact command line beside the logs, for whoever wants to repeat a boot by hand.
fn write_command_line(run: &Path, command: &Command) -> Result<()> {
    let quote =
        |word: &std::ffi::OsStr| format!("'{}'", word.to_string_lossy().replace('\'', r"'\''"));
    let words: Vec<_> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(quote)
        .collect();
    let path = run.join("qemu.sh");
    std::fs::write(
        &path,
        format!(
            "#!/bin/sh\ncd {} && exec {}\n",
            quote(run.as_os_str()),
            words.join(" \\\n  ")
        ),
    )
    .on("write", &path)
}
