//! A run: the machines started together, followed to their end, and ended together if one fails.
//!
//! Nothing is left behind, however a run ends. Memory and page have no names; the machines' processes are children of the thread
//! that runs this, which the kernel kills with it.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ostler_machine_memory::{Catalogue, System};
use rustix::fs::MemfdFlags;

use crate::emulator::Emulators;
use crate::error::LaunchError;
use crate::layout::END;
use crate::qemu::{self, Costs, Inherited};
use crate::world::World;
use crate::{child, ready};

/// The page's size, generously: the plugin refuses one that is too small.
const PAGE_BYTES: u64 = 1 << 20;
/// What a machine's emulator may take to end when it is asked to.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often the emulators are looked at.
const LOOK: Duration = Duration::from_millis(5);
/// Lines of an emulator's words that are kept for an error.
const LAST_WORDS: usize = 12;

/// How a run is to go.
#[derive(Debug, Default)]
pub struct Options {
    /// The machines are ended if they haven't after so long.
    pub timeout: Option<Duration>,
    /// Set by whoever wants it to end.
    pub interrupted: Arc<AtomicBool>,
    /// Nothing is shown.
    pub quiet: bool,
}

/// What a machine has said in a run that went well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its name.
    pub name: String,
    /// What came over its serial line.
    pub serial: Vec<u8>,
    /// What its emulator and the plugin said.
    pub said: String,
}

/// The serial line's bytes are kept up to here; the log has them all.
const KEPT: usize = 1 << 20;

struct Running {
    child: Child,
    status: Option<ExitStatus>,
    serial: JoinHandle<Vec<u8>>,
    said: JoinHandle<String>,
}

/// Runs a world until all its machines have ended by themselves.
pub fn run(
    world: &World,
    emulators: &Emulators,
    options: &Options,
) -> Result<Vec<Ended>, LaunchError> {
    ready::check(world, emulators)?;
    let files = Files::make(world)?;
    let inherited = files.inherited();
    let mut machines = Machines::default();
    for number in 0..world.machines.len() {
        machines.start(world, number, emulators, &inherited, options)?;
    }
    machines.follow(world, options)?;
    machines.finish(world)
}

/// Files without a name.
struct Files {
    memory: OwnedFd,
    page: OwnedFd,
    topology: Option<OwnedFd>,
    block: Option<OwnedFd>,
}

fn system(doing: &str) -> impl FnOnce(io::Error) -> LaunchError {
    let doing = doing.to_owned();
    |source| LaunchError::System { doing, source }
}

impl Files {
    fn make(world: &World) -> Result<Files, LaunchError> {
        // Inherited by the children, and closed with us.
        let make = |name: &str, bytes: u64| {
            let made = rustix::fs::memfd_create(name, MemfdFlags::empty())
                .and_then(|file| rustix::fs::ftruncate(&file, bytes).map(|()| file));
            made.map_err(io::Error::from)
        };
        let doing = "make a file in memory for what the machines share";
        let end = world.ranges.iter().map(crate::layout::Range::end).max();
        let mut files = Files {
            memory: make("ostler-memory", end.unwrap_or(0).min(END)).map_err(system(doing))?,
            page: make("ostler-page", PAGE_BYTES).map_err(system(doing))?,
            topology: None,
            block: None,
        };
        let Some(topology) = world.topology() else {
            return Ok(files);
        };
        let text = toml::to_string(&topology).map_err(io::Error::other);
        let written = text.and_then(|text| {
            let mut file = File::from(make("ostler-topology", 0)?);
            file.write_all(text.as_bytes()).map(|()| file.into())
        });
        files.topology = Some(written.map_err(system("describe the machines' memory"))?);
        if world.is_fused() {
            let bytes = System::block_bytes(&topology, &Catalogue::built_in());
            let bytes = bytes.map_err(io::Error::other);
            let block = bytes.and_then(|bytes| make("ostler-block", bytes as u64));
            let doing = "make a file in memory for the model of what memory costs";
            files.block = Some(block.map_err(system(doing))?);
        }
        Ok(files)
    }

    fn inherited(&self) -> Inherited {
        let costs = self.topology.as_ref().map(|topology| Costs {
            topology: topology.as_raw_fd(),
            block: self.block.as_ref().map(AsRawFd::as_raw_fd),
        });
        Inherited {
            memory: self.memory.as_raw_fd(),
            page: self.page.as_raw_fd(),
            costs,
        }
    }
}

/// All that run. They are ended when this is dropped.
#[derive(Default)]
struct Machines(Vec<Running>);

impl Drop for Machines {
    fn drop(&mut self) {
        for machine in &self.0 {
            if machine.status.is_none() {
                child::ask(&machine.child);
            }
        }
        let deadline = Instant::now() + PATIENCE;
        for machine in &mut self.0 {
            if machine.status.is_none() {
                child::end(&mut machine.child, deadline);
            }
        }
    }
}

