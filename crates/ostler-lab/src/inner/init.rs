//! Process 1: mounts what a Linux user expects, starts the worker and a shell on the virtio console, reaps orphans, and
//! powers off when the worker ends.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rustix::mount::MountFlags;
use rustix::process::{Pid, WaitOptions};

use super::RUN;

/// A shell that ends sooner than this after its start is not restarted at once.
const SHELL_PAUSE: Duration = Duration::from_secs(1);

const MOUNTS: &[(&str, &str, &str)] = &[
    ("proc", "/proc", "proc"),
    ("sysfs", "/sys", "sysfs"),
    ("devpts", "/dev/pts", "devpts"),
    ("tmpfs", "/dev/shm", "tmpfs"),
    ("tmpfs", "/tmp", "tmpfs"),
    ("tmpfs", "/run", "tmpfs"),
    ("cgroup2", "/sys/fs/cgroup", "cgroup2"),
    ("debugfs", "/sys/kernel/debug", "debugfs"),
    ("tracefs", "/sys/kernel/tracing", "tracefs"),
    ("bpf", "/sys/fs/bpf", "bpf"),
];

/// The first process; doesn't return where it should run.
pub fn init() -> ExitCode {
    if !rustix::process::getpid().is_init() {
        eprintln!("ostler-lab-inner init is for process 1 of the lab's emulated host");
        return ExitCode::FAILURE;
    }
    for (source, target, kind) in MOUNTS {
        let _ = std::fs::create_dir_all(target); // the mount below says what is wrong
        if let Err(e) = rustix::mount::mount(
            *source,
            *target,
            *kind,
            MountFlags::empty(),
            None::<&std::ffi::CStr>,
        ) {
            eprintln!("LAB_FATAL could not mount {target}: {e}");
        }
    }
    let _ = std::fs::create_dir_all(RUN);
    let _ = rustix::system::sethostname(b"lab"); // only prompts show it
    let worker = Command::new("/proc/self/exe")
        .arg("work")
        .env_clear()
        .envs([
            ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
            ("HOME", "/root"),
            ("LANG", "C.UTF-8"),
        ])
        .spawn();
    match worker {
        Ok(worker) => watch(&worker),
        Err(e) => eprintln!("LAB_FATAL could not start the worker: {e}"),
    }
    rustix::fs::sync();
    let _ = rustix::system::reboot(rustix::system::RebootCommand::PowerOff);
    ExitCode::FAILURE
}

/// Reaps every child until the worker is gone; keeps a shell on the console meanwhile.
fn watch(worker: &Child) {
    let mut shell = start_shell();
    let mut shell_started = Instant::now();
    while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::empty()) {
        if is(worker, pid) {
            if status.exit_status() != Some(0) {
                eprintln!("LAB_FATAL the worker ended with {status:?}");
            }
            return;
        }
        if shell.as_ref().is_some_and(|shell| is(shell, pid)) {
            if shell_started.elapsed() < SHELL_PAUSE {
                std::thread::sleep(SHELL_PAUSE);
            }
            shell = start_shell();
            shell_started = Instant::now();
        }
    }
}

fn is(child: &Child, pid: Pid) -> bool {
    i32::try_from(child.id()) == Ok(pid.as_raw_nonzero().get())
}

/// A login shell on the virtio console, with job control.
fn start_shell() -> Option<Child> {
    let console = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/hvc0")
        .ok()?;
    let (output, errors) = (console.try_clone().ok()?, console.try_clone().ok()?);
    Command::new("/usr/bin/setsid")
        .args(["--ctty", "/bin/bash", "--login"])
        .env_clear()
        .envs([
            ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin:/lab/bin"),
            ("HOME", "/root"),
            ("TERM", "xterm"),
            ("PS1", "lab:\\w# "),
        ])
        .current_dir("/root")
        .stdin(Stdio::from(console))
        .stdout(output)
        .stderr(errors)
        .arg0("setsid")
        .spawn()
        .ok()
}
