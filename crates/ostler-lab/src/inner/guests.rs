//! Guests inside the emulated host: each QEMU in a cgroup of its own, waited for by a marker on its serial line, started
//! again once if it hangs or dies.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context;
use ostler_model::Class;

use super::done::Done;
use super::say::Say;
use super::{MACHINE_CGROUP, RUN, net, write};
use crate::image::Cpio;
use crate::machine::{self, GuestPaths};
use crate::program::{INPUT, Program};
use crate::scenario::Guest;
use crate::tail::{Tail, last_lines};
use ostler_outcome::events::Event;

/// A guest is ready within 5 to 15 s on a quiet machine of two cores.
const READY_WITHIN: Duration = Duration::from_secs(150);
/// Times a guest is started.
const ATTEMPTS: u32 = 2;

/// A guest that runs.
#[derive(Clone, Debug)]
pub struct RunningGuest {
    /// Its name.
    pub name: String,
    /// QEMU's process.
    pub pid: u32,
    child: Arc<Mutex<Child>>,
    serial: Arc<Mutex<Serial>>,
}

/// What a guest says on its serial line.
#[derive(Debug)]
struct Serial {
    tail: Tail,
    ready: bool,
    fatal: Option<String>,
    done: Option<Done>,
    /// vCPUs that its workload may use: at first, and now.
    vcpus: Option<(String, String)>,
}

impl Serial {
    /// What comes later on one way may have been said earlier on another.
    fn said(&mut self, done: Done) {
        self.done = Some(self.done.map_or(done, |known| known.later(done)));
    }

    fn update(&mut self) {
        for line in self.tail.lines().unwrap_or_default() {
            if line.starts_with("LAB_READY") {
                self.ready = true;
            } else if let Some(why) = line.strip_prefix("LAB_FATAL ") {
                self.fatal = Some(why.to_owned());
            } else if let Some(said) = line.strip_prefix("LAB_WORK ") {
                if let Some(done) = Done::parse(said) {
                    self.said(done);
                }
            } else if let Some(vcpus) = line.strip_prefix("LAB_VCPUS ") {
                let now = vcpus.trim().to_owned();
                let first = self
                    .vcpus
                    .take()
                    .map_or_else(|| now.clone(), |(first, _)| first);
                self.vcpus = Some((first, now));
            }
        }
    }
}

impl RunningGuest {
    /// What it said last of its work.
    pub fn done(&self) -> Option<Done> {
        let mut serial = self.serial.lock().ok()?;
        serial.update();
        serial.done
    }

    /// Takes note of work that it told otherwise than on its serial line.
    pub fn said(&self, done: Done) {
        if let Ok(mut serial) = self.serial.lock() {
            serial.said(done);
        }
    }

    /// Whether its workload may use every vCPU that it might at first, by its own word.
    pub fn has_its_vcpus(&self) -> bool {
        self.serial.lock().is_ok_and(|mut serial| {
            serial.update();
            serial
                .vcpus
                .as_ref()
                .is_none_or(|(first, now)| first == now)
        })
    }

    /// Whether its QEMU still runs.
    pub fn alive(&self) -> bool {
        self.child
            .lock()
            .is_ok_and(|mut child| matches!(child.try_wait(), Ok(None)))
    }

    /// How its QEMU ended, and what it and the guest said last; `None` while it runs.
    pub fn epitaph(&self) -> Option<String> {
        let status = self.child.lock().ok()?.try_wait().ok()??;
        Some(format!(
            "guest {}, process {}, ended with {status}; its last words: {}",
            self.name,
            self.pid,
            last_words(&self.name)
        ))
    }

