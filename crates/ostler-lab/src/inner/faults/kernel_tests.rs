//! Tests of other crates that need a kernel like this host's: cpusets and the freezer in a cgroup v2 tree, an RSS table
//! that can be set, BPF. Where the sources are built they may have to skip; here they must run.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context;

use super::found::entries;
use super::{Ground, Verdict};
use crate::child::wait_timeout;
use crate::program::INPUT;
use crate::share::TESTS;

/// Names the NIC whose table acting's tests may set and put back.
const RSS_NIC: &str = "OSTLER_TEST_RSS_NIC";

/// Tells acting's tests that this host is one to try a scheduler on.
const SCHEDULER: &str = "OSTLER_TEST_SCHEDULER";

/// One test program's share of the time: the host's own on machine time, and then the same however busy the real machine is. What takes most is to load
/// the scheduler: 22 s at ten nanoseconds an instruction, twice, of the 126 s that its tests take on Linux 7.3.
const PROGRAM_WITHIN: Duration = Duration::from_mins(6);

/// Runs every test program that came with the run.
pub fn run(ground: &mut Ground<'_>, verdict: &mut Verdict) -> anyhow::Result<()> {
    let folder = Path::new(INPUT).join(TESTS);
    let mut names = entries(&folder);
    names.sort();
    let wanted = ground.fault.programs.as_deref();
    let missing = wanted.into_iter().flatten().find(|program| {
        let is = |name: &String| is_program(name, program);
        !names.iter().any(is)
    });
    anyhow::ensure!(
        !names.is_empty() && missing.is_none(),
        "{} didn't come with the run; build test programs with `ostler lab run` in a checkout, or put them into {TESTS} below --bin-dir",
        missing.map_or("test programs", String::as_str)
    );
    if let Some(wanted) = wanted {
        names.retain(|name| wanted.iter().any(|program| is_program(name, program)));
    }
    let mut failed = Vec::new();
    for name in names {
        let log = ground.out.join(format!("{name}.log"));
        match program(&folder.join(&name), &ground.pnic.name, &log) {
            Ok(count) => {
                verdict.notes.push(format!("{name}: {count}"));
                verdict.notes.extend(count.notes);
            }
            Err(e) => failed.push(format!("{name}: {e:#}")),
        }
    }
    anyhow::ensure!(failed.is_empty(), "{}", failed.join("; "));
    Ok(())
}

/// Whether a file is this program: cargo puts a dash and a hash behind the name.
fn is_program(file: &str, program: &str) -> bool {
    let rest = file.strip_prefix(program);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

fn program(path: &Path, pnic: &str, log_path: &Path) -> anyhow::Result<Count> {
    let log = std::fs::File::create(log_path)
        .with_context(|| format!("could not create {}", log_path.display()))?;
    let mut child = Command::new(path)
        .args(["--test-threads=1", "--show-output"])
        .env("RUST_BACKTRACE", "1")
        .env(RSS_NIC, pnic)
        .env(SCHEDULER, "1")
        .current_dir("/tmp")
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("could not start it")?;
    let status = wait_timeout(&mut child, PROGRAM_WITHIN);
    if status.is_none() {
        let _ = child.kill();
        let _ = child.wait();
    }
    let said = String::from_utf8_lossy(&std::fs::read(log_path)?).into_owned();
    let count = Count::of(&said);
    match status {
        Some(status) if status.success() => Ok(count),
        Some(_) => anyhow::bail!("{count}: {}", count.failed.join(", ")),
        None => anyhow::bail!(
            "not done within {} s; its last words: {}",
            PROGRAM_WITHIN.as_secs(),
            crate::tail::last_lines(log_path, 2).trim()
        ),
    }
}

/// What a test program printed.
#[derive(Debug, Default, PartialEq, Eq)]
struct Count {
    passed: usize,
    failed: Vec<String>,
    /// Tests that only said why they can't run.
    skipped: Vec<String>,
    /// What tests told of themselves for a reader of the run.
    notes: Vec<String>,
}

impl Count {
    fn of(said: &str) -> Count {
        let mut count = Count::default();
        for line in said.lines() {
            if let Some(skipped) = line.strip_prefix("SKIP ") {
                count.skipped.push(skipped.to_owned());
            } else if let Some(note) = line.strip_prefix("NOTE ") {
                count.notes.push(note.to_owned());
            } else if let Some((name, result)) = line
                .strip_prefix("test ")
                .and_then(|line| line.split_once(" ... "))
            {
                if result.ends_with("ok") {
                    count.passed += 1;
                } else if result.ends_with("FAILED") {
                    count.failed.push(name.to_owned());
                }
            }
        }
        count
    }
}

impl std::fmt::Display for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let skipped = self.skipped.len();
        write!(
            f,
            "{} passed, {} failed, {skipped} skipped",
            self.passed.saturating_sub(skipped),
            self.failed.len()
        )?;
        for skipped in &self.skipped {
            write!(f, " [{skipped}]")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_told_by_what_is_before_its_hash() {
        assert!(is_program("boost-8932f819cfdfaffb", "boost"));
        assert!(is_program("boost", "boost"));
        assert!(!is_program("boosting-8932f819cfdfaffb", "boost"));
        assert!(!is_program("kernel-8932f819cfdfaffb", "boost"));
    }

    #[test]
    fn a_test_program_is_counted() {
        let said = "running 3 tests\ntest a ... ok\ntest b ... FAILED\ntest c ... ok\nSKIP c: no BPF\n\
                    NOTE a: it took 7\ntest result: FAILED. 2 passed; 1 failed";
        let count = Count::of(said);
        assert_eq!(
            count.to_string(),
            "1 passed, 1 failed, 1 skipped [c: no BPF]"
        );
        assert_eq!(count.failed, ["b"]);
        assert_eq!(count.notes, ["a: it took 7"]);
    }
}
