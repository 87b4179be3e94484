//! What is run in the emulated host: workers under our scheduler and under the kernel's own, in turn.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use libbpf_rs::{Link, Object, ObjectBuilder};
use ostler_act::{Host as _, LinuxHost, SCHED_EXT_ONCE, Scheduler, VcpuScheduler as _};
use ostler_boost::{Config, Settings};
use ostler_lab::inner::profile::Profiler;
use ostler_model::{CpuSet, Pid, Tid};

use crate::Side;
use crate::hooks::{self, Counting};

/// How much is done.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Size {
    /// Counted rounds, after one that isn't.
    pub rounds: u32,
    /// Of the loop, for each worker.
    pub loops: u64,
    /// Each way, for each pair.
    pub messages: usize,
}

/// The workloads: name, the workers that there are, and what each does.
pub fn cases(size: &Size) -> [(&'static str, usize, [String; 2]); 4] {
    let loops = || ["loop".to_owned(), size.loops.to_string()];
    let pair = || ["pair".to_owned(), size.messages.to_string()];
    [
        ("loop-2-on-2", 2, loops()),
        ("loop-4-on-2", 4, loops()),
        ("messages-1-on-2", 1, pair()),
        ("messages-4-on-2", 4, pair()),
    ]
}

/// The scheduler that is loaded; where it is nobody's, the kernel's own has the workers.
pub enum Loaded {
    Nobodys,
    Ours(Scheduler),
    Least { _least: Least },
}

impl Loaded {
    /// Whoever it is to be, on these cores.
    pub fn of(side: Side, on: CpuSet) -> Result<Loaded> {
        Ok(match side {
            Side::Ours => Loaded::Ours(load(on)?),
            Side::Least => Loaded::Least {
                _least: Least::load()?,
            },
            Side::Baseline => Loaded::Nobodys,
        })
    }
}

/// `bpf/least`, while this lives.
pub struct Least {
    _ops: Link,
    _object: Object,
}

impl Least {
    fn load() -> Result<Least> {
        let open = ObjectBuilder::default().open_memory(ostler_bpf::LEAST);
        let mut object = open
            .and_then(libbpf_rs::OpenObject::load)
            .context("could not load the least scheduler")?;
        let ops = ostler_bpf::map(&mut object, "least_ops")
            .attach_struct_ops()
            .context("could not start the least scheduler")?;
        Ok(Least {
            _ops: ops,
            _object: object,
        })
    }
}

/// Measures, on cores of which nobody else makes use, and tells each figure: of which case, whose, and how many ns.
pub fn compare(
    size: &Size,
    on: CpuSet,
    load: impl Fn(Side) -> Result<Loaded>,
    mut tell: impl FnMut(&str, Side, u64),
) -> Result<()> {
    for (case, workers, work) in cases(size) {
        for round in 0..=size.rounds {
            // Whoever goes first in a round doesn't always.
            let mut sides = Side::ALL;
            sides.rotate_left(round as usize % 3);
            for side in sides {
                // One is loaded for its own runs alone: loaded and idle, it would have its part in the baseline's cost.
                let loaded = load(side)?;
                let took = measure(&loaded, on, workers, &work)
                    .with_context(|| format!("{case}, {side}"))?;
                // The first warms caches.
                if round == 0 {
                    continue;
                }
                tell(case, side, took.ns);
                if let Some(p99) = took.p99_ns {
                    tell(&format!("{case}-p99"), side, p99);
                }
            }
        }
    }
    Ok(())
}

/// Where the instructions of a workload go under each scheduler: the machine counts them, and it is told what the addresses are.
pub fn profile(size: &Size, on: CpuSet) -> Result<()> {
    let profiler = Profiler::new()?;
    let [.., (_, workers, work)] = cases(size);
    let print = |what: &str, of_programs: bool| -> Result<()> {
        for line in Profiler::symbols()?.lines() {
            if line.ends_with("[bpf]") == of_programs {
                println!("SYMBOL {what} {line}");
            }
        }
        Ok(())
    };
    for (window, side) in (0..).zip(Side::ALL) {
        let loaded = Loaded::of(side, on)?;
        // The first warms caches.
        measure(&loaded, on, workers, &work)?;
        profiler.begin(window);
        let took = measure(&loaded, on, workers, &work);
        profiler.end(window);
        println!("FIGURE profile {side} {}", took?.ns);
        print(&side.to_string(), true)?;
    }
    print("all", false)
}

/// What each program of ours takes while the workloads run. The clock is read twice for each run of a program then, so this is apart.
pub fn hooks_of_threads(size: &Size, on: CpuSet) -> Result<()> {
    let _counted = Counting::start()?;
    let loaded = Loaded::of(Side::Ours, on)?;
    for (case, workers, work) in cases(size) {
        measure(&loaded, on, workers, &work).with_context(|| case.to_owned())?;
    }
    print_hooks()
}

/// The same while a guest takes part, and a command has it do IO.
pub fn hooks_of_guest(on: CpuSet, qemu: Pid, command: &[String]) -> Result<()> {
    let (program, arguments) = command.split_first().context("there is no command")?;
    let _counted = Counting::start()?;
    let scheduler = load(on)?;
    let vcpus = vcpus(qemu)?;
    scheduler.own(qemu, 1)?;
    admit(on, &vcpus)?;
    let done = Command::new(program)
        .args(arguments)
        .stdout(Stdio::null())
        .status();
    let host = LinuxHost::detect();
    for vcpu in vcpus {
        host.set_policy(vcpu, libc::SCHED_OTHER)
            .context("could not give the guest back")?;
    }
    let done = done.with_context(|| format!("could not start {program}"))?;
    ensure!(done.success(), "{program} ended with {done}");
    print_hooks()
}

fn print_hooks() -> Result<()> {
    for (name, hook) in hooks::read()? {
        println!("HOOK {name} {} {}", hook.runs, hook.ns);
    }
    Ok(())
}

/// The threads of a QEMU that run its guest's vCPUs, by their names.
fn vcpus(pid: Pid) -> Result<Vec<Tid>> {
    let folder = format!("/proc/{}/task", pid.0);
    let mut vcpus = Vec::new();
    for entry in std::fs::read_dir(&folder).with_context(|| format!("could not list {folder}"))? {
        let entry = entry?;
        let name = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        let number = entry.file_name().to_string_lossy().parse().ok();
        if let (true, Some(number)) = (name.ends_with("/KVM\n"), number) {
            vcpus.push(Tid(number));
        }
    }
    ensure!(!vcpus.is_empty(), "process {} runs no vCPU", pid.0);
    Ok(vcpus)
}

/// Our scheduler, as the steward would load it.
pub fn load(on: CpuSet) -> Result<Scheduler> {
    let possible = std::fs::read_to_string("/sys/devices/system/cpu/possible")
        .context("could not read the possible CPUs")?;
    let possible: CpuSet = possible
        .parse()
        .ok()
        .context("the possible CPUs are no list")?;
    let highest = possible.iter().last().context("there is no CPU")?;
    let settings = Settings {
        config: Config::default(),
        wake_granularity_ns: 1_000_000,
        domains: 0,
        tick_us: 0,
    };
    Scheduler::load(Path::new("/sys"), settings, &[on], highest.0 + 1)
        .context("could not load our scheduler")
}

/// Hands threads to whichever scheduler is loaded.
fn admit(on: CpuSet, threads: &[Tid]) -> Result<()> {
    let host = LinuxHost::detect();
    confine(on, threads)?;
    for &thread in threads {
        host.set_policy(thread, SCHED_EXT_ONCE)
            .context("could not let a thread in")?;
    }
    Ok(())
}

fn confine(on: CpuSet, threads: &[Tid]) -> Result<()> {
    let host = LinuxHost::detect();
    for &thread in threads {
        host.set_affinity(thread, &on)
            .context("could not move a thread")?;
    }
    Ok(())
}

/// What a workload took.
struct Took {
    ns: u64,
    p99_ns: Option<u64>,
}

fn measure(loaded: &Loaded, on: CpuSet, workers: usize, work: &[String; 2]) -> Result<Took> {
    let mut all = Vec::new();
    for guest in 1..=workers {
        let worker = Worker::start(work)?;
        match loaded {
            Loaded::Ours(scheduler) => {
                let number = u32::try_from(guest).context("so many guests")?;
                scheduler.own(Pid(worker.process.id()), number)?;
                admit(on, &worker.threads)?;
            }
            Loaded::Least { .. } => admit(on, &worker.threads)?,
            Loaded::Nobodys => confine(on, &worker.threads)?,
        }
        all.push(worker);
    }
    for worker in &mut all {
        worker.go()?;
    }
    let spans = all
        .iter_mut()
        .map(Worker::done)
        .collect::<Result<Vec<_>>>()?;
    // The kernel has the workers of one that it ended, and the figures would be its own.
    match loaded {
        Loaded::Ours(scheduler) => {
            let end = scheduler.end()?;
            ensure!(end.is_none(), "our scheduler ended: {end:?}");
        }
        Loaded::Least { .. } => {
            let runs = std::fs::read_to_string("/sys/kernel/sched_ext/root/ops");
            let runs = runs.unwrap_or_default();
            ensure!(
                runs.starts_with("least"),
                "the least scheduler ended, and {runs:?} is loaded"
            );
        }
        Loaded::Nobodys => {}
    }
    let begin = spans
        .iter()
        .map(|span| span.begin)
        .min()
        .context("no worker")?;
    let end = spans
        .iter()
        .map(|span| span.end)
        .max()
        .context("no worker")?;
    Ok(Took {
        ns: end - begin,
        // The worst of the pairs': a median would hide one that is put off.
        p99_ns: spans.iter().filter_map(|span| span.p99_ns).max(),
    })
}

struct Worker {
    process: Child,
    output: std::io::Lines<BufReader<ChildStdout>>,
    threads: Vec<Tid>,
}

struct Span {
    begin: u64,
    end: u64,
    p99_ns: Option<u64>,
}

impl Worker {
    fn start(work: &[String; 2]) -> Result<Worker> {
        let mut process =
            Command::new(std::env::current_exe().context("could not find this program")?)
                .arg("worker")
                .args(work)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .context("could not start a worker")?;
        let output = process.stdout.take().context("it has no output")?;
        let mut worker = Worker {
            process,
            output: BufReader::new(output).lines(),
            threads: Vec::new(),
        };
        let threads = if work[0] == "pair" { 2 } else { 1 };
        for _ in 0..threads {
            let line = worker.line()?;
            let number = line
                .strip_prefix("thread ")
                .and_then(|number| number.parse().ok());
            worker
                .threads
                .push(Tid(number.with_context(|| format!("a worker said {line}"))?));
        }
        Ok(worker)
    }

    fn line(&mut self) -> Result<String> {
        self.output
            .next()
            .context("a worker ended")?
            .context("a worker can't be read")
    }

    fn go(&mut self) -> Result<()> {
        let input = self.process.stdin.as_mut().context("it has no input")?;
        writeln!(input, "go").context("a worker ended")
    }

    fn done(&mut self) -> Result<Span> {
        let mut p99_ns = None;
        loop {
            let line = self.line()?;
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["p99", ns] => p99_ns = Some(ns.parse().context("a worker's p99")?),
                ["span", begin, end] => {
                    return Ok(Span {
                        begin: begin.parse().context("a worker's begin")?,
                        end: end.parse().context("a worker's end")?,
                        p99_ns,
                    });
                }
                _ => {}
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
