//! The worker: sets the emulated host up, then runs the program's cells, or stays up for a shell.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context;

use super::net::Pnic;
use super::sampler::{self, Scene};
use super::say::Say;
use super::{LAB_CGROUP, MACHINE_CGROUP, RESULTS, cells, faults, guests, read, sh, write};
use crate::program::{INPUT, Program};
use ostler_outcome::events::Event;

/// Modules of a KVM host; the rest is loaded as it is asked for.
const MODULES: &[&str] = &[
    "kvm-amd",
    "vhost_net",
    "vhost_vsock",
    "tun",
    "bridge",
    "igb",
    "sch_ingress",
    "cls_bpf",
];

/// The worker.
pub fn work() -> ExitCode {
    let say = match Say::open() {
        Ok(say) => say,
        Err(e) => {
            eprintln!("LAB_FATAL {e:#}");
            return ExitCode::FAILURE;
        }
    };
    match run(&say) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("LAB_FATAL {e:#}");
            say.say(Event::Problem {
                what: format!("{e:#}"),
            });
            // The lab reads this and ends the machine; leaving at once could lose the event.
            std::thread::sleep(Duration::from_secs(2));
            ExitCode::FAILURE
        }
    }
}

fn run(say: &Say) -> anyhow::Result<()> {
    let program: Program = serde_json::from_str(&read(format!("{INPUT}/program.json"))?)
        .context("program.json is no program")?;
    let scenario = &program.scenario;
    let host = &scenario.host;
    say.say(Event::Up {
        kernel: read("/proc/sys/kernel/osrelease")?.trim().to_owned(),
        cpus: u32::try_from(std::thread::available_parallelism()?.get())?,
    });

    say.stage("loading kernel modules");
    super::kernel::prepare()?;
    let mut words = vec!["--all"];
    words.extend(MODULES);
    sh("modprobe", &words)?;
    anyhow::ensure!(
        std::path::Path::new("/dev/kvm").exists(),
        "there is no /dev/kvm: nested SVM does not work"
    );

    say.stage("setting up cgroups");
    cgroups(&program)?;
    std::fs::create_dir_all(RESULTS)?;
    // The core set of each service class is the steward's to decide; housekeeping stays off the cores under test.
    write(
        "/sys/devices/virtual/workqueue/cpumask",
        &mask(&host.client),
    )?;

    say.stage("setting up the network");
    let pnic = Pnic::set_up(host)?;
    say.say(Event::Pnic {
        name: pnic.name.clone(),
        queues: pnic.queues()?,
        irqs: pnic.irqs()?.into_iter().collect(),
    });

    let scene = Arc::new(Mutex::new(Scene::default()));
    let sampler = sampler::start(say.clone(), host.under_test, Arc::clone(&scene));
    let names: Vec<_> = scenario.guests.iter().map(|g| g.name.as_str()).collect();
    say.stage(format!("booting guests {}", names.join(", ")));
    guests::prepare()?;
    let all: Vec<usize> = (0..scenario.guests.len()).collect();
    let running = guests::start(&program, &all, say)?;
    if let Ok(mut scene) = scene.lock() {
        scene.guests.clone_from(&running);
    }
    say.say(Event::Ready);

    if program.stay {
        // Nobody listens any more, and a look at all of the host takes half a millisecond of whatever is measured here.
        drop(sampler);
        loop {
            std::thread::sleep(Duration::from_hours(1));
        }
    }
    let running = cells::run(&program, &pnic, running, &scene, say)?;
    faults::run(&program, &pnic, running, say)?;
    bring_out()?;
    say.say(Event::Done);
    Ok(())
}