impl Machines {
    fn start(
        &mut self,
        world: &World,
        number: usize,
        emulators: &Emulators,
        inherited: &Inherited,
        options: &Options,
    ) -> Result<(), LaunchError> {
        let machine = &world.machines[number];
        let mut command = qemu::command(world, number, emulators, inherited);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let log = match &machine.serial {
            Some(path) => {
                let doing = format!("create the serial log {}", path.display());
                Some(File::create(path).map_err(system(&doing))?)
            }
            None => None,
        };
        let doing = format!(
            "start {} for machine {}",
            machine.isa.program(),
            machine.name
        );
        let mut child = child::spawn(&mut command).map_err(system(&doing))?;
        let (name, quiet) = (machine.name.clone(), options.quiet);
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let prefix = format!("{name}| ");
        let serial = std::thread::spawn(move || {
            out.map_or_else(Vec::new, |out| {
                copy_serial(out, log, (!quiet).then_some(&*prefix))
            })
        });
        let said = std::thread::spawn(move || {
            err.map_or_else(String::new, |err| listen(err, &name, quiet))
        });
        self.0.push(Running {
            child,
            status: None,
            serial,
            said,
        });
        Ok(())
    }

    /// Waits until all have ended well.
    fn follow(&mut self, world: &World, options: &Options) -> Result<(), LaunchError> {
        let deadline = options.timeout.map(|timeout| Instant::now() + timeout);
        loop {
            let mut running = 0;
            let mut failed = None;
            for (number, machine) in self.0.iter_mut().enumerate() {
                if machine.status.is_none() {
                    let looked = machine.child.try_wait();
                    machine.status = looked.map_err(system("wait for a machine's emulator"))?;
                }
                match machine.status {
                    None => running += 1,
                    Some(status) if !status.success() => {
                        failed = failed.or(Some((number, status)));
                    }
                    Some(_) => {}
                }
            }
            if let Some((number, status)) = failed {
                return Err(self.failure(world, number, status));
            }
            if running == 0 {
                return Ok(());
            }
            if options.interrupted.load(Ordering::Relaxed) {
                return Err(LaunchError::Interrupted);
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                let seconds = options.timeout.unwrap_or_default().as_secs();
                return Err(LaunchError::TooLong(seconds));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Ends all others, and says why the one failed.
    fn failure(&mut self, world: &World, number: usize, status: ExitStatus) -> LaunchError {
        let machine = self.0.remove(number);
        let said = machine.said.join().unwrap_or_default();
        let mut last: VecDeque<&str> = said.lines().collect();
        last.drain(..last.len().saturating_sub(LAST_WORDS));
        LaunchError::Failed {
            machine: world.machines[number].name.clone(),
            status: status.to_string(),
            last_words: Vec::from(last).join("\n"),
        }
    }

    /// What all have said; all have ended.
    fn finish(&mut self, world: &World) -> Result<Vec<Ended>, LaunchError> {
        let all = self.0.drain(..).zip(&world.machines);
        let ended = all.map(|(running, machine)| {
            let gone = |_| LaunchError::System {
                doing: format!("read what machine {} said", machine.name),
                source: io::Error::other("the thread that read it failed"),
            };
            Ok(Ended {
                name: machine.name.clone(),
                serial: running.serial.join().map_err(gone)?,
                said: running.said.join().map_err(gone)?,
            })
        });
        ended.collect()
    }
}

/// Copies a serial line to its log as it comes, and to standard output line by line.
fn copy_serial(mut from: impl Read, mut log: Option<File>, prefix: Option<&str>) -> Vec<u8> {
    let mut kept = Vec::new();
    let mut line = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let read = match from.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Ok(0) | Err(_) => break,
            Ok(read) => &buffer[..read],
        };
        if let Some(file) = &mut log
            && file.write_all(read).is_err()
        {
            // A full disk ends the log, not the machine.
            log = None;
        }
        kept.extend_from_slice(&read[..read.len().min(KEPT.saturating_sub(kept.len()))]);
        let Some(prefix) = prefix else { continue };
        for &byte in read {
            match byte {
                b'\r' => {}
                b'\n' => show(prefix, &mut line),
                _ => line.push(byte),
            }
        }
    }
    if let Some(prefix) = prefix
        && !line.is_empty()
    {
        show(prefix, &mut line);
    }
    kept
}

/// A line to standard output, in one piece.
fn show(prefix: &str, line: &mut Vec<u8>) {
    let text = format!("{prefix}{}\n", String::from_utf8_lossy(line));
    line.clear();
    // Whoever doesn't read us any more doesn't want to know.
    let _ = io::stdout().lock().write_all(text.as_bytes());
}

/// Keeps what an emulator says, and shows it.
fn listen(from: impl Read, name: &str, quiet: bool) -> String {
    let mut said = String::new();
    for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        if !quiet {
            let _ = writeln!(io::stderr().lock(), "{name}: {line}");
        }
        if said.len() < KEPT {
            said.push_str(&line);
            said.push('\n');
        }
    }
    said
}
