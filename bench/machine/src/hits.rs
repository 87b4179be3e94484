//! Hit rates, held against a stranger's.
//!
//! Valgrind runs a program twice: once to print each of its accesses to memory (`lackey`), which go through our model, and once to
//! simulate caches itself (`cachegrind`), whose counts are the reference. Both see the same instructions at the same addresses, as Valgrind
//! loads a program to the same place each time. Cachegrind knows two levels, each with plain LRU, and counts an access that lies on
//! two lines once; so do we here. Its second level is given the size of our L2 in one run, and that of our L3 in another.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::works::Work;
use anyhow::{Context, Result, bail, ensure};
use bench_harness::{Args, Line, revision};
use ostler_machine_memory::{Catalogue, Cores, Kind, Level, Node, Part, Range, System, Topology};

/// A cache line, bytes.
const LINE: u64 = 64;
/// How far a hit rate may be off, in points of a hundred.
const BOUND: f64 = 2.0;
/// A program's addresses are apart in a few places; each of these gets memory of its own when it is first touched, at an address with the
/// same lowest bits, so that its lines fall into the same sets.
const REGION: u64 = 1 << 30;
/// Regions that there is memory for.
const REGIONS: u64 = 16;

/// A program, and what it is run on.
struct Program {
    name: &'static str,
    command: Vec<PathBuf>,
}

/// How many accesses were served where: by L1 of instructions and of data, and by anything within L2 and L3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Served {
    instructions: u64,
    instructions_l1: u64,
    data: u64,
    data_l1: u64,
    within_l2: u64,
    within_l3: u64,
}

impl Served {
    fn count(&mut self, kind: Kind, level: Level) {
        let l1 = u64::from(level == Level::L1);
        if kind == Kind::Fetch {
            self.instructions += 1;
            self.instructions_l1 += l1;
        } else {
            self.data += 1;
            self.data_l1 += l1;
        }
        self.within_l2 += u64::from(level <= Level::L2);
        self.within_l3 += u64::from(level <= Level::L3);
    }

    fn all(&self) -> u64 {
        self.instructions + self.data
    }
}

