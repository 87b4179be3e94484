//! What happens when the emulated host doesn't come up, tried with a stand-in for QEMU: a script where the image keeps its
//! loader. The real one is tried by `cargo xtask test`, which runs `scenarios/smoke.toml`.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ostler_lab::LabError;
use ostler_lab::binaries::Binaries;
use ostler_lab::image::{Image, LabDir, Manifest};
use ostler_lab::machine::Time;
use ostler_lab::program::Program;
use ostler_lab::progress::Progress;
use ostler_lab::scenario;
use ostler_lab::up::{self, State};
use ostler_lab::vm::{Boot, Life, Vm};
use ostler_outcome::events::{Event, Stamped};

const SCENARIO: &str = "name = \"t\"\nsummary = \"\"\n[host]\ncores = 2\nmemory = \"1G\"\nunder_test = \"0\"\nclient = \"1\"\npnic_queues = 1\n\
    [[guest]]\nname = \"g\"\nclass = \"best-effort\"\nvcpus = 1\nmemory = \"160M\"\nworkload = \"spin\"\n";

/// Says that all is well, and goes on running.
const GOOD: &str = r#"echo booted > serial.log
echo '{"t_ms":1,"event":"up","kernel":"7","cpus":2}' >> events.raw.jsonl
echo '{"t_ms":2,"event":"stage","name":"setting up"}' >> events.raw.jsonl
echo '{"t_ms":3,"event":"ready"}' >> events.raw.jsonl
"#;
const BAD: &str = "echo 'Kernel panic' > serial.log; exit 3\n";

struct World {
    dir: tempfile::TempDir,
    image: Image,
    binaries: Binaries,
    program: Program,
}

impl World {
    /// `None`, said aloud, where the input disk can't be made.
    fn new(test: &str, qemu: &str) -> Option<World> {
        if std::process::Command::new("mkfs.ext4")
            .arg("-V")
            .output()
            .is_err()
        {
            println!("SKIP {test}: there is no mkfs.ext4 in PATH (package e2fsprogs)");
            return None;
        }
        let dir = tempfile::tempdir().expect("a temporary folder");
        let loader = dir.path().join("root/usr/lib64/ld-linux-x86-64.so.2");
        std::fs::create_dir_all(loader.parent().expect("a parent")).expect("the tree");
        std::fs::write(&loader, format!("#!/bin/sh\n{qemu}")).expect("the script");
        std::fs::set_permissions(&loader, std::fs::Permissions::from_mode(0o755))
            .expect("executable");
        let inner = dir.path().join("inner");
        std::fs::write(&inner, "").expect("a program");
        let manifest = Manifest {
            recipe: "r".into(),
            kernel: "k".into(),
            qemu: "q".into(),
        };
        Some(World {
            image: Image {
                folder: dir.path().to_owned(),
                manifest,
                other: None,
            },
            binaries: Binaries {
                inner,
                ostler: None,
                load: None,
                guest: None,
                evil: None,
                plugin: None,
                tests: Vec::new(),
                schedulers: Vec::new(),
            },
            program: Program::new(
                scenario::parse(SCENARIO, Path::new("t")).expect("a scenario"),
                true,
            ),
            dir,
        })
    }

    fn boot(&self) -> (Result<Vm, LabError>, Vec<Stamped>) {
        let run = self.dir.path().join("run");
        std::fs::create_dir(&run).expect("the run's folder");
        let boot = Boot {
            image: &self.image,
            binaries: &self.binaries,
            program: &self.program,
            run: &run,
            time: &Time::Wall { plugin: None },
            life: Life::Bound,
        };
        let mut events = Vec::new();
        let vm = Vm::boot(boot, Progress::Silent, &mut |stamped| {
            events.push(stamped.clone());
        });
        (vm, events)
    }

    /// The same for a lab that is to stay up.
    fn up(&self) -> (LabDir, Result<State, LabError>) {
        let lab = LabDir::new(self.dir.path().join("lab"));
        std::fs::create_dir(lab.path()).expect("the lab's folder");
        let time = Time::Wall { plugin: None };
        let (image, binaries, program) = (&self.image, &self.binaries, &self.program);
        let state = up::up(&lab, image, binaries, program, &time, Progress::Silent);
        (lab, state)
    }
}

/// A script that fails the first time only.
fn bad_then_good() -> String {
    format!("if [ ! -e tried ]; then touch tried; {BAD}fi\n{GOOD}exec sleep 1000\n")
}

