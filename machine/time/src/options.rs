//! The plugin's arguments: `-plugin file=...,quantum=10000,cost=1.0,timing=instructions,pmu=FILE,cure=on,clock=own,idle=skip,awake=on,stall=20`.

use std::path::PathBuf;

use crate::clock::Cost;
use crate::refusal::Refusal;

/// Whose clock the machine goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Its own: instructions times cost.
    Own,
    /// The real machine's, as without the plugin; then it is there for its cures alone.
    Wall,
}

/// What time passes at when every core is halted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// Skips to the next timer at once: nobody watches, and waiting teaches nothing.
    Skip,
    /// No faster than real time: for a machine that somebody sits at.
    Pace,
}

/// What costs time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timing {
    /// Instructions, all alike.
    Instructions,
    /// Instructions, and accesses to memory by where their data lies.
    Caches,
}

/// The plugin's arguments.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// How far a core may be ahead of the slowest one, ns.
    pub quantum_ns: i64,
    /// What an instruction costs.
    pub cost: Cost,
    /// What costs time.
    pub timing: Timing,
    /// With [`Timing::Caches`]: the file that tells what the machine's cores, caches and memory are.
    pub topology: Option<PathBuf>,
    /// Where to show what each core does: a file that QEMU shows the emulated host as a device's memory.
    pub pmu: Option<PathBuf>,
    /// Whether QEMU's faults are mended in memory.
    pub cure: bool,
    /// Whose clock it is.
    pub clock: Clock,
    /// How time passes when every core is halted.
    pub idle: Idle,
    /// Whether idle real cores are kept awake for the emulated ones. Only where idle time is skipped: who sits at a machine
    /// doesn't mind, and may want the battery to last.
    pub awake: bool,
    /// Real seconds without any progress after which the watchdog speaks.
    pub stall_s: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            quantum_ns: 10_000,
            cost: Cost::from_ps(1000),
            timing: Timing::Instructions,
            topology: None,
            pmu: None,
            cure: true,
            clock: Clock::Own,
            idle: Idle::Skip,
            awake: true,
            stall_s: 20,
        }
    }
}

impl Options {
    /// Reads `name=value` words. What isn't said keeps its default.
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Options, Refusal> {
        let mut options = Options::default();
        for word in words {
            let bad = |expected: &'static str| Refusal::Option {
                word: word.to_owned(),
                expected,
            };
            let (name, value) = word.split_once('=').ok_or_else(|| bad("name=value"))?;
            match name {
                "quantum" => {
                    let expected = "quantum=NS with 1000 to 1000000 nanoseconds";
                    options.quantum_ns = value.parse().map_err(|_| bad(expected))?;
                    if !(1_000..=1_000_000).contains(&options.quantum_ns) {
                        return Err(bad(expected));
                    }
                }
                "cost" => {
                    let expected = "cost=NS with 0.05 to 100 nanoseconds per instruction, for example cost=1.0";
                    options.cost = Cost::parse(value).ok_or_else(|| bad(expected))?;
                    if !(50..=100_000).contains(&options.cost.ps()) {
                        return Err(bad(expected));
                    }
                }
                "timing" => {
                    options.timing = match value {
                        "instructions" => Timing::Instructions,
                        "caches" => Timing::Caches,
                        _ => return Err(bad("timing=instructions or timing=caches")),
                    }
                }
                "topology" => {
                    if value.is_empty() {
                        return Err(bad("topology=FILE"));
                    }
                    options.topology = Some(value.into());
                }
                "pmu" => {
                    if value.is_empty() {
                        return Err(bad("pmu=FILE"));
                    }
                    options.pmu = Some(value.into());
                }
                // QEMU itself turns a word without a value, `cure`, into `cure=on`.
                "cure" => {
                    options.cure = match value {
                        "on" => true,
                        "off" => false,
                        _ => return Err(bad("cure=on or cure=off")),
                    }
                }
                "clock" => {
                    options.clock = match value {
                        "own" => Clock::Own,
                        "wall" => Clock::Wall,
                        _ => return Err(bad("clock=own or clock=wall")),
                    }
                }
                "idle" => {
                    options.idle = match value {
                        "skip" => Idle::Skip,
                        "pace" => Idle::Pace,
                        _ => return Err(bad("idle=skip or idle=pace")),
                    }
                }
                "awake" => {
                    options.awake = match value {
                        "on" => true,
                        "off" => false,
                        _ => return Err(bad("awake=on or awake=off")),
                    }
                }
                "stall" => {
                    let expected = "stall=SECONDS with 1 to 3600 real seconds";
                    options.stall_s = value.parse().map_err(|_| bad(expected))?;
                    if !(1..=3600).contains(&options.stall_s) {
                        return Err(bad(expected));
                    }
                }
                _ => {
                    return Err(bad(
                        "quantum, cost, timing, topology, pmu, cure, clock, idle, awake or stall",
                    ));
                }
            }
        }
        let caches = options.timing == Timing::Caches;
        if caches != options.topology.is_some() {
            return Err(Refusal::Option {
                word: if caches { "timing=caches" } else { "topology=" }.to_owned(),
                expected: "both timing=caches and topology=FILE, or neither",
            });
        }
        Ok(options)
    }

    /// Instructions after which a core's counting is looked at: half a quantum's.
    pub fn step(&self) -> u64 {
        self.cost.instructions(self.quantum_ns / 2).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_taken_and_the_rest_keeps_its_default() {
        assert_eq!(Options::parse([]).expect("nothing"), Options::default());
        let said = Options::parse([
            "quantum=20000",
            "cost=0.5",
            "timing=caches",
            "topology=some/file.toml",
            "pmu=some/pmu",
            "cure=off",
            "clock=wall",
            "idle=pace",
            "awake=off",
            "stall=7",
        ]);
        let expected = Options {
            quantum_ns: 20_000,
            cost: Cost::from_ps(500),
            timing: Timing::Caches,
            topology: Some("some/file.toml".into()),
            pmu: Some("some/pmu".into()),
            cure: false,
            clock: Clock::Wall,
            idle: Idle::Pace,
            awake: false,
            stall_s: 7,
        };
        assert_eq!(said.expect("all of them"), expected);
        assert_eq!(expected.step(), 20_000);
    }

    #[test]
    fn nonsense_is_refused_and_named() {
        for word in [
            "quantum",
            "quantum=",
            "quantum=999",
            "quantum=1000001",
            "cost=0",
            "cost=-1",
            "cost=nan",
            "cost=1e3",
            "cure=maybe",
            "clock=mine",
            "idle=",
            "awake=1",
            "timing=",
            "topology=",
            "pmu=",
            // Each needs the other.
            "timing=caches",
            "stall=0",
            "speed=1",
        ] {
            let refusal = Options::parse([word])
                .expect_err("it is nonsense")
                .to_string();
            assert!(refusal.contains(word), "{refusal}");
        }
    }
}
