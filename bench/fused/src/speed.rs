//! How fast machines run, in real time: a loop's instructions, and a whole boot of Linux. The baseline is QEMU without the plugin.

use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use bench_harness::cpu;
use ostler_lab::image::{Architecture, LabDir, System};
use ostler_lab::progress::Progress;
use ostler_machine_launch::{Isa, Options, World, run};
use ostler_machine_programs::{CLOCK, Program, SORT, figures};

use super::{Bench, HUNG, RUNS};

/// Cores that Linux is booted on, unless told.
const CORES: &[u32] = &[1, 2, 4, 8];
/// QEMU alone is tried so often. It has faults that the plugin cures, and of which a kernel with many cores dies now and then.
const TRIES: u32 = 5;
/// All that the booted system does.
const OFF: &str = "#!/bin/sh\n/bin/busybox echo BOOTED\n/bin/busybox poweroff -f\n";

/// Work by which speed is measured.
struct Work {
    /// What its cases are called after `speed`.
    suffix: &'static str,
    program: Program,
    /// What it prints of how long it took.
    word: &'static str,
    /// Parameters of little of it, and of as much more as is to be timed.
    little: &'static [u64],
    much: &'static [u64],
}

/// What times it.
#[derive(Clone, Copy)]
enum Clock {
    /// QEMU alone.
    Plain,
    /// Machine time, counting instructions.
    Instructions,
    /// With a model of caches.
    Caches,
}

const WORK: [Work; 2] = [
    // Two instructions a round, and no access.
    Work {
        suffix: "",
        program: CLOCK,
        word: "LOOP",
        little: &[1, 1, 1000],
        much: &[500_000_000, 1, 1000],
    },
    // 1.6 MB, so that L1 and L2 don't do.
    Work {
        suffix: "-sort",
        program: SORT,
        word: "SORT",
        little: &[NUMBERS, 1],
        much: &[NUMBERS, 21],
    },
];
/// Numbers that are sorted.
const NUMBERS: u64 = 200_000;
/// The same in `--quick`.
const QUICK: [(&[u64], &[u64]); 2] = [
    (&[1, 1, 1000], &[100_000_000, 1, 1000]),
    (&[20_000, 1], &[20_000, 41]),
];

impl Bench {
    /// Millions of instructions per second of the emulator's CPU time: on machine time, counting instructions, and with a model of caches. The
    /// baseline is QEMU without the plugin. What the same boot takes with little of the work isn't the work's.
    pub(crate) fn speed(&self, isa: Isa) -> Result<()> {
        let runs = if self.args.quick { 1 } else { RUNS };
        for (mut work, (little, much)) in WORK.into_iter().zip(QUICK) {
            if self.args.quick {
                (work.little, work.much) = (little, much);
            }
            let mut mips = [const { Vec::new() }; 3];
            let clocks = [Clock::Instructions, Clock::Caches, Clock::Plain];
            for _ in 0..runs {
                let mut instructions = None;
                for (clock, mips) in clocks.into_iter().zip(&mut mips) {
                    let (before, little) = self.timed(clock, isa, &work, work.little)?;
                    let (after, much) = self.timed(clock, isa, &work, work.much)?;
                    ensure!(
                        much > little,
                        "there is too little of {} for its time to be told from a boot's",
                        work.word
                    );
                    // The first clock counts them, at a nanosecond each.
                    let instructions = *instructions.get_or_insert(after - before);
                    mips.push(instructions as f64 / (much - little) / 1e6);
                }
            }
            let [counted, modelled, plain] = mips;
            let case = |caches: &str| format!("speed{}{caches}/{isa}", work.suffix);
            self.print(case(""), "MIPS", counted, plain.clone());
            self.print(case("-caches"), "MIPS", modelled, plain);
        }
        Ok(())
    }

    /// Does some of the work. Returns what it says that it took, ns by its own clock, and the emulator's CPU time, s.
    fn timed(&self, clock: Clock, isa: Isa, work: &Work, parameters: &[u64]) -> Result<(u64, f64)> {
        let kernel = isa.to_string().replace('-', "_");
        let part = match isa {
            Isa::X86_64 => "xeon-gold-6230r",
            Isa::Aarch64 => "cortex-a72",
        };
        let mut text = format!(
            "[[machine]]\nname = \"one\"\nisa = \"{isa}\"\nmemory = \"64M\"\nkernel = \"{kernel}\"\n"
        );
        if matches!(clock, Clock::Caches) {
            text.extend(["part = \"", part, "\"\n"]);
        }
        let before = cpu_s()?;
        let said = match clock {
            Clock::Plain => self.plain(isa, &kernel, work.program, parameters)?,
            _ => self.run(&text, work.program, parameters)?.remove(0).serial,
        };
        let used = cpu_s()? - before;
        let said = String::from_utf8_lossy(&said);
        let took = figures(&said).into_iter();
        let took = took.filter_map(|(word, ns)| (word == work.word).then_some(ns));
        Ok((took.sum(), used))
    }

    /// The same program in QEMU alone.
    fn plain(
        &self,
        isa: Isa,
        kernel: &str,
        program: Program,
        parameters: &[u64],
    ) -> Result<Vec<u8>> {
        let image = match isa {
            Isa::X86_64 => program.x86_64(parameters),
            Isa::Aarch64 => program.aarch64(parameters),
        };
        let folder = tempfile::tempdir()?;
        let file = folder.path().join(kernel);
        std::fs::write(&file, image)?;
        let mut qemu = self.alone(isa, "64M", 1);
        qemu.arg("-kernel").arg(&file).args(["-serial", "stdio"]);
        ended(&mut qemu)
    }

