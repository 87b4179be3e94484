//! CPU times by BPF on the real host, held against clocks that are not ours.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use ostler_model::{CpuId, CpuUsage, Nanos};
use ostler_sense::{Roots, SenseConfig, Sensor, now};
use rustix::thread::{CpuSet as Mask, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

fn sensor(test: &str) -> Option<Sensor> {
    let sensor = Sensor::new(SenseConfig::default()).expect("this host can be sensed");
    match missing(&sensor) {
        None => Some(sensor),
        Some(why) => {
            println!("SKIP {test}: {why}");
            None
        }
    }
}

/// Why CPU times aren't by BPF, if they aren't.
fn missing(sensor: &Sensor) -> Option<String> {
    let capabilities = &sensor.facts().capabilities;
    let busy = capabilities.iter().find(|c| c.name == "bpf-busy");
    busy.expect("told either way").missing.clone()
}

fn of(cpus: &[CpuUsage], cpu: CpuId) -> CpuUsage {
    *cpus.iter().find(|usage| usage.cpu == cpu).expect("online")
}

fn thread_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap()
}

/// A pinned spinner's own CPU clock is a lower bound of its CPU's busy time, and the interval an upper one.
#[test]
fn a_spinners_cpu_is_busy_for_at_least_as_long_as_it_ran() {
    let Some(mut sensor) = sensor("a_spinners_cpu_is_busy_for_at_least_as_long_as_it_ran") else {
        return;
    };
    let cpu = sensor.facts().topology.cpus.last().unwrap().id;
    let go = Arc::new(AtomicBool::new(true));
    let spinner = {
        let go = Arc::clone(&go);
        thread::spawn(move || {
            let mut mask = Mask::new();
            mask.set(cpu.0 as usize);
            sched_setaffinity(None, &mask).expect("an online CPU");
            let before = thread_ns();
            while go.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
            thread_ns() - before
        })
    };
    sensor.snapshot(now());
    let mut busy = 0;
    let mut interval = 0;
    let mut switches = 0;
    for _ in 0..10 {
        thread::sleep(Duration::from_millis(50));
        let snapshot = sensor.snapshot(now());
        let usage = of(&snapshot.cpus, cpu);
        assert!(usage.busy <= snapshot.interval);
        assert!(usage.irq.0 + usage.softirq.0 <= usage.busy.0);
        busy += usage.busy.0;
        interval += snapshot.interval.0;
        switches += snapshot.counters.ctx_switches.expect("counted by BPF");
    }
    go.store(false, Ordering::Relaxed);
    let ran = spinner.join().unwrap();
    // The spinner began before the first snapshot and ended after the last, by far less than a tenth of the whole.
    assert!(busy as f64 >= ran as f64 * 0.9, "busy {busy}, ran {ran}");
    assert!(busy <= interval, "busy {busy} of {interval}");
    assert!(switches > 0, "our own sleeps switch contexts");
}

/// Busy and idle time of a CPU by the kernel's own ticks.
struct Ticks {
    busy: Nanos,
    idle: Nanos,
}

/// `/proc/stat` counts in hundredths of a second: proc(5), `USER_HZ`.
const TICK_NS: u64 = 10_000_000;

/// `/proc/stat`, read without any of the sensor's code.
fn ticks() -> Vec<(CpuId, Ticks)> {
    let text = std::fs::read_to_string("/proc/stat").expect("every Linux has it");
    let lines = text.lines().filter_map(|line| line.strip_prefix("cpu"));
    lines
        .filter_map(|line| {
            let (cpu, fields) = line.split_once(' ')?;
            let cpu = CpuId(cpu.parse().ok()?); // the first line, of all CPUs, has no number
            let fields = fields.split_ascii_whitespace();
            let times: Vec<u64> = fields.map(|ticks| ticks.parse().unwrap()).collect();
            let time =
                |columns: &[usize]| Nanos(columns.iter().map(|&c| times[c]).sum::<u64>() * TICK_NS);
            // user nice system idle iowait irq softirq steal: proc(5). Stolen time is neither.
            Some((
                cpu,
                Ticks {
                    busy: time(&[0, 1, 2, 5, 6]),
                    idle: time(&[3, 4]),
                },
            ))
        })
        .collect()
}

/// Ticks sample: a task that sleeps over each tick is never seen. A quarter of the time is generous, and far from 0 or 1.
const SLACK: u64 = 400_000_000;

/// Switches of all CPUs so far, as the kernel counts them.
fn switches() -> u64 {
    let text = std::fs::read_to_string("/proc/stat").expect("every Linux has it");
    let count = text.lines().find_map(|line| line.strip_prefix("ctxt "));
    count
        .and_then(|count| count.trim().parse().ok())
        .expect("a number")
}

/// How many CPUs there can be: the kernel tells the numbers as ranges, and the last is the greatest.
fn possible() -> u64 {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible").expect("it tells");
    let last = text.trim().rsplit(['-', ',']).next();
    last.and_then(|last| last.parse::<u64>().ok())
        .expect("a number")
        + 1
}