/// Compares the hit rates of a few programs. What is further off than allowed goes to `broken`.
pub fn hits(args: &Args, part: &str, broken: &mut Vec<String>) -> Result<()> {
    let catalogue = Catalogue::built_in();
    let known = catalogue
        .part(part)
        .with_context(|| format!("no part {part}"))?;
    let folder = tempfile::tempdir().context("could not create a temporary folder")?;
    for program in programs(folder.path(), args.quick)? {
        let ours = traced(&program, part)?;
        let near = cachegrind(
            &program,
            known,
            (known.l2.kib, known.l2.ways),
            folder.path(),
        )?;
        let mut cases = vec![
            (
                "l1i",
                ours.instructions_l1,
                ours.instructions,
                near.hits("I1mr", &["Ir"]),
            ),
            (
                "l1d",
                ours.data_l1,
                ours.data,
                near.hits("D1m", &["Dr", "Dw"]),
            ),
            (
                "l2",
                ours.within_l2,
                ours.all(),
                near.hits("LLm", &["Ir", "Dr", "Dw"]),
            ),
        ];
        if let Some(l3) = known.l3.as_ref().filter(|_| !args.quick) {
            let far = cachegrind(&program, known, (l3.kib, l3.ways), folder.path())?;
            let theirs = far.hits("LLm", &["Ir", "Dr", "Dw"]);
            cases.push(("l3", ours.within_l3, ours.all(), theirs));
        }
        for (level, hits, of, theirs) in cases {
            let ours = percent(hits, of);
            let case = format!("hits-{}-{level}", program.name);
            if (ours - theirs).abs() > BOUND {
                broken.push(format!(
                    "{case}: {ours:.2} % hit here, {theirs:.2} % in cachegrind: more than {BOUND} points apart"
                ));
            }
            Line {
                paper: None,
                bench: "machine".into(),
                case,
                ours,
                baseline: theirs,
                ratio: Some(ours / theirs),
                unit: "%".into(),
                runs: 1,
                // Both are programs without chance in them.
                spread: Some(0.0),
                rev: revision(),
            }
            .print(args);
        }
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
fn percent(hits: u64, of: u64) -> f64 {
    100.0 * hits as f64 / of.max(1) as f64
}

/// Sorting numbers, sorting lines, and compressing: the latter two on some of this very program.
fn programs(folder: &Path, quick: bool) -> Result<Vec<Program>> {
    let ourselves = std::env::current_exe().context("could not find this program")?;
    let words = |words: &[&str]| words.iter().map(PathBuf::from).collect::<Vec<_>>();
    let numbers = if quick { "300" } else { "40000" };
    let mut mix = vec![ourselves.clone()];
    mix.extend(words(&["probe", "mix", "MIX", numbers, "1", "1"]));
    let mut programs = vec![Program {
        name: "mix",
        command: mix,
    }];
    if !quick {
        let input = folder.join("input");
        let mut bytes = Vec::new();
        std::fs::File::open(&ourselves)
            .and_then(|file| file.take(1 << 20).read_to_end(&mut bytes))
            .with_context(|| format!("could not read {}", ourselves.display()))?;
        std::fs::write(&input, bytes)
            .with_context(|| format!("could not write {}", input.display()))?;
        for (name, command) in [
            ("sort", words(&["/usr/bin/sort", "--parallel=1"])),
            ("gzip", words(&["/bin/gzip", "-c"])),
        ] {
            let command = [command, vec![input.clone()]].concat();
            programs.push(Program { name, command });
        }
    }
    Ok(programs)
}

fn valgrind(program: &Program, arguments: &[String]) -> Command {
    let mut command = Command::new("valgrind");
    // Without the environment: how much of it there is moves the stack.
    command
        .args(arguments)
        .args(&program.command)
        .env_clear()
        .env("LC_ALL", "C")
        .env("PATH", "/usr/bin:/bin")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command
}

fn start(mut command: Command) -> Result<Child> {
    command
        .spawn()
        .context("could not start valgrind (Debian's package valgrind); the case hits needs it")
}

/// Sends all accesses of a program through the model, on one core.
fn traced(program: &Program, part: &str) -> Result<Served> {
    let topology = Topology {
        cores: vec![Cores {
            first: 0,
            last: 0,
            part: part.to_owned(),
            node: 0,
            group_cores: None,
            group_of: None,
        }],
        nodes: vec![Node {
            ranges: vec![Range {
                start: 0,
                bytes: REGIONS * REGION,
            }],
            ..Node::default()
        }],
        ..Topology::default()
    };
    let system = System::new(&topology, &Catalogue::built_in())?;
    let mut child = start(valgrind(
        program,
        &["--tool=lackey".to_owned(), "--trace-mem=yes".to_owned()],
    ))?;
    let mut served = Served::default();
    let mut now_ps = 0;
    let mut regions = Vec::new();
    let mut touch = |kind: Kind, address: u64, bytes: u64| {
        let address = physical(&mut regions, address);
        let lines = address / LINE..=(address + bytes.max(1) - 1) / LINE;
        let mut worst = Level::L1;
        for line in lines {
            let charge = system.access(0, kind, line * LINE, || now_ps);
            now_ps += charge.picoseconds;
            worst = worst.max(charge.level);
        }
        worst
    };
    let told = child.stderr.take().context("valgrind has no output")?;
    for line in BufReader::with_capacity(1 << 20, told).split(b'\n') {
        let line = line.context("could not read what valgrind prints")?;
        let Some((kind, address, bytes, modifies)) = access(&line) else {
            continue;
        };
        served.count(kind, touch(kind, address, bytes));
        if modifies {
            touch(Kind::Store, address, bytes);
        }
    }
    let status = child.wait().context("could not wait for valgrind")?;
    ensure!(
        status.success() && served.instructions > 0,
        "valgrind traced {} instructions of {} and ended with {status}",
        served.instructions,
        program.name
    );
    Ok(served)
}

/// Where a program's address lies in memory, by the regions that it has touched so far.
fn physical(regions: &mut Vec<u64>, address: u64) -> u64 {
    let region = address / REGION;
    let at = regions.iter().position(|known| *known == region);
    let at = at.unwrap_or_else(|| {
        regions.push(region);
        regions.len() - 1
    });
    at as u64 * REGION + address % REGION
}

/// A line of lackey's: `I  addr,size`, ` L addr,size`, ` S addr,size`, or ` M addr,size` for a load and a store in one, which
/// cachegrind counts as a load.
fn access(line: &[u8]) -> Option<(Kind, u64, u64, bool)> {
    let (kind, rest, modifies) = match line {
        [b'I', b' ', b' ', rest @ ..] => (Kind::Fetch, rest, false),
        [b' ', b'L', b' ', rest @ ..] => (Kind::Load, rest, false),
        [b' ', b'S', b' ', rest @ ..] => (Kind::Store, rest, false),
        [b' ', b'M', b' ', rest @ ..] => (Kind::Load, rest, true),
        _ => return None,
    };
    let (address, bytes) = std::str::from_utf8(rest).ok()?.split_once(',')?;
    Some((
        kind,
        u64::from_str_radix(address, 16).ok()?,
        bytes.trim().parse().ok()?,
        modifies,
    ))
}

/// What cachegrind counted.
struct Counted(Vec<(String, u64)>);

impl Counted {
    /// Reads a file of cachegrind's: the names of its events, and their sums.
    fn parse(text: &str) -> Result<Counted> {
        let words = |key: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(key))
                .map(|rest| rest.split_whitespace())
        };
        let (Some(names), Some(sums)) = (words("events:"), words("summary:")) else {
            bail!("cachegrind's file has no events and no summary");
        };
        let sums = sums.map(str::parse).collect::<Result<Vec<u64>, _>>()?;
        let names: Vec<String> = names.map(str::to_owned).collect();
        ensure!(
            names.len() == sums.len(),
            "cachegrind's file has {} events and {} sums",
            names.len(),
            sums.len()
        );
        Ok(Counted(names.into_iter().zip(sums).collect()))
    }

    /// The share of accesses of which cachegrind has no miss. `kind` stands for all events that begin so: `LLm` for
    /// instructions' and data's, which it calls `ILmr`, `DLmr` and `DLmw`.
    fn hits(&self, kind: &str, of: &[&str]) -> f64 {
        let sum = |wanted: &dyn Fn(&str) -> bool| -> u64 {
            let events = self.0.iter().filter(|(name, _)| wanted(name));
            events.map(|(_, sum)| sum).sum()
        };
        let missed = match kind {
            "LLm" => sum(&|name| name.starts_with("ILm") || name.starts_with("DLm")),
            kind => sum(&|name| name.starts_with(kind)),
        };
        let all = sum(&|name| of.contains(&name));
        percent(all - missed.min(all), all)
    }
}

