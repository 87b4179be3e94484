//! From text to a checked [`World`]. What serde can't judge is judged here, with the line of the key that is wrong.

use std::fmt;
use std::path::{Path, PathBuf};

use ostler_machine_memory::Catalogue;
use toml::Spanned;

use crate::error::WorldError;
use crate::layout::{self, ALIGNMENT, END, Owner, Range};
use crate::raw::{RawBytes, RawMachine, RawMemory, RawTime, RawWorld};
use crate::world::{Drive, Isa, Machine, Model, Time, World};

/// Machines at most.
const MACHINES: usize = 2;
/// Cores of a machine at most: those of the model of memory.
const CORES: u32 = 64;
/// Instructions in a block of code at most: how late a core may notice that something is due.
const BLOCK: u64 = 512;
/// From another machine's ring to the interrupt, as in the thesis (4.9.1.1).
const INTERRUPT_NS: u32 = 2_000;
/// A quantum that costs next to nothing, for one machine.
const QUANTUM_NS: u32 = 10_000;
/// A machine that has no less will at least say why it can't boot.
const MEMORY_AT_LEAST: u64 = 32 << 20;

mod costs;

struct Checker<'a> {
    text: &'a str,
    path: PathBuf,
}

pub(crate) fn parse(text: &str, path: PathBuf) -> Result<World, WorldError> {
    let raw: RawWorld = match toml::from_str(text) {
        Ok(raw) => raw,
        Err(error) => {
            return Err(WorldError::Syntax {
                path,
                message: error.to_string().trim_end().to_owned(),
            });
        }
    };
    Checker { text, path }.world(&raw)
}

