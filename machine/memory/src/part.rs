//! What a part costs: a processor's caches and latencies, a memory device's latency and bandwidth. Data, not code.
//!
//! A part is a TOML file under `parts/`, where each figure has its source beside it, or is said to be an estimate. Cycles
//! are those of the part's own clock. Everything is checked when it is read, so that the rest of this room can rely on it:
//! a cache has a power of two of sets, and what is further away costs more.

use std::collections::BTreeMap;

use serde::Deserialize;
use thiserror::Error;

/// Bytes of a cache line, on every part.
pub const LINE_BYTES: u64 = 64;
/// Ways of a private cache: their order of use is kept in one word.
const PRIVATE_WAYS: usize = 16;
/// Ways of a shared cache or a filter.
const SHARED_WAYS: usize = 32;

/// A private cache.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Cache {
    /// Its size, KiB.
    pub kib: u64,
    /// Lines in each set.
    pub ways: usize,
}

/// What a shared L3 holds.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// All that its cores' own caches hold. A line that leaves it leaves them too.
    Inclusive,
    /// What its cores' L2s evicted, until one of them takes it back for itself.
    Victim,
}

/// A cache that a group of cores shares.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct SharedCache {
    /// Its size, KiB.
    pub kib: u64,
    /// Lines in each set.
    pub ways: usize,
    /// Cores that share one.
    pub cores: usize,
    /// What it holds.
    pub policy: Policy,
}

/// Cycles from a core to what serves its access, all in all.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Cycles {
    /// Its own L1.
    pub l1: u32,
    /// Its own L2.
    pub l2: u32,
    /// Its group's L3; exactly where there is one.
    pub l3: Option<u32>,
    /// Memory of its own node.
    pub memory: u32,
    /// Memory of another socket.
    pub remote: u32,
}

/// Cycles of a snoop, by how far its target is.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Reach {
    /// Within a cache group.
    pub group: u32,
    /// Another cache group of the same node.
    pub socket: u32,
    /// Another node.
    pub remote: u32,
}

/// A processor.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// In a line.
    pub summary: String,
    /// The clock that its cycles are of.
    pub clock_mhz: u32,
    /// Lines that a core can have on their way at once; a stream of lines costs that much less (see `system`).
    pub outstanding_misses: u32,
    /// Bandwidth of a node's memory, in millions of bytes per second.
    pub memory_mb_per_s: u64,
    /// Latencies.
    pub cycles: Cycles,
    /// Instructions.
    pub l1i: Cache,
    /// Data.
    pub l1d: Cache,
    /// Both; holds all that the L1s hold.
    pub l2: Cache,
    /// None where L2 is the last.
    pub l3: Option<SharedCache>,
    /// CXL's Snoop Data and its like: a line comes from another core's cache. All in all, in place of a memory access.
    pub snoop_data_cycles: Reach,
    /// CXL's Snoop Invalidate and its like: other copies are given up. On top of where the data comes from.
    pub snoop_invalidate_cycles: Reach,
}

/// The lines of a shared memory device that are cached anywhere.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Filter {
    /// How many it can follow.
    pub lines: u64,
    /// In each of its sets.
    pub ways: usize,
}

/// A memory device that is no node's own memory.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// In a line.
    pub summary: String,
    /// From a core of the socket that it is attached to.
    pub latency_ns: u32,
    /// Bandwidth in millions of bytes per second.
    pub mb_per_s: u64,
    /// CXL's Back-Invalidate Snoop: what an access pays when the filter takes a cached line back for it.
    #[serde(default)]
    pub back_invalidate_ns: u32,
    /// None where hosts' own directories know all.
    pub filter: Option<Filter>,
}

