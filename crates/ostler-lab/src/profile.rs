//! A cell's profile (`--profile`): what the machine counted by address, told by function.
//!
//! The machine leaves a file for each cell in the run's folder (`machine/time`, `profile`), the host its kernel's symbols in the cell's results. Both
//! are put together as `results/cell-N/profile.tsv`: instructions on the cores under test, their share of all there, those on other cores, where the steward and
//! the load are, those of each core under test, as what a core is for is the policy's, and the function, from the most on. Lines in parentheses are of code whose
//! functions nobody knows: programs', guests'.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::Path;

use ostler_model::{CpuId, CpuSet};

use crate::error::{IoContext, LabError, Result};
use crate::machine::files;

/// A cell's symbols among its results, as `/proc/kallsyms` has them.
pub const SYMBOLS: &str = "kallsyms";

/// What a cell's profile is called among its results.
const PROFILE: &str = "profile.tsv";

/// Puts together the profiles of all cells that have one. Returns how many there are.
pub fn put_together(run: &Path, cells: usize, under_test: &CpuSet) -> Result<usize> {
    let mut done = 0;
    for cell in 0..cells {
        let counted = run.join(format!("{}.{cell}", files::PROFILE));
        let results = run.join(format!("results/cell-{cell}"));
        let symbols = results.join(SYMBOLS);
        // A run that was cut off has one for each cell that was through.
        if !counted.exists() || !symbols.exists() {
            continue;
        }
        let text = std::fs::read_to_string(&symbols).on("read", &symbols)?;
        let counts = std::fs::read_to_string(&counted).on("read", &counted)?;
        let told = by_function(&counts, &text, under_test);
        let told = told.map_err(|why| LabError::Format {
            doing: format!("read {}", counted.display()),
            why,
        })?;
        let path = results.join(PROFILE);
        std::fs::write(&path, told).on("write", &path)?;
        for old in [&counted, &symbols] {
            std::fs::remove_file(old).on("remove", old)?;
        }
        done += 1;
    }
    Ok(done)
}

/// A kernel's functions by where they begin.
struct Symbols<'a> {
    sorted: Vec<(u64, &'a str)>,
}

impl<'a> Symbols<'a> {
    fn read(kallsyms: &'a str) -> Symbols<'a> {
        let symbol = |line: &'a str| {
            let (address, rest) = line.split_once(' ')?;
            let (_, name) = rest.split_once(' ')?;
            let address = u64::from_str_radix(address, 16).ok()?;
            (address > 0).then_some((address, name))
        };
        let mut sorted: Vec<_> = kallsyms.lines().filter_map(symbol).collect();
        // Of several names of one place, the first is kept, as everywhere in Linux.
        sorted.sort_by_key(|&(address, _)| address);
        sorted.dedup_by_key(|&mut (address, _)| address);
        Symbols { sorted }
    }

    fn function(&self, address: u64) -> Option<&'a str> {
        let after = self.sorted.partition_point(|&(at, _)| at <= address);
        Some(self.sorted[after.checked_sub(1)?].1)
    }
}

/// A function's instructions. What is on the cores under test comes first, for the order of lines.
#[derive(Default, PartialEq, Eq, PartialOrd, Ord)]
struct Count {
    here: u64,
    elsewhere: u64,
    of_core: Vec<u64>,
}

