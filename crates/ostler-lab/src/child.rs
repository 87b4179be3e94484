//! Child processes that can't outlive us: the kernel signals them when the thread that started them dies, so even
//! `kill -9` of ostler leaves no QEMU behind. Also runs a step's command while showing its output.
#![allow(unsafe_code)] // `pre_exec` is unsafe: between fork and exec only async-signal-safe calls are allowed.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};

use crate::error::{LabError, Result};
use crate::progress::Step;

/// Lines of output kept for an error message.
const LAST_WORDS: usize = 15;

/// Makes the child die with the thread that starts it, and leads its own process group so that a Ctrl-C at the terminal
/// reaches us alone and we end it in order.
pub fn bind_to_us(command: &mut Command) -> &mut Command {
    let parent = rustix::process::getpid();
    command.process_group(0);
    // SAFETY: prctl and getppid are async-signal-safe and allocate nothing.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            // We may have died between fork and prctl; then nobody would ever send the signal.
            if rustix::process::getppid() != Some(parent) {
                return Err(std::io::Error::other("the parent died first"));
            }
            Ok(())
        })
    }
}

/// Makes the child live on in a session of its own, for a lab that stays up in the background.
pub fn detach(command: &mut Command) -> &mut Command {
    // SAFETY: setsid is async-signal-safe and allocates nothing.
    unsafe {
        command.pre_exec(|| {
            rustix::process::setsid()?;
            Ok(())
        })
    }
}

/// Starts a command, naming the program when that fails.
pub fn spawn(command: &mut Command) -> Result<Child> {
    command.spawn().map_err(|source| LabError::Start {
        program: command.get_program().to_string_lossy().into_owned(),
        source,
    })
}

/// Runs a command to its end, showing the last line it printed. Ends it when we are asked to stop.
pub fn run(command: &mut Command, what: &str, remedy: &str, step: &Step) -> Result<()> {
    let (reader, writer) = std::io::pipe().map_err(|source| start_error(command, source))?;
    let stderr = writer
        .try_clone()
        .map_err(|source| start_error(command, source))?;
    bind_to_us(command)
        .stdin(Stdio::null())
        .stdout(writer)
        .stderr(stderr);
    let mut child = spawn(command)?;
    // The command holds write ends of the pipe; ours must be closed or the reader never sees the end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let (send, lines) = mpsc::sync_channel(64);
    // A thread of its own: some commands are silent for long, and an interrupt must not wait for their next word.
    std::thread::spawn(move || {
        for line in BufReader::new(reader).split(b'\n').map_while(Result::ok) {
            if send.send(line).is_err() {
                return;
            }
        }
    });
    let mut last = VecDeque::with_capacity(LAST_WORDS);
    loop {
        let line = match lines.recv_timeout(Duration::from_millis(50)) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) if crate::interrupted() => {
                end(&mut child, Duration::from_secs(5));
                return Err(LabError::Interrupted);
            }
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => break,
        };
        // apt overwrites its line with carriage returns; the part after the last one is what a terminal shows.
        let line = String::from_utf8_lossy(&line);
        let line = line.trim_end_matches('\r').rsplit('\r').next();
        let line = line.unwrap_or_default().to_owned();
        step.detail(&line);
        if last.len() == LAST_WORDS {
            last.pop_front();
        }
        last.push_back(line);
    }
    let status = child
        .wait()
        .map_err(|source| start_error(command, source))?;
    if crate::interrupted() {
        return Err(LabError::Interrupted);
    }
    if status.success() {
        return Ok(());
    }
    Err(LabError::Command {
        what: what.to_owned(),
        status: status.to_string(),
        last_words: Vec::from(last).join("\n"),
        remedy: remedy.to_owned(),
    })
}

fn start_error(command: &Command, source: std::io::Error) -> LabError {
    LabError::Start {
        program: command.get_program().to_string_lossy().into_owned(),
        source,
    }
}

/// Runs a short command and returns what it printed.
pub fn output(command: &mut Command, what: &str, remedy: &str) -> Result<String> {
    let output = bind_to_us(command)
        .stdin(Stdio::null())
        .output()
        .map_err(|source| start_error(command, source))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(LabError::Command {
        what: what.to_owned(),
        status: output.status.to_string(),
        last_words: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        remedy: remedy.to_owned(),
    })
}

/// Ends a child of ours and its process group: politely, then not.
pub fn end(child: &mut Child, patience: Duration) {
    let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) else {
        return;
    };
    // Failures mean that it is gone, which is what we want.
    let _ = rustix::process::kill_process(pid, Signal::TERM);
    if wait_timeout(child, patience).is_none() {
        let _ = rustix::process::kill_process_group(pid, Signal::KILL);
        let _ = rustix::process::kill_process(pid, Signal::KILL);
        let _ = child.wait();
    }
}

/// Waits for a child's end, at most so long. Asleep: in the emulated host it waits for the load generator and for tests, on the very core that they measure with.
pub fn wait_timeout(child: &mut Child, patience: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + patience;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw)?;
    let ends = pidfd_open(pid, PidfdFlags::empty());
    loop {
        if let Some(status) = child.try_wait().ok()? {
            return Some(status);
        }
        let left = deadline.checked_duration_since(Instant::now())?;
        match (&ends, Timespec::try_from(left)) {
            // A signal in between is no end: it is asked again.
            (Ok(ends), Ok(left)) => {
                let _ = poll(&mut [PollFd::new(ends, PollFlags::IN)], Some(&left));
            }
            // Linux before 5.3.
            _ => std::thread::sleep(left.min(Duration::from_millis(20))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(seconds: &str) -> Child {
        let mut command = Command::new("sleep");
        bind_to_us(command.arg(seconds)).spawn().expect("coreutils")
    }

    /// How often this thread has slept, by the kernel's count.
    fn slept() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("procfs");
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.and_then(|count| count.trim().parse().ok())
            .expect("the kernel counts them")
    }

    /// A look every 20 ms would be 50 of them.
    #[test]
    fn whoever_waits_for_a_child_sleeps_until_it_ends() {
        let mut child = started("1");
        let before = slept();
        let status = wait_timeout(&mut child, Duration::from_mins(1));
        assert!(status.is_some_and(|status| status.success()), "{status:?}");
        let times = slept() - before;
        assert!(times < 10, "{times}");
        assert_eq!(wait_timeout(&mut child, Duration::ZERO), status);
    }

    #[test]
    fn a_child_that_does_not_end_is_waited_for_as_long_as_told() {
        let mut child = started("3600");
        assert_eq!(wait_timeout(&mut child, Duration::from_millis(50)), None);
        end(&mut child, Duration::from_mins(1));
        let status = child.wait().expect("it is ours");
        assert!(!status.success(), "{status}");
    }
}
