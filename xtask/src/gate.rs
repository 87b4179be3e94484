//! `cargo xtask gate`: boots the emulated host and its guests again and again, half of the times with every real core hogged,
//! and fails if any boot hung, needed a second try, or lost a guest. Run nightly and before a release.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use ostler_lab::binaries::Binaries;
use ostler_lab::hogs::Hogs;
use ostler_lab::image::{Image, LabDir};
use ostler_lab::machine::{Time, files};
use ostler_lab::program::Program;
use ostler_lab::progress::Progress;
use ostler_lab::run as lab;
use ostler_lab::scenario;
use ostler_outcome::events::Event;

use crate::{artifacts, run};

#[derive(clap::Args)]
pub struct Args {
    /// How many boots.
    #[arg(long, default_value_t = 30)]
    boots: u32,
    /// What is booted.
    #[arg(long, default_value = "scenarios/boot.toml")]
    scenario: std::path::PathBuf,
    /// Boot on wall time, to compare.
    #[arg(long)]
    wall: bool,
    /// Take the programs from this folder instead of building them.
    #[arg(long)]
    bin_dir: Option<std::path::PathBuf>,
}

/// What became of a boot.
struct Boot {
    hogged: bool,
    real_s: f64,
    /// What went wrong.
    wrong: Vec<String>,
}

pub fn gate(args: &Args) -> Result<()> {
    let bin = if let Some(folder) = &args.bin_dir {
        folder.clone()
    } else {
        run::step("set-up: packages");
        run::setup()?;
        run::step("set-up: building ostler");
        artifacts::build()?
    };
    ostler_lab::catch_interrupts();
    let program = Program::new(scenario::load(&run::root().join(&args.scenario))?, false);
    let binaries = Binaries::in_folder(&bin)?;
    let time = if args.wall {
        Time::Wall {
            plugin: binaries.plugin.clone(),
        }
    } else {
        let plugin = binaries.plugin.clone();
        let plugin =
            plugin.context("there is no plugin beside the programs; run `cargo xtask build`")?;
        Time::Machine {
            plugin: std::path::absolute(plugin)?,
            pace: false,
            profile: false,
        }
    };
    let lab = LabDir::detect();
    let image = Image::ensure(&lab, Progress::Lines)?;
    let mut boots = Vec::new();
    for number in 0..args.boots {
        let hogged = number % 2 == 1;
        let quiet = if hogged { "hogged" } else { "quiet" };
        run::step(&format!("boot {} of {}, {quiet}", number + 1, args.boots));
        let began = Instant::now();
        let hogs = hogged.then(Hogs::start);
        let result = lab::run(&lab, &image, &binaries, &program, &time, Progress::Lines);
        drop(hogs);
        let wrong = match result {
            Ok(result) => wrong_with(&result.folder, result.problems)?,
            Err(ostler_lab::LabError::Interrupted) => bail!("interrupted"),
            Err(error) => vec![error.to_string()],
        };
        let boot = Boot {
            hogged,
            real_s: began.elapsed().as_secs_f64(),
            wrong,
        };
        println!(
            "boot {}: {} after {:.1} s of real time",
            number + 1,
            if boot.wrong.is_empty() {
                "fine"
            } else {
                "WRONG"
            },
            boot.real_s
        );
        boots.push(boot);
    }
    println!("\n{}", summary(&boots));
    if boots.iter().any(|boot| !boot.wrong.is_empty()) {
        bail!("not every boot was fine");
    }
    Ok(())
}

/// Everything in a run's folder that tells of trouble, a second try that went well among it.
fn wrong_with(folder: &Path, problems: Vec<String>) -> Result<Vec<String>> {
    let mut wrong = problems;
    for stamped in lab::read_events(&folder.join("events.jsonl"))? {
        match stamped.event {
            Event::BootRetry { why, serial_log } => {
                wrong.push(format!(
                    "the host was booted again: {why} ({})",
                    serial_log.display()
                ));
            }
            Event::GuestLost { name, why } => {
                wrong.push(format!("guest {name} was started again: {why}"));
            }
            _ => {}
        }
    }
    let log = folder.join(files::QEMU);
    let said = std::fs::read_to_string(&log)
        .with_context(|| format!("could not read {}", log.display()))?;
    for line in said.lines().filter(|line| tells_of_trouble(line)) {
        wrong.push(line.to_owned());
    }
    if !wrong.is_empty() {
        wrong.push(format!("everything is kept in {}", folder.display()));
    }
    Ok(wrong)
}

/// Whether the plugin told of a stall, or had to leave a core out.
fn tells_of_trouble(line: &str) -> bool {
    line.contains("STALLED")
        || line.contains("is left out")
        || (line.contains("cores excused") && !line.contains(" 0 cores excused"))
}

fn summary(boots: &[Boot]) -> String {
    let mut text = String::new();
    for hogged in [false, true] {
        let mut times: Vec<_> = boots
            .iter()
            .filter(|b| b.hogged == hogged)
            .map(|b| b.real_s)
            .collect();
        times.sort_by(f64::total_cmp);
        if let (Some(least), Some(most)) = (times.first(), times.last()) {
            // A String takes everything.
            let _ = writeln!(
                text,
                "{} boots {}: {least:.1} to {most:.1} s of real time",
                times.len(),
                if hogged {
                    "with every real core hogged"
                } else {
                    "quiet"
                },
            );
        }
    }
    for (number, boot) in boots.iter().enumerate() {
        for wrong in &boot.wrong {
            let _ = writeln!(text, "boot {}: {wrong}", number + 1);
        }
    }
    let bad = boots.iter().filter(|boot| !boot.wrong.is_empty()).count();
    let _ = write!(text, "{} fine, {bad} not", boots.len() - bad);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_is_told_from_the_plugins_other_words() {
        assert!(tells_of_trouble(
            "machine time: STALLED: the machine's time has stood still"
        ));
        assert!(tells_of_trouble(
            "machine time: ended at 1 s ... 3 waits for disks, 2 cores excused"
        ));
        assert!(tells_of_trouble("... 10 cores excused"));
        assert!(tells_of_trouble(
            "machine time: core 3 is left out: running at 1 s for long, and not for want of a real core"
        ));
        assert!(!tells_of_trouble("... 3 waits for disks, 0 cores excused"));
    }

    #[test]
    fn the_summary_counts_and_names() {
        let boot = |hogged, wrong: &[&str]| Boot {
            hogged,
            real_s: 10.0,
            wrong: wrong.iter().map(|&w| w.to_owned()).collect(),
        };
        let text = summary(&[boot(false, &[]), boot(true, &["it hung"])]);
        assert!(
            text.contains("boot 2: it hung") && text.ends_with("1 fine, 1 not"),
            "{text}"
        );
    }
}
