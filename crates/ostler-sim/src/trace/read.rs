//! Reading a trace: line by line, in bounded memory, with every line that is damaged told and counted.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, Read as _};

use super::{Category, GB, Reading, STEP, Vm, VmId};

/// What is read of a table.
#[derive(Clone, Copy, Debug)]
pub struct Selection {
    /// Of so many VMs one, by its name's number; 1 is all.
    pub one_of: u64,
    /// Those that are there from here, s.
    pub from: u64,
    /// To here.
    pub until: u64,
    /// And no more of them than so many: a table with more is refused, since which are left out would go by their order.
    pub vms_max: usize,
}

impl Default for Selection {
    fn default() -> Selection {
        Selection {
            one_of: 1,
            from: 0,
            until: u64::MAX,
            vms_max: 4 << 20,
        }
    }
}

/// A table.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// In order of creation, then of the file.
    pub vms: Vec<Vm>,
    /// Rows that weren't selected.
    pub left_out: u64,
    /// Lines that were none.
    pub damage: Damage,
}

/// Lines that couldn't be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// How many of them.
    pub lines: u64,
    /// Of so many.
    pub of: u64,
    /// The first few: the line's number, from 1, and what is wrong with it.
    pub first: Vec<(u64, &'static str)>,
}

impl Damage {
    fn add(&mut self, line: u64, what: &'static str) {
        self.lines += 1;
        if self.first.len() < FIRST {
            self.first.push((line, what));
        }
    }

    /// Whether so much is damaged that the file is something else, or cut up.
    fn too_much(&self) -> bool {
        self.lines > 10 && self.lines * 100 > self.of
    }
}

/// How many damaged lines are told one by one.
const FIRST: usize = 8;
/// No line of a trace has so many bytes: three names of 64 characters each, and figures.
const LINE_MAX: u64 = 4096;

/// A trace that can't be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file can't be read on.
    #[error(
        "line {line} of the trace can't be read: {error}; check the disk, and whether the file is still compressed (gzip -d)"
    )]
    Io {
        /// After how many lines.
        line: u64,
        /// What the system says.
        error: std::io::Error,
    },
    /// It is something else.
    #[error(
        "{damaged} of {of} lines are no {what}: line {line} {why}; give the file as it was published, uncompressed and without a header"
    )]
    Damaged {
        /// How many are damaged.
        damaged: u64,
        /// Of so many.
        of: u64,
        /// What they should be.
        what: &'static str,
        /// The first.
        line: u64,
        /// What is wrong with it.
        why: &'static str,
    },
    /// There is more than was to be held.
    #[error(
        "line {line} has the {most}th VM, which is as many as are held; select fewer (one of every N, or a shorter time)"
    )]
    TooMany {
        /// Where.
        line: u64,
        /// The most.
        most: usize,
    },
    /// Time goes back.
    #[error(
        "line {line} is of second {at}, after lines of second {before}; sort files of readings by their number, and lines by their first column (sort -t, -k1,1n)"
    )]
    Order {
        /// Where.
        line: u64,
        /// Its time.
        at: u64,
        /// The one before.
        before: u64,
    },
}

/// The lines of a file, one at a time.
struct Lines<R> {
    input: R,
    line: Vec<u8>,
    number: u64,
}

impl<R: BufRead> Lines<R> {
    fn new(input: R) -> Lines<R> {
        Lines {
            input,
            line: Vec::with_capacity(512),
            number: 0,
        }
    }

    /// The next line with its number, unless there is none; one that is too long or no text is empty.
    fn next(&mut self) -> Result<Option<(u64, &str)>, TraceError> {
        let wrong = |number| {
            move |error| TraceError::Io {
                line: number,
                error,
            }
        };
        self.line.clear();
        self.number += 1;
        let taken = self
            .input
            .by_ref()
            .take(LINE_MAX)
            .read_until(b'\n', &mut self.line)
            .map_err(wrong(self.number))?;
        if taken == 0 {
            return Ok(None);
        }
        if self.line.last() != Some(&b'\n') && taken as u64 == LINE_MAX {
            self.line.clear();
            // The rest of it, without holding it.
            while let chunk = self.input.fill_buf().map_err(wrong(self.number))?
                && !chunk.is_empty()
            {
                let end = chunk.iter().position(|byte| *byte == b'\n');
                let taken = end.map_or(chunk.len(), |at| at + 1);
                self.input.consume(taken);
                if end.is_some() {
                    break;
                }
            }
        }
        let text = std::str::from_utf8(&self.line).unwrap_or("");
        Ok(Some((self.number, text.trim_end_matches(['\n', '\r']))))
    }
}

