//! The accounting on the real kernel.

use std::fs;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ostler_model::{CpuId, CpuSet, Pid, Tid};
use rustix::thread::{CpuSet as Mask, gettid, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

use super::host::{CpuTotals, HostBpf, ThreadReading};
use crate::sys::now;
use crate::threads::ThreadKey;
use crate::topology;

fn load(test: &str) -> Option<HostBpf> {
    let sys = Path::new("/sys");
    match HostBpf::load(sys, topology::possible(sys)) {
        Ok(bpf) => Some(bpf),
        Err(error) => {
            println!("SKIP {test}: {error}");
            None
        }
    }
}

fn last_cpu() -> CpuId {
    let online = topology::online(Path::new("/sys")).unwrap();
    online.iter().last().unwrap()
}

fn pin(cpu: CpuId) {
    let mut mask = Mask::new();
    mask.set(cpu.0 as usize);
    sched_setaffinity(None, &mask).expect("an online CPU");
}

fn total(cpu: &CpuTotals) -> u64 {
    cpu.idle + cpu.task + cpu.yielding + cpu.softirq + cpu.irq
}

fn thread_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).unwrap()
}

/// On every CPU, and however busy it is, what is charged is the time that passed: nothing twice, nothing lost.
#[test]
fn charged_time_is_elapsed_time_on_every_cpu() {
    let Some(bpf) = load("charged_time_is_elapsed_time_on_every_cpu") else {
        return;
    };
    let online = topology::online(Path::new("/sys")).unwrap();
    let read = || {
        let at = now().0;
        let cpus: Vec<_> = online.iter().map(|cpu| bpf.cpu(cpu, at)).collect();
        (at, cpus)
    };
    let (first_at, first) = read();
    for _ in 0..200 {
        thread::sleep(Duration::from_millis(1));
        let (at, cpus) = read();
        for (before, after) in first.iter().zip(&cpus) {
            // A CPU in the middle of a change each time it was tried; the next round will do.
            let (Some(before), Some(after)) = (before, after) else {
                continue;
            };
            let charged = total(after) - total(before);
            let elapsed = at - first_at;
            // The CPU may have changed its state between our reading of the clock and of its word, at both ends.
            assert!(
                charged.abs_diff(elapsed) < 20_000_000,
                "{charged} of {elapsed}"
            );
        }
    }
    let told = first.iter().flatten().count();
    assert!(told > 0, "some CPU was told of");
}

struct Spinner {
    go: Arc<AtomicBool>,
    key: ThreadKey,
    thread: thread::JoinHandle<u64>,
}

impl Spinner {
    fn start(cpu: CpuId) -> Spinner {
        let go = Arc::new(AtomicBool::new(true));
        let going = Arc::clone(&go);
        let (tell, told) = std::sync::mpsc::channel();
        let thread = thread::spawn(move || {
            pin(cpu);
            let tid = u32::try_from(gettid().as_raw_nonzero().get()).unwrap();
            tell.send(Tid(tid)).unwrap();
            while going.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
            thread_ns()
        });
        let key = ThreadKey {
            pid: Pid(std::process::id()),
            tid: told.recv().unwrap(),
        };
        Spinner { go, key, thread }
    }

