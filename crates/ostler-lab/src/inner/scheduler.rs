//! A scheduler for the host's kernel that somebody else wrote (`sched_ext`): to compare with. Its program brings it, and takes it away as it ends; the kernel tells
//! whether it has one (Documentation/scheduler/sched-ext.rst).
//!
//! It schedules whatever the kernel's own would, vCPUs, workers and the lab's own programs alike, on the cores where each may run.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Pid, Signal};

use crate::child::wait_timeout;

const STATE: &str = "/sys/kernel/sched_ext/state";

/// From its start until the kernel has it. An emulated core verifies its programs for some seconds.
const READY_WITHIN: Duration = Duration::from_secs(100);

const END_WITHIN: Duration = Duration::from_secs(30);

/// One that runs.
#[derive(Debug)]
pub struct RunningScheduler {
    child: Child,
    name: String,
    log: PathBuf,
}

impl RunningScheduler {
    /// Starts a program, and waits until the kernel schedules by it; what it says goes to `out`.
    pub fn start(name: &str, out: &Path) -> anyhow::Result<RunningScheduler> {
        let state = state()?;
        anyhow::ensure!(
            state == "disabled",
            "the kernel has a scheduler already ({STATE}: {state})"
        );
        tell_config()?;
        let log = out.join("scheduler.log");
        let output =
            File::create(&log).with_context(|| format!("could not create {}", log.display()))?;
        let child = Command::new(Path::new("/lab/bin").join(name))
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("could not start the scheduler `{name}`"))?;
        let mut scheduler = RunningScheduler {
            child,
            name: name.to_owned(),
            log,
        };
        let ready = scheduler.wait_ready();
        if let Err(error) = ready {
            let told = scheduler.end().unwrap_or_default();
            anyhow::bail!("{error:#}; {told}");
        }
        Ok(scheduler)
    }

    fn wait_ready(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + READY_WITHIN;
        while state()? != "enabled" {
            if let Some(status) = self.child.try_wait()? {
                anyhow::bail!("`{}` ended before it was in use ({status})", self.name);
            }
            let seconds = READY_WITHIN.as_secs();
            anyhow::ensure!(
                Instant::now() < deadline,
                "`{}` wasn't in use within {seconds} s",
                self.name
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Ends it; says what was wrong with it.
    pub fn end(mut self) -> Option<String> {
        let early = self.child.try_wait().ok().flatten();
        if early.is_none()
            && let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
        {
            // As from a terminal, which is how such programs are ended. A failure means that it is gone.
            let _ = rustix::process::kill_process(pid, Signal::INT);
        }
        let wrong = match (early, wait_timeout(&mut self.child, END_WITHIN)) {
            (Some(status), _) => format!("ended early ({status})"),
            (None, Some(_)) => return None,
            (None, None) => {
                let _ = self.child.kill();
                let _ = self.child.wait();
                format!("did not end within {} s", END_WITHIN.as_secs())
            }
        };
        let last = crate::tail::last_lines(&self.log, 3);
        Some(format!(
            "the scheduler `{}` {wrong}; its last words: {}",
            self.name,
            last.trim()
        ))
    }
}

/// Debian's kernels keep how they were configured beside their modules. Programs with BPF look for it in /boot alone (libbpf's `bpf_object__read_kconfig_file`), where the package's
/// script would have put it.
fn tell_config() -> anyhow::Result<()> {
    let release = rustix::system::uname();
    let release = release.release().to_string_lossy();
    let there = PathBuf::from(format!("/boot/config-{release}"));
    let kept = PathBuf::from(format!("/lib/modules/{release}/config"));
    if there.exists() || !kept.exists() {
        return Ok(());
    }
    std::os::unix::fs::symlink(&kept, &there)
        .with_context(|| format!("could not make {}", there.display()))
}

fn state() -> anyhow::Result<String> {
    let text = std::fs::read_to_string(STATE)
        .with_context(|| format!("could not read {STATE}: has the kernel no sched_ext?"))?;
    Ok(text.trim().to_owned())
}