    /// Seconds that Debian's kernel takes from the emulator's start until it has turned the machine off, with a model of caches: on one core, two,
    /// four and eight. And those of the emulator's CPU time.
    pub(crate) fn boots(&self, isa: Isa, cores: &[u32]) -> Result<()> {
        if self.args.quick {
            // A test boots both, with costs and without (machine/launch).
            return Ok(());
        }
        let (architecture, append, part) = match isa {
            Isa::X86_64 => (
                Architecture::Amd64,
                // Cores that wait in a loop for their turn to start are dear to emulate.
                "console=ttyS0 tsc=reliable cpuhp.parallel=off",
                "epyc-7742",
            ),
            Isa::Aarch64 => (Architecture::Arm64, "console=ttyAMA0", "thunderx2-cn9980"),
        };
        let system = System::ensure(&LabDir::detect(), architecture, Progress::Lines)?;
        let folder = tempfile::tempdir()?;
        let initrd = folder.path().join("initrd");
        system.initial_root(OFF, &initrd)?;
        let kernel = system.kernel();
        let append = format!("{append} quiet panic=-1");
        for &cores in if cores.is_empty() { CORES } else { cores } {
            let world = |part: &str| {
                let text = format!(
                    "[[machine]]\nname = \"one\"\nisa = \"{isa}\"\nmemory = \"1G\"\ncores = {cores}\nkernel = \"{}\"\ninitrd = \"initrd\"\n\
                     append = \"{append}\"\n{part}",
                    kernel.display()
                );
                World::parse(&text, &folder.path().join("world.toml"))
            };
            let modelled = world(&format!("part = \"{part}\"\n"))?;
            let counted = world("")?;
            let machine = |world: &World| -> Result<Took> {
                let options = Options {
                    timeout: Some(HUNG),
                    quiet: true,
                    ..Options::default()
                };
                let (ended, took) = Took::of(|| Ok(run(world, &self.emulators, &options)?))?;
                booted(&ended[0].serial)
                    .map(|()| took)
                    .with_context(|| format!("on machine time, {cores} cores"))
            };
            let plain = || -> Result<Took> {
                let mut qemu = self.alone(isa, "1G", cores);
                qemu.arg("-kernel").arg(&kernel).arg("-initrd").arg(&initrd);
                qemu.args(["-append", &append, "-serial", "stdio"]);
                let mut tries = 1;
                loop {
                    let (said, took) = Took::of(|| ended(&mut qemu))?;
                    match booted(&said) {
                        Ok(()) => return Ok(took),
                        Err(why) if tries == TRIES => return Err(why.context("QEMU alone")),
                        Err(why) => eprintln!("QEMU alone, {cores} cores, tried again: {why}"),
                    }
                    tries += 1;
                }
            };
            let (mut ours, mut without, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..RUNS {
                ours.push(machine(&modelled)?);
                without.push(machine(&counted)?);
                theirs.push(plain()?);
            }
            for (case, ours) in [("boot-caches", ours), ("boot", without)] {
                let all = |of: fn(&Took) -> f64| {
                    let figures = |took: &Vec<Took>| took.iter().map(of).collect();
                    (figures(&ours), figures(&theirs))
                };
                let (real, theirs_real) = all(|took| took.real_s);
                let (cpu, theirs_cpu) = all(|took| took.cpu_s);
                self.print(format!("{case}-{cores}/{isa}"), "s", real, theirs_real);
                self.print(
                    format!("{case}-cpu-{cores}/{isa}"),
                    "CPU s",
                    cpu,
                    theirs_cpu,
                );
            }
        }
        Ok(())
    }

    /// QEMU without the plugin.
    fn alone(&self, isa: Isa, memory: &str, cores: u32) -> Command {
        let emulator = self.emulators.of(isa);
        let mut qemu = emulator.command();
        for firmware in &emulator.firmware {
            qemu.arg("-L").arg(firmware);
        }
        let machine = match isa {
            Isa::X86_64 => "q35",
            Isa::Aarch64 => "virt,gic-version=3",
        };
        qemu.args(["-M", machine, "-cpu", "max", "-m", memory]);
        qemu.args(["-smp", &cores.to_string()]);
        qemu.args(["-accel", "tcg,thread=multi", "-nodefaults", "-no-reboot"]);
        qemu.args(["-display", "none"]);
        qemu
    }
}

/// Runs it to its end; what it printed.
fn ended(qemu: &mut Command) -> Result<Vec<u8>> {
    let output = qemu.stdin(Stdio::null()).output()?;
    ensure!(
        output.status.success(),
        "QEMU alone ended with {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(output.stdout)
}

/// How long a boot takes.
struct Took {
    /// By the real clock.
    real_s: f64,
    /// Of the emulator's CPU time.
    cpu_s: f64,
}

impl Took {
    /// What something takes that starts emulators and waits for their end.
    fn of<T>(boot: impl FnOnce() -> Result<T>) -> Result<(T, Took)> {
        let (began, before) = (Instant::now(), cpu_s()?);
        let said = boot()?;
        let took = Took {
            real_s: began.elapsed().as_secs_f64(),
            cpu_s: cpu_s()? - before,
        };
        Ok((said, took))
    }
}

fn cpu_s() -> Result<f64> {
    cpu::of_children().context("could not read /proc/self/stat")
}

/// Whether it has booted.
fn booted(said: &[u8]) -> Result<()> {
    let said = String::from_utf8_lossy(said);
    ensure!(said.contains("BOOTED"), "it didn't boot:\n{said}");
    Ok(())
}