impl Checker<'_> {
    fn refuse<T>(
        &self,
        at: &Spanned<impl Sized>,
        what: impl fmt::Display,
        remedy: impl fmt::Display,
    ) -> Result<T, WorldError> {
        let start = at.span().start.min(self.text.len());
        Err(WorldError::Value {
            path: self.path.clone(),
            line: 1 + self.text[..start].matches('\n').count(),
            what: what.to_string(),
            remedy: remedy.to_string(),
        })
    }

    fn world(&self, raw: &RawWorld) -> Result<World, WorldError> {
        if raw.machine.is_empty() {
            return Err(WorldError::Syntax {
                path: self.path.clone(),
                message: "there is no machine; describe one by [[machine]]".to_owned(),
            });
        }
        if let Some(beyond) = raw.machine.get(MACHINES) {
            return self.refuse(
                beyond,
                format!("{} machines", raw.machine.len()),
                "describe one or two",
            );
        }
        let mut machines: Vec<Machine> = Vec::new();
        for raw in &raw.machine {
            let raw = raw.get_ref();
            let machine = self.machine(raw)?;
            if let Some(other) = machines.first() {
                self.differ(raw, &machine, other)?;
            }
            machines.push(machine);
        }
        let (model, ranges) = self.memory(raw, &machines)?;
        let pool = raw.memory.as_ref().and_then(|memory| memory.pool.as_ref());
        let world = World {
            time: self.time(&raw.time, &machines)?,
            machines,
            model,
            pool: pool.map(|pool| pool.get_ref().clone()),
            ranges,
        };
        self.costs(raw, &world)?;
        Ok(world)
    }

    fn machine(&self, raw: &RawMachine) -> Result<Machine, WorldError> {
        let name = raw.name.get_ref();
        let fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if name.is_empty() || name.len() > 16 || !name.chars().all(fine) || name == "pool" {
            return self.refuse(
                &raw.name,
                format!("a machine is called \"{name}\""),
                "write up to 16 lower-case letters, digits and hyphens, and not \"pool\"",
            );
        }
        let cores = *raw.cores.get_ref();
        if !(1..=CORES).contains(&cores) {
            return self.refuse(
                &raw.cores,
                format!("cores = {cores}"),
                format!("write 1 to {CORES}"),
            );
        }
        let folder = self.path.parent().unwrap_or(Path::new(""));
        let path_of = |name: &Spanned<String>| folder.join(name.get_ref());
        Ok(Machine {
            name: name.clone(),
            isa: *raw.isa.get_ref(),
            cores,
            instruction_ps: self.instruction_ps(raw)?,
            part: raw.part.as_ref().map(|part| part.get_ref().clone()),
            kernel: path_of(&raw.kernel),
            initrd: raw.initrd.as_ref().map(path_of),
            append: raw.append.clone(),
            firmware: raw.firmware.as_ref().map(path_of),
            drives: raw
                .drive
                .iter()
                .map(|drive| Drive {
                    file: path_of(&drive.file),
                    keep: drive.keep,
                })
                .collect(),
            serial: raw.serial.as_ref().map(path_of),
        })
    }

    /// What an instruction costs: as the file says, else a cycle of the part, else a nanosecond.
    fn instruction_ps(&self, raw: &RawMachine) -> Result<u64, WorldError> {
        if let Some(ns) = &raw.instruction_ns {
            if !(0.05..=100.0).contains(ns.get_ref()) {
                return self.refuse(
                    ns,
                    format!("instruction_ns = {}", ns.get_ref()),
                    "write 0.05 to 100 nanoseconds, like 1.0",
                );
            }
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "50 to 100,000"
            )]
            return Ok((ns.get_ref() * 1000.0).round() as u64);
        }
        let Some(name) = &raw.part else {
            return Ok(1000);
        };
        match Catalogue::built_in().part(name.get_ref()) {
            Some(part) => Ok(1_000_000 / u64::from(part.clock_mhz)),
            // Reported with all that is known, once the topology is checked.
            None => Ok(1000),
        }
    }

    /// The second machine must be another than the first.
    fn differ(
        &self,
        raw: &RawMachine,
        second: &Machine,
        first: &Machine,
    ) -> Result<(), WorldError> {
        if second.name == first.name {
            return self.refuse(
                &raw.name,
                format!("two machines are called \"{}\"", first.name),
                "name them apart",
            );
        }
        if second.isa == first.isa {
            return self.refuse(
                &raw.isa,
                format!("both machines are {}", first.isa),
                "fused machines are of two instruction sets; for one, give a single machine more cores",
            );
        }
        match &raw.serial {
            Some(serial) if second.serial == first.serial => self.refuse(
                serial,
                format!("both machines log to {}", serial.get_ref()),
                "give each a file of its own",
            ),
            _ => Ok(()),
        }
    }

    fn bytes(&self, raw: &Spanned<RawBytes>, what: &str) -> Result<u64, WorldError> {
        let bytes = match raw.get_ref() {
            RawBytes::Number(bytes) => Some(*bytes),
            RawBytes::Text(text) => with_unit(text),
        };
        match bytes {
            Some(bytes) if bytes.is_multiple_of(ALIGNMENT) => Ok(bytes),
            Some(bytes) => self.refuse(
                raw,
                format!("{what} = {bytes:#x}"),
                "write a multiple of 2 MiB",
            ),
            None => self.refuse(
                raw,
                format!("{what} isn't a number of bytes"),
                "write it like \"512M\", \"1G\" or 0x4000_0000",
            ),
        }
    }

    fn memory(
        &self,
        raw: &RawWorld,
        machines: &[Machine],
    ) -> Result<(Option<Model>, Vec<Range>), WorldError> {
        let one = match &raw.machine[..] {
            [one] => Some(one),
            _ => None,
        };
        for machine in &raw.machine {
            if let Some(own) = &machine.get_ref().memory
                && (raw.memory.is_some() || one.is_none())
            {
                return self.refuse(
                    own,
                    "`memory` is for a machine alone, without ranges",
                    "say by [memory] and [[memory.range]] what is where",
                );
            }
        }
        match (&raw.memory, one) {
            (None, Some(one)) => {
                let Some(memory) = &one.get_ref().memory else {
                    return self.refuse(
                        &one.get_ref().name,
                        format!("machine {} has no memory", machines[0].name),
                        "add memory = \"512M\"",
                    );
                };
                let bytes = self.bytes(memory, "memory")?;
                if bytes < MEMORY_AT_LEAST {
                    return self.refuse(
                        memory,
                        format!("memory = {} MiB", bytes >> 20),
                        format!("a machine needs at least {} MiB", MEMORY_AT_LEAST >> 20),
                    );
                }
                Ok((None, alone(machines[0].isa, bytes)))
            }
            (None, None) => self.refuse(
                &raw.machine[0],
                "two machines, and no [memory]",
                "say by `model` and [[memory.range]] what is whose",
            ),
            (Some(memory), Some(_)) => self.refuse(
                &memory.model,
                "a machine alone shares its memory with nobody",
                "write `memory = \"512M\"` in [[machine]] instead of [memory]",
            ),
            (Some(memory), None) => {
                let ranges = self.ranges(memory, machines)?;
                Ok((Some(*memory.model.get_ref()), ranges))
            }
        }
    }

    fn ranges(&self, raw: &RawMemory, machines: &[Machine]) -> Result<Vec<Range>, WorldError> {
        let model = *raw.model.get_ref();
        let mut ranges: Vec<Range> = Vec::new();
        for raw in &raw.range {
            let owner = match &**raw.owner.get_ref() {
                "pool" => Owner::Pool,
                name => match machines.iter().position(|machine| machine.name == name) {
                    Some(machine) => Owner::Machine(machine),
                    None => {
                        return self.refuse(
                            &raw.owner,
                            format!("there is no machine \"{name}\""),
                            format!(
                                "write {}, or pool",
                                machines
                                    .iter()
                                    .map(|machine| &*machine.name)
                                    .collect::<Vec<_>>()
                                    .join(", ")
                            ),
                        );
                    }
                },
            };
            let range = Range {
                start: self.bytes(&raw.start, "start")?,
                bytes: self.bytes(&raw.size, "size")?,
                owner,
            };
            if range.bytes == 0 || range.end() > END {
                return self.refuse(
                    &raw.size,
                    format!(
                        "a range of {:#x} bytes from {:#x}",
                        range.bytes, range.start
                    ),
                    format!("ranges have some bytes, and end at {END:#x} at the latest"),
                );
            }
            if let Some(other) = ranges
                .iter()
                .find(|other| range.start < other.end() && other.start < range.end())
            {
                return self.refuse(
                    &raw.start,
                    format!("the ranges {range} and {other} overlap"),
                    "give each address to one",
                );
            }
            self.fits_model(&raw.owner, &range, model, machines)?;
            ranges.push(range);
        }
        ranges.sort_by_key(|range| range.start);
        let has_pool = ranges.iter().any(|range| range.owner == Owner::Pool);
        if model != Model::Separated && !has_pool {
            return self.refuse(
                &raw.model,
                format!("the model is {model}, and no range is the pool's"),
                "add one with owner = \"pool\"",
            );
        }
        for (number, machine) in machines.iter().enumerate() {
            self.laid_out(raw, &ranges, number, machine)?;
        }
        Ok(ranges)
    }

    /// Whether a range can be its owner's in a model.
    fn fits_model(
        &self,
        at: &Spanned<String>,
        range: &Range,
        model: Model,
        machines: &[Machine],
    ) -> Result<(), WorldError> {
        let blind = machines
            .iter()
            .enumerate()
            .find(|(number, machine)| match range.owner {
                Owner::Machine(owner) => owner == *number && !machine.isa.can_see(range),
                Owner::Pool => !machine.isa.can_see(range),
            });
        if let Some((_, machine)) = blind {
            return self.refuse(
                at,
                format!(
                    "machine {} can't have memory at {range}: {} machines have their devices there",
                    machine.name, machine.isa
                ),
                match machine.isa {
                    Isa::X86_64 => "its memory is below 0xb0000000 or from 0x100000000 on",
                    Isa::Aarch64 => "its memory is from 0x40000000 on",
                },
            );
        }
        match (model, range.owner) {
            (Model::Separated, Owner::Pool) => self.refuse(
                at,
                "the model is separated, and has no pool",
                "name a machine, or make the model shared",
            ),
            (Model::FullyShared, Owner::Machine(owner)) => {
                let others = machines.iter().enumerate();
                let mut others = others.filter(|(number, _)| *number != owner);
                if others.any(|(_, other)| other.isa.can_see(range)) {
                    return self.refuse(
                        at,
                        format!("the model is fully-shared, and {range} would be one machine's"),
                        "make it the pool's: a machine has memory of its own only where the other has its devices",
                    );
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Whether a machine's memory can be laid out by QEMU, and the machine can boot in it.
    fn laid_out(
        &self,
        raw: &RawMemory,
        ranges: &[Range],
        number: usize,
        machine: &Machine,
    ) -> Result<(), WorldError> {
        let (isa, name) = (machine.isa, &machine.name);
        let seen = layout::seen(ranges, number, isa, Some(*raw.model.get_ref()));
        if let Some((from, to)) = layout::gap(&seen, isa) {
            return self.refuse(
                &raw.model,
                format!("machine {name} sees memory from {to:#x} on, and none from {from:#x} to there"),
                match isa {
                    Isa::X86_64 => {
                        "its memory goes from 0 to its devices (0xb0000000 at most) and on from 0x100000000, without gaps: give it a range there"
                    }
                    Isa::Aarch64 => {
                        "its memory goes on from 0x40000000 without gaps: give it a range there (what is never used costs nothing)"
                    }
                },
            );
        }
        let boot = layout::boot_bytes(&seen, number, isa);
        if boot < MEMORY_AT_LEAST {
            return self.refuse(
                &raw.model,
                format!(
                    "machine {name} boots in its memory from {:#x} on, and has {} MiB of its own or the pool's there",
                    isa.base(),
                    boot >> 20
                ),
                format!("give it at least {} MiB there", MEMORY_AT_LEAST >> 20),
            );
        }
        Ok(())
    }

    fn time(&self, raw: &RawTime, machines: &[Machine]) -> Result<Time, WorldError> {
        let interrupt_ns = raw
            .interrupt_ns
            .as_ref()
            .map_or(INTERRUPT_NS, |ns| *ns.get_ref());
        if let Some(given) = &raw.interrupt_ns
            && !(100..=1_000_000).contains(&interrupt_ns)
        {
            return self.refuse(
                given,
                format!("interrupt_ns = {interrupt_ns}"),
                "write 100 to 1000000 nanoseconds",
            );
        }
        // A core's last look at the clock may be half a quantum and a block of code ago, and it may be a quantum ahead then.
        let slowest = machines.iter().map(|machine| machine.instruction_ps).max();
        let block_ns = BLOCK * slowest.unwrap_or(1000) / 1000;
        let largest = u64::from(interrupt_ns).saturating_sub(block_ns) * 2 / 3;
        let largest = u32::try_from(largest).unwrap_or(u32::MAX);
        let fused = machines.len() > 1;
        if fused && largest < 100 {
            let what = format!(
                "interrupts between machines take {interrupt_ns} ns, and a block of {BLOCK} instructions {block_ns} ns: one could come late"
            );
            let remedy = format!("write interrupt_ns = {} or more", block_ns + 150);
            return match &raw.interrupt_ns {
                Some(given) => self.refuse(given, what, remedy),
                None => self.refuse(&Spanned::new(0..0, ()), what, remedy),
            };
        }
        let Some(given) = &raw.quantum_ns else {
            let quantum_ns = if fused {
                largest.min(QUANTUM_NS)
            } else {
                QUANTUM_NS
            };
            return Ok(Time {
                quantum_ns,
                interrupt_ns,
            });
        };
        let quantum_ns = *given.get_ref();
        if !(100..=1_000_000).contains(&quantum_ns) {
            return self.refuse(
                given,
                format!("quantum_ns = {quantum_ns}"),
                "write 100 to 1000000 nanoseconds",
            );
        }
        if fused && quantum_ns > largest {
            return self.refuse(
                given,
                format!(
                    "quantum_ns = {quantum_ns}: an interrupt from the other machine could come later than its {interrupt_ns} ns"
                ),
                format!("write {largest} or less, or a longer interrupt_ns"),
            );
        }
        Ok(Time {
            quantum_ns,
            interrupt_ns,
        })
    }
}

/// The memory of a machine alone, as QEMU lays it out.
fn alone(isa: Isa, bytes: u64) -> Vec<Range> {
    let range = |start, bytes| Range {
        start,
        bytes,
        owner: Owner::Machine(0),
    };
    match isa {
        // QEMU's own choice for q35: above 2.75 GiB, it goes on at 4 GiB after the first two.
        Isa::X86_64 if bytes >= layout::X86_HOLE => vec![
            range(0, 2 << 30),
            range(layout::X86_HIGH, bytes - (2 << 30)),
        ],
        _ => vec![range(isa.base(), bytes)],
    }
}

/// A number with K, M or G behind it.
fn with_unit(text: &str) -> Option<u64> {
    let (digits, shift) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        b'G' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number: u64 = digits.parse().ok()?;
    number.checked_mul(1 << shift)
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