    /// Kills its QEMU.
    pub(super) fn kill(&self) {
        if let Ok(mut child) = self.child.lock() {
            // Failures mean that it is gone.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Puts the initial root of guests together: the image's, and after it what comes with the run. So a change of a guest's
/// first program or agent needs no new image.
pub fn prepare() -> anyhow::Result<()> {
    let base = super::kernel::file("guest.cpio");
    let mut bytes =
        std::fs::read(&base).with_context(|| format!("could not read {}", base.display()))?;
    let mut cpio = Cpio::default();
    cpio.file("init", 0o755, include_bytes!("../../assets/guest-init.sh"))
        .file(
            "etc/nginx.conf",
            0o644,
            include_bytes!("../../assets/guest-nginx.conf"),
        )
        .file("turn", 0o755, include_bytes!("../../assets/guest-turn.sh"));
    let agent = PathBuf::from(INPUT).join("bin/ostler-guest");
    if agent.exists() {
        cpio.copy("ostler-guest", 0o755, &agent)?;
    }
    let evil = PathBuf::from(INPUT).join("bin/ostler-guest-evil");
    if evil.exists() {
        cpio.copy("ostler-guest-evil", 0o755, &evil)?;
    }
    bytes.append(&mut cpio.finish());
    std::fs::create_dir_all(machine::QMP_FOLDER)?;
    let initrd = PathBuf::from(RUN).join("guest.cpio");
    std::fs::write(&initrd, bytes).with_context(|| format!("could not write {}", initrd.display()))
}

/// Starts guests side by side and waits for all of them. `which` are positions in the scenario's list. A best-effort guest that is ready rests until
/// the others are: where two real cores emulate eight, its work would have them boot half as fast again.
pub fn start(program: &Program, which: &[usize], say: &Say) -> anyhow::Result<Vec<RunningGuest>> {
    let guests = &program.scenario.guests;
    let mut starting: Vec<_> = which
        .iter()
        .map(|&index| Ok((index, launch(program, index)?, Instant::now(), 1)))
        .collect::<anyhow::Result<_>>()?;
    let mut running: Vec<Option<RunningGuest>> = vec![None; which.len()];
    while running.iter().any(Option::is_none) {
        for (slot, (index, guest, since, attempt)) in running.iter_mut().zip(&mut starting) {
            if slot.is_some() {
                continue;
            }
            match state(guest, *since) {
                State::Booting => {}
                State::Ready => {
                    say.say(Event::GuestUp {
                        name: guest.name.clone(),
                        pid: guest.pid,
                        tap: machine::tap(&guests[*index]),
                        boot_s: since.elapsed().as_secs_f64(),
                        attempt: *attempt,
                    });
                    if guests[*index].class == Class::BestEffort {
                        freeze(&guest.name, true)?;
                    }
                    *slot = Some(guest.clone());
                }
                State::Lost(why) => {
                    guest.kill();
                    anyhow::ensure!(
                        *attempt < ATTEMPTS,
                        "guest {} did not come up in {ATTEMPTS} attempts: {why}",
                        guest.name
                    );
                    say.say(Event::GuestLost {
                        name: guest.name.clone(),
                        why,
                    });
                    *attempt += 1;
                    *guest = launch(program, *index)?;
                    *since = Instant::now();
                }
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let running: Vec<RunningGuest> = running.into_iter().flatten().collect();
    for guest in &running {
        freeze(&guest.name, false)?;
    }
    Ok(running)
}

fn freeze(name: &str, frozen: bool) -> anyhow::Result<()> {
    let file = format!("{MACHINE_CGROUP}/{name}/cgroup.freeze");
    write(file, if frozen { "1" } else { "0" })
}

enum State {
    Booting,
    Ready,
    Lost(String),
}

fn state(guest: &RunningGuest, since: Instant) -> State {
    let alive = guest.alive();
    let Ok(mut serial) = guest.serial.lock() else {
        return State::Lost("its watcher failed".to_owned());
    };
    serial.update();
    let lost = |why: &str| State::Lost(format!("{why}\n{}", last_words(&guest.name)));
    match (&serial.fatal, serial.ready) {
        (Some(why), _) => lost(why),
        (None, true) => State::Ready,
        _ if !alive => lost("its QEMU ended"),
        _ if since.elapsed() > READY_WITHIN => lost("it was not ready in time"),
        _ => State::Booting,
    }
}

/// Ends of the names of a guest's logs: what it said on its serial line, and what its QEMU said.
const SERIAL: &str = "log";
const QEMU: &str = "qemu.log";

fn log_path(name: &str, kind: &str) -> PathBuf {
    // Beside the results, so that guests' logs are brought out with them.
    PathBuf::from(super::RESULTS).join(format!("guest-{name}.{kind}"))
}

/// The end of both logs.
fn last_words(name: &str) -> String {
    let serial = last_lines(&log_path(name, SERIAL), 6);
    serial + &last_lines(&log_path(name, QEMU), 4)
}

/// Puts the logs of an earlier start aside: a guest that died is looked into after it was started again.
fn keep_logs(name: &str) -> anyhow::Result<()> {
    let kept = |start: u32, kind: &str| log_path(&format!("{name}.{start}"), kind);
    let start = (1..1000_u32)
        .find(|&start| !kept(start, SERIAL).exists() && !kept(start, QEMU).exists())
        .unwrap_or(u32::MAX);
    for kind in [SERIAL, QEMU] {
        let log = log_path(name, kind);
        if log.exists() {
            std::fs::rename(&log, kept(start, kind))
                .with_context(|| format!("could not put {} aside", log.display()))?;
        }
    }
    Ok(())
}

/// Makes the disk of a guest whose workload has one: a file in the host's memory.
///
/// The real machine's disk has no part in it, so on machine time its figures are the same whatever that does. QEMU's `null-co` would be
/// independent of it too, but answers in the very call that asks: no worker thread is woken, nothing is copied, and what a host's scheduler
/// makes of a guest that waits for its disk is in just these wake-ups. The file is filled, since reading a hole copies from one
/// page that never leaves the cache.
fn disk(guest: &Guest) -> anyhow::Result<Option<PathBuf>> {
    let Some(mib) = guest.workload.disk_mib() else {
        return Ok(None);
    };
    let path = PathBuf::from(RUN).join(format!("disk-{}", guest.name));
    let mut file =
        File::create(&path).with_context(|| format!("could not create {}", path.display()))?;
    let piece = vec![0x5a; 1 << 20];
    for _ in 0..mib {
        file.write_all(&piece)
            .with_context(|| format!("could not fill {}; is there memory?", path.display()))?;
    }
    Ok(Some(path))
}

fn launch(program: &Program, index: usize) -> anyhow::Result<RunningGuest> {
    let guest = &program.scenario.guests[index];
    net::make_tap(guest)?;
    let cgroup = format!("{MACHINE_CGROUP}/{}", guest.name);
    std::fs::create_dir_all(&cgroup).with_context(|| format!("could not create {cgroup}"))?;
    let paths = GuestPaths {
        kernel: super::kernel::file("vmlinuz"),
        initrd: PathBuf::from(RUN).join("guest.cpio"),
        serial: log_path(&guest.name, SERIAL),
        qmp: PathBuf::from(machine::QMP_FOLDER).join(&guest.name),
        disk: disk(guest)?,
    };
    keep_logs(&guest.name)?;
    let qemu = machine::guest(guest, index, program.rests(guest), &paths);
    let log = log_path(&guest.name, QEMU);
    let output =
        File::create(&log).with_context(|| format!("could not create {}", log.display()))?;
    let errors = output.try_clone()?;
    // The shell joins the cgroup and becomes QEMU: no thread of it is ever outside.
    let child = Command::new("/bin/sh")
        .args(["-c", "echo 0 > \"$0/cgroup.procs\" && exec \"$@\"", &cgroup])
        .arg(qemu.get_program())
        .args(qemu.get_args())
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        .spawn()
        .with_context(|| format!("could not start guest {}", guest.name))?;
    Ok(RunningGuest {
        name: guest.name.clone(),
        pid: child.id(),
        child: Arc::new(Mutex::new(child)),
        serial: Arc::new(Mutex::new(Serial {
            tail: Tail::new(paths.serial),
            ready: false,
            fatal: None,
            done: None,
            vcpus: None,
        })),
    })
}

/// Undoes what a policy may have done to a guest's cgroup: it may run, on all cores under test.
pub fn reset(name: &str) -> anyhow::Result<()> {
    let cgroup = format!("{MACHINE_CGROUP}/{name}");
    freeze(name, false)?;
    // A newline clears the set; then the parent's is in effect. An empty write would not reach the kernel.
    write(format!("{cgroup}/cpuset.cpus"), "\n")?;
    for child in std::fs::read_dir(&cgroup)
        .with_context(|| format!("could not list {cgroup}"))?
        .flatten()
    {
        let cpus = child.path().join("cpuset.cpus");
        if cpus.exists() {
            write(&cpus, "\n")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_said_on_two_ways_never_goes_back() {
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("log");
        let mut serial = Serial {
            tail: Tail::new(log.clone()),
            ready: false,
            fatal: None,
            done: None,
            vcpus: None,
        };
        let done = |work, at_s| Some(Done { work, at_s });
        std::fs::write(&log, "LAB_READY 3\nLAB_WORK 5 3.5\n").expect("a log");
        serial.update();
        assert_eq!((serial.ready, serial.done), (true, done(5, 3.5)));
        serial.said(Done { work: 9, at_s: 5.0 });
        // Said before that, read after it.
        let lines = "LAB_READY 3\nLAB_WORK 5 3.5\nLAB_WORK 8 4.5\nLAB_WORK x 6\n";
        std::fs::write(&log, lines).expect("a log");
        serial.update();
        assert_eq!(serial.done, done(9, 5.0));
    }
}