/// What went wrong with a part.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum PartError {
    /// Not the TOML that is expected.
    #[error("part `{part}`: {error}")]
    Toml {
        /// Its name.
        part: String,
        /// What the reader says, with the line.
        error: String,
    },
    /// A cache that can't be indexed.
    #[error(
        "part `{part}`: {cache} of {lines} lines in {ways} ways has {} sets; choose a size and ways so that the sets are a power of two, and 1 to {most} ways",
        if *ways == 0 || lines % *ways as u64 != 0 { "no whole number of".to_owned() } else { (lines / *ways as u64).to_string() }
    )]
    Sets {
        /// The part.
        part: String,
        /// Which of its caches.
        cache: &'static str,
        /// Lines in all.
        lines: u64,
        /// As given.
        ways: usize,
        /// The most that this kind of cache may have.
        most: usize,
    },
    /// A figure that can't be.
    #[error("part `{part}`: {figure} is {found}; {remedy}")]
    Figure {
        /// The part.
        part: String,
        /// Which.
        figure: &'static str,
        /// As given.
        found: u64,
        /// What it must be.
        remedy: &'static str,
    },
    /// Two parts of one name.
    #[error("there is a part `{part}` already; give this one another name")]
    Twice {
        /// The name.
        part: String,
    },
}

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
enum File {
    Cpu(Part),
    Memory(Device),
}

/// All parts that a topology may name.
#[derive(Clone, Debug, Default)]
pub struct Catalogue {
    pub(crate) parts: BTreeMap<String, Part>,
    pub(crate) devices: BTreeMap<String, Device>,
}

/// The files under `parts/`.
const BUILT_IN: [(&str, &str); 7] = [
    ("cortex-a72", include_str!("../parts/cortex-a72.toml")),
    ("cxl2-e3s-x8", include_str!("../parts/cxl2-e3s-x8.toml")),
    ("cxl3-pool", include_str!("../parts/cxl3-pool.toml")),
    ("epyc-7742", include_str!("../parts/epyc-7742.toml")),
    (
        "thunderx2-cn9980",
        include_str!("../parts/thunderx2-cn9980.toml"),
    ),
    (
        "xeon-e5-2620-v4",
        include_str!("../parts/xeon-e5-2620-v4.toml"),
    ),
    (
        "xeon-gold-6230r",
        include_str!("../parts/xeon-gold-6230r.toml"),
    ),
];

impl Catalogue {
    /// The parts that come with this room.
    ///
    /// # Panics
    /// When one of them is wrong, which a test would have shown.
    pub fn built_in() -> Catalogue {
        let mut all = Catalogue::default();
        for (name, text) in BUILT_IN {
            all.add(name, text)
                .expect("a test reads every part that comes with the room");
        }
        all
    }

    /// Adds a part from its file's text.
    pub fn add(&mut self, name: &str, text: &str) -> Result<(), PartError> {
        let part = name.to_owned();
        if self.parts.contains_key(name) || self.devices.contains_key(name) {
            return Err(PartError::Twice { part });
        }
        match toml::from_str(text) {
            Ok(File::Cpu(cpu)) => {
                cpu.check(name)?;
                self.parts.insert(part, cpu);
            }
            Ok(File::Memory(device)) => {
                device.check(name)?;
                self.devices.insert(part, device);
            }
            Err(error) => {
                let error = error.to_string();
                return Err(PartError::Toml { part, error });
            }
        }
        Ok(())
    }

    /// The names of all processors.
    pub fn parts(&self) -> impl Iterator<Item = &str> {
        self.parts.keys().map(String::as_str)
    }

    /// A processor by its name.
    pub fn part(&self, name: &str) -> Option<&Part> {
        self.parts.get(name)
    }

    /// A memory device by its name.
    pub fn device(&self, name: &str) -> Option<&Device> {
        self.devices.get(name)
    }
}

/// Sets of a cache, if their number is a power of two.
pub(crate) fn sets(lines: u64, ways: usize) -> u64 {
    lines / ways as u64
}

/// Lines of so many KiB.
pub(crate) fn lines(kib: u64) -> u64 {
    kib.saturating_mul(1024) / LINE_BYTES
}

fn check_sets(
    part: &str,
    cache: &'static str,
    lines: u64,
    ways: usize,
    most: usize,
) -> Result<(), PartError> {
    let whole = (1..=most).contains(&ways)
        && lines.is_multiple_of(ways as u64)
        && sets(lines, ways).is_power_of_two()
        && lines <= 1 << 30;
    if whole {
        return Ok(());
    }
    Err(PartError::Sets {
        part: part.to_owned(),
        cache,
        lines,
        ways,
        most,
    })
}

