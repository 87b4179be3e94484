//! Guests, which are processes of this very program, and the scheduler that has their threads.

use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Read as _, Write};
use std::ops::Deref;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use ostler_act::{
    BoostError, Host, LinuxHost, Programs, SCHED_EXT_ONCE, Scheduler, VcpuScheduler as _,
};
use ostler_boost::{Config, Settings, Thread};
use ostler_model::{CpuId, CpuSet, Pid, Tid};

use crate::machine::{self, Habit, Machine};
use crate::probed;

/// One scheduler at a time is all that a host has room for.
static TURN: Mutex<()> = Mutex::new(());

/// A test's turn, which tells at its end how long it was.
pub struct Turn {
    _alone: MutexGuard<'static, ()>,
    began: Instant,
}

pub fn turn() -> Turn {
    let alone = TURN.lock();
    Turn {
        _alone: alone.unwrap_or_else(PoisonError::into_inner),
        began: Instant::now(),
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        println!("took {:.1} s", self.began.elapsed().as_secs_f64());
    }
}

/// What the scheduler calls one that sleeps (`bpf/core/boost_maps.h`).
pub const ASLEEP: u32 = 0;
/// One that waits for a core, and one that has it.
pub const WAITS: u32 = 1;
pub const RUNS: u32 = 2;

/// Of the number of the thread that the kernel makes next, less one.
const LAST_NUMBER: &str = "/proc/sys/kernel/ns_last_pid";

/// How long anything may take.
pub const WITHIN: Duration = Duration::from_mins(1);

/// What a slice can be late by: a tick at 100 Hz.
pub const TICK_NS: u64 = 10_000_000;

/// A guest's process. A thread for each line: `spin` computes, `nap` does so for a millisecond in ten, `surge` for a second and then as `nap`, `twitch`
/// for a moment, again and again, `serve` for a moment each time that it is poked, by a line that says so, `rest` naps for two seconds and then sleeps, `late` and `later` do so for one and a half seconds, or a fifth more, and then compute, and `ask` and `answer` wake
/// each other. `vm` and what it does is a vCPU of a virtual machine, which is interrupted by a line that says `interrupt`.
/// `probed` is in a BPF program half of the time, in which it may not leave its core.
#[test]
#[ignore = "it is started by the tests, as a process of its own"]
fn a_guest() {
    let (asked, ask) = io::pipe().expect("a pipe");
    let (answered, answer) = io::pipe().expect("a pipe");
    let (poked, mut poke) = io::pipe().expect("a pipe");
    let mut machines = Vec::new();
    for kind in io::stdin().lock().lines() {
        let Ok(kind) = kind else { return };
        if kind == "poke" {
            poke.write_all(b".").expect("a pipe");
            continue;
        }
        // What follows has this number, if it is free.
        if let Some(number) = kind.strip_prefix("number ") {
            let number: u32 = number.parse().expect("a number");
            std::fs::write(LAST_NUMBER, (number - 1).to_string()).expect("the lab's kernel has it");
            continue;
        }
        if kind == "interrupt" {
            machines.iter().for_each(Machine::interrupt);
            continue;
        }
        let (tell, told) = mpsc::channel();
        let vcpu = Habit::named(&kind).map(|habit| {
            let (machine, vcpu) = Machine::new(habit);
            machines.push(machine);
            vcpu
        });
        let ends = match kind.as_str() {
            "ask" => Some((answered.try_clone(), ask.try_clone())),
            "answer" => Some((asked.try_clone(), answer.try_clone())),
            _ => None,
        };
        let mut poked = poked.try_clone().expect("a pipe");
        thread::spawn(move || {
            let tid = rustix::thread::gettid().as_raw_nonzero().get();
            tell.send(tid).expect("the main thread waits");
            if let Some(vcpu) = vcpu {
                machine::run(vcpu);
            }
            if kind == "probed" {
                probed::run();
            }
            if let Some((from, to)) = ends {
                let (mut from, mut to) = (from.expect("a pipe"), to.expect("a pipe"));
                if kind == "ask" {
                    to.write_all(b".").expect("a pipe");
                }
                loop {
                    from.read_exact(&mut [0]).expect("a pipe");
                    to.write_all(b".").expect("a pipe");
                }
            }
            let (busy, idle) = match kind.as_str() {
                "twitch" | "serve" => (200, 600),
                _ => (1000, 9000),
            };
            match kind.as_str() {
                "late" => thread::sleep(Duration::from_millis(1500)),
                "later" => thread::sleep(Duration::from_millis(1800)),
                _ => {}
            }
            let began = Instant::now();
            let goes_on = || match kind.as_str() {
                "spin" | "late" | "later" => true,
                "surge" => began.elapsed() < Duration::from_secs(1),
                _ => false,
            };
            loop {
                if kind == "serve" {
                    poked.read_exact(&mut [0]).expect("a pipe");
                }
                let start = Instant::now();
                while goes_on() || start.elapsed() < Duration::from_micros(busy) {
                    std::hint::spin_loop();
                }
                if kind == "serve" {
                    continue;
                }
                thread::sleep(
                    if kind == "rest" && began.elapsed() > Duration::from_secs(2) {
                        Duration::from_hours(1)
                    } else {
                        Duration::from_micros(idle)
                    },
                );
            }
        });
        println!("\nthread {}", told.recv().expect("its number"));
    }
    std::process::exit(0);
}