/// Has cachegrind simulate the part's first caches, and a second level of so many KiB and ways.
fn cachegrind(
    program: &Program,
    part: &Part,
    last: (u64, usize),
    folder: &Path,
) -> Result<Counted> {
    let cache =
        |name: &str, (kib, ways): (u64, usize)| format!("--{name}={},{ways},{LINE}", kib * 1024);
    let arguments = [
        "--cache-sim=yes".to_owned(),
        cache("I1", (part.l1i.kib, part.l1i.ways)),
        cache("D1", (part.l1d.kib, part.l1d.ways)),
        cache("LL", last),
    ];
    count(program, &arguments, folder)
}

fn count(program: &Program, arguments: &[String], folder: &Path) -> Result<Counted> {
    let file = folder.join("cachegrind");
    let mut all = vec![
        "--tool=cachegrind".to_owned(),
        format!("--cachegrind-out-file={}", file.display()),
    ];
    all.extend_from_slice(arguments);
    let output = start(valgrind(program, &all))?
        .wait_with_output()
        .context("could not wait for valgrind")?;
    ensure!(
        output.status.success(),
        "cachegrind on {} ended with {}: {}",
        program.name,
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let text = std::fs::read_to_string(&file)
        .with_context(|| format!("could not read {}", file.display()))?;
    Counted::parse(&text)
}

/// Instructions of one run of a program of the probe's, by cachegrind: what three runs take beyond one, halved.
pub fn instructions(work: Work) -> Result<f64> {
    let folder = tempfile::tempdir().context("could not create a temporary folder")?;
    let ourselves = std::env::current_exe().context("could not find this program")?;
    let of = |runs: &str| -> Result<u64> {
        let words = ["probe", "count", "COUNT", work.name(), runs];
        let mut command = vec![ourselves.clone()];
        command.extend(words.iter().map(PathBuf::from));
        let program = Program {
            name: work.name(),
            command,
        };
        let counted = count(&program, &["--cache-sim=no".to_owned()], folder.path())?;
        let instructions = counted.0.iter().find(|(name, _)| name == "Ir");
        instructions
            .map(|(_, sum)| *sum)
            .context("cachegrind counted no instructions")
    };
    let (one, three) = (of("1")?, of("3")?);
    ensure!(
        three > one,
        "three runs took {three} instructions, and one {one}"
    );
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
    Ok((three - one) as f64 / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_region_has_memory_of_its_own() {
        let mut regions = Vec::new();
        for (address, expected) in [
            (0x1f_feff_e7be, 0x3eff_e7be),
            (0x401_6b80, REGION + 0x401_6b80),
            (0x1f_feff_e7c0, 0x3eff_e7c0),
            (0x1f_c000_0000, 0),
        ] {
            assert_eq!(physical(&mut regions, address), expected);
        }
        assert_eq!(regions.len(), 2);
    }

    #[test]
    fn lackeys_lines_are_accesses_and_all_else_is_not() {
        assert_eq!(
            access(b"I  04016b80,3"),
            Some((Kind::Fetch, 0x401_6b80, 3, false))
        );
        assert_eq!(
            access(b" L 1ffeffe7be,8"),
            Some((Kind::Load, 0x1f_feff_e7be, 8, false))
        );
        assert_eq!(
            access(b" S 0421c7cc,4"),
            Some((Kind::Store, 0x421_c7cc, 4, false))
        );
        assert_eq!(
            access(b" M 0421c7cc,4"),
            Some((Kind::Load, 0x421_c7cc, 4, true))
        );
        for other in ["", "==12== Lackey", "I  zz,3", " L 10", " L 10,x", "MIX 12"] {
            assert_eq!(access(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn cachegrinds_sums_become_hit_rates() {
        let text = "desc: I1 cache: ...\nevents: Ir I1mr ILmr Dr D1mr DLmr Dw D1mw DLmw\nfn=main\n1 2 3\nsummary: 1000 10 1 300 20 2 100 20 4\n";
        let counted = Counted::parse(text).expect("a file of cachegrind's");
        assert!((counted.hits("I1mr", &["Ir"]) - 99.0).abs() < 1e-9);
        assert!((counted.hits("D1m", &["Dr", "Dw"]) - 90.0).abs() < 1e-9);
        assert!((counted.hits("LLm", &["Ir", "Dr", "Dw"]) - 99.5).abs() < 1e-9);
        assert!(Counted::parse("events: Ir\nsummary: 1 2\n").is_err());
        assert!(Counted::parse("events: Ir\n").is_err());
    }

    #[test]
    fn where_an_access_was_served_is_told_by_level() {
        let mut served = Served::default();
        for (kind, level) in [
            (Kind::Fetch, Level::L1),
            (Kind::Fetch, Level::L3),
            (Kind::Load, Level::L2),
            (Kind::Store, Level::Local),
        ] {
            served.count(kind, level);
        }
        let expected = Served {
            instructions: 2,
            instructions_l1: 1,
            data: 2,
            data_l1: 0,
            within_l2: 2,
            within_l3: 3,
        };
        assert_eq!(served, expected);
    }
}