/// Over a second and more, ticks and nanoseconds tell of the same CPU: it was busy for what ticks found busy, and at the most for what
/// they did not find idle. Between the two lies what a hypervisor above took away: no tick was there to see it. The ticks are read
/// outside of the interval, so they may have seen more than we did, by as much as the snapshots took: long on a slow host.
///
/// A CPU's time without work is told in two columns, by whether somebody waits for a disk, and a read while that changes finds the present
/// period in both or in neither (`get_idle_time` and `get_iowait_time` of fs/proc/stat.c): with what was busy, more than passed. What the
/// ticks of a CPU tell beyond that is a surplus of theirs, not of ours.
#[test]
fn busy_time_agrees_with_the_kernels_ticks() {
    let Some(mut sensor) = sensor("busy_time_agrees_with_the_kernels_ticks") else {
        return;
    };
    let began = now();
    let before = ticks();
    let outer = switches();
    sensor.snapshot(now());
    let inner = switches();
    thread::sleep(Duration::from_millis(1500));
    let switched = switches() - inner;
    let ours = sensor.snapshot(now());
    let meanwhile = switches() - outer - switched;
    let after = ticks();
    let seen = ours.counters.ctx_switches.expect("counted by BPF");
    // The sensor holds the one against the other itself, in a longer interval, and says if it finds that they aren't all traced.
    if let Some(why) = missing(&sensor) {
        println!("SKIP busy_time_agrees_with_the_kernels_ticks: {why}");
        return;
    }
    // It can't tell a few that are missing from those that each CPU is in the middle of, nor from those that came while it looked.
    let untold = possible() + meanwhile;
    assert!(
        seen + untold >= switched,
        "traced {seen} of {switched} and more, and the sensor didn't find it, with {meanwhile} while it looked"
    );
    if seen < switched {
        println!(
            "SKIP busy_time_agrees_with_the_kernels_ticks: this kernel has traced {seen} of {switched} context switches"
        );
        return;
    }
    let around = now().0 - began.0;
    let unseen = around - ours.interval.0;
    for ((cpu, before), (_, after)) in before.iter().zip(&after) {
        let ours_busy = of(&ours.cpus, *cpu).busy.0;
        let busy = after.busy.0 - before.busy.0;
        let idle = after.idle.0.saturating_sub(before.idle.0);
        let told = format!(
            "{cpu:?}: {ours_busy} ns ({} by interrupts, {} by softirqs) of {:?}; by ticks busy {busy} ns, idle {idle} ns of {around} ns",
            of(&ours.cpus, *cpu).irq.0,
            of(&ours.cpus, *cpu).softirq.0,
            ours.interval
        );
        println!("{told}");
        assert!(ours_busy + unseen + SLACK >= busy, "{told}");
        let surplus = (busy + idle).saturating_sub(around);
        assert!(ours_busy + idle <= around + surplus + SLACK, "{told}");
    }
    assert!(ours.interval > Nanos::from_millis(1000));
}

/// A kernel that counts more switches than it traces, as far as `/proc/stat` can tell: CPU times are that file's from then on, and the sensor
/// says why.
#[test]
fn a_kernel_that_traces_too_few_switches_is_not_relied_upon() {
    let test = "a_kernel_that_traces_too_few_switches_is_not_relied_upon";
    let Some(real) = sensor(test) else { return };
    let cpu = real.facts().topology.cpus[0].id;
    drop(real);
    let proc = tempfile::tempdir().expect("a folder");
    let stat = |idle: u64, user: u64, ctxt: u64| {
        let lines = format!("cpu{} {user} 0 0 {idle} 0 0 0 0 0 0\nctxt {ctxt}\n", cpu.0);
        std::fs::write(proc.path().join("stat"), lines).expect("to be written");
    };
    stat(0, 0, 5);
    let roots = Roots {
        proc: proc.path().to_owned(),
        ..Roots::default()
    };
    let mut sensor = Sensor::new(SenseConfig {
        roots,
        ..SenseConfig::default()
    })
    .expect("its CPUs are this host's");
    let began = now();
    let at = |ms: u64| Nanos(began.0 + ms * 1_000_000);
    sensor.snapshot(at(0));
    // No more than are traced: not accused, however often it is looked at.
    for second in 1..=7 {
        sensor.snapshot(at(second * 1000));
        assert_eq!(missing(&sensor), None, "after {second} s");
    }
    stat(1000, 1000, 1_000_000_000);
    sensor.snapshot(at(15_000));
    let why = missing(&sensor).expect("a thousand million switches weren't traced");
    assert!(why.contains("of 999999995 context switches"), "{why}");
    assert!(why.contains("/proc/stat"), "{why}");
    // It goes on from what the file held when it was found out.
    stat(1030, 1020, 1_000_000_070);
    let snapshot = sensor.snapshot(at(15_500));
    assert_eq!(of(&snapshot.cpus, cpu).busy, Nanos::from_millis(200));
    assert_eq!(snapshot.counters.ctx_switches, Some(70));
    assert_eq!(
        snapshot.counters.kvm_exits, None,
        "as /proc/stat doesn't tell of any"
    );
}
