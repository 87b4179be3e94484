//! How fast machines run, in real time: a loop's instructions, and a whole boot of Linux. The baseline is QEMU without the plugin.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ostler_lab::image::{Architecture, LabDir, System};
use ostler_lab::progress::Progress;
use ostler_machine_launch::{Isa, Options, World, run};
use ostler_machine_programs::CLOCK;

use super::{Bench, HUNG, RUNS};

/// Instructions of the loop by which speed is measured.
const INSTRUCTIONS: u64 = 5_000_000_000;
/// Cores that Linux is booted on, unless told.
const CORES: &[u32] = &[1, 2, 4, 8];
/// QEMU alone is tried so often. It has faults that the plugin cures, and of which a kernel with many cores dies now and then.
const TRIES: u32 = 5;
/// All that the booted system does.
const OFF: &str = "#!/bin/sh\n/bin/busybox echo BOOTED\n/bin/busybox poweroff -f\n";

impl Bench {
    /// Millions of instructions per real second: on machine time, counting instructions, and with a model of caches. The
    /// baseline is QEMU without the plugin.
    pub(crate) fn speed(&self, isa: Isa) -> Result<()> {
        let (instructions, runs) = if self.args.quick {
            (200_000_000, 1)
        } else {
            (INSTRUCTIONS, RUNS)
        };
        let kernel = isa.to_string().replace('-', "_");
        let counting = format!(
            "[[machine]]\nname = \"one\"\nisa = \"{isa}\"\nmemory = \"64M\"\nkernel = \"{kernel}\"\n"
        );
        let part = match isa {
            Isa::X86_64 => "xeon-gold-6230r",
            Isa::Aarch64 => "cortex-a72",
        };
        let caches = format!("{counting}part = \"{part}\"\n");
        // What the same boot takes without the loop isn't the loop's.
        let mips = |run: &dyn Fn(u64) -> Result<()>| -> Result<f64> {
            let timed = |rounds: u64| -> Result<f64> {
                let began = Instant::now();
                run(rounds)?;
                Ok(began.elapsed().as_secs_f64())
            };
            let (idle, busy) = (timed(1)?, timed(instructions / 2)?);
            ensure!(
                busy > idle,
                "the loop is too short to be timed on a machine as busy as this"
            );
            Ok(instructions as f64 / (busy - idle) / 1e6)
        };
        let on = |text: &str, rounds| self.run(text, CLOCK, &[rounds, 1, 1000]).map(|_| ());
        let (mut plain, mut counted, mut modelled) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..runs {
            plain.push(mips(&|rounds| self.plain(isa, &kernel, rounds))?);
            counted.push(mips(&|rounds| on(&counting, rounds))?);
            modelled.push(mips(&|rounds| on(&caches, rounds))?);
        }
        self.print(format!("speed/{isa}"), "MIPS", counted, plain.clone());
        self.print(format!("speed-caches/{isa}"), "MIPS", modelled, plain);
        Ok(())
    }

    /// The same program in QEMU alone.
    fn plain(&self, isa: Isa, kernel: &str, rounds: u64) -> Result<()> {
        let parameters = [rounds, 1, 1000];
        let image = match isa {
            Isa::X86_64 => CLOCK.x86_64(&parameters),
            Isa::Aarch64 => CLOCK.aarch64(&parameters),
        };
        let folder = tempfile::tempdir()?;
        let file = folder.path().join(kernel);
        std::fs::write(&file, image)?;
        let mut qemu = self.alone(isa, "64M", 1);
        qemu.arg("-kernel").arg(&file);
        ended(&mut qemu).map(|_| ())
    }

    /// Seconds that Debian's kernel takes from the emulator's start until it has turned the machine off, with a model of caches: on one core, two,
    /// four and eight.
    pub(crate) fn boots(&self, isa: Isa, cores: &[u32]) -> Result<()> {
        if self.args.quick {
            // A test boots both, with costs and without (machine/launch).
            return Ok(());
        }
        let (architecture, append, part) = match isa {
            Isa::X86_64 => (
                Architecture::Amd64,
                "console=ttyS0 tsc=reliable",
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
            let machine = |world: &World| -> Result<f64> {
                let options = Options {
                    timeout: Some(HUNG),
                    quiet: true,
                    ..Options::default()
                };
                let began = Instant::now();
                let ended = run(world, &self.emulators, &options)?;
                let took = began.elapsed();
                booted(&ended[0].serial, took)
                    .with_context(|| format!("on machine time, {cores} cores"))
            };
            let plain = || -> Result<f64> {
                let mut qemu = self.alone(isa, "1G", cores);
                qemu.arg("-kernel").arg(&kernel).arg("-initrd").arg(&initrd);
                qemu.args(["-append", &append, "-serial", "stdio"]);
                for _ in 1..TRIES {
                    let began = Instant::now();
                    let said = ended(&mut qemu)?;
                    match booted(&said, began.elapsed()) {
                        Ok(took) => return Ok(took),
                        Err(why) => eprintln!("QEMU alone, {cores} cores, tried again: {why}"),
                    }
                }
                let began = Instant::now();
                booted(&ended(&mut qemu)?, began.elapsed()).context("QEMU alone")
            };
            let (mut ours, mut without, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..RUNS {
                ours.push(machine(&modelled)?);
                without.push(machine(&counted)?);
                theirs.push(plain()?);
            }
            self.print(
                format!("boot-caches-{cores}/{isa}"),
                "s",
                ours,
                theirs.clone(),
            );
            self.print(format!("boot-{cores}/{isa}"), "s", without, theirs);
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

/// The seconds, if it has booted.
fn booted(said: &[u8], took: Duration) -> Result<f64> {
    let said = String::from_utf8_lossy(said);
    said.contains("BOOTED")
        .then_some(took.as_secs_f64())
        .with_context(|| format!("it didn't boot:\n{said}"))
}
