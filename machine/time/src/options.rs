//! The plugin's arguments: `-plugin file=...,quantum=10000,cost=1.0,timing=instructions,pmu=FILE,profile=FILE,cure=on,clock=own,idle=skip,awake=on,stall=20`,
//! for one of several machines that are fused, `page=FILE,machine=0,latency=2000`, and for what memory costs them `block=FILE,first=0`.

use std::path::PathBuf;

use crate::clock::Cost;
use crate::fused::{CORES, MACHINES, fits};
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

/// Which of several machines this is, and where they meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fusion {
    /// The file whose first bytes all of them map ([`crate::fused::Page`]); all zeros before the first comes.
    pub page: PathBuf,
    /// This one's number.
    pub machine: usize,
    /// From a ring of one machine's doorbell by another to the interrupt, ns.
    pub latency_ns: i64,
}

/// What memory costs several machines, in one model of them all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The file whose first bytes all of them map ([`ostler_machine_memory::System::attach`]); all zeros before the first comes.
    pub file: PathBuf,
    /// The number that this machine's first core has in the topology of all.
    pub first: usize,
}

/// The words that are about other machines, as they are read.
#[derive(Default)]
struct Others {
    page: Option<PathBuf>,
    machine: Option<usize>,
    latency_ns: Option<i64>,
    block: Option<PathBuf>,
    first: Option<usize>,
}

