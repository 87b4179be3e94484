//! The emulated host that a bench measures in: what goes into it, its clock, and what a session in it prints.
//!
//! A bench's own program goes along, as `/lab/kernel-tests/NAME`, so what measures inside is the revision that is measured.
//!
//! May depend on: ostler-lab, ostler-model, clap. Benches that need a host depend on it, nothing else does.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};
use bench_harness::Args;
use ostler_lab::binaries::Binaries;
use ostler_lab::image::{Image, LabDir};
use ostler_lab::machine::{Time, files};
use ostler_lab::profile;
use ostler_lab::program::Program;
use ostler_lab::progress::Progress;
use ostler_lab::scenario::Scenario;
use ostler_lab::up;
use ostler_model::CpuSet;

/// The arguments of a bench that boots a host.
#[derive(Debug, Clone, clap::Args)]
pub struct HostArgs {
    /// Those of every bench.
    #[command(flatten)]
    pub args: Args,
    /// Take the emulated host's programs from this folder instead of building them.
    #[arg(long)]
    pub bin_dir: Option<PathBuf>,
}

/// What hosts of a bench are made from.
#[derive(Debug)]
pub struct Parts {
    binaries: Binaries,
    /// The clock that counts a host's instructions.
    pub own_time: Time,
}

impl Parts {
    /// Builds what is missing. From here on, an interrupt ends what was started.
    ///
    /// # Errors
    /// What couldn't be built or found.
    pub fn ensure(args: &HostArgs) -> Result<Parts> {
        ostler_lab::catch_interrupts();
        let mut binaries = match &args.bin_dir {
            Some(folder) => Binaries::in_folder(folder)?,
            None => Binaries::build(None, Progress::Lines)?,
        };
        binaries.tests = vec![std::env::current_exe().context("could not find this program")?];
        let plugin = binaries.plugin.clone().context("the plugin wasn't built")?;
        let own_time = Time::Machine {
            plugin: std::path::absolute(plugin).context("could not find the plugin")?,
            pace: false,
            profile: false,
        };
        Ok(Parts { binaries, own_time })
    }

    /// Boots a host.
    ///
    /// # Errors
    /// Why it doesn't come up; where its logs are.
    pub fn boot(&self, scenario: &Scenario, time: &Time) -> Result<Host> {
        let lab = LabDir::detect();
        let image = Image::ensure(&lab, Progress::Lines)?;
        let program = Program::new(scenario.clone(), true);
        let state = up::up(
            &lab,
            &image,
            &self.binaries,
            &program,
            time,
            Progress::Lines,
        )?;
        Ok(Host {
            lab,
            run: state.run,
        })
    }
}

/// A host that is up, until it is dropped, however the bench ends.
#[derive(Debug)]
pub struct Host {
    lab: LabDir,
    /// Where the machine leaves what it has to tell.
    run: PathBuf,
}

impl Host {
    /// Runs a script, which says `end` as its last word.
    ///
    /// # Errors
    /// All that was printed, where it failed or came to no end.
    pub fn run(&self, script: &str, end: &str) -> Result<Printed> {
        let began = Instant::now();
        let mut printed = Vec::new();
        let status = up::exec(&self.lab, script, &mut printed)?;
        let text = String::from_utf8_lossy(&printed).into_owned();
        ensure!(
            status == 0 && text.lines().any(|line| line.trim().ends_with(end)),
            "the session failed ({status}):\n{text}"
        );
        Ok(Printed {
            text,
            real_s: began.elapsed().as_secs_f64(),
        })
    }
}

impl Host {
    /// What the machine counted by address between the two marks of a window, where its time was asked for a profile ([`Time::Machine`]), by function: `kallsyms` says
    /// what is where, and `on` which cores are told apart from the others.
    ///
    /// # Errors
    /// What isn't there, or can't be read.
    pub fn profile(&self, window: u32, kallsyms: &str, on: &CpuSet) -> Result<String> {
        let counted = self.run.join(format!("{}.{window}", files::PROFILE));
        let counts = std::fs::read_to_string(&counted)
            .with_context(|| format!("could not read {}", counted.display()))?;
        profile::by_function(&counts, kallsyms, on)
            .map_err(|why| anyhow!("could not read {}: {why}", counted.display()))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Err(error) = up::down(&self.lab) {
            eprintln!("the lab could not be ended: {error}");
        }
    }
}

/// What a session printed.
#[derive(Debug)]
pub struct Printed {
    /// All of it.
    pub text: String,
    /// How long it took by the real clock, s.
    pub real_s: f64,
}

impl Printed {
    /// The figures of a word: of lines that are it and a number.
    ///
    /// # Errors
    /// Where there are none.
    pub fn of(&self, word: &str) -> Result<Vec<f64>> {
        let figures: Vec<f64> = figures(&self.text, word).collect();
        ensure!(!figures.is_empty(), "the emulated host printed no {word}");
        Ok(figures)
    }
}

/// The figures of a word in what a probe printed; other lines are passed over.
pub fn figures(printed: &str, word: &str) -> impl Iterator<Item = f64> {
    printed.lines().filter_map(move |line| {
        let (its, number) = line.trim().split_once(' ')?;
        (its == word).then(|| number.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_picked_out_of_what_is_printed() {
        let printed = Printed {
            text: "L1 1.2\n[    1.0] noise\r\nL1 1.3\r\nEND\nL2 x\n".to_owned(),
            real_s: 1.0,
        };
        assert_eq!(printed.of("L1").expect("two"), [1.2, 1.3]);
        assert!(printed.of("L2").is_err());
    }
}
