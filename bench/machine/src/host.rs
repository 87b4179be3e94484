//! The emulated host of the bench, and what a session in it prints.

use std::time::Instant;

use anyhow::{Result, ensure};
use ostler_lab::binaries::Binaries;
use ostler_lab::image::{Image, LabDir};
use ostler_lab::machine::Time;
use ostler_lab::program::Program;
use ostler_lab::progress::Progress;
use ostler_lab::scenario::Scenario;
use ostler_lab::up;

/// A host that is up, until it is dropped.
pub struct Host {
    lab: LabDir,
}

impl Host {
    /// Boots it.
    pub fn up(binaries: &Binaries, scenario: &Scenario, time: &Time) -> Result<Host> {
        let lab = LabDir::detect();
        let image = Image::ensure(&lab, Progress::Lines)?;
        let program = Program::new(scenario.clone(), true);
        up::up(&lab, &image, binaries, &program, time, Progress::Lines)?;
        Ok(Host { lab })
    }

    /// Runs a script whose last word is END.
    pub fn run(&self, script: &str) -> Result<Figures> {
        let began = Instant::now();
        let mut printed = Vec::new();
        let status = up::exec(&self.lab, script, &mut printed)?;
        let printed = String::from_utf8_lossy(&printed);
        ensure!(
            status == 0 && printed.contains("END"),
            "the session failed ({status}):\n{printed}"
        );
        Ok(Figures::parse(&printed, began.elapsed().as_secs_f64()))
    }

    /// Ends it.
    pub fn down(self) {
        drop(self);
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Err(error) = up::down(&self.lab) {
            eprintln!("the lab could not be ended: {error}");
        }
    }
}

/// What a session printed: words and figures.
pub struct Figures {
    all: Vec<(String, f64)>,
    /// How long it took, s.
    pub real_s: f64,
}

impl Figures {
    /// Picks lines of a word and a number.
    pub fn parse(printed: &str, real_s: f64) -> Figures {
        let all = printed.lines().filter_map(|line| {
            let (word, number) = line.trim().split_once(' ')?;
            Some((word.to_owned(), number.parse().ok()?))
        });
        Figures {
            all: all.collect(),
            real_s,
        }
    }

    /// The figures of a word; there must be some.
    pub fn of(&self, word: &str) -> Result<Vec<f64>> {
        let figures: Vec<f64> = self
            .all
            .iter()
            .filter(|(its, _)| its == word)
            .map(|(_, figure)| *figure)
            .collect();
        ensure!(!figures.is_empty(), "the emulated host printed no {word}");
        Ok(figures)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_picked_out_of_what_is_printed() {
        let figures = Figures::parse("L1 1.2\n[    1.0] noise\r\nL1 1.3\nEND\nL2 x\n", 1.0);
        assert_eq!(figures.of("L1").expect("two"), [1.2, 1.3]);
        assert!(figures.of("L2").is_err());
    }
}