    fn stop(self) -> u64 {
        self.go.store(false, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// Two spinners on one CPU: each runs for as long as its own clock says, waits for the other, and may run on that CPU
/// alone.
#[test]
fn threads_run_and_wait_as_their_own_clocks_say() {
    let test = "threads_run_and_wait_as_their_own_clocks_say";
    let Some(bpf) = load(test) else {
        return;
    };
    let cpu = last_cpu();
    let spinners = [Spinner::start(cpu), Spinner::start(cpu)];
    let gone = ThreadKey {
        pid: Pid(1),
        tid: spinners[0].key.tid,
    };
    let keys = [spinners[0].key, spinners[1].key, gone];
    let mut readings: Vec<Option<ThreadReading>> = Vec::new();
    bpf.read_threads(&keys, &mut readings).unwrap();
    if readings[0].is_none() {
        // The sensor finds that out too, and reads /proc instead.
        println!(
            "SKIP {test}: this process is in a PID namespace of its own, and BPF numbers threads as the host does"
        );
        return;
    }
    let first: Vec<ThreadReading> = readings[..2].iter().map(|r| r.unwrap()).collect();
    assert_eq!(
        readings[2], None,
        "it is a thread of ours, not of that process"
    );
    // However long it takes: each gets its share of the CPU, and waits for the other.
    let due = Instant::now() + Duration::from_mins(1);
    let last: Vec<ThreadReading> = loop {
        bpf.read_threads(&keys, &mut readings).unwrap();
        let last: Vec<ThreadReading> = readings[..2].iter().map(|r| r.unwrap()).collect();
        let mut both = first.iter().zip(&last);
        let shared = |(first, last): (&ThreadReading, &ThreadReading)| {
            (last.run - first.run).min(last.wait - first.wait) > 50_000_000
        };
        if both.all(shared) {
            break last;
        }
        assert!(Instant::now() < due, "{first:?} became {last:?}");
        thread::sleep(Duration::from_millis(10));
    };
    let ran = spinners.map(Spinner::stop);
    for ((first, last), ran) in first.iter().zip(&last).zip(ran) {
        assert_eq!(first.started, last.started);
        assert_eq!(last.allowed, CpuSet::single(cpu));
        let run = last.run - first.run;
        // Its own clock was read later, and its life began earlier.
        assert!(run <= ran, "run {run}, by its own clock {ran}");
    }
}

/// Packets over the loopback are received in softirqs of the CPU that sends them.
#[test]
fn softirq_time_is_told_apart() {
    let Some(bpf) = load("softirq_time_is_told_apart") else {
        return;
    };
    let cpu = last_cpu();
    let before = (0..100).find_map(|_| bpf.cpu(cpu, now().0)).unwrap();
    let ran = thread::spawn(move || {
        pin(cpu);
        let here = UdpSocket::bind("127.0.0.1:0").unwrap();
        let there = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = there.local_addr().unwrap();
        for _ in 0..50_000 {
            here.send_to(&[0; 100], to).unwrap();
        }
        thread_ns()
    })
    .join()
    .unwrap();
    let after = (0..100).find_map(|_| bpf.cpu(cpu, now().0)).unwrap();
    let softirq = after.softirq - before.softirq;
    println!("{softirq} ns of softirq in {ran} ns of sending");
    assert!(softirq > ran / 20, "{softirq} of {ran}");
    assert!(
        after.irqs > before.irqs || bpf.vectors() == 0,
        "at least the timer fired"
    );
}

/// A cgroup of the test's own, idle for the scheduler, with one below it that isn't by itself.
struct IdleGroup {
    upper: PathBuf,
    lower: PathBuf,
}

impl IdleGroup {
    /// Where cgroups have CPU weights, of either version. What is missing, if that can't be had.
    fn new(name: &str) -> Result<IdleGroup, String> {
        let root = ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup"]
            .map(Path::new)
            .into_iter()
            .find(|root| root.join("cgroup.procs").exists())
            .ok_or("there are no cgroups")?;
        let upper = root.join(format!("ostler-{name}-{}", std::process::id()));
        let lower = upper.join("below");
        let made = IdleGroup { upper, lower };
        fs::create_dir_all(&made.lower).map_err(|error| error.to_string())?;
        fs::write(made.upper.join("cpu.idle"), "1")
            .map_err(|error| format!("no cgroup that is idle: {error}"))?;
        Ok(made)
    }
}

impl Drop for IdleGroup {
    fn drop(&mut self) {
        for path in [&self.lower, &self.upper] {
            let _ = fs::remove_dir(path);
        }
    }
}

/// A process that computes on one CPU, for as long as it is held.
struct Process(Child);

impl Process {
    fn start(cpu: CpuId) -> Process {
        let child = Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn()
            .expect("a shell");
        let mut mask = Mask::new();
        mask.set(cpu.0 as usize);
        let pid = rustix::process::Pid::from_child(&child);
        sched_setaffinity(Some(pid), &mask).expect("an online CPU");
        Process(child)
    }

    fn move_to(&self, group: &Path) {
        fs::write(group.join("cgroup.procs"), self.0.id().to_string()).expect("a cgroup of ours");
    }

    /// What it ran by the scheduler's own count, ns.
    fn ran(&self) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/schedstat", self.0.id())).unwrap();
        text.split_ascii_whitespace()
            .next()
            .unwrap()
            .parse()
            .unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What runs in a cgroup that is idle, or below one, is told apart from what doesn't: all of it, and nothing else.
#[test]
fn who_yields_is_told_apart() {
    let test = "who_yields_is_told_apart";
    let Some(bpf) = load(test) else {
        return;
    };
    let group = match IdleGroup::new(test) {
        Ok(group) => group,
        Err(why) => {
            println!("SKIP {test}: {why}");
            return;
        }
    };
    let cpu = last_cpu();
    let read = || (0..1000).find_map(|_| bpf.cpu(cpu, now().0)).unwrap();
    for (place, yields) in [
        (None, false),
        (Some(&group.upper), true),
        (Some(&group.lower), true),
    ] {
        let process = Process::start(cpu);
        if let Some(place) = place {
            process.move_to(place);
        }
        // What it is shows at its next switch, so that there is to be one: both are made to take turns.
        let other = Spinner::start(cpu);
        let due = Instant::now() + Duration::from_mins(1);
        let switched = read().switches;
        while read().switches < switched + 4 {
            assert!(Instant::now() < due, "nothing switches on {cpu:?}");
            thread::sleep(Duration::from_millis(1));
        }
        other.stop();
        let (before, ran_before) = (read(), process.ran());
        while process.ran() < ran_before + 20_000_000 {
            assert!(Instant::now() < due, "it has no CPU time");
            thread::sleep(Duration::from_millis(5));
        }
        let ran = process.ran() - ran_before;
        let after = read();
        let (task, yielding) = (after.task - before.task, after.yielding - before.yielding);
        println!("in {place:?}: ran {ran}, task {task}, yielding {yielding}");
        // Interrupts are counted as its own time by the scheduler, and not here.
        let aside = (after.irq - before.irq) + (after.softirq - before.softirq);
        // Others of this machine's idle cgroups may run there too, and the clock is read a little before and after.
        let slack = 5_000_000;
        let own = if yields { yielding } else { task };
        assert!(
            own + slack >= ran.saturating_sub(aside),
            "{own} of {ran} in {place:?}"
        );
        if !yields {
            assert!(yielding <= slack, "{yielding} yields, with nobody idle");
        }
    }
}
