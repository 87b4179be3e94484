//! A lab that stays up: booted in the background, entered by a shell, ended by name. Its state file says which process
//! it is; a process is recognised by its start time too, so that a recycled pid is never ended.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use serde::{Deserialize, Serialize};

use crate::binaries::Binaries;
use crate::error::{IoContext, LabError, Result};
use crate::image::{Image, LabDir};
use crate::machine::{Time, files};
use crate::program::Program;
use crate::progress::Progress;
use crate::run::{new_folder, write_lines};
use crate::vm::{Boot, Life, Vm};

/// The key that leaves the shell, as telnet's: Ctrl-].
const LEAVE: u8 = 0x1d;
/// A QEMU that was asked to end does so at once.
const DOWN_WITHIN: Duration = Duration::from_secs(10);

/// What interrupts a program on a terminal: Ctrl-C.
const INTERRUPT: &[u8] = b"\x03";

/// How often somebody who waits for a script looks whether they were interrupted.
const GLANCE: Duration = Duration::from_millis(200);

/// A script in the lab may be silent for this long.
const SCRIPT_SILENCE: Duration = Duration::from_mins(5);

/// The lab that is up.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct State {
    /// QEMU's process.
    pub pid: u32,
    /// Its start, in the kernel's ticks since boot.
    pub started: u64,
    /// The run's folder.
    pub run: PathBuf,
    /// The scenario's name.
    pub scenario: String,
    /// Whether its guests are ready. One that isn't is still booting, or whoever booted it was killed.
    pub ready: bool,
}

impl State {
    fn path(lab: &LabDir) -> PathBuf {
        lab.path().join("up.json")
    }

    /// The lab that is up, if one is.
    pub fn read(lab: &LabDir) -> Option<State> {
        let text = std::fs::read_to_string(State::path(lab)).ok()?;
        let state: State = serde_json::from_str(&text).ok()?;
        (start_time(state.pid) == Some(state.started)).then_some(state)
    }

    fn require(lab: &LabDir) -> Result<State> {
        State::read(lab).ok_or_else(|| {
            LabError::State("no lab is up; start one with `ostler lab up`".to_owned())
        })
    }

    /// The lab that is up, to be worked in.
    fn require_ready(lab: &LabDir) -> Result<State> {
        let state = State::require(lab)?;
        if state.ready {
            return Ok(state);
        }
        Err(LabError::State(format!(
            "the lab ({}, process {}) is still booting, or its `ostler lab up` was killed; wait for that, or end the lab with \
             `ostler lab down`",
            state.scenario, state.pid
        )))
    }

    /// Writes a process down as the lab that is up.
    fn write(&self, lab: &LabDir) -> Result<()> {
        let path = State::path(lab);
        let text = serde_json::to_string_pretty(self).unwrap_or_default();
        std::fs::write(&path, text).on("write", &path)
    }
}

/// When a process started, from `/proc/PID/stat`; `None` if there is no such process.
fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything; fields are counted after it. A zombie is as good as gone.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    (fields.next()? != "Z").then_some(())?;
    fields.nth(18)?.parse().ok()
}

/// Boots a lab and leaves it up.
pub fn up(
    lab: &LabDir,
    image: &Image,
    binaries: &Binaries,
    program: &Program,
    time: &Time,
    progress: Progress,
) -> Result<State> {
    if let Some(state) = State::read(lab) {
        return Err(LabError::State(format!(
            "a lab is up, or booting, already ({}, process {}); enter it with `ostler lab shell` or end it with `ostler lab down`",
            state.scenario, state.pid
        )));
    }
    let run = new_folder(lab, &program.scenario.name)?;
    let mut events = Vec::new();
    // `None` if it has ended already, which whoever waits for it will tell.
    let state = |pid, ready| {
        Some(State {
            pid,
            started: start_time(pid)?,
            run: run.clone(),
            scenario: program.scenario.name.clone(),
            ready,
        })
    };
    let boot = Boot {
        image,
        binaries,
        program,
        run: &run,
        time,
        life: Life::Background(&|pid| state(pid, false).map_or(Ok(()), |state| state.write(lab))),
    };
    // Dropped, and so ended, unless all goes well: one that can't be found again must not stay.
    let vm = Vm::boot(boot, progress, &mut |stamped| events.push(stamped.clone()))?;
    write_lines(&run.join("events.jsonl"), &events)?;
    let state = state(vm.pid(), true).ok_or_else(|| vm.failure("ended", "being left alone"))?;
    state.write(lab)?;
    vm.leave();
    Ok(state)
}

