//! The accounting on the real kernel.

use std::net::UdpSocket;
use std::path::Path;
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
    cpu.idle + cpu.task + cpu.softirq + cpu.irq
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
