//! Children that can't outlive us: the kernel kills them when the thread that started them ends, however that is.
#![allow(
    unsafe_code,
    reason = "`pre_exec` is unsafe: between fork and exec only async-signal-safe calls are allowed"
)]

use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

/// Starts a child that is bound to this thread, in a process group of its own: a Ctrl-C at the terminal reaches us alone, and we
/// end it in order.
pub(crate) fn spawn(command: &mut Command) -> std::io::Result<Child> {
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
        });
    }
    command.spawn()
}

/// Asks a child to end.
pub(crate) fn ask(child: &Child) {
    signal(child, Signal::TERM);
}

/// Ends a child that was asked, not later than at a deadline.
pub(crate) fn end(child: &mut Child, deadline: Instant) {
    while Instant::now() < deadline {
        match child.try_wait() {
            Ok(None) => std::thread::sleep(Duration::from_millis(5)),
            _ => return,
        }
    }
    signal(child, Signal::KILL);
    let _ = child.wait();
}

fn signal(child: &Child, signal: Signal) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // Failure means that it is gone, which is what we want.
        let _ = rustix::process::kill_process(pid, signal);
    }
}