/// Ends the lab that is up.
pub fn down(lab: &LabDir) -> Result<State> {
    let state = State::require(lab)?;
    let pid = i32::try_from(state.pid)
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| {
            LabError::State(format!("{} names no process", State::path(lab).display()))
        })?;
    for signal in [Signal::TERM, Signal::KILL] {
        if start_time(state.pid) == Some(state.started) {
            rustix::process::kill_process(pid, signal).on("end the process of", &state.run)?;
        }
        let deadline = Instant::now() + DOWN_WITHIN;
        while start_time(state.pid) == Some(state.started) {
            if Instant::now() > deadline {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    for leftover in [files::INPUT, files::RESULTS, files::SHELL] {
        let _ = std::fs::remove_file(state.run.join(leftover)); // large, and of no use without the host
    }
    let _ = std::fs::remove_file(State::path(lab)); // it names a process that is gone, which is as good as absent
    Ok(state)
}

/// An interactive shell in the lab that is up, until Ctrl-].
pub fn shell(lab: &LabDir) -> Result<()> {
    let state = State::require_ready(lab)?;
    let mut to = connect(&state.run.join(files::SHELL))?;
    let mut from = to.try_clone().on("use", &state.run)?;
    crate::tell!("lab: {}; Ctrl-] leaves", state.scenario);
    let _raw = RawTerminal::enter()?;
    let printer = std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        let mut out = std::io::stdout();
        while let Ok(n @ 1..) = from.read(&mut buffer) {
            if out
                .write_all(&buffer[..n])
                .and_then(|()| out.flush())
                .is_err()
            {
                return;
            }
        }
    });
    to.write_all(b"\n")
        .on("write to the shell of", &state.run)?; // for a prompt
    let mut buffer = [0; 4096];
    while let Ok(n @ 1..) = std::io::stdin().lock().read(&mut buffer) {
        let end = buffer[..n].iter().position(|&b| b == LEAVE);
        to.write_all(&buffer[..end.unwrap_or(n)])
            .on("write to the shell of", &state.run)?;
        if end.is_some() {
            break;
        }
    }
    // The printer's read ends with the connection; a failure means that it has ended already.
    let _ = to.shutdown(std::net::Shutdown::Both);
    let _ = printer.join();
    Ok(())
}

/// Runs a script in the lab that is up; what it prints goes to `out`. Returns its exit status.
pub fn exec(lab: &LabDir, script: &str, out: &mut dyn Write) -> Result<u8> {
    let state = State::require_ready(lab)?;
    let mut to = connect(&state.run.join(files::SHELL))?;
    to.write_all(typed(script).as_bytes())
        .on("write to the shell of", &state.run)?;
    relay(&mut to, &state.run, out, crate::interrupted)
}

/// Passes on what the script that was typed into the shell prints, until it is over.
fn relay(
    shell: &mut UnixStream,
    run: &Path,
    out: &mut dyn Write,
    interrupted: impl Fn() -> bool,
) -> Result<u8> {
    shell.set_read_timeout(Some(GLANCE)).on("use", run)?;
    let mut relay = Relay::default();
    let mut buffer = [0; 4096];
    let mut heard = Instant::now();
    loop {
        if interrupted() {
            shell
                .write_all(INTERRUPT)
                .on("write to the shell of", run)?;
            return Err(LabError::State(
                "interrupted, and so was the script in the lab; the lab is still up".to_owned(),
            ));
        }
        let n = match shell.read(&mut buffer) {
            Ok(0) => {
                return Err(LabError::State(
                    "the lab ended while the script ran".to_owned(),
                ));
            }
            Ok(n) => n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                if heard.elapsed() < SCRIPT_SILENCE {
                    continue;
                }
                return Err(LabError::State(format!(
                    "the script said nothing for {} s and was left running",
                    SCRIPT_SILENCE.as_secs()
                )));
            }
            Err(e) => return Err(e).on("read from the shell of", run),
        };
        heard = Instant::now();
        for line in relay.take(&buffer[..n]) {
            writeln!(out, "{line}").on("write to", "standard output")?;
        }
        if let Some(status) = relay.status {
            return Ok(status);
        }
    }
}