impl Others {
    /// Reads a word, if it is one of them.
    fn read(
        &mut self,
        name: &str,
        value: &str,
        bad: impl Fn(&'static str) -> Refusal,
    ) -> Result<bool, Refusal> {
        let file = || (!value.is_empty()).then(|| PathBuf::from(value));
        match name {
            "page" => self.page = Some(file().ok_or_else(|| bad("page=FILE"))?),
            "machine" => {
                let number = value.parse().ok().filter(|&number| number < MACHINES);
                self.machine = Some(number.ok_or_else(|| bad("machine=0 or machine=1"))?);
            }
            "latency" => {
                let ns = value.parse().ok();
                let ns = ns.filter(|ns| (100..=1_000_000).contains(ns));
                self.latency_ns =
                    Some(ns.ok_or_else(|| bad("latency=NS with 100 to 1000000 nanoseconds"))?);
            }
            "block" => self.block = Some(file().ok_or_else(|| bad("block=FILE"))?),
            "first" => {
                let number = value.parse().ok().filter(|&number| number < CORES);
                self.first =
                    Some(number.ok_or_else(|| bad("first=CORE with a core from 0 to 63"))?);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Of three words that go together.
    fn fusion(&self) -> Result<Option<Fusion>, Refusal> {
        match (&self.page, self.machine, self.latency_ns) {
            (None, None, None) => Ok(None),
            (Some(page), Some(machine), Some(latency_ns)) => Ok(Some(Fusion {
                page: page.clone(),
                machine,
                latency_ns,
            })),
            _ => Err(Refusal::Option {
                word: "page=, machine=, latency=".to_owned(),
                expected: "all three of them, or none",
            }),
        }
    }

    /// Of the two others.
    fn block(&self) -> Result<Option<Block>, Refusal> {
        match (&self.block, self.first) {
            (None, None) => Ok(None),
            (Some(file), Some(first)) => Ok(Some(Block {
                file: file.clone(),
                first,
            })),
            _ => Err(Refusal::Option {
                word: "block=, first=".to_owned(),
                expected: "both of them, or none",
            }),
        }
    }
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
    /// Where to write what went where between two marks, `.n` added ([`crate::profile`]).
    pub profile: Option<PathBuf>,
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
    /// The other machines, if there are any.
    pub fusion: Option<Fusion>,
    /// With those and [`Timing::Caches`]: where the model is.
    pub block: Option<Block>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            quantum_ns: 10_000,
            cost: Cost::from_ps(1000),
            timing: Timing::Instructions,
            topology: None,
            pmu: None,
            profile: None,
            cure: true,
            clock: Clock::Own,
            idle: Idle::Skip,
            awake: true,
            stall_s: 20,
            fusion: None,
            block: None,
        }
    }
}

impl Options {
    /// Reads `name=value` words. What isn't said keeps its default.
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Options, Refusal> {
        let mut options = Options::default();
        let mut others = Others::default();
        for word in words {
            let bad = |expected: &'static str| Refusal::Option {
                word: word.to_owned(),
                expected,
            };
            let (name, value) = word.split_once('=').ok_or_else(|| bad("name=value"))?;
            match name {
                "quantum" => {
                    let expected = "quantum=NS with 100 to 1000000 nanoseconds";
                    options.quantum_ns = value.parse().map_err(|_| bad(expected))?;
                    if !(100..=1_000_000).contains(&options.quantum_ns) {
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
                "profile" => {
                    if value.is_empty() {
                        return Err(bad("profile=FILE"));
                    }
                    options.profile = Some(value.into());
                }
                // QEMU itself turns a word without a value, `cure`, into `cure=on`.
                "cure" => options.cure = switch(value).ok_or_else(|| bad("cure=on or cure=off"))?,
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
                    options.awake = switch(value).ok_or_else(|| bad("awake=on or awake=off"))?;
                }
                "stall" => {
                    let expected = "stall=SECONDS with 1 to 3600 real seconds";
                    options.stall_s = value.parse().map_err(|_| bad(expected))?;
                    if !(1..=3600).contains(&options.stall_s) {
                        return Err(bad(expected));
                    }
                }
                _ if others.read(name, value, bad)? => {}
                _ => {
                    return Err(bad(
                        "quantum, cost, timing, topology, pmu, profile, cure, clock, idle, awake, stall, page, machine, latency, block or first",
                    ));
                }
            }
        }
        options.fusion = others.fusion()?;
        options.block = others.block()?;
        options.agree()?;
        Ok(options)
    }

    /// What goes together and what doesn't.
    fn agree(&self) -> Result<(), Refusal> {
        let caches = self.timing == Timing::Caches;
        if caches != self.topology.is_some() {
            return Err(Refusal::Option {
                word: if caches { "timing=caches" } else { "topology=" }.to_owned(),
                expected: "both timing=caches and topology=FILE, or neither",
            });
        }
        // The host marks what is to be profiled in its counters' pages, and only where the clock is ours are cores looked after.
        if self.profile.is_some() && (self.pmu.is_none() || self.clock == Clock::Wall) {
            return Err(Refusal::Option {
                word: "profile=".to_owned(),
                expected: "pmu=FILE and clock=own with it",
            });
        }
        // Machines that see the same memory, each with a model of its own, would not know what the other's caches hold.
        if self.block.is_some() != (caches && self.fusion.is_some()) {
            return Err(Refusal::Option {
                word: if caches { "timing=caches" } else { "block=" }.to_owned(),
                expected: "timing=caches, page=FILE and block=FILE together, or without the others timing=caches for a machine alone",
            });
        }
        let Some(fusion) = &self.fusion else {
            return Ok(());
        };
        if self.clock == Clock::Wall || self.idle == Idle::Pace {
            return Err(Refusal::Option {
                word: "page=".to_owned(),
                expected: "clock=own and idle=skip with it: machines are in step on time of their own",
            });
        }
        fits(self.quantum_ns, fusion.latency_ns, self.cost).map_err(|largest_ns| Refusal::Quantum {
            quantum_ns: self.quantum_ns,
            latency_ns: fusion.latency_ns,
            largest_ns,
        })
    }

    /// Instructions after which a core's counting is looked at: half a quantum's.
    pub fn step(&self) -> u64 {
        self.cost.instructions(self.quantum_ns / 2).max(1)
    }
}

fn switch(value: &str) -> Option<bool> {
    match value {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
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
            "profile=some/profile",
            "cure=off",
            "clock=own",
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
            profile: Some("some/profile".into()),
            cure: false,
            clock: Clock::Own,
            idle: Idle::Pace,
            awake: false,
            stall_s: 7,
            fusion: None,
            block: None,
        };
        assert_eq!(said.expect("all of them"), expected);
        assert_eq!(expected.step(), 20_000);
    }

    #[test]
    fn a_machine_among_others_is_wholly_described_and_in_step_with_them() {
        let fused = |more: &[&'static str]| {
            let words = ["page=/page", "machine=1", "latency=2000"];
            Options::parse(words.into_iter().chain(more.iter().copied()))
        };
        let options = fused(&["quantum=990"]).expect("it fits");
        let expected = Fusion {
            page: "/page".into(),
            machine: 1,
            latency_ns: 2000,
        };
        assert_eq!(options.fusion, Some(expected));
        // 2000 - 512 instructions, of which a quantum and a half.
        let refusal = fused(&["quantum=993"]).expect_err("a doorbell could come late");
        assert!(refusal.to_string().contains("992"), "{refusal}");
        assert!(fused(&["quantum=990", "idle=pace"]).is_err());
        assert!(fused(&["quantum=990", "clock=wall"]).is_err());
        assert!(Options::parse(["machine=1"]).is_err());
    }

    #[test]
    fn machines_that_share_memory_share_what_it_costs() {
        let parse = |words: &str| Options::parse(words.split(' '));
        let fused = "page=/page machine=1 latency=2000 quantum=990";
        let caches = "timing=caches topology=/topology";
        let block = "block=/block first=2";
        let options = parse(&format!("{fused} {caches} {block}")).expect("all of it");
        let expected = Block {
            file: "/block".into(),
            first: 2,
        };
        assert_eq!(options.block, Some(expected));
        for words in [
            format!("{fused} {caches}"),
            format!("{fused} {block}"),
            format!("{caches} {block}"),
            format!("{fused} {caches} block=/block"),
            format!("{fused} {caches} first=2"),
        ] {
            assert!(parse(&words).is_err(), "{words}");
        }
        assert!(parse(caches).is_ok() && parse(fused).is_ok());
    }

    #[test]
    fn a_profile_needs_the_counters_pages_and_a_clock_of_its_own() {
        let wall = ["clock=wall", "pmu=/pmu"];
        assert_eq!(Options::parse(wall).map(|o| o.clock), Ok(Clock::Wall));
        assert!(Options::parse(["profile=/profile", "pmu=/pmu"]).is_ok());
        assert!(Options::parse(["profile=/profile"]).is_err());
        assert!(Options::parse(["profile=/profile", "pmu=/pmu", "clock=wall"]).is_err());
    }

    #[test]
    fn nonsense_is_refused_and_named() {
        for word in [
            "quantum",
            "quantum=",
            "quantum=99",
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
            "profile=",
            // Each needs the other.
            "timing=caches",
            "stall=0",
            "page=",
            "machine=2",
            "latency=99",
            "latency=1000001",
            "block=",
            "first=64",
            "speed=1",
        ] {
            let refusal = Options::parse([word])
                .expect_err("it is nonsense")
                .to_string();
            assert!(refusal.contains(word), "{refusal}");
        }
    }
}