/// Reads a table.
///
/// # Errors
///
/// Where it can't be read, isn't one, or has more than is to be held.
pub fn table(input: impl BufRead, selection: &Selection) -> Result<Table, TraceError> {
    let mut lines = Lines::new(input);
    let mut table = Table::default();
    let mut seen: BTreeSet<VmId> = BTreeSet::new();
    while let Some((number, text)) = lines.next()? {
        table.damage.of += 1;
        match vm(text) {
            Err(what) => table.damage.add(number, what),
            Ok(vm) => {
                let there = vm.created < selection.until && vm.deleted >= selection.from;
                if !there || vm.id.0 % selection.one_of.max(1) != 0 {
                    table.left_out += 1;
                } else if !seen.insert(vm.id) {
                    table.damage.add(number, "names a VM that is there already");
                } else if table.vms.len() >= selection.vms_max {
                    return Err(TraceError::TooMany {
                        line: number,
                        most: selection.vms_max,
                    });
                } else {
                    table.vms.push(vm);
                }
            }
        }
    }
    refuse(&table.damage, "VMs")?;
    table.vms.sort_by_key(|vm| vm.created);
    Ok(table)
}

/// What a table calls VMs: names of so many as are wanted are held, and no more.
///
/// # Errors
///
/// Where it can't be read.
pub fn names(
    input: impl BufRead,
    wanted: &BTreeSet<VmId>,
) -> Result<BTreeMap<VmId, String>, TraceError> {
    let mut lines = Lines::new(input);
    let mut names = BTreeMap::new();
    while names.len() < wanted.len()
        && let Some((_, text)) = lines.next()?
    {
        let name = text.split(',').next().unwrap_or("");
        let id = VmId::of(name);
        if wanted.contains(&id) && vm(text).is_ok() {
            names.entry(id).or_insert_with(|| name.to_owned());
        }
    }
    Ok(names)
}

fn refuse(damage: &Damage, what: &'static str) -> Result<(), TraceError> {
    if damage.too_much() || (damage.lines > 0 && damage.lines == damage.of) {
        let (line, why) = damage.first.first().copied().unwrap_or((0, "is none"));
        return Err(TraceError::Damaged {
            damaged: damage.lines,
            of: damage.of,
            what,
            line,
            why,
        });
    }
    Ok(())
}

fn vm(text: &str) -> Result<Vm, &'static str> {
    let mut columns = text.split(',');
    let mut next = || columns.next().ok_or("has fewer than 11 columns");
    let name = |text: &str| {
        if text.is_empty() {
            return Err("has no name in a column of names");
        }
        Ok(VmId::of(text))
    };
    let vm = Vm {
        id: name(next()?)?,
        subscription: name(next()?)?,
        deployment: name(next()?)?,
        created: second(next()?)?,
        deleted: second(next()?)?,
        cpu_max: percent(next()?)?,
        cpu_mean: percent(next()?)?,
        cpu_p95: percent(next()?)?,
        category: category(next()?)?,
        cores: cores(next()?)?,
        memory: memory(next()?)?,
    };
    if columns.next().is_some() {
        return Err("has more than 11 columns");
    }
    if vm.deleted < vm.created {
        return Err("has a VM that ends before it begins");
    }
    Ok(vm)
}

fn second(text: &str) -> Result<u64, &'static str> {
    // Some tools write seconds as floats.
    let whole = text.strip_suffix(".0").unwrap_or(text);
    let at: u64 = whole
        .parse()
        .map_err(|_| "has a time that is no whole number of seconds")?;
    if at > 100 * 366 * 86_400 {
        return Err("has a time of more than a hundred years");
    }
    Ok(at)
}