fn check_figure(
    part: &str,
    figure: &'static str,
    found: u64,
    good: bool,
    remedy: &'static str,
) -> Result<(), PartError> {
    if good {
        return Ok(());
    }
    Err(PartError::Figure {
        part: part.to_owned(),
        figure,
        found,
        remedy,
    })
}

impl Part {
    fn check(&self, name: &str) -> Result<(), PartError> {
        for (cache, Cache { kib, ways }) in [("l1i", self.l1i), ("l1d", self.l1d), ("l2", self.l2)]
        {
            check_sets(name, cache, lines(kib), ways, PRIVATE_WAYS)?;
        }
        if let Some(l3) = self.l3 {
            check_sets(name, "l3", lines(l3.kib), l3.ways, SHARED_WAYS)?;
            check_figure(
                name,
                "l3.cores",
                l3.cores as u64,
                l3.cores > 0,
                "write how many cores share one",
            )?;
        }
        let Cycles {
            l1,
            l2,
            l3,
            memory,
            remote,
        } = self.cycles;
        if l3.is_some() != self.l3.is_some() {
            return Err(PartError::Figure {
                part: name.to_owned(),
                figure: "cycles.l3",
                found: l3.unwrap_or(0).into(),
                remedy: "give both the cache [l3] and its latency, or neither",
            });
        }
        let clock = u64::from(self.clock_mhz);
        check_figure(
            name,
            "clock_mhz",
            clock,
            (100..=10_000).contains(&clock),
            "write MHz, 100 to 10000",
        )?;
        let misses = u64::from(self.outstanding_misses);
        check_figure(
            name,
            "outstanding_misses",
            misses,
            (1..=256).contains(&misses),
            "write 1 to 256; 1 overlaps nothing",
        )?;
        check_bandwidth(name, "memory_mb_per_s", self.memory_mb_per_s)?;
        let further = "what is further away must cost more (and at most 1000000 cycles)";
        let last = l3.unwrap_or(l2);
        check_figure(name, "cycles.l1", l1.into(), l1 > 0, further)?;
        check_figure(name, "cycles.l2", l2.into(), l2 > l1, further)?;
        check_figure(
            name,
            "cycles.l3",
            last.into(),
            l3.is_none() || last > l2,
            further,
        )?;
        check_figure(name, "cycles.memory", memory.into(), memory > last, further)?;
        check_figure(
            name,
            "cycles.remote",
            remote.into(),
            remote >= memory && remote <= 1_000_000,
            further,
        )?;
        for (figure, reach) in [
            ("snoop_data_cycles", self.snoop_data_cycles),
            ("snoop_invalidate_cycles", self.snoop_invalidate_cycles),
        ] {
            let Reach {
                group,
                socket,
                remote,
            } = reach;
            let ordered = group <= socket && socket <= remote && remote <= 1_000_000;
            check_figure(
                name,
                figure,
                remote.into(),
                ordered,
                "write group, socket and remote, none less than the one before",
            )?;
        }
        Ok(())
    }
}

impl Device {
    fn check(&self, name: &str) -> Result<(), PartError> {
        let latency = u64::from(self.latency_ns);
        check_figure(
            name,
            "latency_ns",
            latency,
            (1..=1_000_000).contains(&latency),
            "write nanoseconds, 1 to 1000000",
        )?;
        check_bandwidth(name, "mb_per_s", self.mb_per_s)?;
        if let Some(filter) = self.filter {
            check_sets(name, "filter", filter.lines, filter.ways, SHARED_WAYS)?;
        }
        Ok(())
    }
}

fn check_bandwidth(part: &str, figure: &'static str, found: u64) -> Result<(), PartError> {
    let remedy = "write millions of bytes per second, 1 to 10000000";
    check_figure(
        part,
        figure,
        found,
        (1..=10_000_000).contains(&found),
        remedy,
    )
}

#[cfg(test)]
#[path = "part_tests.rs"]
mod tests;