/// Guests on the cores under test, everything else on the client's.
fn cgroups(program: &Program) -> anyhow::Result<()> {
    let host = &program.scenario.host;
    let controllers = "+cpuset +cpu +memory";
    write("/sys/fs/cgroup/cgroup.subtree_control", controllers)?;
    for (cgroup, cpus) in [(LAB_CGROUP, host.client), (MACHINE_CGROUP, host.under_test)] {
        std::fs::create_dir_all(cgroup)?;
        write(format!("{cgroup}/cpuset.cpus"), &cpus.to_string())?;
    }
    write(
        format!("{MACHINE_CGROUP}/cgroup.subtree_control"),
        controllers,
    )?;
    write(format!("{LAB_CGROUP}/cgroup.procs"), "0")
}

/// A set as the kernel's hexadecimal mask: 32 bits a word, words separated by commas.
fn mask(cpus: &ostler_model::CpuSet) -> String {
    let mut words = vec![0u32; 8];
    for cpu in cpus.iter().filter(|cpu| cpu.0 < 256) {
        words[cpu.0 as usize / 32] |= 1 << (cpu.0 % 32);
    }
    while words.len() > 1 && words.last() == Some(&0) {
        words.pop();
    }
    let words: Vec<_> = words.iter().rev().map(|w| format!("{w:08x}")).collect();
    words.join(",")
}

/// Writes all results to the results disk.
fn bring_out() -> anyhow::Result<()> {
    archive(Path::new(RESULTS), Path::new(&disk("results")?))?;
    rustix::fs::sync();
    Ok(())
}

/// Writes a folder into an archive. Guests still run, and say what they like on their serial lines: a log that grows meanwhile is there as far as it went.
fn archive(folder: &Path, to: &Path) -> anyhow::Result<()> {
    let output = Command::new("tar")
        .arg("-C")
        .arg(folder)
        .arg("-cf")
        .arg(to)
        .arg(".")
        .output()
        .context("could not start tar")?;
    // 1: some files changed while they were read (GNU tar's manual, section 3.1).
    if matches!(output.status.code(), Some(0 | 1)) {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    anyhow::bail!(
        "could not write {} to {} with tar: {}",
        folder.display(),
        to.display(),
        said.trim()
    )
}

/// The device of the disk with this serial number.
fn disk(serial: &str) -> anyhow::Result<String> {
    for entry in std::fs::read_dir("/sys/block")
        .context("could not list /sys/block")?
        .flatten()
    {
        if read(entry.path().join("serial")).is_ok_and(|s| s.trim() == serial) {
            return Ok(format!("/dev/{}", entry.file_name().to_string_lossy()));
        }
    }
    anyhow::bail!("there is no disk with serial number {serial}")
}

#[cfg(test)]
mod tests {
    use ostler_model::CpuSet;

    use std::io::Write as _;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::{archive, mask};

    /// Guests write to their logs for as long as they run.
    #[test]
    fn a_log_that_grows_meanwhile_is_brought_out_and_a_folder_that_is_none_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("logs/guest.log");
        std::fs::create_dir(folder.path().join("logs")).expect("a folder");
        std::fs::write(&log, vec![b'x'; 1 << 20]).expect("a log");
        let to = folder.path().join("results.tar");
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut log = std::fs::File::options()
                    .append(true)
                    .open(&log)
                    .expect("a log");
                while !over.load(Ordering::Relaxed) {
                    log.write_all(b"a guest speaks\n").expect("a line");
                }
            });
            let done: Vec<_> = (0..20)
                .map(|_| archive(&folder.path().join("logs"), &to))
                .collect();
            over.store(true, Ordering::Relaxed);
            assert!(done.iter().all(Result::is_ok), "{done:?}");
        });
        assert!(to.metadata().expect("an archive").len() > 1 << 20);
        let error = archive(&folder.path().join("none"), &to).expect_err("no folder");
        assert!(format!("{error:#}").contains("none"), "{error:#}");
    }

    #[test]
    fn masks_are_the_kernels() {
        assert_eq!(mask(&CpuSet::range(6, 8)), "000000c0");
        assert_eq!(mask(&CpuSet::range(31, 34)), "00000003,80000000");
    }
}