fn percent(text: &str) -> Result<f64, &'static str> {
    let value: f64 = text
        .parse()
        .map_err(|_| "has a CPU utilisation that is no number")?;
    // Rounding may take it over 100 by a little.
    if !(0.0..=100.01).contains(&value) {
        return Err("has a CPU utilisation that isn't from 0 to 100");
    }
    Ok(value)
}

fn category(text: &str) -> Result<Category, &'static str> {
    [
        Category::Interactive,
        Category::DelayInsensitive,
        Category::Unknown,
    ]
    .into_iter()
    .find(|category| category.name() == text)
    .ok_or("has a category that is none of Interactive, Delay-insensitive and Unknown")
}

/// The bucket without an upper bound counts as V2's own notebook has it: 30 cores, and 70 GB.
fn cores(text: &str) -> Result<u32, &'static str> {
    let cores: u32 = if text == ">24" {
        30
    } else {
        text.parse().map_err(|_| "has cores that are no number")?
    };
    if !(1..=4096).contains(&cores) {
        return Err("has cores that aren't from 1 to 4096");
    }
    Ok(cores)
}

fn memory(text: &str) -> Result<u64, &'static str> {
    let gb: f64 = if text == ">64" {
        70.0
    } else {
        text.parse().map_err(|_| "has memory that is no number")?
    };
    if !(0.01..=1e5).contains(&gb) {
        return Err("has memory that isn't from 0.01 to 100000 GB");
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is between bounds"
    )]
    let bytes = (gb * GB) as u64;
    Ok(bytes)
}

/// Readings, one timestamp after the other.
pub struct Readings<R> {
    lines: Lines<R>,
    ahead: Option<Reading>,
    damage: Damage,
}

impl<R: BufRead> Readings<R> {
    /// Of a file, or of several that follow each other ([`std::io::Read::chain`]).
    pub fn new(input: R) -> Readings<R> {
        Readings {
            lines: Lines::new(input),
            ahead: None,
            damage: Damage::default(),
        }
    }

    /// All of the next timestamp, if there is one, of those VMs that are wanted; more than `wanted` says yes to are never held.
    ///
    /// # Errors
    ///
    /// Where the file can't be read on, isn't one, or isn't in order.
    pub fn step(
        &mut self,
        mut wanted: impl FnMut(VmId) -> bool,
        into: &mut Vec<Reading>,
    ) -> Result<Option<u64>, TraceError> {
        into.clear();
        let mut at = self.ahead.map(|reading| reading.at);
        into.extend(self.ahead.take().filter(|reading| wanted(reading.vm)));
        while let Some((number, text)) = self.lines.next()? {
            self.damage.of += 1;
            match reading(text) {
                Err(what) => {
                    self.damage.add(number, what);
                    if self.damage.too_much() {
                        break;
                    }
                }
                Ok(reading) => match at {
                    Some(before) if reading.at < before => {
                        return Err(TraceError::Order {
                            line: number,
                            at: reading.at,
                            before,
                        });
                    }
                    Some(before) if reading.at > before => {
                        self.ahead = Some(reading);
                        return Ok(at);
                    }
                    _ => {
                        at = Some(reading.at);
                        into.extend(Some(reading).filter(|reading| wanted(reading.vm)));
                    }
                },
            }
        }
        refuse(&self.damage, "readings")?;
        Ok(at)
    }

    /// What couldn't be read so far.
    pub fn damage(&self) -> &Damage {
        &self.damage
    }
}

fn reading(text: &str) -> Result<Reading, &'static str> {
    let mut columns = text.split(',');
    let mut next = || columns.next().ok_or("has fewer than 5 columns");
    let at = second(next()?)?;
    let name = next()?;
    let reading = Reading {
        at,
        vm: VmId::of(name),
        min: percent(next()?)?,
        max: percent(next()?)?,
        mean: percent(next()?)?,
    };
    if columns.next().is_some() {
        return Err("has more than 5 columns");
    }
    if name.is_empty() {
        return Err("has no VM");
    }
    if at % STEP != 0 {
        return Err("has a time that is no multiple of 300 s");
    }
    Ok(reading)
}