#[test]
fn a_boot_that_dies_is_tried_once_more_and_reported() {
    let Some(world) = World::new(
        "a_boot_that_dies_is_tried_once_more_and_reported",
        &bad_then_good(),
    ) else {
        return;
    };
    let (vm, events) = world.boot();
    let vm = vm.expect("the second attempt is good");
    let retries: Vec<(&String, &PathBuf)> = events
        .iter()
        .filter_map(|stamped| match &stamped.event {
            Event::BootRetry { why, serial_log } => Some((why, serial_log)),
            _ => None,
        })
        .collect();
    assert_eq!(retries.len(), 1);
    assert!(retries[0].0.contains("exit status: 3"), "{}", retries[0].0);
    let kept =
        std::fs::read_to_string(retries[0].1).expect("the first attempt's serial log is kept");
    assert_eq!(kept, "Kernel panic\n");

    let process = PathBuf::from(format!("/proc/{}", vm.pid()));
    assert!(process.exists());
    drop(vm);
    assert!(!process.exists(), "a host ends with its owner");
}

#[test]
fn a_host_that_never_comes_up_is_reported_with_its_serial_log() {
    let Some(world) = World::new(
        "a_host_that_never_comes_up_is_reported_with_its_serial_log",
        BAD,
    ) else {
        return;
    };
    let error = world.boot().0.expect_err("it never comes up");
    let LabError::Host {
        serial_log,
        last_words,
        waiting_for,
        ..
    } = &error
    else {
        panic!("another error: {error}")
    };
    assert!(serial_log.ends_with("run/serial.log") && serial_log.exists());
    assert_eq!(waiting_for, "booting its kernel");
    assert!(last_words.contains("Kernel panic"), "{last_words}");
    assert!(
        error.to_string().contains(&*serial_log.to_string_lossy()),
        "{error}"
    );
}

#[test]
fn a_host_that_dies_later_is_noticed_after_its_last_words() {
    let qemu = format!(
        "{GOOD}echo '{{\"t_ms\":9,\"event\":\"stage\",\"name\":\"last\"}}' >> events.raw.jsonl\nexit 9\n"
    );
    let Some(world) = World::new(
        "a_host_that_dies_later_is_noticed_after_its_last_words",
        &qemu,
    ) else {
        return;
    };
    let mut vm = world.boot().0.expect("it comes up");
    let deadline = Instant::now() + Duration::from_mins(1);
    let last = vm
        .next(deadline, "running")
        .expect("its last event")
        .expect("before the deadline");
    assert_eq!(
        last.event,
        Event::Stage {
            name: "last".into()
        }
    );
    let error = vm
        .next(deadline, "running a cell")
        .expect_err("it is dead")
        .to_string();
    assert!(
        error.contains("exit status: 9") && error.contains("while running a cell"),
        "{error}"
    );
}

/// Each attempt's process, as the stand-in wrote it down.
fn processes(run: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(run).expect("the run's folder");
    let names = files.map(|file| file.expect("a file").file_name().into_string());
    let pids = names.filter_map(|name| Some(name.ok()?.strip_prefix("process-")?.to_owned()));
    pids.map(|pid| Path::new("/proc").join(pid)).collect()
}

#[test]
fn a_lab_that_does_not_come_up_leaves_no_process() {
    // Alive, but of no use: it would run for ever.
    let qemu = "touch process-$$\n\
                echo '{\"t_ms\":1,\"event\":\"problem\",\"what\":\"no disk\"}' >> events.raw.jsonl\n\
                exec sleep 1000\n";
    let Some(world) = World::new("a_lab_that_does_not_come_up_leaves_no_process", qemu) else {
        return;
    };
    let (lab, state) = world.up();
    let told = state.expect_err("it doesn't come up").to_string();
    assert!(told.contains("no disk"), "{told}");
    let runs = std::fs::read_dir(lab.path().join("runs")).expect("runs");
    let run = runs.last().expect("a run").expect("its folder").path();
    let processes = processes(&run);
    assert_eq!(processes.len(), 2, "one for each attempt");
    assert!(processes.iter().all(|process| !process.exists()));
    assert_eq!(State::read(&lab), None);
}

#[test]
fn a_lab_is_written_down_before_it_is_ready_and_ended_by_name() {
    // What it finds written about itself, before it says that it is up.
    let qemu = format!(
        "until grep -q \"\\\"pid\\\": $$,\" ../../up.json; do :; done 2>/dev/null\n\
         cp ../../up.json early.json\n{GOOD}exec sleep 1000\n"
    );
    let Some(world) = World::new(
        "a_lab_is_written_down_before_it_is_ready_and_ended_by_name",
        &qemu,
    ) else {
        return;
    };
    let (lab, state) = world.up();
    let state = state.expect("it comes up");
    let early = std::fs::read_to_string(state.run.join("early.json")).expect("written down");
    let early: State = serde_json::from_str(&early).expect("a state");
    assert!(state.ready && !early.ready);
    assert_eq!((early.pid, early.started), (state.pid, state.started));
    let process = PathBuf::from(format!("/proc/{}", state.pid));
    assert!(process.exists(), "it stays up");
    assert_eq!(up::down(&lab).expect("it is ended"), state);
    assert_eq!(State::read(&lab), None);
}