/// A profile as the machine leaves it, by function: what `kallsyms` says of addresses, some cores' instructions apart from the others', and each of those by itself.
///
/// # Errors
///
/// Which line of the counts is none.
pub fn by_function(
    counts: &str,
    kallsyms: &str,
    under_test: &CpuSet,
) -> std::result::Result<String, String> {
    let symbols = Symbols::read(kallsyms);
    let cores: Vec<CpuId> = under_test.iter().collect();
    let mut functions: HashMap<String, Count> = HashMap::new();
    let mut all = 0;
    for (number, line) in counts.lines().enumerate() {
        let bad = || format!("line {} isn't KIND ADDRESS COUNT...: {line}", number + 1);
        let mut words = line.split(' ');
        let (Some(kind), Some(address)) = (words.next(), words.next()) else {
            return Err(bad());
        };
        let name = if kind == "kernel" {
            let address = u64::from_str_radix(address, 16).map_err(|_| bad())?;
            symbols.function(address).unwrap_or("(unknown)").to_owned()
        } else {
            format!("({kind})")
        };
        let function = functions.entry(name).or_insert_with(|| Count {
            of_core: vec![0; cores.len()],
            ..Count::default()
        });
        for (core, word) in (0..).zip(words) {
            let more: u64 = word.parse().map_err(|_| bad())?;
            if let Ok(tested) = cores.binary_search(&CpuId(core)) {
                function.of_core[tested] += more;
                function.here += more;
                all += more;
            } else {
                function.elsewhere += more;
            }
        }
    }
    let mut sorted: Vec<_> = functions.into_iter().collect();
    sorted.retain(|(_, count)| count.here + count.elsewhere > 0);
    sorted.sort_by(|(a, n), (b, m)| m.cmp(n).then(a.cmp(b)));
    let mut text = "instructions\tshare\ton_other_cores".to_owned();
    // Writing to a string can't fail.
    for core in &cores {
        let _ = write!(text, "\tcore_{}", core.0);
    }
    text.push_str("\tfunction\tmodule\n");
    for (name, count) in sorted {
        #[expect(clippy::cast_precision_loss, reason = "a share of six digits")]
        let share = count.here as f64 / all.max(1) as f64;
        let _ = write!(text, "{}\t{share:.6}\t{}", count.here, count.elsewhere);
        for of_core in &count.of_core {
            let _ = write!(text, "\t{of_core}");
        }
        let _ = writeln!(text, "\t{name}");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KALLSYMS: &str = "ffffffff81000100 T schedule\nffffffff81000000 T _text\nffffffff81000000 T also_text\n\
                            ffffffffc0000000 t svm_vcpu_run\t[kvm_amd]\n";

    #[test]
    fn blocks_are_their_functions() {
        let counts = "user - 30 8 20\nguest-kernel - 0 0 0\nguest-user - 25 0 0\nelsewhere - 0 0 0\n\
                      kernel ffffffff81000100 3 1 0\nkernel ffffffff81000180 2 1 2\nkernel ffffffff810000ff 5 0 5\n\
                      kernel ffffffffc0000010 7 0 0\nkernel 8000000000000000 1 0 0\n";
        let under_test: CpuSet = [CpuId(0), CpuId(2)].into_iter().collect();
        let told = by_function(counts, KALLSYMS, &under_test).unwrap();
        let expected = [
            "instructions\tshare\ton_other_cores\tcore_0\tcore_2\tfunction\tmodule",
            "50\t0.500000\t8\t30\t20\t(user)",
            "25\t0.250000\t0\t25\t0\t(guest-user)",
            "10\t0.100000\t0\t5\t5\t_text",
            "7\t0.070000\t2\t5\t2\tschedule",
            "7\t0.070000\t0\t7\t0\tsvm_vcpu_run\t[kvm_amd]",
            "1\t0.010000\t0\t1\t0\t(unknown)",
        ];
        assert_eq!(told.lines().collect::<Vec<_>>(), expected);
        for bad in ["kernel", "kernel xyz 1", "user - many", "user"] {
            let error = by_function(bad, KALLSYMS, &under_test).unwrap_err();
            assert!(error.contains("line 1"), "{error}");
        }
    }

    #[test]
    fn cells_that_have_a_profile_get_it_among_their_results() {
        let run = tempfile::tempdir().unwrap();
        let cell = |n: u32| run.path().join(format!("results/cell-{n}"));
        for n in 0..3 {
            std::fs::create_dir_all(cell(n)).unwrap();
        }
        // The last was cut off: its load hadn't ended.
        for n in 0..2 {
            std::fs::write(
                run.path().join(format!("profile.{n}")),
                format!("user - {} 5\n", n + 1),
            )
            .unwrap();
            std::fs::write(cell(n).join(SYMBOLS), KALLSYMS).unwrap();
        }
        let one = [CpuId(0)].into_iter().collect();
        assert_eq!(put_together(run.path(), 3, &one).unwrap(), 2);
        for n in 0..2 {
            let told = std::fs::read_to_string(cell(n).join(PROFILE)).unwrap();
            assert!(
                told.contains(&format!("\n{0}\t1.000000\t5\t{0}\t(user)\n", n + 1)),
                "{told}"
            );
            assert!(!cell(n).join(SYMBOLS).exists());
        }
        assert!(!cell(2).join(PROFILE).exists());
    }
}