pub struct Guest {
    pub process: Child,
    pub threads: Vec<Tid>,
}

impl Guest {
    pub fn start(kinds: &[&str]) -> Guest {
        let mut process = Command::new(std::env::current_exe().expect("this very program"))
            .args(["stage::a_guest", "--exact", "--ignored", "--nocapture"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this very program");
        let input = process.stdin.as_mut().expect("a pipe");
        for kind in kinds {
            writeln!(input, "{kind}").expect("it listens");
        }
        let output = BufReader::new(process.stdout.take().expect("a pipe"));
        let told = output.lines().map_while(Result::ok);
        let threads = told
            .filter_map(|line| line.strip_prefix("thread ")?.parse().ok())
            .take(
                kinds
                    .iter()
                    .filter(|kind| !kind.starts_with("number"))
                    .count(),
            )
            .map(Tid)
            .collect();
        Guest { process, threads }
    }

    pub fn pid(&self) -> Pid {
        Pid(self.process.id())
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The programs of the last test's scheduler, which are the next one's: the verifier takes twenty seconds of the lab's host for them, and most tests less than three.
static PROGRAMS: Mutex<Option<Programs>> = Mutex::new(None);

/// A test's scheduler.
pub struct Running(Option<Scheduler>);

impl Running {
    /// It alone: its programs are gone with it.
    pub fn into_inner(mut self) -> Scheduler {
        self.0.take().expect("it runs")
    }
}

impl Deref for Running {
    type Target = Scheduler;

    fn deref(&self) -> &Scheduler {
        self.0.as_ref().expect("it runs")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(scheduler) = self.0.take() {
            let programs = scheduler.stop();
            *PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner) = Some(programs);
        }
    }
}

/// The scheduler, and guests whose threads it has, on one core.
pub struct Stage {
    pub scheduler: Running,
    pub guests: Vec<Guest>,
}

pub fn settings(config: Config) -> Settings {
    Settings {
        config,
        wake_granularity_ns: 1_000_000,
        domains: 0,
        tick_us: 0,
    }
}

/// Turns of many ticks, room for as much as anybody asks for, and events from which nobody is known to do IO: so are those that compute as well.
pub fn computes_as_well() -> Config {
    Config {
        slice_ns: 64_000_000,
        slice_max_ns: 128_000_000,
        limit_ns: 2_000_000_000,
        threshold: u32::MAX,
        ..Config::default()
    }
}

/// The time by the clock that the scheduler tells.
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

pub fn me() -> Tid {
    let tid = rustix::thread::gettid().as_raw_nonzero().get();
    Tid(tid.unsigned_abs())
}

pub fn cpus() -> CpuSet {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").expect("sysfs");
    online.parse().expect("a list")
}

pub fn possible() -> u32 {
    cpus().iter().map(|cpu| cpu.0 + 1).max().expect("a core")
}

/// The last core: the lab's guests are on the first ones.
pub fn core() -> CpuId {
    CpuId(possible() - 1)
}

/// Lets a thread in.
pub fn admit(thread: Tid) {
    let set = LinuxHost::detect().set_policy(thread, SCHED_EXT_ONCE);
    set.expect("it is ours");
}

/// Gives it back to the kernel's own scheduler.
pub fn release(thread: Tid) {
    let set = LinuxHost::detect().set_policy(thread, libc::SCHED_OTHER);
    set.expect("it is ours");
}

/// Whoever runs the tests says whether this host is one to try a scheduler on.
const INVITED: &str = "OSTLER_TEST_SCHEDULER";

pub fn load(test: &str, config: Config, domains: &[CpuSet]) -> Option<Running> {
    if std::env::var_os(INVITED).is_none() {
        println!("SKIP {test}: it gives this host another scheduler; set {INVITED}=1 if it may");
        return None;
    }
    // Whoever runs this may have confined it to the very core that the guests are to have.
    let cgroup = OpenOptions::new()
        .write(true)
        .open("/sys/fs/cgroup/cgroup.procs");
    let _ = cgroup.and_then(|mut file| file.write_all(b"0"));
    let began = Instant::now();
    let kept = PROGRAMS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    let (programs, how) = match kept {
        Some(kept) => (Ok(kept), "started again"),
        None => (Programs::load(Path::new("/sys"), possible()), "loaded"),
    };
    match programs.and_then(|programs| programs.start(settings(config), domains)) {
        Ok(scheduler) => {
            println!("{how} in {:.1} s", began.elapsed().as_secs_f64());
            Some(Running(Some(scheduler)))
        }
        Err(e @ BoostError::NoSchedExt { .. }) => {
            println!("SKIP {test}: {e}");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

impl Stage {
    /// Guests numbered from one on, by what their threads do.
    pub fn set(test: &str, config: Config, guests: &[&[&str]]) -> Option<Stage> {
        Stage::on(&[core()].into_iter().collect(), test, config, guests)
    }

    /// The same on some cores, which share a queue.
    pub fn on(on: &CpuSet, test: &str, config: Config, guests: &[&[&str]]) -> Option<Stage> {
        Stage::across(&[*on], test, config, guests)
    }

    /// The same on some cores, which share queues as told.
    pub fn across(
        domains: &[CpuSet],
        test: &str,
        config: Config,
        guests: &[&[&str]],
    ) -> Option<Stage> {
        let scheduler = load(test, config, domains)?;
        let host = LinuxHost::detect();
        let on = domains
            .iter()
            .fold(CpuSet::EMPTY, |all, set| all.union(set));
        let on = &on;
        // The test is the kernel's own scheduler's, which goes before: not on those cores.
        let others = cpus().difference(on);
        if !others.is_empty() {
            host.set_affinity(me(), &others).expect("it is ours");
        }
        let guests: Vec<Guest> = guests.iter().map(|kinds| Guest::start(kinds)).collect();
        for (number, guest) in (1..).zip(&guests) {
            scheduler.own(guest.pid(), number).expect("room for it");
            for &thread in &guest.threads {
                host.set_affinity(thread, on).expect("it is ours");
                admit(thread);
            }
        }
        Some(Stage { scheduler, guests })
    }

    pub fn thread(&self, thread: Tid) -> Thread {
        let known = self.scheduler.thread(thread).expect("a map");
        known.unwrap_or_else(|| panic!("{thread:?} was let in: {:?}", self.scheduler.end()))
    }

    /// By guest: how long its threads have run.
    pub fn ran(&self) -> Vec<u64> {
        let of = |guest: &Guest| guest.threads.iter().map(|t| self.thread(*t).ran_ns).sum();
        self.guests.iter().map(of).collect()
    }

    /// The same since an earlier time.
    pub fn ran_since(&self, before: &[u64]) -> Vec<u64> {
        let both = self.ran().into_iter().zip(before);
        both.map(|(now, before)| now - before).collect()
    }

    /// Goes on until the guests have run for so long together.
    pub fn run_for(&self, ns: u64, mut meanwhile: impl FnMut()) {
        let start = Instant::now();
        while self.ran().iter().sum::<u64>() < ns {
            assert!(
                start.elapsed() < WITHIN,
                "{:?}, {:?}",
                self.ran(),
                self.scheduler.end()
            );
            meanwhile();
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// The last two cores, where there are three and more.
pub fn two_cores(test: &str) -> Option<CpuSet> {
    let cpus = cpus();
    if cpus.len() < 3 {
        println!("SKIP {test}: it wants two cores and one besides");
        return None;
    }
    Some(cpus.iter().skip(cpus.len() as usize - 2).collect())
}

/// Whether virtual machines can be had, or why not.
pub fn has_machines(test: &str) -> bool {
    let kvm = kvm_ioctls::Kvm::new();
    if let Err(error) = &kvm {
        println!("SKIP {test}: /dev/kvm: {error}");
    }
    kvm.is_ok()
}

/// Has the last thread of the first guest work for its vCPUs from now on, let in as they are.
pub fn employ(stage: &mut Stage) -> Tid {
    let worker = stage.guests[0].threads.pop().expect("it has one");
    release(worker);
    stage.scheduler.works(worker, 1).expect("room for it");
    admit(worker);
    assert_eq!(stage.thread(worker).works, 1);
    worker
}