/// What is typed into the shell to run a script. It travels in hexadecimal, so that no byte of it means anything to the
/// terminal; the quotes inside the markers keep the terminal's echo from looking like them.
fn typed(script: &str) -> String {
    let mut typed = String::from("\x15:>/tmp/script\n"); // Ctrl-U: whatever was half typed is dropped
    for chunk in script.as_bytes().chunks(256) {
        typed.push_str(" printf '");
        for byte in chunk {
            let _ = write!(typed, "\\x{byte:02x}"); // a String takes everything
        }
        typed.push_str("' >>/tmp/script\n");
    }
    typed.push_str(" echo LAB_\"\"BEGIN; bash /tmp/script </dev/null; echo LAB_\"\"STATUS $?\n");
    typed
}

/// Picks a script's output out of what the terminal shows.
#[derive(Debug, Default)]
struct Relay {
    partial: Vec<u8>,
    begun: bool,
    status: Option<u8>,
}

impl Relay {
    fn take(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut lines = Vec::new();
        for &byte in bytes {
            if byte != b'\n' {
                self.partial.push(byte);
                continue;
            }
            let line = String::from_utf8_lossy(&self.partial)
                .trim_end_matches('\r')
                .to_owned();
            self.partial.clear();
            // Output without a final newline has the marker at its end.
            let (text, status) = match line.split_once("LAB_STATUS ") {
                Some((text, status)) => (text.to_owned(), status.trim().parse().ok()),
                None => (line, None),
            };
            if self.begun && (status.is_none() || !text.is_empty()) {
                lines.push(text.clone());
            }
            if self.begun && status.is_some() {
                self.status = status;
                return lines;
            }
            // readline puts control sequences before what it runs.
            self.begun |= text.ends_with("LAB_BEGIN");
        }
        lines
    }
}

/// Connects to a socket whose path may be longer than a socket address holds.
fn connect(path: &Path) -> Result<UnixStream> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let name = path.file_name().unwrap_or_default();
    let handle = std::fs::File::open(folder).on("open", folder)?;
    let short = Path::new("/proc/self/fd")
        .join(std::os::fd::AsRawFd::as_raw_fd(&handle).to_string())
        .join(name);
    UnixStream::connect(short).on("connect to", path)
}

/// The terminal passes every key on, until dropped.
struct RawTerminal(Termios);

impl RawTerminal {
    fn enter() -> Result<RawTerminal> {
        let stdin = std::io::stdin();
        let before = tcgetattr(&stdin).on("read the settings of", "the terminal")?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(&stdin, OptionalActions::Now, &raw).on("set", "the terminal")?;
        Ok(RawTerminal(before))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scripts_output_is_picked_out_of_the_terminal() {
        let mut relay = Relay::default();
        let shown = "\u{1b}[?2004hlab# echo LAB_\"\"BEGIN; bash /tmp/script; echo LAB_\"\"STATUS $?\r\n\u{1b}[?2004l\rLAB_BEGIN\r\none\r\n\r\ntwoLAB_STATUS 3\r\nlab# ";
        let mut lines = Vec::new();
        for byte in shown.as_bytes() {
            lines.append(&mut relay.take(&[*byte])); // however it is cut up
        }
        assert_eq!(lines, ["one", "", "two"]);
        assert_eq!(relay.status, Some(3));
    }

    #[test]
    fn an_interrupt_ends_a_script_that_says_nothing() {
        let (mut ours, mut shell) = UnixStream::pair().expect("a pair of sockets");
        let told = relay(&mut ours, Path::new("run"), &mut Vec::new(), || true)
            .expect_err("it was interrupted")
            .to_string();
        assert!(told.contains("interrupted"), "{told}");
        let mut typed = [0; 1];
        shell.read_exact(&mut typed).expect("a key");
        assert_eq!(typed, *INTERRUPT);
    }

    #[test]
    fn a_process_is_known_by_its_start_too() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let lab = LabDir::new(dir.path());
        assert_eq!(State::read(&lab), None);
        let pid = std::process::id();
        let started = start_time(pid).expect("we run");
        let state = |started| State {
            pid,
            started,
            run: "/r".into(),
            scenario: "s".into(),
            ready: false,
        };
        let put = |state: &State| state.write(&lab).expect("a state file");
        put(&state(started));
        assert_eq!(State::read(&lab), Some(state(started)));
        let told = exec(&lab, "true", &mut Vec::new())
            .expect_err("it isn't ready")
            .to_string();
        assert!(told.contains("ostler lab down"), "{told}");
        put(&state(started + 1));
        assert_eq!(State::read(&lab), None, "another process has that pid now");
        assert!(
            down(&lab)
                .expect_err("nothing is up")
                .to_string()
                .contains("ostler lab up")
        );
    }
}
